"""Periods with gaps: the periodogram is a least-squares fit, noise shows none, planted ones are found."""

import numpy as np
import pytest

from wavetank.diagnosis.periods import autocorrelation, find_periods, harmonics, periodogram
from wavetank.errors import BadValueError
from wavetank.sim.rng import stream

DAY = np.arange(900)
ANCHORS = (7.0, 30.44, 91.31, 365.25)


def gaps(seed, share=0.1):
    return stream(seed, "gaps").random(DAY.size) < share


def test_power_is_the_share_that_a_fit_of_a_constant_and_a_sine_explains():
    rng = stream(1, "periods test")
    missing = rng.random(60) < 0.3
    of = rng.standard_normal(60) + 5.0
    frequency, power = periodogram(of, missing)
    seen = np.flatnonzero(~missing)
    for at in (3, 40, 90):
        angle = 2 * np.pi * frequency[at] * seen
        columns = np.stack([np.ones(seen.size), np.cos(angle), np.sin(angle)], axis=1)
        _, rest, *_ = np.linalg.lstsq(columns, of[seen], rcond=None)
        assert power[at] == pytest.approx(1 - rest[0] / ((of[seen] - of[seen].mean()) ** 2).sum(), rel=1e-9)


def test_rows_share_gaps_and_a_constant_has_no_power():
    rows = np.stack([np.sin(DAY / 3.0), np.ones(DAY.size)])
    _, power = periodogram(rows, gaps(0))
    assert power[0].max() > 0.9
    assert not power[1].any()


def test_autocorrelation_counts_pairs_that_were_both_seen():
    of = np.array([1.0, -1.0, 1.0, -1.0, 77.0, -1.0])
    missing = np.array([False, False, False, False, True, False])
    lags = np.array([0, 1, 2, 5, 6])
    found = autocorrelation(of, missing, lags)
    middle = np.where(missing, 0.0, of - of[~missing].mean())
    variance = (middle**2).sum() / 5
    expected = [(middle[lag:] * middle[:-lag]).sum() / pairs / variance for lag, pairs in ((1, 3), (2, 3), (5, 1))]
    assert found[1:4] == pytest.approx(expected)
    assert found[0] == found[4] == 0


def test_harmonics_stop_where_the_grid_cannot_hold_more():
    assert harmonics(91.0, DAY).shape == (900, 6)
    assert harmonics(3.5, DAY).shape == (900, 2)
    assert harmonics(7.0, np.array([0.0, 7.0]))[0] == pytest.approx(harmonics(7.0, np.array([0.0, 7.0]))[1])


@pytest.mark.parametrize("seed", range(4))
def test_two_planted_periods_are_found_within_two_per_cent(seed):
    of = 0.5 * np.sin(2 * np.pi * DAY / 7 + seed) + 0.5 * np.cos(2 * np.pi * DAY / 91 + seed)
    found = find_periods(of + stream(seed, "noise").standard_normal(DAY.size), gaps(seed), anchors=ANCHORS)
    assert {7.0, 91.31} <= {each.period for each in found}
    assert len(found) <= 3
    assert all(each.excess > each.level for each in found)


def test_a_period_that_no_calendar_has_is_found():
    of = np.sin(2 * np.pi * DAY / 23.6) + stream(9, "noise").standard_normal(DAY.size)
    (found,) = find_periods(of, gaps(9), anchors=ANCHORS)
    assert found.period == pytest.approx(23.6, rel=0.01)


@pytest.mark.slow
def test_noise_shows_a_period_in_at_most_one_run_of_a_hundred():
    false = sum(
        bool(find_periods(stream(seed, "white").standard_normal(DAY.size), gaps(seed), anchors=ANCHORS, seed=seed))
        for seed in range(400)
    )
    assert false <= 4


@pytest.mark.parametrize("seed", range(8))
def test_correlated_noise_shows_none(seed):
    noise = stream(seed, "red").standard_normal(DAY.size)
    for at in range(1, DAY.size):
        noise[at] += 0.5 * noise[at - 1]
    assert find_periods(noise, gaps(seed), anchors=ANCHORS, seed=seed) == ()


def test_a_sharp_weekly_pattern_is_one_period():
    of = (DAY % 7 == 2) * 3.0 + 0.3 * stream(4, "noise").standard_normal(DAY.size)
    assert [each.period for each in find_periods(of, gaps(4), anchors=ANCHORS)] == [7.0]


def test_a_cycle_as_long_as_a_block_is_found_without_gaps():
    of = np.sin(2 * np.pi * DAY / 7) + np.cos(2 * np.pi * DAY / 14)
    assert [each.period for each in find_periods(of, np.zeros(900, bool))] == [pytest.approx(14, rel=0.01)]


def test_too_little_says_nothing():
    assert find_periods(np.sin(DAY[:15]), np.zeros(15, bool)) == ()
    assert find_periods(np.ones(300), np.zeros(300, bool)) == ()
    # Two cycles and a half are fewer than three.
    year = np.sin(2 * np.pi * DAY / 360)
    assert all(each.period <= 300 for each in find_periods(year, gaps(0), anchors=ANCHORS))


def test_the_same_seed_gives_the_same_answer():
    of = np.sin(2 * np.pi * DAY / 7) + stream(5, "noise").standard_normal(DAY.size)
    assert find_periods(of, gaps(5), seed=3) == find_periods(of, gaps(5), seed=3)


@pytest.mark.parametrize("more", [{"chance": 0.0}, {"chance": 1.0}, {"surrogates": 3}])
def test_levels_without_sense_are_refused(more):
    with pytest.raises(BadValueError):
        find_periods(DAY.astype(float), gaps(0), **more)
