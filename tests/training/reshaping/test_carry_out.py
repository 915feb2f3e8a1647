"""Gradients after every reconfiguration are those of the healthy layout, and of a model that knows no layout at all."""

from __future__ import annotations

import numpy as np
import pytest
from tests.training.reshaping.jobs import job

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream
from wavetank.training.reshaping.carry_out import Layers, gradients
from wavetank.training.reshaping.interface import Plan, Replica, View, healthy_plan
from wavetank.training.reshaping.reshape import Reshape
from wavetank.training.reshaping.rivals import PipelineTemplates, RestartAnew

WORK = job(tensor=4, heads=6, layers=6, microbatches=7)
DRAWS = stream(0, "a small model")
WIDTH, UNITS = 5, 3
MODEL = Layers(
    DRAWS.normal(size=(6, 6, UNITS, WIDTH)) / 2, DRAWS.normal(size=(6, WIDTH, 6, UNITS)) / 2
)  # fmt: skip
INPUTS, TARGETS = DRAWS.normal(size=(2, 7, WIDTH))


def loss(model: Layers) -> float:
    """Written without groups, stages or replicas."""
    x = INPUTS
    for first, second in zip(model.first, model.second, strict=True):
        flat = first.reshape(-1, WIDTH)
        x = x + np.tanh(x @ flat.T) @ second.reshape(WIDTH, -1).T
    return float(0.5 * ((x - TARGETS) ** 2).sum())


def difference(one: Layers, other: Layers) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


HEALTHY = gradients(WORK, healthy_plan(WORK), MODEL, INPUTS, TARGETS)


def test_gradients_are_the_slopes_of_the_loss():
    step = 1e-6
    for place in ((0, 0, 0, 0), (3, 5, 2, 4), (5, 2, 1, 3)):
        moved = [MODEL.first.copy(), MODEL.first.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        slope = (loss(MODEL._replace(first=moved[0])) - loss(MODEL._replace(first=moved[1]))) / (2 * step)
        assert HEALTHY.first[place] == pytest.approx(slope, rel=1e-5, abs=1e-7)
    for place in ((0, 0, 0, 0), (2, 4, 5, 2)):
        moved = [MODEL.second.copy(), MODEL.second.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        slope = (loss(MODEL._replace(second=moved[0])) - loss(MODEL._replace(second=moved[1]))) / (2 * step)
        assert HEALTHY.second[place] == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("speeds", [{0: 0.0}, {0: 0.0, 1: 0.0, 2: 0.0}, {3: 0.3}, {0: 0.6, 13: 0.0}, {2: 0.0, 9: 0.8}])
@pytest.mark.parametrize("system", [Reshape(), Reshape(own_layers=True), PipelineTemplates(), RestartAnew()])
def test_gradients_after_a_reconfiguration_equal_the_healthy_layouts(system, speeds):
    speed = np.ones(WORK.devices)
    for device, value in speeds.items():
        speed[device] = value
    plan = system.reshape(View(WORK, speed, healthy_plan(WORK)))
    if isinstance(system, Reshape):
        assert plan != healthy_plan(WORK)
    assert difference(gradients(WORK, plan, MODEL, INPUTS, TARGETS), HEALTHY) < 1e-12


def test_a_plan_that_leaves_something_out_is_found():
    plan = healthy_plan(WORK)
    short = plan._replace(quota=(3, 3))
    assert difference(gradients(WORK, short, MODEL, INPUTS, TARGETS), HEALTHY) > 1e-3
    replica = plan.replicas[0]
    fewer = Plan((Replica(replica.groups, (3, 2)), plan.replicas[1]), plan.quota)
    assert difference(gradients(WORK, fewer, MODEL, INPUTS, TARGETS), HEALTHY) > 1e-3


def test_other_models_and_empty_stages_are_refused():
    with pytest.raises(BadValueError, match="not those of the job"):
        gradients(WORK, healthy_plan(WORK), MODEL, INPUTS[:5], TARGETS[:5])
    plan = healthy_plan(WORK)
    empty = plan.replicas[0]._replace(groups=((), plan.replicas[0].groups[1]))
    with pytest.raises(BadValueError, match="without a group"):
        gradients(WORK, Plan((empty, plan.replicas[1]), plan.quota), MODEL, INPUTS, TARGETS)
