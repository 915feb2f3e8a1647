"""Smoothing with gaps: known answers, and robustness against what is far away."""

import time

import numpy as np
import pytest

from wavetank.insight.series import smooth
from wavetank.sim.rng import stream

SEEN = np.array([True, True, False, True, True, True])
OF = np.array([1.0, 5.0, 99.0, 2.0, 8.0, 3.0])


def test_the_running_median_leaves_out_what_was_not_seen():
    assert smooth.running_median(OF, SEEN, 1).tolist() == [3.0, 3.0, 3.5, 5.0, 3.0, 5.5]
    assert np.isnan(smooth.running_median(OF, np.zeros(6, bool), 2)).all()


def test_a_line_is_its_own_local_line():
    line = 3.0 + 2.0 * np.arange(50)
    weights = (stream(0, "weights").random(50) > 0.4).astype(float)
    assert smooth.local_line(np.where(weights > 0, line, -1e9), weights, 7) == pytest.approx(line)
    assert np.isnan(smooth.local_line(line, np.zeros(50), 7)).all()


def test_a_few_values_in_a_long_grid_cost_what_was_seen():
    # A single wrong date makes a grid of decades: windows widen over all of it for each of its slots.
    seen = np.zeros(60_000, bool)
    seen[[0, *range(59_974, 60_000)]] = True
    of = np.where(seen, 7.0, np.nan)
    began = time.process_time()
    assert (smooth.running_median(of, seen, 15) == 7.0).all()
    assert smooth.local_line(of, seen.astype(float), 120.0) == pytest.approx(np.full(60_000, 7.0))
    assert time.process_time() - began < 10.0


def test_a_subseries_is_the_mean_of_its_phase():
    of = np.tile([1.0, 2.0, 6.0], 10)
    weights = np.ones(30)
    weights[[4, 12]] = 0.0
    assert smooth.smoothed_subseries(np.where(weights > 0, of, 1e9), weights, 3, 4) == pytest.approx(of)
    change = np.concatenate([np.tile([0.0, 1.0], 20), np.tile([0.0, 3.0], 20)])
    near = smooth.smoothed_subseries(change, np.ones(80), 2, 3)
    assert near[1] == pytest.approx(1.0)
    assert near[-1] == pytest.approx(3.0)


def test_the_spread_is_that_of_normal_noise():
    assert smooth.spread_of(stream(0, "spread").standard_normal(20_000)) == pytest.approx(1.0, abs=0.03)
    assert smooth.spread_of(np.array([])) == 0.0


def test_far_values_lose_their_weight():
    rest = np.array([1.0, -1.0, 1.0, 100.0, 0.0])
    weights = smooth.bisquare(rest, np.array([True, True, True, True, False]))
    assert weights[3] == weights[4] == 0
    assert weights[0] == pytest.approx((1 - 1 / 36) ** 2)
    assert smooth.bisquare(np.zeros(3), np.array([True, False, True])).tolist() == [1, 0, 1]


def test_a_fit_of_least_deviations_ignores_an_outlier():
    columns = np.stack([np.ones(40), np.arange(40.0)], axis=1)
    of = columns @ [2.0, 0.5] + 0.01 * stream(0, "fit").standard_normal(40)
    of[7] += 1000.0
    assert smooth.fitted(columns, of, np.ones(40)) == pytest.approx([2.0, 0.5], abs=0.02)
    hidden = np.ones(40)
    hidden[7] = 0.0
    assert smooth.fitted(columns, of, hidden, rounds=1) == pytest.approx([2.0, 0.5], abs=0.02)
