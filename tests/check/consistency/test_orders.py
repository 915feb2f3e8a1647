"""Orders that obey edges, alternatives and implications."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.check.consistency.orders import Constraints, solve

NODES = 5
edge = st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1))
questions = st.builds(
    Constraints,
    st.just(NODES),
    st.lists(edge, max_size=4),
    st.lists(st.tuples(edge, edge), max_size=8),
)


def fits(order, question):
    place = {node: number for number, node in enumerate(order)}
    return all(place[a] < place[b] for a, b in question.edges) and all(
        place[a] < place[b] or place[c] < place[d] for (a, b), (c, d) in question.alternatives
    )


@settings(max_examples=400, deadline=None)
@given(question=questions)
def test_an_order_is_found_exactly_if_there_is_one(question):
    exists = any(fits(order, question) for order in itertools.permutations(range(NODES)))
    found = solve(question)
    assert found.outcome == ("holds" if exists else "violated")
    if exists:
        assert sorted(found.order) == list(range(NODES))
        assert fits(found.order, question)


def follows(edges):
    found = set(edges)
    for middle, one, two in itertools.product(range(4), repeat=3):
        if (one, middle) in found and (middle, two) in found:
            found.add((one, two))
    return found


@settings(max_examples=300, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3),
    choices=st.lists(st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2), max_size=3),
    implications=st.lists(st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2), max_size=3),
)
def test_implications_hold_of_what_follows_and_nothing_else(edges, choices, implications):
    possible = False
    for sides in itertools.product((0, 1), repeat=len(choices)):
        known = follows([*edges, *(choice[side] for choice, side in zip(choices, sides, strict=True))])
        while True:
            more = {then for when, then in implications if when in known} - known
            if not more:
                break
            known = follows(known | more)
        possible |= not any((node, node) in known for node in range(4))
    # An implication from a node to itself never begins.
    if any(when[0] == when[1] for when, _ in implications):
        return
    found = solve(Constraints(4, edges, choices, implications))
    assert found.outcome == ("holds" if possible else "violated")


def test_a_cycle_is_named_shortest_first():
    edges = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 6), (6, 3)]
    assert set(solve(Constraints(7, edges)).cycle) == {0, 1, 2}
    assert solve(Constraints(1, [(0, 0)])).cycle == (0,)


def test_the_order_follows_the_ranks_where_it_may():
    assert solve(Constraints(4, [(3, 0)], rank=[0.0, 1.0, 2.0, 3.0])).order == (1, 2, 3, 0)


def pigeons(n):
    """No way to put n pairs: each alternative is refuted only with all others."""
    edges, alternatives = [], []
    for at in range(n):
        alternatives.append(((3 * at, 3 * at + 1), (3 * at + 1, 3 * at + 2)))
        edges.append((3 * at + 2, 3 * at))
        edges.append((3 * at + 1, 3 * at)) if at == n - 1 else None
        edges.append((3 * at + 2, 3 * at + 1)) if at == n - 1 else None
    return Constraints(3 * n, edges, alternatives)


def test_one_hopeless_corner_among_many_free_ones_is_found_at_once():
    assert solve(pigeons(60)).outcome == "violated"


def test_a_spent_budget_is_undecided():
    assert solve(Constraints(2, [(0, 1)]), lambda: False).outcome == "undecided"
    # Edges alone take no more than their number; what follows from what is a bit for each pair of nodes.
    assert solve(Constraints(30_000)).outcome == "holds"
    open_choice = [((1, 0), (2, 1))]
    assert "memory" in solve(Constraints(30_000, [], open_choice), memory_bytes=2**20).says


def test_nothing_has_an_order():
    assert solve(Constraints(0)).outcome == "holds"
