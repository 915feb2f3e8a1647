"""Packing sums of blocks and spreading results, at edges and in both layouts."""

import numpy as np
import pytest

from wavetank.kernels.products.microkernel import tile_of
from wavetank.kernels.products.packing import pack_panels, pack_rows, spread_rows, spread_tiles, terms_of
from wavetank.kernels.products.schemes import STRASSEN


def blocks_of(matrix, parts, block):
    padded = np.zeros((parts[0] * block[0], parts[1] * block[1]), matrix.dtype)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(parts[0], block[0], parts[1], block[1]).transpose(0, 2, 1, 3).reshape(-1, *block)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(40, 96), (39, 95), (21, 49), (1, 3)])
def test_a_packed_sum_is_the_sum_of_padded_blocks(dtype, order, shape):
    tile = tile_of(dtype)
    matrix = np.asarray(np.random.default_rng(0).integers(-9, 9, shape), dtype, order=order)
    block = (-(-shape[0] // 2), -(-shape[1] // 2))
    terms = terms_of(matrix, STRASSEN.u, (2, 2), block)
    blocks = blocks_of(matrix, (2, 2), block)
    high, wide = (-(-side // tile.lanes) * tile.lanes for side in block)
    for product in range(7):
        target = np.full((high, wide), np.nan, dtype)
        pack_rows(
            dtype(1), terms, product, 0, block[0], 0, block[1], target.ctypes.data, target.strides[0], tile.columns,
            tile.lanes, target.itemsize,
        )  # fmt: skip
        expected = np.einsum("b,bij->ij", STRASSEN.u[product].astype(dtype), blocks)
        assert np.array_equal(target[: block[0], : block[1]], expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(40, 256), (39, 255), (21, 200), (1, 3)])
def test_packed_panels_hold_the_sum_column_panel_by_column_panel(dtype, order, shape):
    tile = tile_of(dtype)
    matrix = np.asarray(np.random.default_rng(0).integers(-9, 9, shape), dtype, order=order)
    block = (-(-shape[0] // 2), -(-shape[1] // 2))
    terms = terms_of(matrix, STRASSEN.v, (2, 2), block)
    blocks = blocks_of(matrix, (2, 2), block)
    panels, kept = -(-block[1] // tile.columns), -(-block[0] // tile.lanes) * tile.lanes
    for product in range(7):
        target = np.full((panels, kept + 1, tile.columns), np.nan, dtype)
        pack_panels(
            dtype(1), terms, product, 0, block[0], 0, panels, target.ctypes.data, target.strides[0], tile.columns,
            tile.lanes, target.itemsize,
        )  # fmt: skip
        expected = np.einsum("b,bij->ij", STRASSEN.v[product].astype(dtype), blocks)
        found = target[:, : block[0]].transpose(1, 0, 2).reshape(block[0], -1)
        assert np.array_equal(found[:, : block[1]], expected)
        assert not found[:, block[1] :].any()
        # The gap between panels is nobody's.
        assert np.isnan(target[:, kept:]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [(14, 130), (9, 97), (11, 31), (2, 1)])
def test_tiles_side_by_side_are_spread_over_all_their_blocks_and_nothing_beyond_them(dtype, size):
    tile = tile_of(dtype)
    # Two blocks of at most a tile's rows, of which narrow registers have fewer.
    size = (min(size[0], 2 * tile.rows), size[1])
    block = (-(-size[0] // 2), -(-size[1] // 2))
    rng = np.random.default_rng(0)
    room = np.full((size[0] + 2, size[1] + 3), np.nan, dtype)
    out = room[: size[0], : size[1]]
    terms = terms_of(out, STRASSEN.w, (2, 2), block)
    panels = -(-block[1] // tile.columns)
    lanes = tile.lanes
    flat = np.zeros(7 * panels * tile.rows * tile.columns + 64 // np.dtype(dtype).itemsize, dtype)
    start = -flat.ctypes.data % 64 // flat.itemsize
    tiles = flat[start : start + 7 * panels * tile.rows * tile.columns].reshape(7, panels, tile.rows, tile.columns)
    tiles[:] = rng.integers(-9, 9, tiles.shape)
    for product in range(7):
        spread_tiles(
            terms, product, 0, block[0], 0, panels, tiles[product].ctypes.data, tiles.strides[1], tile.columns, lanes,
            tiles.itemsize,
        )  # fmt: skip
    products = tiles.transpose(0, 2, 1, 3).reshape(7, tile.rows, -1)[:, : block[0], : block[1]]
    blocks = np.einsum("rb,rij->bij", STRASSEN.w.astype(dtype), products)
    whole = blocks.reshape(2, 2, *block).transpose(0, 2, 1, 3).reshape(2 * block[0], 2 * block[1])
    assert np.array_equal(out, whole[: size[0], : size[1]])
    assert np.isnan(room[size[0] :]).all()
    assert np.isnan(room[:, size[1] :]).all()


def test_results_are_spread_over_all_their_blocks_and_nothing_beyond_them():
    rng = np.random.default_rng(0)
    room = np.full((33, 47), np.nan, np.float32)
    out = room[:29, :41]
    block, tile = (15, 21), tile_of(np.float32)
    terms = terms_of(out, STRASSEN.w, (2, 2), block)
    products = rng.integers(-9, 9, (7, *block)).astype(np.float32)
    for number, product in enumerate(products):
        spread_rows(
            terms,
            number,
            0,
            block[0],
            0,
            block[1],
            product.ctypes.data,
            product.strides[0],
            tile.lanes,
            product.itemsize,
        )
    blocks = np.einsum("rb,rij->bij", STRASSEN.w.astype(np.float32), products)
    whole = blocks.reshape(2, 2, *block).transpose(0, 2, 1, 3).reshape(30, 42)
    assert np.array_equal(out, whole[:29, :41])
    assert np.isnan(room[29:]).all()
    assert np.isnan(room[:, 41:]).all()


def test_only_non_zero_coefficients_become_terms():
    matrix = np.zeros((8, 8), np.float32)
    terms = terms_of(matrix, STRASSEN.u, (2, 2), (4, 4))
    assert len(terms.at) == 12 == np.count_nonzero(STRASSEN.u)
    assert terms.start.tolist() == [0, 2, 4, 5, 6, 8, 10, 12]
    assert terms_of(matrix, STRASSEN.w, (2, 2), (4, 4)).first.sum() == 4
