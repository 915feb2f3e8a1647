"""Traces of PyTorch's profiler (Kineto, Chrome's JSON), read as a stream into arrays of whole nanoseconds.

A compiled scanner finds where events begin and end, so that a file is never in memory as a whole; events are decoded a
few megabytes at a time.  What is no event that can be used is counted by reason and left out.

Source: the Trace Event Format (Chrome) and the fields that libkineto writes: ``ts`` and ``dur`` are microseconds, with
three decimals since its traces have ``baseTimeNanoseconds``.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadTraceError
from wavetank.sim.compiled import compiled

KERNEL, COPY, FILL, CALL, RUNTIME, MARK, OTHER = range(7)
"""What an event is: a kernel, a copy, a memset, an operator of the host, a call of the runtime, a mark, other."""

_CATEGORIES = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": FILL, "memset": FILL, "cpu_op": CALL,
    "operator": CALL, "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "hip_runtime": RUNTIME, "runtime": RUNTIME,
    "user_annotation": MARK, "Kernel": KERNEL, "Memcpy": COPY, "Memset": FILL, "Operator": CALL, "Runtime": RUNTIME,
}  # fmt: skip
_COMMUNICATION = re.compile(
    r"nccl|rccl|mscclpp|msccl|nvshmem|cross_device_reduce|one_?shot_all_?reduce|two_?shot_all_?reduce|multimem_all|deep_ep",
    re.IGNORECASE,
)
_STEP = re.compile(r"ProfilerStep#([0-9]{1,18})")
# So little that a chunk's events are still in the cache when they become arrays.
_CHUNK_BYTES = 1 << 19
_LONGEST_EVENT_BYTES = 64 << 20
_LONGEST_HEAD_BYTES = 256 << 20
# Below this a float of microseconds is exact to half a nanosecond.
_EXACT_US = float(1 << 43)
_LATEST_US = float(1 << 52)
_MOST_BYTES = 1 << 62
_NO_NUMBER = re.compile(rb":\s*[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)


_Count = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


# Events hold no cycles: the collector need not look at some hundred thousand of them again and again.
class _Details(msgspec.Struct, gc=False):
    stream: int | str | None = None
    correlation: _Count | None = None
    bytes: _Count | float | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: _Details | None = None


class _ExactEvent(_Event, gc=False):
    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


class _KernelArgs(msgspec.Struct, gc=False):
    warps: Any = msgspec.field(default=None, name="warps per SM")
    collective: Any = msgspec.field(default=None, name="Collective name")
    sent: Any = msgspec.field(default=None, name="In msg nelems")
    got: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    ranks: Any = msgspec.field(default=None, name="Group size")


class _Kernel(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    dur: int | float = 0
    args: _KernelArgs | None = None


_KERNEL = msgspec.json.Decoder(_Kernel)
_MOST_ELEMENTS = 1 << 50
# Bytes of an element by the names that torch has for types.
_WIDTHS = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
_EVENTS = msgspec.json.Decoder(list[_Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[_ExactEvent])
_ONE = msgspec.json.Decoder(_Event)
_EXACT_ONE = msgspec.json.Decoder(_ExactEvent)
_NOTHING = _Details()


@dataclass(frozen=True, kw_only=True)
class KinetoTrace:
    """The complete events of one process, in the order of the file.

    Attributes
    ----------
    path : Path
    rank, world : int or None
        Of the process, and how many; None where the file has none.
    start_ns, end_ns : numpy.ndarray of int64, shape (n,)
        In the file's own clock.
    kind : numpy.ndarray of uint8, shape (n,)
        :data:`KERNEL` and the others.
    name : numpy.ndarray of int32, shape (n,)
        Index into ``names``.
    stream : numpy.ndarray of int64, shape (n,)
        Of the device; -1 where there is none.
    correlation : numpy.ndarray of int64, shape (n,)
        The same of a call of the runtime and of what it started; -1 where there is none.
    bytes_moved : numpy.ndarray of int64, shape (n,)
        By copies and memsets; -1 where the file does not say.
    communicates : numpy.ndarray of bool, shape (n,)
        Whether it is a kernel of a collective or of a message between devices, by its name and fields.
    names : tuple of str
    facts : mapping of str to object
        The file's own head: ``distributedInfo``, ``deviceProperties`` and the like.
    left_out : mapping of str to int
        Events that could not be used, by reason.
    """

    path: Path
    rank: int | None
    world: int | None
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    bytes_moved: NDArray[np.int64]
    communicates: NDArray[np.bool_]
    names: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """The marked steps as (number, start, end) in nanoseconds, in the order of time."""
        found: dict[int, tuple[int, int]] = {}
        numbers = {i: int(match[1]) for i, each in enumerate(self.names) if (match := _STEP.fullmatch(each))}
        for at in np.flatnonzero((self.kind == MARK) & np.isin(self.name, list(numbers))):
            begin, end = int(self.start_ns[at]), int(self.end_ns[at])
            number = numbers[int(self.name[at])]
            first, last = found.get(number, (begin, end))
            found[number] = (min(first, begin), max(last, end))
        return sorted(((number, *span) for number, span in found.items()), key=lambda step: step[1])


@compiled
def _scan(data, state, starts, ends):  # type: ignore[no-untyped-def]
    """Find events in bytes: return how many, and how many bytes were looked at.

    ``state``: depth, in a string, after a backslash, depth of the list of events (0: not yet, -1: over), letters of the
    key's name that agreed so far (-1: another text), whether that key came last, where the list begins and ends in
    these bytes (-1: not here).
    """
    key = b"traceEvents"
    depth, text, escaped, inside, agreed, came = state[0], state[1], state[2], state[3], state[4], state[5]
    state[6] = state[7] = -1
    found = 0
    begin = -1
    size = data.size
    at = 0
    while at < size:
        byte = data[at]
        if text:
            if escaped:
                escaped = 0
                agreed = -1
            elif byte == 92:
                escaped = 1
                agreed = -1
            elif byte == 34:
                text = 0
                came = 1 if agreed == 11 and depth == 1 else 0
            elif depth == 1:
                agreed = agreed + 1 if 0 <= agreed < 11 and key[agreed] == byte else -1
        elif byte == 34:
            text = 1
            agreed = 0
        elif byte == 123 or byte == 91:
            if inside > 0 and depth == inside and byte == 123:
                if found == starts.size:
                    break
                begin = at
            if byte == 91 and inside == 0 and ((depth == 1 and came == 1) or depth == 0):
                inside = depth + 1
                state[6] = at + 1
            depth += 1
            came = 0
        elif byte == 125 or byte == 93:
            depth -= 1
            came = 0
            if inside > 0 and depth == inside and begin >= 0:
                starts[found] = begin
                ends[found] = at + 1
                found += 1
                begin = -1
            elif inside > 0 and depth < inside:
                inside = -1
                state[7] = at
            if depth < 0:
                break
        elif byte == 44:
            came = 0
        at += 1
    state[0], state[1], state[2], state[3], state[4], state[5] = depth, text, escaped, inside, agreed, came
    return found, at


def read_kineto(path: Path) -> KinetoTrace:
    """Read a trace of PyTorch's profiler, plain or with gzip.

    Parameters
    ----------
    path : Path

    Returns
    -------
    KinetoTrace

    Raises
    ------
    BadTraceError
        If it cannot be read, is truncated or damaged, or holds no list of events.

    Notes
    -----
    Memory is that of the arrays, about 60 bytes an event, and a few chunks of the file.
    """
    reader = _Reader(path)
    reader.run()
    return reader.trace()


class KernelDetail(NamedTuple):
    """What the profiler wrote of a kernel beside its time; None where it did not.

    Parameters
    ----------
    name : str
    took_ns : int
    warps_per_unit : float or None
        Of the whole launch, over the device's multiprocessors.
    collective : str or None
        As the library that communicates names it.
    n_bytes : int or None
        Of the larger side of a collective on one rank.
    ranks : int or None
        Of its group.
    """

    name: str
    took_ns: int
    warps_per_unit: float | None
    collective: str | None
    n_bytes: int | None
    ranks: int | None


def read_kernel_details(path: Path) -> tuple[KernelDetail, ...]:
    """Return what a trace says of its kernels beside their times, in the order of the file.

    It reads the file again, so that readers of times alone need not pay for it.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BadTraceError
        As :func:`read_kineto`.
    """
    reader = _KernelReader(path)
    reader.run()
    return tuple(reader.found)


def looks_like_kineto(head: bytes) -> bool:
    """Return whether the first bytes of a file, unpacked, may begin a trace of the profiler.

    Parameters
    ----------
    head : bytes
        Some kilobytes.
    """
    begin = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return begin.startswith((b"{", b"[")) and any(
        key in head for key in (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"', b'"ph"')
    )


class _Reader:
    """What was read so far of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = bytearray()
        self.names: dict[str, int] = {}
        self.talks: list[bool] = []
        self.parts: list[tuple[NDArray[Any], ...]] = []
        self.left_out: Counter[str] = Counter()
        # A scanner's state, and the place of each event in a chunk: an event has two bytes at least.
        self.state = np.zeros(8, np.int64)
        self.spans = np.empty((2, _CHUNK_BYTES // 2), np.int64)

    def run(self) -> None:
        """Read the file, unpacked where it is packed."""
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                self.read(gzip.GzipFile(fileobj=raw) if packed else raw)
        except (OSError, EOFError, zlib.error) as error:
            raise self._bad("The trace cannot be read.", str(error) or type(error).__name__) from error

    def read(self, file: IO[bytes] | gzip.GzipFile) -> None:
        """Read a whole file, a chunk at a time."""
        rest = b""
        before = self.state.copy()
        # An event that goes on and on is not scanned from its begin for every chunk: chunks grow with it.
        while chunk := file.read(max(_CHUNK_BYTES, len(rest))):
            data = rest + chunk
            rest, before = self._take(data, before)
        if self.state[0] != 0 or self.state[1]:
            raise self._bad("The trace ends in the middle.")
        if self.state[3] == 0:
            raise self._bad("The file holds no list of events: it is no trace of a profiler.")

    def _take(self, data: bytes, before: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
        """Decode the events in some bytes; return the bytes of one that is not complete, and the state before it."""
        self.state[:] = before
        listed = self.state[3] > 0
        if self.spans.shape[1] <= len(data) // 2:
            self.spans = np.empty((2, len(data) // 2 + 1), np.int64)
        starts, ends = self.spans
        found, seen = _scan(np.frombuffer(data, np.uint8), self.state, starts, ends)
        if self.state[0] < 0 or seen < len(data):
            raise self._bad("A bracket is closed that was not opened.")
        begins, over = int(self.state[6]), int(self.state[7])
        if begins >= 0:
            self._keep(data[:begins])
        if not listed and begins < 0:
            self._keep(data)
            return b"", self.state.copy()
        if found:
            self._decode(data, starts[:found], ends[:found])
        if over >= 0:
            # What follows the list belongs to the head.
            self._keep(data[over:])
            return b"", self.state.copy()
        tail = data[int(ends[found - 1]) if found else max(begins, 0) :]
        if len(tail) > _LONGEST_EVENT_BYTES:
            raise self._bad("One event is longer than any that a profiler writes.", f"{len(tail)} bytes")
        # Scanned again with what follows, from the state right behind the last whole event.
        again = self.state.copy()
        again[0], again[1], again[2], again[4], again[5] = self.state[3], 0, 0, -1, 0
        return tail, again

    def _keep(self, data: bytes) -> None:
        self.head += data
        if len(self.head) > _LONGEST_HEAD_BYTES:
            raise self._bad("There is too much outside the list of events.", f"{len(self.head)} bytes")

    def _decode(self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        text = b"[" + data[int(starts[0]) : int(ends[-1])] + b"]"
        try:
            events = _EVENTS.decode(text)
            if any(map(_is_rounded, events)):
                events = _EXACT_EVENTS.decode(text)  # type: ignore[assignment]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events = list(self._one_by_one(data, starts, ends))
        self._add(events)

    def _one_by_one(self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[_Event]:
        for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
            text = data[begin:end]
            try:
                yield _one(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                try:
                    # Old profilers wrote nan and inf where a figure was missing.
                    yield _one(_NO_NUMBER.sub(b":null", text))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    self.left_out["not readable as an event"] += 1

    def _add(self, events: list[_Event]) -> None:
        complete = [each for each in events if each.ph == "X"]
        usable = [each for each in complete if each.name is not None and each.ts is not None]
        self._leave_out("without a name or a time", len(complete) - len(usable))
        begin_us, begin_ns = _split([each.ts for each in usable])
        took_us, took_ns = _split([each.dur or 0 for each in usable])
        good = (np.abs(begin_us) < _LATEST_US) & (took_us >= 0) & (took_us < _LATEST_US)
        self._leave_out("with a time or a duration out of range", int((~good).sum()))
        names = self.names
        of_name = np.array([names.setdefault(each.name or "", len(names)) for each in usable], np.int64)
        self.talks += [bool(_COMMUNICATION.search(each)) for each in list(names)[len(self.talks) :]]
        kind = np.array([_CATEGORIES.get(each.cat or "", OTHER) for each in usable], np.int64)
        details = [each.args or _NOTHING for each in usable]
        streams = [each.stream for each in details]
        collectives = [each.collective for each in details]
        talks = np.array(self.talks, bool)[of_name] | np.array([each is not None for each in collectives], bool)
        talks &= kind == KERNEL
        columns = (
            np.where(good, begin_us, 0).astype(np.int64) * 1000 + begin_ns,
            np.where(good, took_us, 0).astype(np.int64) * 1000 + took_ns,
            kind,
            of_name,
            np.array([each if type(each) is int and abs(each) < _MOST_BYTES else -1 for each in streams], np.int64),
            np.array([-1 if each.correlation is None else each.correlation for each in details], np.int64),
            np.array([-1 if each.bytes is None else _count(each.bytes) for each in details], np.int64),
            talks,
        )
        self.parts.append(tuple(column[good] for column in columns))

    def _leave_out(self, why: str, count: int) -> None:
        if count:
            self.left_out[why] += count

    def trace(self) -> KinetoTrace:
        """Return what was read as arrays."""
        try:
            listed = self.head.lstrip(b"\xef\xbb\xbf \t\r\n")
            facts = msgspec.json.decode(_NO_NUMBER.sub(b":null", bytes(listed))) if listed.startswith(b"{") else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._bad("What stands outside the list of events is no JSON.", str(error)) from error
        facts.pop("traceEvents", None)
        columns = [np.concatenate(each) for each in zip(*self.parts, strict=True)] if self.parts else [
            np.zeros(0, np.int64) for _ in range(8)
        ]  # fmt: skip
        start, took, kind, name, stream, correlation, moved, talks = columns
        job = facts.get("distributedInfo")
        job = job if isinstance(job, dict) else {}
        return KinetoTrace(
            path=self.path, rank=_number(job.get("rank")), world=_number(job.get("world_size")), start_ns=start,
            end_ns=start + took, kind=kind.astype(np.uint8), name=name.astype(np.int32), stream=stream,
            correlation=correlation, bytes_moved=moved, communicates=talks.astype(bool),
            names=tuple(self.names), facts=facts, left_out=dict(self.left_out),
        )  # fmt: skip

    def _bad(self, problem: str, given: str = "") -> BadTraceError:
        return BadTraceError(problem, given=given or None, where=str(self.path))


class _KernelReader(_Reader):
    """What was read so far of kernels alone."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.found: list[KernelDetail] = []

    def _decode(self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
            text = data[begin:end]
            if b"ernel" not in text:
                continue
            try:
                each = _KERNEL.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                # Such an event is no kernel with a time for those who read times, either, or has odd details.
                continue
            if each.ph == "X" and _CATEGORIES.get(each.cat or "") == KERNEL and 0 <= each.dur < _LATEST_US:
                self.found.append(_detail(each))


def _detail(event: _Kernel) -> KernelDetail:
    about = event.args or _KernelArgs()
    sides = [each for each in (about.sent, about.got) if type(each) is int and 0 <= each < _MOST_ELEMENTS]
    width = _WIDTHS.get(about.dtype) if isinstance(about.dtype, str) else None
    warps = about.warps
    return KernelDetail(
        name=event.name or "", took_ns=round(event.dur * 1000),
        warps_per_unit=float(warps) if type(warps) in (int, float) and 0 <= warps < _LATEST_US else None,
        collective=about.collective if isinstance(about.collective, str) else None,
        n_bytes=max(sides) * width if sides and width else None,
        ranks=about.ranks if type(about.ranks) is int and 0 < about.ranks < _MOST_ELEMENTS else None,
    )  # fmt: skip


def _is_rounded(event: _Event) -> bool:
    """Return whether the event's time is a float that has lost nanoseconds."""
    return type(event.ts) is float and abs(event.ts) >= _EXACT_US


def _one(text: bytes) -> _Event:
    found = _ONE.decode(text)
    return _EXACT_ONE.decode(text) if _is_rounded(found) else found


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _count(value: float) -> int:
    return int(value) if 0 <= value < _MOST_BYTES else -1


def _split(times_us: list[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return whole microseconds and the nanoseconds beside them: a product by 1,000 would round twice."""
    if Decimal in set(map(type, times_us)):
        inside = [each if abs(each) < _LATEST_US else int(_LATEST_US) for each in times_us]
        whole = [int(each // 1) for each in inside]
        rest = [round((each - at) * 1000) for each, at in zip(inside, whole, strict=True)]
        return np.array(whole, np.float64), np.array(rest, np.float64).clip(0, 1000).astype(np.int64)
    try:
        found = np.array(times_us, np.float64)
    except OverflowError:
        # Whole numbers of hundreds of digits are out of range, and no floats.
        found = np.array([min(max(each, -_LATEST_US), _LATEST_US) for each in times_us], np.float64)
    floor = np.floor(found)
    return floor, np.rint((found - floor) * 1000).astype(np.int64)
