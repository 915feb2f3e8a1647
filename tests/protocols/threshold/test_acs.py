"""The backward search over minimal configurations."""

from __future__ import annotations

import numpy as np

from wavetank.check.deadline import Deadline
from wavetank.protocols.threshold.acs import IntervalBackward, backward_basis
from wavetank.protocols.threshold.answers import SETTLED
from wavetank.protocols.threshold.counterexample import AbstractRun, concretise, replay
from wavetank.protocols.threshold.intervals import IntervalAbstraction
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.preprocess import CounterSystem, counter_system, plain_counter_system
from wavetank.protocols.threshold.properties import safety_properties


def outcome(found: CounterSystem, method: IntervalBackward | None = None) -> str:
    answer = (method or IntervalBackward()).decide(found, Deadline(30))
    if answer.run is not None:
        assert isinstance(answer.run, AbstractRun)
        replay(found.automaton, found.query, concretise(found, answer.run))
    return answer.outcome


def systems(automaton, *, plain: bool = False) -> list[CounterSystem]:
    make = plain_counter_system if plain else counter_system
    return [make(automaton, query) for item in safety_properties(automaton) for query in item.queries]


def test_sound_models_hold_and_planted_bugs_are_found(broadcast, voting) -> None:
    for plain in (False, True):
        assert [outcome(each) for each in systems(broadcast(), plain=plain)] == ["holds"]
        assert [outcome(each) for each in systems(broadcast("N > 3 * T", "T"), plain=plain)] == ["violated"]
        assert [outcome(each) for each in systems(voting("N > 3 * T"), plain=plain)] == ["holds", "holds"]
        assert [outcome(each) for each in systems(voting("N > 2 * T"), plain=plain)] == ["violated", "holds"]


def test_the_basis_is_minimal() -> None:
    chain = parse_automaton("""skel P { shared x; parameters N; locations (0) { a: [0]; b: [1]; c: [2]; }
      inits (0) { a == N; b == 0; c == 0; x == 0; }
      rules (0) { 0: a -> b when (true) do { }; 1: b -> c when (true) do { }; }
      specifications (0) { p: [](c < 2); } }""")
    system = plain_counter_system(chain, safety_properties(chain)[0].queries[0])
    abstraction = IntervalAbstraction(system, Deadline(30))
    (basis,) = backward_basis(system, abstraction, abstraction.forward(), 1000, Deadline(30))
    assert sorted(map(tuple, basis[0])) == [(0, 0, 2), (0, 1, 1), (0, 2, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)]
    assert basis[0].dtype == np.int32


def test_extended_automata_are_decided_where_the_search_ends(rounds) -> None:
    assert [outcome(each) for each in systems(rounds("N - F"))] == ["violated"]
    safe = rounds("N").specifications
    assert safe
    assert [outcome(each) for each in systems(rounds("N - F + 1 + N"))] in (["holds"], ["undecided"])


def test_limits_end_in_undecided(voting) -> None:
    (first, _) = systems(voting("N > 3 * T"))
    assert "elements" in IntervalBackward(most_elements=1).decide(first, Deadline(30)).says
    assert IntervalBackward().decide(first, Deadline(-1)).outcome == "undecided"


def test_a_settled_question_is_answered_at_once(broadcast) -> None:
    assert IntervalBackward().decide(systems(broadcast())[0], Deadline(30)).says == SETTLED
