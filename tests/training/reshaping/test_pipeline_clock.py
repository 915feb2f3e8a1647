"""Pipelines of unequal passes: known answers, the step graph's own times, and the short way through the schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.reshaping.pipeline_clock import even_time_ps, slowest_ps
from wavetank.workloads.pipelines import pipeline_graph, pipeline_time_ps


def by_hand(chunk: np.ndarray, send: int) -> int:
    """1F1B written down as the recursion of its definition, pass by pass."""
    stages, count = chunk.shape
    ends: dict[tuple[str, int, int], int] = {}

    def order(stage: int) -> list[tuple[str, int]]:
        warm = min(count, stages - 1 - stage)
        found = [("F", k) for k in range(warm)]
        for k in range(count - warm):
            found += [("F", warm + k), ("B", k)]
        return found + [("B", k) for k in range(count - warm, count)]

    orders = [order(stage) for stage in range(stages)]
    sent: dict[tuple[str, int], int] = {}
    arrived: dict[tuple[str, int, int], int] = {}
    while any(orders):
        for stage in range(stages):
            while orders[stage]:
                way, k = orders[stage][0]
                if way == "F":
                    ready = 0 if stage == 0 else arrived.get(("F", stage, k))
                else:
                    ready = ends.get(("F", stage, k)) if stage == stages - 1 else arrived.get(("B", stage, k))
                if ready is None:
                    break
                orders[stage].pop(0)
                forward = int(chunk[stage, k]) // 3
                took = forward if way == "F" else int(chunk[stage, k]) - forward
                before = [end for (_, s, _), end in ends.items() if s == stage]
                end = max([ready, *before]) + took
                ends[way, stage, k] = end
                target = stage + (1 if way == "F" else -1)
                if 0 <= target < stages:
                    there = max(end, sent.get((way, stage), 0)) + send
                    sent[way, stage] = arrived[way, target, k] = there
    return max(ends.values())


@settings(max_examples=40, deadline=None)
@given(
    stages=st.integers(1, 5), count=st.integers(1, 7), send=st.integers(0, 9), data=st.data(),
)  # fmt: skip
def test_times_are_those_of_the_schedule_walked_by_hand(stages, count, send, data):
    chunk = np.array([[data.draw(st.integers(0, 60)) for _ in range(count)] for _ in range(stages)])
    assert slowest_ps(chunk[None], send) == by_hand(chunk, send)
    assert slowest_ps(np.stack([chunk, chunk[::-1]]), send) == max(by_hand(chunk, send), by_hand(chunk[::-1], send))
    even = tuple(int(each) for each in chunk[:, 0])
    repeated = np.repeat(chunk[:, :1], count, axis=1)
    assert even_time_ps(even, count, send) == by_hand(repeated, send)


def test_equal_stages_take_what_the_closed_form_says():
    for stages, count in ((1, 1), (4, 8), (8, 3)):
        want = pipeline_time_ps("1f1b", stages=stages, microbatches=count, forward_ps=10, backward_ps=20)
        assert even_time_ps((30,) * stages, count, 0) == want
        assert slowest_ps(np.full((2, stages, count), 30)) == want


def test_a_boundary_takes_what_the_step_graph_says():
    graph = pipeline_graph(stages=3, microbatches=4, forward_ps=[5, 9, 7], backward_ps=[10, 18, 14], send_ps=4)
    assert even_time_ps((15, 27, 21), 4, 4) == graph.times().makespan_ps


def test_a_pipeline_without_micro_batches_takes_no_time_and_one_more_takes_at_least_as_long():
    assert even_time_ps((5, 6), 0, 1) == 0
    times = [even_time_ps((5, 11, 3), count, 2) for count in range(20)]
    assert times == sorted(times)


@pytest.mark.parametrize("wrong", [np.ones((3, 2), np.int64), np.full((1, 1, 1), -1), np.ones((0, 2, 2), np.int64)])
def test_times_of_another_shape_are_refused(wrong):
    with pytest.raises(BadValueError, match="every stage"):
        slowest_ps(wrong)
