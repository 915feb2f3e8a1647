"""All checkers together, held against one another and against the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.check.deadline import Deadline, OutOfTimeError
from wavetank.protocols.threshold.acs import IntervalBackward
from wavetank.protocols.threshold.counterexample import AbstractRun, concretise, replay
from wavetank.protocols.threshold.explicit import StateSpace, small_parameters
from wavetank.protocols.threshold.generate import random_automaton
from wavetank.protocols.threshold.parser import read_automaton
from wavetank.protocols.threshold.portfolio import Portfolio
from wavetank.protocols.threshold.preprocess import counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.smt import SmtReachability
from wavetank.protocols.threshold.study import published_sheet
from wavetank.protocols.threshold.zero_counters import ZeroCounters

METHODS = {"smt": SmtReachability(most_segments=6), "acs": IntervalBackward(), "zcs": ZeroCounters()}


def cross_check(seed: int, *, resets: bool, largest: int, states: int, differences: bool = False) -> None:
    """Hold the three methods and the explicit search against one another."""
    automaton = random_automaton(seed, resets=resets, differences=differences)
    for item in safety_properties(automaton):
        for query in item.queries:
            system = counter_system(automaton, query)
            outcomes = {}
            for name, method in METHODS.items():
                answer = method.decide(system, Deadline(2))
                outcomes[name] = answer.outcome
                if answer.outcome == "violated":
                    assert isinstance(answer.run, AbstractRun)
                    replay(automaton, query, concretise(system, answer.run))
            decided = set(outcomes.values()) - {"undecided"}
            assert len(decided) <= 1, (seed, item.name, outcomes)
            if "holds" in decided:
                for parameters in small_parameters(automaton, largest):
                    try:
                        run = StateSpace(automaton, query, parameters).violation(states)
                    except OutOfTimeError:
                        continue
                    assert run is None, (seed, item.name, outcomes, parameters)


@settings(max_examples=6)
@given(st.integers(0, 10**9))
def test_three_methods_and_the_oracle_agree_on_random_automata(seed: int) -> None:
    cross_check(seed, resets=False, largest=4, states=2000)


@settings(max_examples=4)
@given(st.integers(0, 10**9))
def test_they_agree_where_counters_are_reset_or_lowered(seed: int) -> None:
    cross_check(seed, resets=True, largest=3, states=1000)


@settings(max_examples=4)
@given(st.integers(0, 10**9))
def test_they_agree_where_guards_compare_differences_and_counters_start_anywhere(seed: int) -> None:
    cross_check(seed, resets=False, largest=3, states=1000, differences=True)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.integers(0, 10**9), st.booleans(), st.booleans())
def test_they_agree_on_many_more(seed: int, resets: bool, differences: bool) -> None:
    cross_check(seed, resets=resets, largest=4, states=20_000, differences=differences)


def verdict(path: Path, method, seconds: float) -> str:
    automaton = read_automaton(path)
    clock = Deadline(seconds)
    outcomes = []
    for item in safety_properties(automaton):
        for query in item.queries:
            try:
                system = counter_system(automaton, query, clock)
                answer = method.decide(system, clock)
            except OutOfTimeError:
                outcomes.append("undecided")
                continue
            outcomes.append(answer.outcome)
            if answer.run is not None:
                run = concretise(system, answer.run) if isinstance(answer.run, AbstractRun) else answer.run
                replay(automaton, query, run)
    return "unsafe" if "violated" in outcomes else "undecided" if "undecided" in outcomes else "safe"


def published(models: Path, *suites: str) -> list[tuple[Path, str]]:
    found = []
    for (suite, file), item in published_sheet().items():
        if suite in suites:
            folder = models / "ta" / suite.replace("reset-benchmarks", "reset-ta")
            path = folder / file
            found.append((path if path.exists() else folder / f"{file}.gz", item.verdict))
    return found


def test_all_published_verdicts_of_hand_written_and_randomised_models_are_found(models: Path) -> None:
    files = published(models, "isola18/handcoded", "random19", "red-belly")
    assert len(files) == 20
    assert {path.name: verdict(path, Portfolio(), 60) for path, _ in files} == {
        path.name: expected for path, expected in files
    }


@pytest.mark.slow
def test_all_published_verdicts_of_translated_and_reset_models_are_found(models: Path) -> None:
    files = published(models, "isola18/promela", "concur14", "popl17-fmsd17", "reset-benchmarks")
    for path, expected in files:
        found = verdict(path, Portfolio(), 60)
        assert found != "undecided", path
        assert expected in ("unknown", found), path


@pytest.mark.slow
def test_formula_and_zero_counters_agree_wherever_both_end(models: Path) -> None:
    both = 0
    for path, _ in published(models, "isola18/handcoded", "isola18/promela", "random19", "reset-benchmarks"):
        ends = {verdict(path, SmtReachability(), 30), verdict(path, ZeroCounters(), 20)} - {"undecided"}
        assert len(ends) <= 1, path
        both += len(ends) == 1
    assert both > 30


def test_what_the_formula_does_not_decide_goes_to_the_others(rounds) -> None:
    # The resets keep the formula from proving anything.
    automaton = rounds("N - F + 1 + N")
    system = counter_system(automaton, safety_properties(automaton)[0].queries[0])
    answer = Portfolio(head_start_s=0.5).decide(system, Deadline(30))
    assert (answer.outcome, answer.by) in {("holds", "zcs"), ("holds", "acs"), ("holds", "smt")}


def test_a_short_deadline_is_kept(voting) -> None:
    automaton = voting("N > 3 * T")
    system = counter_system(automaton, safety_properties(automaton)[0].queries[0])
    assert Portfolio().decide(system, Deadline(-1)).outcome == "undecided"
