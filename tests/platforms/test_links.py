from __future__ import annotations

import math

import pytest

from wavetank.errors import BadValueError
from wavetank.platforms import device, model
from wavetank.platforms.links import Link, all_reduce_s, device_link, exchange_experts_s, gather_logits_s

HOPS = Link(bytes_per_s=1e9, latency_s=1e-5, per_hop=True)
ONCE = Link(bytes_per_s=1e9, latency_s=1e-5)


@pytest.mark.parametrize(("devices", "hops"), [(2, 2), (4, 6), (8, 14)])
def test_a_ring_sums_in_twice_as_many_hops_as_it_gathers(devices: int, hops: int) -> None:
    # A part of 1/n of the bytes goes over every hop; gathered are the bytes of every other device.
    assert HOPS.all_reduce_s(devices, 8e6) == pytest.approx(hops * (1e-5 + 8e6 / devices / 1e9))
    assert HOPS.all_gather_s(devices, 8e6) == pytest.approx(hops / 2 * (1e-5 + 8e6 / 1e9))


def test_a_measured_start_up_counts_once() -> None:
    assert HOPS.all_reduce_s(4, 8e6) - ONCE.all_reduce_s(4, 8e6) == pytest.approx(5e-5)
    assert ONCE.all_gather_s(8, 0.0) == pytest.approx(1e-5)


def test_the_link_of_a_data_sheet_has_its_share_and_its_latency() -> None:
    card = device("RTXPRO6000")
    assert device_link(card, 0.5) == Link(bytes_per_s=3.2e10, latency_s=1e-5)
    assert device_link(card, 1.0, 3e-5) == Link(bytes_per_s=6.4e10, latency_s=3e-5)


def test_a_step_sums_twice_a_layer_and_the_embedding_once() -> None:
    llama = model("Llama-3.1-8B")
    fixed_s, per_token_s = all_reduce_s(HOPS, llama, 2)
    assert fixed_s == pytest.approx(65 * 2e-5)
    assert per_token_s == pytest.approx(65 * 2 * 4096 / 1e9)


def test_the_shards_of_the_logits_come_together_once_a_step() -> None:
    fixed_s, per_row_s = gather_logits_s(HOPS, model("Llama-3.1-8B"), 4)
    assert fixed_s == pytest.approx(3e-5)
    assert per_row_s == pytest.approx(3 * 2 * 128256 / 4 / 1e9)


def test_shared_experts_are_reached_twice_a_layer_that_has_them() -> None:
    fixed_s, per_token_s = exchange_experts_s(HOPS, model("DeepSeek-V3"), 2)
    assert fixed_s == pytest.approx(2 * 58 * 1e-5)
    assert per_token_s == pytest.approx(2 * 58 * 2 * 7168 / 1e9)


@pytest.mark.parametrize(
    "figures",
    [
        {"bytes_per_s": 0.0}, {"bytes_per_s": math.nan}, {"bytes_per_s": math.inf}, {"bytes_per_s": True},
        {"latency_s": -1e-6}, {"latency_s": math.nan}, {"latency_s": "1"},
    ],
)  # fmt: skip
def test_a_link_without_a_bandwidth_or_with_a_negative_latency_is_refused(figures: dict[str, float]) -> None:
    with pytest.raises(BadValueError, match=next(iter(figures))):
        Link(**{"bytes_per_s": 1e9, "latency_s": 0.0, **figures})
