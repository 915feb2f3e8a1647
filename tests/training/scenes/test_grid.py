"""Whole steps: the bound holds for every float32, and bounds that cannot hold are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.scenes.grid import from_grid, step_for, to_grid
from wavetank.training.scenes.interface import Scene


def scene(values):
    values = np.atleast_2d(np.asarray(values, np.float32))
    return Scene(values, np.ones(values.shape, np.bool_))


@given(
    st.lists(st.floats(-1.0, 1.0, width=32), min_size=1, max_size=30), st.sampled_from([1e-9, 1.0, 1e5]),
    st.sampled_from([1e-4, 0.02, 0.3]),
)  # fmt: skip
@settings(max_examples=300)
def test_every_value_is_decoded_within_the_bound(values, scale, relative):
    given_scene = scene(np.array(values) * scale)
    bound = relative * scale
    grid = to_grid(given_scene, bound)
    error = np.abs(from_grid(grid.whole, grid.step).astype(np.float64) - given_scene.values)
    assert error.max() <= bound
    assert grid.low <= grid.whole.min()
    assert grid.whole.max() < grid.low + grid.alphabet


def test_the_step_is_nearly_twice_the_bound():
    assert 0.0399 < step_for(scene([[0.5, -0.25]]), 0.02) < 0.04


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf, 1e-9])
def test_bounds_that_are_none_or_finer_than_float32_are_refused(bound):
    with pytest.raises(BadValueError):
        step_for(scene([[0.5]]), bound)


def test_a_range_of_too_many_steps_is_refused():
    with pytest.raises(BadValueError, match="too fine for the range"):
        to_grid(scene([[0.0, 1.0]]), 1e-6)


def test_hidden_values_do_not_count():
    values = np.array([[0.5, 1e9]], np.float32)
    grid = to_grid(Scene(values, np.array([[True, False]])), 0.02)
    assert (grid.alphabet, grid.whole[0, 1]) == (1, 0)
    nothing = to_grid(Scene(values, np.zeros((1, 2), np.bool_)), 0.02)
    assert (nothing.low, nothing.alphabet) == (0, 1)
