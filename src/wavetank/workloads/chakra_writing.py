"""Chakra traces that are made: nodes as a stream of protobuf, and traces as JSON and back, byte for byte.

The JSON form is the dialect ``workload_graph`` that other programs read, with a node's figures by name.  Beside them
``fields`` holds the fields of the protobuf message in their order, so that what no version of this program knows comes
back as it was.

Source: MLCommons Chakra, schema 0.0.4 (``et_def.proto``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from wavetank.errors import BadTraceError, BadValueError
from wavetank.workloads.chakra import TYPES, ExecutionTrace, TraceNode, trace_of
from wavetank.workloads.protobuf import Field, encoded, fields_of, message_of

SCHEMA = "0.0.4"
# Fields of an attribute that hold one value of a type.
_DOUBLE, _INT64, _UINT64, _BOOL, _STRING = 3, 9, 13, 27, 29
_MESSAGES = {"node": 10, "head": 2}


def made_node(
    number: int,
    name: str,
    kind: str,
    *,
    after: Sequence[int] = (),
    data: Sequence[int] = (),
    duration_ns: int = 0,
    attributes: Mapping[str, int | float | bool | str] | None = None,
) -> bytes:
    """Return the message of a node.

    Parameters
    ----------
    number : int
    name : str
    kind : str
        One of :data:`wavetank.workloads.chakra.TYPES`.
    after, data : sequence of int
        Identities of nodes: control and data dependencies.
    duration_ns : int
        Whole microseconds stand in the field for them; where there is a rest, all of it is an attribute as well.
    attributes : mapping of str to value, optional

    Raises
    ------
    BadValueError
        For a kind that does not exist, or a figure without a place in 64 bits.
    """
    if kind not in TYPES:
        raise BadValueError("There is no such type of a node.", given=kind, allowed=TYPES)
    for what, value in (("identity", number), ("duration", duration_ns), *(("dependency", d) for d in (*after, *data))):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise BadValueError(f"The {what} of a node is no whole number that can be.", given=value,
                                allowed="0 to 2^63", where=name)  # fmt: skip
    fields: list[Field] = [(1, 0, number), (2, 2, name.encode("utf-8", "replace")), (3, 0, TYPES.index(kind))]
    for field, deps in ((4, after), (5, data)):
        if deps:
            fields.append((field, 2, b"".join(map(encoded, deps))))
    more: dict[str, int | float | bool | str] = dict(attributes or {})
    if duration_ns // 1000:
        fields.append((7, 0, duration_ns // 1000))
    if duration_ns % 1000:
        more["duration_nanos"] = duration_ns
    fields += [(10, 2, _attribute(key, value)) for key, value in more.items()]
    return message_of(fields)


def _attribute(name: str, value: object) -> bytes:
    head: Field = (1, 2, name.encode("utf-8", "replace"))
    if isinstance(value, bool):
        return message_of([head, (_BOOL, 0, int(value))])
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise BadValueError("An attribute has no place in 64 bits.", given=value, where=name)
        return message_of([head, (_INT64 if value < 0 else _UINT64, 0, value % 2**64)])
    if isinstance(value, float):
        return message_of([head, (_DOUBLE, 1, struct.pack("<d", value))])
    if isinstance(value, str):
        return message_of([head, (_STRING, 2, value.encode("utf-8", "replace"))])
    raise BadValueError("An attribute has a type that a trace has not.", given=type(value).__name__, where=name,
                        allowed="int, float, bool, str")  # fmt: skip


def made_trace(nodes: Sequence[bytes], *, where: str = "") -> ExecutionTrace:
    """Return the trace of some nodes, in the form ``et``.

    Parameters
    ----------
    nodes : sequence of bytes
        As of :func:`made_node`.
    where : str
        For messages.

    Raises
    ------
    BadTraceError
        For nodes of one identity.
    """
    head = message_of([(1, 2, SCHEMA.encode())])
    return trace_of(b"".join(encoded(len(each)) + each for each in (head, *nodes)), where)


def as_json(trace: ExecutionTrace) -> str:
    """Return a trace of the form ``et`` as JSON, from which :func:`as_et` makes the same bytes.

    Parameters
    ----------
    trace : ExecutionTrace

    Raises
    ------
    BadValueError
        For a trace of another form, which is JSON already.
    """
    if trace.form != "et":
        raise BadValueError("The trace is JSON already.", given=trace.form, allowed="et", where=trace.where)
    head = _message(trace.between[0])
    return json.dumps(
        {
            "schema": trace.version,
            "head": _listed(head, "head"),
            "workload_graph": [
                {**_safe(node.attributes), **_figures(node), "fields": _listed(_message(node.raw), "node")}
                for node in trace.nodes
            ],
        },
        ensure_ascii=True,
    )


def _figures(node: TraceNode) -> dict[str, Any]:
    return {
        "Id": node.id, "Name": node.name, "NodeType": node.type, "ctrl_deps": list(node.ctrl_deps),
        "data_deps": list(node.data_deps), "runtime": node.duration_us,
    }  # fmt: skip


def _safe(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that JSON can hold: what is left of the others stands in the fields."""
    return {
        key: value
        for key, value in attributes.items()
        if isinstance(value, bool | int | str) or (isinstance(value, float) and value - value == 0)
    }


def _message(raw: bytes) -> bytes:
    """The message behind its length."""
    at = 0
    while raw[at] > 0x7F:
        at += 1
    return raw[at + 1 :]


def _listed(message: bytes, of: str) -> list[list[Any]]:
    found: list[list[Any]] = []
    for number, wire, value in fields_of(message, "a message"):
        if isinstance(value, int):
            found.append([number, wire, value])
        elif number == _MESSAGES.get(of) and wire == 2 and message_of(fields_of(value, "an attribute")) == value:
            found.append([number, wire, _listed(value, "attribute")])
        else:
            text = value.decode("utf-8", "replace")
            found.append([number, wire, text if text.encode() == value else {"hex": value.hex()}])
    return found


def as_et(text: str, *, where: str = "") -> ExecutionTrace:
    """Return the trace that :func:`as_json` wrote down, byte for byte; runtimes may have been changed since.

    Parameters
    ----------
    text : str
    where : str
        For messages.

    Raises
    ------
    BadTraceError
        If it is not of that form, or a figure other than ``runtime`` is not that of its fields.
    """
    try:
        whole = json.loads(text)
        messages = [_packed(whole["head"]), *(_packed(each["fields"]) for each in whole["workload_graph"])]
        content = b"".join(encoded(len(each)) + each for each in messages)
        shown = [{key: each[key] for key in ("Id", "Name", "NodeType", "ctrl_deps", "data_deps", "runtime")}
                 for each in whole["workload_graph"]]  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as problem:
        raise BadTraceError("This is no trace that was written as JSON.", given=str(problem), where=where,
                            allowed="what as_json returns") from None  # fmt: skip
    trace = trace_of(content, where)
    changed: dict[int, int] = {}
    for node, figures in zip(trace.nodes, shown, strict=True):
        runtime = figures["runtime"]
        if figures | {"runtime": node.duration_us} != _figures(node):
            raise BadTraceError(f"Node {node.id} ({node.name}) has figures that are not those of its fields.",
                                given=str(figures)[:200], allowed="another runtime alone", where=where)  # fmt: skip
        if runtime != node.duration_us:
            changed[node.id] = runtime
    return trace.with_durations(changed) if changed else trace


def _packed(listed: Sequence[Sequence[Any]]) -> bytes:
    fields: list[Field] = []
    for number, wire, value in listed:
        if wire == 0:
            fields.append((int(number), 0, int(value) % 2**64))
        elif isinstance(value, list):
            fields.append((int(number), int(wire), _packed(value)))
        else:
            content = value.encode() if isinstance(value, str) else bytes.fromhex(value["hex"])
            fields.append((int(number), int(wire), content))
    return message_of(fields)
