"""What a step takes: by hand on a small machine, the bubble of a simulated pipeline, and limits."""

from dataclasses import replace

import pytest
from tests.training.plans.test_interface import TINY, tiny_job

from wavetank.platforms.machines import machine
from wavetank.training.plans.costs import (
    exchange_s,
    forget_prices,
    layer_compute_s,
    mfu,
    ring_s,
    stage_send_s,
    step_cost,
)
from wavetank.training.plans.exchange import flat_s
from wavetank.training.plans.interface import Plan, legal_plans
from wavetank.workloads.pipelines import pipeline_graph


def test_a_plan_alone_on_a_rank_computes_and_nothing_else():
    job = tiny_job(ranks=1, batch=4, half_rows=0.0, product_share=1.0)
    cost = step_cost(job, Plan(1, 1, 1, 1, 2, False, 0, "flat"))
    peak = job.machine.device.bf16_flops_per_s
    met = TINY.attention + 2 * 3 * 64 * 96
    assert cost.time_s == pytest.approx(4 * 32 * 4 * (6 * met + 3 * 4 * 64 * 32 / 2) / peak)
    assert cost.time_s == cost.compute_s
    assert mfu(job, cost.time_s) == pytest.approx(1.0)


def test_products_of_few_rows_are_slow_and_experts_have_the_rows_of_their_group():
    job = tiny_job(half_rows=32.0, product_share=1.0)
    best = job.machine.device.bf16_flops_per_s
    alone = layer_compute_s(job, Plan(1, 1, 1, 16, 1, False, 0, "flat"))
    group = layer_compute_s(job, Plan(1, 8, 1, 2, 1, False, 0, "flat"))
    dense, routed = 2 * TINY.attention * 32 / best, 2 * 2 * TINY.expert * 32 / best
    pairs = TINY.pair_flops * 32 * 32 / 2 / best
    # 32 tokens, two of eight experts each: 8 rows an expert, or 64 from eight ranks.
    assert alone == pytest.approx(2 * dense + 5 * routed + pairs)
    assert group == pytest.approx(2 * dense + 1.5 * routed + pairs)


def test_the_parts_of_a_step_add_up():
    job = tiny_job()
    for plan in legal_plans(job):
        cost = step_cost(job, plan)
        slots, stages = job.microbatches(plan), plan.pipeline
        parts = cost.compute_s + cost.exchange_s + cost.tensor_s + cost.send_s + cost.gather_s
        assert cost.bubble_s == pytest.approx(parts * (stages - 1) / slots)
        assert cost.time_s == pytest.approx(parts + cost.bubble_s + cost.gradient_s)
        assert (cost.exchange_s > 0) == (plan.experts > 1)
        assert (cost.tensor_s > 0) == (plan.tensor > 1)
        assert (cost.send_s > 0) == (stages > 1)
        assert (cost.gather_s > 0) <= (plan.shards == 3)


def test_the_bubble_is_that_of_a_simulated_pipeline():
    job = tiny_job()
    plan = Plan(4, 2, 1, 2, 1, False, 0, "flat")
    cost = step_cost(job, plan)
    slots = job.microbatches(plan)
    graph = pipeline_graph(schedule="1f1b", stages=4, microbatches=slots, forward_ps=1000, backward_ps=2000)
    simulated = graph.times().makespan_ps
    busy = slots * 3000
    assert (simulated - busy) / simulated == pytest.approx(3 / (slots + 3))
    slots_s = cost.time_s - cost.gradient_s
    assert cost.bubble_s / slots_s == pytest.approx((simulated - busy) / simulated)


def test_stages_with_a_layer_less_wait_less_while_the_pipeline_fills():
    plan = Plan(4, 2, 1, 2, 1, True, 3, "flat")
    # Two layers a stage, 2 + 2 + 1 + 1, and one a stage; microbatches take a slot of the fullest stage.
    full, uneven, less = (
        step_cost(tiny_job(shape=replace(TINY, layers=layers)), plan) for layers in (8, 6, 4)
    )
    assert uneven.bubble_s == pytest.approx((full.bubble_s + 2 * less.bubble_s) / 3)
    assert less.bubble_s < full.bubble_s
    assert uneven.time_s - uneven.bubble_s == pytest.approx(full.time_s - full.bubble_s)


def test_computing_again_adds_a_forward_pass_and_two_exchanges():
    job = tiny_job(half_rows=0.0)
    plain, again = (step_cost(job, Plan(1, 8, 1, 2, 1, each, 0, "flat")) for each in (False, True))
    assert again.compute_s == pytest.approx(plain.compute_s * 4 / 3)
    assert again.exchange_s == pytest.approx(plain.exchange_s * 6 / 4)
    assert again.gradient_s == plain.gradient_s


def test_an_exchange_has_the_tokens_copies_of_a_microbatch():
    job = tiny_job(ranks=8)
    plan = Plan(1, 8, 1, 1, 2, False, 0, "flat")
    assert exchange_s(job, plan) == flat_s(job.fabric, 8, 1, 2 * 2 * 32 * 2 * 64)
    assert exchange_s(job, Plan(1, 1, 1, 8, 2, False, 0, "flat")) == 0.0


def test_rings_take_rounds_between_neighbours_and_groups_in_between_share_the_network():
    fabric = machine("Frontier").fabric(16)
    assert ring_s(fabric, 1, 1, 100) == 0.0
    assert ring_s(fabric, 8, 1, 8 * 10**6) == pytest.approx(7 * (2e-6 + 1e6 / 1e11))
    # Two ranks of each, eight groups that cross at once.
    assert ring_s(fabric, 2, 8, 2 * 10**6) == pytest.approx(4e-6 + 8 * 1e6 / 1e11)
    assert stage_send_s(fabric, 8, 10**6) == pytest.approx(4e-6 + 8 * 1e6 / 1e11)


def test_shards_of_weights_are_gathered_every_microbatch_and_sums_are_made_once_a_step():
    job = tiny_job()
    once, twice = (step_cost(replace(job, batch=batch), Plan(1, 2, 1, 8, 1, False, 3, "flat")) for batch in (16, 32))
    assert twice.gather_s == pytest.approx(2 * once.gather_s)
    assert twice.gradient_s == once.gradient_s == 0.0
    sums = [
        step_cost(replace(job, batch=batch), Plan(1, 2, 1, 8, 1, False, 0, "flat")).gradient_s for batch in (16, 32)
    ]
    assert sums[0] == sums[1] > 0
    # Without anything hidden, gathering twice and scattering once is three halves of summing.
    assert once.gather_s == pytest.approx(1.5 * sums[0])


def test_prices_are_kept_until_they_are_forgotten():
    fabric = machine("Frontier").fabric(16)
    assert ring_s(fabric, 8, 1, 12_345) == ring_s(fabric, 8, 1, 12_345)
    assert ring_s.cache_info().currsize > 0
    forget_prices()
    assert ring_s.cache_info().currsize == flat_s.cache_info().currsize == 0
