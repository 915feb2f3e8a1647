"""How far a run is: one line, shown where a notebook's kernel runs and silent elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import wavetank
from wavetank.run import progress
from wavetank.run.comparison import Silence, make_plan
from wavetank.run.execute import FailedTrial
from wavetank.run.progress import Count, Line, listening

PLAN, STUDY = make_plan("toy-noise")


class Cell:
    """The output below a cell: display_id to what is shown there, as a notebook keeps it."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.history: list[str] = []

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> SimpleNamespace:
        """Show one more output."""
        assert raw and display_id
        at = len(self.shown)
        self.shown.append("")

        def update(bundle: dict[str, str], *, raw: bool) -> None:
            assert raw
            self.shown[at] = bundle["text/plain"]
            self.history.append(bundle["text/plain"])

        update(bundle, raw=raw)
        return SimpleNamespace(update=update)


@pytest.fixture
def ipython(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cell]:
    """Pretend that this process runs IPython, with the shell that is given."""

    def start(shell: Any) -> Cell:
        cell = Cell()
        package, part = ModuleType("IPython"), ModuleType("IPython.display")
        package.get_ipython = lambda: shell  # type: ignore[attr-defined]
        # Charts are drawn by a library that asks for it.
        package.version_info = (9, 0)  # type: ignore[attr-defined]
        part.display = cell.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", part)
        return cell

    return start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that moves only when it is told to."""
    state = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: state.now))
    return state


def compared(tmp_path: Path, **more: Any) -> None:
    wavetank.compare("toy-noise", systems=["toy-plain"], seeds=3, out=tmp_path, on="here", **more)


def test_in_the_kernel_of_a_notebook_one_line_is_rewritten(
    tmp_path: Path, ipython: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    cell = ipython(SimpleNamespace(kernel=object()))
    compared(tmp_path)
    assert cell.history[0] == "toy-noise: 0 of 3 trials"
    assert cell.shown == ["toy-noise: 3 of 3 trials"]
    compared(tmp_path)
    assert len(cell.shown) == 2
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("silent", [False, Silence()])
def test_a_notebook_is_silent_when_asked_to_be(tmp_path: Path, ipython: Callable[..., Cell], silent: Any) -> None:
    cell = ipython(SimpleNamespace(kernel=object()))
    compared(tmp_path, progress=silent)
    assert cell.shown == []


@pytest.mark.parametrize("shell", [None, SimpleNamespace(), SimpleNamespace(kernel=None)])
def test_ipython_without_a_kernel_is_silent(
    tmp_path: Path, ipython: Callable[..., Cell], capsys: pytest.CaptureFixture[str], shell: Any
) -> None:
    cell = ipython(shell)
    compared(tmp_path)
    assert cell.shown == []
    assert capsys.readouterr() == ("", "")


def test_without_ipython_a_call_is_silent_and_does_not_load_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    compared(tmp_path)
    assert "IPython" not in sys.modules
    assert capsys.readouterr() == ("", "")


def test_outside_a_notebook_lines_are_written_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared(tmp_path, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["toy-noise: 0 of 3 trials", "toy-noise: 3 of 3 trials"]


def test_what_hears_of_trials_is_used_as_it_is() -> None:
    mine = Silence()
    with listening(mine) as heard:
        assert heard is mine


def test_the_line_is_shown_no_more_often_than_the_eye_can_follow(clock: SimpleNamespace) -> None:
    shown: list[str] = []
    line = Line(shown.append, 1.0)
    line.begin(STUDY, PLAN, 100, 100, [])
    for left in range(99, -1, -1):
        clock.now += 0.25
        line.trial([], left)
    assert [text.split()[1] for text in shown] == ["0", *map(str, range(4, 100, 4)), "100"]


def test_failures_are_counted(clock: SimpleNamespace) -> None:
    shown: list[str] = []
    line = Line(shown.append, 1.0)
    line.begin(STUDY, PLAN, 2, 2, [])
    line.failed(FailedTrial("toy-fragile#0", None, ""))
    line.failed(FailedTrial("toy-fragile#1", None, ""))
    assert shown == ["toy-noise: 0 of 2 trials", "toy-noise: 2 of 2 trials, 2 failed"]


def test_what_is_compiled_is_shown_before_and_between_trials(clock: SimpleNamespace) -> None:
    shown: list[str] = []
    line = Line(shown.append, 1.0)
    line.compiling(["a.slow", "b.slow"])
    line.compiling([])
    line.begin(STUDY, PLAN, 2, 2, [])
    line.compiling(["c.slow"])
    line.compiling([])
    assert shown == [
        "compiling a.slow, b.slow, once",
        "toy-noise: 0 of 2 trials",
        "toy-noise: 0 of 2 trials; compiling c.slow, once",
        "toy-noise: 0 of 2 trials",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1, "1 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (7200, "2.0 h")]
)
def test_the_time_that_is_left_in_words(clock: SimpleNamespace, seconds: float, text: str) -> None:
    count = Count()
    count.begin(2, 2)
    clock.now += seconds
    count.left = 1
    assert count.text() == f"1 of 2 trials, about {text} left"
