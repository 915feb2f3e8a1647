"""What else is done: rerouting, pipelines of other lengths, restarts; each gives plans that can be carried out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.reshaping.jobs import job

from wavetank.training.reshaping.interface import View, check_plan, healthy_plan, step_ps
from wavetank.training.reshaping.reshape import Reshape
from wavetank.training.reshaping.rivals import BestSingleDimension, PipelineTemplates, Reroute, RestartAnew

WORK = job()
WELL = np.ones(8)


def view(speed, **more):
    return View(WORK, np.asarray(speed, float), healthy_plan(WORK), **more)


def speed_of(**at):
    speed = WELL.copy()
    for place, value in at.items():
        speed[int(place[1:])] = value
    return speed


RIVALS = [BestSingleDimension(), Reroute(), PipelineTemplates(), RestartAnew(), RestartAnew(always=True)]


@settings(max_examples=40, deadline=None)
@given(speeds=st.lists(st.sampled_from([0.0, 0.4, 0.8, 1.0, 1.0, 1.0]), min_size=8, max_size=8))
def test_every_plan_can_be_carried_out(speeds):
    for rival in RIVALS:
        plan = rival.reshape(view(speeds))
        if plan is not None and plan != healthy_plan(WORK):
            check_plan(WORK, np.array(speeds), plan)


@pytest.mark.parametrize("rival", RIVALS)
def test_without_faults_nothing_is_gained(rival):
    plan = rival.reshape(view(WELL))
    assert step_ps(WORK, WELL, plan) == step_ps(WORK, WELL, healthy_plan(WORK))


@pytest.mark.parametrize("rival", RIVALS)
def test_with_nothing_left_there_is_no_plan(rival):
    assert rival.reshape(view(np.zeros(8))) is None


def test_the_best_single_dimension_is_the_best_of_three():
    for speed in (speed_of(d0=0.0), speed_of(d0=0.6), speed_of(d3=0.9)):
        times = []
        for words in ({"tensor": True}, {"pipeline": True}, {"data": True}):
            plan = Reshape(**{"tensor": False, "pipeline": False, "data": False, **words}).reshape(view(speed))
            times.append(step_ps(WORK, speed, plan))
        best = BestSingleDimension().reshape(view(speed))
        assert step_ps(WORK, speed, best) == min(times) <= max(times)


def test_a_lost_groups_work_is_rerouted_and_a_slow_group_is_lost_where_that_pays():
    plan = Reroute().reshape(view(speed_of(d0=0.0)))
    assert plan.replicas[0].groups[0] == () and plan.replicas[1].groups[0] == WORK.group(1, 0)
    assert plan.quota == (4, 4)
    assert Reroute().reshape(view(speed_of(d0=0.9))).replicas[0].groups[0] == WORK.group(0, 0)
    assert Reroute().reshape(view(speed_of(d0=0.1))).replicas[0].groups[0] == ()
    assert Reroute().reshape(view(speed_of(d0=0.0, d4=0.0))) is None


def test_pipelines_are_made_of_the_groups_that_are_left():
    plan = PipelineTemplates().reshape(view(speed_of(d0=0.0)))
    lengths = sorted(len(each.groups) for each in plan.replicas)
    assert lengths == [1, 2]
    # The longer one has more micro-batches: 9 s a layer in all, 48 s against 24 s at most for a micro-batch.
    by_length = dict(zip([len(each.groups) for each in plan.replicas], plan.quota, strict=True))
    assert by_length[2] > by_length[1] > 0
    assert {group for each in plan.replicas for group in each.groups} == {(2, 3), (4, 5), (6, 7)}


def test_groups_that_died_in_two_replicas_leave_one_whole_pipeline():
    work = job(room=1.0)
    speed = speed_of(d0=0.0, d6=0.0)
    plan = PipelineTemplates().reshape(View(work, speed, healthy_plan(work)))
    assert [each.groups for each in plan.replicas] == [((2, 3), (4, 5))]
    assert Reshape(tensor=False).reshape(View(work, speed, healthy_plan(work))) is None


def test_a_restart_uses_healthy_groups_wherever_they_were():
    work = job(room=1.0)
    plan = RestartAnew().reshape(View(work, speed_of(d0=0.0, d6=0.0), healthy_plan(work)))
    assert plan.restart
    assert [each.groups for each in plan.replicas] == [((2, 3), (4, 5))]


def test_a_slow_gpu_is_a_reason_to_restart_only_if_that_pays_until_the_next_change():
    slow = speed_of(d0=0.1)
    kept = RestartAnew().reshape(view(slow, quiet_s=100.0, restart_s=1000.0))
    assert kept == healthy_plan(WORK) and not kept.restart
    anew = RestartAnew().reshape(view(slow, quiet_s=math.inf, restart_s=1000.0))
    assert anew.restart
    anew = RestartAnew().reshape(view(slow, quiet_s=1e6, restart_s=1000.0))
    assert anew.restart and all(0 not in group for each in anew.replicas for group in each.groups)
    assert RestartAnew(always=True).reshape(view(slow, quiet_s=100.0, restart_s=1000.0)).restart


def test_a_dead_gpu_may_take_its_whole_node():
    work = job(room=2.0)
    speed = speed_of(d0=0.0)
    plan = PipelineTemplates(node=4).reshape(View(work, speed, healthy_plan(work)))
    assert {group for each in plan.replicas for group in each.groups} == {(4, 5), (6, 7)}
    alone = PipelineTemplates().reshape(View(work, speed, healthy_plan(work)))
    assert step_ps(work, speed, alone) < step_ps(work, speed, plan)
    # A slow node is dropped where that gives the shorter step, and kept otherwise.
    for slow, count in ((0.9, 4), (0.01, 2)):
        plan = PipelineTemplates(node=4).reshape(View(work, speed_of(d0=slow), healthy_plan(work)))
        assert sum(len(each.groups) for each in plan.replicas) == count
