"""The two simulators of ordered agents: equal in distribution, and silent exactly when no pair can change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wavetank.errors import BadValueError
from wavetank.protocols.populations.interface import GUARDS, PopulationProtocol, Rule, relation_of
from wavetank.protocols.populations.ordered_simulator import OrderedSequential, OrderedSkipping
from wavetank.protocols.populations.simulator import PopulationSequential
from wavetank.protocols.populations.textbook import majority, matched_halves

SIMULATORS = (OrderedSequential(), OrderedSkipping())
LEAST_P = 1e-4


def mixed() -> PopulationProtocol:
    """Return a protocol whose rules use every guard and never come to rest for long."""
    return PopulationProtocol.from_rules(
        "mixed",
        rules=[
            Rule("A", "B", "B", "C", "+1"), Rule("B", "A", "A", "A", "<"), Rule("C", "A", "B", "A", "-1"),
            Rule("C", "B", "C", "A", ">"), Rule("C", "C", "A", "C"),
        ],
        initial={"a": "A", "b": "B"},
        outputs={"A": 1, "B": 0, "C": 1},
    )  # fmt: skip


def exact_law(protocol, word, meetings):
    """Return the distribution over configurations after so many uniform ordered pairs met."""
    full = protocol.with_relations()
    law = {tuple(protocol.start(word)): 1.0}
    n = len(word)
    for _ in range(meetings):
        after = {}
        for state, weight in law.items():
            for i in range(n):
                for j in range(n):
                    if i == j:
                        continue
                    new = list(state)
                    relation = relation_of(i, j)
                    new[i] = int(full.new_initiator[relation, state[i], state[j]])
                    new[j] = int(full.new_responder[relation, state[i], state[j]])
                    after[tuple(new)] = after.get(tuple(new), 0.0) + weight / (n * (n - 1))
        law = after
    return law


def counts_law(law, size):
    found = {}
    for state, weight in law.items():
        key = tuple(np.bincount(state, minlength=size))
        found[key] = found.get(key, 0.0) + weight
    return found


@pytest.mark.parametrize("simulator", SIMULATORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("word", "meetings"), [("abab", 6), ("bbaab", 9), ("ab", 5)])
def test_configurations_follow_the_exact_distribution(simulator, word, meetings):
    protocol, runs = mixed(), 3000
    law = counts_law(exact_law(protocol, word, meetings), len(protocol))
    seen = {}
    for seed in range(runs):
        key = tuple(simulator.run(protocol, word, interactions=meetings, seed=seed).counts)
        seen[key] = seen.get(key, 0) + 1
    assert set(seen) <= set(law)
    likely = [key for key, weight in law.items() if weight * runs >= 5]
    expected = np.array([law[key] for key in likely])
    counted = np.array([seen.get(key, 0) for key in likely])
    assert stats.chisquare(counted, expected / expected.sum() * counted.sum()).pvalue > LEAST_P


def test_both_simulators_take_equally_long():
    protocol, word = matched_halves(), "a" * 15 + "b" * 14
    times = [
        [simulator.run(protocol, word, interactions=10**9, seed=seed).last_change for seed in range(300)]
        for simulator in SIMULATORS
    ]
    assert stats.ks_2samp(*times).pvalue > LEAST_P


def test_majority_does_not_notice_an_order_it_does_not_ask_for():
    protocol, word = majority(), "ab" * 20 + "aa"
    ordered = [OrderedSkipping().run(protocol, word, interactions=10**9, seed=seed) for seed in range(300)]
    plain = [
        PopulationSequential().run(protocol, protocol.counts(word), interactions=10**9, seed=seed)
        for seed in range(300)
    ]
    assert {run.output for run in ordered} == {run.output for run in plain} == {1}
    assert stats.ks_2samp(*([run.last_change for run in runs] for runs in (ordered, plain))).pvalue > LEAST_P


@settings(max_examples=60, deadline=None)
@given(
    rules=st.lists(
        st.tuples(st.sampled_from("ABC"), st.sampled_from("ABC"), st.sampled_from("ABC"), st.sampled_from("ABC"),
                  st.sampled_from(["<", "+1", "-1", ">", ""])),
        max_size=5,
        unique_by=lambda rule: rule[:2],
    ),
    word=st.text("ab", min_size=2, max_size=9),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_silence_is_reported_exactly_when_no_pair_can_change(rules, word, seed):
    protocol = PopulationProtocol.from_rules(
        "drawn", rules=[Rule(*rule) for rule in rules], initial={"a": "A", "b": "B"}, outputs={"A": 1, "B": 0, "C": 0}
    )
    for simulator in SIMULATORS:
        run = simulator.run(protocol, word, interactions=500, seed=seed)
        assert run.counts.sum() == len(word)
        assert run.interactions == 500 or run.silent
        assert run.last_change <= run.interactions
        if len(rules) == 0:
            assert run.silent
        # All agents alike: silence can be told from the rule for that pair.
        if run.silent and run.counts.max() == len(word):
            state = protocol.states[int(run.counts.argmax())]
            fires = [rule for rule in protocol.rules() if rule.initiator == rule.responder == state]
            far_only = [rule for rule in fires if rule.guard in ("far <", "far >")]
            assert len(fires) == (len(far_only) if len(word) == 2 else 0)


def test_neighbours_and_others_are_told_apart():
    for guard, changed in (("+1", 2), ("<", 2), ("-1", 0)):
        protocol = PopulationProtocol.from_rules(
            "mark",
            rules=[Rule("A", "B", "C", "C", guard)],
            initial={"a": "A", "b": "B"},
            outputs={"A": 0, "B": 0, "C": 1},
        )
        for simulator in SIMULATORS:
            run = simulator.run(protocol, "aab", interactions=10**6, seed=1)
            assert run.silent
            assert run.counts[2] == changed
    assert set(GUARDS) == {"", "<", ">", "+1", "-1"}


def test_the_start_of_the_final_consensus_is_the_meeting_that_made_it():
    protocol = PopulationProtocol.from_rules(
        "spread", rules=[Rule("B", "A", "A", "A")], initial={"a": "A", "b": "B"}, outputs={"A": 1, "B": 0}
    )
    for simulator in SIMULATORS:
        run = simulator.run(protocol, "abbb", interactions=10**6, seed=3)
        assert run.last_disagreement == run.last_change > 0
        agreed = simulator.run(protocol, "aa", interactions=10**6, seed=3)
        assert (agreed.last_disagreement, agreed.last_change, agreed.output) == (0, 0, 1)
        split = simulator.run(protocol, "abbb", interactions=0, seed=3)
        assert (split.last_disagreement, split.output, split.silent) == (-1, -1, False)


@pytest.mark.parametrize("simulator", SIMULATORS, ids=lambda each: type(each).__name__)
def test_words_of_one_letter_and_negative_times_are_refused(simulator):
    with pytest.raises(BadValueError, match="two agents"):
        simulator.run(majority(), "a", interactions=1, seed=0)
    with pytest.raises(BadValueError, match="negative"):
        simulator.run(majority(), "ab", interactions=-1, seed=0)


def test_a_tree_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("wavetank.protocols.populations.ordered_simulator._MOST_TREE_CELLS", 39)
    with pytest.raises(BadValueError, match="too large for the tree"):
        OrderedSkipping().run(majority(), "abab", interactions=1, seed=0)
