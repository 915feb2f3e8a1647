from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from wavetank_toys.studies import ToyNoise

from wavetank.cli import progress
from wavetank.cli.progress import Lines, LiveTable, last_line, progress_for
from wavetank.errors import BadValueError
from wavetank.run import progress as counting
from wavetank.run.comparison import make_plan
from wavetank.run.execute import FailedTrial
from wavetank.study.records import Record

PLAN, STUDY = make_plan("toy-noise")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A clock that moves only when it is told to."""
    state = SimpleNamespace(now=100.0)
    for module in (progress, counting):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: state.now))
    yield state


def records(seed: int = 0) -> list[Record]:
    return ToyNoise().stamp("toy-plain", seed, ToyNoise().measure(SimpleNamespace(change=lambda draw, _: draw), seed))


def failure(number: int) -> FailedTrial:
    return FailedTrial(f"toy-fragile#{number}", None, "Traceback\nZeroDivisionError: the toy broke\n")


def test_the_first_trial_is_told_at_once_then_one_every_few_seconds(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lines(Path("runs/x")) as lines:
        lines.begin(STUDY, PLAN, 100, 100, [])
        for left in range(99, -1, -1):
            clock.now += 0.5
            lines.trial(records(), left)
    first, *told = capsys.readouterr().err.splitlines()
    assert first == "toy-noise: 100 trials; kept in runs/x"
    counts = [int(line.split()[0]) for line in told if " of 100 trials" in line]
    assert counts == [*range(1, 100, 10), 100]
    assert told[0] == "  1 of 100 trials, about 50 s left: toy-plain seed 0: value_s 421 ms, scatter"


def test_what_was_finished_before_counts_but_does_not_tell_the_time(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(Path("runs/x"))
    lines.begin(STUDY, PLAN, 8, 4, records())
    clock.now += 10
    lines.trial(records(1), 3)
    told = capsys.readouterr().err
    assert told.startswith("toy-noise: 8 trials, 4 of them finished before; kept in runs/x\n")
    assert "  5 of 8 trials, about 30 s left: " in told


def test_a_few_failures_are_told_and_all_are_counted(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(Path("runs/x"))
    lines.begin(STUDY, PLAN, 10, 10, [])
    for number in range(9):
        lines.failed(failure(number))
    lines.trial([], 0)
    told = capsys.readouterr().err
    assert told.count("failed: ZeroDivisionError: the toy broke\n") == 3
    assert told.endswith("  10 of 10 trials, 9 failed: no figures\n")


def test_a_trial_whose_figures_are_not_main_ones_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(Path("runs/x"))
    lines.begin(STUDY, PLAN, 1, 1, [])
    lines.trial([Record("toy-noise", "toy-plain", 0, "part_s", 1.0, "s", "simulated", {"part": 1})], 0)
    assert capsys.readouterr().err.splitlines() == [
        "toy-noise: 1 trial; kept in runs/x",
        "  1 of 1 trial: toy-plain 1 seed 0: no main figures",
    ]


def test_every_case_of_a_timing_study_is_told_with_the_median_of_every_system(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, study = make_plan("toy-timing")
    lines = Lines(Path("runs/x"))
    lines.begin(study, plan, 2, 2, [])
    for left, case in ((1, "100 numbers"), (0, "1000 numbers")):
        clock.now += 0.5
        lines.trial(
            [
                Record("toy-timing", system, number, metric, value, "", "measured", {"case": case})
                for system, values in (("toy-plain", (1.0, 1.0, 1.0)), ("toy-shifted", (3.0, 2.0, 9.0)))
                for number, value in enumerate(values)
                for metric in ("time_s", "time_ratio")
            ],
            left,
        )
    assert capsys.readouterr().err.splitlines() == [
        "toy-timing: 2 trials; kept in runs/x",
        "  1 of 2 trials, about 1 s left: 100 numbers, time_ratio: toy-plain 1,",
        "      toy-shifted 3",
        "  2 of 2 trials: 1000 numbers, time_ratio: toy-plain 1, toy-shifted 3",
    ]
    lines.trial([Record("toy-timing", system, 0, "x", 1.0, "", "measured", {}) for system in ("a", "b")], 0)
    assert capsys.readouterr().err == "  2 of 2 trials: no main figures\n"


def test_the_last_line_of_a_trace_names_the_exception() -> None:
    assert last_line(failure(0)) == "ZeroDivisionError: the toy broke"
    assert last_line(FailedTrial("x#0", BadValueError("It is wrong."), "")) == "It is wrong."


def test_off_a_terminal_there_are_lines(tmp_path: Path) -> None:
    assert isinstance(progress_for(tmp_path, plain=False), Lines)


def test_the_live_table_is_drawn_no_more_often_than_the_eye_can_follow(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveTable(Path("runs/x"))
    drawn: list[int] = []
    monkeypatch.setattr(live._live, "update", lambda picture, refresh: drawn.append(live._count.left))
    live.begin(STUDY, PLAN, 8, 8, [])
    for left in range(7, -1, -1):
        clock.now += 0.1
        live.trial(records(left), left)
    assert drawn == [8, 5, 2, 0]
    clock.now += 1
    live.failed(failure(1))
    assert len(drawn) == 5
