"""Finders: the decomposition finds what was planted; the simple ways say what they say."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.series import histories
from wavetank.insight.series.finders import GivenWeek, PartsFound, PeaksAndPelt


def test_the_decomposition_finds_cycles_and_the_shift():
    truth = histories.planted(7)
    found = PartsFound().find(truth.series)
    assert all(histories.within(found.periods, each, 0.02) for each in truth.periods)
    assert [abs(each - truth.change) <= 3 for each in found.changes] == [True]


def test_a_given_week_is_said_of_anything():
    assert GivenWeek().find(histories.noise_only(0)) == ((7.0,), ())
    with pytest.raises(BadValueError):
        GivenWeek(period=1.0)


def test_peaks_and_squares_find_a_clear_cycle_and_a_clear_shift():
    pytest.importorskip("ruptures")
    truth = histories.planted(7, noise=0.01, quarter=0.0)
    found = PeaksAndPelt().find(truth.series)
    assert histories.within(found.periods, 7.0, 0.02)
    assert np.abs(np.array(found.changes) - truth.change).min() <= 3
