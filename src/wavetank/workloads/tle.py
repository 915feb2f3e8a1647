"""Two-line elements of satellites, as histories in the order of time, and lists of known manoeuvres.

A pair of lines holds the mean elements of one satellite at one epoch, in fixed columns.  Epochs are whole nanoseconds
since 1970 UTC, which is exact: the eighth decimal of a day is 864,000 ns.

Source: the column layout of the two-line element format (Hoots and Roehrich, Spacetrack Report 3, 1980; CelesTrak).
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadTraceError
from wavetank.files import read_text

DAY_NS = 86_400_000_000_000
_NS_A_DECIMAL = DAY_NS // 10**8
_LARGEST_BYTES = 256 << 20
_LINE = 69
# 57 and later are of the last century: the first satellite flew in 1957.
_FIRST_YEAR = 57
# Alpha-5: letters stand for the first two digits of catalogue numbers above 99,999; I and O are left out.
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
# The exponent is a FORTRAN I2: some old records have a zero or a blank where its sign is.
_POWER = re.compile(r"([ +-]?)(\d{5})([ 0+-]\d)")
_EPOCH = re.compile(r"(\d{2})( {0,2}\d{1,3})\.(\d{1,8}) *")


@dataclass(frozen=True, kw_only=True)
class Elements:
    """Mean elements of one satellite, in the order of time; of records with one epoch the last is kept.

    Attributes
    ----------
    number : int
        Of the catalogue.
    epoch_ns : numpy.ndarray of int64, shape (n,)
        Since 1970 UTC, rising.
    mean_motion : numpy.ndarray of float64, shape (n,)
        Revolutions per day.
    eccentricity : numpy.ndarray of float64, shape (n,)
    inclination_deg, node_deg, perigee_deg, anomaly_deg : numpy.ndarray of float64, shape (n,)
        Inclination, right ascension of the ascending node, argument of perigee, mean anomaly.
    drag : numpy.ndarray of float64, shape (n,)
        B*, per radius of the Earth.
    motion_rate : numpy.ndarray of float64, shape (n,)
        Half the rate of the mean motion as line 1 gives it, revolutions per day squared.
    lines : tuple of (str, str)
        The records themselves.
    left_out : mapping of str to int
        Records of the file that could not be used, by reason; of the file, not of this satellite alone.
    """

    number: int
    epoch_ns: NDArray[np.int64]
    mean_motion: NDArray[np.float64]
    eccentricity: NDArray[np.float64]
    inclination_deg: NDArray[np.float64]
    node_deg: NDArray[np.float64]
    perigee_deg: NDArray[np.float64]
    anomaly_deg: NDArray[np.float64]
    drag: NDArray[np.float64]
    motion_rate: NDArray[np.float64]
    lines: tuple[tuple[str, str], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.epoch_ns.size)


class _BadRecordError(Exception):
    """A record that cannot be used, and why."""


def read_tle(path: Path) -> dict[int, Elements]:
    """Read a file of two-line or three-line records, plain or with gzip.

    Parameters
    ----------
    path : Path

    Returns
    -------
    dict of int to Elements
        By catalogue number, in the order of their first records.

    Raises
    ------
    BadTraceError
        If it is no text, too large, or holds no record that can be used: with the commonest reason.
    """
    try:
        text = read_text(path, largest_bytes=_LARGEST_BYTES)
    except BadFileError as error:
        raise BadTraceError(error.problem, given=error.given, allowed=error.allowed, where=error.where) from error
    found: dict[int, dict[int, tuple[tuple[float, ...], tuple[str, str]]]] = {}
    left_out: Counter[str] = Counter()
    for one, two in _pairs(text.splitlines(), left_out):
        try:
            number, epoch_ns, values = _record(one, two)
        except _BadRecordError as error:
            left_out[str(error)] += 1
            continue
        of = found.setdefault(number, {})
        if epoch_ns in of:
            left_out["an epoch again"] += 1
        of[epoch_ns] = (values, (one, two))
    if not found:
        why = left_out.most_common(1)
        raise BadTraceError(
            "The file has no two-line element that can be used.", where=str(path),
            given=why[0][0] if why else "no line that begins with 1 or 2",
        )  # fmt: skip
    return {number: _elements(number, of, left_out) for number, of in found.items()}


def looks_like_tle(head: bytes) -> bool:
    """Return whether the first bytes of a file, unpacked, may begin two-line elements.

    Parameters
    ----------
    head : bytes
        Some kilobytes.
    """
    lines = [line.rstrip() for line in head.removeprefix(b"\xef\xbb\xbf").splitlines()[:4]]
    return any(
        one[:2] == b"1 " and two[:2] == b"2 " and len(one) >= _LINE - 1 and len(two) >= _LINE - 1
        for one, two in itertools.pairwise(lines)
    )


def _pairs(lines: Sequence[str], left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield first lines with the second lines that follow them; a line with a name may stand before a first line."""
    first = ""
    for line in lines:
        text = line.rstrip()
        if text[:2] == "2 " and first:
            yield first, text
            first = ""
            continue
        if first:
            left_out["a first line without a second"] += 1
        first = text if text[:2] == "1 " else ""
        if text[:2] == "2 ":
            left_out["a second line without a first"] += 1
    if first:
        left_out["a first line without a second"] += 1


def _record(one: str, two: str) -> tuple[int, int, tuple[float, ...]]:
    for line in (one, two):
        if len(line) not in (_LINE - 1, _LINE) or not line.isascii():
            raise _BadRecordError("a line of another length")
        # Early records have no checksum.
        if len(line) == _LINE and line[-1] != str(checksum(line)):
            raise _BadRecordError("a wrong checksum")
    number = _number(one[2:7])
    if number != _number(two[2:7]):
        raise _BadRecordError("two lines of different satellites")
    inclination, node, perigee = _angle(two[8:16], 180.0), _angle(two[17:25]), _angle(two[34:42])
    anomaly, motion = _angle(two[43:51]), _float(two[52:63])
    eccentricity = two[26:33].strip()
    if not eccentricity.isdigit():
        raise _BadRecordError("a field that is no number")
    if not 0 < motion < 20:
        raise _BadRecordError("a mean motion outside 0 to 20 revolutions per day")
    rate = _float(one[33:43])
    values = (
        motion, int(eccentricity) / 10 ** len(eccentricity), inclination, node, perigee, anomaly, _power(one[53:61]),
        rate,
    )  # fmt: skip
    return number, _epoch(one[18:32]), values


def checksum(line: str) -> int:
    """Return the checksum of a line: its digits, and 1 for every minus, modulo 10.

    Parameters
    ----------
    line : str
        Its first 68 characters count.
    """
    return sum(int(each) if each.isdigit() else each == "-" for each in line[: _LINE - 1]) % 10


def _number(text: str) -> int:
    head = text[:1]
    if head in _LETTERS and head and text[1:].isdigit():
        return (10 + _LETTERS.index(head)) * 10_000 + int(text[1:])
    # Spaces alone: strip() also takes control characters, at which int() stumbles.
    if not text.strip(" ").isdigit():
        raise _BadRecordError("a catalogue number that is none")
    return int(text)


def _float(text: str) -> float:
    # float() would also take 1_000, nan and inf.
    if not re.fullmatch(r" *[+-]?\d*\.?\d+ *", text):
        raise _BadRecordError("a field that is no number")
    return float(text)


def _angle(text: str, most: float = 360.0) -> float:
    value = _float(text)
    if not 0 <= value <= most:
        raise _BadRecordError("an angle outside its range")
    return value


def _power(text: str) -> float:
    """Return a value whose point is left out, such as ``-11606-4``: -0.11606e-4."""
    match = _POWER.fullmatch(text)
    if match is None:
        raise _BadRecordError("a field that is no number")
    sign, digits, exponent = match.groups()
    return (-1 if sign == "-" else 1) * int(digits) / 10 ** len(digits) * math.pow(10, int(exponent))


def _epoch(text: str) -> int:
    match = _EPOCH.fullmatch(text)
    if match is None:
        raise _BadRecordError("an epoch that is none")
    year, day, decimals = match.groups()
    full = int(year) + (1900 if int(year) >= _FIRST_YEAR else 2000)
    first = datetime.date(full, 1, 1).toordinal()
    if not 1 <= int(day) <= datetime.date(full + 1, 1, 1).toordinal() - first:
        raise _BadRecordError("an epoch that is none")
    days = first + int(day) - 1 - datetime.date(1970, 1, 1).toordinal()
    return days * DAY_NS + int(decimals.ljust(8, "0")) * _NS_A_DECIMAL


def _elements(
    number: int, of: Mapping[int, tuple[tuple[float, ...], tuple[str, str]]], left_out: Mapping[str, int]
) -> Elements:
    epochs = sorted(of)
    columns = np.array([of[each][0] for each in epochs], np.float64).T
    motion, eccentricity, inclination, node, perigee, anomaly, drag, rate = columns
    return Elements(
        number=number, epoch_ns=np.array(epochs, np.int64), mean_motion=motion, eccentricity=eccentricity,
        inclination_deg=inclination, node_deg=node, perigee_deg=perigee, anomaly_deg=anomaly, drag=drag,
        motion_rate=rate, lines=tuple(of[each][1] for each in epochs), left_out=dict(left_out),
    )  # fmt: skip


def read_manoeuvres(path: Path) -> tuple[int, NDArray[np.int64]]:
    """Read the times of a satellite's manoeuvres, as the data set tle-manoeuvres keeps them.

    Parameters
    ----------
    path : Path
        Text with lines ``SATCAT number: N`` and ``name: NAME``, and after ``manoeuvre_timestamps:`` one line
        ``- YYYY-MM-DD hh:mm:ss`` for each, UTC.

    Returns
    -------
    number : int
        Of the catalogue.
    times_ns : numpy.ndarray of int64
        Since 1970 UTC, sorted.

    Raises
    ------
    BadTraceError
        If a line is none of these.
    """
    number, times = None, []
    for at, line in enumerate(read_text(path, largest_bytes=_LARGEST_BYTES).splitlines(), 1):
        text = line.strip()
        try:
            if text.startswith("SATCAT number:"):
                number = int(text.partition(":")[2])
            elif text.startswith("- "):
                when = datetime.datetime.fromisoformat(text[2:].strip()).replace(tzinfo=datetime.UTC)
                times.append(round(when.timestamp()) * 10**9)
            elif text and text != "manoeuvre_timestamps:" and not text.startswith("name:"):
                raise ValueError("a line of another kind")
        except ValueError as error:
            raise BadTraceError(
                "A list of manoeuvres cannot be read.", given=text, where=f"{path}, line {at}"
            ) from error
    if number is None:
        raise BadTraceError("A list of manoeuvres names its satellite.", where=str(path), allowed="SATCAT number: N")
    return number, np.sort(np.array(times, np.int64))
