"""The study of tasks: budgets in bytes, the guess beside every figure, and factors between budgets."""

import dataclasses

import numpy as np
import pytest

from wavetank.training.scenes.interface import Scene
from wavetank.training.scenes.sketch import Sketch
from wavetank.training.scenes.study_tasks import EarthTasks, factor_at

STUDY = EarthTasks(place="generated", factors=(10.0, 1000.0))


def figures(system, seed=0):
    return {(name, *at.values()): value for name, value, at in STUDY.measure(system, seed).rows}


def test_more_bytes_answer_better_than_the_guess():
    found = figures(Sketch())
    assert found["balanced_accuracy", 10.0] > found["balanced_accuracy", 1000.0] > 1 - found["guess_loss",]
    assert found["loss_at_100",] == pytest.approx(1 - found["balanced_accuracy", 100.0])
    for factor in (10.0, 100.0, 1000.0):
        by_task = [found["accuracy_of_task", task, factor] for task in ("level", "anomaly", "change")]
        assert np.mean(by_task) == pytest.approx(found["balanced_accuracy", factor])
    # What is typical of a pixel says nothing of how it differs from that.
    assert found["accuracy_of_task", "anomaly", 0.0] == pytest.approx(0.5, abs=0.005)
    assert found["bytes_beyond_budget",] == 0


@dataclasses.dataclass(frozen=True)
class Spender(Sketch):
    """Takes 5 bytes more than it has, and decodes nothing but zeros."""

    def encode(self, scene, prior, budget):
        return bytes(budget + 5)

    def decode(self, stream, prior):
        return Scene(np.zeros(prior.shape, np.float32), np.ones(prior.shape, np.bool_))


def test_bytes_beyond_the_budget_are_counted_and_nothing_answers_as_a_coin_does():
    found = figures(Spender())
    assert found["bytes_beyond_budget",] == 3 * 5
    assert found["accuracy_of_task", "level", 10.0] == 0.5
    assert found["factor_at_one_percent",] == 1.0


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ({10.0: 0.02, 100.0: 0.5}, 1.0),
        ({10.0: 0.0, 100.0: 0.005}, 100.0),
        ({10.0: 0.0, 1000.0: 0.02}, 100.0),
        ({10.0: 0.005, 100.0: 0.5, 1000.0: 0.0}, 10 * 10 ** (0.005 / 0.495)),
    ],
)
def test_factors_between_budgets(losses, wanted):
    assert factor_at(losses, 0.01) == pytest.approx(wanted)


def test_the_scenes_are_those_of_the_other_study():
    assert STUDY.scenes.place == "generated"
    assert STUDY.data() == {}
    assert "Generated places" in STUDY.notes()[0]
    STUDY.check()
