"""Bounds, codes and tiles of summaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.serving.attention.kernels import TILE
from wavetank.serving.attention.summaries import (
    empty_tiles,
    numbers_of,
    quantise,
    query_weights,
    summarise,
    tiles_of,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["box", "ball"]), st.integers(1, 9), st.sampled_from([1e-3, 1.0, 1e3]))
def test_a_score_is_never_below_a_product_with_a_key_of_the_block(
    seed: int, kind: str, block: int, size: float
) -> None:
    rng = np.random.default_rng(seed)
    keys = (size * rng.standard_normal((40, 12)) * rng.choice([0.0, 1.0, 30.0], 12)).astype(np.float32)
    query = rng.standard_normal((3, 12)).astype(np.float32)
    weights = query_weights(kind, query).astype(np.float64)
    scores = summarise(kind, keys, block).astype(np.float64) @ weights.T
    products = keys.astype(np.float64) @ query.T.astype(np.float64)
    highest = products[: 40 // block * block].reshape(-1, block, 3).max(1)
    scale = np.abs(keys).max(initial=0.0) * np.abs(query).max() * 12
    assert scores.shape == highest.shape
    # A ball's centre and radius are rounded to float32.
    assert (scores >= highest - 1e-6 * scale).all()
    if kind == "box":
        assert (scores >= highest - 1e-12 * scale).all()
    if block == 1:
        assert scores == pytest.approx(highest, abs=float(1e-5 * scale + 1e-30))


def test_less_of_the_radius_gives_less_and_none_gives_the_mean() -> None:
    rng = np.random.default_rng(0)
    keys, query = rng.standard_normal((64, 6), np.float32), rng.standard_normal((1, 6)).astype(np.float32)
    held = summarise("ball", keys, 8)
    none, half, whole = (held @ query_weights("ball", query, each)[0] for each in (0.0, 0.5, 1.0))
    assert none == pytest.approx(keys.reshape(8, 8, 6).mean(1) @ query[0], abs=1e-5)
    assert (none < half).all()
    assert (half < whole).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_are_off_by_half_a_scale_at_most(bits: int) -> None:
    rng = np.random.default_rng(bits)
    numbers = (rng.standard_normal((90, 20)) * np.exp(rng.uniform(-9, 9, 20)) + 5).astype(np.float32)
    numbers[:, 3] = 7
    codes, scales, zeros = quantise(numbers, bits)
    again = codes * scales.astype(np.float64) + zeros
    assert codes.max() == 2**bits - 1
    assert (np.abs(again - numbers) <= 0.5 * scales * (1 + 1e-5) + 1e-6 * np.abs(numbers)).all()
    assert (again[:, 3] == 7).all()


def test_fewer_bits_rank_worse() -> None:
    rng = np.random.default_rng(5)
    held = summarise("box", rng.standard_normal((4096, 32), np.float32), 16)
    weights = query_weights("box", rng.standard_normal((8, 32)).astype(np.float32))
    best = np.argsort(held @ weights.T, 0)[-25:]
    found = {}
    for bits in (2, 4, 8):
        codes, scales, zeros = quantise(held, bits)
        coded = np.argsort((codes * scales + zeros) @ weights.T, 0)[-25:]
        found[bits] = np.mean([np.isin(best[:, each], coded[:, each]).mean() for each in range(8)])
    assert found[2] < found[4] - 0.1
    assert found[4] < found[8]
    assert found[8] > 0.97


def test_tiles_hold_every_block_and_are_padded() -> None:
    held = np.arange(2 * (TILE + 3), dtype=np.float32).reshape(-1, 2)
    numbers, *rest = tiles_of(held, 32)
    assert numbers.shape == (2, 2, TILE)
    assert np.array_equal(np.concatenate((numbers[0].T, numbers[1].T))[: TILE + 3], held)
    assert (numbers[1, :, 3:] == 0).all()
    assert all(each.shape[0] == 0 for each in rest)
    none, packed, scales, zeros = tiles_of(held, 4)
    assert none.shape[0] == 0
    for tile, part in enumerate((held[:TILE], held[TILE:])):
        codes, *expected = quantise(part, 4)
        found = np.concatenate((packed[tile] & 15, packed[tile] >> 4), 1).T
        assert np.array_equal(found[: part.shape[0]], codes)
        assert np.array_equal((scales[tile], zeros[tile]), expected)
    assert [each.shape[0] for each in empty_tiles(5)] == [0, 0, 0, 0]
    assert (numbers_of("box", 8), numbers_of("ball", 8)) == (16, 9)


@pytest.mark.parametrize("bits", [0, 9])
def test_codes_of_other_bits_are_refused(bits: int) -> None:
    with pytest.raises(BadValueError, match="1 to 8 bits"):
        quantise(np.ones((2, 2), np.float32), bits)
    with pytest.raises(BadValueError, match="need numbers"):
        quantise(np.ones((0, 2), np.float32), 4)
