"""Histories of figures over time, read from CSV (plain or gzipped) and Parquet, with their gaps kept.

A file has a column of times and columns of figures: wide, where each column is a series, or long, where columns of
words or small numbers say which series a row belongs to.  Which column is what is seen from the content, or said.  A
cell without a figure is missing; nothing is filled in here.
"""

from __future__ import annotations

import csv
import datetime
import glob
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadTraceError, BadValueError, unknown_name
from wavetank.files import read_text

LARGEST_BYTES = 512 << 20
MOST_SLOTS = 4_000_000
_MISSING = frozenset(("", "nan", "na", "n/a", "null", "none", "-", "nil"))
_TIMES = (
    "time", "timestamp", "datetime", "date", "ds", "ts", "day", "time_ns", "time_us", "time_ms", "time_s", "epoch",
)  # fmt: skip
_UNITS = {"_ns": 1, "_us": 1_000, "_ms": 1_000_000, "_s": 1_000_000_000}
_FEW = 64
_SURE = 0.9
_REGULAR = 0.8
_LATEST_NS = 1 << 62


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One figure over time.

    Parameters
    ----------
    name : str
        Of its column, and of its group in the long form.
    time_ns : numpy.ndarray of int64, shape (n,)
        Since 1970, strictly ascending.
    value : numpy.ndarray of float64, shape (n,)
        NaN where it is missing.
    missing : numpy.ndarray of bool, shape (n,)
    labels : mapping of str to str
        The group's columns and their values.
    """

    name: str
    time_ns: NDArray[np.int64]
    value: NDArray[np.float64]
    missing: NDArray[np.bool_]
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Regular:
    """A series on a grid of equal steps.

    Parameters
    ----------
    name : str
    start_ns, step_ns : int
    value : numpy.ndarray of float64, shape (slots,)
        NaN where it is missing; the median where several values fall into one slot.
    missing : numpy.ndarray of bool, shape (slots,)
    """

    name: str
    start_ns: int
    step_ns: int
    value: NDArray[np.float64]
    missing: NDArray[np.bool_]

    @property
    def seen(self) -> int:
        """How many slots have a value."""
        return int((~self.missing).sum())

    def time_ns(self, slot: int) -> int:
        """Return when a slot begins.

        Parameters
        ----------
        slot : int
        """
        return self.start_ns + slot * self.step_ns

    def until(self, slots: int) -> Regular:
        """Return the first slots alone.

        Parameters
        ----------
        slots : int
        """
        return Regular(name=self.name, start_ns=self.start_ns, step_ns=self.step_ns, value=self.value[:slots],
                       missing=self.missing[:slots])  # fmt: skip


def regular(
    values: NDArray[np.float64], *, name: str = "", start_ns: int = 0, step_ns: int = 86_400 * 10**9
) -> Regular:
    """Return values that are already on a grid; what is not finite is missing.

    Parameters
    ----------
    values : array of float, shape (slots,)
    name : str
    start_ns, step_ns : int
        The step is one day by default.

    Raises
    ------
    BadValueError
        If there is not one row of values, or the step is not above 0.
    """
    of = np.array(values, np.float64)
    if of.ndim != 1 or step_ns <= 0:
        raise BadValueError("A series is one row of values with a step above 0.", given=(of.shape, step_ns))
    missing = ~np.isfinite(of)
    of[missing] = np.nan
    return Regular(name=name, start_ns=start_ns, step_ns=step_ns, value=of, missing=missing)


def on_grid(series: Series, *, step_ns: int = 0) -> Regular:
    """Return a series on a grid of equal steps; slots that no value falls into are missing.

    Parameters
    ----------
    series : Series
    step_ns : int
        0 for the median distance of neighbours.

    Raises
    ------
    BadTraceError
        If there are fewer than two times, or the grid would have more than four million slots.
    """
    if series.time_ns.size < 2:
        raise BadTraceError("A series has at least two times.", given=series.time_ns.size, where=series.name)
    step = step_ns or int(np.median(np.diff(series.time_ns)))
    start = int(series.time_ns[0])
    slots = (int(series.time_ns[-1]) - start) // max(step, 1) + 2
    if step <= 0 or slots > MOST_SLOTS:
        raise BadTraceError("The times are too far apart for their usual distance.", given=f"{slots:,} steps",
                            allowed=f"at most {MOST_SLOTS:,}", where=series.name)  # fmt: skip
    slot = (series.time_ns - start + step // 2) // step
    value = np.full(int(slot[-1]) + 1, np.nan)
    seen = ~series.missing
    places, first, many = np.unique(slot[seen], return_index=True, return_counts=True)
    of = series.value[seen]
    value[places] = of[first]
    for at in np.flatnonzero(many > 1):
        value[places[at]] = np.median(of[first[at] : first[at] + many[at]])
    return Regular(name=series.name, start_ns=start, step_ns=step, value=value, missing=np.isnan(value))


def read_series(
    path: Path, *, time: str = "", value: Sequence[str] = (), group: Sequence[str] = ()
) -> tuple[Series, ...]:
    """Return the series of a file, in the order in which they begin.

    Parameters
    ----------
    path : Path
        CSV (``.gz`` or not), or Parquet.
    time : str
        Column of times; by default the one whose name and content say so.
    value : sequence of str
        Columns of figures; by default all that are numbers and no group.
    group : sequence of str
        Columns that say which series a row is of; by default as many as make times unique.

    Raises
    ------
    BadFileError
        If the file is missing, damaged, empty, or no table with times and figures.
    UnknownNameError
        For a column that it does not have.
    """
    columns = _parquet(path) if _is_parquet(path) else _csv(read_text(path, largest_bytes=LARGEST_BYTES), str(path))
    return _series(columns, str(path), time, tuple(value), tuple(group))


def looks_like_series(path: Path, head: bytes) -> bool:
    """Return whether a file holds series with regular times: requests, which arrive at any time, do not.

    Parameters
    ----------
    path : Path
    head : bytes
        The first bytes of the file, unpacked.
    """
    if head[:4] == b"PAR1":
        return path.suffix.lower() in (".parquet", ".pq")
    if b"\0" in head or b"," not in head:
        return False
    text = head.decode("utf-8", "ignore")
    # The last line may be cut off.
    text = text[: text.rfind("\n") + 1]
    try:
        found = _series(_csv(text, ""), "", "", (), ())
    except (BadFileError, BadValueError):
        return False
    # Most of the first ones, of which a short head may show the beginning alone.
    return sum(_is_regular(each.time_ns) for each in found) * 2 > len(found)


def _is_regular(time_ns: NDArray[np.int64]) -> bool:
    steps = np.diff(time_ns)
    if steps.size < 2:
        return False
    ratio = steps / np.median(steps)
    near = np.abs(ratio - np.maximum(np.rint(ratio), 1.0)) < 0.1
    return bool(near.mean() >= _REGULAR)


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError as error:
        raise BadFileError("The file cannot be read.", given=str(error), where=str(path)) from error


def _parquet(path: Path) -> dict[str, list[Any]]:
    import duckdb

    try:
        with duckdb.connect() as session:
            answer = session.execute("SELECT * FROM read_parquet($1)", [glob.escape(str(path))])
            names = [each[0] for each in answer.description]
            rows = answer.fetchall()
    except duckdb.Error as error:
        raise BadFileError("The Parquet file cannot be read.", given=str(error), where=str(path)) from error
    if not rows:
        raise BadFileError("The file has no rows.", where=str(path))
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _csv(text: str, where: str) -> dict[str, list[Any]]:
    try:
        rows = csv.reader(io.StringIO(text), strict=True)
        names = [each.strip() for each in next(rows, [])]
        if len(names) < 2 or len(set(names)) < len(names) or not all(names):
            raise BadFileError("The first line is no header with at least two different names.", where=where,
                               given=",".join(names) or "an empty file")  # fmt: skip
        found = [row for row in rows if row]
    except csv.Error as error:
        raise BadFileError("The file is no table of comma-separated values.", given=str(error), where=where) from error
    whole = [row for row in found if len(row) == len(names)]
    if not whole or len(whole) < _SURE * len(found):
        raise BadFileError(
            "The rows have not as many cells as the header.", given=f"{len(found) - len(whole)} of {len(found)} rows",
            allowed=f"{len(names)} cells", where=where,
        )  # fmt: skip
    return dict(zip(names, map(list, zip(*whole, strict=True)), strict=True))


def _series(
    columns: dict[str, list[Any]], where: str, time: str, value: tuple[str, ...], group: tuple[str, ...]
) -> tuple[Series, ...]:
    for name in (time, *value, *group):
        if name and name not in columns:
            raise unknown_name("column", name, columns, where=where)
    column, times = _times(columns, time, where)
    kept = np.array([each is not None for each in times])
    time_ns = np.array([each or 0 for each in times], np.int64)
    figures = {name: found for name in columns if name != column and (found := _figures(columns[name])) is not None}
    keys = group or _groups(columns, figures, time_ns, column, value)
    wanted = value or tuple(name for name in figures if name not in keys)
    if not wanted:
        raise BadFileError("No column beside the times holds figures.", given=", ".join(columns), where=where)
    rows: dict[tuple[str, ...], list[int]] = {}
    labels = [tuple(map(str, each)) for each in zip(*(columns[name] for name in keys), strict=True)] if keys else None
    for at in np.flatnonzero(kept):
        rows.setdefault(labels[at] if labels else (), []).append(int(at))
    series: list[Series] = []
    for label, members in rows.items():
        order = np.array(members)[np.argsort(time_ns[members], kind="stable")]
        # Of a time that comes twice, the first row counts.
        _, first = np.unique(time_ns[order], return_index=True)
        order = order[first]
        for name in wanted:
            if name not in figures:
                raise BadFileError("The column holds no figures.", given=name, where=where)
            of = figures[name][order]
            series.append(
                Series(
                    name=" ".join((*label, name)) if label and len(wanted) > 1 else " ".join(label) or name,
                    time_ns=time_ns[order], value=of, missing=np.isnan(of),
                    labels=dict(zip(keys, label, strict=True)),
                )
            )  # fmt: skip
    return tuple(series)


def _times(columns: dict[str, list[Any]], given: str, where: str) -> tuple[str, list[int | None]]:
    named = [name for name in columns if name.lower() in _TIMES]
    for name in [given] if given else [*named, *(each for each in columns if each not in named)]:
        numbers = bool(given) or name in named
        read = _reader_of_times(name, columns[name], numbers=numbers)
        sample = columns[name][:_FEW]
        if sum(read(each) is not None for each in sample) < _SURE * len(sample):
            continue
        known: dict[Any, int | None] = {}
        found = [known[each] if each in known else known.setdefault(each, read(each)) for each in columns[name]]
        if sum(each is not None for each in found) >= _SURE * len(found):
            return name, found
    raise BadFileError(
        "No column holds times." if not given else "The column holds no times.", given=given or ", ".join(columns),
        allowed="dates as 2026-08-22 or 2026-08-22T10:00:00Z, or numbers since 1970 in a column that says time",
        where=where,
    )  # fmt: skip


def _reader_of_times(name: str, cells: list[Any], *, numbers: bool) -> Callable[[Any], int | None]:
    unit = next((scale for end, scale in _UNITS.items() if name.lower().endswith(end)), 0)
    if not unit:
        sizes = [abs(each) for each in map(_figure, cells[:_FEW]) if each is not None and math.isfinite(each)]
        largest = max(sizes, default=0.0)
        # Numbers since 1970: nanoseconds from 1e17 on, microseconds from 1e14, milliseconds from 1e11.
        unit = next((scale for least, scale in ((1e17, 1), (1e14, 10**3), (1e11, 10**6)) if largest >= least), 10**9)

    def read(cell: Any) -> int | None:
        if isinstance(cell, datetime.datetime | datetime.date):
            return _nanoseconds(cell)
        text = str(cell).strip()
        figure = _figure(text)
        if figure is not None:
            if not numbers or not math.isfinite(figure):
                return None
            try:
                whole = int(text) * unit
            except ValueError:
                whole = round(figure * unit) if abs(figure * unit) < _LATEST_NS else _LATEST_NS
            return whole if abs(whole) < _LATEST_NS else None
        try:
            return _nanoseconds(datetime.datetime.fromisoformat(text))
        except (ValueError, OverflowError):
            return None

    return read


def _nanoseconds(when: datetime.datetime | datetime.date) -> int | None:
    if not isinstance(when, datetime.datetime):
        when = datetime.datetime(when.year, when.month, when.day)
    aware = when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
    since = aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    whole = ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1_000
    return whole if abs(whole) < _LATEST_NS else None


def _figure(cell: Any) -> float | None:
    """Return a cell's number, NaN for a missing one, None for other text."""
    if cell is None:
        return math.nan
    if isinstance(cell, str):
        text = cell.strip()
        if text.lower() in _MISSING:
            return math.nan
        # float() takes digits with underscores and of other scripts.
        if "_" in text or not text.isascii():
            return None
    elif isinstance(cell, bool | datetime.date):
        return None
    else:
        text = cell
    try:
        return float(text)
    except (ValueError, TypeError, OverflowError):
        return None


def _figures(cells: list[Any]) -> NDArray[np.float64] | None:
    """Return a column's numbers; None where other text is among them, all missing included."""
    out = np.empty(len(cells))
    for at, cell in enumerate(cells):
        figure = _figure(cell)
        if figure is None:
            return None
        out[at] = figure if math.isfinite(figure) else math.nan
    return out


def _groups(
    columns: dict[str, list[Any]], figures: Mapping[str, NDArray[np.float64]], time_ns: NDArray[np.int64],
    time: str, value: tuple[str, ...],
) -> tuple[str, ...]:  # fmt: skip
    """Return the columns that say which series a row is of: few different words, then few different whole numbers."""
    rows = time_ns.size
    if np.unique(time_ns).size == rows:
        return ()
    few = {name: len(set(map(str, columns[name]))) for name in columns if name != time and name not in value}
    words = [name for name in few if name not in figures and few[name] <= max(rows / LEAST_PER_GROUP, 1)]
    numbers = sorted(
        (name for name in few if name in figures and few[name] <= _FEW and _are_whole(figures[name])),
        key=lambda name: few[name],
    )
    keys = list(words)
    if _are_unique(columns, time_ns, keys):
        return tuple(keys)
    for name in numbers:
        keys.append(name)
        if _are_unique(columns, time_ns, keys):
            break
    return tuple(keys)


LEAST_PER_GROUP = 3
"""A column with more different words than a third of the rows names no groups."""


def _are_whole(values: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(values).all() and (values == np.rint(values)).all())


def _are_unique(columns: dict[str, list[Any]], time_ns: NDArray[np.int64], keys: Iterable[str]) -> bool:
    """Return whether nearly all rows differ in time or group."""
    parts = list(zip(time_ns.tolist(), *(columns[name] for name in keys), strict=True))
    return len(set(parts)) >= _SURE * len(parts)
