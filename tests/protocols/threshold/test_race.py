"""Checkers in processes of their own."""

from __future__ import annotations

from wavetank.check.deadline import Deadline
from wavetank.protocols.threshold.answers import Answer
from wavetank.protocols.threshold.counterexample import Counterexample, Step, replay
from wavetank.protocols.threshold.preprocess import CounterSystem, counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.race import race, read_answer, write_answer

PLENTY = 2 * 2**30


def system(automaton) -> CounterSystem:
    return counter_system(automaton, safety_properties(automaton)[0].queries[0])


def test_the_first_answer_ends_the_race(voting) -> None:
    unsafe = system(voting("N > 2 * T"))
    answer = race(unsafe, [[("smt", {})], [("zcs", {}), ("acs", {})]], Deadline(60), PLENTY)
    assert answer.outcome == "violated"
    assert answer.by in ("smt", "zcs")
    assert isinstance(answer.run, Counterexample)
    replay(unsafe.automaton, unsafe.query, answer.run)


def test_a_lane_goes_on_with_its_next_method(voting) -> None:
    lanes = [[("zcs", {"try_paths": False}), ("acs", {})]]
    answer = race(system(voting("N > 3 * T")), lanes, Deadline(60), PLENTY)
    assert (answer.outcome, answer.by) == ("holds", "acs")


def test_memory_that_is_used_up_ends_in_undecided(voting) -> None:
    answer = race(system(voting("N > 3 * T")), [[("smt", {})]], Deadline(60), 2**20)
    assert answer.outcome == "undecided"
    assert "memory" in answer.says


def test_time_that_is_up_ends_the_processes(voting) -> None:
    answer = race(system(voting("N > 3 * T")), [[("smt", {})]], Deadline(0.01), PLENTY)
    assert answer.outcome == "undecided"
    assert race(system(voting("N > 3 * T")), [[("smt", {})]], Deadline(-1), PLENTY).says == "the time is up"


def test_answers_survive_the_way_between_processes(voting) -> None:
    automaton = voting("N > 2 * T")
    run = Counterexample({"N": 3}, {"v0": 3}, (Step(automaton.rules[1], 2),))
    sent = Answer("violated", "found", run, "smt")
    assert read_answer(automaton, write_answer(automaton, sent).encode(), "smt") == sent
    assert read_answer(automaton, b"", "smt").outcome == "undecided"


def test_a_question_that_no_specification_asks_is_not_run(voting, broadcast) -> None:
    import dataclasses

    stranger = dataclasses.replace(system(voting("N > 3 * T")), automaton=broadcast())
    assert "no specification" in race(stranger, [[("smt", {})]], Deadline(60), PLENTY).says
