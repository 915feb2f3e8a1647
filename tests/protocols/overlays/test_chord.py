from __future__ import annotations

from typing import Any

import pytest

from wavetank.protocols.faults import Crash
from wavetank.protocols.overlays.chord import Chord, ChordNode
from wavetank.protocols.overlays.directory import inner_node
from wavetank.protocols.overlays.identifiers import identifiers, key_of
from wavetank.protocols.overlays.tables import Ring, ring_of
from wavetank.protocols.simulation import Request, simulate

STILL: dict[str, Any] = {
    "stabilize_rounds": 1000, "refresh_rounds": 1000, "republish_rounds": 1000, "ttl_rounds": 1000
}  # fmt: skip


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
        from wavetank.protocols.overlays.tables import give_exact

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
