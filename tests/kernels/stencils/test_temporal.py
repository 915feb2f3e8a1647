"""The pass over memory: tiles that cover the grid, buffers that are large enough, and single tiles on their own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.kernels.stencils.pattern import BOUNDARIES, Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.row_blocks import blocks, form_of
from wavetank.kernels.stencils.sweep import aligned_grid
from wavetank.kernels.stencils.temporal import Tile, buffer_bytes, pitch_bytes, run_pass, tiles_of


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 7), st.integers(1, 600))
def test_tiles_cover_every_cell_once(height, width, bands, columns):
    covered = np.zeros((height, width), int)
    for tile in tiles_of((height, width), bands, columns):
        covered[tile.top : tile.bottom, tile.left : tile.right] += 1
        assert tile.left % 64 == 0
        assert tile.right - tile.left < max(columns, 64) + 64
    assert (covered == 1).all()


@given(st.integers(1, 5000), st.integers(1, 32), st.integers(0, 4), st.sampled_from([4, 8]))
def test_rows_are_two_lines_apart_within_a_page_and_hold_their_halo(columns, depth, radius, item):
    pitch = pitch_bytes(columns, depth, radius, item)
    assert pitch % 4096 == 128
    assert pitch >= (columns + 2 * depth * radius) * item + 256


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_tile_is_finished_and_nothing_else_is_touched(boundary, depth, streaming):
    pattern, shape = Stencil.star(1), (70, 200)
    grid = np.random.default_rng(1).random(shape).astype(np.float32)
    grid.flags.writeable = False
    form = form_of(pattern, grid.dtype)
    expected = reference_sweep(grid, pattern, depth, boundary=boundary)
    for tile in (Tile(0, 31, 0, 128), Tile(31, 70, 64, 200), Tile(33, 34, 64, 65)):
        # Rows of the result may start anywhere in a line, and their distance may be whole lines or not.
        found = aligned_grid((70, 208), grid.dtype)[:, 3:203] if streaming else np.empty(shape, grid.dtype)
        found[...] = -1
        pitch = pitch_bytes(tile.right - tile.left, depth, 1, grid.itemsize)
        buffer = aligned_grid((1, buffer_bytes(pitch, depth, 1, form.rows) // grid.itemsize), grid.dtype)[0]
        buffer[...] = np.nan
        how = (blocks(form.key, form.rows), form.rows, 1, form.coefficients, buffer, pitch)
        run_pass(grid, found, *how, *tile, depth, BOUNDARIES.index(boundary), streaming)
        part = (slice(tile.top, tile.bottom), slice(tile.left, tile.right))
        assert np.allclose(found[part], expected[part], rtol=1e-5)
        found[part] = -1
        assert (found == -1).all()
