"""Blocks of real models: known sizes, and the work of a block counted again."""

from __future__ import annotations

import dataclasses

import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device
from wavetank.serving.offload.models import Placement, block_of

PLACED = Placement(device=device("H100-PCIe"), ranks=2, flops_share=0.5, link_share=0.5, alpha_s=1e-6)


def test_a_block_of_the_diffusion_transformer_weighs_0_7_gb() -> None:
    case = PLACED.case("Wan2.1-T2V-14B", 1000)
    assert case.layers == 40
    assert case.weight_bytes == 2 * (8 * 5120**2 + 2 * 5120 * 13824)
    assert case.weight_bytes == pytest.approx(0.7e9, rel=0.01)


def test_blocks_of_a_language_model_are_its_parameters_without_the_vocabulary() -> None:
    case = PLACED.case("Llama-3.1-70B", 1000)
    parameters = 70_553_706_496 - 2 * 128256 * 8192
    assert case.layers * case.weight_bytes / 2 == pytest.approx(parameters, rel=1e-3)


def test_phases_are_arithmetic_and_exchanges_counted_again() -> None:
    case = PLACED.case("Wan2.1-T2V-14B", 2000)
    rate, h = 7.565e14 * 0.5, 5120
    first, there, attention, back, rest = case.phases
    assert first.ps == pytest.approx(1000 * 6 * h * h / rate * 1e12, rel=1e-7)
    assert attention.ps == pytest.approx(2000 * 2000 * 4 * h / 2 / rate * 1e12, rel=1e-7)
    # Of the 5 matrices besides the feed-forward part a token passes 3: its output, and query and output of attention to
    # the text, whose keys and values are made of 512 tokens on each device.
    token, text = 2 * (3 * h * h + 2 * h * 13824) + 4 * h * 512, 512 * 2 * 2 * h * h
    assert rest.ps == pytest.approx((1000 * token + text) / rate * 1e12, rel=1e-7)
    # Each device sends half of what it holds to the other, over half of 64 GB/s, after 10 us.
    assert there.ps == pytest.approx((1e-5 + 1000 * 3 * h * 2 / 2 / 3.2e10) * 1e12, rel=1e-6)
    assert back.ps == pytest.approx((1e-5 + 1000 * h * 2 / 2 / 3.2e10) * 1e12, rel=1e-6)
    assert case.link.bytes_per_s == 32_000_000_000
    assert case.link.alpha_ps == 1_000_000


def test_attention_of_a_prompt_is_half_of_all_pairs() -> None:
    plain, causal = block_of("Llama-2-7B"), PLACED.case("Llama-2-7B", 2000).phases[2].ps
    assert causal == pytest.approx(2000 * 2001 / 2 * plain.pair_flops / 2 / (7.565e14 * 0.5) * 1e12, rel=1e-7)
    assert plain.pair_flops == 4 * 4096


def test_collectives_share_the_link_where_devices_have_no_faster_one() -> None:
    assert PLACED.case("Wan2.1-T2V-14B", 1000).contended
    fast = dataclasses.replace(PLACED, device=device("H100-SXM"))
    assert not fast.case("Wan2.1-T2V-14B", 1000).contended


def test_a_single_device_exchanges_nothing() -> None:
    case = dataclasses.replace(PLACED, ranks=1).case("Wan2.1-T2V-14B", 1001)
    assert case.collective_ps == 0
    assert len(case.phases) == 3


def test_models_and_tokens_that_do_not_fit_are_refused() -> None:
    for name in ("DeepSeek-V3", "Mixtral-8x7B", "Wan"):
        with pytest.raises(BadValueError, match="No blocks"):
            block_of(name)
    for tokens in (0, 1, 3, -2):
        with pytest.raises(BadValueError, match="evenly"):
            PLACED.case("Wan2.1-T2V-14B", tokens)


@pytest.mark.parametrize(("model", "ranks"), [("Wan2.1-T2V-14B", 3), ("Wan2.1-T2V-14B", 16), ("Llama-3.1-8B", 5)])
def test_heads_that_devices_cannot_share_evenly_are_refused(model: str, ranks: int) -> None:
    with pytest.raises(BadValueError, match="heads of attention"):
        dataclasses.replace(PLACED, ranks=ranks).case(model, 240)
    assert dataclasses.replace(PLACED, ranks=8).case(model, 240).layers == block_of(model).layers
