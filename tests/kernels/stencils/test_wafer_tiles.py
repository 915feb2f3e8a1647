"""Tiles of a wafer: cut, exchanged and put together again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.kernels.stencils import wafer_tiles
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep, weighted_sum
from wavetank.kernels.stencils.wafer import WaferStencil
from wavetank.kernels.stencils.wafer_tiles import (
    exchange_columns,
    exchange_rows,
    gather,
    may_change,
    scatter,
    store,
)

PAD = {"dirichlet": "constant", "periodic": "wrap", "reflect": "symmetric"}


def tiling_of(height, width, radius, rows, columns, boundary="dirichlet"):
    wafer = WaferStencil(mesh_rows=rows, mesh_columns=columns)
    return wafer.plan(height, width, Stencil.box(radius) if radius else Stencil.identity(), boundary=boundary)


@given(st.integers(5, 40), st.integers(5, 40), st.integers(0, 2), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_what_is_scattered_is_gathered(height, width, radius, rows, columns):
    grid = np.arange(height * width, dtype=np.float32).reshape(height, width)
    tiling = tiling_of(height, width, radius, rows, columns)
    np.testing.assert_array_equal(wafer_tiles.gather(wafer_tiles.scatter(grid, tiling), tiling), grid)
    assert wafer_tiles.may_change(tiling).sum() == max(height - 2 * radius, 0) * max(width - 2 * radius, 0)


@pytest.mark.parametrize("boundary", ["dirichlet", "periodic", "reflect"])
@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (1, 4), (3, 1), (1, 1), (2, 2)])
def test_two_phases_fill_every_halo_with_the_corners(boundary, rows, columns):
    grid = np.random.default_rng(1).random((24, 24)).astype(np.float32)
    tiling = tiling_of(24, 24, 2, rows, columns, boundary)
    tiles = wafer_tiles.scatter(grid, tiling)
    words = wafer_tiles.exchange_columns(tiles, tiling), wafer_tiles.exchange_rows(tiles, tiling)
    padded = np.pad(grid, 2, mode=PAD[boundary])
    high, wide = tiling.tile_height, tiling.tile_width
    for i in range(rows):
        for j in range(columns):
            expected = padded[i * high : (i + 1) * high + 4, j * wide : (j + 1) * wide + 4]
            np.testing.assert_array_equal(tiles[i, j], expected)
    assert words == tiling.words()


def test_one_phase_alone_leaves_the_corners_empty():
    tiling = tiling_of(12, 12, 1, 3, 3)
    tiles = wafer_tiles.scatter(np.ones((12, 12), np.float32), tiling)
    wafer_tiles.exchange_columns(tiles, tiling)
    assert tiles[1, 1, 1:-1, 0].all()
    assert not tiles[1, 1, 0].any()


def test_words_of_an_inner_element_are_those_of_the_formula():
    # 2 h r east and west, 2 (w + 2 r) r north and south, for each element that has both neighbours.
    tiling = tiling_of(60, 80, 2, 6, 8)
    assert (tiling.tile_height, tiling.tile_width) == (10, 10)
    assert tiling.words() == (6 * 7 * 2 * 10 * 2, 5 * 8 * 2 * 14 * 2)
    assert tiling.neighbours("rows") == tiling.neighbours("columns") == 2
    assert tiling_of(60, 80, 2, 2, 1).neighbours("rows") == 1
    assert tiling_of(60, 80, 2, 2, 1).neighbours("columns") == 0


def test_a_tile_of_64_with_radius_1_needs_34848_bytes():
    assert wafer_tiles.tile_bytes(64, 64, 1) == 34_848


def test_padding_is_told():
    tiling = tiling_of(45, 70, 1, 4, 6)
    assert (tiling.padded_rows, tiling.padded_columns) == (3, 2)
    assert "filled up by 3 rows and 2 columns" in tiling.describe()
    assert "filled" not in tiling_of(48, 72, 1, 4, 6).describe()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_gives_the_same_with_and_without_overlap(overlap):
    grid = np.random.default_rng(2).random((27, 30)).astype(np.float32)
    tiling, pattern = tiling_of(27, 30, 2, 3, 3), Stencil.box(2)
    tiles, plain = wafer_tiles.scatter(grid, tiling), wafer_tiles.scatter(grid, tiling)
    wafer_tiles.step(tiles, pattern, tiling, wafer_tiles.may_change(tiling), overlap)
    wafer_tiles.step(plain, pattern, tiling, wafer_tiles.may_change(tiling), False)
    np.testing.assert_array_equal(tiles, plain)


@pytest.mark.parametrize(("boundary", "shape"), [("dirichlet", (45, 70)), ("reflect", (45, 66))])
def test_two_halves_of_a_mesh_share_nothing_but_the_rows_at_the_cut(boundary, shape):
    grid, pattern, steps = np.random.default_rng(0).random(shape).astype(np.float32), Stencil.box(2), 4
    tiling = WaferStencil(mesh_rows=5, mesh_columns=6).plan(*shape, pattern, boundary=boundary)
    tiles, changing, radius = scatter(grid, tiling), may_change(tiling), tiling.radius
    cut = tiling.rows // 2
    halves = [tiles[:cut].copy(), tiles[cut:].copy()]
    for _ in range(steps):
        for half in halves:
            exchange_columns(half, tiling)
            exchange_rows(half, tiling)
        north, south = halves
        north[-1, :, -radius:] = south[0, :, radius : 2 * radius]
        south[0, :, :radius] = north[-1, :, -2 * radius : -radius]
        for half, mine in zip(halves, (changing[:cut], changing[cut:]), strict=True):
            store(half, weighted_sum(half, pattern), mine, radius)
    swept = gather(np.concatenate(halves), tiling)
    np.testing.assert_array_equal(swept, reference_sweep(grid, pattern, steps, boundary=boundary))
