"""Readings become levels; the window that is shown; states with their faults."""

import numpy as np

from wavetank.insight.repair.interface import LEVELS, Cuts, Episodes, cuts_of, states_of
from wavetank.insight.repair.networks import MISSING


def episodes(slo_ok):
    slo_ok = np.array(slo_ok, np.bool_)
    readings = np.arange(slo_ok.size * 9, dtype=float).reshape(*slo_ok.shape, 9)
    return Episodes(readings, slo_ok, np.ones((len(slo_ok), 3), np.bool_), np.zeros(len(slo_ok), np.bool_))


def test_levels_are_low_normal_high_and_missing():
    cuts = Cuts(np.full(9, -1.0), np.full(9, 1.0))
    readings = np.array([[-2.0, -1.0, 0.0, 1.0, 1.1, np.nan, np.inf, -np.inf, 0.0]])
    assert cuts.levels(readings).tolist() == [[0, 1, 1, 1, 2, MISSING, MISSING, MISSING, 1]]


def test_cuts_leave_a_tenth_on_either_side():
    cases = episodes(np.ones((100, 5)))
    cuts = cuts_of(cases)
    levels = cuts.levels(cases.readings).reshape(-1, 9)
    assert np.mean(levels == 0, axis=0).tolist() == [0.1] * 9
    assert np.mean(levels == 2, axis=0).tolist() == [0.1] * 9


def test_the_last_broken_window_is_shown_or_the_last_one():
    cases = episodes([[1, 0, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
    readings, slo_ok = cases.shown()
    np.testing.assert_array_equal(readings, cases.readings[[0, 1, 2], [2, 3, 0]])
    assert slo_ok.tolist() == [False, True, False]


def test_states_are_levels_of_all_variables_in_every_window():
    cases = episodes([[1, 0], [1, 1]])
    states = states_of(cases, Cuts(np.full(9, -1.0), np.full(9, 20.0)))
    assert states.shape == (4, len(LEVELS))
    assert (states[:, :3] == 1).all()
    assert states[:, -1].tolist() == [1, 0, 1, 1]
    assert states[0, 3:-1].tolist() == [1] * 9
    assert states[3, 3:-1].tolist() == [2] * 9


def test_some_cases_are_chosen_with_all_that_belongs_to_them():
    cases = episodes([[1, 0], [1, 1], [0, 0]])
    some = cases.chosen(np.array([True, False, True]))
    np.testing.assert_array_equal(some.readings, cases.readings[[0, 2]])
    assert some.slo_ok.tolist() == [[True, False], [False, False]]
