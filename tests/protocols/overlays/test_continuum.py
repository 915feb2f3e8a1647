from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.overlays.continuum import CLOUD, EDGE, INTERMITTENT, Intermittent, LinkClasses, Sites
from wavetank.protocols.overlays.directory import Notify
from wavetank.protocols.overlays.registry import Registry
from wavetank.sim.events import simulate
from wavetank.sim.network import Links, Network, Topology
from wavetank.sim.simulation import Request


def test_shares_of_sites_are_those_asked_for() -> None:
    classes = Sites(size=5000, cloud=0.3, intermittent=0.1, seed=1).classes()
    assert classes[0] == CLOUD
    assert abs(classes.count(CLOUD) / 5000 - 0.3) < 0.03
    assert abs(classes.count(INTERMITTENT) / 5000 - 0.1) < 0.02
    assert classes == Sites(size=5000, cloud=0.3, intermittent=0.1, seed=1).classes()


@pytest.mark.parametrize(
    ("ends", "low", "high"), [((0, 0), 1, 5), ((0, 1), 20, 60), ((1, 0), 20, 60), ((1, 2), 40, 120)]
)
def test_delays_lie_in_the_range_of_their_class(ends: tuple[int, int], low: float, high: float) -> None:
    classes = LinkClasses((CLOUD, EDGE, INTERMITTENT), round_ms=100.0, seed=1)
    delays = [100 * classes.extra_delay(*ends, Notify(1), 0.0) for _ in range(500)]
    assert low <= min(delays) < low + 0.2 * (high - low)
    assert high - 0.2 * (high - low) < max(delays) <= high


def test_a_lookup_from_the_edge_takes_two_legs() -> None:
    classes = (CLOUD, EDGE, CLOUD)
    requests = [Request(at=1, node=1, command=("publish", "key", "here"))]
    requests += [Request(at=10, node=node, command=("lookup", "key")) for node in (1, 2)]
    run = simulate(
        Registry(),
        network=Network(topology=Topology.complete(3), links=Links(least_delay=0.0)),
        life="events",
        until=30,
        requests=requests,
        scheduler=LinkClasses(classes, round_ms=100.0, seed=1),
    )
    assert 0.4 <= run.replies[1].at - 10 <= 1.2
    assert 0.02 <= run.replies[2].at - 10 <= 0.1


def test_an_intermittent_node_loses_messages_but_runs_on() -> None:
    requests = [Request(at=1, node=1, command=("publish", "key", "here"))]
    requests += [Request(at=10 + 5 * n, node=1, command=("lookup", "key")) for n in range(40)]
    run = simulate(
        Registry(), size=2, until=300, requests=requests, faults=[Intermittent(members=(1,), mean_on=20, mean_off=20)]
    )
    statuses = {run.replies[number].result.status for number in range(1, 41)}
    assert statuses == {"found", "failed"}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadValueError, match="add up to 1"):
        Sites(size=5, cloud=0.9, intermittent=0.2)
    with pytest.raises(BadValueError, match="takes time"):
        LinkClasses((CLOUD,), round_ms=0, seed=1)
    with pytest.raises(BadValueError, match="take time"):
        Intermittent(members=(0,), mean_on=0)
