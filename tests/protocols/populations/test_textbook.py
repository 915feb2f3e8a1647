"""Protocols written by hand decide what they say."""

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.populations.exact_check import ExactCheck, words
from wavetank.protocols.populations.languages import Language, known_languages
from wavetank.protocols.populations.ordered_simulator import OrderedSkipping
from wavetank.protocols.populations.simulator import PopulationBatched
from wavetank.protocols.populations.syntactic_monoid import Automaton
from wavetank.protocols.populations.textbook import (
    CountingProtocol,
    PairingProtocol,
    approximate_majority,
    counting,
    majority,
    matched_halves,
    rock_paper_scissors,
)


def test_majority_answers_ties_with_no():
    outputs = {word: ExactCheck().decide(majority(), word).output for word in words("ab", 6)}
    assert outputs == {word: int(word.count("a") > word.count("b")) for word in outputs}


def test_approximate_majority_settles_on_the_large_majority():
    protocol = approximate_majority()
    run = PopulationBatched().run(protocol, protocol.counts({"a": 7000, "b": 3000}), interactions=10**8, seed=4)
    assert (run.silent, run.output) == (True, 1)


def test_rock_paper_scissors_keeps_moving_while_all_three_are_there():
    protocol = rock_paper_scissors()
    assert protocol.enabled.sum() == 6
    run = PopulationBatched().run(protocol, protocol.counts({"a": 400, "b": 300, "c": 300}), interactions=5000, seed=1)
    assert not run.silent


def test_halves_match_in_order_and_in_number():
    protocol = matched_halves()
    assert protocol.predicates == ("<",)
    # Beyond immediate observation.
    rules = list(protocol.rules())
    assert any(each.initiator != each.new_initiator and each.responder != each.new_responder for each in rules)
    for word in words("ab", 6):
        half = len(word) // 2
        truth = word == ("a",) * half + ("b",) * half
        assert ExactCheck().decide(protocol, word).output == int(truth)


@pytest.mark.parametrize(("word", "answer"), [("a" * 60 + "b" * 60, 1), ("a" * 60 + "b" * 61, 0), ("ab" * 30, 0)])
def test_long_halves_end_silent(word, answer):
    run = OrderedSkipping().run(matched_halves(), word, interactions=10**12, seed=8)
    assert (run.silent, run.output) == (True, answer)


@pytest.mark.parametrize("pattern", ["b*(ab*ab*)*", "b*ab*ab*a(a|b)*", "(a|b)*a(a|b)*"])
def test_languages_that_count_need_no_ranks(pattern):
    automaton = Automaton.from_regex(pattern, "ab")
    protocol = counting(automaton, pattern)
    assert not protocol.ordered
    for word in words("ab", 5):
        assert ExactCheck().decide(protocol, word).output == int(automaton.accepts(word))


def test_counting_refuses_a_language_of_order():
    with pytest.raises(BadValueError, match="order of letters matters"):
        counting(Automaton.from_regex("a*b*", "ab"), "a*b*")


def test_each_way_has_protocols_for_its_languages_alone():
    names = {
        kind: [language.name for language in known_languages() if kind().protocol(language) is not None]
        for kind in (CountingProtocol, PairingProtocol)
    }
    assert names[PairingProtocol] == ["a^n b^n"]
    assert names[CountingProtocol] == ["some a", "at least three a", "even number of a", "more a than b"]
    assert CountingProtocol().protocol(Language.regular("ordered", "a*b*")) is None
