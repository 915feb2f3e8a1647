"""Axpy, MatMul and the banded form compute the stencil, exactly or as rounded as the card rounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.tiles import to_bfloat16
from wavetank.kernels.stencils.wormhole_mappings import (
    MAPPINGS,
    Arithmetic,
    axpy_sweep,
    band_tiles,
    banded_sweep,
    matmul_sweep,
    resident_sweeps,
    weight_tiles,
)

EXACT, FP32, BF16 = Arithmetic("exact"), Arithmetic("fp32"), Arithmetic("bf16")


def grid_of(height, width, dtype=np.float32):
    return np.random.default_rng(height).random((height, width)).astype(dtype) + dtype(0.5)


@given(st.integers(9, 70), st.integers(9, 70), st.sampled_from(["star-1", "star-4", "box-2", "box-3", "identity"]))
@settings(max_examples=20, deadline=None)
def test_in_float64_axpy_and_matmul_are_the_plain_sweep_exactly(height, width, name):
    grid, pattern = grid_of(height, width, np.float64), Stencil.named(name)
    expected = reference_sweep(grid, pattern)
    np.testing.assert_array_equal(axpy_sweep(grid, pattern, EXACT), expected)
    np.testing.assert_array_equal(matmul_sweep(grid, pattern, EXACT), expected)


@given(st.integers(9, 70), st.integers(9, 70), st.sampled_from(["star-1", "heat-3", "star-4", "identity"]))
@settings(max_examples=20, deadline=None)
def test_the_banded_form_differs_by_the_order_of_additions_alone(height, width, name):
    grid, pattern = grid_of(height, width, np.float64), Stencil.named(name)
    np.testing.assert_allclose(banded_sweep(grid, pattern, EXACT), reference_sweep(grid, pattern), rtol=1e-14)
    # Sums of small whole numbers are exact in any order.
    whole = np.random.default_rng(width).integers(-50, 50, (height, width)).astype(np.float64)
    weights = Stencil(pattern.offsets, tuple(float(1 + number % 7) for number in range(pattern.points)))
    np.testing.assert_array_equal(banded_sweep(whole, weights, EXACT), reference_sweep(whole, weights))


@pytest.mark.parametrize("mapping", list(MAPPINGS))
@pytest.mark.parametrize("arithmetic", [FP32, BF16])
def test_rounding_stays_within_half_a_place_for_each_time_it_is_done(mapping, arithmetic):
    grid, pattern = grid_of(70, 101), Stencil.star(1)
    swept, expected = MAPPINGS[mapping](grid, pattern, arithmetic), reference_sweep(grid, pattern)
    error = np.max(np.abs(swept - expected) / expected)
    # Cell, weight and result; with narrow sums each of the five additions as well.
    assert 0 < error <= (3 if arithmetic is FP32 else 7) * 2.0**-8


@pytest.mark.parametrize("mapping", list(MAPPINGS))
def test_a_step_on_a_delta_gives_the_weights(mapping):
    pattern = Stencil.star(1, [1.0, 2.0, 3.0, 4.0, 5.0])
    grid = np.zeros((66, 70), np.float32)
    grid[32, 31] = 1.0
    swept = MAPPINGS[mapping](grid, pattern, FP32)
    # The sum at a cell weighs what lies at the offset, so the pattern appears turned around.
    np.testing.assert_array_equal(swept[31:34, 30:33], pattern.matrix()[::-1, ::-1])
    assert np.count_nonzero(swept) == 5


@pytest.mark.parametrize("mapping", list(MAPPINGS))
def test_results_are_bfloat16_and_the_rim_is_kept(mapping):
    grid = grid_of(40, 45)
    swept = MAPPINGS[mapping](grid, Stencil.star(1), FP32)
    np.testing.assert_array_equal(swept[1:-1, 1:-1], to_bfloat16(swept[1:-1, 1:-1]))
    np.testing.assert_array_equal(swept[0], grid[0])
    np.testing.assert_array_equal(swept[:, -1], grid[:, -1])


@pytest.mark.parametrize("mapping", ["axpy", "matmul"])
def test_a_nan_spreads_to_its_neighbours_alone(mapping):
    grid = grid_of(40, 40)
    grid[20, 20] = np.nan
    swept = MAPPINGS[mapping](grid, Stencil.star(1), FP32)
    np.testing.assert_array_equal(np.isnan(swept), np.isnan(reference_sweep(grid, Stencil.star(1))))


@given(st.integers(9, 140), st.integers(9, 50), st.integers(1, 6), st.integers(0, 4), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_a_resident_grid_ends_where_round_trips_end(height, width, cores, steps, radius):
    grid, pattern = grid_of(height, width), Stencil.heat(0.1, radius)
    swept, exchanged = resident_sweeps(grid, pattern, steps, FP32, cores)
    expected = grid
    for _ in range(steps):
        expected = banded_sweep(expected, pattern, FP32)
    # Round trips never round the rim; a run without steps is a copy of what the card was sent.
    inside = np.s_[radius : height - radius, radius : width - radius]
    np.testing.assert_array_equal(swept[inside], to_bfloat16(expected)[inside] if not steps else expected[inside])
    np.testing.assert_array_equal(swept[:radius], grid[:radius])
    stripes = min(cores, -(-height // 32))
    assert exchanged == steps * 2 * (stripes - 1) * 2 * radius * 32 * -(-width // 32)


def test_the_bands_hold_each_weight_once_a_row():
    left, right = band_tiles(Stencil.star(2, range(1, 10)), np.float64, EXACT)
    np.testing.assert_array_equal(left.sum(axis=(0, 2)), np.full(32, 1 + 2 + 5 + 8 + 9))
    np.testing.assert_array_equal(right.sum(axis=(0, 1)), np.full(32, 3 + 4 + 6 + 7))
    # Neighbouring tiles give the shifts: two rows of weights reach into each.
    assert np.count_nonzero(left[0]) == np.count_nonzero(left[2]) == 3


def test_the_matrix_of_weights_is_one_column():
    weights = weight_tiles(Stencil.box(3), np.float32)
    assert weights.shape == (2, 32, 32)
    assert not weights[:, :, 1:].any()
    assert np.count_nonzero(weights) == 49


def test_a_box_has_no_banded_form():
    with pytest.raises(BadValueError, match="off both") as caught:
        banded_sweep(grid_of(20, 20), Stencil.box(1), FP32)
    assert "axpy" in caught.value.hint
