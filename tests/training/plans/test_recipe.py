"""The recipe: rules, a formula of memory, a Gaussian process by hand, and infeasible trials that are not slow ones."""

import numpy as np
import pytest

from wavetank.study.tuning import Space, Trial, trials_to
from wavetank.training.plans.recipe import (
    SuperMucRecipe,
    chance_to_fit,
    expected_improvement,
    gaussian_process,
)

GRID = tuple((t, p, m, a, 0) for t in (1, 2, 4, 8, 16) for p in (1, 2, 4) for m in (1, 2, 4) for a in (8, 32))
SPACE = Space(
    configurations=GRID, predicted_bytes=np.array([m * 100 // (t * p) for t, p, m, _, _ in GRID]), room_bytes=60, node=8
)


def test_shards_stay_in_a_node_and_what_does_not_fit_is_not_tried():
    everything = list(range(len(GRID)))
    kept = SuperMucRecipe().allowed(SPACE, everything)
    assert all(GRID[each][0] <= 8 and SPACE.predicted_bytes[each] <= 60 for each in kept)
    assert len(kept) == sum(t <= 8 and m * 100 // (t * p) <= 60 for t, p, m, _, _ in GRID)
    free = SuperMucRecipe(rules=False, filtered=False)
    assert free.allowed(SPACE, everything) == everything
    # Nothing else left: then those.
    last = [GRID.index((16, 1, 1, 8, 0))]
    assert SuperMucRecipe().allowed(SPACE, last) == last


def test_the_first_trial_has_the_smallest_bubble_then_the_largest_microbatch():
    first = SuperMucRecipe().propose(SPACE, [], np.random.default_rng(0))
    # One stage, and microbatches of four that need eight shards.
    assert GRID[first][:3] == (8, 1, 4)
    others = {SuperMucRecipe(rules=False).propose(SPACE, [], np.random.default_rng(seed)) for seed in range(20)}
    assert len(others) > 5


def test_a_gaussian_process_goes_through_its_points_and_returns_to_the_mean_far_away():
    at, values = np.array([[0.0], [0.5], [1.0]]), np.array([1.0, 3.0, 2.0])
    mean, deviation = gaussian_process(at, values, np.vstack([at, [[30.0]]]), 0.3)
    assert mean[:3] == pytest.approx(values, abs=0.01)
    assert deviation[:3].max() < 0.05
    assert mean[3] == pytest.approx(2.0)
    assert deviation[3] == pytest.approx(values.std())


def test_one_point_has_the_posterior_of_the_formula():
    mean, deviation = gaussian_process(np.array([[0.0]]), np.array([5.0]), np.array([[0.3]]), 0.3)
    k = np.exp(-0.5)
    assert mean == pytest.approx(5.0)
    assert deviation == pytest.approx(np.sqrt(1 - k**2 / 1.001))


def test_expected_improvement_is_the_mean_of_what_exceeds_the_best():
    draws = np.random.default_rng(0).normal(1.0, 2.0, 400_000)
    found = expected_improvement(np.array([1.0]), np.array([2.0]), 1.5)
    assert found[0] == pytest.approx(np.maximum(draws - 1.5, 0).mean(), rel=0.01)
    assert expected_improvement(np.array([0.0]), np.array([1e-9]), 1.0)[0] == pytest.approx(0.0, abs=1e-12)


def test_the_chance_to_fit_falls_near_what_did_not_and_nowhere_else():
    at = np.array([[0.0], [1.0]])
    near, far, good = chance_to_fit(at, [False, True], np.array([[0.0], [0.5], [1.0]]), 0.5)
    assert near == pytest.approx(0.45, abs=0.01)
    assert far == pytest.approx(0.9, abs=0.01)
    assert good > far


@pytest.mark.parametrize("recipe", [SuperMucRecipe(), SuperMucRecipe(rules=False), SuperMucRecipe(filtered=False)])
def test_a_smooth_speed_next_to_the_limit_of_memory_is_found(recipe):
    truth = [
        None if m * 100 // (t * p) > 55 else m**0.3 * a**0.1 / (t**0.2 * p**0.1) for t, p, m, a, _ in GRID
    ]
    best = max(each for each in truth if each is not None)
    counts = [
        len(trials_to(recipe, SPACE, truth, 0.99 * best, np.random.default_rng(seed), most=90)) for seed in range(6)
    ]
    at_random = (len(GRID) + 1) / (sum(each is not None and each >= 0.99 * best for each in truth) + 1)
    assert np.median(counts) < at_random


def test_equal_draws_give_equal_trials_and_no_trial_is_made_twice():
    truth = [float(m) for _, _, m, _, _ in GRID]
    one, same = (
        trials_to(SuperMucRecipe(), SPACE, truth, 1e9, np.random.default_rng(3), most=90) for _ in range(2)
    )
    assert one == same
    assert len({trial.number for trial in one}) == len(GRID)


def test_trials_that_all_did_not_fit_leave_it_at_random():
    tried = [Trial(number, None) for number in range(6)]
    found = {SuperMucRecipe(rules=False).propose(SPACE, tried, np.random.default_rng(seed)) for seed in range(20)}
    assert len(found) > 5
    assert min(found) > 5
