"""Reductions keep the answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.errors import BadFileError
from wavetank.protocols.threshold.expressions import FALSE, TRUE, Comparison, Linear, holds
from wavetank.protocols.threshold.generate import random_automaton
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.preprocess import (
    CounterSystem,
    counter_system,
    plain_counter_system,
    rewrite,
)
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.smt import SmtReachability

MODEL = """skel P { shared x, y, unread; parameters N, T;
  assumptions (0) { N > 3 * T; T >= 1; }
  locations (0) { a: [0]; b1: [1]; b2: [2]; c: [3]; far: [4]; idle: [5]; }
  inits (0) { a == N; b1 == 0; b2 == 0; c == 0; far == 0; idle == 0; x == 0; y == 0; unread == 0; }
  rules (0) {
    0: a -> b1 when (true) do { x' == x + 1; unread' == unread + 1; };
    1: a -> b2 when (true) do { x' == x + 1; };
    2: b1 -> c when (x >= N - T && x >= T) do { };
    3: b2 -> c when (x >= N - T) do { };
    4: b2 -> c when (x >= N) do { };
    5: b2 -> far when (y >= T) do { };
    6: a -> idle when (true) do { };
    7: a -> a when (true) do { };
    8: b1 -> c when (x < N - T) do { };
  }
  specifications (0) { p: [](c == 0); q: [](far == 0); r: [](b1 < 2); } }"""


def systems(text: str) -> dict[str, CounterSystem]:
    automaton = parse_automaton(text)
    return {
        item.name: counter_system(automaton, query) for item in safety_properties(automaton) for query in item.queries
    }


def test_what_cannot_matter_is_gone() -> None:
    found = systems(MODEL.replace("8: b1 -> c when (x < N - T) do { };", ""))["p"]
    # b1 and b2 behave alike; rule 4 asks for more than rule 3; rule 6 helps nobody; far is never reached.
    assert [names for names in found.locations if len(names) > 1] == [("b1", "b2")]
    assert sorted((move.source, move.target) for move in found.moves) == [(0, 1), (1, 2)]
    assert found.counters == ("x",)
    assert [str(threshold.bound) for threshold in found.thresholds] == ["N - T"]
    assert found.starts == {0}


def test_a_guard_and_its_opposite_are_no_guard() -> None:
    found = systems(MODEL)["p"]
    names = found.location_number()
    assert frozenset() in {move.guards for move in found.moves if move.target == names["c"]}


def test_a_location_behind_a_guard_that_never_holds_is_settled() -> None:
    found = systems(MODEL)["q"]
    assert found.impossible
    assert found.stages == (FALSE,)


def test_locations_with_different_parts_in_the_question_stay_apart() -> None:
    found = systems(MODEL)["r"]
    assert all(len(names) == 1 for names in found.locations)
    assert str(found.stages[0]) == "b1 >= 2"


def test_parameters_that_do_not_exist_settle_the_question() -> None:
    assert systems(MODEL.replace("T >= 1", "T >= N"))["p"].impossible


def test_a_counter_that_falls_holds_a_rule_back_at_zero() -> None:
    text = MODEL.replace("unread' == unread + 1", "unread' == unread - 1").replace("1: a -> b2", "1: a -> idle")
    found = systems(text)["r"]
    assert "unread" in found.counters
    assert SmtReachability().decide(found, Deadline(20)).outcome == "undecided"


def test_a_guard_with_too_many_alternatives_is_refused() -> None:
    guard = " && ".join(f"(x >= {number} || y >= {number})" for number in range(1, 10))
    with pytest.raises(BadFileError, match="too many alternatives"):
        systems(MODEL.replace("x >= N - T && x >= T", guard))


def test_reductions_end_in_time() -> None:
    automaton = parse_automaton(MODEL)
    with pytest.raises(OutOfTimeError):
        counter_system(automaton, safety_properties(automaton)[0].queries[0], Deadline(-1))


def test_names_are_replaced_and_known_zeros_settle_comparisons() -> None:
    sum_of = Comparison(Linear.of({"a": 1, "b": 1}), ">=", Linear((), 1))
    assert str(rewrite(sum_of, {"a": "c", "b": "c"})) == "c >= 1"
    assert rewrite(sum_of, {"a": None, "b": None}) == FALSE
    assert rewrite(Comparison(Linear.name("a"), "==", Linear()), {"a": None}) == TRUE
    assert str(rewrite(Comparison(Linear.name("a"), "!=", Linear()), {})) == "a - 1 >= 0"
    assert rewrite(TRUE, {}) == TRUE


@given(st.integers(0, 10**6), st.lists(st.integers(0, 6), min_size=9, max_size=9))
def test_moves_of_the_plain_system_have_the_guards_of_their_rules(seed: int, numbers: list[int]) -> None:
    automaton = random_automaton(seed)
    query = next(query for item in safety_properties(automaton) for query in item.queries)
    system = plain_counter_system(automaton, query)
    values = dict(zip((*automaton.parameters, *automaton.counters), numbers, strict=False))
    counters = [values[name] for name in automaton.counters]
    allowed = {
        id(move.origin)
        for move in system.moves
        if all(
            (sum(t.scale * factor * counters[counter] for counter, factor in t.term) >= t.bound.value(values))
            == (guard > 0)
            for guard in move.guards
            for t in (system.thresholds[abs(guard) - 1],)
        )
    }
    # Rules that do the same share a move.
    alike = {(rule.source, rule.target, rule.updates) for rule in automaton.rules if holds(rule.guard, values)}
    assert {
        (move.origin.source, move.origin.target, move.origin.updates)
        for move in system.moves
        if id(move.origin) in allowed
    } == alike


@settings(max_examples=12)
@given(st.integers(0, 10**6))
def test_the_reduced_question_has_the_answer_of_the_plain_one(seed: int) -> None:
    automaton = random_automaton(seed)
    for item in safety_properties(automaton):
        for query in item.queries:
            reduced, plain = counter_system(automaton, query), plain_counter_system(automaton, query)
            answers = {SmtReachability(shrink_s=0).decide(each, Deadline(30)).outcome for each in (reduced, plain)}
            assert len(answers) == 1, (seed, item.name)
