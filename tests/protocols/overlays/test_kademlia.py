from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.protocols.overlays.directory import inner_node
from wavetank.protocols.overlays.identifiers import identifiers, key_of
from wavetank.protocols.overlays.kademlia import Kademlia, KademliaNode
from wavetank.protocols.overlays.tables import give_exact
from wavetank.sim.events import simulate
from wavetank.sim.simulation import Request

STILL: dict[str, Any] = {
    "stabilize_rounds": 1000, "refresh_rounds": 1000, "republish_rounds": 1000, "ttl_rounds": 1000
}  # fmt: skip


@pytest.mark.parametrize(("size", "redundancy"), [(50, 8), (1000, 20), (1000, 8)])
def test_lookups_find_the_k_closest_of_all_nodes(stationary: Any, size: int, redundancy: int) -> None:
    requests = [Request(at=1, node=(7 * n) % size, command=("lookup", f"nobody {n}")) for n in range(150)]
    run = stationary.run(Kademlia(redundancy=redundancy, **STILL), size, requests)
    ids = identifiers(0, size)
    for number, outcome in enumerate(stationary.outcomes(run)):
        key = key_of(f"nobody {number}")
        assert list(outcome.owners) == sorted(range(size), key=lambda node: ids[node] ^ key)[:redundancy]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**160 - 1), st.integers(1, 30))
def test_the_contacts_named_are_the_closest_known(target: int, redundancy: int) -> None:
    node = KademliaNode(Kademlia(redundancy=redundancy), 0, 300)
    for other in range(1, 300):
        node.learn(other)
    contacts, done = node.answer(target)
    assert not done
    closest = sorted(node.known(), key=lambda other: node.ids[other] ^ target)[:redundancy]
    assert list(contacts) == closest


def test_a_newcomer_waits_for_a_silent_contact_of_a_full_bucket() -> None:
    node = KademliaNode(Kademlia(redundancy=2), 0, 100)
    far = [other for other in range(1, 100) if (node.ids[other] ^ node.id) >> 159][:3]
    for other in far:
        node.learn(other)
    assert list(node.buckets[159]) == far[:2]
    node.forget(far[0])
    assert list(node.buckets[159]) == [far[1], far[2]]


def test_who_is_heard_becomes_the_latest_known() -> None:
    node = KademliaNode(Kademlia(), 0, 100)
    far = [other for other in range(1, 100) if (node.ids[other] ^ node.id) >> 159][:3]
    for other in far:
        node.heard(other)
    node.heard(far[0])
    assert list(node.buckets[159]) == [far[1], far[2], far[0]]


def test_a_newcomer_is_a_member_from_its_first_contact_on() -> None:
    size, newcomer = 64, 9

    def setup(nodes: Any) -> None:
        give_exact(nodes, [node for node in range(size) if node != newcomer], 1)

    seen: list[tuple[bool, int]] = []

    def look(run: Any) -> bool:
        node = inner_node(run.nodes[newcomer])
        seen.append((node.joined, len(node.lookups)))
        return False

    simulate(Kademlia(), size=size, until=12, setup=setup, stop=look, seed=2)
    # Its search of itself is still under way when it comes in.
    assert (True, 1) in seen
    assert seen[-1] == (True, 0)
