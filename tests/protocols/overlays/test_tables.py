from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from wavetank.protocols.overlays.chord import Chord, ChordNode
from wavetank.protocols.overlays.directory import Directory, inner_node
from wavetank.protocols.overlays.gossip import Gossip
from wavetank.protocols.overlays.identifiers import identifiers, key_of, ring_distance
from wavetank.protocols.overlays.kademlia import Kademlia, KademliaNode
from wavetank.protocols.overlays.pastry import Pastry, PastryNode
from wavetank.protocols.overlays.registry import Registry
from wavetank.protocols.overlays.tables import Ring, give_cold, give_exact, give_records, owners_of
from wavetank.sim.events import simulate
from wavetank.sim.node import Node

SIZE = 150


def given(directory: Directory, give: Any, up: Sequence[int] = range(SIZE)) -> list[Node]:
    return simulate(directory, size=SIZE, until=0, setup=lambda nodes: give(nodes, up, 1)).nodes


def test_exact_fingers_are_the_first_nodes_at_doubling_distances() -> None:
    ids = identifiers(0, SIZE)
    for node in given(Chord(redundancy=4), give_exact):
        assert isinstance(node, ChordNode)
        ring = sorted(range(SIZE), key=lambda other: (ids[other] - node.id - 1) % 2**160)
        assert node.successors == ring[:4]
        assert node.predecessor == ring[-2]
        for exponent, finger in node.fingers.items():
            assert finger == min(range(SIZE), key=lambda other: (ids[other] - node.id - 2**exponent) % 2**160)


def test_exact_buckets_are_full_or_hold_all_there_are() -> None:
    ids = identifiers(0, SIZE)
    for node in given(Kademlia(redundancy=8), give_exact):
        assert isinstance(node, KademliaNode)
        for bit in range(160):
            there = [other for other in range(SIZE) if (ids[other] ^ node.id).bit_length() == bit + 1]
            assert len(node.buckets.get(bit, {})) == min(len(there), 8)
            assert set(node.buckets.get(bit, {})) <= set(there)


def test_exact_rows_have_an_entry_wherever_there_is_a_node() -> None:
    ids = [f"{identifier:040x}" for identifier in identifiers(0, SIZE)]
    for own, node in enumerate(given(Pastry(), give_exact)):
        assert isinstance(node, PastryNode)
        for row in range(3):
            there = {int(other[row], 16) for other in ids if other[:row] == ids[own][:row]} - {int(ids[own][row], 16)}
            assert set(node.rows.get(row, {})) == there


@pytest.mark.parametrize("kind", [Chord, Pastry, Kademlia])
def test_cold_nodes_know_the_nearest_and_few_others(kind: type[Directory]) -> None:
    ring = Ring(identifiers(0, SIZE), range(SIZE))
    for node in map(inner_node, given(kind(redundancy=8), give_cold)):
        assert node.joined
        assert set(ring.successors(node.id + 1, 2)) <= node.known()
        assert len(node.known()) <= 8 + 8


@pytest.mark.parametrize("give", [give_exact, give_cold])
@pytest.mark.parametrize("kind", [Chord, Pastry, Kademlia])
def test_who_is_down_is_in_no_table_and_has_to_join(kind: type[Directory], give: Any) -> None:
    up = range(0, SIZE, 2)
    for number, node in enumerate(map(inner_node, given(kind(), give, up))):
        assert node.joined == (number % 2 == 0)
        assert all(other % 2 == 0 for other in node.known())


def test_records_are_given_to_those_the_metric_names() -> None:
    ids = identifiers(0, SIZE)
    ring = Ring(ids, range(SIZE))
    for number in range(30):
        key = key_of(f"key {number}")
        chord, pastry, kademlia = (kind(replicas=3).node(0, SIZE) for kind in (Chord, Pastry, Kademlia))
        assert owners_of(chord, ring, key) == sorted(range(SIZE), key=lambda other: (ids[other] - key) % 2**160)[:3]
        assert owners_of(pastry, ring, key) == sorted(range(SIZE), key=lambda other: ring_distance(ids[other], key))[:3]
        assert owners_of(kademlia, ring, key) == sorted(range(SIZE), key=lambda other: ids[other] ^ key)[:3]
        assert owners_of(Registry().node(0, SIZE), ring, key) == [0]
        assert len(owners_of(Gossip().node(0, SIZE), ring, key)) == SIZE


def test_given_records_are_published_again_by_their_owner() -> None:
    def setup(nodes: Sequence[Node]) -> None:
        give_exact(nodes, range(SIZE), 1)
        give_records(nodes, range(SIZE), [(7, "key", "here")])

    run = simulate(Chord(), size=SIZE, until=60, setup=setup)
    assert run.nodes[7].context.load("agents") == (("key", "here"),)
    assert inner_node(run.nodes[7]).sent[3] > 0
    assert sum(key_of("key") in inner_node(node).store for node in run.nodes) == 4
