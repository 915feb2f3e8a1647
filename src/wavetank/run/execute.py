"""Where trials run: this process, local processes, or a Ray or Dask cluster (all through joblib).

A trial depends on nothing but its study, systems and seed, so every place gives the same records.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import time
import traceback
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.errors import BadValueError, WavetankError, missing_extra, nearest_of
from wavetank.ledger import catalog
from wavetank.machine.threads import usable_cores
from wavetank.run.parcels import Parcel
from wavetank.study.records import FinishedTrial
from wavetank.study.study import Study, Trial

PLACES = ("here", "local", "local:N", "ray://HOST:PORT", "ray://local", "dask://HOST:PORT", "dask://local")

Parcels = Mapping[str, Parcel]


@dataclass(frozen=True)
class FailedTrial:
    """A trial that ended in an error: one the user can mend, or a defect (then ``error`` is None)."""

    trial: str
    error: WavetankError | None
    traceback: str


def run_trial(
    study: Study, trial: Trial, parameters: Mapping[str, Mapping[str, Any]], own: Parcels
) -> FinishedTrial | FailedTrial:
    """Build the trial's systems, run it, and return its records or its failure; never raises."""
    start = time.perf_counter()
    try:
        built = {}
        for name in trial.systems:
            given = parameters.get(name, {})
            built[name] = own[name].build(given) if name in own else catalog.system(name).build(**given)
        records = study.run(trial, built)
    except WavetankError as error:
        return FailedTrial(trial.key, error, "")
    except (Exception, SystemExit):  # what a system of a user's own does is beyond this one's control
        return FailedTrial(trial.key, None, traceback.format_exc())
    return FinishedTrial(trial=trial.key, wall_s=time.perf_counter() - start, records=records)


def _run_trial_elsewhere(
    study: Study, trial: Trial, parameters: Mapping[str, Mapping[str, Any]], own: Parcels, folder: str = ""
) -> FinishedTrial | FailedTrial:
    """Run a trial in a process of its own: the process that asks has named what is left out of the catalog."""
    if folder:
        # Worker processes outlive a run, and names of files are those of the folder that the run was asked from.
        with contextlib.suppress(OSError):
            os.chdir(folder)
    with warnings.catch_warnings(action="ignore", category=catalog.CatalogWarning):
        return run_trial(study, trial, parameters, own)


def check_place(on: str) -> tuple[str, str]:
    """Return scheme and address of a place; raises what :func:`run_trials` says."""
    scheme, _, address = on.partition("://") if "://" in on else on.partition(":")
    known = {"here": not address, "local": "://" not in on, "ray": bool(address), "dask": bool(address)}
    if not known.get(scheme):
        raise BadValueError(
            "This is not a place where trials can run.",
            given=on,
            allowed=PLACES,
            nearest=nearest_of(on, PLACES),
            where="--on",
        )
    if scheme == "local" and address:
        _count(address, on)
    library = {"ray": "ray", "dask": "distributed"}.get(scheme)
    if library and importlib.util.find_spec(library) is None:
        raise missing_extra(library, scheme, needed_for=f"--on {scheme}://")
    return scheme, address


def run_trials(
    study: Study,
    trials: Sequence[Trial],
    parameters: Mapping[str, Mapping[str, Any]],
    on: str = "local",
    own: Parcels | None = None,
) -> Generator[FinishedTrial | FailedTrial, None, None]:
    """Run trials and yield each as it ends.

    Parameters
    ----------
    study : Study
    trials : sequence of Trial
    parameters : mapping
        System name to constructor arguments that differ from the catalog's.
    on : str
        ``here`` (this process), ``local`` (as many processes as cores), ``local:N``, ``ray://ADDRESS`` or
        ``dask://ADDRESS``; the address ``local`` starts a cluster on this machine for the length of the call.
    own : mapping of str to Parcel, optional
        The systems that are no entries of the catalog.

    Raises
    ------
    BadValueError
        If ``on`` is none of these.
    MissingExtraError
        If Ray or Dask is asked for and not installed.
    """
    scheme, address = check_place(on)
    if not trials:
        return
    own = own or {}
    if study.process_per_seed and scheme != "here" and len({trial.seed for trial in trials}) > 1:
        yield from _in_turn(study, trials, parameters, own)
        return
    if scheme == "here" or study.in_process:
        for trial in trials:
            yield run_trial(study, trial, parameters, own)
        return
    if scheme == "local":
        workers = _count(address, on) if address else usable_cores()
        workers = min(workers, len(trials))
        if workers == 1:
            yield from run_trials(study, trials, parameters, "here", own)
            return
        yield from _parallel(study, trials, parameters, own, n_jobs=workers)
        return
    with _cluster(scheme, address):
        if scheme == "dask":
            yield from _parallel(study, trials, parameters, own, n_jobs=-1)
        else:
            yield from _in_slices(study, trials, parameters, own)


def _parallel(
    study: Study,
    trials: Sequence[Trial],
    parameters: Mapping[str, Mapping[str, Any]],
    own: Parcels,
    *,
    n_jobs: int,
) -> Generator[FinishedTrial | FailedTrial, None, None]:
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    # Processes of a cluster may be on other machines.
    folder = ""
    with contextlib.suppress(OSError):
        folder = str(Path.cwd()) if n_jobs > 0 else ""
    calls = (joblib.delayed(_run_trial_elsewhere)(study, trial, parameters, own, folder) for trial in trials)
    with _deaf_children():
        results = joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")(calls)
    try:
        # Not `yield from`: that would close the results itself, outside the block below.
        for outcome in results:  # noqa: UP028
            yield outcome
    except TerminatedWorkerError as error:
        raise WavetankError(
            "A worker process was killed or crashed; it may have run out of memory.",
            hint="run fewer at a time with --on local:N; --resume goes on with this run",
        ) from error
    finally:
        with warnings.catch_warnings():
            # joblib warns of the trials that are given up; the caller knows.
            warnings.simplefilter("ignore", UserWarning)
            results.close()


def _in_turn(
    study: Study, trials: Sequence[Trial], parameters: Mapping[str, Mapping[str, Any]], own: Parcels
) -> Generator[FinishedTrial | FailedTrial, None, None]:
    """Run trials of a study of times one after the other, those of each seed in a process of their own.

    What a process happens to get (physical pages, the order of its libraries in memory) stays the same as long as it
    runs, so that rounds of one process agree better than two processes do.
    """
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    # loky replaces a process that has grown by 300 MB, as one does that keeps a matrix: the next trial has a new one.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")
    for seed in dict.fromkeys(trial.seed for trial in trials):
        executor = ProcessPoolExecutor(max_workers=1)
        try:
            for trial in (each for each in trials if each.seed == seed):
                with _deaf_children():
                    waiting = executor.submit(_run_trial_elsewhere, study, trial, parameters, own)
                yield waiting.result()
        except TerminatedWorkerError as error:
            raise WavetankError(
                "The process of a study of times was killed or crashed; it may have run out of memory.",
                hint="--resume goes on with this run; --on here runs every trial in this process",
            ) from error
        finally:
            executor.shutdown(kill_workers=True)


def _in_slices(
    study: Study, trials: Sequence[Trial], parameters: Mapping[str, Mapping[str, Any]], own: Parcels
) -> Generator[FinishedTrial | FailedTrial, None, None]:
    """Run trials on Ray, whose joblib back end returns results only together: in slices, so that few can be lost."""
    import joblib

    size = 2 * joblib.effective_n_jobs(-1)
    for start in range(0, len(trials), size):
        some = trials[start : start + size]
        calls = (joblib.delayed(_run_trial_elsewhere)(study, trial, parameters, own) for trial in some)
        yield from joblib.Parallel(n_jobs=-1, batch_size=1)(calls)


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Let processes that start inside never see Ctrl-C: this process hears it, keeps what is finished and ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    # Starting a tracker unblocks the signal, so they must be there before it is blocked.
    resource_tracker.ensure_running()
    loky_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Take back what starting a cluster sets in this process: Dask limits its workers' threads by its own variables."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _cluster(scheme: str, address: str) -> Iterator[None]:
    import joblib

    if scheme == "dask":
        import distributed

        local = {
            "n_workers": usable_cores(),
            "threads_per_worker": 1,
            "dashboard_address": None,
            "silence_logs": logging.ERROR,
        }
        try:
            with _deaf_children(), _environment_kept():
                client = (
                    distributed.Client(**local)
                    if address == "local"
                    else distributed.Client(f"tcp://{address}", timeout=10)
                )
        except (OSError, TimeoutError) as error:
            raise BadValueError(
                f"No Dask scheduler answers: {error}", given=address, where="--on", hint="dask scheduler --host HOST"
            ) from error
        with client, joblib.parallel_config("dask", client=client):
            yield
        return
    import ray
    from ray.util.joblib import register_ray

    try:
        with _deaf_children():
            if address == "local":
                ray.init(num_cpus=usable_cores(), include_dashboard=False, log_to_driver=False, logging_level="error")
            else:
                ray.init(address=f"ray://{address}", log_to_driver=False, logging_level="error")
    except (OSError, ConnectionError, TimeoutError, RuntimeError) as error:
        raise BadValueError(
            f"No Ray cluster answers: {str(error).splitlines()[0]}",
            given=address,
            where="--on",
            hint="ray start --head",
        ) from error
    register_ray()
    try:
        with joblib.parallel_config("ray"):
            yield
    finally:
        ray.shutdown()


def _count(text: str, on: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise BadValueError("The number of local processes must be 1 or more.", given=on, where="--on")
    return int(text)
