from __future__ import annotations

import math

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.platforms import device, kv_capacity_tokens, model


def test_capacity_is_what_the_share_of_memory_leaves_beside_the_weights() -> None:
    room = 80 * 2**30 * 0.9 - 2e9 - 2 * 8_030_261_248
    assert kv_capacity_tokens("H100-SXM", "Llama-3.1-8B") == math.floor(room / 131_072)


def test_tensor_parallelism_divides_weights_and_heads() -> None:
    room = 80 * 2**30 * 0.9 - 2e9 - 2 * 70_553_706_496 / 4
    assert kv_capacity_tokens("H100-SXM", "Llama-3.1-70B", 4) == math.floor(room / (327_680 / 4))


def test_heads_beyond_the_kv_heads_are_copied() -> None:
    room = 80 * 2**30 * 0.9 - 2e9 - 2 * 70_553_706_496 / 16
    assert kv_capacity_tokens("H100-SXM", "Llama-3.1-70B", 16) == math.floor(room / (327_680 / 8))


def test_the_latent_cache_is_kept_whole_on_every_device() -> None:
    room = 141 * 2**30 * 0.9 - 2e9 - 671_026_419_200 / 8
    assert kv_capacity_tokens("H200-SXM", "DeepSeek-V3", 8, precision="fp8") == math.floor(room / 70_272)


def test_weights_that_do_not_fit_are_refused_with_the_figures() -> None:
    with pytest.raises(BadValueError) as caught:
        kv_capacity_tokens(device("L40S"), model("Llama-3.1-70B"))
    text = str(caught.value)
    assert "141 GB" in text
    assert "tensor_parallel" in text
    assert "L40S" in text


@pytest.mark.parametrize(
    "change",
    [{"memory_share": 0.0}, {"memory_share": 1.01}, {"reserved_bytes": -1}, {"precision": "int3"}],
)
def test_parameters_out_of_range_are_refused_by_name(change: dict[str, object]) -> None:
    with pytest.raises(BadValueError, match=next(iter(change))):
        kv_capacity_tokens("H100-SXM", "Llama-3.1-8B", **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("degree", [0, -1, 3, 1.0, True])
def test_tensor_parallelism_must_divide_the_heads(degree: int) -> None:
    with pytest.raises(BadValueError, match="tensor_parallel"):
        kv_capacity_tokens("H100-SXM", "Llama-3.1-8B", degree)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        kv_capacity_tokens("H1000", "Llama-3.1-8B")


def test_stages_of_a_pipeline_leave_room_for_as_many_tokens_more() -> None:
    alone = kv_capacity_tokens("H100-SXM", "Llama-3.1-8B")
    # A stage holds half of the weights, and half of what a token takes.
    room = 85_899_345_920 * 0.9 - 2e9 - model("Llama-3.1-8B").parameters
    assert kv_capacity_tokens("H100-SXM", "Llama-3.1-8B", pipeline_parallel=2) == int(room // 65_536) > 2 * alone
    # 32 layers in three stages: eleven in the largest.
    assert kv_capacity_tokens("H100-SXM", "Llama-3.1-8B", pipeline_parallel=3) < 3 / 2 * int(room // 65_536) * 1.1
    for stages in (0, 33):
        with pytest.raises(BadValueError, match="at least one layer"):
            kv_capacity_tokens("H100-SXM", "Llama-3.1-8B", pipeline_parallel=stages)
