"""BLAS routines called through their addresses."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from wavetank.kernels.solvers import blas_calls as blas


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (12, 4, 4), (7, 3, 5)])
def test_a_product_is_subtracted(rng: np.random.Generator, m: int, n: int, k: int) -> None:
    c, a, b = rng.random((m, n)), rng.random((m, k)), rng.random((n, k))
    expected = c - a @ b.T
    blas.subtract_product(c, a, b)
    assert np.allclose(c, expected)


def test_a_square_is_subtracted_from_the_lower_triangle_only(rng: np.random.Generator) -> None:
    c, a = rng.random((6, 6)), rng.random((6, 6))
    before, expected = c.copy(), c - a @ a.T
    blas.subtract_square(c, a)
    assert np.allclose(np.tril(c), np.tril(expected))
    assert np.array_equal(np.triu(c, 1), np.triu(before, 1))


def test_a_column_is_solved_from_the_right(rng: np.random.Generator) -> None:
    lower, c = rng.random((5, 5)) + 5 * np.eye(5), rng.random((9, 5))
    expected = c @ np.linalg.inv(np.tril(lower)).T
    blas.solve_right(c, lower)
    assert np.allclose(c, expected)


def test_a_block_is_factored(rng: np.random.Generator) -> None:
    a = rng.random((8, 8))
    a = a @ a.T + np.eye(8)
    c = a.copy()
    assert blas.factor(c) == 0
    assert np.allclose(np.tril(c) @ np.tril(c).T, a)


def test_the_pivot_that_is_not_positive_is_told() -> None:
    c = np.diag([4.0, 1.0, -2.5, 1.0])
    c[2, 0] = c[0, 2] = 2.0
    assert blas.factor(c) == 3
    assert c[2, 2] == pytest.approx(-3.5)


@pytest.mark.parametrize("transposed", [False, True])
def test_vectors_are_solved_and_updated(rng: np.random.Generator, transposed: bool) -> None:
    lower, x = np.tril(rng.random((5, 5))) + 5 * np.eye(5), rng.random(5)
    expected = np.linalg.solve(lower.T if transposed else lower, x)
    blas.solve_lower(lower, x, transposed=transposed)
    assert np.allclose(x, expected)
    a = rng.random((9, 5))
    y, z = (rng.random(5), rng.random(9)) if transposed else (rng.random(9), rng.random(5))
    expected = y - (a.T if transposed else a) @ z
    blas.subtract_times(y, a, z, transposed=transposed)
    assert np.allclose(y, expected)


def test_other_threads_go_on_during_a_call() -> None:
    blas.load()
    a = np.ones((1500, 1500))
    ticks: list[int] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        while not ticks:
            pass
        before = len(ticks)
        blas.subtract_product(np.ones((1500, 1500)), a, a)
        during = len(ticks) - before
    finally:
        stop.set()
        thread.join()
    assert during > 1000
