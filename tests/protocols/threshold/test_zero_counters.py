"""The backward search over patterns of occupied locations."""

from __future__ import annotations

import sys

import pytest

from wavetank.check.deadline import Deadline
from wavetank.errors import MissingExtraError
from wavetank.protocols.threshold.counterexample import AbstractRun, concretise, replay
from wavetank.protocols.threshold.intervals import IntervalAbstraction
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.preprocess import CounterSystem, counter_system, plain_counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.zero_counters import BackwardPatterns, ZeroCounters, diagrams


def outcome(found: CounterSystem) -> str:
    answer = ZeroCounters().decide(found, Deadline(30))
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


EMPTY = """skel P { shared x; parameters N; assumptions (0) { N >= 1; } locations (0) { a: [0]; b: [1]; c: [2]; }
  inits (0) { a == N; b == 0; c == 0; x == 0; }
  rules (0) { 0: a -> b when (true) do { x' == x + 1; }; 1: b -> c when (x >= N) do { }; 2: b -> b when (true) do { }; }
  specifications (0) { p: [](%s); } }"""


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("c == 0 || a == 0", "holds"),
        ("c == 0 || b != 0", "violated"),
        ("a != 0 || b != 0 || c != 0", "holds"),
        ("a != 0 || c != 0", "violated"),
    ],
)
def test_empty_locations_are_ordinary_conditions(condition: str, expected: str) -> None:
    for plain in (False, True):
        (system,) = systems(parse_automaton(EMPTY % condition), plain=plain)
        assert outcome(system) == expected


def test_patterns_know_whether_a_start_is_among_them() -> None:
    (system,) = systems(parse_automaton(EMPTY % "c == 0"), plain=True)
    abstraction = IntervalAbstraction(system, Deadline(30))
    patterns = BackwardPatterns(system, abstraction, abstraction.forward(), Deadline(30))
    assert patterns.hold_a_start()
    assert patterns.live() == {0, 1}


def test_without_trying_paths_only_an_empty_graph_decides(voting) -> None:
    agreement, validity = systems(voting("N > 3 * T"), plain=True)
    quick = ZeroCounters(try_paths=False)
    answer = quick.decide(agreement, Deadline(30))
    assert answer.outcome == "undecided"
    assert "not to be tried" in answer.says
    answer = quick.decide(validity, Deadline(30))
    assert answer.outcome == "holds"
    assert "is empty" in answer.says


def test_time_that_is_up_ends_in_undecided(voting) -> None:
    assert ZeroCounters().decide(systems(voting("N > 3 * T"))[0], Deadline(-1)).outcome == "undecided"


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dd.cudd", None)
    assert type(diagrams()).__module__ == "dd.autoref"
    monkeypatch.setitem(sys.modules, "dd.autoref", None)
    with pytest.raises(MissingExtraError, match="dd"):
        diagrams()


def test_diagrams_in_python_give_the_same_answers(monkeypatch: pytest.MonkeyPatch, voting) -> None:
    monkeypatch.setitem(sys.modules, "dd.cudd", None)
    assert [outcome(each) for each in systems(voting("N > 3 * T"))] == ["holds", "holds"]
    assert [outcome(each) for each in systems(voting("N > 2 * T"))] == ["violated", "holds"]
