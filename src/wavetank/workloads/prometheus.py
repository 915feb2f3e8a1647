"""Metrics of Prometheus: the answer to a range query as its HTTP API gives it, and the text that exporters show.

Times are whole nanoseconds.  What was not scraped is missing, never filled in: series keep their own times, and on a
common grid what is missing is NaN.  A counter that falls was reset.

Sources: Prometheus' HTTP API (``/api/v1/query_range``, result type ``matrix``) and its text-based exposition format,
version 0.0.4.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadTraceError

# Unpacked: a gigabyte is what diagnosing a file may take.
MOST_BYTES = 256 << 20
MOST_LINE = 1 << 16
MOST_SERIES = 200_000
# Of a grid: series x times.
MOST_CELLS = 1 << 24
# Of 2115: whole nanoseconds since 1970, half a step of a grid added, stay within 64 bits.
_LATEST_S = 4.6e9
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(,|$)')
_ESCAPED = re.compile(r"\\(.)")
_NUMBERS = {"nan": math.nan, "+inf": math.inf, "inf": math.inf, "-inf": -math.inf}
# Of the letters of decimals alone: what is quickly read.
_PLAIN = re.compile(r"[0-9+\-.eE]*")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


class Series(NamedTuple):
    """One series.

    Attributes
    ----------
    name : str
    labels : tuple of (str, str)
        Sorted by name.
    time_ns : ndarray of int64, shape (samples,)
        Rising; samples that are missing have no time.
    value : ndarray of float64, shape (samples,)
        As reported: NaN and infinities are values.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    time_ns: NDArray[np.int64]
    value: NDArray[np.float64]

    def label(self, name: str) -> str:
        """Return the value of a label, empty where there is none."""
        return dict(self.labels).get(name, "")


class Grid(NamedTuple):
    """Series on common times.

    Attributes
    ----------
    time_ns : ndarray of int64, shape (times,)
    value : ndarray of float64, shape (series, times)
        NaN where a series has no sample.
    """

    time_ns: NDArray[np.int64]
    value: NDArray[np.float64]


class Sample(NamedTuple):
    """One line of an exporter.

    Attributes
    ----------
    name : str
    labels : tuple of (str, str)
        Sorted by name.
    value : float
    kind : str
        ``counter``, ``gauge`` and the like, as the exporter says; empty where it does not.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    kind: str


class _Row(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815
    result: msgspec.Raw


class _Answer(msgspec.Struct):
    status: Annotated[str, msgspec.Meta(max_length=100)]
    data: _Data | None = None
    error: str = ""


def looks_like_range(head: bytes) -> bool:
    """Return whether first bytes begin an answer of Prometheus' HTTP API.

    Parameters
    ----------
    head : bytes
    """
    return head.lstrip()[:1] == b"{" and b'"resultType"' in head[:4096] and b'"status"' in head[:4096]


def read_range(path: Path) -> tuple[Series, ...]:
    """Return the series of a saved answer to a range query, packed with gzip or not.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BadTraceError
        If it is none, is cut off, says that the query failed, or has series whose times do not rise.
    """
    content = _content(path)
    where = str(path)
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTraceError("This is no answer of Prometheus.", given=str(error)[:200], where=where,
                            hint="save what /api/v1/query_range returns") from error  # fmt: skip
    if answer.status != "success" or answer.data is None:
        raise BadTraceError("The query has failed.", given=(answer.error or answer.status)[:200], where=where)
    if answer.data.resultType != "matrix":
        raise BadTraceError("The answer holds no ranges.", given=answer.data.resultType[:100], allowed="matrix",
                            where=where, hint="ask /api/v1/query_range, not /api/v1/query")  # fmt: skip
    try:
        # Series by series: all samples together would take ten times the file.
        rows = msgspec.json.decode(answer.data.result, type=list[msgspec.Raw])
        if len(rows) > MOST_SERIES:
            raise BadTraceError("The answer has too many series.", given=len(rows), allowed=f"at most {MOST_SERIES}",
                                where=where)  # fmt: skip
        return tuple(_series(msgspec.json.decode(row, type=_Row), number, where) for number, row in enumerate(rows))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTraceError("The series of the answer cannot be read.", given=str(error)[:200], where=where) from error


def _series(row: _Row, number: int, where: str) -> Series:
    labels = tuple(sorted((name, value) for name, value in row.metric.items() if name != "__name__"))
    texts = [text for _, text in row.values]
    at_s = np.array([each for each, _ in row.values], np.float64)
    far = ~((at_s >= 0) & (at_s < _LATEST_S))
    if far.any():
        raise BadTraceError("A sample has no time.", given=float(at_s[far][0]), where=f"{where}, series {number}",
                            allowed="seconds from 1970 to 2115")  # fmt: skip
    # Milliseconds are what Prometheus keeps.
    time_ns = np.rint(at_s * 1000).astype(np.int64) * 1_000_000
    if _PLAIN.fullmatch("".join(texts)) and "" not in texts:
        try:
            value = np.array([float(text) for text in texts], np.float64)
        except ValueError:
            value = np.array([_number(text, f"{where}, series {number}") for text in texts], np.float64)
    else:
        value = np.array([_number(text, f"{where}, series {number}") for text in texts], np.float64)
    if (np.diff(time_ns) <= 0).any():
        place = int(np.argmax(np.diff(time_ns) <= 0)) + 1
        raise BadTraceError("The times of a series rise.", given=f"{row.values[place][0]} s after "
                            f"{row.values[place - 1][0]} s", where=f"{where}, series {number}")  # fmt: skip
    return Series(row.metric.get("__name__", ""), labels, time_ns, value)


def _number(text: str, where: str) -> float:
    known = _NUMBERS.get(text.lower())
    if known is not None:
        return known
    if len(text) > 400 or not _DECIMAL.fullmatch(text):
        raise BadTraceError("A sample is no number.", given=text[:100], where=where)
    return float(text)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as raw:
            head = raw.read(2)
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if head == b"\x1f\x8b" else raw
            found = bytearray()
            while part := stream.read(1 << 20):
                found += part
                if len(found) > MOST_BYTES:
                    raise BadTraceError("The file is too large.", given=f"more than {MOST_BYTES} bytes",
                                        where=str(path), hint="ask for fewer metrics or a shorter range")  # fmt: skip
    except (OSError, EOFError, zlib.error) as error:
        raise BadTraceError("The file cannot be read.", given=str(error)[:200], where=str(path)) from error
    return bytes(found)


def on_grid(series: Sequence[Series], step_ns: int = 0) -> Grid:
    """Return series on common times, a step apart; what a series does not have there is NaN.

    A sample belongs to the time of the grid that is nearest; of two for one time the later one counts.

    Parameters
    ----------
    series : sequence of Series
    step_ns : int
        Of the grid; by default the most frequent distance of two samples.

    Raises
    ------
    BadTraceError
        Without any two samples, or where the grid would be too large.
    """
    gaps = [np.diff(each.time_ns) for each in series if each.time_ns.size > 1]
    if not gaps:
        raise BadTraceError("No series has two samples.", given=f"{len(series)} series")
    if step_ns <= 0:
        sizes, counts = np.unique(np.concatenate(gaps), return_counts=True)
        step_ns = int(sizes[np.argmax(counts)])
    first = min(int(each.time_ns[0]) for each in series if each.time_ns.size)
    last = max(int(each.time_ns[-1]) for each in series if each.time_ns.size)
    times = (last - first + step_ns // 2) // step_ns + 1
    if times * len(series) > MOST_CELLS:
        raise BadTraceError("The series have too many times in common.", given=f"{len(series)} series x {times} times",
                            allowed=f"at most {MOST_CELLS} together", hint="ask for a shorter range")  # fmt: skip
    value = np.full((len(series), times), np.nan)
    for row, each in zip(value, series, strict=True):
        row[(each.time_ns - first + step_ns // 2) // step_ns] = each.value
    return Grid(first + step_ns * np.arange(times, dtype=np.int64), value)


def increases(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much counters grew since the sample before, after resets from zero.

    Parameters
    ----------
    values : ndarray of float64, shape (..., times)
        Counters; NaN where missing.

    Returns
    -------
    ndarray of float64, shape (..., times)
        NaN for the first sample of a counter, for missing ones, and for the first after a gap, which says nothing of
        one step.
    """
    grown = np.full(values.shape, np.nan)
    if values.shape[-1] > 1:
        step = np.diff(values, axis=-1)
        grown[..., 1:] = np.where(step < 0, values[..., 1:], step)
    return grown


def resets(values: NDArray[np.float64]) -> int:
    """Return how often a counter fell, gaps or not.

    Parameters
    ----------
    values : ndarray of float64, shape (times,)
    """
    known = values[np.isfinite(values)]
    return int((np.diff(known) < 0).sum())


def read_exposition(text: str, *, where: str = "") -> list[Sample]:
    """Return the samples that an exporter shows.

    Parameters
    ----------
    text : str
        In the exposition format.
    where : str
        For messages.

    Raises
    ------
    BadTraceError
        At the first line that is none.
    """
    kinds: dict[str, str] = {}
    found = []
    # Only line feeds end lines: other characters that Python splits at may stand in values of labels.
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.strip(" \t\r")
        if not bare:
            continue
        place = f"{where}, line {number}" if where else f"line {number}"
        if len(line) > MOST_LINE:
            raise BadTraceError("A line of the exporter is too long.", given=f"{len(line)} characters", where=place)
        if bare[0] == "#":
            words = bare.split(None, 3)
            if len(words) == 4 and words[1] == "TYPE":
                kinds[words[2]] = words[3]
            continue
        found.append(_sample(bare, kinds, place))
        if len(found) > MOST_SERIES:
            raise BadTraceError("The exporter shows too many samples.", given=f"more than {MOST_SERIES}", where=where)
    return found


def _sample(line: str, kinds: dict[str, str], where: str) -> Sample:
    name = _NAME.match(line)
    if name is None:
        raise BadTraceError("This is no line of an exporter.", given=line[:100], where=where)
    labels: list[tuple[str, str]] = []
    rest = line[name.end() :].lstrip(" \t")
    if rest.startswith("{"):
        end = _end_of_labels(rest)
        if end < 0:
            raise BadTraceError("Labels have no end.", given=line[:100], where=where)
        labels, rest = _labels(rest[1:end], where), rest[end + 1 :]
    words = rest.split()
    if not 1 <= len(words) <= 2 or (len(words) == 2 and not re.fullmatch(r"[+-]?\d{1,18}", words[1])):
        raise BadTraceError("A line has a value, and perhaps a time in milliseconds.", given=line[:100], where=where)
    base = re.sub(r"_(?:total|bucket|sum|count)$", "", name[0])
    return Sample(name[0], tuple(sorted(labels)), _number(words[0], where), kinds.get(name[0], kinds.get(base, "")))


def _end_of_labels(rest: str) -> int:
    """Return where the closing brace stands, outside of quotes; -1 where there is none."""
    quoted = False
    place = 1
    while place < len(rest):
        letter = rest[place]
        if quoted and letter == "\\":
            place += 1
        elif letter == '"':
            quoted = not quoted
        elif letter == "}" and not quoted:
            return place
        place += 1
    return -1


def _labels(text: str, where: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    place = 0
    while text[place:].strip():
        match = _LABEL.match(text, place)
        if match is None or match[1] in found:
            raise BadTraceError("These are no labels.", given=text[:100], where=where)
        found[match[1]] = _ESCAPED.sub(lambda each: "\n" if each[1] == "n" else each[1], match[2])
        place = match.end()
    return list(found.items())
