"""HEFT, CPOP and PEFT: the lengths that the papers print, and plans that hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.serving.workflows.list_scheduling import Placed, Problem, Timelines, cpop, heft, peft

# The graph of ten tasks on three processors of Topcuoglu, Hariri and Wu, 2002: figure 1.
RUN_S = np.array(
    [[14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10], [13, 16, 9], [7, 15, 11], [5, 11, 14],
     [18, 12, 20], [21, 7, 16]], float,
)  # fmt: skip
EDGES = {
    (0, 1): 18, (0, 2): 12, (0, 3): 9, (0, 4): 11, (0, 5): 14, (1, 7): 19, (1, 8): 16, (2, 6): 23, (3, 7): 27,
    (3, 8): 23, (4, 8): 13, (5, 7): 15, (6, 9): 17, (7, 9): 11, (8, 9): 13,
}  # fmt: skip
RULES = {"heft": heft, "peft": peft, "cpop": cpop}


def problem(run_s, edges):
    count = len(run_s)
    parents = [[a for a, b in edges if b == task] for task in range(count)]
    sizes = [[float(edges[a, task]) for a in parents[task]] for task in range(count)]
    return Problem(np.asarray(run_s, float), parents, sizes, range(count))


TEXTBOOK = problem(RUN_S, EDGES)


def test_upward_ranks_are_those_of_the_paper():
    assert TEXTBOOK.upward_s() == pytest.approx(
        [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667], abs=1e-3
    )


@pytest.mark.parametrize("rule, length", [("heft", 80), ("cpop", 86)])
def test_the_textbook_instance_takes_what_the_paper_says(rule, length):
    assert max(each.end_s for each in RULES[rule](TEXTBOOK, Timelines(3))) == length


def test_the_optimistic_table_is_the_shortest_way_to_the_end():
    """By enumeration: of all ways the longest, each with its devices chosen best."""
    table = TEXTBOOK.optimistic_s()

    def rest(task, device):
        least = []
        for (parent, child), edge in EDGES.items():
            if parent == task:
                least.append(min(RUN_S[child, to] + rest(child, to) + (edge if to != device else 0) for to in range(3)))
        return max(least, default=0.0)

    assert table.tolist() == [[rest(task, device) for device in range(3)] for task in range(10)]


def check(plan: list[Placed], given: Problem) -> None:
    for task, placed in enumerate(plan):
        assert placed.end_s - placed.start_s == pytest.approx(given.run_s[task, placed.device])
        for parent, edge in zip(given.parents[task], given.edge_s[task], strict=True):
            away = edge if plan[parent].device != placed.device else 0.0
            assert placed.start_s >= plan[parent].end_s + away - 1e-9
    for one, other in itertools.combinations(plan, 2):
        apart = one.device != other.device or one.end_s <= other.start_s + 1e-9 or other.end_s <= one.start_s + 1e-9
        assert apart


@given(st.data())
@settings(deadline=None)
def test_every_plan_keeps_the_order_and_gives_a_device_one_task_at_a_time(data):
    count, devices = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    run = data.draw(
        st.lists(st.lists(st.integers(1, 20), min_size=devices, max_size=devices), min_size=count, max_size=count)
    )
    pairs = [(a, b) for b in range(count) for a in range(b)]
    some = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    edges = {pair: data.draw(st.integers(0, 9)) for pair in some}
    given_problem = problem(run, edges)
    for rule in RULES.values():
        check(rule(given_problem, Timelines(devices)), given_problem)


def test_a_task_goes_into_a_gap_that_is_long_enough():
    lines = Timelines(1)
    lines.take(Placed(0, 0.0, 1.0))
    lines.take(Placed(0, 3.0, 4.0))
    assert [lines.earliest_s(0, 0.0, length) for length in (1.0, 2.0, 2.5)] == [1.0, 1.0, 4.0]
    assert lines.earliest_s(0, 1.5, 1.5) == 1.5
    assert lines.earliest_s(0, 2.0, 1.5) == 4.0


def test_a_task_that_may_not_run_somewhere_does_not():
    run = RUN_S.copy()
    run[3, 1] = np.inf
    given_problem = problem(run, EDGES)
    for rule in RULES.values():
        assert rule(given_problem, Timelines(3))[3].device != 1
