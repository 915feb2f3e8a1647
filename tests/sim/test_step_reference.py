"""The plain Python executor, by hand-worked steps."""

import pytest

from wavetank.sim.step_reference import reference_times
from wavetank.sim.steps import DeadlockError
from wavetank.workloads.operations import Operation, StepGraph


def test_a_step_worked_by_hand():
    # Rank 0 computes 4, sends over a link for 5; rank 1 computes 6, asks for the same link, then both sum for 3.
    graph = StepGraph.of(
        [
            Operation(rank=0, duration_ps=4),
            Operation(rank=0, kind="send", peer=1, link=0, duration_ps=5),
            Operation(rank=1, duration_ps=6),
            Operation(rank=1, kind="send", peer=0, link=0, duration_ps=5),
            Operation(rank=0, kind="receive", peer=1),
            Operation(rank=1, kind="receive", peer=0),
            *(Operation(rank=r, kind="collective", collective="all-reduce", group=0, duration_ps=3) for r in (0, 1)),
        ],
        groups=((0, 1),),
    )
    times = reference_times(graph.steps)
    assert times.end_ps.tolist() == [4, 9, 6, 14, 14, 14, 17, 17]
    assert times.start_ps.tolist() == [0, 4, 0, 9, 14, 14, 14, 14]


def test_what_stands_still_is_named():
    graph = StepGraph.of([Operation(rank=0), Operation(rank=0, kind="receive", peer=1), Operation(rank=0)])
    with pytest.raises(DeadlockError, match=r"2 of 3 operations never start: operation 1 \(receive from rank 1"):
        reference_times(graph.steps, graph.describe)
