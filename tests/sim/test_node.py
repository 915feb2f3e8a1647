from __future__ import annotations

import msgspec
import pytest
from small_protocols import Flood, Value

from wavetank.sim.events import simulate
from wavetank.sim.node import Context, Message, Node, Snapshot, disagreement


def test_messages_carry_their_name_and_are_checked_when_read() -> None:
    class Other(Message):
        text: str

    wire = msgspec.msgpack.encode(Value(3))
    assert msgspec.msgpack.decode(wire, type=Value | Other) == Value(3)
    for broken in (msgspec.msgpack.encode(["Value", "three"]), msgspec.msgpack.encode(["Nothing", 3]), wire[:-1]):
        with pytest.raises(msgspec.DecodeError):
            msgspec.msgpack.decode(broken, type=Value | Other)


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Value(3).value = 4  # type: ignore[misc]


def test_a_node_that_does_nothing_is_a_node() -> None:
    node = Node()
    node.start()
    node.receive(0, Value(1))
    node.timer("x")
    node.request(0, None)
    assert vars(node) == {}


def test_the_simulation_gives_nodes_a_context() -> None:
    run = simulate(Flood(), size=2, until=1)
    assert isinstance(run.nodes[0].context, Context)


def test_disagreement_names_two_correct_nodes() -> None:
    decisions = {(0, "a"): 1, (1, "a"): 1, (2, "a"): 2, (0, "b"): 5}
    assert disagreement(Snapshot([], frozenset({0, 1}), decisions, {})) == ""
    told = disagreement(Snapshot([], frozenset({0, 1, 2}), decisions, {}))
    assert told == "nodes 0 and 2 decided 1 and 2 in instance 'a'"
