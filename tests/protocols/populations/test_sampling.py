"""Random draws of compiled simulators follow their distributions."""

import math

import numpy as np
import pytest
from numba import njit
from scipy import stats

from wavetank.protocols.populations.sampling import (
    below,
    failures_before_success,
    hypergeometric,
    log_factorial,
    uniform,
)

KEY = np.uint64(20260511)
LEAST_P = 1e-4


@njit
def hypergeometric_draws(key, good, bad, draws, n):
    stream, found = np.zeros(1, np.uint64), np.empty(n, np.int64)
    for k in range(n):
        found[k] = hypergeometric(key, stream, good, bad, draws)
    return found


@njit
def below_draws(key, bound, n):
    stream, found = np.zeros(1, np.uint64), np.empty(n, np.int64)
    for k in range(n):
        found[k] = below(key, stream, bound)
    return found


@njit
def geometric_draws(key, chance, n):
    stream, found = np.zeros(1, np.uint64), np.empty(n)
    for k in range(n):
        found[k] = failures_before_success(key, stream, chance)
    return found


@pytest.mark.parametrize(
    ("good", "bad", "draws"),
    [
        (3, 4, 5), (500, 300, 100), (330_000, 670_000, 626), (10**6, 10**6, 900_000), (40, 10**6, 900_000),
        (10**8, 2 * 10**8, 6_000), (10**9, 3 * 10**9, 600_000),
    ],
)  # fmt: skip
def test_hypergeometric_draws_follow_the_distribution(good, bad, draws):
    found = hypergeometric_draws(KEY, good, bad, draws, 100_000)
    law = stats.hypergeom(good + bad, good, draws)
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 25)))
    seen = np.diff([0, *[(found <= edge).sum() for edge in edges], found.size])
    expected = np.diff([0.0, *law.cdf(edges), 1.0]) * found.size
    kept = expected > 5
    share = seen[kept].sum() / expected[kept].sum()
    assert stats.chisquare(seen[kept], expected[kept] * share).pvalue > LEAST_P


@pytest.mark.parametrize(
    ("good", "bad", "draws", "only"), [(0, 5, 3, 0), (5, 0, 3, 3), (4, 6, 10, 4), (4, 6, 0, 0), (1, 0, 1, 1)]
)
def test_certain_draws_are_certain(good, bad, draws, only):
    assert set(hypergeometric_draws(KEY, good, bad, draws, 50)) == {only}


def test_draws_stay_within_what_is_there():
    found = hypergeometric_draws(KEY, 5, 7, 9, 20_000)
    assert found.min() == 2
    assert found.max() == 5


def test_whole_numbers_are_even_over_their_range():
    found = below_draws(KEY, 7, 70_000)
    assert stats.chisquare(np.bincount(found, minlength=7)).pvalue > LEAST_P


def test_waiting_times_are_geometric():
    found = geometric_draws(KEY, 0.2, 100_000)
    seen = np.bincount(np.minimum(found, 20).astype(int), minlength=21)
    expected = np.array([0.2 * 0.8**k for k in range(20)] + [0.8**20]) * found.size
    assert stats.chisquare(seen, expected).pvalue > LEAST_P
    assert set(geometric_draws(KEY, 1.0, 10)) == {0.0}


@pytest.mark.parametrize("k", [0, 1, 20, 2047, 2048, 10**5, 10**9])
def test_log_factorials_are_right(k):
    assert log_factorial(k) == pytest.approx(math.lgamma(k + 1.0), rel=1e-13)


def test_uniform_draws_are_never_zero_or_one_and_advance_the_stream():
    stream = np.zeros(1, np.uint64)
    found = [uniform(KEY, stream) for _ in range(1000)]
    assert 0.0 < min(found) < max(found) < 1.0
    assert len(set(found)) == 1000
    assert stream[0] == 1000
