"""The micro-kernel and its vector operations, against numpy."""

import numpy as np
import pytest
from numba import njit

from wavetank.kernels.products import microkernel
from wavetank.kernels.products.microkernel import multiply_tile, tile_of, transpose_square

TYPES = [np.float32, np.float64]


def lines(shape, dtype, fill=0.0):
    """Return an array that starts at a cache line."""
    count = int(np.prod(shape))
    room = np.zeros(count + 64, dtype)
    start = -room.ctypes.data % 64 // room.itemsize
    room[:] = fill
    return room[start : start + count].reshape(shape)


@njit
def multiply(one, depth, left, step, right, tile, fetched, add):
    multiply_tile(one, depth, left, step, right, tile, fetched, 8, add)


@njit
def transpose(target, target_row, source, source_row, scale, add, rows, columns):
    transpose_square(target, target_row, source, source_row, scale, add, rows, columns)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("depth", [1, 2, 37])
def test_a_tile_is_the_product_of_its_panels(dtype, depth):
    shape = tile_of(dtype)
    rng = np.random.default_rng(0)
    left = rng.integers(-5, 6, (shape.rows, depth + 3)).astype(dtype)
    right, tile = lines((depth, shape.columns), dtype), lines((shape.rows, shape.columns), dtype, fill=np.nan)
    right[:] = rng.integers(-5, 6, right.shape)
    expected = left[:, :depth] @ right
    for add, times in ((False, 1), (True, 2), (True, 3)):
        # What is asked for ahead need not exist.
        addresses = left.ctypes.data, left.strides[0], right.ctypes.data, tile.ctypes.data, 1
        multiply(dtype(1), depth, *addresses, add)
        assert np.array_equal(tile, times * expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns"), [(99, 99), (3, 2), (0, 5), (5, -2)])
def test_a_square_is_transposed_and_what_is_outside_counts_as_zero(dtype, rows, columns):
    side = tile_of(dtype).lanes
    source = np.arange(1, side * (side + 1) + 1, dtype=dtype).reshape(side, side + 1)
    inside = np.zeros((side, side), dtype)
    inside[: max(rows, 0), : max(columns, 0)] = source[: max(rows, 0), : min(max(columns, 0), side)][:side, :side]
    target = np.full((side, side), 7, dtype)
    addresses = target.ctypes.data, target.strides[0], source.ctypes.data, source.strides[0]
    transpose(*addresses, dtype(3), True, rows, columns)
    assert np.array_equal(target, 7 + 3 * inside.T)
    transpose(*addresses, dtype(-2), False, rows, columns)
    assert np.array_equal(target, -2 * inside.T)


@pytest.mark.parametrize(
    ("vector", "shape"), [((64, 32), (14, 32)), ((32, 16), (6, 16)), ((16, 32), (8, 12)), ((16, 16), (4, 12))]
)
def test_the_tile_suits_the_vector_registers(vector, shape):
    narrow, wide = microkernel._tile(8, vector), microkernel._tile(4, vector)
    assert (wide.rows, wide.columns) == shape
    assert (narrow.rows, narrow.columns) == (shape[0], shape[1] // 2)
    # Accumulators, a row of the right panel and one broadcast fit into the registers.
    assert wide.rows * wide.vectors + wide.vectors + 1 <= vector[1]
