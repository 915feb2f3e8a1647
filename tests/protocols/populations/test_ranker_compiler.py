"""Compiled protocols decide their language: by every run of short words, and by simulated runs of long ones."""

import math

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.populations.exact_check import ExactCheck, words
from wavetank.protocols.populations.languages import Language, known_languages
from wavetank.protocols.populations.ordered_simulator import OrderedSkipping
from wavetank.protocols.populations.ranker_compiler import RankerCompiler
from wavetank.protocols.populations.rankers import Ranker, rankers
from wavetank.protocols.populations.syntactic_monoid import Automaton, SyntacticMonoid, random_star_free


def wrong_words(longest: int) -> list[tuple[str, str]]:
    """Return (ranker, word) wherever the exact checker and the ranker disagree."""
    wrong = []
    for ranker in rankers("ab", 2):
        protocol = RankerCompiler().compile(ranker, "ab")
        for word in words("ab", longest):
            if ExactCheck().decide(protocol, word).output != int(ranker.holds(word)):
                wrong.append((str(ranker), "".join(word)))
    return wrong


def test_all_rankers_of_two_moves_are_decided_on_all_words_up_to_length_4():
    assert wrong_words(4) == []


@pytest.mark.slow
def test_all_rankers_of_two_moves_are_decided_on_all_words_up_to_length_6():
    assert wrong_words(6) == []


def test_compiled_protocols_observe_and_compare_ranks_and_nothing_more():
    for ranker in rankers("ab", 2):
        protocol = RankerCompiler().compile(ranker, "ab")
        assert set(protocol.predicates) <= {"<"}
        for rule in protocol.rules():
            assert (rule.new_initiator != rule.initiator) + (rule.new_responder != rule.responder) == 1


def test_boolean_combinations_are_decided():
    formula = (Ranker.read("X_a Y_b") & ~Ranker.read("Y_b X_a")) | Ranker.read("X_b X_b X_b")
    protocol = RankerCompiler().compile(formula, "ab")
    assert protocol.name == str(formula)
    for word in words("ab", 4):
        assert ExactCheck().decide(protocol, word).output == int(formula.holds(word))


def test_random_languages_are_compiled_exactly_if_they_are_in_DA():
    rng = np.random.default_rng(3)
    for number in range(15):
        automaton = random_star_free("ab", rng, states=5, most_elements=12)
        language = Language(f"random {number}", ("a", "b"), automaton)
        protocol = RankerCompiler().protocol(language)
        assert (protocol is not None) == SyntacticMonoid.of(automaton).is_in_DA
        if protocol is None:
            continue
        for word in words("ab", 3):
            assert ExactCheck().decide(protocol, word).output == int(automaton.accepts(word))
        for word in language.words(30, rng):
            run = OrderedSkipping().run(protocol, word, interactions=10**12, seed=number)
            assert run.silent
            assert run.output == int(automaton.accepts(word))


@pytest.mark.parametrize("family", ["retreat", "resign", "learn", "advance"])
def test_no_family_of_rules_can_be_left_out(family):
    # Last b before the first a: the position asked for moves when the first a is found.
    wrong = 0
    for text in ("X_a Y_b", "X_b Y_a", "Y_a X_b", "X_a X_b", "X_a X_a"):
        ranker = Ranker.read(text)
        broken = RankerCompiler().unmerged(ranker.automaton("ab"), text)
        if family in broken.families:
            broken = broken.without(family)
            wrong += sum(ExactCheck().decide(broken, word).output != int(ranker.holds(word)) for word in words("ab", 4))
    assert wrong


def test_protocols_for_one_position_settle_within_n_squared_log_n():
    language = known_languages()[0]
    protocol = RankerCompiler().protocol(language)
    assert protocol is not None
    sizes, ratios = (16, 64, 256), []
    for n in sizes:
        took = [
            OrderedSkipping()
            .run(protocol, ("b", *"ab" * (n // 2 - 1), "a"), interactions=10**12, seed=seed)
            .last_change
            for seed in range(40)
        ]
        ratios.append(float(np.mean(took)) / (n * n * math.log(n)))
    slope = np.polyfit(np.log(sizes), np.log(ratios), 1)[0]
    assert slope < 0.15
    assert max(ratios) < 4


def test_one_agent_answers_for_itself():
    protocol = RankerCompiler().compile(Ranker.read("X_a"), "ab")
    assert ExactCheck().decide(protocol, "a").output == 1
    assert ExactCheck().decide(protocol, "b").output == 0


def test_states_say_what_an_agent_knows():
    protocol = RankerCompiler().unmerged(Ranker.read("X_a X_b").automaton("ab"), "example")
    assert any(state.startswith("holds /a1") and state.endswith("fresh") for state in protocol.states)
    assert any("knows /a1" in state for state in protocol.states)


@pytest.mark.parametrize("pattern", ["(ab)*", "(aa)*", "(a|b)*aa(a|b)*"])
def test_languages_outside_the_class_are_refused_with_a_hint(pattern):
    with pytest.raises(BadValueError, match="not unambiguous star-free") as caught:
        RankerCompiler().compile(Automaton.from_regex(pattern, "ab"), "ab")
    assert "SuccessorCompiler" in (caught.value.hint or "")
    assert RankerCompiler().protocol(Language.regular("outside", pattern)) is None


def test_a_language_with_too_large_a_tree_is_refused():
    with pytest.raises(BadValueError, match="too large"):
        RankerCompiler(most_positions=2).compile(Ranker.read("X_a X_b X_a"), "ab")
