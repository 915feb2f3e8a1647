from __future__ import annotations

from typing import Any

from wavetank.protocols.overlays.directory import JOIN, LEAVES, inner_node
from wavetank.protocols.overlays.identifiers import identifiers, key_of, ring_distance, shared_digits
from wavetank.protocols.overlays.pastry import Pastry, PastryNode
from wavetank.protocols.overlays.tables import Ring, give_exact
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash
from wavetank.sim.simulation import Request

STILL: dict[str, Any] = {
    "stabilize_rounds": 1000, "refresh_rounds": 1000, "republish_rounds": 1000, "ttl_rounds": 1000
}  # fmt: skip


def test_at_4096_nodes_three_digits_and_a_leaf_step_lead_to_the_key(stationary: Any) -> None:
    size = 4096
    publications = [Request(at=1, node=(29 * n) % size, command=("publish", f"key {n}", "there")) for n in range(200)]
    lookups = [Request(at=40, node=(31 * n) % size, command=("lookup", f"key {n}")) for n in range(200)]
    run = stationary.run(Pastry(**STILL), size, publications + lookups)
    outcomes = stationary.outcomes(run)[200:]
    assert all(outcome.status == "found" for outcome in outcomes)
    assert max(outcome.hops for outcome in outcomes) <= 3 + 1


def test_a_key_belongs_to_the_numerically_closest(stationary: Any) -> None:
    size = 200
    requests = [Request(at=1, node=n % size, command=("publish", f"key {n}", "there")) for n in range(100)]
    run = stationary.run(Pastry(**STILL), size, requests)
    ids = identifiers(0, size)
    for number, outcome in enumerate(stationary.outcomes(run)):
        key = key_of(f"key {number}")
        assert min(range(size), key=lambda node: ring_distance(ids[node], key)) in outcome.owners


def test_after_joins_leaves_are_the_nearest_and_rows_share_their_digits() -> None:
    size = 48
    run = simulate(Pastry(stabilize_rounds=2, refresh_rounds=4), size=size, until=200, seed=2)
    ring = Ring(identifiers(0, size), range(size))
    for node in run.nodes:
        assert isinstance(node, PastryNode)
        assert node.right == ring.successors(node.id + 1, 8)
        assert node.left == ring.predecessors(node.id, 8)
        for row, entries in node.rows.items():
            assert all(shared_digits(node.id, node.ids[other]) == row for other in entries.values())


def test_lost_leaves_are_replaced() -> None:
    size, down = 64, tuple(range(3, 64, 4))

    def setup(nodes: Any) -> None:
        give_exact(nodes, range(size), 1)

    run = simulate(Pastry(stabilize_rounds=2), size=size, until=120, setup=setup, faults=[Crash(members=down, at=10.0)])
    ring = Ring(identifiers(0, size), [node for node in range(size) if node not in down])
    for number, node in enumerate(run.nodes):
        if number not in down:
            assert isinstance(node, PastryNode)
            assert node.right == ring.successors(node.id + 1, 8)
            assert node.left == ring.predecessors(node.id, 8)


def newcomer_of(size: int) -> PastryNode:
    """Return a node that has found its place and waits for the leaves of the one closest to it."""

    def setup(nodes: Any) -> None:
        give_exact(nodes, range(size), 1)

    run = simulate(Pastry(**STILL), size=size, until=1, setup=setup)
    given = inner_node(run.nodes[0])
    node = Pastry(**STILL).node(0, size)
    node.context = given.context
    lookup = node._new(JOIN, node.id)
    assert isinstance(given, PastryNode)
    lookup.owners = (given.right[0], given.left[0], given.right[1], given.left[1])
    node.joined = node.enters(lookup)
    return node


def test_a_newcomer_passes_questions_on_but_settles_nothing_before_it_has_leaves() -> None:
    node = newcomer_of(100)
    assert node.joined
    contacts, done = node.answer(node.ids[node.right[0]])
    assert not done
    assert contacts[0] == node.right[0]
    assert node.own not in contacts
    ring = Ring(node.ids, range(1, 100))
    host = node.hosts[0]
    around = (*ring.predecessors(node.ids[host], 8), *ring.successors(node.ids[host] + 1, 8))
    node.part_received(host, LEAVES, tuple(around))
    assert node.answer(node.ids[node.right[0]])[1]


def test_when_the_closest_is_silent_the_next_is_asked_for_its_leaves() -> None:
    node = newcomer_of(100)
    first, second, *_ = node.hosts
    node.forget(first)
    asked = [waiting[1] for waiting in node.waiting.values() if waiting[4] == LEAVES]
    assert asked == [first, second]
