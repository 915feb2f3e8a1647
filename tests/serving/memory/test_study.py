"""The study of a divided memory: its figures and what it refuses."""

import pytest

from wavetank.errors import BadValueError
from wavetank.machine import limits
from wavetank.serving.memory.helm import Helm
from wavetank.serving.memory.rivals import FixedSplit
from wavetank.serving.memory.study import SCENARIOS, MemorySplitStudy

SMALL = MemorySplitStudy(requests=18_000)


def test_figures_are_there_for_every_scenario_and_equal_seeds_give_equal_figures():
    def simulated(policy):
        return [row for row in SMALL.measure(policy, 0).rows if row[0] != "decision_s"]

    fixed = simulated(FixedSplit())
    assert fixed == simulated(FixedSplit()) != simulated(Helm())
    assert {at["scenario"] for metric, _, at in fixed if metric == "scenario_p99_s"} == set(SCENARIOS)
    values = {metric: value for metric, value, at in fixed if not at}
    assert values["over_bytes"] == values["refill_share"] == 0 < values["p99_s"] <= values["p99_whole_s"]


def test_a_memory_without_room_for_one_history_is_refused():
    with pytest.raises(BadValueError):
        MemorySplitStudy(memory_bytes=1e8).check()
    MemorySplitStudy().check()


def test_a_trace_longer_than_this_machines_memory_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(limits, "available_bytes", lambda: 10**9)
    with pytest.raises(BadValueError, match="needs more memory"):
        MemorySplitStudy(requests=10**8).check()
    MemorySplitStudy().check()


def test_the_error_of_the_replay_is_said():
    assert "Che" in SMALL.notes()[0]
