"""Tests of QUANTAS's Chord."""

from __future__ import annotations

import pytest

from wavetank.protocols.quantas.linear_chord import QuantasChord
from wavetank.protocols.quantas.rounds import QuantasRounds
from wavetank.sim.events import simulate
from wavetank.sim.network import Topology
from wavetank.sim.simulation import Request, Run


def looked_up(size: int, origin: int, target: int, topology: Topology | None = None) -> Run:
    asked = [Request(at=1, node=origin, command=target)]
    topology = topology or Topology.complete(size)
    return QuantasRounds().simulate(QuantasChord(), rounds=100, topology=topology, requests=asked)


@pytest.mark.parametrize(("origin", "target", "hops"), [(0, 1, 1), (0, 127, 7), (5, 5 + 64, 1), (100, 3, 5), (9, 9, 0)])
def test_a_lookup_needs_as_many_hops_as_the_distance_has_ones(origin: int, target: int, hops: int) -> None:
    # 3 - 100 is 31 modulo 128.
    run = looked_up(128, origin, target)
    assert run.recorded["lookup_hops"] == [(1 + hops, target, hops)]
    assert run.sent == hops


def test_without_long_links_it_goes_round_the_ring() -> None:
    ring = Topology.named("ring", 10)
    assert looked_up(10, 2, 7, ring).recorded["lookup_hops"] == [(6, 7, 5)]


def test_without_a_link_onward_the_nearest_neighbour_is_taken() -> None:
    star = Topology.named("star", 6)
    assert looked_up(6, 2, 4, star).recorded["lookup_hops"] == [(3, 4, 2)]
    # Here every neighbour of the origin lies beyond the target: the nearest of them is taken, and comes round.
    back = Topology.from_edges([(1, 0), (0, 3), (3, 2)], size=4)
    assert looked_up(4, 1, 2, back).recorded["lookup_hops"] == [(4, 2, 3)]
    alone = Topology.from_edges([(1, 0)], size=3)
    assert looked_up(3, 0, 2, alone).recorded == {}


def test_it_runs_as_events_too() -> None:
    asked = [Request(at=1, node=0, command=31)]
    run = simulate(QuantasChord(), size=32, until=50, life="events", requests=asked)
    assert run.recorded["lookup_hops"][0][2] == 5


def test_the_series_have_quantas_names() -> None:
    series = QuantasChord().series(looked_up(16, 0, 3), 100)
    assert series["linearChordRequestsSatisfied"][-1] == 1
    assert series["linearChordAverageHops"] == [2.0] * 98
    assert QuantasChord().max_faults(16) == 0
    assert QuantasChord().violation(looked_up(4, 0, 1).snapshot()) == ""
