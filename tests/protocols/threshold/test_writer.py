"""Writing .ta files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.expressions import TRUE
from wavetank.protocols.threshold.generate import random_automaton
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.protocols.threshold.writer import write_automaton


@given(st.integers(0, 10**6), st.booleans())
def test_what_is_written_reads_back_the_same(seed: int, resets: bool) -> None:
    automaton = random_automaton(seed, resets=resets)
    assert parse_automaton(write_automaton(automaton)) == automaton


def test_sections_that_are_empty_are_left_out() -> None:
    text = write_automaton(ThresholdAutomaton("Bare", (), (), ("a",), (), (TRUE,), ()))
    assert "assumptions" not in text
    assert "specifications" not in text
    assert "shared" not in text
    assert parse_automaton(text).locations == ("a",)


def test_locations_get_as_many_values_as_there_are_locals() -> None:
    text = write_automaton(ThresholdAutomaton("Two", (), (), ("a", "b"), (), (), (), local_names=("p", "q")))
    assert "a: [0; 0];" in text
    assert parse_automaton(text).local_names == ("p", "q")
