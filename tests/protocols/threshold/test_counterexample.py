"""Runs in order, in the file's own rules, and replayed."""

from __future__ import annotations

import dataclasses

import pytest

from wavetank.check.deadline import OutOfTimeError
from wavetank.protocols.threshold.counterexample import (
    AbstractRun,
    Counterexample,
    ReplayError,
    Step,
    concretise,
    listing,
    replay,
    strongly_connected,
    unreachable_sources,
)
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.preprocess import counter_system, plain_counter_system
from wavetank.protocols.threshold.properties import safety_properties

CYCLE = parse_automaton("""skel P { shared x; parameters N; assumptions (0) { N >= 1; }
  locations (0) { a: [0]; b: [1]; c: [2]; }
  inits (0) { a == N; b == 0; c == 0; x == 0; }
  rules (0) {
    0: a -> b when (true) do { x' == x + 1; };
    1: b -> a when (true) do { };
    2: a -> c when (x < 3) do { };
  }
  specifications (0) { p: [](c == 0 || x < 2); } }""")
QUERY = safety_properties(CYCLE)[0].queries[0]
SYSTEM = plain_counter_system(CYCLE, QUERY)


def run(segments: tuple[dict[int, int], ...], processes: int = 1) -> AbstractRun:
    return AbstractRun({"N": processes}, {0: processes}, {}, segments)


def names(found: Counterexample) -> list[tuple[str, int]]:
    return [(step.rule.name, step.times) for step in found.steps]


def test_firings_of_a_cycle_are_ordered_so_that_none_is_stranded() -> None:
    # Leaving first would be possible and leave the cycle without a process.
    found = concretise(SYSTEM, run(({0: 2, 1: 2, 2: 1},)))
    assert names(found) == [("0", 1), ("1", 1), ("0", 1), ("1", 1), ("2", 1)]
    assert replay(CYCLE, QUERY, found)[-1] == {"N": 1, "a": 0, "b": 0, "c": 1, "x": 2}


def test_firings_without_a_process_are_refused() -> None:
    with pytest.raises(ReplayError, match="ordered"):
        concretise(SYSTEM, run(({1: 1},)))
    with pytest.raises(ReplayError, match="cannot fire"):
        concretise(SYSTEM, run(({0: 3, 1: 3}, {2: 1})))
    with pytest.raises(OutOfTimeError, match="too long to be replayed"):
        concretise(SYSTEM, run(({0: 600_000, 1: 600_000},)))


def test_sources_that_no_process_reaches_are_named() -> None:
    assert unreachable_sources(SYSTEM, {1: 1, 2: 0}, {0: 1}) == {1}
    assert unreachable_sources(SYSTEM, {0: 1, 1: 1}, {0: 1}) == set()


def test_components_come_in_the_order_of_their_edges() -> None:
    assert strongly_connected({0: [1], 1: [0, 2], 2: [3], 3: []}) == [{0, 1}, {2}, {3}]
    deep = {number: [number + 1] for number in range(5000)} | {5000: []}
    assert len(strongly_connected(deep)) == 5001


GOOD = Counterexample(
    {"N": 1},
    {"a": 1, "b": 0, "c": 0, "x": 0},
    (*(Step(CYCLE.rules[n], 1) for n in (0, 1, 0, 1)), Step(CYCLE.rules[2], 1)),
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": {"N": 0}}, "resilience"),
        ({"initial": {"a": 2, "b": 0, "c": 0, "x": 0}}, "initial"),
        ({"steps": GOOD.steps[1:]}, "cannot fire"),
        ({"steps": (Step(CYCLE.rules[0], 2),)}, "cannot fire"),
        ({"steps": GOOD.steps[:2]}, "does not violate"),
    ],
)
def test_a_run_that_lies_is_refused(change: dict[str, object], says: str) -> None:
    replay(CYCLE, QUERY, GOOD)
    with pytest.raises(ReplayError, match=says) as caught:
        replay(CYCLE, QUERY, dataclasses.replace(GOOD, **change))  # type: ignore[arg-type]
    assert caught.value.exit_code == 4


def test_guards_are_held_against_every_single_firing() -> None:
    steps = (*(Step(CYCLE.rules[n], 1) for n in (0, 1) * 3), Step(CYCLE.rules[2], 1))
    with pytest.raises(ReplayError, match="cannot fire"):
        replay(CYCLE, QUERY, dataclasses.replace(GOOD, steps=steps))


def test_a_counter_never_falls_below_zero() -> None:
    falling = parse_automaton("""skel P { shared x; parameters N; locations (0) { a: [0]; b: [1]; }
      inits (0) { a == N; b == 0; x == 0; } rules (0) { 0: a -> b when (true) do { x' == x - 1; }; }
      specifications (0) { p: [](b == 0); } }""")
    (item,) = safety_properties(falling)
    step = Step(falling.rules[0], 1)
    with pytest.raises(ReplayError, match="below zero"):
        replay(falling, item.queries[0], Counterexample({"N": 1}, {"a": 1, "b": 0, "x": 0}, (step,)))


def test_the_listing_reads_from_parameters_to_violation() -> None:
    lines = listing(CYCLE, QUERY, GOOD).splitlines()
    assert lines[0] == "parameters  N = 1"
    assert lines[1] == "start       a: 1"
    assert lines[2] == "step 1      rule 0: a -> b"
    assert lines[3] == "            b: 1; x = 1"
    assert lines[-1] == "reached     (c != 0) && (x >= 2)"


def test_a_class_of_locations_is_reported_by_its_members() -> None:
    twins = parse_automaton("""skel P { shared x; parameters N; locations (0) { a: [0]; b1: [1]; b2: [2]; c: [3]; }
      inits (0) { a == N; b1 == 0; b2 == 0; c == 0; x == 0; }
      rules (0) { 0: a -> b1 when (true) do { }; 1: a -> b2 when (true) do { };
        2: b1 -> c when (true) do { }; 3: b2 -> c when (true) do { }; }
      specifications (0) { p: [](c < 2); } }""")
    from wavetank.protocols.threshold.preprocess import counter_system

    (item,) = safety_properties(twins)
    system = counter_system(twins, item.queries[0])
    assert ("b1", "b2") in system.locations
    found = concretise(system, AbstractRun({"N": 2}, {0: 2}, {}, ({0: 2, 1: 2},)))
    assert replay(twins, item.queries[0], found)[-1]["c"] == 2


def test_a_counter_that_only_the_start_speaks_of_is_reported_too() -> None:
    automaton = parse_automaton("""skel P { shared x; parameters N; assumptions (0) { N >= 1; }
      locations (0) { a: [0]; b: [1]; } inits (0) { a == N; b == 0; x <= N; x >= 1; }
      rules (0) { 0: a -> b when (true) do { x' == x + 1; }; }
      specifications (0) { p: [](b == 0); } }""")
    query = safety_properties(automaton)[0].queries[0]
    system = counter_system(automaton, query)
    found = concretise(system, AbstractRun({"N": 1}, {0: 1}, {"x": 1}, ({0: 1},)))
    assert replay(automaton, query, found)[-1]["x"] == 2
