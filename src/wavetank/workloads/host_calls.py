"""What torch's observers recorded of a step: the calls of one process in their order, and when each ran.

A call is an operation that no other operation has called.  Autograd's own nodes, ranges of the user and modules are
none: what they call is.  Both observers number what they record alike; steps are matched by the order of their calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from wavetank.errors import BadTraceError
from wavetank.workloads.chakra import ExecutionTrace

# Part of the name of a call of torch's process groups to what is communicated.
_COMMUNICATED = (
    ("allreduce", "all-reduce"), ("allgather", "all-gather"), ("reduce_scatter", "reduce-scatter"),
    ("c10d::send", "send"), ("c10d::recv", "receive"),
)  # fmt: skip
_TENSOR_FIELDS = 6


def is_operation(name: str) -> bool:
    """Return whether a name is that of an operation, not of a range, a module or a node of autograd.

    Parameters
    ----------
    name : str
    """
    space, colons, _ = name.partition("::")
    return bool(colons) and " " not in name and space.islower() and space not in ("autograd", "torch")


def communicated(name: str) -> str:
    """Return which collective or message a call of a process group is; empty for none.

    Parameters
    ----------
    name : str
    """
    return next((kind for part, kind in _COMMUNICATED if name.startswith("c10d::") and part in name), "")


class Span(NamedTuple):
    """Something that ran on a thread.

    Parameters
    ----------
    number : int
        Of the recorded function, as the observer of execution traces has it, too; -1 where it is not known.
    name : str
    thread : int
    begin, end : float
        On the profiler's clock, us.
    """

    number: int
    name: str
    thread: int
    begin: float
    end: float


def spans_in(text: str) -> list[Span]:
    """Return the spans of a trace that torch's profiler exported.

    Parameters
    ----------
    text : str
        JSON with a list ``traceEvents``.
    """
    return [
        Span(each.get("args", {}).get("Record function id", -1), each["name"], each["tid"], each["ts"],
             each["ts"] + each["dur"])
        for each in json.loads(text)["traceEvents"]
        if each.get("ph") == "X"
    ]  # fmt: skip


def calls_of(trace: ExecutionTrace, events: Iterable[Span], mark: str) -> list[dict[str, Any]]:
    """Return the calls of a step that the observer of execution traces and the profiler watched together.

    The profiler says what a call is and what happens within it, the observer what its tensors are.

    Parameters
    ----------
    trace : ExecutionTrace
        Of the form ``nodes``.
    events : iterable of Span
        Of the profiler.
    mark : str
        Name of the range around the step.

    Returns
    -------
    list of dict
        ``name``; ``kind``, what is communicated, or empty; ``n_bytes`` of it; ``touches``, the storages of its
        arguments and results; ``writes``, those into which it communicates.

    Raises
    ------
    BadTraceError
        For a trace of another form, a step that is not marked once, or one without operations.
    """
    if trace.form != "nodes":
        raise BadTraceError("Calls are read from a host trace of torch.", given=trace.form, where=trace.where)
    steps = _steps(events, mark)
    if len(steps) != 1 or not steps[0][1]:
        raise BadTraceError("The record holds no step with operations.", given=f"{len(steps)} steps", allowed="one",
                            where=trace.where)  # fmt: skip
    nodes = {node.attributes["rf_id"]: node for node in trace.nodes if "rf_id" in node.attributes}
    calls = []
    for outer in steps[0][1]:
        call: dict[str, Any] = {"name": outer[0].name, "kind": "", "n_bytes": 0, "touches": [], "writes": []}
        touches: set[int] = set()
        for event in outer:
            node = nodes.get(event.number)
            if node is None or node.name != event.name:
                continue
            raw = json.loads(node.raw)
            tensors = [*_tensors(raw.get("inputs")), *_tensors(raw.get("outputs"))]
            touches.update(storage for storage, _ in tensors)
            kind = communicated(event.name)
            if kind:
                call["kind"], call["n_bytes"] = kind, max((size for _, size in tensors), default=0)
                call["writes"] = sorted({storage for storage, _ in tensors})
        call["touches"] = sorted(touches)
        calls.append(call)
    return calls


def _steps(events: Iterable[Span], mark: str) -> list[tuple[Span, list[list[Span]]]]:
    """The marked steps: of each call, its event and those within it."""
    ordered = sorted(events, key=lambda event: (event.begin, -event.end))
    found = []
    for step in (event for event in ordered if event.name == mark):
        calls: list[list[Span]] = []
        until = -1.0
        for event in ordered:
            if event.thread != step.thread or not step.begin <= event.begin <= step.end:
                continue
            if event.begin < until:
                calls[-1].append(event)
            elif is_operation(event.name):
                calls.append([event])
                until = event.end
        found.append((step, calls))
    return found


def _tensors(side: Any) -> Iterable[tuple[int, int]]:
    """Storage and bytes of the tensors among the values of a node, however deep in lists."""
    values = side.get("values", []) if isinstance(side, dict) else side
    if not isinstance(values, list):
        return
    if len(values) == _TENSOR_FIELDS and isinstance(values[-1], str) and all(isinstance(v, int) for v in values[:5]):
        yield values[1], values[3] * values[4]
        return
    for each in values:
        yield from _tensors(each)


def times_of(events: Iterable[Span], mark: str, names: Sequence[str]) -> list[tuple[list[float], list[float]]]:
    """Return when the calls of each marked step begin and end, in seconds, after begin and end of the step itself.

    A step that calls something else is left out: torch's profiler now and then loses a call of a busy process.

    Parameters
    ----------
    events : iterable of Span
    mark : str
        Name of the range around each step.
    names : sequence of str
        The calls of such a step, in their order.
    """
    found = []
    for step, calls in _steps(events, mark):
        if [call[0].name for call in calls] != list(names):
            continue
        spans = [step, *(call[0] for call in calls)]
        found.append(([each.begin / 1e6 for each in spans], [each.end / 1e6 for each in spans]))
    return found
