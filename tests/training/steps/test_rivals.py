"""SimPy, plain Python and the closed form give the times of the executor, or say why not."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError, GaveUpError, MissingExtraError
from wavetank.sim.steps import DeadlockError
from wavetank.training.steps.interface import StepCase
from wavetank.training.steps.rivals import BusiestRank, ClosedFormSteps, PythonSteps, SimpySteps
from wavetank.workloads.operations import Operation, StepGraph
from wavetank.workloads.pipelines import data_parallel_graph, pipeline_graph

PIPELINE = {"schedule": "1f1b", "stages": 4, "microbatches": 6, "forward_ps": 10, "backward_ps": 20}


def test_the_closed_form_is_a_number_where_there_is_one_and_gives_up_elsewhere():
    graph = pipeline_graph(**PIPELINE)
    assert ClosedFormSteps().prepare(StepCase(graph, PIPELINE))() == graph.times().makespan_ps
    with pytest.raises(GaveUpError, match="no closed form"):
        ClosedFormSteps().prepare(StepCase(graph, {}))()


def test_the_work_of_the_busiest_rank_waits_for_nobody():
    graph = pipeline_graph(**PIPELINE)
    times = BusiestRank().prepare(StepCase(graph, {}))()
    assert times.makespan_ps == 6 * (10 + 20)
    assert graph.times().makespan_ps == (6 + 4 - 1) * (10 + 20)
    # On one rank there is nobody to wait for.
    alone = StepGraph.of([Operation(rank=0, duration_ps=4), Operation(rank=0, duration_ps=5)])
    assert BusiestRank().prepare(StepCase(alone, {}))().end_ps.tolist() == alone.times().end_ps.tolist()


def test_plain_python_gives_the_executors_times():
    graph = pipeline_graph(**PIPELINE, send_ps=7, links=[0, 0, 1, 1])
    times = PythonSteps().prepare(StepCase(graph, {}))()
    assert np.array_equal(times.end_ps, graph.times().end_ps)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3), st.data()
)  # fmt: skip
def test_simpy_gives_the_executors_times(schedule, stages, microbatches, send_ps, data):
    pytest.importorskip("simpy")
    took = st.lists(st.integers(0, 9), min_size=stages, max_size=stages)
    graph = pipeline_graph(
        schedule=schedule, stages=stages, microbatches=microbatches, forward_ps=data.draw(took),
        backward_ps=data.draw(took), send_ps=send_ps,
    )  # fmt: skip
    times = SimpySteps().prepare(StepCase(graph, {}))()
    assert np.array_equal(times.end_ps, graph.times().end_ps)
    assert np.array_equal(times.start_ps, graph.times().start_ps)


def test_simpy_runs_collectives_messages_and_links_too():
    pytest.importorskip("simpy")
    for graph in (
        data_parallel_graph(ranks=3, layers=4, forward_ps=3, backward_ps=5, reduce_ps=7),
        StepGraph.of(
            [
                Operation(rank=0, duration_ps=3), Operation(rank=0, kind="send", link=0, peer=1, duration_ps=10),
                Operation(rank=1, duration_ps=2), Operation(rank=1, kind="send", link=0, duration_ps=10),
                Operation(rank=1, kind="receive", peer=0, stream=1, duration_ps=1),
                *(Operation(rank=r, kind="collective", collective="barrier", group=0, stream=r, link=0, duration_ps=r)
                  for r in (0, 1)),
            ],
            groups=((0, 1),),
        ),
    ):  # fmt: skip
        times = SimpySteps().prepare(StepCase(graph, {}))()
        assert np.array_equal(times.end_ps, graph.times().end_ps)


def test_simpy_refuses_what_would_stand_still():
    pytest.importorskip("simpy")
    graph = StepGraph.of([Operation(rank=0, kind="receive", peer=1)])
    with pytest.raises(BadValueError, match="simpy-steps runs whole graphs alone"):
        SimpySteps().prepare(StepCase(graph, {}))


def test_without_simpy_the_error_says_which_extra_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(MissingExtraError, match="'simpy'") as missing:
        SimpySteps().prepare(StepCase(pipeline_graph(**PIPELINE), {}))
    assert "training" in missing.value.hint


def test_simpy_says_so_when_operations_wait_for_each_other():
    pytest.importorskip("simpy")
    crossed = [
        Operation(rank=rank, kind="collective", collective="barrier", group=group)
        for rank, order in ((0, (0, 1)), (1, (1, 0)))
        for group in order
    ]
    graph = StepGraph.of([Operation(rank=2), *crossed], groups=((0, 1), (0, 1)))
    with pytest.raises(DeadlockError, match="4 of 5 operations never start"):
        SimpySteps().prepare(StepCase(graph, {}))()
