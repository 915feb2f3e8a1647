"""Compiled scores, choices and attention, held against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.serving.attention.kernels import TILE, attend_ranges, pick, score_blocks, sparse_step
from wavetank.serving.attention.summaries import query_weights, summarise, tiles_of


def test_the_highest_scores_are_picked_and_of_equal_ones_the_first() -> None:
    rng = np.random.default_rng(0)
    for case in range(60):
        count = int(rng.integers(1, 400))
        # Few different numbers, of both signs, so that ties are everywhere.
        scores = (rng.integers(-3, 4, count) * rng.choice([1e-30, 1.0, 1e30])).astype(np.float32)
        if case % 3 == 0:
            scores[rng.integers(0, count)] = np.inf
        wanted = int(rng.integers(0, count + 1))
        picked = np.full(count, -1, np.int64)
        pick(scores, count, wanted, picked)
        expected = np.sort(np.argsort(-scores.astype(np.float64), kind="stable")[:wanted])
        assert picked[:wanted].tolist() == expected.tolist()
        assert (picked[wanted:] == -1).all()


@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("group", [1, 4, 6])
def test_scores_are_sums_of_weighted_numbers(bits: int, group: int) -> None:
    rng = np.random.default_rng(group)
    summaries = rng.standard_normal((TILE + 17, 50), np.float32)
    weights = rng.standard_normal((group, 50)).astype(np.float32)
    weights[:, ::3] = 0
    tiles = tiles_of(summaries, bits)
    held = summaries.astype(np.float64)
    if bits == 4:
        _, packed, scales, zeros = tiles
        codes = np.concatenate((packed & 15, packed >> 4), 2).astype(np.float64)
        whole = codes * scales[:, :, None] + zeros[:, :, None]
        held = np.concatenate((whole[0].T, whole[1].T))[: summaries.shape[0]]
        assert np.abs(held - summaries).max() < 0.5
    each = held @ weights.T.astype(np.float64)
    for add, expected in ((True, each.sum(1)), (False, each.max(1))):
        scores = np.zeros(2 * TILE, np.float32)
        score_blocks(weights, 2, 0, *tiles, add, scores)
        assert scores[: held.shape[0]] == pytest.approx(expected, abs=1e-4)


def test_attention_over_ranges_is_that_of_their_tokens() -> None:
    rng = np.random.default_rng(1)
    for group, dim, tokens in ((1, 8, 40), (4, 24, 700), (5, 64, 300)):
        keys, values = (rng.standard_normal((2, tokens, dim), np.float32) for _ in range(2))
        query = 3 * rng.standard_normal((2, group, dim)).astype(np.float32)
        starts, stops = np.array([[0, 9], [5, 0]]), np.array([[7, tokens], [tokens - 2, 0]])
        out = np.empty_like(query)
        attend_ranges(np.array([1, 0]), query, keys, values, starts, stops, np.array([2, 1]), out)
        for head, read in enumerate((np.r_[0:7, 9:tokens], np.r_[5 : tokens - 2])):
            products = query[head].astype(np.float64) @ keys[head, read].T.astype(np.float64)
            shares = np.exp(products - products.max(1, keepdims=True))
            expected = shares @ values[head, read].astype(np.float64) / shares.sum(1, keepdims=True)
            assert out[head] == pytest.approx(expected, abs=1e-5)


def test_logits_that_are_far_apart_do_not_overflow() -> None:
    keys = np.zeros((1, 3, 4), np.float32)
    keys[0, :, 0] = [-1e4, 3e4, 2e4]
    values = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    query, out = np.ones((1, 1, 4), np.float32), np.empty((1, 1, 4), np.float32)
    zero = np.zeros((1, 1), np.int64)
    attend_ranges(np.array([0]), query, keys, values, zero, zero + 3, np.array([1]), out)
    assert out[0, 0].tolist() == values[0, 1].tolist()


def test_ragged_heads_give_what_heads_one_by_one_give() -> None:
    rng = np.random.default_rng(2)
    tokens, dim = 700, 16
    keys, values = (rng.standard_normal((3, tokens, dim), np.float32) for _ in range(2))
    query = rng.standard_normal((3, 4, dim)).astype(np.float32)
    blocks, wanted = np.array([4, 8, 64]), np.array([30, 15, 3])
    parts = [tiles_of(summarise("box", keys[head], int(blocks[head])), 4) for head in range(3)]
    first = np.cumsum([0, *(part[1].shape[0] for part in parts)])[:-1]
    ragged = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    weights = query_weights("box", query)
    picked, out = np.zeros((3, 200), np.int64), np.empty_like(query)
    rest = (query, weights, keys, values, tokens, blocks, wanted)
    sparse_step(np.arange(3), *rest, first, *ragged, True, picked, out)
    for head in range(3):
        alone, chosen = np.empty_like(query), np.zeros_like(picked)
        own = np.zeros(3, np.int64)
        sparse_step(np.array([head]), *rest, own, *parts[head], True, chosen, alone)
        assert np.array_equal(alone[head], out[head])
        assert np.array_equal(chosen[head, : wanted[head]], picked[head, : wanted[head]])
