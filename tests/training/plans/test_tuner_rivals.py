"""Other tuners: every configuration once, what fits only where asked, and surrogates that learn."""

import numpy as np
import pytest
from tests.training.plans.test_recipe import GRID, SPACE

from wavetank.study.tuning import Trial, trials_to
from wavetank.training.plans.tuner_rivals import DefaultFirst, GridSearch, OptunaTpe, RandomSearch, Surrogate

SPEEDS = [None if m * 100 // (t * p) > 55 else m**0.5 * a**0.1 / (t**0.2 * p**0.1) for t, p, m, a, _ in GRID]
FITS = {number for number in range(len(GRID)) if SPACE.predicted_bytes[number] <= 60}


def tuners():
    cheap = [RandomSearch(), RandomSearch(filtered=True), GridSearch(), GridSearch(filtered=True), DefaultFirst()]
    return [*cheap, Surrogate(), Surrogate(model="gaussian", filtered=True), OptunaTpe(filtered=True)]


@pytest.mark.parametrize("tuner", tuners(), ids=repr)
def test_no_configuration_is_tried_twice_and_what_fits_comes_first_where_asked(tuner):
    for module, kinds in (("sklearn", Surrogate), ("optuna", OptunaTpe)):
        if isinstance(tuner, kinds):
            pytest.importorskip(module, reason=f"needs the library {module}")
    most = len(GRID) if isinstance(tuner, RandomSearch | GridSearch | DefaultFirst) else 12
    found, same = (
        trials_to(tuner, SPACE, SPEEDS, 1e9, np.random.default_rng(5), most=most) for _ in range(2)
    )
    assert found == same
    numbers = [trial.number for trial in found]
    assert len(set(numbers)) == most
    if getattr(tuner, "filtered", False):
        assert set(numbers[: len(FITS)]) <= FITS


def test_the_default_begins_with_one_rank_of_one_sequence():
    first = DefaultFirst().propose(SPACE, [], np.random.default_rng(0))
    assert GRID[first] == (1, 1, 1, 8, 0)
    tried = [Trial(k, 1.0) for k in range(10)]
    later = {DefaultFirst().propose(SPACE, tried, np.random.default_rng(seed)) for seed in range(9)}
    assert len(later) > 3


def test_a_grid_is_coarse_first():
    found = trials_to(GridSearch(), SPACE, SPEEDS, 1e9, np.random.default_rng(1), most=4)
    numbers = sorted(trial.number for trial in found)
    gaps = np.diff([*numbers, numbers[0] + len(GRID)])
    assert gaps.min() >= len(GRID) // 4 - 1


@pytest.mark.parametrize(
    "tuner", [Surrogate(start=6), Surrogate(model="gaussian", start=6), OptunaTpe(start=6)], ids=repr
)
def test_what_learns_is_better_than_the_mean_after_its_start(tuner):
    pytest.importorskip("optuna" if isinstance(tuner, OptunaTpe) else "sklearn", reason="needs the library")
    speeds = [float(m * a) for _, _, m, a, _ in GRID]
    learned = [
        trial.speed
        for seed in range(3)
        for trial in trials_to(tuner, SPACE, speeds, 1e9, np.random.default_rng(seed), most=12)[6:]
    ]
    assert np.mean(learned) > 1.3 * np.mean(speeds)
