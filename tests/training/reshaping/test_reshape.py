"""Reshaping: never worse than one remedy alone, close to the best plan of its kind, better than dropping a replica."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.reshaping.jobs import job

from wavetank.platforms.links import Link
from wavetank.training.reshaping import reshape
from wavetank.training.reshaping.interface import Plan, Replica, View, check_plan, healthy_plan, step_ps
from wavetank.training.reshaping.reshape import Reshape, group_options
from wavetank.training.reshaping.rivals import BestSingleDimension

SMALL = job(layers=4, microbatches=4)
# Gradients that take long to sum, and memory that is short: fewer layers on a GPU may be worth a slower group.
TIGHT = job(layers=4, microbatches=4, room=1.5, layer_bytes=6.0, network=Link(bytes_per_s=1.0, latency_s=0.0))


def shortest(system, work, speed):
    plan = system.reshape(View(work, speed, healthy_plan(work)))
    if plan is None:
        return None
    check_plan(work, speed, plan)
    return step_ps(work, speed, plan)


def every_plan(work, speed):
    """All plans with any members in each group, one division of layers for all, and any quotas: written down anew."""
    alive = [[d for d in work.group(r, s) if speed[d] > 0] for r in range(work.replicas) for s in range(work.stages)]
    options = [
        [c for k in range(1, len(those) + 1) for c in itertools.combinations(those, k)] or [()] for those in alive
    ]
    layers = [
        each for each in itertools.product(range(1, work.layers + 1), repeat=work.stages) if sum(each) == work.layers
    ]
    quotas = [
        each
        for each in itertools.product(range(work.microbatches + 1), repeat=work.replicas)
        if sum(each) == work.microbatches
    ]
    for groups in itertools.product(*options):
        rows = [groups[r * work.stages : (r + 1) * work.stages] for r in range(work.replicas)]
        for each, quota in itertools.product(layers, quotas):
            chosen = [(row, n) for row, n in zip(rows, quota, strict=True) if n]
            if any(
                not group or count > work.fits(len(group))
                for row, _ in chosen
                for group, count in zip(row, each, strict=True)
            ):
                continue
            yield Plan(tuple(Replica(row, each) for row, _ in chosen), tuple(n for _, n in chosen))


@pytest.mark.parametrize("work", [SMALL, TIGHT])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(speeds=st.lists(st.sampled_from([0.0, 0.4, 0.7, 1.0, 1.0]), min_size=8, max_size=8))
def test_a_plan_is_the_best_of_every_plan_of_its_kind(work, speeds):
    speed = np.array(speeds)
    best = min((step_ps(work, speed, plan) for plan in every_plan(work, speed)), default=None)
    found = shortest(Reshape(), work, speed)
    if best is None:
        assert found is None
        return
    assert found == best


@settings(max_examples=60, deadline=None)
@given(speeds=st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0, 1.0, 1.0]), min_size=8, max_size=8))
def test_it_is_never_worse_than_the_best_remedy_alone(speeds):
    speed, work = np.array(speeds), job()
    alone, together = shortest(BestSingleDimension(), work, speed), shortest(Reshape(), work, speed)
    assert (together is not None and together <= alone) if alone is not None else True


@pytest.mark.parametrize("replicas", range(1, 9))
def test_a_dead_gpu_costs_less_than_its_replica(replicas):
    work = job(tensor=4, heads=64, stages=4, layers=32, replicas=replicas, microbatches=16 * replicas)
    speed = np.ones(work.devices)
    speed[5] = 0.0
    dropped = shortest(Reshape(tensor=False, pipeline=False, data=False), work, speed)
    kept = shortest(Reshape(), work, speed)
    assert dropped is None if replicas == 1 else kept < dropped


def test_equal_gpus_keep_the_layout():
    work = job()
    assert Reshape().reshape(View(work, np.ones(8), healthy_plan(work))) == healthy_plan(work)


def test_a_group_leaves_out_a_gpu_exactly_if_it_is_faster_without():
    work = job(tensor=4, heads=64)
    group = work.group(0, 0)
    for slow, count in ((0.9, 4), (0.75, 4), (0.72, 3), (0.3, 3), (0.0, 3)):
        speed = np.ones(work.devices)
        speed[2] = slow
        # 16 of 64 heads at its speed against 22 of 64 without it: as fast at 16 / 22.
        *more, (members, pace) = group_options(work, speed, group)
        assert len(members) == count and (2 in members) == (count == 4)
        assert all(len(others) > count and slower > pace for others, slower in more)
        assert bool(group_options(work, speed, group, tensor=False)) == (slow > 0)
    assert group_options(work, np.zeros(work.devices), group) == []


def test_each_dimension_moves_only_what_it_is_there_for():
    work = job()
    speed = np.ones(8)
    speed[0] = 0.6
    view = View(work, speed, healthy_plan(work))
    before = healthy_plan(work)
    tensor = Reshape(pipeline=False, data=False).reshape(view)
    layers = Reshape(tensor=False, data=False).reshape(view)
    quotas = Reshape(tensor=False, pipeline=False).reshape(view)
    assert {each.layers for each in tensor.replicas} == {(4, 4)} and tensor.quota == (4, 4)
    assert layers.replicas[0].groups == before.replicas[0].groups and layers.quota == (4, 4)
    assert layers.replicas[0].layers[0] < 4
    assert quotas.replicas == before.replicas and quotas.quota[0] < 4 < quotas.quota[1]


def test_a_division_of_its_own_lets_a_replica_keep_all_layers_where_they_were():
    work = job(layers=8, microbatches=16)
    speed = np.ones(8)
    speed[[0, 6]] = 0.5
    common, own = (Reshape(tensor=False, data=False, own_layers=each) for each in (False, True))
    plan = own.reshape(View(work, speed, healthy_plan(work)))
    # The slow stage is the first in one replica and the last in the other.
    assert plan.replicas[0].layers[0] < 4 < plan.replicas[1].layers[0]
    assert shortest(own, work, speed) < shortest(common, work, speed)


def test_where_every_replica_has_lost_a_whole_stage_there_is_no_plan():
    work = job()
    speed = np.ones(8)
    speed[[0, 1, 6, 7]] = 0.0
    assert Reshape().reshape(View(work, speed, healthy_plan(work))) is None


def test_memory_forbids_what_does_not_fit():
    work = job(room=1.0)
    speed = np.ones(8)
    speed[0] = 0.0
    plan = Reshape().reshape(View(work, speed, healthy_plan(work)))
    # A GPU alone holds two layers, the other stage four: the replica is left out.
    assert len(plan.replicas) == 1 and plan.quota == (8,)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_too_much_to_try_is_found_by_moving_shares_and_layers(seed, monkeypatch):
    work = job(layers=10, stages=3, replicas=3, microbatches=9, tensor=4, heads=16)
    draws = np.random.default_rng(seed)
    speed = np.ones(work.devices)
    places = draws.choice(work.devices, 4, replace=False)
    speed[places] = draws.choice([0.0, 0.5, 0.75, 0.9], 4)
    reshape._reshaped.cache_clear()
    exact = shortest(Reshape(), work, speed)
    monkeypatch.setattr(reshape, "_FEW_DIVISIONS", 0)
    reshape._reshaped.cache_clear()
    assert shortest(Reshape(), work, speed) == exact
    own = shortest(Reshape(own_layers=True), work, speed)
    assert own <= exact <= shortest(BestSingleDimension(), work, speed)
    reshape._reshaped.cache_clear()


@pytest.mark.parametrize("seed", [5, 42, 43])
def test_in_a_job_too_large_to_try_all_plans_no_remedy_alone_is_better(seed):
    # Gradients take long: one replica fewer may be worth it, and not the slowest.
    slow_network = Link(bytes_per_s=1.0, latency_s=0.0)
    work = job(
        layers=24, stages=4, replicas=4, microbatches=16, tensor=4, heads=16, layer_bytes=20.0, network=slow_network
    )
    draws = np.random.default_rng(seed)
    speed = np.ones(work.devices)
    count = int(draws.integers(2, 14))
    speed[draws.choice(work.devices, count, replace=False)] = draws.choice([0.0, 0.3, 0.6, 0.9], count)
    assert shortest(Reshape(), work, speed) <= shortest(BestSingleDimension(), work, speed)
