from __future__ import annotations

import pytest

from wavetank.protocols.overlays.chord import Chord
from wavetank.protocols.overlays.directory import Directory
from wavetank.protocols.overlays.kademlia import Kademlia
from wavetank.protocols.overlays.live.library_peers import loopback_workload
from wavetank.protocols.overlays.live.loopback import requests_of, try_on_loopback
from wavetank.protocols.overlays.pastry import Pastry
from wavetank.protocols.overlays.registry import Registry

OVERLAYS = [Chord, Pastry, Kademlia]


def test_lookups_come_after_all_publications() -> None:
    requests = requests_of(loopback_workload(8, 10, 1))
    assert [request.command[0] for request in requests] == ["publish"] * 10 + ["lookup"] * 10
    assert max(each.at for each in requests[:10]) < min(each.at for each in requests[10:])


@pytest.mark.parametrize("kind", [Registry, Pastry])
def test_over_udp_the_same_lookups_find_the_same(kind: type[Directory]) -> None:
    result = try_on_loopback(kind(), 8, loopback_workload(8, 8, 1), 1, round_s=0.01)
    assert result.success == result.agreement == 1.0
    assert result.latency_p50_s >= 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", OVERLAYS)
def test_64_nodes_over_udp_find_the_same_as_simulated(kind: type[Directory]) -> None:
    result = try_on_loopback(kind(), 64, loopback_workload(64, 64, 1), 1)
    assert result.success == result.agreement == 1.0
