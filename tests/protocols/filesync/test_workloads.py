"""Workloads: all of it follows from the seed, and every kind does its own things."""

from __future__ import annotations

import pytest

from wavetank.protocols.filesync.applications import Backup, Build, GitCommit, Look, Move, Save, SaveBundle
from wavetank.protocols.filesync.workloads import WORK, Scenario

KINDS = {"documents": Save, "git": GitCommit, "backup": Backup, "build": Build, "bundles": SaveBundle, "moves": Move}


@pytest.mark.parametrize("work", WORK)
def test_every_kind_of_work_does_its_own_things(work: str) -> None:
    actions = Scenario(work=work, rounds=600).actions(1)
    assert any(isinstance(action.command, KINDS[work]) for action in actions)
    others = set(KINDS.values()) - {KINDS[work], Save}
    assert not any(isinstance(action.command, tuple(others)) for action in actions)


def test_everything_follows_from_the_seed() -> None:
    scenario = Scenario()
    assert scenario.actions(3) == scenario.actions(3) != scenario.actions(4)
    assert scenario.clocks(3) == scenario.clocks(3) != scenario.clocks(4)
    assert scenario.partitions(3) == scenario.partitions(3) != scenario.partitions(4)


def test_actions_are_in_order_and_within_bounds() -> None:
    scenario = Scenario(devices=5, rounds=200)
    actions = scenario.actions(0)
    assert [action.at for action in actions] == sorted(action.at for action in actions)
    assert {action.device for action in actions} == {1, 2, 3, 4, 5}
    assert max(action.at for action in actions) < 200
    looks = [action for action in actions if isinstance(action.command, Look)]
    assert len(looks) == 5 * 10


def test_without_skew_clocks_are_right_and_cuts_isolate_one_device() -> None:
    scenario = Scenario(skew_rounds=0)
    assert all(clock.at(7.0) == 7.0 for clock in scenario.clocks(1).values())
    for cut in scenario.partitions(1):
        (others, (device,)) = cut.groups
        assert cut.cuts(0, device, cut.start)
        assert 0 in others
        assert 0 <= cut.start <= cut.stop <= scenario.rounds
