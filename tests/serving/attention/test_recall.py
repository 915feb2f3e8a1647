"""Shares of full attention, against sums written out."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.serving.attention.interface import Cache
from wavetank.serving.attention.recall import block_recalls, dense, full_attention, mass, top_share, top_tokens


def cache(tokens: int = 256, heads: int = 2, group: int = 2) -> Cache:
    """Return a cache of noise with two queries."""
    rng = np.random.default_rng(0)
    keys, values = (rng.standard_normal((heads, tokens, 6), np.float32) for _ in range(2))
    return Cache(keys, values, 3 * rng.standard_normal((2, heads * group, 6), np.float32))


def test_full_attention_is_the_mean_of_values_by_their_exponentials() -> None:
    given = cache(5)
    for head in range(2):
        full = full_attention(given, head)
        for step in range(2):
            for g in range(2):
                query = given.queries[step, 2 * head + g].astype(float)
                weights = [np.exp(sum(a * b for a, b in zip(query, key, strict=True)) / 6**0.5)
                           for key in given.keys[head].astype(float)]  # fmt: skip
                assert full.shares[step, g] == pytest.approx(np.array(weights) / sum(weights), rel=1e-9)
                expected = sum(w * v for w, v in zip(weights, given.values[head].astype(float), strict=True))
                assert full.out[step, g] == pytest.approx(expected / sum(weights), rel=1e-9)
            own = given.queries[step, 2 * head : 2 * head + 2]
            assert dense(own, given.keys[head], given.values[head]) == pytest.approx(full.out[step], rel=1e-9)


def test_mass_and_top_share_count_what_was_read() -> None:
    shares = np.array([[0.1, 0.5, 0.0, 0.4], [0.7, 0.1, 0.2, 0.0]])
    assert mass(shares, np.array([1, 3])) == pytest.approx((0.9 + 0.1) / 2)
    top = top_tokens(shares, 2)
    assert [sorted(each) for each in top.tolist()] == [[1, 3], [0, 2]]
    assert top_share(top, np.array([1, 3])) == 0.5
    assert top_share(top, np.array([0, 1, 2])) == 0.75
    assert top_share(top, np.arange(4)) == 1
    assert sorted(top_tokens(shares, 4)[0].tolist()) == [0, 1, 2, 3]


def test_recalls_of_a_whole_budget_are_1_and_of_less_below() -> None:
    given = cache()
    assert block_recalls(given, 1.0, (4, 16), "box", "sum", 1.0) == pytest.approx(np.ones((2, 2)))
    less = block_recalls(given, 0.25, (4, 16), "box", "sum", 1.0)
    assert less.shape == (2, 2)
    assert (less < 0.99).all()
    assert (less > 0.25).all()
    # A share of less than two of the longest blocks is raised to as many.
    assert np.array_equal(block_recalls(given, 0.01, (4, 32), "box", "sum", 1.0),
                          block_recalls(given, 0.25, (4, 32), "box", "sum", 1.0))  # fmt: skip
    # Of noise, short blocks find more.
    assert (less[:, 0] > less[:, 1]).all()
