"""The study of tuners: the optimum is known, hidden memory makes trials fail, and scaling is the recipe's alone."""

import pytest

from wavetank.errors import BadValueError
from wavetank.study.tuning import random_median
from wavetank.training.plans.recipe import SuperMucRecipe
from wavetank.training.plans.study_tuning import PlanTuning
from wavetank.training.plans.tiles import BEST
from wavetank.training.plans.tuner_rivals import RandomSearch

STUDY = PlanTuning(gpt="20B", tiles=256)


def figures(system, seed=0, study=STUDY):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


def test_trials_are_those_of_a_search_until_the_wanted_speed():
    space, speeds = STUDY.landscape
    found = figures(RandomSearch())
    assert found["trials_of_random_median",] == pytest.approx(
        found["trials",] / random_median(len(speeds), STUDY.good())
    )
    assert 0 <= found["infeasible_trials",] < found["trials",]
    reached = [found["speed_of_best", first] for first in STUDY.budgets]
    assert reached == sorted(reached)
    assert len(space.configurations) == len(speeds)
    assert found == figures(RandomSearch())
    assert found != figures(RandomSearch(), seed=1)


def test_every_configuration_is_wanted_where_nothing_much_is():
    easy = PlanTuning(gpt="20B", tiles=256, wanted=0.01)
    assert figures(SuperMucRecipe(), study=easy)["trials",] <= 3


def test_memory_that_the_formula_does_not_know_of_makes_what_it_lets_through_fail():
    space, speeds = STUDY.landscape
    wrong = [n for n, s in enumerate(speeds) if s is None and space.predicted_bytes[n] <= space.room_bytes]
    assert wrong
    _, known = PlanTuning(gpt="20B", tiles=256, unknown_bytes=0).landscape
    assert all(known[number] is not None for number in wrong)
    # Nothing is said to fit that the formula refuses.
    assert all(space.predicted_bytes[n] <= space.room_bytes for n, s in enumerate(speeds) if s is not None)


@pytest.mark.parametrize("words", [{"tiles": 8}, {"unknown_bytes": 1 << 40}])
def test_tiles_on_which_nothing_fits_are_refused(words):
    with pytest.raises(BadValueError, match="No configuration fits"):
        PlanTuning(**words).check()


def test_scaling_is_recorded_for_the_recipe_with_what_is_lost():
    found = figures(SuperMucRecipe())
    assert found["weak_error",] == pytest.approx(abs(found["weak_scaling",] - 0.93))
    assert found["strong_error",] == pytest.approx(abs(found["strong_scaling",] - 0.82))
    assert found["loss_share", "bubble"] == pytest.approx(15 / 115, rel=0.02)
    assert BEST.pipeline == 16
    assert ("weak_scaling",) not in figures(RandomSearch())


def test_the_notes_count_what_fits():
    _, speeds = STUDY.landscape
    fit = sum(speed is not None for speed in speeds)
    assert f"{len(speeds)} configurations" in STUDY.notes()[0]
    assert f"{fit} fit" in STUDY.notes()[0]
    STUDY.check()
