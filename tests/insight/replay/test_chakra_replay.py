"""A rank that is held up counts where others wait for it, and nowhere else."""

import pytest
from tests.insight.replay.test_convert import CALLS, STEP, device, host

from wavetank.errors import BadValueError
from wavetank.insight.replay import from_pytorch, validate
from wavetank.insight.replay.chakra_replay import ChakraReplay, held_up
from wavetank.insight.replay.interface import CollectedStep
from wavetank.workloads.chakra import duration_ns


@pytest.fixture
def step(tmp_path):
    """Rank 1 begins 30 us after rank 0, and both end together."""
    later = [each | {"ts": each["ts"] + 30} for each in STEP]
    traces = [
        from_pytorch(host(tmp_path, CALLS), device(tmp_path, events, f"{n}.json"), step=3, since_ns=1_000_000)
        for n, events in enumerate((STEP, later))
    ]
    return CollectedStep(traces, 130e-6)


def test_a_delay_is_absorbed_where_a_rank_waits_and_counts_where_it_is_waited_for(step):
    replay = ChakraReplay()
    assert replay.step_s(step, 0, 0.0) == pytest.approx(130e-6, rel=0.02)
    assert replay.step_s(step, 0, 20e-6) == replay.step_s(step, 0, 0.0)
    assert replay.step_s(step, 1, 20e-6) == pytest.approx(replay.step_s(step, 1, 0.0) + 20e-6, rel=1e-9)
    # Beyond what it waited, rank 0 is the late one.
    assert replay.step_s(step, 0, 50e-6) == pytest.approx(replay.step_s(step, 0, 0.0) + 20e-6, rel=0.02)


def test_only_the_first_call_is_held_up(step):
    before, after = step.traces[0], held_up(step.traces[0], 1e-3)
    changed = [
        (one, other) for one, other in zip(before.nodes, after.nodes, strict=True)
        if duration_ns(one) != duration_ns(other)
    ]  # fmt: skip
    ((one, other),) = changed
    assert one.name == "aten::mm"
    assert duration_ns(other) - duration_ns(one) == 1_000_000


def test_it_generates_sound_traces(step):
    made = ChakraReplay().generated(step.traces, 0)
    assert validate(made) == ()
    assert len(made) == 2
    with pytest.raises(BadValueError):
        ChakraReplay(blur=3.0)
