"""Chakra execution traces: read, written back byte for byte, and made a step graph.

A trace holds what one rank did: nodes with a type, dependencies, durations and attributes.  Three forms are read: the
protobuf stream (``.et``), and two dialects of JSON, the ``workload_graph`` of converted traces and the ``nodes`` of a
PyTorch host trace.  What this module does not know stays with its node and is written back as it came; only nodes that
were given another duration are encoded anew.

Source: MLCommons Chakra, schema 0.0.4 (``et_def.proto``) and its user guide; arXiv 2305.14516.

Differs from the source:

1. The operations of a rank run in order on five streams: computation, host, collectives, sends, receives.  The order is
   that of dependencies, then of numbers.  Nodes that name a ``stream`` of their device, or a thread (``tid``) of the
   host, have one of their own.
2. In a host trace ``ctrl_deps`` is the call around a call and no dependency; such a trace becomes no step graph.
3. A duration in nanoseconds can stand beside the microseconds, as attribute ``duration_nanos``: it counts as long as
   both agree.
"""

from __future__ import annotations

import heapq
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadTraceError, BadValueError
from wavetank.files import unpacked
from wavetank.workloads.operations import COLLECTIVES, MOST_PS, UNPRICED, Operation, StepGraph
from wavetank.workloads.protobuf import Field, encoded, fields_of, message_of, varint

_MOST_BYTES = 1 << 30
_NS, _US = 1_000, 1_000_000  # ps
# Numbers of the fields of a node and of an attribute.
_ID, _NAME, _TYPE, _CTRL, _DATA, _DURATION, _ATTRIBUTE = 1, 2, 3, 4, 5, 7, 10
COMPUTE_NODE, SEND_NODE, RECEIVE_NODE, COLLECTIVE_NODE = 4, 5, 6, 7
TYPES = (
    "invalid", "metadata", "memory load", "memory store", "compute", "send", "receive", "collective", "storage",
    "batch", "checkpoint",
)  # fmt: skip
_COMPUTE_STREAM, _HOST_STREAM, _COLLECTIVE_STREAM, _SEND_STREAM, _RECEIVE_STREAM = range(5)
# Of two names that both fit the longer one is meant.
_BY_NAME = tuple(sorted(COLLECTIVES, key=len, reverse=True))
# Where the two dialects of JSON keep a node's figures.
_DIALECTS = {
    "workload_graph": {"id": "Id", "name": "Name", "type": "NodeType", "ctrl": ("ctrl_deps", "ctrlDeps"),
                       "data": ("data_deps",), "duration": "runtime"},
    "nodes": {"id": "id", "name": "name", "type": "", "ctrl": ("ctrl_deps",), "data": (), "duration": ""},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TraceNode:
    """One node of a trace.

    Parameters
    ----------
    id : int
    name : str
    type : int
        Index of :data:`TYPES`; -1 where the form has none.
    ctrl_deps, data_deps : tuple of int
        Identities of other nodes.
    duration_us : int
        0 where none was recorded.
    attributes : dict of str to value
    raw : object
        The node as it came.
    """

    id: int
    name: str
    type: int
    ctrl_deps: tuple[int, ...]
    data_deps: tuple[int, ...]
    duration_us: int
    attributes: Mapping[str, Any]
    raw: Any = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class ExecutionTrace:
    """What one rank did.

    Parameters
    ----------
    form : str
        ``et``, or the key of the list of nodes in a JSON file: ``workload_graph`` or ``nodes``.
    version : str
        Of the schema, where the file says it.
    nodes : tuple of TraceNode
        In the order of the file.
    between : tuple of bytes
        What stands before, between and after the nodes: one more than there are nodes.
    where : str
        The file, for messages.
    """

    form: str
    version: str
    nodes: tuple[TraceNode, ...]
    between: tuple[bytes, ...] = field(repr=False)
    where: str = ""

    def content(self) -> bytes:
        """Return the file: byte for byte what was read, but for nodes that were changed."""
        pieces = [self.between[0]]
        for node, after in zip(self.nodes, self.between[1:], strict=True):
            pieces += [node.raw, after]
        return b"".join(pieces)

    def with_durations(self, duration_us: Mapping[int, int]) -> ExecutionTrace:
        """Return the trace with other durations; all other nodes keep their bytes.

        Parameters
        ----------
        duration_us : mapping of int to int
            By identity of the node.

        Raises
        ------
        BadValueError
            For an identity that is not in the trace, a duration that is no whole number of 64 bits from 0, or a form
            that keeps no durations.
        """
        unknown = set(duration_us) - {node.id for node in self.nodes}
        wrong = any(
            isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < 2**64
            for each in duration_us.values()
        )
        if unknown or wrong or self.form == "nodes":
            raise BadValueError(
                "These durations are of no nodes of the trace.", given=sorted(unknown)[:3] or dict(duration_us),
                allowed="identities of nodes, whole microseconds from 0; a host trace keeps none", where=self.where,
            )  # fmt: skip
        return replace(
            self,
            nodes=tuple(
                _with_duration(node, self.form, duration_us[node.id]) if node.id in duration_us else node
                for node in self.nodes
            ),
        )


def read_trace_file(path: str | Path, *, unique: bool = True) -> ExecutionTrace:
    """Return the trace in a file: ``.et`` or ``.json``, also with ``.gz`` at its end.

    Parameters
    ----------
    path : str or Path
    unique : bool
        Whether nodes of one identity are refused; who looks for what is wrong takes them as they come.

    Raises
    ------
    BadFileError
        For a file that is missing, damaged, cut off or of no form that is known; it names the place.
    BadTraceError
        For nodes of one identity.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = unpacked(content, largest_bytes=_MOST_BYTES)
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        raise BadFileError("The trace cannot be read.", given=str(problem), where=str(path)) from None
    if path.name.removesuffix(".gz").endswith(".json"):
        trace = _from_json(content, str(path))
    else:
        trace = _from_et(content, str(path))
    return _unique(trace) if unique else trace


def trace_of(content: bytes, where: str = "") -> ExecutionTrace:
    """Return the trace in a protobuf stream.

    Parameters
    ----------
    content : bytes
    where : str
        For messages.

    Raises
    ------
    BadFileError
        If it is damaged, cut off or empty.
    BadTraceError
        For nodes of one identity.
    """
    return _unique(_from_et(content, where))


def _unique(trace: ExecutionTrace) -> ExecutionTrace:
    seen: set[int] = set()
    for node in trace.nodes:
        if node.id in seen:
            raise BadTraceError("Two nodes of a trace have one identity.", given=node.id, where=trace.where)
        seen.add(node.id)
    return trace


def _numbers(fields: Sequence[Field], number: int, where: str) -> tuple[int, ...]:
    """A repeated number, packed or not."""
    found: list[int] = []
    for which, wire, value in fields:
        if which == number and isinstance(value, int):
            found.append(value)
        elif which == number and wire != 2:
            raise BadFileError("A node of the trace has no number where one belongs.", given=number, where=where)
        elif which == number and isinstance(value, bytes):
            at = 0
            while at < len(value):
                one, at = varint(value, at, len(value), where)
                found.append(one)
    return tuple(found)


def _text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _attribute(message: bytes, where: str) -> tuple[str, Any]:
    """A name and its value, whichever type it was given: they changed between versions of the schema."""
    name = ""
    found: Any = None
    for number, _, value in fields_of(message, where):
        if number == 1:
            name = _text(value)
        elif number in (3, 5) and isinstance(value, bytes):
            if len(value) != (8 if number == 3 else 4):
                raise BadFileError("An attribute of the trace has not the size of its type.", given=value, where=where)
            found = struct.unpack("<d" if number == 3 else "<f", value)[0]
        elif number in (7, 9) and isinstance(value, int):
            found = value - 2**64 if value >= 2**63 else value
        elif number in (15, 17) and isinstance(value, int):
            found = value >> 1 ^ -(value & 1)
        elif number in (19, 21, 23, 25) and isinstance(value, bytes):
            found = int.from_bytes(value, "little", signed=number > 21)
        elif number == 27:
            found = bool(value)
        elif number == 29:
            found = _text(value)
        elif number > 2:
            found = value
    return name, found


def _et_node(message: bytes, where: str) -> TraceNode:
    fields = fields_of(message, where)
    if message_of(fields) != message:
        raise BadFileError("A message of the trace is encoded in a way that cannot be written back.", where=where)
    last: dict[int, int | bytes] = {number: value for number, _, value in fields}
    for number in (_ID, _TYPE, _DURATION):
        if not isinstance(last.get(number, 0), int):
            raise BadFileError("A node of the trace has no number where one belongs.", given=number, where=where)
    attributes = dict(_attribute(value, where) for number, _, value in fields
                      if number == _ATTRIBUTE and isinstance(value, bytes))  # fmt: skip
    return TraceNode(
        id=int(last.get(_ID, 0)), name=_text(last.get(_NAME, b"")), type=int(last.get(_TYPE, 0)),
        ctrl_deps=_numbers(fields, _CTRL, where), data_deps=_numbers(fields, _DATA, where),
        duration_us=int(last.get(_DURATION, 0)), attributes=attributes, raw=encoded(len(message)) + message,
    )  # fmt: skip


def _from_et(content: bytes, where: str) -> ExecutionTrace:
    messages, at = [], 0
    while at < len(content):
        size, start = varint(content, at, len(content), where)
        if start + size > len(content) or encoded(size) != content[at:start]:
            raise BadFileError("The trace is cut off, or no stream of messages.", given=f"at byte {at}", where=where)
        messages.append(content[start : start + size])
        at = start + size
    if not messages:
        raise BadFileError("The trace is empty.", where=where)
    head = fields_of(messages[0], where)
    attributes = dict(_attribute(value, where) for number, _, value in head if number == 2 and isinstance(value, bytes))
    # Some writers leave the version out and have it among the attributes.
    version = next((_text(value) for number, _, value in head if number == 1), str(attributes.get("schema", "")))
    nodes = tuple(_et_node(message, f"{where}, message {i}") for i, message in enumerate(messages[1:], 1))
    between = (encoded(len(messages[0])) + messages[0], *[b""] * len(nodes))
    return ExecutionTrace(form="et", version=version, nodes=nodes, between=between, where=where)


def _with_duration(node: TraceNode, form: str, duration_us: int) -> TraceNode:
    if form == "et":
        size, start = varint(node.raw, 0, len(node.raw), "")
        fields = [each for each in fields_of(node.raw[start : start + size], "") if each[0] != _DURATION]
        # Fields in the order of their numbers, as every writer of protobuf has them.
        place = sum(each[0] < _DURATION for each in fields)
        fields[place:place] = [(_DURATION, 0, duration_us)] if duration_us else []
        message = message_of(fields)
        return replace(node, duration_us=duration_us, raw=encoded(len(message)) + message)
    changed = json.loads(node.raw) | {_DIALECTS[form]["duration"]: duration_us}
    # Half of a surrogate pair has no UTF-8, and stays an escape.
    raw = json.dumps(changed, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return replace(node, duration_us=duration_us, raw=raw)


def _element(text: str, at: int, ends: str) -> int:
    """Where the next element of a JSON list or object begins; -1 at its end."""
    while text[at] in " \t\r\n,":
        at += 1
    return -1 if text[at] == ends else at


def _from_json(content: bytes, where: str) -> ExecutionTrace:
    try:
        return _json_trace(content.decode("utf-8"), where)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise BadFileError(
            "The trace is no JSON of a form that is known.", given=str(problem),
            allowed=f"an object with a list {' or '.join(_DIALECTS)}", where=where,
        ) from None  # fmt: skip


def _json_trace(text: str, where: str) -> ExecutionTrace:
    whole = json.loads(text)
    form = next(key for key in (*_DIALECTS, None) if key is None or key in whole)
    if form is None or not isinstance(whole[form], list):
        raise ValueError("no list of nodes")
    decoder = json.JSONDecoder()
    nodes, between, kept = [], [], 0
    at = _element(text, text.index("{") + 1, "}")
    while at >= 0:
        key, at = decoder.raw_decode(text, at)
        at = text.index(":", at) + 1
        while text[at] in " \t\r\n":
            at += 1
        start = _element(text, at + 1, "]") if key == form else -1
        while start >= 0:
            given, end = decoder.raw_decode(text, start)
            nodes.append(_json_node(given, form, text[start:end].encode()))
            between.append(text[kept:start].encode())
            kept = end
            start = _element(text, end, "]")
        _, at = decoder.raw_decode(text, at)
        at = _element(text, at, "}")
    between.append(text[kept:].encode())
    if len(nodes) != len(whole[form]):
        raise ValueError(f"two lists {form}")
    return ExecutionTrace(
        form=form, version=str(whole.get("schema", "")), nodes=tuple(nodes), between=tuple(between), where=where
    )


def _json_node(given: Mapping[str, Any], form: str, raw: bytes) -> TraceNode:
    keys: Mapping[str, Any] = _DIALECTS[form]

    def deps(names: Sequence[str]) -> tuple[int, ...]:
        found = [given[name] for name in names if name in given]
        return tuple(_json_whole(each) for some in found for each in (some if isinstance(some, list) else [some]))

    if form == "nodes":
        attributes = {each["name"]: each["value"] for each in given["attrs"]}
    else:
        used = {keys["id"], keys["name"], keys["type"], keys["duration"], *keys["ctrl"], *keys["data"]}
        attributes = {key: value for key, value in given.items() if key not in used}
    return TraceNode(
        id=_json_whole(given[keys["id"]]), name=str(given[keys["name"]]),
        type=_json_whole(given[keys["type"]]) if keys["type"] else -1,
        ctrl_deps=deps(keys["ctrl"]), data_deps=deps(keys["data"]),
        duration_us=_json_whole(given.get(keys["duration"], 0)), attributes=attributes, raw=raw,
    )  # fmt: skip


def _json_whole(given: Any) -> int:
    found = int(given)
    if isinstance(given, bool) or (isinstance(given, float) and given != found):
        raise ValueError(f"{given} is no whole number")
    return found


def step_graph(traces: Sequence[ExecutionTrace]) -> StepGraph:
    """Return the step graph of the traces of ranks 0, 1, ...

    Messages and collectives without a recorded duration stay unpriced, with their bytes; computation without one has
    its operations (``num_ops``) as flops.  Collectives of one process group (``pg_name`` or ``comm_group``; all ranks
    where it is not said) belong together.

    Parameters
    ----------
    traces : sequence of ExecutionTrace

    Raises
    ------
    BadTraceError
        For a host trace, dependencies that are not there or form a cycle, and nodes without what their type needs.
    """
    if not traces or any(trace.form == "nodes" for trace in traces):
        raise BadTraceError(
            "A host trace says which call is within which, and no durations; it becomes no step graph.",
            allowed="one converted trace for every rank",
            where=next((trace.where for trace in traces if trace.form == "nodes"), None),
        )
    names: dict[str, int] = {}
    members: dict[str, set[int]] = {}
    for rank, trace in enumerate(traces):
        for node in trace.nodes:
            if is_collective(node):
                # A rank that lacks a collective of all, as where its trace was cut off, is one to wait for.
                of = {rank} if names_group(node) else range(len(traces))
                members.setdefault(group_of(node), set()).update(of)
    for name in members:
        names[name] = len(names)
    operations: list[Operation] = []
    for rank, trace in enumerate(traces):
        numbers: dict[int, int] = {}
        streams: dict[tuple[str, int], int] = {}
        for node in in_order(trace):
            numbers[node.id] = len(operations)
            after = tuple(numbers[each] for each in (*node.ctrl_deps, *node.data_deps))
            made = _operation(node, rank, after, names, len(traces), trace.where)
            operations.append(replace(made, stream=_stream(node, made.stream, streams)))
    return StepGraph.of(operations, groups=[sorted(ranks) for ranks in members.values()])


def on_host(node: TraceNode) -> bool:
    """Return whether a node ran on the host.

    Parameters
    ----------
    node : TraceNode
    """
    return bool(node.attributes.get("is_cpu_op", False))


def is_collective(node: TraceNode) -> bool:
    """Return whether a node is a collective of the device, not the call that asks for it.

    Parameters
    ----------
    node : TraceNode
    """
    return node.type == COLLECTIVE_NODE and not on_host(node)


def names_group(node: TraceNode) -> bool:
    """Return whether a collective says which group it is of.

    Parameters
    ----------
    node : TraceNode
    """
    return "pg_name" in node.attributes or "comm_group" in node.attributes


def group_of(node: TraceNode) -> str:
    """Return the name of a collective's process group; ``all`` where it has none.

    Parameters
    ----------
    node : TraceNode
    """
    return str(node.attributes.get("pg_name", node.attributes.get("comm_group", "all")))


def collective_of(node: TraceNode, where: str = "") -> str:
    """Return which collective a node is: by its type, else by its name, else an all-reduce, whose number is 0.

    Parameters
    ----------
    node : TraceNode
    where : str
        For messages.

    Raises
    ------
    BadTraceError
        For a type that does not exist.
    """
    if "comm_type" not in node.attributes:
        name = node.name.lower().replace("_", "").replace("-", "")
        found = (each for each in _BY_NAME if each.replace("-", "") in name)
        return next(found, COLLECTIVES[0])
    code = _whole(node, "comm_type", 0, where)
    if not 0 <= code < len(COLLECTIVES):
        raise BadTraceError(f"Node {node.id} ({node.name}) is of no collective.", given=code, where=where)
    return COLLECTIVES[code]


def size_of(node: TraceNode, where: str = "") -> int:
    """Return the bytes of a collective or message; -1 where they are not said.

    Parameters
    ----------
    node : TraceNode
    where : str
        For messages.

    Raises
    ------
    BadTraceError
        If they are no whole number of 64 bits.
    """
    return _whole(node, "comm_size", -1, where)


def peer_of(node: TraceNode, where: str = "") -> tuple[int, int]:
    """Return the rank that a message goes to or comes from, -1 where it is not said, and its tag.

    Parameters
    ----------
    node : TraceNode
        A send or receive.
    where : str
        For messages.

    Raises
    ------
    BadTraceError
        If they are no whole numbers of 64 bits.
    """
    name = "comm_dst" if node.type == SEND_NODE else "comm_src"
    return _whole(node, name, -1, where), _whole(node, "comm_tag", 0, where)


def in_order(trace: ExecutionTrace) -> Iterator[TraceNode]:
    """Yield the nodes, each after those that it depends on, else by identity.

    Parameters
    ----------
    trace : ExecutionTrace

    Raises
    ------
    BadTraceError
        For a dependency that is not there, and nodes that wait for each other.
    """
    by_id = {node.id: node for node in trace.nodes}
    missing: dict[int, int] = {}
    followers: dict[int, list[int]] = {}
    for node in trace.nodes:
        before = {*node.ctrl_deps, *node.data_deps}
        for each in before:
            if each not in by_id:
                raise BadTraceError(
                    f"Node {node.id} ({node.name}) depends on a node that is not in the trace.", given=each,
                    where=trace.where,
                )  # fmt: skip
            followers.setdefault(each, []).append(node.id)
        missing[node.id] = len(before)
    ready = [each for each, count in missing.items() if not count]
    heapq.heapify(ready)
    done = 0
    while ready:
        done += 1
        first = heapq.heappop(ready)
        yield by_id[first]
        for each in followers.get(first, ()):
            missing[each] -= 1
            if not missing[each]:
                heapq.heappush(ready, each)
    if done < len(by_id):
        stuck = next(by_id[each] for each, count in missing.items() if count)
        raise BadTraceError(
            f"Nodes of the trace wait for each other in a cycle, node {stuck.id} ({stuck.name}) in it or behind it.",
            where=trace.where,
        )


def _stream(node: TraceNode, otherwise: int, known: dict[tuple[str, int], int]) -> int:
    """The stream that a node names, numbered as they come."""
    name = "tid" if on_host(node) else "stream"
    given = node.attributes.get(name)
    if isinstance(given, bool) or not isinstance(given, int):
        return otherwise
    return known.setdefault((name, given), _RECEIVE_STREAM + 1 + len(known))


def duration_ns(node: TraceNode) -> int:
    """Return how long a node took, to the nanosecond where it says so.

    Parameters
    ----------
    node : TraceNode
    """
    exact = node.attributes.get("duration_nanos")
    if isinstance(exact, int) and not isinstance(exact, bool) and exact // 1000 == node.duration_us:
        return exact
    return node.duration_us * 1000


def _operation(
    node: TraceNode, rank: int, after: tuple[int, ...], names: Mapping[str, int], ranks: int, where: str
) -> Operation:
    duration_ps = duration_ns(node) * _NS
    if not 0 <= duration_ps <= MOST_PS:
        raise BadTraceError(f"Node {node.id} ({node.name}) has no duration that can be.", given=node.duration_us,
                            allowed=f"0 to {MOST_PS // _US} microseconds", where=where)  # fmt: skip
    common: dict[str, Any] = {"rank": rank, "after": after, "name": node.name, "duration_ps": duration_ps}
    if is_collective(node):
        collective = collective_of(node, where)
        common |= {"kind": "collective", "stream": _COLLECTIVE_STREAM, "group": names[group_of(node)],
                   "collective": collective}  # fmt: skip
    elif node.type in (SEND_NODE, RECEIVE_NODE) and not on_host(node):
        sends = node.type == SEND_NODE
        peer, tag = peer_of(node, where)
        if not 0 <= peer < ranks:
            raise BadTraceError(f"Node {node.id} ({node.name}) has its message from or for a rank without a trace.",
                                given=peer, allowed=f"0 to {ranks - 1}", where=where)  # fmt: skip
        common |= {"kind": "send" if sends else "receive", "stream": _SEND_STREAM if sends else _RECEIVE_STREAM,
                   "peer": peer, "tag": tag}  # fmt: skip
    elif node.type == COMPUTE_NODE and not on_host(node):
        flops = _flops(node, where)
        priced = duration_ps > 0 or flops == 0
        return Operation(**common | {"stream": _COMPUTE_STREAM, "flops": flops,
                                     "duration_ps": duration_ps if priced else UNPRICED})  # fmt: skip
    elif 0 < node.type < len(TYPES):
        return Operation(**common | {"kind": "host", "stream": _HOST_STREAM})
    else:
        raise BadTraceError(f"Node {node.id} ({node.name}) is of no type.", given=node.type, where=where)
    size = size_of(node, where)
    if size < 0 and not duration_ps:
        raise BadTraceError(f"Node {node.id} ({node.name}) has neither a size nor a duration.", where=where,
                            allowed="comm_size, in bytes, or a duration")  # fmt: skip
    return Operation(**common | {"n_bytes": max(size, 0), "duration_ps": duration_ps or UNPRICED})


def _flops(node: TraceNode, where: str) -> float:
    given = node.attributes.get("num_ops", 0) or 0
    try:
        flops = float(given)
    except (ValueError, TypeError, OverflowError):
        flops = math.nan
    if not 0 <= flops < math.inf:
        raise BadTraceError(f"The attribute num_ops of node {node.id} ({node.name}) is no number of operations.",
                            given=given, allowed="0 or more", where=where)  # fmt: skip
    return flops


def _whole(node: TraceNode, name: str, without: int, where: str) -> int:
    value = node.attributes.get(name, without)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise BadTraceError(f"The attribute {name} of node {node.id} ({node.name}) is no whole number that can be.",
                            given=value, allowed="64 bits", where=where)  # fmt: skip
    return value
