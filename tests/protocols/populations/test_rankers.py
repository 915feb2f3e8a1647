"""Rankers name positions, and become automata of the words on which they are defined."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.populations.exact_check import words
from wavetank.protocols.populations.rankers import Combination, Ranker, rankers
from wavetank.protocols.populations.syntactic_monoid import SyntacticMonoid

MOVES = st.lists(st.tuples(st.sampled_from("XY"), st.sampled_from("ab")), min_size=1, max_size=4)
FORMULAS = st.recursive(
    MOVES.map(lambda moves: Ranker(tuple(moves))),
    lambda inner: st.one_of(
        inner.map(lambda one: ~one),
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
    ),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("text", "word", "place"),
    [
        ("X_a", "bba", 2), ("Y_a", "aab", 1), ("X_a Y_b", "bbab", 1), ("X_a X_b", "bab", 2), ("X_a Y_b", "abab", None),
        ("Y_b X_a", "bba", 2), ("X_a X_a X_a", "aba", None), ("Y_a Y_a", "aba", 0),
    ],
)  # fmt: skip
def test_a_ranker_walks_to_its_position(text, word, place):
    assert Ranker.read(text).position(word) == place
    assert Ranker.read(text).holds(word) == (place is not None)


@settings(max_examples=60, deadline=None)
@given(formula=FORMULAS)
def test_the_automaton_accepts_the_words_of_which_the_formula_is_true(formula):
    automaton = formula.automaton("ab")
    for word in words("ab", 6, 0):
        assert automaton.accepts(word) == formula.holds(word)
    assert SyntacticMonoid.of(automaton).is_in_DA


def test_there_are_four_rankers_a_move_over_two_letters():
    assert len(rankers("ab", 3)) == 4 + 16 + 64
    assert len(set(rankers("ab", 3))) == 84


@given(moves=MOVES)
def test_a_ranker_is_read_as_it_is_written(moves):
    ranker = Ranker(tuple(moves))
    assert Ranker.read(str(ranker)) == ranker


def test_formulas_are_written_with_parentheses():
    a, b = Ranker.read("X_a"), Ranker.read("Y_b")
    assert str(~(a & b) | a) == "(not ((X_a) and (Y_b))) or (X_a)"


@pytest.mark.parametrize(("text", "column"), [("X_a Z_b", 4), ("a", 1), ("X_a Y_", 4)])
def test_a_bad_ranker_is_refused_at_its_column(text, column):
    with pytest.raises(BadValueError, match="not a ranker") as caught:
        Ranker.read(text)
    assert caught.value.where == f"column {column}"


def test_an_empty_ranker_and_a_bad_combination_are_refused():
    with pytest.raises(BadValueError, match="at least one move"):
        Ranker.read("  ")
    with pytest.raises(BadValueError, match="not a Boolean combination"):
        Combination("xor", (Ranker.read("X_a"),))
