"""The lower triangle in blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.solvers.triangle import (
    BlockTriangle,
    blocks_of,
    column_starts,
    multiply_rows,
    readable,
    triangle_blocks,
)


def symmetric(size: int, seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).standard_normal((size, size))
    return a + a.T


@given(st.integers(1, 30), st.data())
def test_the_rows_from_any_on_are_stored_without_gaps(blocks: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, blocks))
    starts = column_starts(blocks, first)
    places = [int(starts[j]) + i for j in range(blocks) for i in range(max(first, j), blocks)]
    assert places == list(range(triangle_blocks(blocks) - triangle_blocks(first)))


def test_a_whole_store_has_the_ids_for_places() -> None:
    starts = column_starts(7)
    assert [int(starts[j]) + i for j in range(7) for i in range(j, 7)] == list(range(28))
    assert int(starts[3]) + 5 == 20


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 40), st.integers(0, 5))
def test_unpacking_gives_what_was_packed(size: int, block: int, seed: int) -> None:
    a = symmetric(size, seed)
    triangle = BlockTriangle.pack(a, block)
    assert triangle.data.size == triangle_blocks(blocks_of(size, block)) * block * block
    assert np.array_equal(triangle.unpack(), a)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 40), st.integers(0, 5))
def test_the_symmetric_product_equals_the_dense_one(size: int, block: int, seed: int) -> None:
    a, x = symmetric(size, seed), np.random.default_rng(seed).standard_normal(size)
    found = BlockTriangle.pack(a, block).multiply(x)
    assert np.abs(found - a @ x).max() <= 1e-12 * np.abs(a).sum(axis=1).max()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(0, 9), st.integers(1, 3), st.integers(1, 3))
def test_parts_of_rows_add_up_to_the_product(blocks: int, border: int, shares: int, repeats: int) -> None:
    block, border = 5, min(border, blocks)
    a, x = symmetric(blocks * block), np.arange(blocks * block) / 7
    data, starts = BlockTriangle.pack(a, block).data, column_starts(blocks)
    by_triangle, by_rows = np.zeros_like(x), np.zeros_like(x)
    waste = np.zeros_like(x)
    for low, high in ((0, border), (border, blocks)):
        for share in range(shares):
            multiply_rows(data, starts, block, low, high, blocks, share, shares, 3, repeats, x, by_triangle, waste)
    multiply_rows(data, starts, block, 0, border, border, 0, 1, 3, repeats, x, by_rows, waste)
    multiply_rows(data, starts, block, border, blocks, border, 0, 1, 2, repeats, x, by_rows, waste)
    assert np.allclose(by_rows[: border * block], (a @ x)[: border * block], atol=1e-11)
    multiply_rows(data, starts, block, border, blocks, blocks, 0, 1, 1, repeats, x, by_rows, waste)
    assert np.allclose(by_triangle, a @ x, atol=1e-11)
    assert np.allclose(by_rows, a @ x, atol=1e-11)


def test_the_filling_is_the_identity() -> None:
    triangle = BlockTriangle.pack(symmetric(5), 4)
    last = triangle.data[-16:].reshape(4, 4)
    assert np.array_equal(last[1:], np.eye(4)[1:])


@pytest.mark.parametrize("place", [(0, 0), (6, 2), (2, 6), (9, 9)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_entry_that_is_not_finite_is_named(place: tuple[int, int], value: float) -> None:
    a = symmetric(10)
    a[place] = value
    with pytest.raises(BadValueError, match="not finite") as caught:
        BlockTriangle.pack(a, 4)
    assert caught.value.where == f"a[{place[0]}, {place[1]}]"


def test_an_asymmetric_matrix_is_refused_with_both_entries() -> None:
    a = symmetric(10)
    a[7, 3] += 0.5
    with pytest.raises(BadValueError, match="not symmetric") as caught:
        BlockTriangle.pack(a, 4)
    assert caught.value.where == "a[7, 3]"
    assert "a[3, 7]" in str(caught.value.given)


def test_rounding_is_no_asymmetry() -> None:
    a = symmetric(10) + 20 * np.eye(10)
    noisy = a.copy()
    noisy[3, 7] += 1e-12
    assert np.array_equal(BlockTriangle.pack(noisy, 4).unpack(), a)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (0, 0), (2, 2, 2)])
def test_what_is_not_square_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadValueError, match="square") as caught:
        readable(np.zeros(shape))
    assert str(shape) in str(caught.value)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(BadValueError, match="real"):
        readable(np.eye(2, dtype=complex))


@pytest.mark.parametrize("make", [np.asfortranarray, lambda a: a.astype(np.float32), lambda a: np.repeat(a, 2, 0)[::2]])
def test_any_layout_is_read(make: object) -> None:
    a = np.round(symmetric(9) * 8) / 8
    given_matrix = make(a)  # type: ignore[operator]
    given_matrix.flags.writeable = False
    assert np.array_equal(BlockTriangle.pack(given_matrix, 4).unpack(), a)


def test_a_transposed_matrix_is_not_copied() -> None:
    a = np.asfortranarray(symmetric(9))
    assert np.shares_memory(readable(a), a)


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(BadValueError, match="does not fit"):
        BlockTriangle.pack(np.eye(4), 2).multiply(np.ones(5))


def test_too_large_a_triangle_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(BadValueError, match="memory"):
        BlockTriangle.empty(10_000_000, 128)
    with pytest.raises(BadValueError):
        BlockTriangle.empty(0, 128)


@pytest.mark.parametrize("block", [7, 16, 24])
def test_entries_that_differ_from_their_mirror_images_by_rounding_or_sign_of_zero_are_taken(block: int) -> None:
    a = symmetric(48)
    a[40, 3] = 0.0
    a[3, 40] = -0.0
    a[30, 2] = a[2, 30] * (1 + 1e-15)
    triangle = BlockTriangle.pack(a, block)
    assert np.array_equal(np.tril(triangle.unpack()), np.tril(a))


@pytest.mark.parametrize("block", [7, 16, 24])
@pytest.mark.parametrize("place", [(40, 3), (3, 40), (17, 17), (47, 0)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_in_either_triangle(block: int, place: tuple[int, int], value: float) -> None:
    a = symmetric(48)
    a[place] = value
    with pytest.raises(BadValueError, match="not finite") as caught:
        BlockTriangle.pack(a, block)
    assert caught.value.where == f"a[{place[0]}, {place[1]}]"
    a[place[::-1]] = value
    with pytest.raises(BadValueError, match="not finite"):
        BlockTriangle.pack(a, block)


@pytest.mark.parametrize("block", [7, 16, 24])
def test_an_entry_without_its_mirror_image_is_named(block: int) -> None:
    a = symmetric(48)
    a[9, 33] += 1e-6
    with pytest.raises(BadValueError, match="not symmetric") as caught:
        BlockTriangle.pack(a, block)
    assert caught.value.where == "a[33, 9]"


def test_a_matrix_that_may_only_be_read_is_packed() -> None:
    a = symmetric(32)
    a.flags.writeable = False
    assert np.array_equal(BlockTriangle.pack(a, 16).unpack(), a)
