"""Trials are counted, wrong proposals refused, and the median of a search at random is exact."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.study.tuning import (
    Space,
    Trial,
    alike,
    expected_improvement,
    gaussian_process,
    random_median,
    trials_to,
    untried,
)


def space_of(speeds, room=10):
    """A line of configurations; what has no speed needs more room than there is."""
    return Space(
        configurations=tuple((1, 1, k + 1, 1, 0) for k in range(len(speeds))),
        predicted_bytes=np.array([room + (speed is None) for speed in speeds]), room_bytes=room, node=8,
    )  # fmt: skip


class InOrder:
    def propose(self, space, tried, draws):
        return len(tried)


def test_trials_end_with_the_first_that_is_fast_enough_or_with_the_budget():
    speeds = [1.0, None, 3.0, 2.0, 4.0]
    draws = np.random.default_rng(0)
    found = trials_to(InOrder(), space_of(speeds), speeds, 2.5, draws, most=10)
    assert found == [Trial(0, 1.0), Trial(1, None), Trial(2, 3.0)]
    assert len(trials_to(InOrder(), space_of(speeds), speeds, 4.0, draws, most=2)) == 2
    assert len(trials_to(InOrder(), space_of(speeds), speeds, 9.0, draws, most=99)) == 5


def test_noise_decides_nothing_where_true_speeds_are_given():
    shown, truth = [5.0, 1.0, 9.0], [1.0, 5.0, 9.0]
    found = trials_to(InOrder(), space_of(shown), shown, 4.0, np.random.default_rng(0), most=3, judged=truth)
    assert found == [Trial(0, 5.0), Trial(1, 1.0)]


@pytest.mark.parametrize("number", [0, 7, -1])
def test_a_proposal_twice_or_of_nothing_is_refused(number):
    class Stuck:
        def propose(self, space, tried, draws):
            return number if tried else 0

    with pytest.raises(BadValueError, match="once"):
        trials_to(Stuck(), space_of([1.0, 2.0]), [1.0, 2.0], 2.0, np.random.default_rng(0), most=5)


@pytest.mark.parametrize(("configurations", "good"), [(5, 1), (12, 3), (40, 2)])
def test_the_median_of_a_search_at_random_is_that_of_many_searches(configurations, good):
    draws = np.random.default_rng(1)
    found = [int(np.min(draws.permutation(configurations)[:good])) + 1 for _ in range(4001)]
    assert abs(np.median(found) - random_median(configurations, good)) <= 1
    assert random_median(configurations, configurations) == 1
    assert [random_median(whole, 1) for whole in (2, 10, 45, 46)] == [1, 5, 23, 23]
    for wrong in (0, configurations + 1):
        with pytest.raises(BadValueError):
            random_median(configurations, wrong)


def test_features_run_from_0_to_1_and_a_column_of_equals_is_0():
    features = space_of([1.0] * 4).features
    assert features[:, 2].min() == 0.0
    assert features[:, 2].max() == 1.0
    assert not features[:, [0, 1, 3, 4]].any()


def test_what_was_tried_is_left_out_and_a_space_has_one_form():
    assert untried(space_of([1.0, 2.0, 3.0]), [Trial(1, 2.0)]) == [0, 2]
    for configurations, count in (((), 0), (((1, 2), (1,)), 2), (((1, 2),), 2)):
        with pytest.raises(BadValueError, match="one form"):
            Space(configurations=configurations, predicted_bytes=np.zeros(count, np.int64), room_bytes=1, node=1)


def test_a_trial_shows_the_figures_of_its_configuration():
    seen = []

    class Looks:
        def propose(self, space, tried, draws):
            seen[:] = [dict(trial.figures) for trial in tried]
            return untried(space, tried)[0]

    figures = [{"share": 0.1 * k} for k in range(3)]
    tried = trials_to(Looks(), space_of([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0], 3.0, None, most=3, figures=figures)
    assert [dict(trial.figures) for trial in tried] == figures
    assert seen == figures[:2]
    assert dict(Trial(0, 1.0).figures) == {}


def test_a_gaussian_process_goes_through_what_is_known_and_knows_little_far_away():
    at, values = np.array([[0.0], [0.5], [1.0]]), np.array([1.0, 3.0, 2.0])
    mean, deviation = gaussian_process(at, values, np.array([[0.5], [9.0]]), 0.3)
    assert mean[0] == pytest.approx(3.0, abs=0.01)
    assert mean[1] == pytest.approx(values.mean(), abs=0.01)
    assert deviation[0] < 0.1 < deviation[1] == pytest.approx(values.std(), rel=0.01)


def test_places_are_alike_by_the_square_of_their_distance():
    found = alike(np.array([[0.0, 0.0]]), np.array([[0.0, 0.0], [0.3, 0.4]]), 0.5)
    assert found[0] == pytest.approx([1.0, np.exp(-0.5)])


def test_improvement_that_is_expected_is_that_of_draws():
    draws = np.random.default_rng(0).normal(1.0, 0.5, 400_000)
    (found,) = expected_improvement(np.array([1.0]), np.array([0.5]), 1.2)
    assert found == pytest.approx(np.maximum(draws - 1.2, 0).mean(), rel=0.02)
