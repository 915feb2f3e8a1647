"""The reference sweep: equal to scipy's correlation, and right where the answer is known."""

import numpy as np
import pytest
from scipy import ndimage

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import BOUNDARIES, STENCILS, Stencil
from wavetank.kernels.stencils.reference import keep_rim, reference_sweep, weighted_sum


def grid_of(shape, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("name", STENCILS)
@pytest.mark.parametrize(("boundary", "mode"), [("periodic", "wrap"), ("reflect", "reflect")])
def test_a_sweep_is_scipys_correlation(name, boundary, mode):
    grid, pattern = grid_of((19, 31)), Stencil.named(name)
    assert np.allclose(
        reference_sweep(grid, pattern, boundary=boundary), ndimage.correlate(grid, pattern.matrix(), mode=mode)
    )


@pytest.mark.parametrize("name", STENCILS)
def test_a_fixed_rim_is_kept_and_the_rest_is_scipys(name):
    grid, pattern = grid_of((19, 31)), Stencil.named(name)
    expected = ndimage.correlate(grid, pattern.matrix())
    keep_rim(expected, grid, pattern.radius)
    assert np.allclose(reference_sweep(grid, pattern), expected)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_identity_leaves_the_grid_as_it_is(boundary):
    grid = grid_of((5, 7), np.float32)
    assert np.array_equal(reference_sweep(grid, Stencil.identity(), 3, boundary=boundary), grid)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_constant_field_stays_constant_when_the_weights_sum_to_one(boundary):
    found = reference_sweep(np.full((16, 16), 7.0), Stencil.box(2), 4, boundary=boundary)
    assert np.allclose(found, 7.0, rtol=1e-14)


@pytest.mark.parametrize(("k", "m"), [(1, 1), (2, 5), (7, 3)])
def test_a_heat_mode_decays_by_the_exact_discrete_factor(k, m):
    n, ratio, steps = 48, 0.2, 9
    y, x = np.mgrid[:n, :n] * 2 * np.pi / n
    mode = np.sin(k * y) * np.sin(m * x)
    factor = 1 + 2 * ratio * (np.cos(2 * np.pi * k / n) + np.cos(2 * np.pi * m / n) - 2)
    found = reference_sweep(mode, Stencil.heat(ratio), steps, boundary="periodic")
    assert np.allclose(found, factor**steps * mode, atol=1e-14)


def test_one_cell_spreads_to_the_mirrored_weights():
    pattern = Stencil.box(1, range(1, 10))
    grid = np.zeros((5, 5))
    grid[2, 2] = 1.0
    assert np.array_equal(reference_sweep(grid, pattern)[1:4, 1:4], pattern.matrix()[::-1, ::-1])


def test_steps_are_sweeps_and_the_input_stays():
    grid = grid_of((9, 9))
    kept = grid.copy()
    twice = reference_sweep(reference_sweep(grid, Stencil.star(1)), Stencil.star(1))
    assert np.array_equal(reference_sweep(grid, Stencil.star(1), 2), twice)
    none = reference_sweep(grid, Stencil.star(1), 0)
    assert np.array_equal(none, grid)
    assert not np.shares_memory(none, grid)
    assert np.array_equal(grid, kept)


def test_leading_axes_are_grids_of_their_own():
    tiles = grid_of((2, 3, 8, 9))
    found = weighted_sum(tiles, Stencil.star(1))
    assert found.shape == (2, 3, 6, 7)
    assert np.array_equal(found[1, 2], weighted_sum(tiles[1, 2], Stencil.star(1)))


def test_wrong_grids_are_refused():
    with pytest.raises(BadValueError, match="two dimensions"):
        reference_sweep(np.zeros(5), Stencil.star(1))


@pytest.mark.parametrize("steps", [-1, 1.5, True])
def test_steps_that_cannot_be_counted_are_refused(steps):
    grid = np.ones((8, 8), np.float32)
    with pytest.raises(BadValueError, match="counted from 0"):
        reference_sweep(grid, Stencil.star(1), steps)
