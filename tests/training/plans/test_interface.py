"""Shapes, plans and jobs: known sizes, what is legal, and what is refused."""

import math
from dataclasses import replace

import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import model
from wavetank.platforms.machines import machine
from wavetank.training.plans.interface import SHARDS, Job, Plan, Shape, divisors, legal_plans

TINY = Shape(
    layers=4, hidden=64, heads=4, ffn=96, experts=8, per_token=2, shared=0, attention=4 * 64**2, pair_flops=4 * 64
)


def tiny_job(**words):
    given = {"shape": TINY, "machine": machine("Frontier"), "ranks": 16, "batch": 32, "tokens": 32}
    return Job(**(given | words))


def test_mixtral_has_the_parameters_of_the_formula_and_a_little_less_with_grouped_heads():
    mixtral = model("Mixtral-8x7B")
    assert 16 * Shape.of(mixtral, paper=True).parameters == pytest.approx(755.9e9, rel=1e-3)
    assert Shape.of(mixtral).parameters == pytest.approx(mixtral.parameters, rel=0.01)
    assert Shape.of(mixtral).parameters < mixtral.parameters


def test_operations_are_six_a_parameter_that_a_token_meets_and_those_of_causal_attention():
    shape = Shape.of(model("DeepSeek-V3"))
    met = shape.attention + 9 * 3 * 7168 * 2048
    assert shape.flops_per_token(4096) == 61 * (6 * met + 3 * 2 * 128 * (2 * 128 + 64) * 4096 // 2)


def test_a_dense_model_has_no_experts():
    with pytest.raises(BadValueError, match="no experts"):
        Shape.of(model("Llama-3.1-8B"))


def by_hand(job, tensor):
    """All plans of powers of two, written as nested loops without a thought."""
    found = set()
    sizes = [2**k for k in range(5)]
    for pipeline in sizes:
        if pipeline > job.shape.layers:
            continue
        for experts in (1, 2, 4, 8):
            for shards_of in (1, 2, 4) if tensor else (1,):
                for data in sizes:
                    if pipeline * experts * shards_of * data != job.ranks:
                        continue
                    for micro in (1, 2, 4, 8):
                        if job.batch % (experts * data * micro):
                            continue
                        for checkpoint in (False, True):
                            for shards in SHARDS:
                                found.add(Plan(pipeline, experts, shards_of, data, micro, checkpoint, shards, "flat"))
                                if experts * shards_of > 8:
                                    found.add(
                                        Plan(pipeline, experts, shards_of, data, micro, checkpoint, shards, "halo")
                                    )
    return found


@pytest.mark.parametrize("tensor", [True, False])
def test_legal_plans_are_those_of_nested_loops_each_once(tensor):
    job = tiny_job()
    found = list(legal_plans(job, tensor=tensor))
    assert len(found) == len(set(found))
    assert set(found) == by_hand(job, tensor)
    for plan in found:
        job.check(plan)
        assert job.microbatches(plan) * plan.micro * plan.experts * plan.data == job.batch


def test_without_stages_there_is_one_and_microbatches_have_a_limit():
    plans = list(legal_plans(tiny_job(), pipeline=False, exchanges=("flat",), largest_micro=1))
    assert {each.pipeline for each in plans} == {1}
    assert {each.micro for each in plans} == {1}
    assert {each.exchange for each in plans} == {"flat"}


RIGHT = Plan(2, 4, 1, 2, 1, False, 0, "flat")


@pytest.mark.parametrize("change", [
    {"data": 4}, {"pipeline": 8, "experts": 1}, {"experts": 16, "pipeline": 1, "data": 1}, {"micro": 3}, {"shards": 2},
    {"exchange": "ring"}, {"micro": 0}, {"pipeline": 1, "experts": 1, "tensor": 16, "data": 1},
])  # fmt: skip
def test_a_plan_of_another_job_is_refused(change):
    job = tiny_job()
    job.check(RIGHT)
    with pytest.raises(BadValueError, match="no plan"):
        job.check(RIGHT._replace(**change))


@pytest.mark.parametrize("change", [
    {"ranks": 0}, {"batch": True}, {"tokens": 2.0}, {"ranks": 12}, {"memory_share": math.nan}, {"product_share": 0.0},
    {"hidden_share": 1.5}, {"half_rows": math.inf}, {"half_rows": -1.0},
])  # fmt: skip
def test_a_job_that_cannot_be_is_refused(change):
    with pytest.raises(BadValueError):
        replace(tiny_job(), **change)


def test_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
