"""The automaton as a value."""

from __future__ import annotations

from wavetank.protocols.threshold.automaton import Rule, is_shift
from wavetank.protocols.threshold.expressions import TRUE, Linear


def test_rules_are_equal_wherever_they_stand_in_a_file() -> None:
    one, other = (Rule("1", "a", "b", TRUE, (), line) for line in (3, 9))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Rule("2", "a", "b", TRUE)
    assert one != "rule 1"


def test_an_increment_adds_a_constant_to_the_counter_itself() -> None:
    assert is_shift("x", Linear.of({"x": 1}, -1))
    assert not is_shift("x", Linear.of({"y": 1}, 1))


def test_resets_make_an_automaton_extended(broadcast, rounds) -> None:
    assert broadcast().has_only_increments
    assert not rounds("N").has_only_increments
