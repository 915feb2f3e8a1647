"""Memory: the paper's figures, terms that add up, and bytes that a small model really takes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.training.plans.test_interface import TINY, tiny_job

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import model
from wavetank.platforms.machines import machine
from wavetank.training.plans.interface import Job, Plan, Shape, legal_plans
from wavetank.training.plans.memory import fits, layer_activations, layers_of, stage_bytes

MIXTRAL = Shape.of(model("Mixtral-8x7B"), paper=True)
PAPER = Plan(4, 8, 1, 1, 1, False, 0, "flat")


def mixtral_job(**words):
    given = {"shape": MIXTRAL, "machine": machine("Frontier"), "ranks": 32, "batch": 64, "counted": False}
    return Job(**(given | words))


def test_states_of_mixtral_on_four_stages_and_eight_ranks_of_experts():
    # 32 / 4 layers: 64 d^2 of attention, and one of eight experts with 48 d f.
    states = 8 * (64 * 4096**2 + 48 * 4096 * 14336)
    assert states == pytest.approx(31.14e9, rel=1e-3)
    # Without activations of more than one token, states are all but nothing.
    small = mixtral_job(tokens=1)
    assert stage_bytes(small, PAPER) == pytest.approx(states, rel=1e-3)


def test_activations_of_mixtral_with_scores_and_without():
    whole = layer_activations(MIXTRAL, micro=1, tokens=4096, fused=False, experts=8)
    fused = layer_activations(MIXTRAL, micro=1, tokens=4096, fused=True, experts=8)
    assert whole == pytest.approx(2.445e9, rel=1e-3)
    assert whole - fused == 4 * 32 * 4096**2 == pytest.approx(2.147e9, rel=1e-3)
    states = 8 * (64 * 4096**2 + 48 * 4096 * 14336)
    first = stage_bytes(mixtral_job(fused=False), PAPER) - states
    assert first == 8 * 4 * whole == pytest.approx(78.2e9, rel=1e-3)
    assert first > machine("Frontier").device.memory_bytes
    assert stage_bytes(mixtral_job(), PAPER) - states == pytest.approx(9.5e9, rel=5e-3)


def test_the_first_stage_holds_most_and_each_later_one_a_microbatch_less():
    job = mixtral_job()
    held = [stage_bytes(job, PAPER, stage) for stage in range(4)]
    one = 8 * layer_activations(MIXTRAL, micro=1, tokens=4096, fused=True, experts=8)
    assert [a - b for a, b in pairwise(held)] == [one] * 3
    with pytest.raises(BadValueError, match="no such stage"):
        stage_bytes(job, PAPER, 4)


def test_no_more_microbatches_are_in_flight_than_there_are():
    few, many = (stage_bytes(mixtral_job(batch=batch), PAPER) for batch in (16, 64))
    one = 8 * layer_activations(MIXTRAL, micro=1, tokens=4096, fused=True, experts=8)
    assert many - few == 2 * one


def test_experts_of_a_group_compute_tokens_of_all_its_ranks():
    counted, paper = stage_bytes(mixtral_job(counted=True), PAPER), stage_bytes(mixtral_job(), PAPER)
    routed = 2 * 4096 * 2 * (3 * 14336 + 4096)
    assert counted - paper == 8 * 4 * (routed - routed // 8)


def test_shards_divide_states_among_replicas_and_a_gathered_layer_remains():
    job = tiny_job(tokens=1)
    plans = [Plan(2, 2, 1, 4, 1, False, shards, "flat") for shards in (0, 1, 3)]
    dense, routed = 2 * TINY.dense, 2 * 4 * TINY.expert
    activations = stage_bytes(job, plans[0]) - 16 * (dense + routed)
    assert 0 < activations < 20_000
    assert stage_bytes(job, plans[1]) - activations == 4 * (dense + routed) + 12 * (dense // 8 + routed // 4)
    gathered = 2 * (dense + routed) // 2
    assert stage_bytes(job, plans[2]) - activations == 16 * (dense // 8 + routed // 4) + gathered


def test_a_checkpoint_keeps_a_layers_input_and_one_layer_whole():
    job = tiny_job()
    plain, saved = (stage_bytes(job, Plan(2, 2, 1, 4, 1, each, 0, "flat")) for each in (False, True))
    whole = layer_activations(TINY, micro=1, tokens=32, fused=True)
    assert plain - saved == 2 * 2 * whole - (2 * 2 * 2 * 32 * 64 + whole)


def test_layers_are_as_even_as_can_be():
    shape = replace(TINY, layers=7)
    plan = Plan(3, 1, 1, 1, 1, False, 0, "flat")
    assert [layers_of(shape, plan, stage) for stage in range(3)] == [3, 2, 2]


def test_what_fits_has_room_to_the_byte():
    job = tiny_job()
    for plan in legal_plans(job):
        needs = stage_bytes(job, plan)
        memory = job.machine.device.memory_bytes
        assert fits(replace(job, memory_share=min(1.0, (needs + 1) / memory)), plan)
        assert not fits(replace(job, memory_share=(needs - 1) / memory), plan)


def test_a_small_model_takes_the_bytes_of_its_states_and_activations():
    """A layer with two of eight experts a token, AdamW in mixed precision, counted tensor by tensor."""
    torch = pytest.importorskip("torch", reason="needs the library torch")
    from tests.training.plans.counted_layer import counted_bytes

    shape = replace(TINY, hidden=64, ffn=192, layers=1)
    states, activations = counted_bytes(torch, shape, tokens=128)
    assert states == 16 * shape.parameters
    predicted = layer_activations(shape, micro=1, tokens=128, fused=False)
    assert activations == pytest.approx(predicted, rel=0.15)
