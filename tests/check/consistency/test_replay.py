"""Orders in which registers would have answered as they did."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.check.consistency.replay import NEED, NEED_OTHER, PUT, Replay, Step, replay

NODES = 5
values = st.integers(0, 2)
keys = st.sampled_from(["x", "y"])
steps = st.lists(st.builds(Step, st.sampled_from([NEED, NEED_OTHER, PUT]), keys, values), max_size=3).map(tuple)


@st.composite
def questions(draw):
    told = draw(st.lists(steps, min_size=NODES, max_size=NODES))
    optional = draw(st.lists(st.booleans(), min_size=NODES, max_size=NODES))
    pairs = draw(st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=5))
    # Nothing waits for a node that may be left out, and no node for itself.
    edges = [(one, two) for one, two in pairs if one != two and not optional[one]]
    return Replay(told, edges, optional, initial=0)


def explains(order, question):
    place = {node: at for at, node in enumerate(order)}
    if any(one in place and two in place and place[one] > place[two] for one, two in question.edges):
        return False
    held = {}
    for node in order:
        for step in question.steps[node]:
            there = held.get(step.key, 0)
            if step.kind == PUT:
                held[step.key] = step.value
            elif (there == step.value) != (step.kind == NEED):
                return False
    return True


@settings(max_examples=400, deadline=None)
@given(question=questions())
def test_an_order_is_found_exactly_if_there_is_one(question):
    free = [node for node in range(NODES) if question.optional[node]]
    fixed = [node for node in range(NODES) if not question.optional[node]]
    exists = any(
        explains(order, question)
        for size in range(len(free) + 1)
        for some in itertools.combinations(free, size)
        for order in itertools.permutations([*fixed, *some])
    )
    found = replay(question)
    assert found.outcome == ("holds" if exists else "violated")
    if exists:
        assert set(fixed) <= set(found.order)
        assert len(set(found.order)) == len(found.order)
        assert explains(found.order, question)


def test_a_circle_of_precedences_leaves_no_order():
    assert replay(Replay([(), ()], [(0, 1), (1, 0)])).outcome == "violated"


def test_nothing_has_an_order():
    assert replay(Replay([])).outcome == "holds"


def test_what_may_be_left_out_is_used_where_it_is_needed():
    put, need = (Step(PUT, "x", 1),), (Step(NEED, "x", 1),)
    assert replay(Replay([put, need], optional=[True, False])).order == (0, 1)
    assert replay(Replay([put], optional=[True])).order == ()


def test_of_many_that_do_the_same_only_the_first_is_tried():
    # Forty lost writes of one value, and a value that nobody can put: without the rule all their sets would be tried.
    steps = [(Step(PUT, "x", 1),)] * 40 + [(Step(NEED, "x", 2),)]
    assert replay(Replay(steps, optional=[True] * 40 + [False])).outcome == "violated"


def test_a_spent_budget_and_a_small_memory_are_undecided():
    hard = Replay([(Step(PUT, "x", at % 3),) for at in range(12)] + [(Step(NEED, "x", 3),)], [])
    assert "time" in replay(hard, lambda: False).says
    many = Replay([(Step(PUT, f"k{at}", at),) for at in range(40)], [])
    assert "memory" in replay(many, memory_bytes=1000).says
    assert replay(many).outcome == "holds"


def test_a_search_that_outgrows_its_memory_says_so():
    # Chains that all must end before a value is needed that their ends never leave.
    lanes, length = 8, 6
    steps = [(Step(PUT, "x", f"{lane} {at}"),) for lane in range(lanes) for at in range(length)]
    edges = [(lane * length + at, lane * length + at + 1) for lane in range(lanes) for at in range(length - 1)]
    last = len(steps)
    steps.append((Step(NEED, "x", "0 0"),))
    edges += [(lane * length + length - 1, last) for lane in range(lanes)]
    found = replay(Replay(steps, edges), memory_bytes=1 << 18)
    assert found.outcome == "undecided"
    assert "memory" in found.says
