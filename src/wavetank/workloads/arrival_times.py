"""Arrival times of a trace's rows: numbers of a unit that all rows decide, ISO date-times, or dates with slashes.

Nothing is guessed row by row: one reading must fit the whole column.  Numbers beside dates, ISO dates beside others,
and Unix times of several units are refused with their rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadTraceError
from wavetank.units import convert
from wavetank.workloads.trace_facts import hint_to_say

DAY_ORDERS = {"mdy": "month first", "dmy": "day first"}
"""Values of ``time_unit`` that say how dates such as 11/12/2023 are meant."""

MISSING_WORDS = frozenset({"", "null", "none", "nan", "na", "n/a", "-", "\\n"})
"""What stands, in small letters, in the place of a value that is not there."""

# No trace starts years after its own beginning: such a start is a date in Unix seconds.
_UNIX_TIME_S = 1e8
# A first arrival from here on is no date in Unix seconds (the year 5,138) but one in the next smaller unit, and so on.
_UNIX_UNITS = ((1e11, "ms"), (1e14, "us"), (1e17, "ns"))
# Unix times from 1999 to 2103 by unit.
_UNIX_WINDOWS = tuple((unit, 9.4e8 * factor, 4.2e9 * factor) for unit, factor in
                      (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)))  # fmt: skip
# Whole numbers that lie this far apart are likely to be of a smaller unit than seconds.
_LONG_GAP_S = 100.0

_UNIT_WORDS = {
    "s": "s", "sec": "s", "secs": "s", "seconds": "s", "second": "s",
    "ms": "ms", "msec": "ms", "msecs": "ms", "millis": "ms", "milliseconds": "ms",
    "us": "us", "usec": "us", "usecs": "us", "micros": "us", "microseconds": "us",
    "ns": "ns", "nsec": "ns", "nanos": "ns", "nanoseconds": "ns",
}  # fmt: skip

_DATE = re.compile(
    r"(?P<first>\d{1,4})(?P<between>[/.-])(?P<second>\d{1,2})(?P=between)(?P<third>\d{1,4})"
    r"(?:(?:,? +|T)(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<s>\d{2})(?:[.,](?P<part>\d{1,9}))?)?"
    r" ?(?P<half>[AaPp]\.?[Mm]\.?)?)?"
)

_MISSING, _NUMBER, _ISO, _DATED, _UNREADABLE = range(5)
_KIND_WORDS = {_NUMBER: "numbers", _ISO: "ISO date-times", _DATED: "dates such as 11/16/2023"}


def name_without_unit(column: str) -> tuple[str, str]:
    """Split a unit of time off the end of a column's name; the unit is empty where the name says none.

    Parameters
    ----------
    column : str

    Examples
    --------
    >>> name_without_unit("arrival_ms"), name_without_unit("timestampNs"), name_without_unit("ts")
    (('arrival', 'ms'), ('timestamp', 'ns'), ('ts', ''))
    """
    parts = re.split(r"[_\W]+|(?<=[a-z])(?=[A-Z])", column)
    unit = _UNIT_WORDS.get(parts[-1].lower(), "") if len(parts) > 1 else ""
    return ("_".join(parts[:-1]), unit) if unit else (column, "")


@dataclass(frozen=True)
class ReadTimes:
    """A column of texts read as times.

    Parameters
    ----------
    values : ndarray, shape (rows,)
        datetime64[us]; what stands in rows that could not be read means nothing.
    missing, unreadable : ndarray of bool, shape (rows,)
    described : str
        How they were understood.
    notes : tuple of str
    """

    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]
    unreadable: npt.NDArray[np.bool_]
    described: str
    notes: tuple[str, ...] = ()


def read_dates(texts: Sequence[Any], *, column: str, where: str, time_unit: str | None, asked_in: str) -> ReadTimes:
    """Read a column that is not made of numbers alone.

    Parameters
    ----------
    texts : sequence of str or None, length rows
    column : str
        Its name in the source.
    where : str
        The source, for messages.
    time_unit : str or None
        ``mdy`` or ``dmy`` says in which order day and month stand.
    asked_in : str
        One of :data:`wavetank.workloads.trace_facts.ASKED_IN`.

    Raises
    ------
    BadTraceError
        If rows are of several kinds, or day and month cannot be distinguished.
    """
    n = len(texts)
    kinds = np.full(n, _UNREADABLE, dtype=np.int8)
    times = np.zeros(n, dtype="datetime64[us]")
    dated: dict[int, re.Match[str]] = {}
    offsets = 0
    for row, text in enumerate(texts):
        kinds[row], moment = _iso_or_not(text)
        if moment is not None:
            offsets += moment.tzinfo is not None
            times[row] = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
        elif kinds[row] == _DATED:
            match = _DATE.fullmatch(text.strip())
            found = _moment(match, "mdy") if match is not None and len(match["first"]) == 4 else None
            if found is not None:
                # With the year first, the order is plain.
                kinds[row], times[row] = _ISO, found
            elif match is None or len(match["first"]) > 2 or len(match["third"]) != 4:
                kinds[row] = _UNREADABLE
            else:
                dated[row] = match
    _check_one_kind(kinds, texts, column, where, asked_in)
    described, notes = "ISO date-times", []
    iso = int((kinds == _ISO).sum())
    if 0 < offsets < iso:
        notes.append(f"Of the date-times in {column!r}, {iso - offsets:,} have no offset and were read as UTC.")
    if dated:
        order = _day_order(dated, time_unit, column, where, asked_in)
        described = f"dates, {DAY_ORDERS[order]}"
        for row, match in dated.items():
            found = _moment(match, order)
            if found is None:
                kinds[row] = _UNREADABLE
            else:
                times[row] = found
    return ReadTimes(times, kinds == _MISSING, kinds == _UNREADABLE, described, tuple(notes))


def _iso_or_not(text: Any) -> tuple[int, datetime | None]:
    """Return the kind of a text, and the moment where it is in ISO 8601."""
    if text is None or text.strip().lower() in MISSING_WORDS:
        return _MISSING, None
    text = text.strip()
    # The basic form 20240101 would be a date as well as a number.
    if not text.lstrip("+-").isdigit():
        zoned = text[:-3].rstrip() + "Z" if text.endswith(("UTC", "GMT")) else text
        try:
            return _ISO, datetime.fromisoformat(zoned)
        except ValueError:
            pass
    try:
        float(text)
    except ValueError:
        return _DATED, None
    return _NUMBER, None


def _check_one_kind(kinds: npt.NDArray[np.int8], texts: Sequence[Any], column: str, where: str, asked_in: str) -> None:
    counts = {kind: int((kinds == kind).sum()) for kind in _KIND_WORDS}
    found = sorted((kind for kind in counts if counts[kind]), key=lambda kind: -counts[kind])
    if len(found) < 2:
        return
    rows = np.flatnonzero(kinds == found[-1])
    words = ", ".join(f"{counts[kind]:,} {_KIND_WORDS[kind]}" for kind in found)
    _refuse_mixed(words, rows, texts[rows[0]], column, where, asked_in)


def _refuse_mixed(
    counts: str, rows: npt.NDArray[np.intp], first: str, column: str, where: str, asked_in: str
) -> NoReturn:
    named = ", ".join(str(row + 1) for row in rows[:5]) + (", ..." if rows.size > 5 else "")
    raise BadTraceError(
        f"Arrival times are of mixed units: {counts}.",
        given=first,
        where=f"{where}, {'row' if rows.size == 1 else 'rows'} {named}, column {column!r}",
        hint="bring all rows to one unit, leave these rows out, or name another column: "
        + hint_to_say(asked_in, "columns", {"arrival_s": "COLUMN"}),
    )


def _day_order(dated: dict[int, re.Match[str]], time_unit: str | None, column: str, where: str, asked_in: str) -> str:
    """Decide from all rows whether the month or the day comes first."""
    if time_unit in DAY_ORDERS:
        return time_unit
    rows = list(dated)
    firsts = np.array([int(dated[row]["first"]) for row in rows])
    seconds = np.array([int(dated[row]["second"]) for row in rows])
    if (firsts > 12).any() and (seconds > 12).any():
        few = firsts > 12 if (firsts > 12).sum() <= (seconds > 12).sum() else seconds > 12
        counts = f"{int((seconds > 12).sum()):,} dates with the month first, {int((firsts > 12).sum()):,} with the day"
        mixed = np.array(rows)[few]
        _refuse_mixed(counts, mixed, dated[int(mixed[0])][0], column, where, asked_in)
    if (seconds > 12).any():
        return "mdy"
    # A dot is never used with the month first.
    if (firsts > 12).any() or all(dated[row]["between"] == "." for row in rows):
        return "dmy"
    readings = []
    for order in DAY_ORDERS:
        moments = [_moment(dated[row], order) for row in rows]
        start = min((moment for moment in moments if moment is not None), default=None)
        readings.append([moment - start if moment and start else None for moment in moments])
    if readings[0] == readings[1]:
        return "mdy"
    raise BadTraceError(
        "Day and month of the arrival times cannot be distinguished: no row has a day after the 12th.",
        given=dated[rows[0]][0],
        where=f"{where}, row {rows[0] + 1}, column {column!r}",
        hint=f"{hint_to_say(asked_in, 'time_unit', 'mdy')} for month first, "
        f"{hint_to_say(asked_in, 'time_unit', 'dmy')} for day first",
    )


def _moment(match: re.Match[str], order: str) -> datetime | None:
    if len(match["first"]) == 4:
        year, month, day = match["first"], match["second"], match["third"]
    else:
        year = match["third"]
        month, day = (match["first"], match["second"])[:: 1 if order == "mdy" else -1]
    hour = int(match["hour"] or 0)
    if match["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["half"][0] in "pP" else 0)
    try:
        moment = datetime(int(year), int(month), int(day), hour, int(match["minute"] or 0), int(match["s"] or 0))
    except ValueError:
        return None
    return moment + timedelta(microseconds=int((match["part"] or "0").ljust(6, "0")[:6]))


def unit_of_numbers(
    arrivals: npt.NDArray[Any], rows: npt.NDArray[np.intp], *, column: str, where: str, asked_in: str
) -> tuple[str, str, tuple[str, ...]]:
    """Decide from all rows which unit numeric arrivals are in.

    Parameters
    ----------
    arrivals : ndarray, shape (n,)
        The finite ones.
    rows : ndarray of int, shape (n,)
        Their 0-based rows in the source.
    column : str
        The column's name, which may end in a unit.
    where : str
        The source, for messages.
    asked_in : str
        One of :data:`wavetank.workloads.trace_facts.ASKED_IN`.

    Returns
    -------
    str
        The unit.
    str
        How the column was understood.
    tuple of str
        What must be said about it.

    Raises
    ------
    BadTraceError
        If some are Unix times of one unit and some of another.
    """
    if arrivals.size == 0:
        return "s", "s", ()
    within = {unit: (arrivals >= low) & (arrivals <= high) for unit, low, high in _UNIX_WINDOWS}
    counts = {unit: int(inside.sum()) for unit, inside in within.items() if inside.any()}
    if len(counts) > 1 and sum(counts.values()) == arrivals.size:
        few = min(counts, key=lambda unit: counts[unit])
        words = ", ".join(f"{count:,} in Unix {unit}" for unit, count in counts.items())
        value = f"{arrivals[within[few]][0]:.12g}"
        _refuse_mixed(words, rows[within[few]], value, column, where, asked_in)
    first = float(arrivals.min())
    named = name_without_unit(column)[1]
    unit = next((unit for least, unit in reversed(_UNIX_UNITS) if first >= least), "s")
    if unit != "s":
        if named == unit:
            return unit, f"Unix {unit}", ()
        return (
            unit,
            f"Unix {unit}",
            (
                f"The column {column!r} begins at {first:.4g}, a date thousands of years ahead in seconds: it "
                f"was read as Unix time in {unit}.",
            ),
        )
    if len(counts) == 1 and "s" in counts and counts["s"] == arrivals.size:
        contradicted = (
            f"The column {column!r} names {named}, but its values are Unix seconds and were read as such "
            f"({hint_to_say(asked_in, 'time_unit', named)} says otherwise).",
        )
        return "s", "Unix s", () if named in ("", "s") else contradicted
    if named:
        return named, named, ()
    gaps = np.diff(np.sort(arrivals))
    whole = bool((arrivals == np.floor(arrivals)).all())
    if gaps.size and whole and float(np.median(gaps)) >= _LONG_GAP_S:
        return (
            unit,
            "s",
            (
                f"The column {column!r} was read as seconds, whose median gap is {float(np.median(gaps)):,.0f} s; if "
                f"it is in milliseconds, give {hint_to_say(asked_in, 'time_unit', 'ms')}.",
            ),
        )
    return unit, "s", ()


def zeros_among_dates(arrivals: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which numbers are zero or less while all others are Unix times: times that were never taken.

    Parameters
    ----------
    arrivals : ndarray, shape (n,)

    Returns
    -------
    ndarray of bool, shape (n,)
    """
    none = arrivals <= 0
    dates = np.zeros(arrivals.shape, dtype=np.bool_)
    for _, low, high in _UNIX_WINDOWS:
        dates |= (arrivals >= low) & (arrivals <= high)
    return none if dates.any() and (none | dates).all() else np.zeros(arrivals.shape, dtype=np.bool_)


def in_seconds(arrivals: npt.NDArray[Any], unit: str) -> npt.NDArray[Any]:
    """Return arrivals in seconds: dates and Unix times from the first one, others as they are.

    Parameters
    ----------
    arrivals : ndarray, shape (n,)
        Numbers, datetime64 or timedelta64.
    unit : str
        Of numbers.
    """
    if arrivals.size == 0:
        return arrivals
    if arrivals.dtype.kind == "M":
        return (arrivals - arrivals.min()) / np.timedelta64(1, "s")
    if arrivals.dtype.kind == "m":
        return arrivals / np.timedelta64(1, "s")
    per_second = convert(1.0, "s", unit, where="time_unit")
    if arrivals.min() > _UNIX_TIME_S * per_second:
        arrivals = arrivals - arrivals.min()
    # A whole number of ticks a second divides exactly: 100 ms is 0.1 s to the last digit.
    return arrivals / (round(per_second) if per_second >= 1 else per_second)
