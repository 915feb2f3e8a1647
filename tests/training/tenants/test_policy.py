"""The policy: exact slopes, rows that do not depend on their batch, and updates that leave the old adapter alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream
from wavetank.training.tenants.policy import (
    ACTIONS,
    INPUTS,
    Base,
    Samples,
    Weights,
    advantages,
    chosen,
    gradient,
    log_probabilities,
    new_adapter,
    objective,
    updated,
)

BASE = Base(3)


def learnt(seed, rank=4):
    """Return an adapter that changes something."""
    draws = stream(seed, "test")
    adapter = new_adapter(seed, rank)
    samples = drawn(seed, adapter)
    for _ in range(3):
        adapter = updated(BASE, adapter, samples, rate=float(draws.uniform(0.05, 0.1)))
    return adapter


def drawn(seed, adapter, rows=12):
    draws = stream(seed, "samples")
    inputs = draws.normal(size=(rows, INPUTS))
    actions = draws.integers(ACTIONS, size=rows)
    logs = log_probabilities(BASE, inputs, [adapter], [0] * rows)[np.arange(rows), actions]
    return Samples(inputs, actions, logs, draws.normal(size=rows))


def test_a_new_adapter_changes_nothing_and_probabilities_add_up_to_one():
    inputs = stream(0, "inputs").normal(size=(5, INPUTS))
    logs = log_probabilities(BASE, inputs, [new_adapter(1), new_adapter(2)], [0, 1, 0, 1, 1])
    plain = np.tanh(inputs @ BASE.first) @ BASE.second
    plain = plain - np.log(np.exp(plain).sum(1, keepdims=True))
    np.testing.assert_allclose(logs, plain, rtol=1e-12)
    np.testing.assert_allclose(np.exp(logs).sum(1), 1.0)


def test_an_adapter_adds_its_products():
    adapter, inputs = learnt(1), stream(0, "inputs").normal(size=(5, INPUTS))
    w = adapter.weights
    logits = np.tanh(inputs @ (BASE.first + w.a1 @ w.b1)) @ (BASE.second + w.a2 @ w.b2)
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(log_probabilities(BASE, inputs, [adapter], [0] * 5), expected, rtol=1e-10)
    assert np.abs(w.b1).max() > 0.01


@given(rows=st.lists(st.integers(0, 3), min_size=1, max_size=40), place=st.integers(0, 39))
def test_a_row_is_the_same_to_the_last_bit_in_any_batch(rows, place):
    place %= len(rows)
    adapters = [learnt(seed) for seed in range(4)]
    inputs = stream(1, "inputs").normal(size=(len(rows), INPUTS))
    together = log_probabilities(BASE, inputs, adapters, rows)
    alone = log_probabilities(BASE, inputs[place : place + 1], [adapters[rows[place]]], [0])
    assert together[place].tobytes() == alone[0].tobytes()


@pytest.mark.parametrize("clip", [0.2, 1e-3])
def test_the_gradient_is_that_of_differences(clip):
    adapter = learnt(5)
    samples = drawn(6, adapter)
    # Old probabilities that differ, so that ratios are not 1 and some are clipped.
    samples = samples._replace(log_probability=samples.log_probability + stream(7, "old").normal(size=12) / 5)
    found = gradient(BASE, adapter.weights, samples, clip)
    for name, slope in found._asdict().items():
        value = getattr(adapter.weights, name)
        for place in [(0, 0), (value.shape[0] - 1, value.shape[1] - 1), (1, 1)]:
            sides = []
            for sign in (1, -1):
                moved = value.copy()
                moved[place] += sign * 1e-6
                sides.append(objective(BASE, adapter.weights._replace(**{name: moved}), samples, clip))
            assert slope[place] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4, abs=1e-8), name


def test_an_update_raises_the_objective_and_leaves_the_old_adapter_and_the_base_as_they_were():
    adapter, base = learnt(2), BASE.bytes()
    samples = drawn(2, adapter)
    before = adapter.bytes()
    new = updated(BASE, adapter, samples, rate=0.01)
    assert objective(BASE, new.weights, samples, 0.2) > objective(BASE, adapter.weights, samples, 0.2)
    assert (new.version, adapter.bytes(), BASE.bytes()) == (adapter.version + 1, before, base)
    assert new.bytes() != before
    for array in (*new.weights, *new.mean, *new.square, BASE.first):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1.0


@pytest.mark.parametrize("advantage", [np.nan, np.inf, 1e308])
def test_an_update_that_would_not_be_finite_is_none(advantage):
    adapter = new_adapter(0)
    samples = drawn(0, adapter)
    assert updated(BASE, adapter, samples._replace(advantage=np.full(12, advantage)), rate=0.1) is None
    assert updated(BASE, adapter, samples, rate=0.1) is not None


def test_advantages_are_normalised_within_the_group():
    found = advantages([0.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(found, [-1, 1, 1, -1], rtol=1e-5)
    assert advantages([2.0, 2.0]).tolist() == [0.0, 0.0]
    assert advantages([5.0]).tolist() == [0.0]
    assert advantages([]).size == 0


def test_an_action_is_drawn_by_its_probability():
    logs = np.log(np.array([0.5, 0.25, 0.125, 0.125 / 5, 0.125 / 5, 0.125 / 5, 0.125 / 5, 0.125 / 5]))
    assert [chosen(logs, draw) for draw in (0.0, 0.49, 0.51, 0.74, 0.76, 0.999999999)] == [0, 0, 1, 1, 2, 7]
    # What rounding leaves over belongs to the last action.
    assert chosen(np.full(ACTIONS, -50.0), 0.5) == ACTIONS - 1


def test_adapters_of_different_ranks_are_not_mixed():
    with pytest.raises(BadValueError, match="one rank"):
        log_probabilities(BASE, np.zeros((2, INPUTS)), [new_adapter(0, 4), new_adapter(0, 2)], [0, 1])
    assert isinstance(new_adapter(0, 2).weights, Weights)
