"""Rivals: what is planted is scored highest, what nothing is learned from says nothing."""

import math

import numpy as np
import pytest
from tests.insight.orbits.made import history

from wavetank.errors import BadValueError
from wavetank.insight.orbits import rivals
from wavetank.insight.orbits.filters import Filtered
from wavetank.insight.orbits.rivals import BoostedTrees, ChangePoints, ImmFilter, OneFilter, features

EVENTS = [(60, 30.0), (150, -20.0), (240, 25.0)]


def everything(of):
    return [np.ones(len(each.elements), bool) for each in of]


def top(scores, many):
    return sorted(np.argsort(np.nan_to_num(scores, nan=-math.inf))[-many:].tolist())


def test_change_points_are_the_planted_jumps():
    of = history(events=EVENTS, records=300, noise_m=1.0)
    scores = ChangePoints().fitted([], [], 0)(of)
    assert top(scores, 3) == [60, 150, 240]
    # The larger a change, the higher the penalty that it survives.
    assert scores[60] >= scores[150]
    assert len(scores) == 300 and np.nanmax(ChangePoints(rungs=2).scores(of)) == 1.0


def test_trees_learn_from_other_satellites():
    learned = [history(events=EVENTS, records=300, noise_m=1.0, seed=seed, name=str(seed)) for seed in range(6)]
    scorer = BoostedTrees().fitted(learned, everything(learned), 0)
    fresh = history(events=[(100, 40.0)], records=300, noise_m=1.0, seed=9)
    # The record after the jump and the one after that are both of the two days that are learned.
    assert top(scorer(fresh), 1)[0] in (100, 101)
    np.testing.assert_array_equal(scorer(fresh), BoostedTrees().fitted(learned, everything(learned), 0)(fresh))


def test_trees_that_saw_no_event_say_nothing():
    quiet = [history(records=100)]
    assert np.isnan(BoostedTrees().fitted(quiet, everything(quiet), 0)(quiet[0])).all()


def test_records_that_must_not_be_learned_are_not():
    learned = [history(events=EVENTS, records=300, noise_m=1.0)]
    usable = [~learned[0].first_after()]
    assert np.isnan(BoostedTrees().fitted(learned, usable, 0)(learned[0])).all()


def test_features_do_not_depend_on_the_size_of_the_noise():
    small, large = (features(history(events=[(50, 100 * each)], records=100, noise_m=each)) for each in (1.0, 10.0))
    np.testing.assert_allclose(small[:, 0], large[:, 0], rtol=0.02, atol=0.05)
    assert np.isfinite(small).all() and small.shape[0] == 100


def test_the_filters_scores_are_log_odds_and_surprise(monkeypatch):
    probability = np.array([[0.9, 0.05, 0.05], [0.2, 0.7, 0.1], [0.0, 1.0, 0.0]])
    asked = []

    def planted(elements, models, measured):
        asked.append((models, measured))
        return Filtered(probability, np.array([np.nan, 1.0, 50.0]))

    monkeypatch.setattr(rivals, "filtered", planted)
    of = history(records=40)
    odds = ImmFilter().fitted([], [], 0)(of)
    np.testing.assert_allclose(odds[:2], np.log([0.05 / 0.95, 0.7 / 0.3]))
    assert math.isfinite(odds[2]) and (odds > ImmFilter.alarm_at).tolist() == [False, True, True]
    surprise = OneFilter(position_m=100.0).fitted([], [], 0)(of)
    assert surprise[2] == 50.0 > OneFilter.alarm_at > surprise[1]
    # Computed once per history and noise.
    ImmFilter().fitted([], [], 0)(of)
    assert asked == [((0, 1, 2), (1000.0, 1.0)), ((0,), (100.0, 1.0))]


def test_settings_outside_their_range_are_refused():
    for made in (lambda: ChangePoints(rungs=1), lambda: BoostedTrees(rounds=0), lambda: ImmFilter(position_m=0.0),
                 lambda: OneFilter(velocity_m_s=math.nan)):  # fmt: skip
        with pytest.raises(BadValueError):
            made()
