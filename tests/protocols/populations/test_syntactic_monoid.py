"""Monoids of languages, and which languages are unambiguous star-free."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.populations.exact_check import words
from wavetank.protocols.populations.syntactic_monoid import Automaton, SyntacticMonoid, random_star_free


def monoid(pattern: str) -> SyntacticMonoid:
    return SyntacticMonoid.of(Automaton.from_regex(pattern, "ab"))


def value(monoid: SyntacticMonoid, word: Iterable[str]) -> int:
    """Return the element of a word."""
    index = dict(zip(monoid.letters, monoid.generators, strict=True))
    element = 0
    for letter in word:
        element = int(monoid.product[element, index[letter]])
    return element


@pytest.mark.parametrize("pattern", ["a*b*", "(a|b)*a(a|b)*b(a|b)*", "a(a|b)*", "(a|b)*", "b*ab*", "(a|b)*a"])
def test_unambiguous_star_free_languages_are_in_DA(pattern):
    found = monoid(pattern)
    assert found.is_aperiodic
    assert found.is_in_DA


@pytest.mark.parametrize("pattern", ["(ab)*", "(aa)*", "(a|b)*aa(a|b)*", "b*(ab*ab*)*"])
def test_languages_that_count_or_see_neighbours_are_not(pattern):
    assert not monoid(pattern).is_in_DA


def test_star_free_is_more_than_unambiguous():
    assert monoid("(ab)*").is_aperiodic
    assert monoid("(a|b)*aa(a|b)*").is_aperiodic
    assert not monoid("(aa)*").is_aperiodic


@pytest.mark.parametrize(("pattern", "size"), [("(ab)*", 6), ("(a|b)*", 1), ("a(a|b)*", 3), ("a*b*", 5), ("(aa)*", 3)])
def test_monoids_have_known_sizes(pattern, size):
    assert len(monoid(pattern)) == size


def test_commutative_monoids_are_of_languages_that_count():
    assert monoid("b*(ab*ab*)*").is_commutative
    assert not monoid("a*b*").is_commutative


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_products_are_associative_and_decide_the_language(seed):
    automaton = random_star_free("ab", np.random.default_rng(seed), states=4, most_elements=12)
    found = SyntacticMonoid.of(automaton)
    product, everyone = found.product, np.arange(len(found))
    left = product[product[:, :, None], everyone]
    right = product[everyone[:, None, None], product[None, :, :]]
    assert (left == right).all()
    assert (product[0] == everyone).all()
    assert (product[:, 0] == everyone).all()
    for word in words("ab", 5, 0):
        assert (value(found, word) in found.accepting) == automaton.accepts(word)
    power = found.idempotent_powers
    assert (product[power, power] == power).all()
    assert len(found) <= 12
    assert found.is_aperiodic


def test_equal_languages_have_equal_minimal_automata():
    one = Automaton.from_regex("a*b*", "ab")
    other = Automaton.from_regex("a*|a*b+", "ab")
    assert one == other
    assert len(one.moves) == 3
    assert one.minimal() == one


def test_an_expression_that_cannot_be_read_is_refused():
    with pytest.raises(BadValueError, match="cannot be read"):
        Automaton.from_regex("a(b", "ab")
    with pytest.raises(BadValueError, match="cannot be read"):
        Automaton.from_regex("abc", "ab")


def test_unknown_letters_and_huge_monoids_are_refused():
    with pytest.raises(BadValueError, match="does not know this letter"):
        Automaton.from_regex("a*", "ab").accepts("abc")
    with pytest.raises(BadValueError, match="too large"):
        SyntacticMonoid.of(Automaton.from_regex("(ab)*", "ab"), most=5)


@pytest.mark.parametrize("pattern", ["(ab)*", "(a|b)*aa(a|b)*", "b*(ab*ab*)*", "a(a|b)*"])
def test_a_product_is_the_one_word_after_the_other(pattern):
    found = monoid(pattern)
    texts = ["".join(word) for word in words("ab", 4, 0)]
    for first in texts:
        for second in texts[:12]:
            assert found.product[value(found, first), value(found, second)] == value(found, first + second)


@pytest.mark.parametrize(("letters", "states", "most"), [("ab", 1, 12), ("ab", 5, 1), ("", 5, 12)])
def test_languages_that_do_not_exist_are_not_drawn_for_ever(letters, states, most):
    with pytest.raises(BadValueError, match="no such language"):
        random_star_free(letters, np.random.default_rng(0), states=states, most_elements=most)
