"""Arrival times of a trace's rows: numbers of a unit that all rows decide, ISO date-times, dates with slashes, dates
with names of months, or times of day.

Nothing is guessed row by row: one reading must fit the whole column.  Numbers beside dates, ISO dates beside others,
and Unix times of several units are refused with their rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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
# Whole numbers that lie this far apart may be of a smaller unit than seconds: milliseconds, and from the second gap on
# microseconds, too.
_LONG_GAP_S = 2.0
_VERY_LONG_GAP_S = 1e4
_DAY_S = 86_400.0
# Days since the end of 1899, in which spreadsheets keep dates, of the years 2000 to 2099.  Read as seconds, they would
# come at more than this rate.
_SERIAL_DAYS = (36_526.0, 73_051.0)
_MOST_PER_S = 1_000.0
SERIAL_DAYS = "serial days"
"""How a column of a spreadsheet's days is described, and its unit for :func:`in_seconds`."""

_UNIT_WORDS = {
    "s": "s", "sec": "s", "secs": "s", "seconds": "s", "second": "s",
    "ms": "ms", "msec": "ms", "msecs": "ms", "millis": "ms", "milliseconds": "ms",
    "us": "us", "usec": "us", "usecs": "us", "micros": "us", "microseconds": "us",
    "ns": "ns", "nsec": "ns", "nanos": "ns", "nanoseconds": "ns",
}  # fmt: skip

_CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<s>\d{2})(?:[.,](?P<part>\d{1,9}))?)?"
    r" ?(?P<half>[AaPp]\.?[Mm]\.?)?"
)
_DATE = re.compile(
    r"(?P<first>\d{1,4})(?P<between>[/.-])(?P<second>\d{1,2})(?P=between)(?P<third>\d{1,4})"
    rf"(?:(?:,? |T){_CLOCK})?"
)
# With the month's English name: 16/Nov/2023:18:15:46, Nov 16, 2023 @ 18:15:46.680, Thu, 16 Nov 2023 18:15:46.
_NAMED = re.compile(
    r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? )?"
    r"(?:(?P<day>\d{1,2})[ /-](?P<month>[a-z]{3,9})\.?[ /-](?P<year>\d{4})"
    r"|(?P<month_>[a-z]{3,9})\.? (?P<day_>\d{1,2}),? (?P<year_>\d{4}))"
    rf"(?:(?:,? (?:@ )?|:){_CLOCK})?",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME_OF_DAY = re.compile(_CLOCK)
# An offset from UTC behind a time, with or without the name that Go adds; or a name alone.
_ZONED = re.compile(r"(?P<rest>.*\d:\d{2}.*?) ?(?:(?P<offset>[+-]\d{2}:?\d{2})(?: [A-Z]{3,5})?|(?P<name>[A-Z]{1,4}))")
# Hours ahead of UTC: the names of RFC 2822, and two more that one country or region uses alone.
_ZONES = {
    "Z": 0, "UT": 0, "UTC": 0, "GMT": 0, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8,
    "PDT": -7, "CET": 1, "CEST": 2, "JST": 9,
}  # fmt: skip

_MISSING, _NUMBER, _ISO, _DATED, _MONTH_NAMED, _CLOCKED, _UNREADABLE = range(7)
_KIND_WORDS = {
    _NUMBER: "numbers", _ISO: "ISO date-times", _DATED: "dates such as 11/16/2023",
    _MONTH_NAMED: "dates with the month's name", _CLOCKED: "times of day",
}  # fmt: skip


def name_without_unit(column: str) -> tuple[str, str]:
    """Split a unit of time off the end of a column's name; the unit is empty where the name says none.

    Examples
    --------
    >>> name_without_unit("arrival_ms"), name_without_unit("timestampNs"), name_without_unit("ts")
    (('arrival', 'ms'), ('timestamp', 'ns'), ('ts', ''))
    """
    parts = re.split(r"[_\W]+|(?<=[a-z])(?=[A-Z])", column.rstrip(")] "))
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
    dated: dict[int, tuple[re.Match[str], timedelta]] = {}
    offsets = 0
    for row, text in enumerate(texts):
        kinds[row], moment, ahead = _read(text)
        offsets += ahead is not None
        if isinstance(moment, datetime):
            times[row] = moment - (ahead or timedelta())
        elif moment is not None:
            dated[row] = moment, ahead or timedelta()
    _check_one_kind(kinds, texts, column, where, asked_in)
    described, notes = "ISO date-times", []
    plain = int(((kinds > _NUMBER) & (kinds < _CLOCKED)).sum()) - offsets
    if offsets and plain > 0:
        notes.append(f"Of the date-times in {column!r}, {plain:,} have no offset and were read as UTC.")
    if dated:
        order = _day_order({row: match for row, (match, _) in dated.items()}, time_unit, column, where, asked_in)
        described = f"dates, {DAY_ORDERS[order]}"
        for row, (match, ahead) in dated.items():
            found = _moment(match, order)
            if found is None:
                kinds[row] = _UNREADABLE
            else:
                times[row] = found - ahead
    elif (kinds == _MONTH_NAMED).any():
        described = "dates with the month's name"
    elif (kinds == _CLOCKED).any():
        described = "times of day"
        rows = np.flatnonzero(kinds == _CLOCKED)
        days = _days_passed(times[rows].astype(np.int64) / 1e6)
        if days is None:
            _refuse_days(texts[rows[0]], column, where)
        times[rows] += days * np.timedelta64(1, "D")
        midnights = int(days.max() - days.min())
        passed = "no midnight is passed" if not midnights else f"{midnights:,} midnight{'s' * (midnights > 1)} passed"
        notes.append(f"The times of day in {column!r} have no date: they were read one after the other, {passed}.")
    return ReadTimes(times, kinds == _MISSING, kinds == _UNREADABLE, described, tuple(notes))


def _read(text: Any) -> tuple[int, datetime | re.Match[str] | None, timedelta | None]:
    """Return the kind of a text, the moment where it is plain or what matched of a date, and how far that is ahead of
    UTC where it says so.
    """
    if text is None or text.strip().lower() in MISSING_WORDS:
        return _MISSING, None, None
    # Some programs put a narrow space before AM and PM.
    text = " ".join(text.split())
    moment = _iso(text)
    if moment is not None:
        return _ISO, moment.replace(tzinfo=None), moment.utcoffset()
    try:
        float(text)
    except ValueError:
        pass
    else:
        return _NUMBER, None, None
    ahead = None
    zoned = _ZONED.fullmatch(text)
    if zoned is not None and (zoned["offset"] or zoned["name"] in _ZONES):
        text = zoned["rest"]
        if zoned["offset"]:
            ahead = datetime.strptime(zoned["offset"], "%z").utcoffset()
        else:
            ahead = timedelta(hours=_ZONES[zoned["name"]])
        moment = _iso(text)
        if moment is not None and moment.tzinfo is None:
            return _ISO, moment, ahead
    match = _DATE.fullmatch(text)
    if match is not None and len(match["first"]) == 4:
        # With the year first, the order is plain.
        found = _moment(match, "mdy")
        return (_UNREADABLE, None, None) if found is None else (_ISO, found, ahead)
    if match is not None and len(match["first"]) <= 2 and len(match["third"]) in (2, 4):
        return _DATED, match, ahead
    match = _NAMED.fullmatch(text)
    if match is not None and (found := _named_moment(match)) is not None:
        return _MONTH_NAMED, found, ahead
    match = _TIME_OF_DAY.fullmatch(text)
    # Without seconds it may as well be minutes and seconds.
    if match is not None and match["s"] is not None and (found := _at(1970, 1, 1, match)) is not None:
        return _CLOCKED, found, ahead
    return _UNREADABLE, None, None


def _iso(text: str) -> datetime | None:
    # The basic form 20240101 would be a date as well as a number.
    if text.lstrip("+-").isdigit():
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _days_passed(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | None:
    """Return the day of each time of day in a log, None where the rows are in no order that shows it.

    In a log that runs forward a time that falls by more than half a day is of the next day.  Around midnight a row may
    stand a little out of place, and rises by nearly a day.
    """
    steps = np.diff(seconds)
    far = np.abs(steps) > _DAY_S / 2
    if not far.any():
        return np.zeros(seconds.size, dtype=np.int64)
    near = steps[~far]
    rising, falling = int((near > 0).sum()), int((near < 0).sum())
    # Where about half of the steps go either way, any day would be a guess.
    if min(rising, falling) > 0.4 * (rising + falling):
        return None
    forward = rising >= falling
    steps = steps if forward else -steps
    turns = (steps < -_DAY_S / 2).astype(np.int64) - (steps > _DAY_S * 23 / 24)
    days = np.concatenate(([0], np.cumsum(turns if forward else -turns)))
    return np.asarray(days - days.min(), dtype=np.int64)


def _refuse_days(first: str, column: str, where: str) -> NoReturn:
    raise BadTraceError(
        "The arrivals are times of day without a date, in no order that shows where a day ends.",
        given=first, where=f"{where}, column {column!r}",
        hint="write the date before the time, as in 2023-11-16 18:15:46, or put the rows in order",
    )  # fmt: skip


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
    _check_years(dated, column, where, asked_in)
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


def _check_years(dated: dict[int, re.Match[str]], column: str, where: str, asked_in: str) -> None:
    """Refuse dates with years of two digits that may as well stand first: 24/03/15.

    Days change faster than years, so that the number that changes least is the year.
    """
    short = [match for match in dated.values() if len(match["third"]) == 2]
    firsts, thirds = ({int(match[name]) for match in short} for name in ("first", "third"))
    if len(thirds) < 2 or (max(thirds) - min(thirds) == 1 and max(firsts) - min(firsts) > 1):
        return
    hints = (f"{hint_to_say(asked_in, 'time_unit', key)} for {words}" for key, words in DAY_ORDERS.items())
    raise BadTraceError(
        "Years of two digits stand in the arrival times, and may be the first or the last number.",
        given=short[0][0],
        where=f"{where}, column {column!r}",
        hint=f"{', '.join(hints)}, both with the year last; otherwise write years with four digits",
    )


def _moment(match: re.Match[str], order: str) -> datetime | None:
    if len(match["first"]) == 4:
        year, month, day = match["first"], match["second"], match["third"]
    else:
        year = match["third"] if len(match["third"]) > 2 else f"20{match['third']}"
        month, day = (match["first"], match["second"])[:: 1 if order == "mdy" else -1]
    return _at(int(year), int(month), int(day), match)


def _named_moment(match: re.Match[str]) -> datetime | None:
    month = (match["month"] or match["month_"]).lower()[:3]
    if month not in _MONTHS:
        return None
    year, day = match["year"] or match["year_"], match["day"] or match["day_"]
    return _at(int(year), _MONTHS.index(month) + 1, int(day), match)


def _at(year: int, month: int, day: int, match: re.Match[str]) -> datetime | None:
    """Return a day with the time that matched; None where there is no such moment."""
    hour = int(match["hour"] or 0)
    if match["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["half"][0] in "pP" else 0)
    try:
        moment = datetime(year, month, day, hour, int(match["minute"] or 0), int(match["s"] or 0))
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
        began = first / convert(1.0, "s", unit, where="time_unit")
        said = f"The column {column!r} begins at {first:.4g} and was read as Unix time in {unit}"
        # The years of a date-time end with 9999.
        if began < 2e11:
            said += f", which is {datetime(1970, 1, 1) + timedelta(seconds=began):%Y-%m-%d %H:%M} UTC"
        return unit, f"Unix {unit}", (f"{said}.",)
    if len(counts) == 1 and "s" in counts and counts["s"] == arrivals.size:
        contradicted = (
            f"The column {column!r} names {named}, but its values are Unix seconds and were read as such "
            f"({hint_to_say(asked_in, 'time_unit', named)} says otherwise).",
        )
        return "s", "Unix s", () if named in ("", "s") else contradicted
    if named:
        return named, named, ()
    gaps = np.diff(np.sort(arrivals))
    span = float(gaps.sum())
    low, high = _SERIAL_DAYS
    if first >= low and float(arrivals.max()) <= high and span > 0 and gaps.size / span > _MOST_PER_S:
        date = datetime(1899, 12, 30) + timedelta(days=first)
        said = (
            f"The column {column!r} was read as a spreadsheet's days, of which {first:.10g} is {date:%Y-%m-%d %H:%M}; "
            f"{hint_to_say(asked_in, 'time_unit', 's')} reads it as seconds."
        )
        return SERIAL_DAYS, SERIAL_DAYS, (said,)
    median = float(np.median(gaps)) if gaps.size else 0.0
    if median >= _LONG_GAP_S and bool((arrivals == np.floor(arrivals)).all()):
        smaller = ("ms",) if median < _VERY_LONG_GAP_S else ("ms", "us")
        hints = " or ".join(hint_to_say(asked_in, "time_unit", each) for each in smaller)
        said = (
            f"The column {column!r} was read as seconds, whose median gap is {median:,.0f} s; if it is in "
            f"{' or '.join(smaller)}, give {hints}."
        )
        return unit, "s", (said,)
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
        Of numbers; or :data:`SERIAL_DAYS`.
    """
    if arrivals.size == 0:
        return arrivals
    if unit == SERIAL_DAYS:
        return (arrivals - arrivals.min()) * _DAY_S
    if arrivals.dtype.kind == "M":
        return (arrivals - arrivals.min()) / np.timedelta64(1, "s")
    if arrivals.dtype.kind == "m":
        return arrivals / np.timedelta64(1, "s")
    per_second = convert(1.0, "s", unit, where="time_unit")
    if arrivals.min() > _UNIX_TIME_S * per_second:
        arrivals = arrivals - arrivals.min()
    # A whole number of ticks a second divides exactly: 100 ms is 0.1 s to the last digit.
    return arrivals / (round(per_second) if per_second >= 1 else per_second)
