"""What is shown while a study runs, on standard error: plain lines, or on a terminal a table that fills."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from wavetank import units
from wavetank.run.comparison import Comparison
from wavetank.run.compiling import CompileWatch, saying_once
from wavetank.run.execute import FailedTrial
from wavetank.run.progress import SECONDS_BETWEEN_LINES, Count
from wavetank.run.runfolder import Plan
from wavetank.study.records import Record
from wavetank.study.study import Study
from wavetank.terminal import is_terminal, say, say_wrapped

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType

SECONDS_BETWEEN_TABLES = 0.25
_FAILURES_TOLD = 3
_FIGURES_TOLD = 3


class Lines:
    """Plain lines: the first finished trial at once, then one every few seconds; every case of a timing study."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = Count()
        self._shown: list[str] = []
        self._last = 0.0
        self._watch = CompileWatch(saying_once())

    def __enter__(self) -> Lines:
        self._watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__()

    def begin(self, study: Study, plan: Plan, total: int, left: int, done: Sequence[Record]) -> None:
        """Say what is run and where it is kept."""
        self._count.begin(total, left)
        self._shown = [metric.name for metric in study.metrics if metric.table][:_FIGURES_TOLD]
        kept = f", {total - left} of them finished before" if left < total else ""
        trials = "1 trial" if total == 1 else f"{total} trials"
        say(f"{plan.study}: {trials}{kept}; kept in {self._folder}", err=True)

    def trial(self, records: Sequence[Record], left: int) -> None:
        """Say how far the run is, with the figures of the last trial."""
        self._count.left = left
        several = len({record.system for record in records}) > 1
        if left and self._last and not several and time.monotonic() - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = time.monotonic()
        say_wrapped(f"{self._count.text()}: {self._figures(records)}", first="  ", rest="      ", err=True)

    def _figures(self, records: Sequence[Record]) -> str:
        if not records:
            return "no figures"
        first = records[0]
        systems = dict.fromkeys(record.system for record in records)
        if len(systems) > 1:
            return self._systems(records, systems)
        found: dict[str, str] = {}
        for record in records:
            if record.metric in self._shown and (record.system, record.seed, record.at) == (
                first.system,
                first.seed,
                first.at,
            ):
                found.setdefault(record.metric, f"{record.metric} {units.show(record.value, record.unit)}")
        case = "".join(f" {value}" for value in first.at.values())
        return f"{first.system}{case} seed {first.seed}: {', '.join(found.values()) or 'no main figures'}"

    def _systems(self, records: Sequence[Record], systems: Iterable[str]) -> str:
        """Return the main figure of every system of a case, the median of its rounds."""
        first = next((record for record in records if record.metric in self._shown[:1]), None)
        if first is None:
            return "no main figures"
        figures = []
        for system in systems:
            values = [r.value for r in records if (r.system, r.metric, r.at) == (system, first.metric, first.at)]
            if values:
                figures.append(f"{system} {units.show(statistics.median(values), first.unit)}")
        case = "".join(f"{value}, " for value in first.at.values())
        return f"{case}{first.metric}: {', '.join(figures)}"

    def failed(self, failure: FailedTrial) -> None:
        """Say which trial failed and how; further ones are only counted."""
        self._count.failed += 1
        self._count.left -= 1
        if self._count.failed <= _FAILURES_TOLD:
            say(f"  {failure.trial} failed: {last_line(failure)}", err=True)


def last_line(failure: FailedTrial) -> str:
    """Return the line of a failed trial's trace that names the exception."""
    return failure.traceback.strip().splitlines()[-1] if failure.traceback.strip() else str(failure.error)


class LiveTable:
    """The main table on a terminal, redrawn as trials finish, below a line of progress."""

    def __init__(self, folder: Path) -> None:
        from rich.console import Console
        from rich.live import Live

        self._folder = folder
        self._console = Console(stderr=True)
        # Drawn only when a trial ends, or a compilation: a refreshing thread would disturb a study that measures time.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._count = Count()
        self._records: list[Record] = []
        self._failures: list[FailedTrial] = []
        self._drawn = 0.0
        self._study: Study | None = None
        self._plan: Plan | None = None
        self._names: list[str] = []
        self._watch = CompileWatch(self._compiling)

    def __enter__(self) -> LiveTable:
        self._live.start()
        self._watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__()
        self._live.stop()

    def _compiling(self, names: list[str]) -> None:
        self._names = names
        self._draw(at_once=True)

    def begin(self, study: Study, plan: Plan, total: int, left: int, done: Sequence[Record]) -> None:
        """Draw the table with what an interrupted run had finished."""
        self._study, self._plan, self._records = study, plan, list(done)
        self._count.begin(total, left)
        self._draw(at_once=True)

    def trial(self, records: Sequence[Record], left: int) -> None:
        """Draw the table with the trial's figures."""
        self._records += records
        self._count.left = left
        self._draw(at_once=not left)

    def failed(self, failure: FailedTrial) -> None:
        """Draw the table with the failure noted."""
        self._failures.append(failure)
        self._count.failed += 1
        self._count.left -= 1
        self._draw(at_once=False)

    def _draw(self, *, at_once: bool) -> None:
        if not at_once and time.monotonic() - self._drawn < SECONDS_BETWEEN_TABLES:
            return
        self._drawn = time.monotonic()
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        compiling = f"; compiling {', '.join(self._names)}, once" if self._names else ""
        state = Text(f"{self._count.text()}{compiling}; Ctrl-C keeps what is finished in {self._folder}", style="dim")
        if self._study is None or self._plan is None:
            return state
        so_far = Comparison(self._study, self._plan, tuple(self._records), {}, tuple(self._failures), self._folder)
        # A table taller than the terminal loses its end, not the state of the run.
        return Group(state, fitting_table(so_far, self._console, finished=False))


def fitting_table(result: Comparison, console: Console, *, finished: bool = True) -> RenderableType:
    """Return the main table for a console: ruled where it fits, plain text in blocks where it is too wide."""
    from rich.measure import Measurement
    from rich.text import Text

    from wavetank.report.tables import main_table

    model = main_table(result)
    table = model.as_rich()
    if not finished:
        # What is missing is yet to come.
        table.caption = None
    if Measurement.get(console, console.options.update_width(10_000), table).maximum <= console.width:
        return table
    return Text(model.as_text(console.width), no_wrap=True)


def progress_for(folder: Path, *, plain: bool) -> Any:
    """Return the live table where standard error is a terminal and nobody asked for plain lines, else plain lines."""
    return Lines(folder) if plain or not is_terminal(sys.stderr) else LiveTable(folder)


def say_table(result: Comparison, *, plain: bool) -> None:
    """Write the main table to standard output."""
    if plain or not is_terminal(sys.stdout):
        say(result.summary())
        return
    from rich.console import Console

    console = Console()
    console.print(fitting_table(result, console))
