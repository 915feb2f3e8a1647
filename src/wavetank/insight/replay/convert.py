"""From what torch recorded of a step to a Chakra trace: calls, kernels, collectives, and who waits for whom.

torch's ``ExecutionTraceObserver`` says which calls there were and what their tensors are, its profiler when each ran.
A call becomes a node; so does the time between two calls of a thread, which a replay must not lose.  The host waits
where it stands still (between two calls, or in one that waits by its meaning) until something ends that runs on its
own: then what follows depends on that, and only the rest is time of the host.

Source: MLCommons Chakra, arXiv 2605.11333 (collect, link, convert); PyTorch's profiler.

Differs from the source:

1. Who waits for a collective or kernel is read from times, because what waits is often no recorded call.
2. Collectives of a group share a network: what one takes is counted from the end of the one before it.
3. Kernels wait for their launch and for the kernel before them on their stream.  What one stream waits for on another
   (``cudaStreamWaitEvent``) is not read, so that kernels that wait only for that start too soon.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavetank.errors import BadTraceError
from wavetank.files import read_bytes
from wavetank.workloads.chakra import ExecutionTrace, read_trace_file
from wavetank.workloads.chakra_writing import made_node, made_trace
from wavetank.workloads.host_calls import communicated, is_operation
from wavetank.workloads.operations import COLLECTIVES

_MOST_BYTES = 1 << 30
_MOST_US = float(1 << 52)
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_WAITING = re.compile(
    r"wait_tensor|cudaDeviceSynchronize|cudaStreamSynchronize|cudaEventSynchronize|hipDeviceSynchronize|"
    r"hipStreamSynchronize|_local_scalar_dense|aten::item|c10d::barrier|monitored_barrier"
)
_OWN_COLLECTIVE = re.compile(r"^(?:gloo|mpi):(\w+)")
_NCCL = re.compile(r"nccl|rccl", re.IGNORECASE)
# A step's calls and the threads beside it are few; what ends a step later than this is of another step.
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
    host: str | Path | ExecutionTrace,
    device: str | Path,
    *,
    step: int | str | None = None,
    since_ns: int | None = None,
) -> ExecutionTrace:
    """Return what one rank did in a step, as a Chakra trace that can be replayed.

    Parameters
    ----------
    host : str or Path or ExecutionTrace
        What torch's ``ExecutionTraceObserver`` wrote.
    device : str or Path
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
    trace = host if isinstance(host, ExecutionTrace) else read_trace_file(host)
    if trace.form != "nodes":
        raise BadTraceError("Calls are read from a host trace of torch.", given=trace.form, where=trace.where,
                            allowed="what torch's ExecutionTraceObserver writes")  # fmt: skip
    events, groups = _read(Path(device))
    begin, end, thread = _span(events, step, str(device))
    recorded = {node.attributes["rf_id"]: node for node in trace.nodes if isinstance(node.attributes.get("rf_id"), int)}
    inside = [each for each in events if begin <= each.begin < end]
    if not any(each.function in recorded and recorded[each.function].name == each.name for each in inside):
        raise BadTraceError(
            "The host trace and the profile are not of one process and time.", given=f"{len(inside)} events",
            allowed="calls that both recorded, with one number and name", where=str(device),
        )  # fmt: skip
    if since_ns is not None and not begin - 10**12 <= since_ns <= begin:
        raise BadTraceError(
            "The job's step begins with or before that of its ranks.",
            given=since_ns,
            allowed=f"at most {begin}, and not a thousand seconds before",
            where=str(device),
        )
    begin = begin if since_ns is None else since_ns
    nodes = _nodes(inside, begin, end, thread, _Sizes(recorded), groups)
    return made_trace(
        [
            made_node(i, each.name, each.kind, after=tuple(dict.fromkeys(each.after)), duration_ns=each.duration,
                      attributes=each.attributes)
            for i, each in enumerate(nodes)
        ],
        where=str(device),
    )  # fmt: skip


def _read(path: Path) -> tuple[list[_Event], list[tuple[str, tuple[int, ...]]]]:
    """The complete events of a profile, in nanoseconds, and its process groups."""
    import gzip
    import zlib

    content = read_bytes(path, largest_bytes=_MOST_BYTES, what="The profile")
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
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
    return sorted(found, key=lambda each: (each.begin, -each.end)), groups


def step_span(device: str | Path, step: int | str) -> tuple[int, int]:
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
    return _span(_read(Path(device))[0], step, str(device))[:2]


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


def _nodes(
    events: Sequence[_Event], begin: int, end: int, thread: int, sizes: _Sizes,
    groups: Sequence[tuple[str, tuple[int, ...]]],
) -> list[_Node]:  # fmt: skip
    calls = _outermost(events)
    waits = sorted((each for each in events if _WAITING.search(each.name)), key=lambda each: each.begin)
    nodes: list[_Node] = []
    issued: dict[int, list[tuple[int, int, int]]] = {}
    # Call by call and thread by thread: what the host does.
    for number, (of, those) in enumerate(sorted(calls.items(), key=lambda each: each[0] != thread)):
        issued[of] = _host(nodes, those, begin if of == thread else those[0].begin, end, number, of == thread)
    ends = _beside(nodes, events, issued, sizes, groups)
    _let_wait(nodes, ends, waits)
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


def _host(
    nodes: list[_Node], calls: Sequence[_Event], begin: int, end: int, number: int, to_end: bool
) -> list[tuple[int, int, int]]:  # fmt: skip
    """Add the calls of a thread and what lies between; return begin, end and node of each call."""
    at, issued = begin, []

    def add(name: str, start: int, stop: int) -> None:
        after = [len(nodes) - 1] if nodes and nodes[-1].attributes.get("tid") == number else []
        nodes.append(_Node(name, "compute", start, stop - start, after, {"is_cpu_op": True, "tid": number}))

    for call in calls:
        if call.begin > at:
            add("between", at, call.begin)
        issued.append((call.begin, call.end, len(nodes)))
        add(call.name, max(call.begin, at), call.end)
        at = call.end
    if to_end and end > at:
        add("between", at, end)
    return issued


def _beside(
    nodes: list[_Node], events: Sequence[_Event], issued: Mapping[int, Sequence[tuple[int, int, int]]],
    sizes: _Sizes, groups: Sequence[tuple[str, tuple[int, ...]]],
) -> list[tuple[int, int]]:  # fmt: skip
    """Add collectives and kernels; return when each ends, with its node."""
    asked = sorted((each for each in events if communicated(each.name) in COLLECTIVES), key=lambda each: each.function)
    launches = {
        each.details["correlation"]: each
        for each in events
        if each.category in ("cuda_runtime", "cuda_driver", "hip_runtime") and "correlation" in each.details
    }
    found: list[tuple[int, int]] = []
    last: dict[str, tuple[int, int]] = {}
    name_of_group = groups[0][0] if groups else ""
    numbers = [each.function for each in asked]
    for each in events:
        own = _OWN_COLLECTIVE.match(each.name)
        if not own and each.category not in _DEVICE:
            continue
        attributes: dict[str, int | float | bool | str] = {"is_cpu_op": False}
        if own:
            # torch numbers what it asks of the backend right after the call that asks.
            at = bisect_right(numbers, each.function) - 1
            if at < 0:
                continue
            caller = asked[at]
            kind, lane = "collective", f"group {name_of_group}"
            attributes |= _collective(communicated(caller.name), sizes.n_bytes(caller), name_of_group)
            by = _node_at(issued.get(caller.thread, ()), caller.begin)
        else:
            launch = launches.get(each.details.get("correlation", -1))
            by = _node_at(issued.get(launch.thread, ()), launch.begin) if launch else -1
            kind, lane = "compute", f"stream {each.details.get('stream', 0)}"
            stream = each.details.get("stream", 0)
            attributes["stream"] = stream if isinstance(stream, int) else 0
            if _NCCL.search(each.name) and isinstance(each.details.get("Collective name"), str):
                kind, group = "collective", str(each.details.get("Process Group Name", name_of_group))
                attributes |= _collective(_named(each.details["Collective name"]), _moved(each.details), group)
        before = last.get(lane)
        # Those of one lane share a network or a stream: a later one is served when the one before it is.
        start = max(each.begin, before[0]) if before else each.begin
        after = [node for node in (by, before[1] if before else -1) if node >= 0]
        nodes.append(_Node(each.name, kind, each.begin, max(each.end - start, 1), after, attributes))
        found.append((each.end, len(nodes) - 1))
        if not before or each.end >= before[0]:
            last[lane] = (each.end, len(nodes) - 1)
    return found


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


def _node_at(issued: Sequence[tuple[int, int, int]], time: int) -> int:
    """The node of the call that runs at a time, or the last before it; -1 for none."""
    at = bisect_right(issued, time, key=lambda each: each[0]) - 1
    return issued[at][2] if at >= 0 else -1


def _let_wait(nodes: list[_Node], ends: Sequence[tuple[int, int]], waits: Sequence[_Event]) -> None:
    """Where the host stands still until something beside it ends, let it wait for that and drop the time."""
    ordered = sorted(ends)
    begins = [each.begin for each in waits]
    awaited: set[int] = set()
    for number, node in enumerate(nodes):
        if "tid" not in node.attributes:
            continue
        stop = node.begin + node.duration
        at = bisect_right(begins, stop) - 1
        waiting = node.name == "between" or (at >= 0 and waits[at].end > node.begin)
        if not waiting:
            continue
        last = bisect_right(ordered, (stop, len(nodes))) - 1
        # What ended while it stood still and was asked for before.
        while last >= 0 and ordered[last][0] > node.begin:
            end, beside = ordered[last]
            if beside not in awaited and _asked_before(nodes, beside, number):
                node.after.append(beside)
                node.duration = stop - end
                awaited.add(beside)
                break
            last -= 1


def _asked_before(nodes: Sequence[_Node], beside: int, host: int) -> bool:
    """Whether a collective or kernel was asked for by an earlier call, so that waiting for it is no circle."""
    seen, ahead = set(), [beside]
    while ahead:
        at = ahead.pop()
        if at in seen:
            continue
        seen.add(at)
        if "tid" in nodes[at].attributes:
            if nodes[at].attributes["tid"] == nodes[host].attributes["tid"] and at >= host:
                return False
            continue
        ahead += nodes[at].after
    return True
