"""The quantities of a file of series: each by its name and the series it is of, read from the file whenever asked."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from wavetank import units
from wavetank.errors import BadValueError, WavetankError
from wavetank.insight.series.decisions import read_decisions
from wavetank.insight.series.decompose import CloudDecomposition
from wavetank.insight.series.interface import Decisions, Decomposition
from wavetank.workloads.series import Regular, Series, on_grid, read_series

_DAY_NS = 86_400 * 10**9
_SIDE = 30
_PARTS = 8
_MOST_EMPTY = 10
MOST_SLOTS = 10_000
"""Finer grids are made coarser, the median of each step's values: 10,000 of minutes are nearly a week."""
_HOW = {
    "series": "Series of the file",
    "series_left_out": "Series of the file that were not looked at; settings choose others",
    "values": "Observed values",
    "begins": "Time of the first value, UTC",
    "ends": "Time of the last value, UTC",
    "step": "Median distance of neighbours in time; a multiple of it where that would be more than 10,000 steps",
    "missing_share": "Steps of the grid without a value / steps",
    "gaps": "Runs of steps without a value",
    "longest_gap": "Length of the longest of these runs",
    "middle": "Median of the values",
    "noise": "1.4826 times the median of the absolute remainder",
    "noise_share": "1.4826 times the median of the absolute remainder, of the logarithm",
    "shifts": "Level shifts: cuts with the least absolute deviations, where lines through both sides are apart",
    "cycles": "Periods beyond the level of shuffled blocks, with a hill of the autocorrelation",
    "longest_period": "A third of the time from the first to the last value: longer periods cannot be known",
    "outliers": "Values farther from the median of 31 steps than the setting, in their usual distance",
    "outlier_share": "These / observed values",
    "largest_outlier_share": "The farthest outlier / what level, trend and cycles say, less 1",
    "largest_outlier": "The farthest outlier less what level, trend and cycles say",
    "largest_outlier_at": "Time of the farthest outlier, UTC",
    "shift_at": "Time at which the level shift begins, UTC",
    "shift_share": "Level after / level before, less 1",
    "shift": "Level after less level before",
    "shift_side_share": "Values of up to 30 steps on both sides, cycles taken out, on their side of the middle",
    "period": "The period",
    "cycle_size_share": "Half the distance of the cycle's top and bottom, of the logarithm",
    "cycle_size": "Half the distance of the cycle's top and bottom",
    "cycle_on_share": "Steps where the series follows the cycle's shape / steps",
    "cycle_turns": "How often the cycle begins or ends within the series",
    "cycle_last_turn_at": "Time at which it last did, UTC",
    "cycle_repeats_share": "Cycles, where it is on, in which the series follows the shape / such cycles",
    "trend_share": "Trend at the end / at the beginning, less 1",
    "trend_change": "Trend at the end less at the beginning",
    "trend_same_way_share": "Eighths of the series over which the trend moves as over the whole / eighths",
}


class TooLittleError(BadValueError):
    """A series with too few values for what was asked."""


class SeriesSource:
    """The series of a file, and what a decomposition of each says.

    Parameters
    ----------
    path : Path
    analyser : CloudDecomposition
    columns, groups : tuple of str
        As :func:`~wavetank.workloads.series.read_series` takes them.
    time : str
    match : str
        Words that a series' name must have.
    most : int
        Series that are looked at.
    decisions : str
        Path of a file of decisions; empty for none.
    """

    def __init__(
        self, path: Path, analyser: CloudDecomposition, *, time: str = "", columns: tuple[str, ...] = (),
        groups: tuple[str, ...] = (), match: str = "", most: int = 8, decisions: str = "",
    ) -> None:  # fmt: skip
        self.path, self._analyser = path, analyser
        self._columns, self._groups, self._time, self._match, self._most = columns, groups, time, match, most
        self._decisions_at = decisions
        self._grids: dict[str, Regular] = {}
        self._parts: dict[str, Decomposition | WavetankError] = {}

    @cached_property
    def every(self) -> tuple[Series, ...]:
        """All series of the file whose names have the words."""
        found = read_series(self.path, time=self._time, value=self._columns, group=self._groups)
        chosen = tuple(each for each in found if all(word in each.name for word in self._match.split()))
        if not chosen:
            raise BadValueError("No series has these words in its name.", given=self._match,
                                allowed=", ".join(each.name for each in found[:20]), where=str(self.path))  # fmt: skip
        return chosen

    @cached_property
    def looked_at(self) -> dict[str, Series]:
        """The first series of different names, as many as are looked at."""
        found: dict[str, Series] = {}
        for each in self.every:
            if len(found) < self._most:
                found.setdefault(each.name, each)
        return found

    @cached_property
    def _decisions(self) -> dict[str, Decisions]:
        return read_decisions(Path(self._decisions_at)) if self._decisions_at else {}

    def parts(self, series: str) -> Decomposition:
        """Return the decomposition of a series.

        Parameters
        ----------
        series : str
            Its name.

        Raises
        ------
        TooLittleError
            If it has too few values.
        """
        if series not in self._parts:
            try:
                self._parts[series] = self._analyser.decompose(self.grid(series), self._decisions.get(series))
            except WavetankError as error:
                self._parts[series] = error
        found = self._parts[series]
        if isinstance(found, WavetankError):
            raise TooLittleError(found.problem, given=found.given, allowed=found.allowed, where=series) from found
        return found

    def grid(self, series: str) -> Regular:
        """Return a series on its grid.

        Parameters
        ----------
        series : str
        """
        if series not in self.looked_at:
            raise BadValueError("There is no such series among those looked at.", given=series)
        if series not in self._grids:
            self._grids[series] = _on_grid(self.looked_at[series])
        return self._grids[series]

    def how(self, name: str) -> str:
        """Return how a quantity is read from the file.

        Parameters
        ----------
        name : str
        """
        return _HOW.get(name, "")

    def quantity(self, name: str, **of: Any) -> float | int | str:
        """Return a quantity by its name.

        Parameters
        ----------
        name : str
        **of
            ``series``, and ``shift`` or ``cycle``, which count from 0.

        Raises
        ------
        BadValueError
            If there is none of this name.
        TooLittleError
            If the series has too few values for it.
        """
        if name == "series":
            return len(self.every)
        if name == "series_left_out":
            return len(self.every) - len(self.looked_at)
        if name not in _HOW:
            raise BadValueError("There is no such quantity.", given=name)
        series = str(of.get("series", ""))
        seen = _SEEN.get(name)
        if seen is not None:
            return seen(self.looked_at[series] if name == "values" and series in self.looked_at else self.grid(series))
        parts = self.parts(series)
        if name.startswith("shift") and name != "shifts":
            return _of_shift(parts, name, int(of.get("shift", -1)))
        if name.startswith("cycle_") or name == "period":
            return _of_cycle(parts, name, int(of.get("cycle", -1)))
        return _of_whole(parts, name)


def _on_grid(series: Series) -> Regular:
    time_ns = series.time_ns
    usual = int(np.median(np.diff(time_ns))) if time_ns.size > 1 else 0
    slots = (int(time_ns[-1]) - int(time_ns[0])) // usual + 2 if usual > 0 else 0
    # Where nearly all steps are empty, a clock jumped: a longer step would only hide it.
    longer = MOST_SLOTS < slots <= _MOST_EMPTY * time_ns.size
    return on_grid(series, step_ns=usual * -(-slots // MOST_SLOTS) if longer else 0)


def span_in_words(seconds: float) -> str:
    """Return a time in days, hours, minutes or seconds, with three digits.

    Parameters
    ----------
    seconds : float
        In s.

    Examples
    --------
    >>> span_in_words(604800.0), span_in_words(5400.0), span_in_words(86400.0)
    ('7 days', '1.5 hours', '1 day')
    """
    sizes = {"day": 86_400.0, "hour": 3_600.0, "minute": 60.0}
    word = next((each for each, size in sizes.items() if seconds >= size), "second")
    shown = units.show(seconds / sizes.get(word, 1.0))
    return f"{shown} {word}{'' if shown == '1' else 's'}"


def _at(series: Regular, slot: int) -> str:
    when = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(
        microseconds=series.time_ns(slot) // 1_000
    )
    shown = when.strftime("%Y-%m-%d %H:%M:%S")
    return shown.removesuffix(" 00:00:00") if series.step_ns % _DAY_NS == 0 else shown


def _longest(series: Regular) -> tuple[int, int]:
    """Return how many gaps there are, and the steps of the longest."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], series.missing, [False]]).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    return lengths.size, int(lengths.max(initial=0))


_SEEN: dict[str, Callable[[Any], float | int | str]] = {
    "values": lambda of: int((~of.missing).sum()),
    "begins": lambda of: _at(of, 0),
    "ends": lambda of: _at(of, of.value.size - 1),
    "step": lambda of: span_in_words(of.step_ns / 1e9),
    "missing_share": lambda of: float(of.missing.mean()),
    "gaps": lambda of: _longest(of)[0],
    "longest_gap": lambda of: span_in_words(_longest(of)[1] * of.step_ns / 1e9),
    "longest_period": lambda of: span_in_words(of.value.size * of.step_ns / 3e9),
}


def _of_whole(parts: Decomposition, name: str) -> float | int | str:
    series, log = parts.series, parts.scale == "log"
    if name == "middle":
        return float(np.nanmedian(series.value))
    if name in ("noise", "noise_share"):
        rest = parts.remainder[~np.isnan(parts.remainder) & (parts.outlier == 0)]
        return float(1.482602218505602 * np.median(np.abs(rest)))
    if name == "shifts":
        return len(parts.changes)
    if name == "cycles":
        return len(parts.cycles)
    if name in ("trend_share", "trend_change"):
        change = float(parts.trend[-1] - parts.trend[0])
        return float(np.expm1(change)) if log else change
    if name == "trend_same_way_share":
        edges = np.linspace(0, parts.trend.size - 1, _PARTS + 1).round().astype(int)
        moves = np.diff(parts.trend[edges])
        return float(np.mean(np.sign(moves) == np.sign(parts.trend[-1] - parts.trend[0])))
    odd = np.flatnonzero(parts.outlier != 0)
    if name == "outliers":
        return int(odd.size)
    if name == "outlier_share":
        return odd.size / series.seen
    if not odd.size:
        raise BadValueError("The series has no outlier.", given=name)
    far = int(odd[np.abs(parts.outlier[odd]).argmax()])
    if name == "largest_outlier_at":
        return _at(series, far)
    return float(np.expm1(parts.outlier[far])) if log else float(parts.outlier[far])


def _of_shift(parts: Decomposition, name: str, number: int) -> float | int | str:
    if not 0 <= number < len(parts.changes):
        raise BadValueError("There is no such level shift.", given=number, allowed=f"{len(parts.changes)} shifts")
    at = parts.changes[number]
    if name == "shift_at":
        return _at(parts.series, at)
    if name != "shift_side_share":
        return parts.jump(at)
    edges = [0, *parts.changes, parts.level.size]
    first, last = max(edges[number], at - _SIDE), min(edges[number + 2], at + _SIDE)
    of = (parts.level + parts.trend + parts.remainder + parts.outlier)[first:last]
    after = np.arange(first, last) >= at
    seen = ~np.isnan(of)
    middle = (parts.level[at] + parts.level[at - 1]) / 2.0 + float(parts.trend[at])
    up = parts.level[at] > parts.level[at - 1]
    return float(np.mean(((of > middle) == (after == up))[seen]))


def _of_cycle(parts: Decomposition, name: str, number: int) -> float | int | str:
    if not 0 <= number < len(parts.cycles):
        raise BadValueError("There is no such cycle.", given=number, allowed=f"{len(parts.cycles)} cycles")
    period = sorted(parts.cycles)[number]
    cycle, on = parts.cycles[period], parts.on[period]
    turns = np.flatnonzero(np.diff(on.astype(np.int8)))
    if name == "period":
        return span_in_words(period * parts.series.step_ns / 1e9)
    if name in ("cycle_size", "cycle_size_share"):
        return parts.amplitude(period)
    if name == "cycle_on_share":
        return float(on.mean())
    if name == "cycle_turns":
        return int(turns.size)
    if name == "cycle_last_turn_at":
        if not turns.size:
            raise BadValueError("The cycle is always on.", given=name)
        return _at(parts.series, int(turns[-1]) + 1)
    rest = np.nan_to_num(parts.remainder) + cycle
    which = (np.arange(cycle.size) // period).astype(np.int64)
    follows = np.bincount(which, np.where(on & ~parts.series.missing, rest * cycle, 0.0))
    looked = np.bincount(which, on & ~parts.series.missing) > 0
    return float(np.mean(follows[looked] > 0)) if looked.any() else 0.0
