"""Two real processes write records that become traces, one range a step."""

import importlib.util

import pytest

from wavetank.insight.replay import from_pytorch, simulate, step_span, validate
from wavetank.insight.replay.collect import AS_IS, CHANGES, RANKS, collect, step_name
from wavetank.insight.replay.convert import read_profile
from wavetank.live.ranks import run_ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

REDUCE = "gloo:all_reduce"


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
        # Of a busy machine the replay keeps no wait that nothing recorded explains, and what rank 1 was busy for is on
        # its way.  It adds what one rank was done with a collective before the other, no more: in a replay all are
        # done at one time.  How near it is on a quiet machine is what the study measures.
        ends = [
            [each.end for each in read_profile(device).events if each.name == REDUCE and begin <= each.begin <= end]
            for (_, device), (begin, end) in zip(files, spans, strict=True)
        ]
        assert [len(each) for each in ends] == [1, 1]
        apart = abs(ends[0][0] - ends[1][0])
        assert 0.03e9 <= simulate(traces).makespan_ps / 1000 <= 1.01 * took + apart
        assert {node.attributes["comm_type"] for node in traces[0].nodes if node.type == 7} == {0}
        for rank, change in enumerate(CHANGES):
            begin, end = step_span(files[rank][1], step_name(change, turn))
            assert end - begin >= 0.05e9
