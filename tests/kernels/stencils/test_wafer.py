"""The stencil mapped on a wafer: the plain sweep's bits, the formula's words and cycles, and what does not fit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.wafer import WaferStencil
from wavetank.kernels.stencils.wafer_tiles import tile_bytes

SMALL = WaferStencil(mesh_rows=4, mesh_columns=6)


def grid_of(height, width, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).random((height, width)).astype(dtype)


@given(
    st.integers(9, 40), st.integers(9, 40), st.integers(1, 4), st.integers(1, 4),
    st.sampled_from(["star-1", "box-1", "star-2", "box-2", "heat-4", "laplace-3"]), st.booleans(), st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_tiling_gives_the_bits_of_the_plain_sweep(height, width, rows, columns, name, overlap, steps):
    wafer, pattern = WaferStencil(mesh_rows=rows, mesh_columns=columns, overlap=overlap), Stencil.named(name)
    grid = grid_of(height, width, steps)
    run = wafer.run(grid, pattern, steps)
    np.testing.assert_array_equal(run.grid, reference_sweep(grid, pattern, steps))
    assert run.traffic == tuple(steps * words for words in run.tiling.words())
    assert run.tiling.tile_bytes <= wafer.memory_bytes - wafer.reserved_bytes


@pytest.mark.parametrize("boundary", ["periodic", "reflect"])
@pytest.mark.parametrize("name", ["star-1", "box-3", "heat-4"])
@pytest.mark.parametrize("overlap", [False, True])
def test_joined_and_mirrored_edges_too(boundary, name, overlap):
    grid, pattern = grid_of(48, 72), Stencil.named(name)
    wafer = WaferStencil(mesh_rows=4, mesh_columns=6, overlap=overlap)
    expected = reference_sweep(grid, pattern, 3, boundary=boundary)
    np.testing.assert_array_equal(wafer.sweep(grid, pattern, 3, boundary=boundary), expected)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_the_identity_leaves_the_grid_as_it_is(height, width, rows, columns):
    grid = grid_of(height, width)
    run = WaferStencil(mesh_rows=rows, mesh_columns=columns).run(grid, Stencil.identity(), 2)
    np.testing.assert_array_equal(run.grid, grid)
    assert run.traffic.words == 0


def test_a_constant_field_stays_constant_where_weights_sum_to_one():
    grid = np.full((24, 36), 3.0, np.float32)
    np.testing.assert_array_equal(SMALL.sweep(grid, Stencil.heat(0.125), 7, boundary="periodic"), grid)


def test_a_heat_mode_decays_by_the_discrete_factor():
    size, ratio, steps = 48, 0.2, 12
    k, m = 2 * math.pi * 3 / size, 2 * math.pi * 5 / size
    y, x = np.mgrid[:size, :size]
    mode = np.sin(k * y) * np.sin(m * x)
    wafer = WaferStencil(mesh_rows=4, mesh_columns=4)
    factor = 1 + ratio * (2 * math.cos(k) - 2 + 2 * math.cos(m) - 2)
    swept = wafer.sweep(mode, Stencil.heat(ratio), steps, boundary="periodic")
    np.testing.assert_allclose(swept, factor**steps * mode, atol=1e-14)


def test_a_nan_spreads_as_in_the_plain_sweep_and_the_input_stays():
    grid = grid_of(20, 20)
    grid[9, 9] = np.nan
    grid.flags.writeable = False
    before = grid.copy()
    np.testing.assert_array_equal(SMALL.sweep(grid, Stencil.box(1), 2), reference_sweep(grid, Stencil.box(1), 2))
    np.testing.assert_array_equal(grid, before)


def test_cycles_are_those_of_the_closed_form():
    wafer = WaferStencil(mesh_rows=8, mesh_columns=8, start_cycles=0)
    pattern = Stencil.star(1)
    tiling = wafer.plan(512, 512, pattern)
    h = w = 64
    cycles = wafer.cycles(tiling, pattern)
    assert cycles.exchange == 2 * h + 2 * (w + 2) + 2
    assert cycles.late == 5 * h * w
    assert cycles.total == cycles.exchange + cycles.late
    hidden = WaferStencil(mesh_rows=8, mesh_columns=8, start_cycles=0, overlap=True).cycles(tiling, pattern)
    assert hidden.early == 5 * (h - 2) * (w - 2)
    assert hidden.early + hidden.late == 5 * h * w
    assert hidden.total == max(hidden.exchange, hidden.early) + hidden.late


def test_starts_hops_and_width_count():
    plain = WaferStencil(mesh_rows=8, mesh_columns=8, start_cycles=0)
    tiling = plain.plan(512, 512, Stencil.star(1))
    slow = WaferStencil(mesh_rows=8, mesh_columns=8, start_cycles=7, hop_cycles=5)
    assert slow.cycles(tiling, Stencil.star(1)).total == plain.cycles(tiling, Stencil.star(1)).total + 7 * (2 + 5) + 8
    wide = WaferStencil(mesh_rows=8, mesh_columns=8, start_cycles=0, multiply_adds_per_cycle=2)
    assert wide.cycles(tiling, Stencil.star(1)).late == 5 * 64 * 64 // 2
    joined = plain.plan(512, 512, Stencil.star(1), boundary="periodic")
    assert plain.cycles(joined, Stencil.star(1)).exchange == plain.cycles(tiling, Stencil.star(1)).exchange + 2


def test_weak_scaling_is_flat():
    pattern = Stencil.box(2)
    times = set()
    for side in (3, 10, 100, 700):
        wafer = WaferStencil(mesh_rows=side, mesh_columns=side)
        times.add(wafer.modelled_s(wafer.plan(40 * side, 40 * side, pattern), pattern))
    assert len(times) == 1


def test_the_bound_is_that_of_the_dossier():
    # 900,000 elements at 1.1 GHz, five multiply-adds each: 198 T updates a second.
    wafer = WaferStencil(mesh_rows=1000, mesh_columns=900)
    assert wafer.bound_updates_per_s(Stencil.star(1)) == pytest.approx(1.98e14)
    assert wafer.peak_flops_per_s / wafer.memory_bytes_per_s == pytest.approx(1 / 6)


def test_the_largest_tile_fills_the_memory_and_one_more_cell_does_not_fit():
    wafer = WaferStencil()
    for radius in (1, 2, 3, 4):
        side = wafer.largest_side(radius)
        room = wafer.memory_bytes - wafer.reserved_bytes
        assert tile_bytes(side, side, radius) <= room < tile_bytes(side + 1, side + 1, radius)
        pattern = Stencil.star(radius)
        height, width = wafer.largest_grid(pattern)
        assert wafer.plan(height, width, pattern).tile_bytes <= room
        with pytest.raises(BadValueError, match="do not fit the memory") as caught:
            wafer.plan(height + 2 * wafer.mesh_rows, width + 2 * wafer.mesh_columns, pattern)
        assert f"{side} x {side}" in caught.value.hint


def test_what_does_not_fit_is_refused_with_the_reason():
    with pytest.raises(BadValueError, match="narrower than the stencil's radius"):
        SMALL.plan(40, 40, Stencil.star(3), tile=(2, 8))
    with pytest.raises(BadValueError, match="more processing elements") as caught:
        SMALL.plan(40, 40, Stencil.star(1), tile=(4, 40))
    assert caught.value.given.startswith("10 x 1 elements")
    with pytest.raises(BadValueError, match="periodic edges the last tiles"):
        SMALL.plan(41, 41, Stencil.star(1), boundary="periodic", tile=(12, 12))
    with pytest.raises(BadValueError, match="do not fit"):
        # No smaller tile than the whole divides a prime side.
        SMALL.plan(997, 997, Stencil.star(1), boundary="periodic")


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (np.zeros((8, 8), np.int32), {}),
        (np.zeros(8, np.float32), {}),
        (np.zeros((8, 2), np.float32), {}),
        (np.zeros((8, 8), np.float32), {"steps": -1}),
        (np.zeros((8, 8), np.float32), {"steps": 1.5}),
        (np.zeros((8, 8), np.float32), {"boundary": "fixed"}),
    ],
)
def test_bad_input_is_refused(grid, options):
    with pytest.raises(BadValueError):
        SMALL.run(grid, Stencil.star(1), **options)
