"""The graph of configurations decides words, and shows what spoils a consensus."""

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.populations.exact_check import ExactCheck, words
from wavetank.protocols.populations.interface import PopulationProtocol, Rule
from wavetank.protocols.populations.ranker_compiler import RankerCompiler
from wavetank.protocols.populations.rankers import Ranker
from wavetank.protocols.populations.textbook import approximate_majority, majority


def spreading(*, back: bool) -> PopulationProtocol:
    rules = [Rule("A", "B", "A", "A")] + [Rule("B", "A", "B", "B")] * back
    return PopulationProtocol.from_rules("spread", rules=rules, initial={"a": "A", "b": "B"}, outputs={"A": 1, "B": 0})


def test_configurations_of_a_small_word_are_counted():
    verdict = ExactCheck().decide(spreading(back=False), "abb")
    # The first agent is A throughout, the others turn independently.
    assert (verdict.output, verdict.configurations, verdict.bottom_components) == (1, 4, 1)


def test_two_bottom_components_that_differ_are_no_verdict():
    verdict = ExactCheck().decide(spreading(back=True), "ab")
    assert (verdict.output, verdict.bottom_components, verdict.decided) == (-1, 2, True)
    assert len(set(verdict.witness)) == 1


def test_a_bottom_component_without_consensus_has_a_witness():
    still = PopulationProtocol.from_rules("still", rules=[], initial={"a": "A", "b": "B"}, outputs={"A": 1, "B": 0})
    verdict = ExactCheck().decide(still, "ab")
    assert verdict.output == -1
    assert verdict.witness == ("A", "B")


def test_a_component_that_never_rests_counts_as_one():
    swap = PopulationProtocol.from_rules(
        "swap", rules=[Rule("A", "B", "B", "A")], initial={"a": "A", "b": "B"}, outputs={"A": 1, "B": 1}
    )
    verdict = ExactCheck().decide(swap, "abb")
    assert (verdict.output, verdict.configurations, verdict.bottom_components) == (1, 3, 1)


def test_majority_is_decided_and_approximate_majority_is_not():
    check = ExactCheck()
    assert all(
        check.decide(majority(), word).output == int(word.count("a") > word.count("b")) for word in words("ab", 6)
    )
    assert check.decide(approximate_majority(), "aabb").output == -1


def test_majority_with_the_trivial_predicate_is_majority():
    ordered = majority().with_relations()
    assert ordered.new_initiator.shape[0] == 4
    for word in words("ab", 5):
        plain, other = ExactCheck().decide(majority(), word), ExactCheck().decide(ordered, word)
        assert plain == other


def test_without_retreat_two_agents_hold_a_position_for_ever():
    ranker = Ranker.read("X_a X_b")
    protocol = RankerCompiler().unmerged(ranker.automaton("ab"), str(ranker))
    broken = protocol.without("retreat")
    spoiled = [verdict for word in words("ab", 4) if (verdict := ExactCheck().decide(broken, word)).output < 0]
    assert spoiled
    assert all(verdict.witness and verdict.bottom_components for verdict in spoiled)
    assert all(ExactCheck().decide(protocol, verdict.word).output >= 0 for verdict in spoiled)


def test_a_search_that_grows_too_large_ends_undecided():
    verdict = ExactCheck(most_configurations=3).decide(majority(), "aabb")
    assert (verdict.decided, verdict.output, verdict.configurations) == (False, -1, 3)


def test_words_too_long_to_be_numbered_are_refused():
    with pytest.raises(BadValueError, match="too long for the exact check"):
        ExactCheck().decide(majority(), "a" * 40)


def test_words_are_listed_by_length():
    assert ["".join(word) for word in words("ab", 2, 0)] == ["", "a", "b", "aa", "ab", "ba", "bb"]
    assert len(words("abc", 4)) == 3 + 9 + 27 + 81
