"""Rivals: never better than all plans, in the order of what they may choose, and errors where nothing fits."""

from dataclasses import replace

import pytest
from tests.training.plans.test_interface import tiny_job
from tests.training.plans.test_piper import LARGE

from wavetank.training.plans.costs import step_cost
from wavetank.training.plans.interface import NoPlanError, legal_plans
from wavetank.training.plans.memory import fits
from wavetank.training.plans.piper import Piper
from wavetank.training.plans.rivals import LargestGroup, MedianPlan, Searched

JOB = tiny_job(shape=LARGE, ranks=32, batch=128, tokens=2048)


def seconds(planner, job=JOB):
    plan = planner.plan(job)
    job.check(plan)
    assert fits(job, plan)
    return step_cost(job, plan).time_s


def test_who_may_choose_more_is_never_slower():
    everything = seconds(Searched(pipeline=True, tensor=True, exchange="best"))
    megatron = seconds(Searched(pipeline=True, tensor=True))
    ted, pure = seconds(Searched(tensor=True)), seconds(Searched())
    assert everything <= megatron <= ted <= pure <= seconds(LargestGroup())
    assert everything <= seconds(Piper()) <= seconds(Piper(exchange="flat"))
    assert seconds(Searched(exchange="best")) <= pure


def test_the_middle_plan_has_as_many_faster_as_slower_ones():
    times = [step_cost(JOB, plan).time_s for plan in legal_plans(JOB) if fits(JOB, plan)]
    middle = seconds(MedianPlan())
    assert sum(each < middle for each in times) <= len(times) / 2
    assert sum(each > middle for each in times) <= len(times) / 2


def test_the_largest_group_saves_memory_only_as_needed():
    plan = LargestGroup().plan(JOB)
    assert (plan.experts, plan.pipeline, plan.tensor, plan.micro) == (16, 1, 1, 1)
    tight = LargestGroup().plan(replace(JOB, memory_share=0.043))
    assert (plan.checkpoint, plan.shards, tight.checkpoint, tight.shards) == (False, 1, True, 1)


@pytest.mark.parametrize("planner", [Searched(), LargestGroup(), MedianPlan()])
def test_nothing_fits_into_no_memory(planner):
    with pytest.raises(NoPlanError, match="fit"):
        planner.plan(replace(JOB, memory_share=1e-4))


def test_words_choose_what_is_searched():
    flat, both = (list(Searched(tensor=True, exchange=way).candidates(JOB)) for way in ("flat", "best"))
    assert {each.exchange for each in flat} == {"flat"}
    assert {each.exchange for each in both} == {"flat", "halo"}
    assert {each.pipeline for each in both} == {1}
    assert {each.shards for each in Searched(shards=1).candidates(JOB)} == {0, 1}
