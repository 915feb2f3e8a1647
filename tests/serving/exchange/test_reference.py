"""The answer without an exchange, against one that is computed token by token."""

from __future__ import annotations

import numpy as np
from tests.serving.exchange.cases import layers, rank_steps, small, token_by_token

from wavetank.serving.exchange.reference import as_travelled, batch_of, dense
from wavetank.serving.exchange.table import contiguous


def test_sums_are_those_of_single_tokens_to_the_last_digit() -> None:
    task, expert = small(dtype="float64"), layers(8, 4, 8)
    for steps in rank_steps("zipf", task, 8, 2):
        for routed in steps:
            assert np.array_equal(dense(routed, expert, task), token_by_token(routed, expert))


def test_vectors_that_travel_as_whole_numbers_are_off_by_half_a_unit_at_most() -> None:
    task = small(wire="int8", tokens=50)
    values = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
    units = np.abs(values).max(axis=1, keepdims=True) / 127
    off = np.abs(as_travelled(values, task) - values)
    assert (off <= units / 2 * (1 + 1e-5)).all()
    assert off.max() > 0
    assert as_travelled(values, small()) is values
    assert as_travelled(values[:0], task).shape == (0, 8)


def test_a_batch_has_the_slots_of_the_table() -> None:
    task = small()
    routed = rank_steps("uniform", task, 8, 1)[0][0]
    batch = batch_of(routed, contiguous(8, 3), 0)
    # Three, three and two experts.
    assert np.array_equal(batch.slots, routed.experts + (routed.experts >= 8))
