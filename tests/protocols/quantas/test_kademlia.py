"""Tests of QUANTAS's Kademlia."""

from __future__ import annotations

import math
import statistics

import pytest

from wavetank.protocols.quantas.kademlia import KademliaNode, QuantasKademlia
from wavetank.protocols.quantas.rounds import QuantasRounds
from wavetank.protocols.quantas.series import lookups
from wavetank.sim.events import simulate
from wavetank.sim.network import Topology
from wavetank.sim.simulation import Request, Run


def requests(size: int, rounds: int) -> list[Request]:
    drawn = lookups(size, rounds, 0, elsewhere=False)
    return [Request(at=at, node=origin, command=target) for at, (origin, target) in enumerate(drawn, 1)]


def looked_up(size: int, rounds: int = 1000) -> Run:
    return QuantasRounds().simulate(QuantasKademlia(), rounds=rounds + 20, size=size, requests=requests(size, rounds))


@pytest.mark.parametrize("size", [16, 100, 128, 512])
def test_hops_are_half_the_logarithm_on_average_and_never_more_than_it(size: int) -> None:
    hops = [hops for _, _, hops in looked_up(size).recorded["lookup_hops"]]
    assert len(hops) == 1000
    assert max(hops) <= math.ceil(math.log2(size))
    assert statistics.fmean(hops) == pytest.approx(math.log2(size) / 2, abs=0.25)


def test_a_lookup_takes_a_round_a_hop_and_may_wait_for_a_channel() -> None:
    run = looked_up(64)
    took, hops = ([value for _, _, value in run.recorded[name]] for name in ("lookup_rounds", "lookup_hops"))
    assert all(one >= other for one, other in zip(took, hops, strict=True))
    assert 0 <= sum(took) - sum(hops) < 50
    assert run.sent == sum(hops)


def test_every_contact_differs_first_in_the_bit_of_its_group() -> None:
    for node in looked_up(100).nodes:
        assert isinstance(node, KademliaNode)
        for group, contact in node.contacts.items():
            assert (contact ^ node.context.id).bit_length() - 1 == group
            assert 0 <= contact < 100


def test_neighbours_alone_are_contacts() -> None:
    grid = Topology.named("grid", 16, width=4)
    asked = requests(16, 200)
    run = QuantasRounds().simulate(QuantasKademlia(), rounds=300, topology=grid, requests=asked)
    for node in run.nodes:
        assert isinstance(node, KademliaNode)
        assert set(node.contacts.values()) <= set(node.context.peers)
    assert 0 < len(run.recorded["lookup_hops"]) < 200


def test_it_runs_as_events_too() -> None:
    run = simulate(QuantasKademlia(), size=64, until=1100, life="events", requests=requests(64, 1000))
    assert len(run.recorded["lookup_hops"]) == 1000


def test_the_series_end_with_the_totals() -> None:
    run = looked_up(16)
    series = QuantasKademlia().series(run, 1020)
    assert series["kademliaRequestsSatisfied"][-1] == 1000
    assert series["kademliaAverageHops"][-1] == pytest.approx(run.total("lookup_hops") / 1000)
    assert QuantasKademlia().max_faults(16) == 0
    assert QuantasKademlia().violation(run.snapshot()) == ""
