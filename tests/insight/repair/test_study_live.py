"""The live study: outcomes of scripted faults are those of the agent's own decision."""

import numpy as np
import pytest

from wavetank.insight.repair import study_live
from wavetank.insight.repair.interface import ACTIONS, FAULTS, READINGS, Decisions
from wavetank.insight.repair.live import NONE, Outcome, Seen
from wavetank.insight.repair.study_live import GreyFailuresLive


class Fixed:
    """An agent that always decides the same."""

    def __init__(self, action, acts):
        self.action, self.acts = action, acts

    def fitted(self, learning):
        return self

    def decide(self, readings, slo_ok):
        assert readings.shape == (1, len(READINGS))
        return Decisions(np.array([self.action]), np.array([self.acts]), np.array([1.0]))


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    def tried(rig, seed):
        blank = np.zeros(len(READINGS))
        return tuple(
            Outcome(fault, action, Seen(blank, False), Seen(blank, action == fault), 0.5)
            for fault in range(len(FAULTS))
            for action in (NONE, *range(len(ACTIONS)))
        )

    monkeypatch.setattr(study_live, "tried", tried)


def figures(agent):
    return {metric: value for metric, value, _ in GreyFailuresLive().measure(agent, 900).rows}


def test_one_action_for_all_faults_repairs_a_third_and_harms_the_others():
    found = figures(Fixed(1, True))
    assert found["repaired"] == found["accuracy_acted"] == pytest.approx(1 / 3)
    assert found["destructive_rate"] == pytest.approx(2 / 3)
    assert (found["coverage"], found["repair_s"], found["healed_by_right"]) == (1.0, 0.5, 1.0)


def test_a_strike_that_broke_nothing_counts_for_nobody(monkeypatch):
    def tried(rig, seed):
        blank = np.zeros(len(READINGS))
        # The strike on which nothing was done, of the first fault, and those that were restarted broke nothing.
        return tuple(
            Outcome(fault, action, Seen(blank, action == 1 or (fault, action) == (0, NONE)),
                    Seen(blank, action in (fault, 1) or (fault, action) == (0, NONE)), 0.5)
            for fault in range(len(FAULTS))
            for action in (NONE, *range(len(ACTIONS)))
        )  # fmt: skip

    monkeypatch.setattr(study_live, "tried", tried)
    restarts, hands_on = figures(Fixed(1, True)), figures(Fixed(1, False))
    assert "repaired" not in restarts
    assert hands_on["repaired"] == 0.0
    assert restarts["healed_by_right"] == hands_on["healed_by_right"] == 1.0


def test_who_hands_on_repairs_nothing_and_harms_nobody():
    found = figures(Fixed(1, False))
    assert (found["repaired"], found["destructive_rate"], found["coverage"]) == (0.0, 0.0, 0.0)
    assert "accuracy_acted" not in found
    assert any("busy" in each for each in GreyFailuresLive().notes())
