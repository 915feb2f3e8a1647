"""Covariance matrices and the signals behind them."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.solvers.covariance import kernel_matrix, kernel_triangle, mass_spring_damper, windows


def test_entries_follow_the_formula() -> None:
    points = np.array([[0.0, 0.0], [3.0, 4.0]])
    expected = 2.0 * np.exp(-25 / (2 * 9.0))
    assert np.allclose(
        kernel_matrix(points, variance=2.0, length=3.0, noise=0.5), [[2.5, expected], [expected, 2.5]], rtol=1e-15
    )


@pytest.mark.parametrize(("size", "block"), [(1, 4), (16, 4), (19, 4), (19, 64)])
def test_the_triangle_is_that_of_the_dense_matrix(size: int, block: int) -> None:
    points = np.random.default_rng(0).standard_normal((size, 3))
    dense = kernel_matrix(points)
    assert np.allclose(kernel_triangle(points, block=block).unpack(), dense, rtol=1e-14)
    assert np.linalg.eigvalsh(dense).min() >= 0.0099


def test_covariances_with_others_have_no_noise() -> None:
    points = np.random.default_rng(0).standard_normal((5, 3))
    assert np.allclose(kernel_matrix(points, points) + 0.01 * np.eye(5), kernel_matrix(points))
    assert kernel_matrix(points, points[:2]).shape == (5, 2)


def test_a_constant_force_stretches_the_chain_to_its_rest() -> None:
    force, position = mass_spring_damper(4000, masses=1, step_s=0.1, seed=3)
    changes = np.flatnonzero(np.diff(force)) + 1
    longest = int(np.argmax(np.diff(changes)))
    start, stop = int(changes[longest]), int(changes[longest + 1])
    rest = force[start] / 2.0
    assert abs(position[stop - 1] - rest) < abs(position[start] - rest)
    assert np.abs(force).max() <= 1.0


def test_a_seed_gives_the_same_signal_again() -> None:
    one, other = mass_spring_damper(50, seed=1), mass_spring_damper(50, seed=1)
    assert np.array_equal(one[1], other[1])
    assert not np.array_equal(one[0], mass_spring_damper(50, seed=2)[0])


def test_a_window_holds_the_past_and_the_present() -> None:
    assert windows([1.0, 2.0, 3.0], 2).tolist() == [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: kernel_matrix(np.zeros((2, 2, 2))),
        lambda: kernel_matrix([[0.0], [np.nan]]),
        lambda: kernel_matrix([0.0, 1.0], length=0.0),
        lambda: kernel_matrix([0.0, 1.0], variance=-1.0),
        lambda: kernel_matrix([0.0, 1.0], noise=-0.1),
        lambda: kernel_matrix(np.zeros((2, 2)), np.zeros((2, 3))),
        lambda: kernel_triangle(np.zeros((2, 2)), block=0),
        lambda: mass_spring_damper(0),
        lambda: windows([], 2),
        lambda: windows([1.0], 0),
    ],
)
def test_what_makes_no_sense_is_refused(call: object) -> None:
    with pytest.raises(BadValueError):
        call()  # type: ignore[operator]


def test_the_point_without_a_value_is_named() -> None:
    with pytest.raises(BadValueError) as caught:
        kernel_matrix([[0.0, 1.0], [2.0, np.inf]])
    assert caught.value.where == "points[1, 1]"
