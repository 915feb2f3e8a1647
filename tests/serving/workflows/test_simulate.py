"""Every scheduler's run: precedence, devices that do one thing at a time, each stage once, bounds of the makespan."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.serving.workflows.conftest import application, platform

from wavetank.errors import WavetankError
from wavetank.ledger import catalog
from wavetank.serving.workflows.applications import MODELS, applications
from wavetank.serving.workflows.costs import Times
from wavetank.serving.workflows.interface import platform_of
from wavetank.serving.workflows.rivals import CommonQueue, LeastCost, LeastLoaded
from wavetank.serving.workflows.simulate import simulate

SCHEDULERS = sorted(
    name for name, entry in catalog.everything().systems.items() if entry.interface == "stage-scheduler"
)
GPUS = ("H100-SXM", "L40S", "L40S")


@pytest.fixture(scope="module")
def gpus():
    return platform_of(GPUS, MODELS)


@pytest.fixture(scope="module")
def batch():
    return applications("agents", 3, 11, rate_per_s=0.1, error=0.3)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_keeps_the_order_and_gives_a_device_one_stage_at_a_time(name, gpus, batch):
    run = simulate(batch, gpus, catalog.everything().systems[name].build())
    ends = {each.key: each.end_s for each in run.stages}
    wanted = {(number, task) for number, each in enumerate(batch) for task in range(len(each.stages))}
    assert Counter(each.key for each in run.stages) == Counter(wanted)
    busy: dict[int, float] = {}
    for each in sorted(run.stages, key=lambda each: each.start_s):
        number, task = each.key
        assert each.start_s >= batch[number].arrival_s
        assert all(each.start_s >= ends[number, parent] for parent in batch[number].workflow.parents[task])
        assert 1 <= len(set(each.devices)) == len(each.devices) <= batch[number].stages[task].most_shards
        for device in each.devices:
            assert each.start_s >= busy.get(device, 0.0)
            busy[device] = each.end_s
    assert run.finish_s == tuple(
        max(ends[number, task] for task in range(len(each.stages))) for number, each in enumerate(batch)
    )


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_run_is_shorter_than_its_longest_way_or_than_all_work_on_all_devices(name, gpus):
    known = applications("agents", 3, 4)
    # A prefix may be cached, and a stage may be shared between devices.
    least = [Times(application=each, platform=gpus).rest_s.min(axis=1) for each in known]
    run = simulate(known, gpus, catalog.everything().systems[name].build())
    for each, seconds, finish in zip(known, least, run.finish_s, strict=True):
        alone = [value / stage.most_shards for value, stage in zip(seconds.tolist(), each.stages, strict=True)]
        assert finish >= each.workflow.longest_path(alone) - 1e-9
    assert run.makespan_s >= sum(seconds.sum() for seconds in least) / len(GPUS) - 1e-9


def test_a_stage_that_may_be_shared_ends_on_all_devices_at_once():
    made = application(((),), (6.0,), most_shards=2)
    run = simulate([made], platform((1.0, 2.0)), LeastCost())
    # Two thirds on the fast one, and 0.05 s to merge.
    assert run.makespan_s == pytest.approx(6.0 / 3.0 + 0.05)
    assert set(run.stages[0].devices) == {0, 1}


def test_answers_that_are_longer_than_expected_take_longer():
    made = application(((),), (1.0,), expected_tokens=1.0)
    longer = application(((),), (1.0,), expected_tokens=1.0)
    longer = type(longer)(
        workflow=longer.workflow,
        stages=(type(longer.stages[0])(model="a", prompt_tokens=900, output_tokens=21, expected_tokens=1.0),),
    )
    assert simulate([longer], platform(), CommonQueue()).makespan_s == pytest.approx(
        simulate([made], platform(), CommonQueue()).makespan_s + 2.0
    )


@pytest.mark.parametrize("wrong", [[], [1.0, 0.5]])
def test_applications_out_of_order_are_refused(wrong):
    with pytest.raises(WavetankError, match="in order of arrival"):
        simulate([application(((),), (1.0,), arrival_s=at) for at in wrong], platform(), LeastLoaded())
