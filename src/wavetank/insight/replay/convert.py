"""From what torch recorded of a step to a Chakra trace: calls, kernels, collectives, and who waits for whom.

torch's ``ExecutionTraceObserver`` says which calls there were and what their tensors are, its profiler when each ran.
A call becomes a node; so does the time between two calls of a thread, which a replay must not lose.  The host waits
where it stands still (between two calls, or in one that waits by its meaning) until something ends that runs on its
own: then what follows depends on that, and only the rest is time of the host.

Source: MLCommons Chakra, arXiv 2605.11333 (collect, link, convert); PyTorch's profiler.

Differs from the source:

1. Who waits for a collective or kernel is read from times, because what waits is often no recorded call: a thread that
   does nothing until something ends waits for it, and so does a kernel that begins later than its launch and stream
   explain.  Every node then begins when the last of what it waits for has ended, as recorded.
2. Collectives of a group share a network: what one takes is counted from the end of the one before it.
3. Time before a kernel that nothing explains is a node ``lag`` of its own: launch latency, or what was not recorded.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavetank.errors import BadTraceError
from wavetank.files import read_bytes, unpacked
from wavetank.workloads.chakra import ExecutionTrace, read_trace_file
from wavetank.workloads.chakra_writing import made_node, made_trace
from wavetank.workloads.host_calls import communicated, is_operation
from wavetank.workloads.operations import COLLECTIVES

_MOST_BYTES = 1 << 30
_MOST_US = float(1 << 52)
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime")
# Where the time before a collective of the host is written that nothing explains.
_LAG_STREAMS = 1 << 20
_WAITING = re.compile(
    r"wait_tensor|cudaDeviceSynchronize|cudaStreamSynchronize|cudaEventSynchronize|hipDeviceSynchronize|"
    r"hipStreamSynchronize|_local_scalar_dense|aten::item|c10d::barrier|monitored_barrier"
)
_OWN_COLLECTIVE = re.compile(r"^(?:gloo|mpi):(\w+)")
_NCCL = re.compile(r"nccl|rccl", re.IGNORECASE)
_TENSOR_FIELDS = 6


@dataclass(frozen=True)
class _Event:
    name: str
    thread: int
    begin: int
    end: int
    category: str
    function: int
    details: Mapping[str, Any] = field(hash=False)


@dataclass
class _Node:
    """A node to be written: its own time, and the numbers of those that it waits for."""

    name: str
    kind: str
    begin: int
    duration: int
    after: list[int]
    attributes: dict[str, int | float | bool | str]


def from_pytorch(
    host: str | Path | ExecutionTrace | None,
    device: str | Path | Profile,
    *,
    step: int | str | None = None,
    since_ns: int | None = None,
) -> ExecutionTrace:
    """Return what one rank did in a step, as a Chakra trace that can be replayed.

    Parameters
    ----------
    host : str or Path or ExecutionTrace or None
        What torch's ``ExecutionTraceObserver`` wrote; without it, bytes are those that the profiler knows.
    device : str or Path or Profile
        What its profiler exported of the same process and time, plain or with gzip.
    step : int or str, optional
        Number of the step (``ProfilerStep#N``), or name of the range around it; without it, all that was recorded.
    since_ns : int, optional
        When the job's step began, on the profiler's clock, which ranks of one host share: a rank that begins later
        waits until then.  By default all ranks begin at once.

    Raises
    ------
    BadFileError, BadTraceError
        For a file that cannot be read or is of another kind, a step that is not there once, calls of one thread that
        overlap, and traces of different processes, which share no recorded function.
    """
    trace = read_trace_file(host) if isinstance(host, str | Path) else host
    if trace is not None and trace.form != "nodes":
        raise BadTraceError("Calls are read from a host trace of torch.", given=trace.form, where=trace.where,
                            allowed="what torch's ExecutionTraceObserver writes")  # fmt: skip
    profile = device if isinstance(device, Profile) else read_profile(device)
    events, where = profile.events, profile.where
    begin, end, thread = _span(events, step, where)
    recorded = {
        node.attributes["rf_id"]: node
        for node in (trace.nodes if trace is not None else ())
        if isinstance(node.attributes.get("rf_id"), int)
    }
    inside = [each for each in events if begin <= each.begin < end]
    if trace is not None and not any(
        each.function in recorded and recorded[each.function].name == each.name for each in inside
    ):
        raise BadTraceError(
            "The host trace and the profile are not of one process and time.", given=f"{len(inside)} events",
            allowed="calls that both recorded, with one number and name", where=where,
        )  # fmt: skip
    if since_ns is not None and not begin - 10**12 <= since_ns <= begin:
        raise BadTraceError(
            "The job's step begins with or before that of its ranks.",
            given=since_ns,
            allowed=f"at most {begin}, and not a thousand seconds before",
            where=where,
        )
    begin = begin if since_ns is None else since_ns
    nodes = _nodes(inside, begin, end, thread, _Sizes(recorded), profile.groups)
    return made_trace(
        [
            made_node(i, each.name, each.kind, after=tuple(dict.fromkeys(each.after)), duration_ns=each.duration,
                      attributes=each.attributes)
            for i, each in enumerate(nodes)
        ],
        where=where,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Profile:
    """What torch's profiler exported, read once for any number of steps."""

    where: str
    events: Sequence[_Event] = field(repr=False)
    groups: Sequence[tuple[str, tuple[int, ...]]] = ()


def read_profile(path: str | Path) -> Profile:
    """Return what torch's profiler exported, plain or with gzip.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    BadFileError, BadTraceError
        If it cannot be read, or is no such file.
    """
    path = Path(path)
    content = read_bytes(path, largest_bytes=_MOST_BYTES, what="The profile")
    try:
        if content[:2] == b"\x1f\x8b":
            content = unpacked(content, largest_bytes=_MOST_BYTES)
        whole = json.loads(content)
        listed = whole["traceEvents"]
        found = []
        for each in listed:
            if each.get("ph") != "X" or not isinstance(each.get("name"), str):
                continue
            begin, took = float(each["ts"]), float(each.get("dur", 0))
            if not (abs(begin) < _MOST_US and 0 <= took < _MOST_US):
                raise ValueError(f"event {each['name'][:80]!r} has no time that can be")
            details = each.get("args")
            details = details if isinstance(details, dict) else {}
            number = details.get("Record function id", -1)
            thread = each.get("tid", 0)
            found.append(
                _Event(each["name"], thread if isinstance(thread, int) else hash(thread), round(begin * 1000),
                       round(begin * 1000) + round(took * 1000), str(each.get("cat", "")),
                       number if isinstance(number, int) else -1, details)
            )  # fmt: skip
        job = whole.get("distributedInfo") or {}
        groups = [(str(each["pg_name"]), tuple(map(int, each["ranks"]))) for each in job.get("pg_config") or ()]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
            zlib.error) as problem:  # fmt: skip
        raise BadTraceError("This is no profile that torch exported.", given=str(problem)[:200], where=str(path),
                            allowed="JSON with traceEvents") from None  # fmt: skip
    return Profile(str(path), sorted(found, key=lambda each: (each.begin, -each.end)), groups)


def step_span(device: str | Path | Profile, step: int | str) -> tuple[int, int]:
    """Return when a step begins and ends, ns on the profiler's clock.

    Parameters
    ----------
    device : str or Path
        As of :func:`from_pytorch`.
    step : int or str
        Likewise.

    Raises
    ------
    BadFileError, BadTraceError
        As there.
    """
    profile = device if isinstance(device, Profile) else read_profile(device)
    return _span(profile.events, step, profile.where)[:2]


def _span(events: Sequence[_Event], step: int | str | None, where: str) -> tuple[int, int, int]:
    """Where the step begins and ends, and the thread that runs it."""
    if step is None:
        calls = [each for each in events if is_operation(each.name)]
        if not calls:
            raise BadTraceError("The profile has no call.", where=where, allowed="operations such as aten::mm")
        return min(each.begin for each in calls), max(each.end for each in events), calls[0].thread
    name = f"ProfilerStep#{step}" if isinstance(step, int) else step
    found = [each for each in events if each.name == name]
    if len(found) != 1:
        there = sorted({each.name for each in events if each.name.startswith("ProfilerStep#")})
        raise BadTraceError("The step is not there once.", given=f"{len(found)} ranges {name!r}", where=where,
                            allowed=there[:8] or "a range around the step")  # fmt: skip
    return found[0].begin, found[0].end, found[0].thread


class _Sizes:
    """What the host trace knows of a call: the bytes of its largest tensor."""

    def __init__(self, recorded: Mapping[int, Any]) -> None:
        self._recorded = recorded

    def n_bytes(self, call: _Event) -> int:
        node = self._recorded.get(call.function)
        if node is None or node.name != call.name:
            return -1
        raw = json.loads(node.raw)
        sizes = [size for side in ("inputs", "outputs") for size in _tensors(raw.get(side))]
        return max(sizes, default=-1)


def _tensors(side: Any) -> list[int]:
    """Bytes of the tensors among the values of a node, however deep in lists."""
    values = side.get("values", []) if isinstance(side, dict) else side
    if not isinstance(values, list):
        return []
    if len(values) == _TENSOR_FIELDS and isinstance(values[-1], str) and all(isinstance(v, int) for v in values[:5]):
        return [values[3] * values[4]]
    return [size for each in values for size in _tensors(each)]


@dataclass(frozen=True)
class _Piece:
    """What a thread of the host does from one time to another: a part of a call, or nothing that was recorded."""

    name: str
    begin: int
    end: int
    gap: bool
    waits: bool


def _nodes(
    events: Sequence[_Event],
    begin: int,
    end: int,
    thread: int,
    sizes: _Sizes,
    groups: Sequence[tuple[str, tuple[int, ...]]],
) -> list[_Node]:
    launches = {
        each.details["correlation"]: each
        for each in events
        if each.category in _RUNTIME and isinstance(each.details.get("correlation"), int)
    }
    beside = _beside(events, launches, sizes, groups)
    cuts = _cuts(events, beside)
    waits = _waits(events)
    pieces = {
        of: _pieces(calls, cuts.get(of, ()), waits.get(of, ()), begin, end if of == thread else calls[-1].end)
        for of, calls in sorted(_outermost(events).items(), key=lambda each: each[0] != thread)
    }  # fmt: skip
    nodes: list[_Node] = []
    ended: dict[int, list[tuple[int, int]]] = {}
    for number, (of, those) in enumerate(pieces.items()):
        ended[of] = []
        for each in those:
            after = [len(nodes) - 1] if ended[of] else []
            ended[of].append((each.end, len(nodes)))
            nodes.append(_Node(each.name, "compute", each.begin, each.end - each.begin, after,
                               {"is_cpu_op": True, "tid": number}))  # fmt: skip
    finished = _add_beside(nodes, beside, ended, begin)
    _let_wait(nodes, pieces, ended, finished)
    return nodes


def _outermost(events: Sequence[_Event]) -> dict[int, list[_Event]]:
    """By thread, the calls that are within no other call."""
    found: dict[int, list[_Event]] = {}
    for each in events:
        if each.category in _DEVICE or not is_operation(each.name) or _OWN_COLLECTIVE.match(each.name):
            continue
        there = found.setdefault(each.thread, [])
        if not there or each.begin >= there[-1].end:
            there.append(each)
    return found


def _cuts(events: Sequence[_Event], beside: Sequence[_Beside]) -> dict[int, list[int]]:
    """By thread, the times at which something is asked for, and those at which waiting begins and ends."""
    found: dict[int, list[int]] = {}
    for asked in (each.asked for each in beside if each.asked is not None):
        found.setdefault(asked[0], []).append(asked[1])
    for each in events:
        if _WAITING.search(each.name):
            found.setdefault(each.thread, []).extend((each.begin, each.end))
    return {of: sorted(set(times)) for of, times in found.items()}


def _waits(events: Sequence[_Event]) -> dict[int, list[tuple[int, int]]]:
    """By thread, the spans in which a call waits by its meaning, in order and apart."""
    found: dict[int, list[tuple[int, int]]] = {}
    for each in events:
        if _WAITING.search(each.name):
            there = found.setdefault(each.thread, [])
            if not there or each.begin >= there[-1][1]:
                there.append((each.begin, each.end))
    return found


def _pieces(
    calls: Sequence[_Event], cuts: Sequence[int], waits: Sequence[tuple[int, int]], begin: int, end: int
) -> list[_Piece]:
    """What a thread does from begin to end."""
    found: list[_Piece] = []
    begins = [each[0] for each in waits]

    def add(name: str, start: int, stop: int, gap: bool) -> None:
        inside = cuts[bisect_right(cuts, start) : bisect_left(cuts, stop)]
        for a, b in itertools.pairwise([start, *inside, stop]):
            at = bisect_right(begins, a) - 1
            waiting = at >= 0 and waits[at][0] <= a and b <= waits[at][1]
            found.append(_Piece(name, a, b, gap, waiting))

    at = begin
    for call in calls:
        if call.begin > at:
            add("between", at, call.begin, True)
        if call.end > max(call.begin, at):
            add(call.name, max(call.begin, at), call.end, False)
            at = call.end
    if end > at:
        add("between", at, end, True)
    return found


@dataclass(frozen=True)
class _Beside:
    """A kernel or collective, which runs beside the host."""

    name: str
    kind: str
    begin: int
    end: int
    lane: str
    asked: tuple[int, int] | None
    own: bool
    attributes: Mapping[str, int | float | bool | str] = field(hash=False)


def _beside(
    events: Sequence[_Event],
    launches: Mapping[int, _Event],
    sizes: _Sizes,
    groups: Sequence[tuple[str, tuple[int, ...]]],
) -> list[_Beside]:
    """The kernels and collectives in the order in which they began, with the thread and time that asked for each."""
    asked = sorted((each for each in events if communicated(each.name) in COLLECTIVES), key=lambda each: each.function)
    numbers = [each.function for each in asked]
    name_of_group = groups[0][0] if groups else ""
    found: list[_Beside] = []
    for each in events:
        own = _OWN_COLLECTIVE.match(each.name) is not None
        if not own and each.category not in _DEVICE:
            continue
        attributes: dict[str, int | float | bool | str] = {"is_cpu_op": False}
        if own:
            # torch numbers what it asks of the backend right after the call that asks.
            at = bisect_right(numbers, each.function) - 1
            if at < 0:
                continue
            caller = asked[at]
            attributes |= _collective(communicated(caller.name), sizes.n_bytes(caller), name_of_group)
            by = (caller.thread, min(max(caller.begin + 1, each.begin), caller.end))
            found.append(_Beside(each.name, "collective", each.begin, each.end, f"group {name_of_group}", by, True,
                                 attributes))  # fmt: skip
            continue
        launch = launches.get(each.details.get("correlation", -1))
        stream = each.details.get("stream", 0)
        kind, attributes["stream"] = "compute", stream if isinstance(stream, int) else 0
        if _NCCL.search(each.name) and isinstance(each.details.get("Collective name"), str):
            kind, group = "collective", str(each.details.get("Process Group Name", name_of_group))
            attributes |= _collective(_named(each.details["Collective name"]), _moved(each.details), group)
        by_launch = (launch.thread, launch.end) if launch else None
        found.append(_Beside(each.name, kind, each.begin, each.end, f"stream {stream}", by_launch, False, attributes))
    return found


def _add_beside(
    nodes: list[_Node], beside: Sequence[_Beside], ended: Mapping[int, Sequence[tuple[int, int]]], start: int
) -> list[tuple[int, int, bool]]:
    """Add kernels and collectives; return when each ends, its node, and whether it is a collective of the host."""
    last: dict[str, tuple[int, int]] = {}
    finished: list[tuple[int, int, bool]] = []
    lanes: dict[str, int] = {}
    ends: dict[str, list[tuple[int, int]]] = {}
    for each in beside:
        causes = []
        if each.asked is not None:
            by = _last_ended(ended.get(each.asked[0], ()), min(each.asked[1], each.begin))
            causes += [by] if by is not None else []
        before = last.get(each.lane)
        # Those of one lane share a network or a stream: a later one is served when the one before it is.
        begin = max(each.begin, before[0]) if before else each.begin
        causes += [before] if before else []
        since = max((cause[0] for cause in causes), default=start)
        if not each.own:
            # What ended last on another stream before it began is what it may have waited for.
            others = [
                found for lane, those in ends.items() if lane != each.lane and (found := _last_ended(those, begin))
            ]
            other = max(others, default=(since, -1))
            if other[0] > since:
                causes.append(other)
                since = other[0]
        after = [node for _, node in causes]
        lane = lanes.setdefault(each.lane, len(lanes))
        if begin > since:
            stream = each.attributes.get("stream", _LAG_STREAMS + lane)
            nodes.append(_Node("lag", "metadata", since, begin - since, after, {"is_cpu_op": False, "stream": stream}))
            after = [len(nodes) - 1]
        end = max(each.end, begin + 1)
        nodes.append(_Node(each.name, each.kind, begin, end - begin, after, dict(each.attributes)))
        finished.append((end, len(nodes) - 1, each.own))
        insort(ends.setdefault(each.lane, []), (end, len(nodes) - 1))
        if not before or end >= before[0]:
            last[each.lane] = (end, len(nodes) - 1)
    return finished


def _collective(name: str, n_bytes: int, group: str) -> dict[str, int | float | bool | str]:
    found: dict[str, int | float | bool | str] = {"comm_type": COLLECTIVES.index(name)}
    if n_bytes >= 0:
        found["comm_size"] = n_bytes
    if group:
        found["pg_name"] = group
    return found


def _named(given: str) -> str:
    plain = given.lower().replace("_", "").replace("-", "")
    longest = sorted(COLLECTIVES, key=len, reverse=True)
    return next((each for each in longest if each.replace("-", "") in plain), COLLECTIVES[0])


def _moved(details: Mapping[str, Any]) -> int:
    """Bytes of a collective of NCCL, by its fields in the profile."""
    widths = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Long": 8, "Int": 4, "Byte": 1, "Char": 1, "Bool": 1}
    count = max(
        (details.get(key) for key in ("In msg nelems", "Out msg nelems") if isinstance(details.get(key), int)),
        default=-1,
    )  # type: ignore[type-var]
    width = widths.get(str(details.get("dtype")), 0)
    return int(count) * width if count is not None and count >= 0 and width else -1


def _last_ended(ended: Sequence[tuple[int, int]], time: int) -> tuple[int, int] | None:
    """When the last piece of a thread ended that did so until a time, and its node; None for none."""
    at = bisect_right(ended, time, key=lambda each: each[0]) - 1
    return ended[at] if at >= 0 else None


def _let_wait(
    nodes: list[_Node],
    pieces: Mapping[int, Sequence[_Piece]],
    ended: Mapping[int, Sequence[tuple[int, int]]],
    finished: Sequence[tuple[int, int, bool]],
) -> None:
    """Where a thread stands still until something else ends, let it wait for that and drop the time.

    Between calls it may wait for collectives of the host and for calls of other threads, in a call that waits by its
    meaning for all that runs beside it.
    """
    everything = sorted((end, node) for end, node, _ in finished)
    collectives = sorted((end, node) for end, node, own in finished if own)
    for of, those in pieces.items():
        calls = sorted(
            (end, node)
            for other, ends in ended.items()
            if other != of
            for (end, node), piece in zip(ends, pieces[other], strict=True)
            if not piece.gap
        )
        for (_, number), piece in zip(ended[of], those, strict=True):
            if not (piece.gap or piece.waits):
                continue
            lists = (everything,) if piece.waits else (collectives, calls)
            found = [each[at] for each in lists if (at := bisect_right(each, (piece.end, len(nodes))) - 1) >= 0]
            end, node = max(found, default=(piece.begin, -1))
            if end > piece.begin:
                nodes[number].after.append(node)
                nodes[number].duration = piece.end - end
