"""Jobs and plans: what groups, steps and moves take in round numbers, and what cannot be carried out."""

from __future__ import annotations

import numpy as np
import pytest
from tests.training.reshaping.jobs import job

from wavetank.errors import BadValueError
from wavetank.platforms.links import Link
from wavetank.training.reshaping.interface import (
    Plan,
    Replica,
    check_plan,
    even_layers,
    healthy_plan,
    move_s,
    stage_ps,
    step_ps,
)

S = 10**12
JOB = job()
WELL = np.ones(8)


def test_a_group_has_the_pace_of_its_slowest_member_and_of_the_largest_share_of_heads():
    assert JOB.pace_ps([1.0, 1.0]) == 6 * S
    assert JOB.pace_ps([1.0, 0.5]) == 12 * S
    assert JOB.pace_ps([1.0]) == 12 * S
    # Three members of four heads: one of them has two.
    assert job(tensor=3, heads=4).pace_ps([1.0] * 3) == 6 * S


def test_sums_over_a_group_come_on_top_and_are_no_slower_on_a_slow_gpu():
    link = Link(bytes_per_s=1.0, latency_s=0.0)
    summing = job(link=link, activation_bytes=2.0)
    # Each of four sums moves half of 2 bytes twice.
    assert summing.pace_ps([1.0, 1.0]) == 14 * S
    assert summing.pace_ps([1.0, 0.5]) == 20 * S
    assert summing.pace_ps([1.0]) == 12 * S


def test_a_healthy_step_is_that_of_1f1b():
    # Four layers, 24 s for a micro-batch on each of two stages; four micro-batches and one more to fill.
    assert stage_ps(JOB, WELL, healthy_plan(JOB).replicas[0]) == (24 * S, 24 * S)
    assert step_ps(JOB, WELL, healthy_plan(JOB)) == 5 * 24 * S


def test_one_slow_gpu_slows_all():
    speed = WELL.copy()
    speed[5] = 0.5
    assert step_ps(JOB, speed, healthy_plan(JOB)) > 5 * 24 * S
    assert step_ps(JOB, speed, healthy_plan(JOB)) >= 4 * 48 * S


def test_gradients_are_summed_among_replicas_with_work():
    network = Link(bytes_per_s=1.0, latency_s=0.0)
    both = job(network=network, layer_bytes=1.0)
    # Four layers on two GPUs, four bytes for two of parameters: 4 bytes, summed by two.
    assert step_ps(both, WELL, healthy_plan(both)) == (5 * 24 + 4) * S
    alone = Plan((healthy_plan(both).replicas[0],), (8,))
    assert step_ps(both, WELL, alone) == 9 * 24 * S


def test_rerouted_work_takes_at_least_its_share_of_the_groups_that_are_left():
    layers = (4, 4)
    lost = Replica((JOB.group(0, 0), ()), layers)
    other = Replica((JOB.group(1, 0), JOB.group(1, 1)), layers)
    plan = Plan((lost, other), (4, 4))
    check_plan(JOB, WELL, plan)
    # Eight micro-batches on the one group of the last stage, after the first has passed stage 0.
    assert step_ps(JOB, WELL, plan) == (8 * 24 + 24) * S


def test_a_move_takes_what_the_device_that_lacks_most_fetches():
    moving = job(layer_bytes=3.0, network=Link(bytes_per_s=2.0, latency_s=0.0))
    before = healthy_plan(moving)
    assert move_s(moving, before, before) == 5.0
    # One layer more on two GPUs: half of it, eight times its bytes, 2 bytes a second.
    moved = Plan(tuple(each._replace(layers=(3, 5)) for each in before.replicas), before.quota)
    assert move_s(moving, before, moved) == 5.0 + 0.5 * 8 * 3 / 2
    # Alone a GPU lacks the other half of four layers.
    single = before.replicas[0]._replace(groups=((0,), moving.group(0, 1)))
    assert move_s(moving, before, Plan((single, before.replicas[1]), before.quota)) == 5.0 + 4 * 0.5 * 8 * 3 / 2


def test_even_parts_differ_by_one_and_sum_up():
    assert even_layers(11, 4) == (3, 3, 3, 2)
    assert healthy_plan(JOB).quota == (4, 4)


def test_memory_limits_the_layers_of_a_smaller_group():
    assert JOB.fits(2) == 8
    assert JOB.fits(1) == 4
    assert job(room=1.0).fits(1) == 2


GOOD = healthy_plan(JOB)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (GOOD._replace(quota=(4, 5)), "sum to 8"),
        (GOOD._replace(quota=(9, -1)), "quotas"),
        (GOOD._replace(quota=(8,)), "2 quotas"),
        (Plan((GOOD.replicas[0], GOOD.replicas[0]), (4, 4)), "used twice"),
        (Plan((GOOD.replicas[0]._replace(layers=(4, 3)), GOOD.replicas[1]), (4, 4)), "8 in all"),
        (Plan((GOOD.replicas[0]._replace(layers=(8, 0)), GOOD.replicas[1]), (4, 4)), "1 or more"),
        (Plan((GOOD.replicas[0]._replace(groups=((0,), (2, 3)), layers=(5, 3)), GOOD.replicas[1]), (4, 4)), "most 4"),
        (Plan((), ()), "quotas"),
        (Plan((GOOD.replicas[0]._replace(groups=((0, 8), (2, 3))), GOOD.replicas[1]), (4, 4)), "0 to 7"),
        (Plan((GOOD.replicas[0]._replace(groups=((0, -2), (2, 3))), GOOD.replicas[1]), (4, 4)), "0 to 7"),
        (Plan((GOOD.replicas[0]._replace(groups=((), (2, 3))), GOOD.replicas[1]), (8, 0)), "every stage"),
        (
            Plan((GOOD.replicas[0]._replace(groups=((), (2, 3))), GOOD.replicas[1]._replace(layers=(3, 5))), (4, 4)),
            "its layers",
        ),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(plan, said):
    with pytest.raises(BadValueError, match=said):
        check_plan(JOB, WELL, plan)


def test_a_plan_on_a_dead_gpu_is_refused():
    speed = WELL.copy()
    speed[7] = 0.0
    with pytest.raises(BadValueError, match="dead"):
        check_plan(JOB, speed, GOOD)


@pytest.mark.parametrize(
    "wrong",
    [{"layers": 1}, {"heads": 1}, {"microbatches": 1}, {"tensor": 0}, {"layer_ps": 0}, {"room": 0.5},
     {"room": float("nan")}, {"regroup_s": float("inf")}, {"layer_bytes": -1.0}, {"stages": True}],
)  # fmt: skip
def test_jobs_that_there_cannot_be_are_refused(wrong):
    with pytest.raises(BadValueError):
        job(**wrong)
