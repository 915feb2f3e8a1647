"""Quantising: within the bound, refused where it cannot be, without a bias by chance; differences are linear."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wavetank.errors import BadValueError
from wavetank.training.compression.quantise import (
    LARGEST,
    as_planes,
    by_chance,
    differences,
    quantised,
    restored,
    scales_of,
    step_of,
    summed,
)


@given(
    arrays(np.float32, st.integers(0, 40), elements=st.floats(-(2.0**20), 2.0**20, width=32)),
    st.floats(1e-3, 1e3),
)
def test_every_number_is_within_the_bound(values, bound):
    integers = quantised(values, bound)
    assert np.all(np.abs(integers * step_of(bound) - values.astype(np.float64)) <= bound)
    found = restored(integers, bound)
    assert found.dtype == np.float32
    assert np.all(np.abs(found - values.astype(np.float64)) <= bound + np.spacing(np.abs(found)) / 2)


def test_the_bound_holds_for_the_largest_integers_too():
    values = (np.random.default_rng(0).random(100_000) * 2e9 + 1e8).astype(np.float32)
    assert np.abs(quantised(values, 0.5) * step_of(0.5) - values).max() <= 0.5


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf"), True])
def test_a_bound_of_nothing_is_refused(bound):
    with pytest.raises(BadValueError, match="bound"):
        quantised(np.ones(3, np.float32), bound)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_with_its_place(wrong):
    values = np.zeros(1000, np.float32)
    values[617] = wrong
    with pytest.raises(BadValueError, match="not finite") as caught:
        quantised(values, 0.1)
    assert "at 617" in str(caught.value.given)
    with pytest.raises(BadValueError, match="not finite") as caught:
        scales_of(values, 100)
    assert "at 617" in str(caught.value.given)


def test_the_bound_holds_up_to_the_largest_number_in_single_precision():
    largest = np.finfo(np.float32).max
    values = np.array([largest, -largest, np.float32(0.99) * largest, 0.0], np.float32)
    for bound in (1e38, 3e37, 7.7e36, 1e30):
        found = restored(quantised(values, bound), bound)
        assert np.all(np.abs(found - values.astype(np.float64)) <= bound + float(np.spacing(largest / 2)))
    # A sum that is itself too large is infinite, as it is in single precision.
    assert restored(2 * quantised(values[:2], 1e36), 1e36, 2).tolist() == [np.inf, -np.inf]


def test_sums_that_could_overflow_are_refused_and_those_that_just_fit_are_right():
    bound = 0.5
    just = np.full(4, LARGEST // 4 * step_of(bound), np.float64).astype(np.float32)
    just = np.nextafter(just, np.float32(0))
    integers = quantised(just, bound, 4)
    assert 4 * int(integers[0]) == int((integers + integers + integers + integers)[0])
    with pytest.raises(BadValueError, match="too large") as caught:
        quantised(just, bound, 5)
    assert "larger bound" in str(caught.value.hint)


@given(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6)), st.integers(0, 2**32 - 1))
def test_differences_are_linear_modulo_2_to_the_32_and_come_back(shape, seed):
    draws = np.random.default_rng(seed)
    one, other = draws.integers(-(2**30), 2**30, (2, *shape)).astype(np.int32).reshape(2, -1)
    assert np.array_equal(summed(differences(one, shape), shape), one)
    # Their differences may overflow; their sum does not.
    total = differences(one, shape) + differences(other, shape)
    assert np.array_equal(summed(total, shape), one + other)


def test_differences_are_those_of_the_plane():
    plane = np.array([[1, 2, 4], [3, 5, 9]], np.int32)
    assert differences(plane.reshape(-1), (2, 3)).tolist() == [1, 1, 2, 2, 1, 2]
    # The next plane begins anew.
    two = np.concatenate([plane.reshape(-1), plane.reshape(-1)])
    assert differences(two, (2, 2, 3)).tolist() == [1, 1, 2, 2, 1, 2] * 2
    assert as_planes((7,)) == (1, 1, 7)
    assert as_planes((2, 3, 4, 5)) == (6, 4, 5)


def test_chance_has_no_bias():
    draws, times = 100_000, np.array([0.3, -0.3, 0.001, 12.5, -7.99], np.float32)
    values = np.repeat(times, draws)
    uniform = np.random.default_rng(5).random(values.size, np.float32)
    found = by_chance(values, np.ones(1, np.float32), values.size, uniform).reshape(times.size, draws)
    assert np.all(np.abs(found - times[:, None]) <= 1.0)
    error = found.mean(axis=1) - times
    assert np.all(np.abs(error) <= 4 * np.maximum(found.std(axis=1), 1e-3) / np.sqrt(draws))


def test_buckets_have_units_of_their_own_and_zeros_stay_zeros():
    values = np.array([0, 0, 0, 8, -4, 2, 100], np.float32)
    scales = scales_of(values, 3)
    assert scales.tolist() == [0.0, 8.0, 100.0]
    found = by_chance(values, scales / np.float32(4), 3, np.full(7, 0.5, np.float32))
    assert found.tolist() == [0, 0, 0, 4, -2, 1, 4]
    assert scales_of(np.zeros(0, np.float32), 3).size == 0
