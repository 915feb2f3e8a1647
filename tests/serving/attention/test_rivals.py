"""Rivals read what they say, within the budget, and compute attention over it."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.attention.interface import Cache
from wavetank.serving.attention.recall import dense
from wavetank.serving.attention.rivals import (
    DenseAttention,
    RandomBlocks,
    SinkRecent,
    TokenOracle,
    TorchAttention,
    UniformBlocks,
)  # fmt: skip


@pytest.fixture(scope="module")
def cache() -> Cache:
    rng = np.random.default_rng(0)
    keys, values = (rng.standard_normal((2, 900, 8), np.float32) for _ in range(2))
    return Cache(keys, values, 2 * rng.standard_normal((2, 4, 8), np.float32))


def reading(system: Any, cache: Cache, budget: int) -> list[np.ndarray]:
    """Return the tokens that a system reads for the first query, after checking its answer."""
    ready = system.build(cache, budget, cache)
    tokens = ready.selected(cache.queries[0])
    found = ready.attend(cache.queries[0])
    assert np.array_equal(found, ready.attend(cache.queries[0]))
    for head, read in enumerate(tokens):
        own = slice(2 * head, 2 * head + 2)
        expected = dense(cache.queries[0, own], cache.keys[head, read], cache.values[head, read])
        assert found[own] == pytest.approx(expected, abs=1e-5)
        most = 900 if isinstance(system, (DenseAttention, TorchAttention)) else budget
        assert np.unique(read).size == read.size <= most
    return tokens


def test_dense_attention_reads_everything(cache: Cache) -> None:
    systems = [DenseAttention(threads=2)]
    try:
        import torch  # noqa: F401

        systems.append(TorchAttention())
    except ImportError:
        pass
    for system in systems:
        assert [each.tolist() for each in reading(system, cache, 40)] == [list(range(900))] * 2
        ready = system.build(cache, 40, cache)
        assert (ready.read_bytes, ready.summary_bytes) == (2 * 900 * 8 * 8, 0)


def test_the_ends_are_the_first_and_the_last_tokens(cache: Cache) -> None:
    assert reading(SinkRecent(), cache, 40)[0].tolist() == [0, 1, 2, 3, *range(864, 900)]
    assert reading(SinkRecent(sinks=50), cache, 40)[1].tolist() == list(range(40))
    assert SinkRecent().build(cache, 40, cache).read_bytes == 2 * 40 * 8 * 8


def test_chance_reads_whole_blocks_others_for_another_query(cache: Cache) -> None:
    ready = RandomBlocks(block=16).build(cache, 100, cache)
    one, other = ready.selected(cache.queries[0]), ready.selected(cache.queries[1])
    assert reading(RandomBlocks(block=16), cache, 100)[0].tolist() == one[0].tolist()
    assert one[0].size == one[1].size == 96
    assert ready.read_bytes == 2 * 96 * 8 * 8
    assert {0, 895} <= set(one[0].tolist())
    assert not np.array_equal(one[0], other[0])
    assert not np.array_equal(one[0], one[1])


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_as_many_tokens_beats_the_oracle(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((1, 9, 4), np.float32)
    small = Cache(keys, keys, 2 * rng.standard_normal((1, 3, 4), np.float32))
    (read,) = TokenOracle().build(small, 3, small).selected(small.queries[0])
    products = small.queries[0].astype(float) @ keys[0].T.astype(float) / 2
    shares = (np.exp(products) / np.exp(products).sum(1, keepdims=True)).sum(0)
    best = max(itertools.combinations(range(9), 3), key=lambda chosen: shares[list(chosen)].sum())
    assert read.tolist() == list(best)


def test_blocks_of_one_length_stay_within_the_budget(cache: Cache) -> None:
    for system in (UniformBlocks(block=16), UniformBlocks(block=32, summary="ball", bits=4, reach=0.25)):
        assert min(each.size for each in reading(system, cache, 100)) > 100 - system.block


@pytest.mark.parametrize("system", [SinkRecent(), RandomBlocks(), TokenOracle(), UniformBlocks()])
@pytest.mark.parametrize("budget", [0, 901])
def test_a_budget_that_is_no_part_of_the_cache_is_refused(system: Any, budget: int, cache: Cache) -> None:
    with pytest.raises(BadValueError, match="budget"):
        system.build(cache, budget, cache)


@pytest.mark.parametrize("kind", [DenseAttention, SinkRecent, RandomBlocks, TokenOracle, UniformBlocks])
def test_parameters_are_checked_and_mean_equality(kind: Any) -> None:
    assert pickle.loads(pickle.dumps(kind(threads=2))) == kind(threads=2) != kind()
    with pytest.raises(BadValueError):
        kind(threads=0)
