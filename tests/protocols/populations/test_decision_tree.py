"""Trees of questions decide what the automaton decides."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.populations.decision_tree import END, START, DecisionTree, Question
from wavetank.protocols.populations.exact_check import words
from wavetank.protocols.populations.rankers import Ranker, rankers
from wavetank.protocols.populations.syntactic_monoid import Automaton, SyntacticMonoid, random_star_free


def tree_of(automaton: Automaton, **options) -> DecisionTree:
    return DecisionTree(SyntacticMonoid.of(automaton), **options)


def decides(tree: DecisionTree, word: Sequence[str]) -> bool:
    """Return whether the word is in the language, by asking the questions."""
    node, places = tree.found[0], list[int]()
    while True:
        for rank, question in enumerate(node.questions):
            low = -1 if question.low == START else places[question.low]
            high = len(word) if question.high == END else places[question.high]
            hits = [place for place in range(low + 1, high) if word[place] in question.letters]
            if hits:
                places.append(hits[0] if question.way == "X" else hits[-1])
                node = tree.found[node.children[rank, word[places[-1]]]]
                break
        else:
            return node.verdict


@pytest.mark.parametrize("left_first", [True, False])
def test_rankers_of_two_moves_are_asked_in_two_questions_at_most(left_first):
    for ranker in rankers("ab", 2):
        tree = tree_of(ranker.automaton("ab"), left_first=left_first)
        assert max(node.level for node in tree.found) + 1 <= len(ranker.moves)
        assert all(decides(tree, word) == ranker.holds(word) for word in words("ab", 7, 0))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), letters=st.sampled_from(["ab", "abc"]), left_first=st.booleans())
def test_random_languages_of_the_class_are_decided(seed, letters, left_first):
    automaton = random_star_free(letters, np.random.default_rng(seed), states=5, most_elements=14)
    monoid = SyntacticMonoid.of(automaton)
    if not monoid.is_in_DA:
        with pytest.raises(BadValueError, match="not unambiguous star-free"):
            DecisionTree(monoid)
        return
    tree = DecisionTree(monoid, left_first=left_first)
    tried = words(letters, 7 if letters == "ab" else 5, 0)
    assert all(decides(tree, word) == automaton.accepts(word) for word in tried)


def test_the_first_b_after_the_first_a_is_asked_for_between_its_bounds():
    tree = tree_of(Ranker.read("X_a X_b").automaton("ab"))
    assert [node.questions for node in tree.found] == [
        [Question(("a",), "X", START, END)], [Question(("b",), "X", 0, END)], [],
    ]  # fmt: skip
    assert [node.order for node in tree.found] == [(), (0,), (0, 1)]
    assert [node.verdict for node in tree.found] == [False, False, True]


def test_a_constant_language_asks_nothing():
    assert len(tree_of(Automaton.from_regex("(a|b)*", "ab")).found) == 1


def test_a_tree_that_grows_too_large_is_refused():
    with pytest.raises(BadValueError, match="too large"):
        tree_of(Ranker.read("X_a X_b X_a").automaton("ab"), most=2)
