"""The two simulators of protocols without ranks: exact, equal in distribution, silent when nothing can change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wavetank.errors import BadValueError
from wavetank.protocols.populations.interface import PopulationProtocol, Rule
from wavetank.protocols.populations.simulator import (
    PopulationBatched,
    PopulationPython,
    PopulationSequential,
    _collision,
    collision_free,
    is_silent,
)
from wavetank.protocols.populations.textbook import (
    approximate_majority,
    majority,
    matched_halves,
    rock_paper_scissors,
)

SIMULATORS = (PopulationSequential(), PopulationBatched(), PopulationPython())
LEAST_P = 1e-4


def observed(simulator, protocol, counts, interactions, runs):
    """Return the number of agents in the first state after so many meetings, one figure a seed."""
    start = protocol.counts(counts)
    return np.array(
        [simulator.run(protocol, start, interactions=interactions, seed=seed).counts[0] for seed in range(runs)]
    )


def p_of_same_law(one, other):
    edges = np.unique(np.quantile(np.concatenate([one, other]), np.linspace(0, 1, 11)))[1:-1]
    table = [np.bincount(np.searchsorted(edges, sample, side="right"), minlength=edges.size + 1) for sample in
             (one, other)]  # fmt: skip
    kept = np.array(table).sum(axis=0) > 0
    return stats.chi2_contingency(np.array(table)[:, kept]).pvalue


def one_meeting_law(protocol, counts):
    """Return every configuration after one meeting, with its probability."""
    n, law = int(counts.sum()), {}
    for p in range(len(protocol)):
        for q in range(len(protocol)):
            weight = counts[p] * (counts[q] - (p == q)) / (n * (n - 1))
            if weight <= 0:
                continue
            after = counts.copy()
            after[[p]] -= 1
            after[[q]] -= 1
            after[protocol.new_initiator[0, p, q]] += 1
            after[protocol.new_responder[0, p, q]] += 1
            law[tuple(after)] = law.get(tuple(after), 0.0) + weight
    return law


def exact_law(protocol, counts, meetings):
    law = {tuple(protocol.counts(counts)): 1.0}
    for _ in range(meetings):
        after = {}
        for state, weight in law.items():
            for following, chance in one_meeting_law(protocol, np.array(state)).items():
                after[following] = after.get(following, 0.0) + weight * chance
        law = after
    return law


@pytest.mark.parametrize("simulator", SIMULATORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("agents", "meetings"), [({"a": 3, "b": 2, "c": 1}, 4), ({"a": 12, "b": 14, "c": 10}, 9)])
def test_configurations_follow_the_exact_distribution(simulator, agents, meetings):
    protocol, runs = rock_paper_scissors(), 3000
    law = exact_law(protocol, agents, meetings)
    start = protocol.counts(agents)
    seen = {}
    for seed in range(runs):
        found = tuple(simulator.run(protocol, start, interactions=meetings, seed=seed).counts)
        seen[found] = seen.get(found, 0) + 1
    assert set(seen) <= set(law)
    likely = [state for state, weight in law.items() if weight * runs >= 5]
    expected = np.array([law[state] * runs for state in likely] + [0.0])
    expected[-1] = runs - expected[:-1].sum()
    counted = np.array([seen.get(state, 0) for state in likely] + [0])
    counted[-1] = runs - counted[:-1].sum()
    if expected[-1] < 5:
        expected, counted = expected[:-1] * (counted[:-1].sum() / expected[:-1].sum()), counted[:-1]
    assert stats.chisquare(counted, expected).pvalue > LEAST_P


@pytest.mark.parametrize("make", [rock_paper_scissors, approximate_majority, majority])
def test_batched_and_sequential_agree_in_distribution(make):
    counts = {"a": 900, "b": 700, "c": 400} if make is rock_paper_scissors else {"a": 1050, "b": 950}
    one = observed(PopulationSequential(), make(), counts, 6000, 400)
    other = observed(PopulationBatched(), make(), counts, 6000, 400)
    assert p_of_same_law(one, other) > LEAST_P
    assert stats.ks_2samp(one, other).pvalue > LEAST_P


def test_times_to_silence_agree_in_distribution():
    protocol = majority()
    start = protocol.counts({"a": 110, "b": 90})
    times = [
        [simulator.run(protocol, start, interactions=10**9, seed=seed).last_change for seed in range(300)]
        for simulator in (PopulationSequential(), PopulationBatched())
    ]
    assert stats.ks_2samp(*times).pvalue > LEAST_P


@pytest.mark.parametrize("simulator", SIMULATORS[:2], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(
    ("a", "b", "answer"), [(5001, 5000, 1), (5000, 5000, 0), (5000, 5001, 0), (1, 1, 0), (2, 1, 1)]
)
def test_majority_is_always_right_and_ends_silent(simulator, a, b, answer):
    protocol = majority()
    run = simulator.run(protocol, protocol.counts({"a": a, "b": b}), interactions=10**13, seed=a + b)
    assert run.silent
    assert run.output == answer
    assert run.last_change <= run.interactions


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 400), min_size=3, max_size=3).filter(lambda each: sum(each) >= 2),
    interactions=st.integers(0, 3000),
    seed=st.integers(0, 2**32),
    which=st.sampled_from(SIMULATORS[:2]),
)
def test_no_agent_is_lost_and_no_meeting_is_counted_twice(counts, interactions, seed, which):
    protocol = rock_paper_scissors()
    run = which.run(
        protocol, protocol.counts(dict(zip("abc", counts, strict=True))), interactions=interactions, seed=seed
    )
    assert run.counts.sum() == sum(counts)
    assert (run.counts >= 0).all()
    assert run.interactions == interactions or run.silent
    assert run.interactions <= interactions


@pytest.mark.parametrize("simulator", SIMULATORS, ids=lambda each: type(each).__name__)
def test_equal_seeds_give_equal_runs(simulator):
    protocol = approximate_majority()
    start = protocol.counts({"a": 300, "b": 250})
    first, again, other = (simulator.run(protocol, start, interactions=2000, seed=seed) for seed in (1, 1, 2))
    assert first.counts.tolist() == again.counts.tolist()
    assert first.last_change == again.last_change
    assert first.counts.tolist() != other.counts.tolist()


def test_the_first_repeated_agent_comes_when_the_birthday_problem_says():
    survival = np.exp(collision_free(10))
    # Three meetings of ten agents: (8 * 7 * 6 * 5) / (10 * 9)^2.
    assert survival[:3] == pytest.approx([1.0, 1.0, 56 / 90])
    assert survival[3] == pytest.approx(56 / 90 * 30 / 90)
    assert len(survival) == 6


def test_a_population_without_enabled_pairs_is_silent():
    enabled = np.array([[True, False], [False, False]])
    assert is_silent(enabled, np.array([1, 9]))
    assert not is_silent(enabled, np.array([2, 8]))


def test_more_than_256_states_fit_into_two_bytes():
    states = {f"s{number}": 0 for number in range(300)}
    rules = [Rule(f"s{number}", f"s{number}", f"s{number + 1}", f"s{number}") for number in range(299)]
    protocol = PopulationProtocol.from_rules("ladder", rules=rules, initial={"a": "s0"}, outputs=states)
    run = PopulationSequential().run(protocol, protocol.counts({"a": 12}), interactions=10**9, seed=1)
    assert run.silent
    assert run.counts.max() == 1


@pytest.mark.parametrize("simulator", SIMULATORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda each: each.run(matched_halves(), matched_halves().counts("ab"), interactions=1, seed=0), "no ranks"),
        (lambda each: each.run(majority(), majority().counts("a"), interactions=1, seed=0), "number of agents"),
        (
            lambda each: each.run(majority(), np.zeros(3, np.int64), interactions=1, seed=0),
            "one whole number per state",
        ),
        (lambda each: each.run(majority(), majority().counts("ab"), interactions=-1, seed=0), "negative"),
    ],
)
def test_what_cannot_be_simulated_is_refused(simulator, call, says):
    with pytest.raises(BadValueError, match=says):
        call(simulator)


def test_batches_follow_the_exact_distribution():
    # Every meeting changes something and there are two states: the simulator jumps nowhere, all of it is batches.
    rules = [Rule("A", "A", "B", "A"), Rule("A", "B", "B", "B"), Rule("B", "A", "A", "A"), Rule("B", "B", "A", "A")]
    protocol = PopulationProtocol.from_rules("flips", rules=rules, initial={"a": "A"}, outputs={"A": 0, "B": 1})
    n, meetings, runs = 200, 60, 4000
    law = np.zeros(n + 1)
    law[n] = 1.0
    for _ in range(meetings):
        following = np.zeros(n + 1)
        for a in range(n + 1):
            b, pairs = n - a, n * (n - 1)
            for share, change in ((a * (a - 1), -1), (a * b, -1), (b * a, 1), (b * (b - 1), 2)):
                if share:
                    following[a + change] += law[a] * share / pairs
        law = following
    seen = observed(PopulationBatched(), protocol, {"a": n}, meetings, runs)
    edges = np.flatnonzero(np.diff(np.floor(np.minimum(np.cumsum(law), 0.95) * 15)))
    expected = np.diff([0.0, *np.cumsum(law)[edges], 1.0]) * runs
    counted = np.diff([0, *[(seen <= edge).sum() for edge in edges], runs])
    assert len(expected) > 8
    assert expected.min() > 5
    assert stats.chisquare(counted, expected).pvalue > LEAST_P


def test_the_meeting_that_ends_a_batch_is_of_each_kind_as_often_as_chance_has_it():
    # State 0 is of agents outside the batch, 1 of those in it; 2, 3, 4 tell which kinds met: both in it, or one.
    kinds, touched, untouched = np.zeros(3), 6, 14
    tables = np.zeros((2, 5, 5), np.int64)
    tables[:, :2, :2] = [[0, 4], [3, 2]]
    enabled, stream = np.ones((5, 5), bool), np.zeros(1, np.uint64)
    for _ in range(20_000):
        counts, after = np.array([untouched, 0, 0, 0, 0]), np.array([0, touched, 0, 0, 0])
        _collision(counts, after, tables[0], tables[1], enabled, touched, np.uint64(7), stream)
        assert counts.sum() + after.sum() == touched + untouched
        kinds += after[2:] > 0
    shares = np.array([touched * (touched - 1), touched * untouched, untouched * touched], float)
    assert stats.chisquare(kinds, shares / shares.sum() * 20_000).pvalue > LEAST_P


def test_four_billion_agents_are_batched_without_overflow_and_more_are_refused():
    protocol = rock_paper_scissors()
    counts = protocol.counts({"a": 1 << 31, "b": 1 << 30, "c": 1 << 30})
    run = PopulationBatched().run(protocol, counts, interactions=3_000_000, seed=1)
    assert run.counts.sum() == 1 << 32
    assert (run.counts > 0).all()
    # A meeting changes one agent at most.
    assert np.abs(run.counts - counts).max() <= 3_000_000
    with pytest.raises(BadValueError, match="number of agents"):
        PopulationBatched().run(protocol, counts * 2, interactions=1, seed=1)
