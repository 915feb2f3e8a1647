"""Piper: the best of all plans by brute force, memory that always suffices, and limits where stages gain nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.plans.test_interface import TINY, by_hand, tiny_job

from wavetank.platforms.machines import machine
from wavetank.training.plans.costs import step_cost
from wavetank.training.plans.interface import NoPlanError, Plan, Shape, legal_plans
from wavetank.training.plans.memory import stage_bytes
from wavetank.training.plans.piper import Piper, fastest, share_that_fits
from wavetank.training.plans.rivals import Searched

LARGE = replace(TINY, layers=8, hidden=2048, ffn=4096, experts=16, attention=4 * 2048**2, pair_flops=4 * 2048)


def brute(job):
    """The shortest step of all plans that fit, by loops of the tests' own."""
    times = [
        step_cost(job, plan).time_s for plan in by_hand(job, tensor=False) if stage_bytes(job, plan) <= job.room_bytes
    ]
    return min(times) if times else None


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(4, 9), hidden=st.sampled_from([64, 512, 4096]), ffn=st.sampled_from([96, 1024, 8192]),
    tokens=st.sampled_from([16, 512, 4096]), batch=st.sampled_from([16, 32, 128]),
    memory_share=st.floats(1e-5, 1.0), half_rows=st.sampled_from([0.0, 256.0]),
)  # fmt: skip
def test_the_plan_is_the_argmin_of_all_that_fit(layers, hidden, ffn, tokens, batch, memory_share, half_rows):
    shape = replace(TINY, layers=layers, hidden=hidden, ffn=ffn, attention=4 * hidden**2, pair_flops=4 * hidden)
    job = tiny_job(shape=shape, tokens=tokens, batch=batch, memory_share=memory_share, half_rows=half_rows)
    best = brute(job)
    if best is None:
        with pytest.raises(NoPlanError):
            Piper().plan(job)
        return
    plan = Piper().plan(job)
    assert step_cost(job, plan).time_s == pytest.approx(best, abs=1e-9)
    assert stage_bytes(job, plan) <= job.room_bytes
    job.check(plan)


def test_more_memory_is_never_slower():
    job = tiny_job(shape=LARGE, tokens=4096, batch=64)
    times = []
    for share in (0.06, 0.1, 0.2, 0.4, 1.0):
        try:
            times.append(step_cost(job, Piper().plan(replace(job, memory_share=share))).time_s)
        except NoPlanError:
            assert not times
    assert len(times) > 2
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_what_does_not_fit_says_what_would_be_needed():
    job = tiny_job(shape=LARGE, tokens=4096, batch=64, memory_share=1e-4)
    least = min(stage_bytes(job, plan) for plan in Piper().candidates(job))
    with pytest.raises(NoPlanError, match="No plan fits") as caught:
        Piper().plan(job)
    assert caught.value.given.startswith(f"{least / 2**30:.1f} GiB")
    assert share_that_fits(job, Piper().candidates(job)) == 0.0
    with pytest.raises(NoPlanError, match="no plan for this job"):
        fastest(job, [])


def test_equal_times_are_decided_by_the_smaller_group_whatever_the_order():
    job = tiny_job(half_rows=0.0)
    fits = [plan for plan in legal_plans(job, tensor=False) if stage_bytes(job, plan) <= job.room_bytes]
    assert fastest(job, fits) == fastest(job, fits[::-1])
    same = [Plan(1, 1, 1, 16, 1, False, shards, "flat") for shards in (1, 0)]
    assert step_cost(job, same[0]) == step_cost(job, same[1])
    assert fastest(job, same).shards == 0


def test_stages_gain_nothing_where_all_links_are_equal_and_memory_is_no_matter():
    frontier = machine("Frontier")
    even = replace(
        frontier,
        levels=tuple(replace(each, alpha_s=0.0, bytes_per_s=1e15, shared=False, links=1) for each in frontier.levels),
    )
    job = tiny_job(shape=LARGE, machine=even, ranks=64, batch=256, tokens=1024)
    ours, pure = (step_cost(job, each.plan(job)) for each in (Piper(), Searched()))
    assert ours.time_s == pytest.approx(pure.time_s, rel=0.02)


def test_slow_networks_make_groups_small_and_pipelines_long():
    shape = Shape(
        layers=16, hidden=4096, heads=32, ffn=2048, experts=256, per_token=8, shared=0, attention=4 * 4096**2,
        pair_flops=4 * 4096,
    )  # fmt: skip
    frontier = machine("Frontier")
    plans = []
    for slower in (1.0, 100.0):
        levels = (frontier.levels[0], *(replace(e, bytes_per_s=e.bytes_per_s / slower) for e in frontier.levels[1:]))
        job = tiny_job(shape=shape, machine=replace(frontier, levels=levels), ranks=64, batch=1024, tokens=4096)
        plans.append(Piper().plan(job))
    assert plans[1].experts <= 8
    assert plans[1].pipeline > 1
