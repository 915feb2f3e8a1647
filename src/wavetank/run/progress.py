"""How far a run is, in words; and the line that says it below the cell of a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wavetank.run.compiling import CompileWatch
from wavetank.terminal import say

if TYPE_CHECKING:
    from wavetank.run.comparison import Progress
    from wavetank.run.execute import FailedTrial
    from wavetank.run.runfolder import Plan
    from wavetank.study.records import Record
    from wavetank.study.study import Study

SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_UPDATES = 0.25


class Count:
    """How far a run is, and how long it may still take."""

    def __init__(self) -> None:
        self.total = self.left = self.failed = 0
        self._first_left = 0
        self._start = time.monotonic()

    def begin(self, total: int, left: int) -> None:
        """Start the clock.

        Parameters
        ----------
        total : int
            Trials of the run.
        left : int
            Those among them that no interrupted run has finished.
        """
        self.total, self.left, self._first_left = total, left, left
        self._start = time.monotonic()

    def text(self) -> str:
        """Return the state in words."""
        done = self.total - self.left
        parts = [f"{done} of {self.total} {'trial' if self.total == 1 else 'trials'}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        ran = self._first_left - self.left
        if self.left and ran:
            parts.append(f"about {_duration((time.monotonic() - self._start) / ran * self.left)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Line:
    """One line that says how far a run is, given to ``show`` anew as trials finish.

    Parameters
    ----------
    show : callable
        Called with the text of the line, also from the thread that watches what is compiled.
    seconds_between : float
        The line is not shown more often, but for its first and last state and for what is compiled.
    """

    def __init__(self, show: Callable[[str], None], seconds_between: float) -> None:
        self._show = show
        self._seconds_between = seconds_between
        self._count = Count()
        self._study = ""
        self._compiling: list[str] = []
        self._last = -seconds_between

    def begin(self, study: Study, plan: Plan, total: int, left: int, done: Sequence[Record]) -> None:
        """Show which study runs, and how many trials it has."""
        self._study = f"{plan.study}: "
        self._count.begin(total, left)
        self._say(at_once=True)

    def trial(self, records: Sequence[Record], left: int) -> None:
        """Count a trial that has ended."""
        self._count.left = left
        self._say(at_once=not left)

    def failed(self, failure: FailedTrial) -> None:
        """Count a trial that ended in a defect."""
        self._count.failed += 1
        self._count.left -= 1
        self._say(at_once=not self._count.left)

    def compiling(self, names: list[str]) -> None:
        """Show what the run waits for, once for each version of the sources."""
        self._compiling = names
        self._say(at_once=True)

    def _say(self, *, at_once: bool) -> None:
        if not at_once and time.monotonic() - self._last < self._seconds_between:
            return
        self._last = time.monotonic()
        # Before the first trial is planned there is nothing to count.
        parts = [self._count.text()] if self._count.total else []
        parts += [f"compiling {', '.join(self._compiling)}, once"] if self._compiling else []
        if parts:
            self._show(self._study + "; ".join(parts))


@contextlib.contextmanager
def listening(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Give what hears of a run, for as long as the run takes.

    Parameters
    ----------
    progress : Progress, bool or None
        What the caller of :func:`wavetank.compare` gave: something that hears of every trial, True for a line of
        progress, False for none, None for a line in the kernel of a notebook and none elsewhere.

    Yields
    ------
    Progress or None
        None where nothing is to be shown.
    """
    if progress is not None and not isinstance(progress, bool):
        yield progress
        return
    notebook = _below_the_cell()
    if progress is False or (progress is None and notebook is None):
        yield None
        return
    line = Line(notebook, _SECONDS_BETWEEN_UPDATES) if notebook else Line(_on_standard_error, SECONDS_BETWEEN_LINES)
    with CompileWatch(line.compiling):
        yield line


def _on_standard_error(text: str) -> None:
    say(text, err=True)


def _below_the_cell() -> Callable[[str], None] | None:
    """Return what rewrites one line of output of the cell that runs; None outside the kernel of a notebook."""
    # Where IPython runs it is loaded; asking must not load it.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    shown: Any = None

    def show(text: str) -> None:
        nonlocal shown
        bundle = {"text/plain": text}
        if shown is None:
            shown = display(bundle, raw=True, display_id=True)
        else:
            shown.update(bundle, raw=True)

    return show
