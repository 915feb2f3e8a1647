"""Protocols as data: rules, guards, tables, merging, and what is refused."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.populations import interface as interfaces
from wavetank.protocols.populations.exact_check import ExactCheck, words
from wavetank.protocols.populations.interface import (
    FAR_AFTER,
    FAR_BEFORE,
    JUST_AFTER,
    JUST_BEFORE,
    PopulationProtocol,
    Rule,
    consensus,
    relation_of,
)
from wavetank.protocols.populations.textbook import majority, matched_halves


def protocol(*rules: Rule) -> PopulationProtocol:
    return PopulationProtocol.from_rules("example", rules=rules, initial={"a": "A", "b": "B"}, outputs={"A": 1, "B": 0})


def test_two_different_ranks_stand_in_one_of_four_relations():
    assert [relation_of(3, rank) for rank in (5, 4, 2, 1)] == [FAR_BEFORE, JUST_BEFORE, JUST_AFTER, FAR_AFTER]


@pytest.mark.parametrize(
    ("guard", "fires"),
    [("", [1, 1, 1, 1]), ("<", [1, 1, 0, 0]), (">", [0, 0, 1, 1]), ("+1", [0, 1, 0, 0]), ("-1", [0, 0, 1, 0])],
)
def test_a_guard_fires_under_its_relations_alone(guard, fires):
    found = protocol(Rule("A", "B", "B", "B", guard)).with_relations()
    assert found.enabled[:, 0, 1].astype(int).tolist() == fires
    assert found.enabled.sum() == sum(fires)


def test_the_predicates_used_are_named():
    assert protocol(Rule("A", "B", "B", "B")).predicates == ()
    assert protocol(Rule("A", "B", "B", "B", "<")).predicates == ("<",)
    assert protocol(Rule("A", "B", "B", "B", "+1")).predicates == ("+1",)
    assert protocol(Rule("A", "B", "B", "B", "+1"), Rule("B", "A", "A", "A", ">")).predicates == ("<", "+1")


def test_equal_rules_under_both_orders_need_no_predicate():
    assert not protocol(Rule("A", "B", "B", "B", "<"), Rule("A", "B", "B", "B", ">")).ordered


def test_a_rule_that_changes_nothing_is_no_rule():
    assert not protocol(Rule("A", "B", "A", "B")).enabled.any()


def test_rules_given_are_the_rules_found():
    rule = Rule("A", "B", "B", "B", "", "persuade")
    assert list(protocol(rule).rules()) == [rule]


def test_a_family_can_be_left_out():
    whole = majority()
    part = whole.without("persuade")
    assert {rule.family for rule in part.rules()} == {"cancel"}
    assert part.enabled.sum() == 2


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: protocol(Rule("A", "C", "A", "A")), "There is no such state."),
        (lambda: protocol(Rule("A", "B", "B", "B", "<<")), "There is no such guard."),
        (lambda: protocol(Rule("A", "B", "B", "B"), Rule("A", "B", "A", "A", "<")), "Two rules apply"),
        (lambda: PopulationProtocol.from_rules("x", rules=(), initial={}, outputs={"A": 2}), "An output is 0 or 1."),
        (lambda: PopulationProtocol.from_rules("x", rules=(), initial={}, outputs={}), "number of states"),
        (lambda: majority().start("abc"), "does not know this letter"),
        (lambda: majority().start(""), "at least one agent"),
        (lambda: majority().counts({"a": -1, "b": 2}), "A count is negative."),
        (lambda: majority().counts({"a": 0}), "at least one agent"),
        (lambda: majority().without("cancle"), "no such family"),
    ],
)
def test_what_makes_no_protocol_is_refused(call, says):
    with pytest.raises(BadValueError, match=says):
        call()


def test_a_protocol_that_never_stops_growing_is_refused(monkeypatch):
    monkeypatch.setattr(interfaces, "MAX_STATES", 20)
    with pytest.raises(BadValueError, match="too many states"):
        PopulationProtocol.from_function(
            "endless",
            initial={"a": 0},
            output=lambda _: 0,
            meet=lambda p, q, _: (p + q + 1, q, "grow"),
            ordered=False,
        )


def test_counts_come_from_words_and_from_numbers():
    assert majority().counts("aab").tolist() == majority().counts({"a": 2, "b": 1}).tolist() == [2, 1, 0, 0, 0]


def test_states_are_those_that_meetings_can_produce():
    found = PopulationProtocol.from_function(
        "count to three",
        initial={"a": 1},
        output=lambda state: int(state == 3),
        meet=lambda p, q, _: (3, 3, "tell") if p + q >= 3 else (p + q, 0, "add") if p and q else None,
        ordered=False,
    )
    assert set(found.states) == {"0", "1", "2", "3"}
    assert [ExactCheck().decide(found, "a" * n).output for n in (2, 3, 4)] == [0, 1, 1]


def test_merged_states_decide_the_same_words():
    split = PopulationProtocol.from_rules(
        "twins",
        rules=[
            Rule("A", "B", "A", "one"), Rule("A", "one", "A", "two"), Rule("two", "B", "two", "one"),
            Rule("one", "B", "one", "two"),
        ],
        initial={"a": "A", "b": "B"},
        outputs={"A": 1, "B": 0, "one": 1, "two": 1},
    )  # fmt: skip
    merged = split.lumped()
    assert len(merged) == 2
    for word in words("ab", 5):
        assert ExactCheck().decide(merged, word).output == ExactCheck().decide(split, word).output


def test_states_that_can_be_told_apart_stay_apart():
    assert len(majority().lumped()) == 5
    assert len(matched_halves().lumped()) == 9


def test_consensus_is_what_all_agents_say():
    outputs = np.array([0, 1, 1], np.int8)
    assert [consensus(outputs, np.array(counts)) for counts in ([3, 0, 0], [0, 1, 2], [1, 1, 0])] == [0, 1, -1]
