"""The decomposition: parts add up, planted ones come out, nothing hangs on gaps or units."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.series import histories
from wavetank.insight.series.decompose import CloudDecomposition, decompose
from wavetank.insight.series.interface import Decisions
from wavetank.sim.rng import stream
from wavetank.workloads.series import Series, regular

DAY = np.arange(900)


def made(seed=0, noise=0.02, week=0.05, quarter=0.06, trend=0.0):
    x = week * np.sin(2 * np.pi * DAY / 7) + quarter * np.sin(2 * np.pi * DAY / 91 + 1) + trend * DAY / 900
    return 200.0 * np.exp(x + noise * stream(seed, "made").standard_normal(900))


@pytest.mark.parametrize("seed", range(3))
def test_parts_add_up_to_the_series(seed):
    series = histories.planted(seed).series
    total = decompose(series).total()
    seen = ~series.missing
    assert np.abs(total[seen] / series.value[seen] - 1).max() < 1e-13
    assert np.isnan(total[~seen]).all()


@pytest.mark.parametrize("seed", range(3))
def test_planted_cycles_and_a_shift_come_out(seed):
    truth = histories.planted(seed)
    parts = decompose(truth.series)
    assert sorted(parts.cycles) == [pytest.approx(7, rel=0.02), pytest.approx(91, rel=0.02)]
    assert len(parts.changes) == 1
    assert abs(parts.changes[0] - truth.change) <= 3
    assert parts.jump(parts.changes[0]) == pytest.approx(0.2, abs=0.05)
    assert parts.amplitude(7.0) == pytest.approx(0.03, abs=0.01)


def test_a_level_shift_leaves_the_trend_flat():
    of = made(quarter=0.0, week=0.0)
    flat = decompose(regular(of))
    shifted = decompose(regular(np.where(DAY < 500, of, 1.2 * of)))
    assert shifted.changes == (500,)
    assert np.ptp(shifted.trend) < np.ptp(flat.trend) + 0.02 < 0.05


def test_removing_a_tenth_of_the_days_changes_parts_by_less_than_a_tenth():
    of = made()
    whole = decompose(regular(of))
    for seed in range(3):
        fewer = decompose(regular(np.where(stream(seed, "gone").random(900) < 0.1, np.nan, of)))
        for period in (7.0, 91.31):
            apart = np.abs(fewer.cycles[period] - whole.cycles[period])
            assert np.sqrt((apart**2).mean()) < 0.1 * whole.amplitude(period)
        assert np.abs(fewer.level + fewer.trend - whole.level - whole.trend).max() < 0.1 * 0.06


@pytest.mark.parametrize("factor", [1e-6, 3.0, 1e9])
def test_parts_do_not_hang_on_the_unit(factor):
    truth = histories.planted(5).series
    of, times = decompose(truth), decompose(regular(truth.value * factor))
    assert times.changes == of.changes
    assert times.seasonal == pytest.approx(of.seasonal, abs=1e-6)
    assert times.level - of.level == pytest.approx(np.full(900, np.log(factor)), abs=1e-6)
    linear, scaled = (decompose(regular(each), scale="linear") for each in (truth.value, truth.value * factor))
    assert scaled.seasonal == pytest.approx(factor * linear.seasonal, rel=1e-4, abs=1e-4 * factor)


def test_noise_has_no_parts():
    parts = decompose(histories.noise_only(3))
    assert not parts.cycles
    assert not parts.changes


def test_a_cycle_that_comes_and_goes_is_on_where_it_is():
    there = (DAY // 225) % 2 == 0
    x = 0.06 * np.sin(2 * np.pi * DAY / 7) * there + 0.02 * stream(2, "gate").standard_normal(900)
    parts = decompose(regular(100.0 * np.exp(x)))
    on = parts.on[7.0]
    assert (on == there).mean() > 0.8
    assert not parts.cycles[7.0][~on].any()


def test_single_outliers_are_a_part_of_their_own():
    of = made(week=0.0, quarter=0.0)
    of[[100, 400]] *= 3.0
    parts = decompose(regular(of))
    assert parts.outlier[[100, 400]] == pytest.approx(np.log([3.0, 3.0]), abs=0.1)
    assert (parts.outlier != 0).sum() < 10
    assert parts.remainder[100] == 0


def test_an_analyst_fixes_periods_and_level_shifts():
    series = histories.planted(1).series
    fixed = Decisions(periods=(7.0,), changes=(series.time_ns(450),))
    parts = decompose(series, decisions=fixed)
    assert parts.changes == (450,)
    assert list(parts.cycles) == [7.0]
    again = decompose(series, decisions=fixed)
    assert np.array_equal(parts.remainder, again.remainder, equal_nan=True)
    none = decompose(series, decisions=Decisions(periods=(), changes=()))
    assert not none.changes
    assert not none.cycles
    for wrong in (Decisions(periods=(1.5,)), Decisions(periods=(901.0,)), Decisions(changes=(series.time_ns(0),)),
                  Decisions(changes=(series.time_ns(900),))):  # fmt: skip
        with pytest.raises(BadValueError):
            decompose(series, decisions=wrong)


def test_a_forecast_continues_level_and_cycles():
    of = made(noise=0.0)
    said = CloudDecomposition().forecast(regular(of[:840]), 60)
    assert np.abs(said / of[840:] - 1).max() < 0.02
    shifted = np.where(DAY < 800, 1.0, 1.5) * made(week=0.0, quarter=0.0)
    assert CloudDecomposition().forecast(regular(shifted[:840]), 5) == pytest.approx(np.full(5, 300.0), rel=0.03)


def test_a_forecast_begins_near_the_last_deviation_and_fades():
    of = made(week=0.0, quarter=0.0)
    of[-6:] *= 1.06
    said = CloudDecomposition().forecast(regular(of), 60)
    assert said[0] > said[10] > said[59]
    with pytest.raises(BadValueError):
        CloudDecomposition().forecast(regular(of), 0)


def test_values_at_or_below_zero_are_taken_apart_as_they_are():
    of = made() - 200.0
    assert decompose(regular(of)).scale == "linear"
    with pytest.raises(BadValueError):
        decompose(regular(of), scale="log")


def test_series_of_times_are_put_on_a_grid():
    of = made()[:100]
    times = np.arange(100, dtype=np.int64) * 3_600 * 10**9
    found = decompose(Series(name="h", time_ns=times, value=of, missing=np.zeros(100, bool), labels={}))
    assert found.series.step_ns == 3_600 * 10**9


@pytest.mark.parametrize("values", [np.ones(20), np.full(300, np.nan), np.r_[np.ones(20), np.full(50, np.nan)]])
def test_too_short_a_series_is_refused(values):
    with pytest.raises(BadValueError):
        decompose(regular(values))


def test_more_steps_than_memory_has_room_for_are_refused():
    with pytest.raises(BadValueError, match="more steps"):
        decompose(regular(np.ones(50_001)))


def test_a_wrong_time_that_makes_a_grid_of_decades_is_named():
    with pytest.raises(BadValueError, match="Nearly all steps"):
        decompose(regular(np.r_[1.0, np.full(1500, np.nan), np.ones(29)]))
    assert decompose(regular(np.r_[1.0, np.full(1400, np.nan), np.ones(29)])).periods == ()


@pytest.mark.parametrize("values", [np.ones(50), np.r_[np.ones(30), 2 * np.ones(30)], np.arange(60.0), np.zeros(40)])
def test_series_without_noise_have_parts(values):
    parts = decompose(regular(values))
    assert parts.total() == pytest.approx(values, abs=1e-9)


def test_settings_are_checked():
    for wrong in ({"turns_off": 0.9}, {"trend": 0.0}, {"fresh": 2.0}, {"penalty": float("nan")}):
        with pytest.raises(BadValueError):
            CloudDecomposition(**wrong)
