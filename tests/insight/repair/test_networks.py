"""Exact inference: blankets, free energy, interventions and twins, against enumeration and known tables."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.insight.repair.networks import (
    Network,
    blanket_posterior,
    counted,
    free_energy,
    intervened,
    ordered,
    overlap,
    posterior,
)


def drawn(seed, size=8, most=3):
    """A random network whose order of variables is not the order of causes."""
    draws = np.random.default_rng(seed)
    order = draws.permutation(size)
    levels = draws.integers(2, 4, size)
    parents = [()] * size
    for place, node in enumerate(order):
        many = int(draws.integers(0, min(place, most) + 1))
        parents[node] = tuple(int(each) for each in draws.permutation(order[:place])[:many])
    tables = tuple(
        draws.dirichlet(np.ones(levels[node]), size=[levels[each] for each in parents[node]]) for node in range(size)
    )
    return Network(tuple(f"v{node}" for node in range(size)), tuple(parents), tables)


def joint(network, state):
    return math.prod(
        float(network.tables[node][(*(state[each] for each in network.parents[node]), state[node])])
        for node in range(len(state))
    )


def enumerated(network, query, evidence):
    table = np.zeros([network.levels[each] for each in query])
    for state in itertools.product(*(range(each) for each in network.levels)):
        if all(state[node] == level for node, level in evidence.items()):
            table[tuple(state[each] for each in query)] += joint(network, state)
    return table / table.sum(), math.log(table.sum())


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_elimination_is_enumeration(seed):
    network = drawn(seed, size=6)
    draws = np.random.default_rng(seed + 1)
    order = [int(each) for each in draws.permutation(6)]
    query, seen = order[:2], order[2 : 2 + int(draws.integers(0, 4))]
    evidence = {node: int(draws.integers(network.levels[node])) for node in seen}
    table, log = posterior(network, query, evidence)
    wanted, wanted_log = enumerated(network, query, evidence)
    np.testing.assert_allclose(table, wanted, atol=1e-12)
    assert log == pytest.approx(wanted_log, abs=1e-10)


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_a_blanket_is_all_there_is_to_know(seed):
    network = drawn(seed, size=12)
    draws = np.random.default_rng(seed + 1)
    node = int(draws.integers(12))
    evidence = {each: int(draws.integers(network.levels[each])) for each in range(12) if each != node}
    near, _ = blanket_posterior(network, node, evidence)
    everything, _ = posterior(network, (node,), evidence)
    np.testing.assert_allclose(near, everything, rtol=0, atol=1e-12)
    # What lies outside of the blanket is not looked at.
    other = {each: level for each, level in evidence.items() if each in network.blanket(node)}
    np.testing.assert_array_equal(near, blanket_posterior(network, node, other)[0])


def test_a_blanket_with_a_hidden_member_sums_over_its_prior():
    network = Network(
        ("a", "b", "sign", "other"), ((), (), (0, 1), (1,)),
        (np.array([0.9, 0.1]), np.array([0.6, 0.4]),
         np.array([[[0.99, 0.01], [0.3, 0.7]], [[0.2, 0.8], [0.1, 0.9]]]), np.array([[0.5, 0.5], [0.1, 0.9]])),
    )  # fmt: skip
    table, log = blanket_posterior(network, 0, {2: 1, 3: 1})
    yes, no = 0.1 * (0.6 * 0.8 + 0.4 * 0.9), 0.9 * (0.6 * 0.01 + 0.4 * 0.7)
    np.testing.assert_allclose(table, [no / (yes + no), yes / (yes + no)], atol=1e-12)
    assert log == pytest.approx(math.log(yes + no))


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_free_energy_of_the_exact_belief_is_the_surprise_and_of_others_more_by_their_divergence(seed):
    network = drawn(seed, size=5)
    evidence = {4: 0}
    exact, log = posterior(network, (0, 1), evidence)
    assert free_energy(exact, network, (0, 1), evidence) == pytest.approx(-log, abs=1e-10)
    other = np.random.default_rng(seed).dirichlet(np.ones(exact.size)).reshape(exact.shape)
    divergence = float((other * (np.log(other) - np.log(exact))).sum())
    assert free_energy(other, network, (0, 1), evidence) == pytest.approx(-log + divergence, abs=1e-9)
    assert divergence >= 0


def test_surgery_reverses_the_order_of_the_kidney_stones():
    # Size of the stone chooses the treatment, both decide the outcome: 81/87, 234/270, 192/263, 55/80.
    rows = [(0, 0, 81, 6), (0, 1, 234, 36), (1, 0, 192, 71), (1, 1, 55, 25)]
    states = np.array([
        (size, treatment, outcome)
        for size, treatment, good, bad in rows
        for outcome, count in ((1, good), (0, bad))
        for _ in range(count)
    ])  # fmt: skip
    network = counted(("size", "treatment", "outcome"), ((), (0,), (0, 1)), (2, 2, 2), states, prior=1e-9)
    seen = [posterior(network, (2,), {1: treatment})[0][1] for treatment in (0, 1)]
    done = [posterior(intervened(network, {1: treatment}), (2,), {1: treatment})[0][1] for treatment in (0, 1)]
    assert seen == pytest.approx([0.78, 0.826], abs=5e-4)
    assert done == pytest.approx([0.833, 0.779], abs=5e-4)
    by_size = [posterior(network, (2,), {0: size, 1: treatment})[0][1] for size in (0, 1) for treatment in (0, 1)]
    assert by_size == pytest.approx([0.931, 0.867, 0.730, 0.6875], abs=5e-4)


def test_counts_have_a_prior_and_leave_out_what_was_not_seen():
    states = np.array([[1, 1], [1, 0], [0, -1], [1, 1]])
    network = counted(("cause", "effect"), ((), (0,)), (2, 2), states)
    np.testing.assert_allclose(network.tables[0], [2 / 6, 4 / 6])
    np.testing.assert_allclose(network.tables[1], [[1 / 2, 1 / 2], [2 / 5, 3 / 5]])


def test_a_twin_keeps_what_the_observation_says_of_the_unknown_cause():
    before, after = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
    hidden = (np.arange(200_000) + 0.5) / 200_000
    for level in range(3):
        was = np.searchsorted(np.cumsum(before), hidden) == level
        would = np.searchsorted(np.cumsum(after), hidden[was])
        np.testing.assert_allclose(
            overlap(before, after, level), np.bincount(would, minlength=3) / was.sum(), atol=1e-4
        )
    np.testing.assert_array_equal(overlap(before, before, 1), [0, 1, 0])
    np.testing.assert_array_equal(overlap(np.array([0.5, 0.0, 0.5]), after, 1), after)


def test_bad_networks_and_questions_are_refused():
    coin = np.array([0.5, 0.5])
    half = np.array([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(BadValueError, match="no cycle"):
        ordered(((1,), (0,)))
    with pytest.raises(BadValueError, match="other variables"):
        Network(("a",), ((0,),), (half,))
    with pytest.raises(BadValueError, match="'b'"):
        Network(("a", "b"), ((), (0,)), (coin, np.array([[0.5, 0.6], [0.5, 0.5]])))
    with pytest.raises(BadValueError, match="parents and a table"):
        Network(("a", "b"), ((),), (coin,))
    network = Network(("a", "b"), ((), (0,)), (coin, np.array([[1.0, 0.0], [0.5, 0.5]])))
    for question in (((0,), {0: 1}), ((0, 0), {}), ((5,), {})):
        with pytest.raises(BadValueError, match="asked for"):
            posterior(network, *question)
    with pytest.raises(BadValueError, match="level of a variable"):
        posterior(network, (0,), {1: 2})
    with pytest.raises(BadValueError, match="impossible"):
        posterior(network, (), {0: 0, 1: 1})
    with pytest.raises(BadValueError, match="forced"):
        intervened(network, {0: 2})
    with pytest.raises(BadValueError, match="belief"):
        free_energy(np.array([0.7, 0.7]), network, (0,), {})
    with pytest.raises(BadValueError, match="prior"):
        counted(("a",), ((),), (2,), np.zeros((1, 1), np.int64), prior=math.nan)
    with pytest.raises(BadValueError, match="level of its variable"):
        counted(("a",), ((),), (2,), np.full((1, 1), 2))


def test_what_would_not_fit_into_memory_is_refused():
    many = 26
    parents = tuple(() for _ in range(many))
    network = Network(tuple(f"v{each}" for each in range(many)), parents, tuple(np.array([0.5, 0.5]) for _ in parents))
    with pytest.raises(BadValueError, match="does not fit"):
        posterior(network, tuple(range(many)), {})
