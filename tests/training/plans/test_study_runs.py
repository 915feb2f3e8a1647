"""The study of real runs, on a made-up table; and a tuner that drives two real ones."""

import pytest

from wavetank.errors import BadValueError
from wavetank.live.short_runs import Ran, cuts, predicted_bytes
from wavetank.study.tuning import random_median
from wavetank.training.plans import study_runs
from wavetank.training.plans.recipe import SuperMucRecipe
from wavetank.training.plans.study_runs import RunTuning, median_speeds, space_of, tune_runs
from wavetank.training.plans.tuner_rivals import RandomSearch

ROOM = 3_600_000


@pytest.fixture
def table(monkeypatch):
    """Each cut has another speed, noise on two of three steps, and holds nine tenths of what the formula says."""
    made = tuple(
        Ran([0.9 * second, second, 1.2 * second], int(0.9 * predicted_bytes(cut)))
        for cut in cuts()
        for second in [cut.tensor * (1 + cut.checkpoint / 3) / cut.micro**0.5 + cut.pipeline / 50]
    )
    monkeypatch.setattr(study_runs, "measured", lambda steps: made)
    return made


def figures(system, seed=0):
    return {name: value for name, value, _ in RunTuning().measure(system, seed).rows}


def test_whether_a_trial_is_fast_is_decided_by_the_median_of_its_steps(table):
    speeds = median_speeds(table, ROOM)
    known = [speed for speed in speeds if speed is not None]
    good = sum(speed >= 0.95 * max(known) for speed in known)
    for system in (RandomSearch(), SuperMucRecipe()):
        for seed in range(3):
            found = figures(system, seed)
            assert found["good"] == good
            assert found["trials_of_random_median"] == pytest.approx(
                found["trials"] / random_median(len(cuts()), good)
            )
            assert 1 <= found["trials"] <= len(cuts())
            assert found["infeasible_trials"] < found["trials"]
    assert figures(SuperMucRecipe())["best_over_middle"] > 1


def test_what_the_formula_lets_through_and_does_not_fit_is_counted(table, monkeypatch):
    assert figures(RandomSearch())["false_fits"] == 0
    larger = tuple(Ran(ran.seconds, 2 * ran.held_bytes) for ran in table)
    monkeypatch.setattr(study_runs, "measured", lambda steps: larger)
    fits = [predicted <= ROOM for predicted in space_of(ROOM).predicted_bytes]
    wrong = sum(fit and ran.held_bytes > ROOM for fit, ran in zip(fits, larger, strict=True))
    assert figures(RandomSearch())["false_fits"] == wrong > 0


@pytest.mark.slow
def test_a_tuner_drives_real_runs_and_is_shown_what_does_not_fit():
    pytest.importorskip("torch", reason="needs the library torch")
    # Room for less than the formula says of any: all are tried, and none fits.
    (none,) = tune_runs(SuperMucRecipe(), room_bytes=1000, trials=1, steps=1)
    assert none.speed is None
    (some,) = tune_runs(SuperMucRecipe(), room_bytes=ROOM, trials=1, steps=1)
    assert some.speed > 0
    assert predicted_bytes(cuts()[some.number]) <= ROOM


def test_room_in_which_nothing_fits_is_refused():
    with pytest.raises(BadValueError, match="Nothing fits"):
        RunTuning(room_bytes=1000).check()
    RunTuning().check()
    assert "other load" in RunTuning().notes()[0]
