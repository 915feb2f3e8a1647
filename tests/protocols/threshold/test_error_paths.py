"""Abstract paths that are real, and paths that are not."""

from __future__ import annotations

import pytest

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.acs import IntervalBackward
from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.counterexample import AbstractRun, concretise, replay
from wavetank.protocols.threshold.error_paths import find_run
from wavetank.protocols.threshold.intervals import IntervalAbstraction
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.preprocess import counter_system, plain_counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.smt import SmtReachability
from wavetank.protocols.threshold.zero_counters import ZeroCounters


def search(automaton: ThresholdAutomaton, needs=lambda context: (), seconds: float = 30) -> AbstractRun | None:
    query = safety_properties(automaton)[0].queries[0]
    system = counter_system(automaton, query)
    clock = Deadline(seconds)
    abstraction = IntervalAbstraction(system, clock)
    found = find_run(system, abstraction, abstraction.forward(), needs, clock)
    if found is not None:
        replay(automaton, query, concretise(system, found))
    return found


def test_a_real_path_becomes_a_run(voting) -> None:
    assert search(voting("N > 2 * T")) is not None


def test_every_path_of_a_safe_model_is_spurious(voting) -> None:
    assert search(voting("N > 3 * T")) is None


def test_what_is_known_of_a_context_cuts_paths_off(voting) -> None:
    # Ten processes in d0 (number 3) are asked for before anything goes on: small runs are cut off, larger ones found.
    found = search(voting("N > 2 * T"), lambda context: ({},))
    assert found is not None
    limited = voting("N > 2 * T; N < 9")
    assert search(limited, lambda context: ({0: 10},)) is None


def test_paths_through_resets_grow_longer_and_longer(rounds) -> None:
    assert search(rounds("N - F")) is not None
    with pytest.raises(OutOfTimeError):
        search(rounds("N - F + 1"), seconds=1.0)


# Nothing changes the difference: it is what the start makes of it.
FROZEN = """skel P { shared x, y; parameters N; assumptions (0) { N >= 3; }
  locations (0) { a: [0]; b: [1]; c: [2]; } inits (0) { a == N; b == 0; c == 0; }
  rules (0) { 0: a -> b when (x - y >= 2) do { }; 1: b -> c when (x - y >= 2) do { }; }
  specifications (0) { p: [](c < 3); } }"""


@pytest.mark.parametrize("method", [IntervalBackward(), ZeroCounters(), SmtReachability()])
@pytest.mark.parametrize("reduced", [counter_system, plain_counter_system])
def test_rules_behind_a_difference_that_stays_fire_any_number_of_times(method, reduced) -> None:
    automaton = parse_automaton(FROZEN)
    query = safety_properties(automaton)[0].queries[0]
    system = reduced(automaton, query)
    answer = method.decide(system, Deadline(30))
    assert answer.outcome == "violated"
    assert isinstance(answer.run, AbstractRun)
    run = concretise(system, answer.run)
    replay(automaton, query, run)
    assert run.parameters == {"N": 3}


@pytest.mark.parametrize("method", [IntervalBackward(), ZeroCounters()])
def test_a_run_along_an_error_path_is_made_small(method, voting) -> None:
    automaton = voting("N > 2 * T")
    system = counter_system(automaton, safety_properties(automaton)[0].queries[0])
    answer = method.decide(system, Deadline(30))
    assert isinstance(answer.run, AbstractRun)
    assert sum(answer.run.parameters.values()) <= 12
