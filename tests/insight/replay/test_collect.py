"""Two real processes write records that become traces, one range a step."""

import importlib.util

import pytest

from wavetank.insight.replay import from_pytorch, simulate, step_span, validate
from wavetank.insight.replay.collect import AS_IS, CHANGES, RANKS, collect, step_name
from wavetank.live.ranks import run_ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_recorded_steps_become_traces_that_replay_and_the_planted_delay_is_in_them(tmp_path):
    arguments = {"folder": str(tmp_path), "width": 32, "layers": 2, "rows": 8, "prepare_s": 0.03, "turns": 2,
                 "delay_s": 0.05, "seed": 0}  # fmt: skip
    run_ranks(collect, RANKS, arguments=arguments, timeout_s=120.0)
    files = [(tmp_path / f"host.{rank}.json", tmp_path / f"device.{rank}.json") for rank in range(RANKS)]
    for turn in range(2):
        name = step_name(AS_IS, turn)
        spans = [step_span(device, name) for _, device in files]
        since = min(begin for begin, _ in spans)
        traces = [from_pytorch(*each, step=name, since_ns=since) for each in files]
        assert validate(traces) == ()
        took = max(end for _, end in spans) - since
        # Of a busy machine the replay keeps no wait that nothing recorded explains, but it adds little, and what rank 1
        # was busy for is on its way.  How near it is on a quiet one is what the study measures.
        assert 0.03e9 <= simulate(traces).makespan_ps / 1000 <= 1.1 * took
        assert {node.attributes["comm_type"] for node in traces[0].nodes if node.type == 7} == {0}
        for rank, change in enumerate(CHANGES):
            begin, end = step_span(files[rank][1], step_name(change, turn))
            assert end - begin >= 0.05e9
