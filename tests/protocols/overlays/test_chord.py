from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from wavetank.protocols.overlays.chord import Chord, ChordNode
from wavetank.protocols.overlays.directory import FINGERS, RIGHT, DirectoryNode, State, inner_node
from wavetank.protocols.overlays.identifiers import identifiers, key_of
from wavetank.protocols.overlays.tables import Ring, give_exact
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash
from wavetank.sim.simulation import Request

STILL: dict[str, Any] = {
    "stabilize_rounds": 1000, "refresh_rounds": 1000, "republish_rounds": 1000, "ttl_rounds": 1000
}  # fmt: skip


def ring_of(nodes: Sequence[DirectoryNode], first: int) -> list[int]:
    """Follow Chord's successors from a node until one comes a second time; return the nodes in that order."""
    seen: list[int] = []
    at = first
    marked: set[int] = set()
    while at not in marked:
        marked.add(at)
        seen.append(at)
        node = nodes[at]
        if not isinstance(node, ChordNode) or not node.successors:
            break
        at = node.successors[0]
    return seen


def test_with_exact_fingers_the_mean_path_at_4096_nodes_is_about_6_and_none_is_over_12(stationary: Any) -> None:
    size = 4096
    requests = [Request(at=1, node=(17 * n) % size, command=("lookup", f"nobody {n}")) for n in range(600)]
    run = stationary.run(Chord(redundancy=1, replicas=1, **STILL), size, requests)
    # Nobody has the records: what was asked is the path to the one responsible, and that one.
    paths = [outcome.asked - 1 for outcome in stationary.outcomes(run)]
    assert 5.0 <= sum(paths) / len(paths) <= 6.5
    assert max(paths) <= 12


def test_a_key_belongs_to_the_first_node_at_or_after_it(stationary: Any) -> None:
    size = 100
    requests = [Request(at=1, node=n % size, command=("publish", f"key {n}", "there")) for n in range(60)]
    run = stationary.run(Chord(**STILL), size, requests)
    ring = Ring(identifiers(0, size), range(size))
    for number, outcome in enumerate(stationary.outcomes(run)):
        assert outcome.status == "published"
        assert sorted(outcome.owners) == sorted(ring.successors(key_of(f"key {number}"), 4))


@pytest.mark.parametrize("size", [2, 3, 20, 64])
def test_after_joins_the_successors_lead_through_every_node_once(size: int) -> None:
    run = simulate(Chord(stabilize_rounds=2), size=size, until=220, seed=3)
    nodes = [inner_node(node) for node in run.nodes]
    assert all(node.joined for node in nodes)
    for first in range(0, size, 7):
        assert sorted(ring_of(nodes, first)) == list(range(size))


def test_after_crashes_the_successors_lead_through_every_live_node_once(stationary: Any) -> None:
    size, down = 64, tuple(range(5, 64, 5))

    def setup(nodes: Any) -> None:
        give_exact(nodes, range(size), 1)

    run = simulate(Chord(stabilize_rounds=2), size=size, until=120, setup=setup, faults=[Crash(members=down, at=10.0)])
    nodes = [inner_node(node) for node in run.nodes]
    assert sorted(ring_of(nodes, 0)) == sorted(set(range(size)) - set(down))


def test_fingers_become_exact_in_time() -> None:
    size = 64
    run = simulate(Chord(stabilize_rounds=2, refresh_rounds=2, redundancy=4), size=size, until=400, seed=1)
    ring = Ring(identifiers(0, size), range(size))
    for node in run.nodes:
        assert isinstance(node, ChordNode)
        assert node.fingers
        covered = node.distance(node.successors[-1])
        for exponent, finger in node.fingers.items():
            if 1 << exponent > covered:
                assert finger == ring.successors(node.id + (1 << exponent), 1)[0]


def given(size: int, **parameters: Any) -> list[ChordNode]:
    """Return nodes of a ring as it should be, which can send but get no answers."""

    def setup(nodes: Any) -> None:
        give_exact(nodes, range(size), 1)

    run = simulate(Chord(**{**STILL, **parameters}), size=size, until=1, setup=setup)
    return [node for node in map(inner_node, run.nodes) if isinstance(node, ChordNode)]


def test_a_newcomer_has_a_whole_list_and_fingers_before_its_first_period() -> None:
    size, newcomer = 64, 9

    def setup(nodes: Any) -> None:
        give_exact(nodes, [node for node in range(size) if node != newcomer], 1)

    run = simulate(Chord(**STILL), size=size, until=40, setup=setup, seed=2)
    node = inner_node(run.nodes[newcomer])
    assert isinstance(node, ChordNode)
    assert node.joined
    assert node.successors == Ring(node.ids, range(size)).successors(node.id + 1, 16)
    assert {158, 159} <= set(node.fingers)
    follower = inner_node(run.nodes[node.successors[0]])
    assert isinstance(follower, ChordNode)
    assert follower.predecessor == newcomer


def test_a_short_list_does_not_shorten_the_one_of_the_node_before() -> None:
    node = given(40)[0]
    whole = list(node.successors)
    node.part_received(whole[0], RIGHT, (node.own, *whole[1:4]))
    assert node.successors == whole


def test_in_a_ring_that_closes_nobody_beyond_is_kept() -> None:
    node = given(6)[0]
    whole = list(node.successors)
    assert len(whole) == 5
    node.part_received(whole[0], RIGHT, (node.own, *whole[1:3], node.own))
    assert node.successors == whole[:3]


def test_a_suspected_node_that_the_successor_names_is_asked_in_person_and_taken_back() -> None:
    node = given(40)[0]
    back, follower, *after = node.successors
    node.suspected[back] = 1e9
    node.forget(back)
    node.part_received(follower, RIGHT, (back, *after))
    assert back not in node.successors
    assert [waiting[1] for waiting in node.waiting.values()][-1] == back
    node.receive(back, State(node.count, RIGHT, (node.own, follower, *after), 1))
    assert node.successors[:2] == [back, follower]


def test_of_the_last_successors_the_one_responsible_is_named_last() -> None:
    node = given(100)[0]
    last = node.successors[-1]
    contacts, done = node.answer(node.ids[last])
    assert not done
    assert len(contacts) == 4
    assert contacts[-1] == last
    assert contacts[:3] == tuple(node.successors[-4:-1][::-1])


def test_numbers_of_nodes_that_do_not_exist_are_not_taken_over() -> None:
    node = given(40)[0]
    whole = list(node.successors)
    node.part_received(whole[0], RIGHT, (10**9, *whole[1:], -7))
    node.part_received(whole[0], FINGERS, (-1, 10**9))
    assert node.successors == whole
    assert all(0 <= other < 40 for other in node.known())
