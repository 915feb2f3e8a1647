"""The study: equal seeds, arrivals at the load, files of a user's own."""

from __future__ import annotations

import json

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


def test_answers_of_a_file_are_as_unsure_as_those_of_templates(tmp_path):
    tasks = [{"name": each, "id": each, "parents": [], "children": []} for each in "ab"]
    whole = {"name": "mine", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": tasks}}}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(whole))
    sure, unsure = (WorkflowScheduling(file=str(path), applications=2, error=error).batch(0) for error in (0.0, 0.5))
    for one, other in zip(sure, unsure, strict=True):
        assert [each.expected_tokens for each in one.stages] == [float(each.output_tokens) for each in one.stages]
        assert [each.output_tokens for each in one.stages] == [each.output_tokens for each in other.stages]
        assert all(a.expected_tokens != b.expected_tokens for a, b in zip(one.stages, other.stages, strict=True))
