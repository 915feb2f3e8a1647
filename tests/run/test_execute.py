from __future__ import annotations

import importlib.util
import os
import sys
import time
import types
import warnings
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from joblib.externals.loky import get_reusable_executor
from wavetank_toys.studies import ToyNoise, ToyTiming

from wavetank.errors import BadTraceError, BadValueError, MissingExtraError, WavetankError
from wavetank.extras import install_command
from wavetank.ledger import catalog
from wavetank.run.execute import PLACES, FailedTrial, check_place, run_trial, run_trials
from wavetank.study.records import FinishedTrial
from wavetank.study.study import Trial

STUDY = ToyNoise()
TOYS = ("toy-plain", "toy-shifted")


def run(on: str, systems: tuple[str, ...] = TOYS, seeds: int = 4, **parameters: Any) -> list[Any]:
    named = {name.replace("_", "-"): values for name, values in parameters.items()}
    return list(run_trials(STUDY, STUDY.trials(systems, range(seeds)), named, on))


def records(outcomes: list[Any]) -> dict[str, Any]:
    return {outcome.trial: outcome.records for outcome in outcomes}


def test_this_process_runs_trials_in_their_order() -> None:
    assert [outcome.trial for outcome in run("here", seeds=2)] == [
        "toy-plain#0",
        "toy-shifted#0",
        "toy-plain#1",
        "toy-shifted#1",
    ]


@pytest.mark.parametrize("place", ["local", "local:1", "local:2", "dask://local", "ray://local"])
def test_every_place_gives_the_records_of_this_process(place: str) -> None:
    def limits() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}

    before = limits()
    assert records(run(place)) == records(run("here"))
    assert limits() == before


def test_workers_that_were_there_before_follow_to_the_folder_of_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    # Every trial writes down its process and the folder that it runs in, and waits, so that both processes have some.
    class Where(ToyNoise):
        def measure(self, system: Any, seed: int) -> Any:
            with Path(self.remark).open("a", encoding="utf-8") as notes:
                notes.write(f"{os.getpid()} {Path.cwd()}\n")
            time.sleep(0.05)
            return super().measure(system, seed)

    def noted(name: str) -> tuple[set[str], set[str]]:
        study = Where(remark=str(tmp_path / name))
        assert len(list(run_trials(study, study.trials(TOYS, range(8)), {}, "local:2"))) == 16
        lines = [line.split(" ", 1) for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()]
        return {process for process, _ in lines}, {folder for _, folder in lines}

    # Processes that other tests made grow would be replaced between the runs.
    get_reusable_executor().shutdown(wait=True, kill_workers=True)
    before, there = noted("first")
    assert there == {str(Path.cwd())}
    monkeypatch.chdir(tmp_path)
    after, there = noted("second")
    assert there == {str(tmp_path)}
    assert before & after


def test_no_trial_needs_no_place() -> None:
    assert list(run_trials(STUDY, [], {}, "ray://nowhere:1")) == []


TIMING = ToyTiming(rounds=1, sizes=(10, 20))


def timed(on: str, seeds: tuple[int, ...], systems: tuple[str, ...] = TOYS, **parameters: Any) -> list[Any]:
    named = {name.replace("_", "-"): values for name, values in parameters.items()}
    return list(run_trials(TIMING, TIMING.trials(systems, seeds), named, on))


def processes(outcomes: list[Any]) -> list[int]:
    found = []
    for outcome in outcomes:
        assert isinstance(outcome, FinishedTrial)
        (process,) = {record.value for record in outcome.records if record.metric == "process"}
        found.append(int(process))
    return found


@pytest.mark.parametrize("place", ["local", "local:2", "ray://local"])
def test_trials_of_a_study_of_time_never_share_the_machine(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    for way in ("_parallel", "_in_slices", "_cluster"):
        monkeypatch.setattr(f"wavetank.run.execute.{way}", None)
    assert processes(timed(place, (0,))) == [os.getpid()] * 2
    found = timed(place, (0, 5))
    assert [outcome.trial.partition("#")[2] for outcome in found] == [
        "0/10 numbers", "0/20 numbers", "5/10 numbers", "5/20 numbers",
    ]  # fmt: skip
    first, same, second, again = processes(found)
    assert (first, second) == (same, again)
    assert len({first, second, os.getpid()}) == 3


def test_any_study_may_ask_for_a_process_per_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    study = catalog.study("toy-noise").load()()
    monkeypatch.setattr("wavetank.run.execute._in_turn", lambda study, trials, *_: (each.key for each in trials))
    trials = study.trials(["toy-plain"], (0, 1))
    assert isinstance(next(run_trials(study, trials, {}, "local:1")), FinishedTrial)
    monkeypatch.setattr(type(study), "process_per_seed", True)
    assert list(run_trials(study, trials, {}, "local")) == ["toy-plain#0", "toy-plain#1"]


def test_a_study_of_time_stays_here_where_that_is_asked_for() -> None:
    assert processes(timed("here", (0, 1))) == [os.getpid()] * 4


def test_a_process_of_a_study_of_time_ends_with_its_seed() -> None:
    outcomes = run_trials(TIMING, TIMING.trials(TOYS, (0, 1)), {}, "local")
    first, _, second = processes([next(outcomes) for _ in range(3)])
    assert not alive(first)
    assert alive(second)
    # Ctrl-C and the end of a run close the outcomes.
    outcomes.close()
    assert not alive(second)


def test_the_replacement_of_a_process_that_has_grown_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "filters", list(warnings.filters))
    outcomes = run_trials(TIMING, TIMING.trials(TOYS, (0, 1)), {}, "local")
    next(outcomes)
    with warnings.catch_warnings(record=True) as heard:
        # As joblib's processes say it, from a thread of this process.
        warnings.warn("A worker stopped while some jobs were given to the executor. This can be ...", stacklevel=1)
        warnings.warn("Something else.", stacklevel=1)
    outcomes.close()
    assert [str(each.message) for each in heard] == ["Something else."]


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_defect_in_a_process_of_its_own_fails_its_trial_and_no_other() -> None:
    outcomes = {outcome.trial: outcome for outcome in timed("local", (1, 2), ("toy-plain", "toy-fragile"))}
    assert not any(isinstance(outcome, FailedTrial) for outcome in outcomes.values())
    outcomes = {
        outcome.trial: outcome
        for outcome in timed("local", (1, 2), ("toy-plain", "toy-fragile"), toy_fragile={"every": 1})
    }
    assert set(outcomes) == {f"toy-plain+toy-fragile#{seed}/{size} numbers" for seed in (1, 2) for size in (10, 20)}
    for outcome in outcomes.values():
        assert isinstance(outcome, FailedTrial)
        assert outcome.error is None
        assert outcome.traceback.rstrip().endswith("ZeroDivisionError: the toy broke")


def test_an_error_the_user_can_mend_comes_back_whole_from_a_process_of_its_own() -> None:
    broken = {"every": 1, "how": "bad-trace"}
    failed, *_ = timed("local", (0, 1), ("toy-plain", "toy-fragile"), toy_fragile=broken)
    assert isinstance(failed, FailedTrial)
    assert isinstance(failed.error, BadTraceError)
    assert str(failed.error) == "The toy's trace has no rows.\n  next: give it rows"


def test_a_killed_process_of_a_study_of_time_is_told() -> None:
    with pytest.raises(WavetankError) as caught:
        timed("local", (0, 1), ("toy-plain", "toy-fragile"), toy_fragile={"every": 1, "how": "killed"})
    assert str(caught.value) == (
        "The process of a study of times was killed or crashed; it may have run out of memory.\n"
        "  next: --resume goes on with this run; --on here runs every trial in this process"
    )


def test_a_study_that_other_processes_cannot_load_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("wavetank_only_in_this_process")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.Unknown = type("Unknown", (ToyTiming,), {"__module__": module.__name__})  # type: ignore[attr-defined]
    study = module.Unknown(rounds=1, sizes=(10,))
    with pytest.raises(BrokenProcessPool, match="un-serialize"):
        list(run_trials(study, study.trials(TOYS, (0, 1)), {}, "local"))


@pytest.mark.parametrize("place", ["here", "local:2"])
def test_a_defect_fails_its_trial_and_no_other(place: str) -> None:
    outcomes = {outcome.trial: outcome for outcome in run(place, ("toy-plain", "toy-fragile"))}
    failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, FailedTrial)}
    assert set(failed) == {"toy-fragile#0", "toy-fragile#3"}
    assert failed["toy-fragile#0"].error is None
    assert failed["toy-fragile#0"].traceback.rstrip().endswith("ZeroDivisionError: the toy broke")
    assert len(outcomes) == 8


@pytest.mark.parametrize("place", ["here", "local:2"])
def test_an_error_the_user_can_mend_comes_back_whole(place: str) -> None:
    outcomes = run(place, ("toy-plain", "toy-fragile"), 1, toy_fragile={"how": "bad-trace"})
    (failed,) = (outcome for outcome in outcomes if isinstance(outcome, FailedTrial))
    assert isinstance(failed.error, BadTraceError)
    assert str(failed.error) == "The toy's trace has no rows.\n  next: give it rows"


def test_a_worker_that_is_killed_is_told() -> None:
    with pytest.raises(WavetankError) as caught:
        run("local:2", ("toy-plain", "toy-fragile"), toy_fragile={"how": "killed"})
    assert str(caught.value) == (
        "A worker process was killed or crashed; it may have run out of memory.\n"
        "  next: run fewer at a time with --on local:N; --resume goes on with this run"
    )


def test_a_trial_that_names_no_system_fails_with_the_nearest() -> None:
    outcome = run_trial(STUDY, Trial(systems=("toy-plai",), seed=0), {}, {})
    assert isinstance(outcome, FailedTrial)
    assert outcome.error is not None
    assert outcome.error.nearest == "toy-plain"


@pytest.mark.parametrize("place", ["", "nowhere", "here:2", "ray://", "dask:", "dask", "local://2", "ftp://x"])
def test_a_place_that_does_not_exist_is_refused(place: str) -> None:
    with pytest.raises(BadValueError) as caught:
        check_place(place)
    assert caught.value.problem == "This is not a place where trials can run."
    assert caught.value.allowed == PLACES
    assert caught.value.where == "--on"


@pytest.mark.parametrize("place", ["local:0", "local:-1", "local:two"])
def test_a_number_of_processes_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(BadValueError) as caught:
        check_place(place)
    assert str(caught.value) == (f"The number of local processes must be 1 or more.\n  given: {place}\n  where: --on")


@pytest.mark.parametrize(
    ("place", "library", "extra"), [("ray://local", "ray", "ray"), ("dask://x:1", "distributed", "dask")]
)
def test_a_cluster_without_its_library_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, place: str, library: str, extra: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        check_place(place)
    assert str(caught.value) == (
        f"--on {extra}:// needs the library {library!r}, which is not installed.\n"
        f"  next: {install_command(extra)}"
    )


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_told() -> None:
    with pytest.raises(BadValueError) as caught:
        run("dask://127.0.0.1:9")
    assert caught.value.problem.startswith("No Dask scheduler answers: ")
    assert (caught.value.given, caught.value.hint) == ("127.0.0.1:9", "dask scheduler --host HOST")
