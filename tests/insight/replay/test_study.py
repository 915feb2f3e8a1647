"""The study compares replays with real steps, and generated traces with planted sources."""

import importlib.util

import pytest

from wavetank.insight.replay import study
from wavetank.insight.replay.chakra_replay import ChakraReplay
from wavetank.insight.replay.collect import CHANGES
from wavetank.insight.replay.interface import CollectedStep
from wavetank.insight.replay.rivals import RecordedDurations
from wavetank.insight.replay.study import TraceReplay

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def job(monkeypatch):
    """Steps of 100 ms that take 100 and 140 ms when a rank is held up by 40 ms."""
    steps = [CollectedStep((), 0.1)] * 4
    made = study._Job(steps, {CHANGES[0]: [0.1] * 4, CHANGES[1]: [0.14] * 4})
    monkeypatch.setattr(study, "_job", lambda *of: made)


def rows(system):
    return {(name, *at.values()): value for name, value, at in TraceReplay().measure(system, 0).rows}


def test_errors_are_those_of_quiet_turns(job):
    found = rows(RecordedDurations())
    assert found["what_if_error", CHANGES[0]] == pytest.approx(0.4)
    assert found["what_if_error", CHANGES[1]] == pytest.approx(0)
    assert found["what_if_error",] == pytest.approx(0.2)
    assert found["replay_error",] == 0
    assert ("sizes_ks",) not in found


def test_generated_traces_are_near_their_planted_source_and_keep_no_name(job, monkeypatch):
    monkeypatch.setattr(ChakraReplay, "step_s", lambda self, step, rank, delay_s: 0.1 + rank * delay_s)
    found = rows(ChakraReplay())
    assert found["what_if_error",] == pytest.approx(0)
    assert found["mix_p_value",] > 0.05
    assert found["sizes_ks",] < 0.1 < found["blurred_sizes_ks",]
    assert found["sizes_ks",] <= found["largest_sizes_ks",] < 0.15
    assert found["names_kept",] == 0


@pytest.mark.slow
def test_a_real_run_prefers_the_graph():
    settings = {"turns": 6, "width": 64, "layers": 2, "rows": 8}
    ours, plain = (
        {(name, *at.values()): value for name, value, at in TraceReplay(**settings).measure(system, 3).rows}
        for system in (ChakraReplay(), RecordedDurations())
    )
    assert ours["replay_error",] < 0.05
    assert ours["what_if_error", CHANGES[0]] < plain["what_if_error", CHANGES[0]]
