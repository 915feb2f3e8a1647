"""Capacities from formulas, and room beside the weights."""

import pytest
from tests.serving.tiers.conftest import TIERS

from wavetank.errors import BadValueError
from wavetank.serving.tiers.interface import DECODE, PREFILL, Group
from wavetank.serving.tiers.profile import CHUNK, SAFE, Hardware, largest_chunk, units_of


def test_a_full_copy_leaves_less_room_than_slices_and_the_same_at_degree_one(hardware):
    assert hardware.room_tokens(1, True) == hardware.room_tokens(1, False)
    assert hardware.room_tokens(4, True) == pytest.approx(4 * hardware.room_tokens(1, True), abs=4)
    assert hardware.room_tokens(4, False) > 1.4 * hardware.room_tokens(4, True)


def test_a_full_copy_of_70_billion_parameters_does_not_fit_into_80_gb():
    large = Hardware(device="H100-SXM", model="Llama-3.1-70B", gpus=8, degrees=(4, 8))
    with pytest.raises(BadValueError, match="full copy"):
        large.room_tokens(4, True)
    assert large.room_tokens(4, False) > 0


def test_the_largest_batch_is_within_the_objective_and_one_more_is_not(hardware):
    tier, step = TIERS[0], hardware.step_time(2)
    batch = hardware.largest_batch(tier, 2, True)
    context = tier.prompt_tokens + tier.output_tokens / 2
    assert step.seconds(batch, int(batch * context)) <= SAFE * tier.tpot_s
    assert step.seconds(batch + 1, int((batch + 1) * context)) > SAFE * tier.tpot_s


def test_chunks_fill_the_step_up_to_the_bound(hardware):
    step, tier = hardware.step_time(1), TIERS[1]
    chunk = largest_chunk(step, 8, 8000, tier, 0.05)
    assert 0 < chunk < CHUNK
    assert step.seconds(8, 8000, chunk, chunk * 1000) <= 0.05 < step.seconds(8, 8000, chunk + 1, (chunk + 1) * 1000)


def test_a_tight_objective_per_token_wants_a_higher_degree_and_a_loose_one_does_not(hardware):
    rates = hardware.rates(TIERS, True)
    assert rates[Group(0, 2)] / 2 > 1.2 * rates[Group(0, 1)]
    assert rates[Group(1, 4)] / 4 < rates[Group(1, 1)]


def test_units_of_two_roles_keep_up_what_their_scarcer_role_does(hardware):
    rates = hardware.rates(TIERS, True)
    for unit in units_of(rates, 4):
        assert unit.gpus <= 4
        if unit.prefill:
            first, second = rates[Group(unit.tier, unit.tp, PREFILL)], rates[Group(unit.tier, unit.tp, DECODE)]
            assert unit.per_s == min(unit.prefill * first, unit.decode * second)


@pytest.mark.parametrize(
    "wrong", [{"gpus": 6}, {"gpus": 0}, {"degrees": ()}, {"degrees": (3,)}, {"degrees": (16,)}, {"degrees": (8,)}]
)
def test_hardware_that_cannot_be_divided_is_refused(wrong):
    with pytest.raises(BadValueError):
        Hardware(**{"device": "H100-SXM", "model": "Qwen3-14B", "gpus": 4, "degrees": (1, 2)} | wrong)
