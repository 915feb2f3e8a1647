"""Pipeline schedules and data-parallel steps: orders, closed forms, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.sim.step_reference import reference_times
from wavetank.workloads.pipelines import (
    SCHEDULES,
    check_pipeline,
    data_parallel_graph,
    passes,
    pipeline_graph,
    pipeline_time_ps,
)


def written(schedule, stage, **size):
    return " ".join("FB"[each.backward] + f"{each.microbatch}.{each.chunk}" for each in passes(schedule, stage, **size))


def test_the_orders_of_the_papers():
    size = {"stages": 2, "microbatches": 2}
    assert written("gpipe", 0, **size) == "F0.0 F1.0 B0.0 B1.0"
    assert written("1f1b", 1, **size) == "F0.0 B0.0 F1.0 B1.0"
    assert written("interleaved", 1, stages=2, microbatches=4, chunks=2) == (
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"
    )


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 1), ("interleaved", 3)])
def test_every_stage_passes_every_micro_batch_forward_before_backward_once(schedule, chunks):
    for stage in range(4):
        order = passes(schedule, stage, stages=4, microbatches=8, chunks=chunks)
        assert len(set(order)) == len(order) == 2 * 8 * chunks
        for each in order:
            assert not each.backward or order.index(each._replace(backward=False)) < order.index(each)


def test_1f1b_keeps_no_more_micro_batches_in_flight_than_stages_that_follow():
    for stage in range(4):
        running = np.cumsum([1 - 2 * each.backward for each in passes("1f1b", stage, stages=4, microbatches=16)])
        assert running.max() == 4 - stage


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SCHEDULES), st.integers(1, 7), st.integers(1, 5), st.integers(1, 4), st.integers(0, 30),
    st.integers(0, 30),
)  # fmt: skip
def test_the_closed_form_is_the_makespan_of_the_executor(schedule, stages, rounds, chunks, forward_ps, backward_ps):
    size = {
        "schedule": schedule, "stages": stages, "microbatches": stages * rounds, "forward_ps": forward_ps,
        "backward_ps": backward_ps, "chunks": chunks if schedule == "interleaved" else 1,
    }  # fmt: skip
    assert pipeline_graph(**size).times().makespan_ps == pipeline_time_ps(**size)


def test_interleaving_shortens_filling_and_draining_by_the_chunks():
    # The idle time of a stage is (stages - 1) passes of a whole stage, divided by the chunks.
    plain = pipeline_time_ps("1f1b", stages=4, microbatches=8, forward_ps=60, backward_ps=120)
    chunked = pipeline_time_ps("interleaved", stages=4, microbatches=8, chunks=3, forward_ps=20, backward_ps=40)
    work = 8 * 180
    assert (plain - work) == 3 * (chunked - work)


def test_sends_delay_the_next_stage_and_overlap_with_its_passes():
    size = {"schedule": "gpipe", "stages": 3, "microbatches": 4, "forward_ps": 10, "backward_ps": 20}
    # Two boundaries each way, while the passes of other micro-batches go on.
    assert pipeline_graph(**size, send_ps=3).times().makespan_ps == pipeline_time_ps(**size) + 4 * 3


def test_one_shared_link_carries_all_sends_one_after_the_other():
    size = {"schedule": "1f1b", "stages": 4, "microbatches": 6, "forward_ps": 1, "backward_ps": 1}
    graph = pipeline_graph(**size, send_ps=100, sent_bytes=7, links=[0, 0, 0, 0])
    sends = graph.link == 0
    assert sends.sum() == 2 * 3 * 6
    assert set(graph.n_bytes[sends].tolist()) == {7}
    times = graph.times()
    assert np.array_equal(times.end_ps, reference_times(graph.steps).end_ps)
    ended = np.sort(times.end_ps[sends])
    assert (np.diff(ended) >= 100).all()
    assert times.makespan_ps > pipeline_graph(**size, send_ps=100).times().makespan_ps


def test_the_slowest_stage_sets_the_pace():
    graph = pipeline_graph(stages=3, microbatches=50, forward_ps=[10, 30, 10], backward_ps=[10, 30, 10])
    # It waits for the first forward pass alone, and the first stage ends with one backward pass more.
    assert graph.times().makespan_ps == 10 + 50 * 60 + 10


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("gpipes", 2, 2), "There is no such pipeline schedule"),
        (("gpipe", 0, 2), "A pipeline has stages"),
        (("1f1b", 2, 0), "A pipeline has microbatches"),
        (("1f1b", 2, 2.0), "A pipeline has microbatches"),
        (("1f1b", 2, 2, 2), "Only the interleaved schedule"),
        (("interleaved", 2, 3, 2), "as many micro-batches as stages, or a multiple"),
    ],
)
def test_pipelines_that_no_schedule_runs_are_refused(given, says):
    with pytest.raises(BadValueError, match=says):
        check_pipeline(*given)


def test_durations_for_another_number_of_stages_are_refused():
    with pytest.raises(BadValueError, match="one of forward_ps for each stage"):
        pipeline_graph(stages=3, microbatches=2, forward_ps=[1, 2], backward_ps=1)


def test_gradients_are_summed_while_the_backward_pass_goes_on():
    for reduce_ps, expected in ((5, 4 * 30 + 5), (25, 4 * 10 + 20 + 4 * 25)):
        graph = data_parallel_graph(ranks=3, layers=4, forward_ps=10, backward_ps=20, reduce_ps=reduce_ps)
        assert graph.times().makespan_ps == expected
    with pytest.raises(BadValueError, match="A data-parallel step has ranks"):
        data_parallel_graph(ranks=0, layers=4, forward_ps=1, backward_ps=1, reduce_ps=1)


def test_a_rank_that_is_late_holds_up_all():
    graph = data_parallel_graph(ranks=2, layers=2, forward_ps=10, backward_ps=20, reduce_ps=5)
    slow = graph.duration_ps.copy()
    slow[np.argmax(graph.rank == 1)] += 100
    changed = type(graph)(**{n: getattr(graph, n) for n in type(graph).__dataclass_fields__} | {"duration_ps": slow})
    assert changed.times().makespan_ps == graph.times().makespan_ps + 100


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 30), st.integers(0, 30))
def test_the_closed_form_holds_for_any_number_of_micro_batches(schedule, stages, microbatches, forward_ps, backward_ps):
    size = {
        "schedule": schedule, "stages": stages, "microbatches": microbatches, "forward_ps": forward_ps,
        "backward_ps": backward_ps,
    }  # fmt: skip
    assert pipeline_graph(**size).times().makespan_ps == pipeline_time_ps(**size)


def test_durations_and_links_can_be_arrays():
    size = {"stages": 3, "microbatches": 2, "send_ps": 2}
    listed = pipeline_graph(**size, forward_ps=[1, 2, 3], backward_ps=4, links=[0, 1, 0]).times()
    arrays = pipeline_graph(**size, forward_ps=np.array([1, 2, 3]), backward_ps=4, links=np.array([0, 1, 0])).times()
    assert np.array_equal(listed.end_ps, arrays.end_ps)


@pytest.mark.parametrize("stage", [-1, 2, 0.5, True])
def test_a_stage_that_there_is_not_is_refused(stage):
    with pytest.raises(BadValueError, match="no such stage"):
        passes("1f1b", stage, stages=2, microbatches=3)


def test_a_part_of_a_layer_is_refused():
    with pytest.raises(BadValueError, match="A data-parallel step has layers"):
        data_parallel_graph(ranks=2, layers=1.5, forward_ps=1, backward_ps=1, reduce_ps=1)
