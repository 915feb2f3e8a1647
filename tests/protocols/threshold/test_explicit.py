"""The explicit-state oracle."""

from __future__ import annotations

import pytest

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.counterexample import Counterexample, replay
from wavetank.protocols.threshold.explicit import ExplicitSearch, StateSpace, small_parameters
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.preprocess import counter_system
from wavetank.protocols.threshold.properties import safety_properties


def test_small_parameters_meet_the_resilience_condition(broadcast) -> None:
    found = list(small_parameters(broadcast(), 5))
    assert found[0] == {"N": 4, "T": 1, "F": 0}
    assert {tuple(each.values()) for each in found} == {(4, 1, 0), (4, 1, 1), (5, 1, 0), (5, 1, 1)}
    with pytest.raises(OutOfTimeError):
        list(small_parameters(broadcast(), 5, Deadline(-1)))


def test_configurations_are_counted_exactly() -> None:
    # Two processes in a chain of three locations: all 6 ways to spread them.
    chain = parse_automaton("""skel P { shared x; parameters N; locations (0) { a: [0]; b: [1]; c: [2]; }
      inits (0) { a == N; b == 0; c == 0; x == 0; }
      rules (0) { 0: a -> b when (true) do { }; 1: b -> c when (true) do { }; }
      specifications (0) { p: [](c < 5); } }""")
    query = safety_properties(chain)[0].queries[0]
    for processes, configurations in ((1, 3), (2, 6), (3, 10), (4, 15)):
        space = StateSpace(chain, query, {"N": processes})
        assert space.violation(1000) is None
        assert space.visited == configurations
    with pytest.raises(OutOfTimeError, match="more than 5"):
        StateSpace(chain, query, {"N": 4}).violation(5)


def test_the_first_violation_found_has_the_fewest_firings(voting) -> None:
    automaton = voting("N > 2 * T")
    item = safety_properties(automaton)[0]
    run = StateSpace(automaton, item.queries[0], {"N": 3, "T": 1, "F": 1}).violation(100_000)
    assert isinstance(run, Counterexample)
    # n - t - f = 1: one vote each and one decision each.
    assert sum(step.times for step in run.steps) == 4
    replay(automaton, item.queries[0], run)
    assert StateSpace(voting("N > 3 * T"), item.queries[0], {"N": 4, "T": 1, "F": 1}).violation(100_000) is None


def test_initial_values_that_are_open_are_all_tried() -> None:
    text = """skel P { shared x; parameters N; assumptions (0) { N == 2; } locations (0) { a: [0]; b: [1]; }
      inits (0) { a + b == N; x <= 1; } rules (0) { 0: a -> b when (x >= 1) do { }; }
      specifications (0) { p: (b == 0) -> [](b == 0); q: (b == 0 && x == 0) -> [](b == 0); } }"""
    automaton = parse_automaton(text)
    found = [
        StateSpace(automaton, item.queries[0], {"N": 2}).violation(100) is not None
        for item in safety_properties(automaton)
    ]
    assert found == [True, False]


def test_it_shows_violations_and_proves_nothing(voting) -> None:
    for resilience, expected in (("N > 3 * T", "undecided"), ("N > 2 * T", "violated")):
        automaton = voting(resilience)
        query = safety_properties(automaton)[0].queries[0]
        answer = ExplicitSearch(largest_parameter=4).decide(counter_system(automaton, query), Deadline(30))
        assert answer.outcome == expected
    assert (
        "up to 4"
        in ExplicitSearch(largest_parameter=4).decide(counter_system(voting("N > 3 * T"), query), Deadline(30)).says
    )


def test_limits_end_in_undecided(voting) -> None:
    automaton = voting("N > 3 * T")
    system = counter_system(automaton, safety_properties(automaton)[0].queries[0])
    assert "configurations" in ExplicitSearch(most_states=3).decide(system, Deadline(30)).says
    assert ExplicitSearch().decide(system, Deadline(-1)).outcome == "undecided"


def test_resets_and_decrements_are_executed(rounds) -> None:
    automaton = rounds("N - F")
    query = safety_properties(automaton)[0].queries[0]
    run = StateSpace(automaton, query, {"N": 2, "F": 0}).violation(1000)
    assert run is not None
    assert replay(automaton, query, run)[-1]["bad"] == 1


def test_time_is_looked_at_within_a_layer_too() -> None:
    automaton = parse_automaton("""skel P { shared x; parameters N; assumptions (0) { N >= 1; }
      locations (0) { a: [0]; b: [1]; c: [2]; d: [3]; } inits (0) { a + b + c == N; d == 0; x == 0; }
      rules (0) { 0: a -> d when (true) do { x' == x + 1; }; }
      specifications (0) { p: [](x < 100); } }""")
    query = safety_properties(automaton)[0].queries[0]

    class Ending(Deadline):
        """Ends at the second look after the search began."""

        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks > 41**3 + 1:
                raise OutOfTimeError("the time is up")

    space = StateSpace(automaton, query, {"N": 40})
    with pytest.raises(OutOfTimeError):
        space.violation(10**6, Ending())
    # 861 ways to start are the first layer; the second look is at its 257th configuration.
    assert 861 < space.visited <= 861 + 256
