"""The rivals forecast what they say, and statsmodels' ones are statsmodels' own."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.series import rivals
from wavetank.sim.rng import stream
from wavetank.workloads.series import regular

NAN = np.nan


def test_the_last_value_and_the_recent_median_skip_gaps():
    of = regular([1.0, 5.0, 3.0, 4.0, NAN])
    assert rivals.LastValue().forecast(of, 3).tolist() == [4, 4, 4]
    assert rivals.RecentMedian(recent=3).forecast(of, 2).tolist() == [4, 4]


def test_the_last_week_comes_again_with_its_gaps_from_the_week_before():
    of = regular([10, 11, 12, 13, 14, 15, 16, 20, NAN, 22, 23.0])
    # The next slot is of phase 4.
    assert rivals.SeasonalNaive().forecast(of, 9).tolist() == [14, 15, 16, 20, 11, 22, 23, 14, 15]


def test_mstl_is_that_of_statsmodels():
    seasonal = pytest.importorskip("statsmodels.tsa.seasonal")
    day = np.arange(300)
    x = 1.0 + 0.1 * np.sin(2 * np.pi * day / 7) + 0.02 * stream(0, "mstl").standard_normal(300)
    one = seasonal.STL(x, period=7).fit()
    said = rivals.Loess().forecast(regular(np.exp(x)), 10)
    expected = one.trend[-1] + np.resize(seasonal.MSTL(x, periods=(7,)).fit().seasonal[-7:], 10)
    assert np.log(said) == pytest.approx(expected, abs=0.02)
    both = seasonal.MSTL(x, periods=(7, 91)).fit()
    expected = both.trend[-1] + np.resize(both.seasonal[-7:, 0], 10) + np.resize(both.seasonal[-91:, 1], 10)
    assert np.log(rivals.Loess(periods=(91, 7)).forecast(regular(np.exp(x)), 10)) == pytest.approx(expected)


def test_a_period_without_two_cycles_is_left_out():
    pytest.importorskip("statsmodels")
    of = regular(np.exp(stream(0, "short").standard_normal(100)))
    week = rivals.Loess(periods=(7,)).forecast(of, 5)
    assert rivals.Loess(periods=(7, 91)).forecast(of, 5).tolist() == week.tolist()
    assert rivals.Loess(periods=(91,)).forecast(of, 2) == pytest.approx(np.full(2, of.value[-1]))


def test_smoothing_is_near_the_mean_of_noise():
    pytest.importorskip("statsmodels")
    of = regular(np.exp(0.01 * stream(0, "ses").standard_normal(200)))
    assert rivals.Smoothing().forecast(of, 3) == pytest.approx(np.ones(3), abs=0.01)


def test_the_network_learns_a_cycle():
    pytest.importorskip("sklearn")
    day = np.arange(500)
    of = 100.0 * np.exp(0.2 * np.sin(2 * np.pi * day / 7))
    said = rivals.LagNetwork().forecast(regular(of[:470]), 14)
    assert np.abs(said / of[470:484] - 1).mean() < 0.5 * np.abs(of[469] / of[470:484] - 1).mean()
    short = regular(of[:40])
    assert rivals.LagNetwork().forecast(short, 14).tolist() == rivals.RecentMedian().forecast(short, 14).tolist()


@pytest.mark.parametrize("rival", [rivals.LastValue(), rivals.SeasonalNaive(), rivals.RecentMedian(), rivals.Loess()])
def test_nothing_is_said_of_a_series_without_values(rival):
    with pytest.raises(BadValueError):
        rival.forecast(regular([NAN, NAN]), 2)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(rivals.SeasonalNaive, {"period": 0}), (rivals.RecentMedian, {"recent": 0}), (rivals.Loess, {"window": -1}),
     (rivals.LagNetwork, {"lags": 1})],
)  # fmt: skip
def test_settings_are_checked(kind, wrong):
    with pytest.raises(BadValueError):
        kind(**wrong)
