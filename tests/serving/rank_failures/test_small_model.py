"""The small model: rows that do not depend on their company, against the same written down once more."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.small_model import (
    VOCABULARY,
    Shape,
    SmallModel,
    alone,
    expert_output,
    expert_weights,
    product,
    word,
)

SHAPE = Shape(hidden=8, inner=16, layers=2, experts=4)


def test_a_row_is_the_same_alone_and_in_any_company() -> None:
    draws = np.random.default_rng(1)
    weights, rows = draws.normal(size=(24, 40)), draws.normal(size=(9, 40))
    together = product(weights, rows)
    for place in range(9):
        assert (product(weights, rows[place : place + 1]) == together[place]).all()
    np.testing.assert_allclose(together, rows @ weights.T, rtol=1e-12)


def test_an_answer_is_that_of_the_formula() -> None:
    model = SmallModel(SHAPE)
    state = model.embedding[3] * 0.75 * 0.75 + model.embedding[200] * 0.75 + model.embedding[17]
    for layer in range(2):
        values = model.mix[layer] @ (state / math.sqrt(state @ state / 8 + 1e-6))
        scores = model.routers[layer] @ values
        chosen = sorted(range(4), key=lambda each: -scores[each])[:2]
        odds = [math.exp(scores[each]) for each in chosen]
        for odd, expert in zip(odds, chosen, strict=True):
            weights = expert_weights(SHAPE, layer * 4 + expert)
            between = np.maximum(weights[:128].reshape(16, 8) @ values, 0)
            state = state + odd / sum(odds) * (weights[128:].reshape(8, 16) @ between)
    assert alone(model, [3, 200, 17], 1) == [int(np.argmax(model.head @ state))]


def test_what_was_said_can_be_a_part_of_the_prompt() -> None:
    model = SmallModel(SHAPE)
    whole = alone(model, [5, 9], 12)
    assert alone(model, [5, 9, *whole[:7]], 5) == whole[7:]
    assert len(set(whole)) > 2 and all(0 <= token < VOCABULARY for token in whole)


def test_experts_are_different_and_words_too() -> None:
    assert not (expert_weights(SHAPE, 0) == expert_weights(SHAPE, 1)).any()
    rows = np.ones((1, 8))
    first, second = (expert_output(SHAPE, expert_weights(SHAPE, each), rows) for each in (0, 1))
    assert (first != second).any()
    assert len({word(token) for token in range(VOCABULARY)}) == VOCABULARY


@pytest.mark.parametrize("given", [{"choices": 9}, {"hidden": 0}, {"layers": 65}, {"experts": True}])
def test_sizes_that_there_are_not_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(BadValueError):
        Shape(**given)
