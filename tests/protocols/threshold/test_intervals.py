"""Contexts of counters."""

from __future__ import annotations

import pytest

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.intervals import IntervalAbstraction, Target, targets
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.preprocess import CounterSystem, plain_counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.writer import write_automaton


def plain(automaton: ThresholdAutomaton) -> CounterSystem:
    return plain_counter_system(automaton, safety_properties(automaton)[0].queries[0])


def abstraction(automaton: ThresholdAutomaton) -> IntervalAbstraction:
    return IntervalAbstraction(plain(automaton), Deadline(30))


def for_any_start(automaton: ThresholdAutomaton) -> ThresholdAutomaton:
    """Return reliable broadcast with a property that says nothing about the start."""
    return parse_automaton(write_automaton(automaton).replace("(loc1 == 0) -> ", ""))


def test_ordered_thresholds_are_reached_one_after_the_other(broadcast) -> None:
    found = abstraction(for_any_start(broadcast("N > 3 * T")))
    bounds = [str(threshold.bound) for threshold in found.system.thresholds]
    accept, join = 1 << bounds.index("N - T - F"), 1 << bounds.index("T - F + 1")
    # n - t - f is above t + 1 - f, which is above zero.
    assert found.initial == [0]
    sending = next(index for index, move in enumerate(found.system.moves) if move.shifts and not move.guards)
    assert sorted(found.after(0, sending)) == [0, join]
    assert sorted(found.after(join, sending)) == sorted([join, join | accept])
    assert list(found.after(join | accept, sending)) == [join | accept]
    assert set(found.forward()) == {0, join, join | accept}


def test_thresholds_without_an_order_are_reached_in_any() -> None:
    text = """skel P { shared x; parameters A, B; locations (0) { a: [0]; b: [1]; } assumptions (0) { A > 0; B > 0; }
      inits (0) { a == A; b == 0; x == 0; } rules (0) { 0: a -> b when (x >= A) do { x' == x + 1; };
        1: a -> b when (x >= B) do { x' == x + 1; }; 2: b -> a when (true) do { x' == x + 1; }; }
      specifications (0) { p: [](b == 0); } }"""
    found = abstraction(parse_automaton(text))
    assert found.initial == [0]
    assert sorted(found.after(0, 2)) == [0, 1, 2, 3]
    # With a step of one, both at once only if they are equal.
    apart = parse_automaton(text.replace("B > 0;", "B > A;"))
    assert sorted(abstraction(apart).after(0, 2)) == [0, 1]


def test_a_threshold_of_one_is_passed_by_the_first_message() -> None:
    text = """skel P { shared x; parameters N; locations (0) { a: [0]; b: [1]; }
      inits (0) { a == N; b == 0; x == 0; } rules (0) { 0: a -> b when (x < 1) do { x' == x + 1; }; }
      specifications (0) { p: [](b == 0); } }"""
    found = abstraction(parse_automaton(text))
    assert found.allows(0, 0)
    assert not found.allows(1, 0)
    assert list(found.after(0, 0)) == [1]
    assert found.literals(0) == [-1]
    assert not found.changes_nothing(0)


def test_a_reset_leads_back_to_the_context_of_zero(rounds) -> None:
    found = abstraction(rounds("N"))
    reset = next(index for index, move in enumerate(found.system.moves) if move.assigns)
    full = (1 << len(found.system.thresholds)) - 1
    assert found.initial == [0]
    assert list(found.after(full, reset)) == [0]
    assert 0 in found.forward()


def test_contexts_that_no_run_reaches_are_left_out(broadcast) -> None:
    # Unforgeability starts without anybody who sends.
    assert len(abstraction(broadcast()).forward()) == 1
    assert len(abstraction(for_any_start(broadcast())).forward()) == 3


def test_edges_lead_from_every_context_to_where_moves_lead(broadcast) -> None:
    found = abstraction(for_any_start(broadcast()))
    reached = found.forward()
    into = found.edges(reached)
    assert set(into) == set(reached)
    for context, pairs in into.items():
        assert all(found.allows(before, move) and context in found.after(before, move) for before, move in pairs)


def goals(formula: str) -> list[Target]:
    text = """skel P { shared x; parameters N; locations (0) { a: [0]; b: [1]; c: [2]; }
      inits (0) { a == N; b == 0; c == 0; x == 0; } rules (0) { 0: a -> b when (true) do { }; }
      specifications (0) { p: [](!(%s)); } }"""
    return targets(plain(parse_automaton(text % formula)), 0)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("b != 0", [Target({1: 1}, frozenset())]),
        ("b >= 2 && c == 0", [Target({1: 2}, frozenset({2}))]),
        ("2 * b > 3", [Target({1: 2}, frozenset())]),
        ("b + c >= 2", [Target({1: 1}, frozenset()), Target({2: 1}, frozenset())]),
        ("b != 0 && c != 0", [Target({1: 1, 2: 1}, frozenset())]),
        # What bounds cannot say is left out: the target grows.
        ("b > c && x >= 3", [Target({}, frozenset())]),
        ("b >= N", [Target({}, frozenset())]),
        ("b != 0 && b == 0", []),
    ],
)
def test_targets_cover_the_condition(formula: str, expected: list[Target]) -> None:
    assert goals(formula) == expected


def test_time_ends_the_abstraction(broadcast) -> None:
    with pytest.raises(OutOfTimeError):
        IntervalAbstraction(plain(broadcast()), Deadline(-1))
