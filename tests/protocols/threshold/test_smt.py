"""The formula over all parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.answers import SETTLED
from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.counterexample import AbstractRun, concretise, replay
from wavetank.protocols.threshold.parameters import load_z3
from wavetank.protocols.threshold.parser import parse_automaton, read_automaton
from wavetank.protocols.threshold.preprocess import CounterSystem, counter_system, plain_counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.smt import (
    Question,
    SegmentEncoding,
    SmtReachability,
    segments_needed,
    smallest_run,
)


def system(automaton: ThresholdAutomaton, name: str, *, plain: bool = False) -> CounterSystem:
    query = next(item.queries[0] for item in safety_properties(automaton) if item.name == name)
    return plain_counter_system(automaton, query) if plain else counter_system(automaton, query)


def outcome(found: CounterSystem) -> str:
    answer = SmtReachability().decide(found, Deadline(30))
    if answer.run is not None:
        assert isinstance(answer.run, AbstractRun)
        replay(found.automaton, found.query, concretise(found, answer.run))
    return answer.outcome


@pytest.mark.parametrize("plain", [False, True])
def test_sound_broadcast_holds_and_planted_bugs_are_found(broadcast, plain: bool) -> None:
    assert outcome(system(broadcast(), "unforg", plain=plain)) == "holds"
    # With the threshold t instead of t + 1 the faulty alone make others join.
    assert outcome(system(broadcast("N > 3 * T", "T"), "unforg", plain=plain)) == "violated"
    # With n > 2t alone it is still unforgeable: t + 1 holds one correct process.
    assert outcome(system(broadcast("N > 2 * T"), "unforg", plain=plain)) == "holds"


@pytest.mark.parametrize("plain", [False, True])
def test_agreement_needs_more_than_three_times_the_faults(voting, plain: bool) -> None:
    assert outcome(system(voting("N > 3 * T"), "agreement", plain=plain)) == "holds"
    assert outcome(system(voting("N > 2 * T"), "agreement", plain=plain)) == "violated"
    assert outcome(system(voting("N > 3 * T"), "validity", plain=plain)) == "holds"


def test_a_settled_question_needs_no_solver(broadcast) -> None:
    answer = SmtReachability().decide(system(broadcast(), "unforg"), Deadline(30))
    assert (answer.outcome, answer.says) == ("holds", SETTLED)


def test_counterexamples_are_made_small(voting) -> None:
    found = system(voting("N > 2 * T"), "agreement")
    answer = SmtReachability(shrink_s=20).decide(found, Deadline(60))
    assert isinstance(answer.run, AbstractRun)
    assert sum(answer.run.parameters.values()) <= 5


def large_run() -> AbstractRun:
    """Return a run of the voting model with 500 faults, in the moves of its plain system."""
    return AbstractRun({"N": 1001, "T": 500, "F": 500}, {0: 251, 1: 250}, {}, ({0: 251, 1: 250}, {}, {2: 1, 3: 2}))


def test_a_large_run_becomes_the_smallest_along_the_same_moves(voting) -> None:
    found = system(voting("N > 2 * T"), "agreement", plain=True)
    replay(found.automaton, found.query, concretise(found, large_run()))
    run = smallest_run(found, large_run(), Deadline(60))
    assert run.parameters == {"N": 3, "T": 1, "F": 1}
    assert [dict(counts) for counts in run.segments if counts] == [{0: 1, 1: 1}, {2: 1, 3: 1}]
    replay(found.automaton, found.query, concretise(found, run))


def test_a_run_stays_as_it_is_when_there_is_no_time_to_make_it_small(voting) -> None:
    found = system(voting("N > 2 * T"), "agreement", plain=True)
    assert smallest_run(found, large_run(), Deadline(-1)) == large_run()


def test_a_run_with_resets_is_made_small_too(rounds) -> None:
    found = system(rounds("N - F"), "never_bad", plain=True)
    answer = SmtReachability(shrink_s=20).decide(found, Deadline(60))
    assert isinstance(answer.run, AbstractRun)
    assert answer.run.parameters == {"N": 1, "F": 0}


def test_moves_that_reset_cannot_be_followed_in_a_segment(rounds) -> None:
    encoding = SegmentEncoding(system(rounds("N - F"), "never_bad", plain=True))
    with pytest.raises(ValueError, match="once between segments"):
        encoding.follow([{1: 2}])


@pytest.mark.slow
def test_the_published_bug_of_the_phase_king_needs_few_processes(models: Path) -> None:
    automaton = read_automaton(models / "ta" / "reset-ta" / "phase-king-buggy.eta")
    found = system(automaton, "reachCons")
    answer = SmtReachability(shrink_s=60).decide(found, Deadline(240))
    assert isinstance(answer.run, AbstractRun)
    assert answer.run.parameters["N"] <= 10
    replay(automaton, found.query, concretise(found, answer.run))


UPPER = """skel P { shared x; parameters N; assumptions (0) { N >= 2; }
  locations (0) { a: [0]; b: [1]; } inits (0) { a == N; b == 0; x == 0; }
  rules (0) { 0: a -> b when (x < LIMIT) do { x' == x + 1; }; }
  specifications (0) { p: [](b < 2); } }"""


def test_a_rule_that_forbids_itself_fires_exactly_as_often_as_it_may() -> None:
    assert outcome(system(parse_automaton(UPPER.replace("LIMIT", "1")), "p")) == "holds"
    assert outcome(system(parse_automaton(UPPER.replace("LIMIT", "2")), "p")) == "violated"


def test_an_island_of_rules_cannot_feed_itself() -> None:
    island = parse_automaton("""skel P { shared x; parameters N;
      assumptions (0) { N >= 1; } locations (0) { a: [0]; b: [1]; c: [2]; d: [3]; }
      inits (0) { a == N; b == 0; c == 0; d == 0; x == 0; }
      rules (0) { 0: a -> d when (x >= 1) do { }; 1: b -> c when (true) do { x' == x + 1; };
        2: c -> b when (true) do { }; 3: a -> b when (x >= 2) do { }; }
      specifications (0) { p: [](d == 0); } }""")
    # b and c send messages round and round once somebody is there, which needs messages.
    assert outcome(system(island, "p", plain=True)) == "holds"
    assert outcome(system(island, "p")) == "holds"


def test_stages_are_met_in_their_order() -> None:
    text = """skel P { shared x; parameters N; assumptions (0) { N == 1; }
      locations (0) { a: [0]; b: [1]; c: [2]; } inits (0) { a == N; b == 0; c == 0; x == 0; }
      rules (0) { 0: a -> b when (true) do { }; 1: b -> c when (true) do { }; }
      specifications (0) { forth: [](b != 0 -> [](c == 0)); back: [](c != 0 -> [](b == 0)); } }"""
    automaton = parse_automaton(text)
    assert outcome(system(automaton, "forth")) == "violated"
    assert outcome(system(automaton, "back")) == "holds"


def test_the_number_of_segments_is_that_of_guards_that_change(broadcast, rounds) -> None:
    # Two lower guards.
    assert segments_needed(system(broadcast(), "unforg", plain=True)) == 3
    assert segments_needed(system(parse_automaton(UPPER.replace("LIMIT", "1")), "p")) == 2
    assert segments_needed(system(rounds("N"), "never_bad")) is None


def test_resets_are_searched_for_violations_and_prove_nothing(rounds) -> None:
    assert outcome(system(rounds("N - F"), "never_bad")) == "violated"
    answer = SmtReachability(most_segments=4).decide(system(rounds("N"), "never_bad", plain=True), Deadline(30))
    assert answer.outcome in ("undecided", "violated")
    safe = rounds("N + 1")
    answer = SmtReachability(most_segments=4).decide(system(safe, "never_bad", plain=True), Deadline(30))
    assert answer.outcome == "undecided"
    assert "4 segments" in answer.says


def test_time_that_is_up_ends_in_undecided(voting) -> None:
    answer = SmtReachability().decide(system(voting("N > 3 * T"), "agreement"), Deadline(-1))
    assert answer.outcome == "undecided"
    assert "time" in answer.says


def test_a_question_keeps_scopes_apart() -> None:
    question = Question(Deadline(30))
    question.add("(declare-const a Int)(assert (> a 3))")
    assert question.satisfiable()
    assert question.model()["a"] > 3
    assert not question.satisfiable("(assert (< a 2))")
    question.push()
    question.add("(assert (< a 5))")
    assert question.satisfiable()
    assert question.model() == {"a": 4}
    question.pop()
    assert question.satisfiable("(assert (> a 90))")
    with pytest.raises(OutOfTimeError):
        question.satisfiable(deadline=Deadline(-1))


def test_an_encoding_can_go_on_in_two_ways(voting) -> None:
    found = system(voting("N > 2 * T"), "agreement")
    question = Question(Deadline(30))
    root = SegmentEncoding(found)
    root.add_segment(range(len(found.moves)))
    question.add(root.take())
    for length in (1, 2):
        branch = root.copy()
        for _ in range(length):
            branch.add_segment(range(len(found.moves)))
        branch.require_stages()
        question.push()
        question.add(branch.take())
        # The two decisions need both thresholds to be passed, after the votes.
        assert question.satisfiable()
        question.pop()


def test_a_solver_without_memory_gives_up_and_a_malformed_question_is_a_defect() -> None:
    question = Question(Deadline(30))
    z3 = load_z3()
    with pytest.raises(z3.Z3Exception):
        question.add("(assert")

    class Full:
        def from_string(self, text: str) -> None:
            raise z3.Z3Exception("out of memory")

    question._solver = Full()
    with pytest.raises(OutOfTimeError, match="memory"):
        question.add("(assert true)")
