"""The histories: what was planted is there, and the real ones are as their data set says."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.series import histories

real = pytest.mark.skipif(not histories.is_here(), reason="data set lambda-cold-starts is not here")


def test_what_was_planted_is_in_the_series():
    truth = histories.planted(3, noise=0.0)
    x = np.log(truth.series.value)
    assert x[truth.change] - x[truth.change - 1] == pytest.approx(np.log(1.2), abs=0.05)
    assert truth.periods == (7.0, 91.0)
    assert 0.05 < truth.series.missing.mean() < 0.15
    plain = histories.planted(3, noise=0.0, week=0.0, quarter=0.0, shift=0.0)
    assert (plain.periods, plain.change) == ((), -1)
    assert np.nanmax(np.abs(np.diff(np.log(plain.series.value)))) < 0.001


def test_seeds_give_different_series_and_the_same_again():
    assert not np.array_equal(histories.planted(1).series.value, histories.planted(2).series.value, equal_nan=True)
    assert np.array_equal(histories.planted(1).series.value, histories.planted(1).series.value, equal_nan=True)
    with pytest.raises(BadValueError):
        histories.planted(0, gaps=1.0)


def test_noise_has_the_spread_that_it_says():
    of = histories.noise_only(0, days=5000)
    assert np.nanstd(np.log(of.value)) == pytest.approx(0.03, rel=0.05)
    assert of.missing.mean() == pytest.approx(0.1, abs=0.02)


def test_within_is_relative():
    assert histories.within((30.0, 7.1), 7.0, 0.02)
    assert not histories.within((7.2,), 7.0, 0.02)


@real
def test_the_real_histories_have_900_days_and_106_gaps():
    found = histories.observed()
    assert len(found) == 88
    assert {each.value.size for each in found} == {1006}
    assert sum(each.seen == 900 for each in found) >= 84
    missing = np.all([each.missing for each in found], axis=0)
    assert missing.sum() == 106
    assert (np.diff(np.r_[0, missing, 0]) == 1).sum() == 12


@real
def test_runtimes_that_are_scored_gave_no_setting():
    assert len(histories.runtimes()) == 11
    assert len(histories.scored()) == 6
    for each in histories.scored():
        assert len(histories.of_runtime(each)) == 8
    with pytest.raises(BadValueError):
        histories.of_runtime("cobol")
