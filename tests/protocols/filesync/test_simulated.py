"""Whole simulated runs: what the engines promise, and that the seed decides."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.protocols.filesync.simulated import network_of, run_simulated
from wavetank.protocols.filesync.timeline import TimelineSync
from wavetank.protocols.filesync.workloads import WORKLOADS, Scenario

NAMES = ["timeline", "careful", "vectors", "causal", "bilateral"]


@pytest.mark.parametrize("name", NAMES)
def test_a_single_device_loses_nothing(engines: Any, name: str) -> None:
    found = run_simulated(engines[name], Scenario(devices=1, rounds=250, cuts=3, skew_rounds=0), 1, drop=0.05).damage
    assert (len(found.lost), len(found.resurrected), found.torn, found.failed_restores) == (0, 0, 0, 0)
    assert found.conflict_copies == 0


@pytest.mark.parametrize("name", NAMES)
def test_without_concurrency_nothing_is_lost(engines: Any, play: Any, name: str) -> None:
    from wavetank.protocols.filesync.applications import Put

    edits = [(1.0 + 40 * number, 1 + number % 2, Put("a", b"%d" % number)) for number in range(8)]
    found = play(engines[name], edits)
    assert found.damage.lost == frozenset()
    assert found.damage.conflict_copies == 0
    assert [files["a"].content for files in found.at_end.values()] == [b"7", b"7"]


def test_a_timeline_loses_and_tears_and_a_careful_one_only_tears(engines: Any) -> None:
    damages = {
        name: [run_simulated(engines[name], Scenario(rounds=400, cuts=5), seed).damage for seed in range(3)]
        for name in ("timeline", "careful")
    }
    assert sum(len(damage.silent) for damage in damages["timeline"]) > 0
    assert sum(len(damage.lost) for damage in damages["careful"]) == 0
    assert sum(damage.torn for damage in damages["careful"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKLOADS)
@pytest.mark.parametrize("name", ["causal", "bilateral"])
def test_snapshots_lose_and_tear_nothing_under_heavy_concurrency(engines: Any, name: str, work: str) -> None:
    scenario = Scenario(work=work, devices=4, rounds=500, pause_rounds=2, cuts=8, cut_rounds=50, skew_rounds=5)
    for seed in range(100, 104):
        found = run_simulated(engines[name], scenario, seed, drop=0.1).damage
        assert (len(found.lost), found.torn, found.torn_at_end, found.failed_restores) == (0, 0, (), 0)
        assert found.divergence_bytes == 0


def test_the_seed_decides_everything() -> None:
    scenario = Scenario(rounds=100, cuts=2)
    one, same, other = (run_simulated(TimelineSync(), scenario, seed, drop=0.1) for seed in (1, 1, 2))
    assert one == same
    assert one.bytes_sent != other.bytes_sent


def test_the_network_is_a_star_with_the_scenarios_cuts() -> None:
    network = network_of(Scenario(devices=3, cuts=2), 1, drop=0.25)
    assert network.topology.links == ((1, 2, 3), (0,), (0,), (0,))
    assert len(network.links.partitions) == 2
    assert network.links.drop == 0.25
