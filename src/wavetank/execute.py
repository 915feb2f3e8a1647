"""Where trials run: this process, local processes, or a Ray or Dask cluster (all through joblib).

A trial depends on nothing but its study, systems and seed, so every place gives the same records.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavetank import catalog
from wavetank.errors import BadValueError, WavetankError, missing_extra
from wavetank.records import FinishedTrial
from wavetank.study import Study, Trial

PLACES = ("here", "local", "local:N", "ray://HOST:PORT", "ray://local", "dask://HOST:PORT", "dask://local")


@dataclass(frozen=True)
class FailedTrial:
    """A trial that ended in an error: one the user can mend, or a defect (then ``error`` is None)."""

    trial: str
    error: WavetankError | None
    traceback: str


def run_trial(study: Study, trial: Trial, parameters: Mapping[str, Mapping[str, Any]]) -> FinishedTrial | FailedTrial:
    """Build the trial's systems, run it, and return its records or its failure; never raises."""
    start = time.perf_counter()
    try:
        built = {name: catalog.system(name).build(**parameters.get(name, {})) for name in trial.systems}
        records = study.run(trial, built)
    except WavetankError as error:
        return FailedTrial(trial.key, error, "")
    except Exception:
        return FailedTrial(trial.key, None, traceback.format_exc())
    return FinishedTrial(trial=trial.key, wall_s=time.perf_counter() - start, records=records)


def run_trials(
    study: Study,
    trials: Sequence[Trial],
    parameters: Mapping[str, Mapping[str, Any]],
    on: str = "local",
) -> Iterator[FinishedTrial | FailedTrial]:
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

    Raises
    ------
    BadValueError
        If ``on`` is none of these.
    MissingExtraError
        If Ray or Dask is asked for and not installed.
    """
    scheme, _, address = on.partition("://") if "://" in on else on.partition(":")
    if scheme not in ("here", "local", "ray", "dask") or (scheme in ("ray", "dask") and not address):
        raise BadValueError("This is not a place where trials can run.", given=on, allowed=PLACES, where="--on")
    if not trials:
        return
    if scheme == "here" or study.in_process:
        for trial in trials:
            yield run_trial(study, trial, parameters)
        return
    if scheme == "local":
        workers = _count(address, on) if address else _cores()
        workers = min(workers, len(trials))
        if workers == 1:
            yield from run_trials(study, trials, parameters, "here")
            return
        yield from _parallel(study, trials, parameters, n_jobs=workers)
        return
    with _cluster(scheme, address):
        yield from _parallel(study, trials, parameters, n_jobs=-1, streams=scheme == "dask")


def _parallel(
    study: Study,
    trials: Sequence[Trial],
    parameters: Mapping[str, Mapping[str, Any]],
    *,
    n_jobs: int,
    streams: bool = True,
) -> Iterator[FinishedTrial | FailedTrial]:
    import joblib

    calls = (joblib.delayed(run_trial)(study, trial, parameters) for trial in trials)
    # Ray's joblib back end cannot stream results; it returns them together.
    kind = "generator_unordered" if streams else "list"
    results = joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as=kind)(calls)
    try:
        yield from results
    finally:
        if streams:
            results.close()


@contextlib.contextmanager
def _cluster(scheme: str, address: str) -> Iterator[None]:
    import joblib

    if scheme == "dask":
        try:
            import distributed
        except ImportError:
            raise missing_extra("distributed", "dask", needed_for="--on dask://") from None
        local = {"n_workers": _cores(), "threads_per_worker": 1, "dashboard_address": None}
        try:
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
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise missing_extra("ray", "ray", needed_for="--on ray://") from None
    try:
        if address == "local":
            ray.init(num_cpus=_cores(), include_dashboard=False, log_to_driver=False, logging_level="error")
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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
