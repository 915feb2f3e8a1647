"""The study: equal seeds, arrivals at the load, files of a user's own."""

from __future__ import annotations

import pytest

from wavetank.errors import WavetankError
from wavetank.serving.workflows.applications import MIXES
from wavetank.serving.workflows.rivals import LeastCost, LeastLoaded
from wavetank.serving.workflows.study import WorkflowScheduling
from wavetank.workloads.datasets import DataUnavailableError

SMALL = WorkflowScheduling(applications=4, gpus=("H100-SXM", "L40S"), small=1)


def figures(found):
    return {metric: value for metric, value, at in found.rows if not at and metric != "decision_s"}


def test_equal_seeds_give_equal_figures_and_others_others():
    assert figures(SMALL.measure(LeastLoaded(), 3)) == figures(SMALL.measure(LeastLoaded(), 3))
    assert figures(SMALL.measure(LeastLoaded(), 3)) != figures(SMALL.measure(LeastLoaded(), 4))


def test_the_same_applications_arrive_that_are_there_at_the_start():
    batch, later = SMALL.batch(2), SMALL.arriving(2)
    assert [each.stages for each in batch] == [each.stages for each in later]
    assert [each.arrival_s for each in later] == sorted(each.arrival_s for each in later)
    half = WorkflowScheduling(applications=4, gpus=("H100-SXM", "L40S"), load=SMALL.load / 2).arriving(2)
    assert half[-1].arrival_s == pytest.approx(2 * later[-1].arrival_s)


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_runs(mix):
    try:
        study = WorkflowScheduling(workflows=mix, applications=3, gpus=("H100-SXM", "L40S"), small=0)
        study.check()
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    assert figures(study.measure(LeastCost(), 0))["makespan_s"] > 0


def test_devices_that_hold_no_model_stop_the_study_before_any_trial():
    with pytest.raises(WavetankError, match="No device can compute this stage"):
        WorkflowScheduling(gpus=("A10",)).check()
