"""Bilateral transactions: both ends know, retries and replays change nothing, nothing is lost or torn."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.protocols.filesync.applications import Put
from wavetank.protocols.filesync.bilateral import BilateralSync
from wavetank.protocols.filesync.simulated import network_of
from wavetank.protocols.filesync.workloads import Scenario
from wavetank.sim.events import simulate
from wavetank.sim.simulation import Request, Run

CUT = [(20.0, 100.0, 2)]
EDITS = [(1, 1, Put("a", b"0")), (30, 1, Put("a", b"by one")), (60, 2, Put("a", b"by two"))]


def test_two_edits_during_a_cut_are_both_shown(play: Any) -> None:
    found = play(BilateralSync(), EDITS, cuts=CUT)
    assert found.damage.lost == frozenset()
    assert found.damage.conflict_copies == 1
    assert found.at_end[1].keys() == found.at_end[2].keys()


@pytest.mark.parametrize("seed", range(5))
def test_duplicated_and_replayed_messages_change_nothing(play: Any, seed: int) -> None:
    plain = play(BilateralSync(), EDITS, cuts=CUT, seed=seed)
    again = play(BilateralSync(), EDITS, cuts=CUT, seed=seed, duplicate=0.6, reorder=0.4, drop=0.2, until=800)

    def contents(found: Any) -> dict[int, dict[str, Any]]:
        return {device: {path: seen.content for path, seen in files.items()} for device, files in found.at_end.items()}

    assert contents(again) == contents(plain)
    assert again.damage.conflict_copies == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_tokens_are_conserved_at_every_instant_and_nothing_is_lost(seed: int) -> None:
    engine = BilateralSync()
    scenario = Scenario(rounds=250, cuts=5, devices=3)
    found: list[str] = []

    def watch(run: Run) -> bool:
        if engine.violation(run.snapshot()):
            found.append(engine.violation(run.snapshot()))
        return bool(found)

    requests = [Request(at=action.at, node=action.device, command=action.command) for action in scenario.actions(seed)]
    network = network_of(scenario, seed, drop=0.1)
    simulate(engine, network=network, until=500, life="events", seed=seed, requests=requests, stop=watch)
    assert found == []


def test_a_broken_token_is_told() -> None:
    engine = BilateralSync()
    run = simulate(engine, network=network_of(Scenario(devices=1, cuts=0), 0), until=20, life="events")
    assert engine.violation(run.snapshot()) == ""
    cloud: Any = run.nodes[0]
    cloud.links[1].token.owner = True
    assert engine.violation(run.snapshot()) == "2 ends own the token of the link to device 1"


def test_a_hand_over_costs_two_round_trips(play: Any) -> None:
    found = play(BilateralSync(), [(5, 1, Put("a", b"1"))], offsets=(0.0,))
    assert found.messages == 4
