from __future__ import annotations

import csv
import gzip
import math
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit, types

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.platforms import FittedStepTime, RooflineStepTime, device, model, step_ps
from wavetank.platforms.links import Link
from wavetank.platforms.step_time import STEP_SIGNATURE, StepTime

IDEAL = {"overhead_s": 0.0, "flops_efficiency": 1.0, "bandwidth_efficiency": 1.0, "link_efficiency": 1.0}
LLAMA = RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B", **IDEAL)
LLAMA_DENSE = 32 * (4096 * (32 + 8 + 8 + 32) * 128 + 3 * 4096 * 14336)
LLAMA_HEAD = 128256 * 4096

STEP_TIMES: dict[str, StepTime] = {
    "fitted": FittedStepTime(
        overhead_s=4e-3, per_request_s=1.23456789e-5, per_context_token_s=2.3456e-8, per_prefill_token_s=3e-5,
        per_prefill_pair_s=1e-10,
    ),
    "nothing": FittedStepTime(overhead_s=0.0),
    "roofline": RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B"),
    "roofline in parallel": RooflineStepTime(device="A100-SXM-80GB", model="Llama-3.1-70B", tensor_parallel=4),
    "roofline with experts": RooflineStepTime(device="RTXPRO6000", model="Qwen3-30B-A3B"),
    "roofline with everything": RooflineStepTime(
        device="RTXPRO6000", model="Qwen3-30B-A3B", overlap=0.6, kv_bandwidth_efficiency=0.7, expert_efficiency=0.5,
        layer_s=2e-5, sequence_s=5e-6,
    ),
    "roofline with latent attention": RooflineStepTime(
        device="H200-SXM", model="DeepSeek-V3", tensor_parallel=8, precision="fp8"
    ),
}  # fmt: skip

batches = st.tuples(st.integers(0, 2000), st.integers(0, 10**8), st.integers(0, 10**5), st.integers(0, 10**10))


@njit(types.int64(types.FunctionType(STEP_SIGNATURE), types.float64[::1], types.int64, types.int64, types.int64))
def _through_a_pointer(function, table, R, P, S):  # type: ignore[no-untyped-def]
    return function(R, 0, P, S, table)


@pytest.mark.parametrize("name", STEP_TIMES)
@settings(max_examples=60, deadline=None)
@given(batch=batches)
def test_time_is_a_function_without_context_plus_a_whole_slope_times_the_context(
    name: str, batch: tuple[int, int, int, int]
) -> None:
    step_time = STEP_TIMES[name]
    R, C, P, S = batch
    slope = step_time.context_slope_ps
    assert isinstance(slope, int)
    assert slope >= 0
    without = step_time.function(R, 0, P, S, step_time.table)
    assert isinstance(without, int)
    assert without >= 1
    assert step_ps(step_time, R, C, P, S) == without + slope * C
    assert step_time.function(R, C, P, S, step_time.table) == without + slope * C
    assert step_time.seconds(R, C, P, S) == (without + slope * C) / 10**12


@pytest.mark.parametrize("name", STEP_TIMES)
@settings(max_examples=60, deadline=None)
@given(batch=batches, more=batches)
def test_more_of_anything_never_takes_less_time(
    name: str, batch: tuple[int, int, int, int], more: tuple[int, int, int, int]
) -> None:
    step_time = STEP_TIMES[name]
    least = step_ps(step_time, *batch)
    for i in range(4):
        grown = list(batch)
        grown[i] += more[i]
        assert step_ps(step_time, *grown) >= least


@pytest.mark.parametrize("name", STEP_TIMES)
def test_a_compiled_simulator_can_call_it_through_a_pointer(name: str) -> None:
    step_time = STEP_TIMES[name]
    table = step_time.table
    assert table.dtype == np.float64
    assert table.flags.c_contiguous
    assert _through_a_pointer(step_time.function, table, 7, 300, 60_000) == step_ps(step_time, 7, 0, 300, 60_000)
    # The readable Python of the function gives the same as the compiled one.
    assert step_time.function.py_func(7, 5, 300, 60_000, table) == step_ps(step_time, 7, 5, 300, 60_000)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", STEP_TIMES)
def test_pickles_and_compares_by_parameters(name: str) -> None:
    step_time = STEP_TIMES[name]
    again = pickle.loads(pickle.dumps(step_time))
    assert again == step_time
    assert hash(again) == hash(step_time)
    assert step_ps(again, 3, 4000) == step_ps(step_time, 3, 4000)


def test_k_decode_steps_in_closed_form_are_k_steps_bit_for_bit() -> None:
    step_time = STEP_TIMES["fitted"]
    R, C, k = 37, 51_234, 1000
    one_by_one = sum(step_ps(step_time, R, C + i * R) for i in range(k))
    closed = k * step_ps(step_time, R, C) + step_time.context_slope_ps * R * (k * (k - 1) // 2)
    assert closed == one_by_one


@pytest.mark.parametrize("bad", [(-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, -1, 0), (0, 0, 0, -1), (1.5, 0, 0, 0)])
def test_a_batch_with_a_count_that_is_none_is_refused(bad: tuple[int, int, int, int]) -> None:
    with pytest.raises(BadValueError, match="must be a whole number"):
        step_ps(STEP_TIMES["fitted"], *bad)


# Fitted


def test_fitted_time_is_the_sum_of_its_terms() -> None:
    step_time = FittedStepTime(
        overhead_s=1e-3, per_request_s=1e-5, per_context_token_s=2e-8, per_prefill_token_s=3e-5, per_prefill_pair_s=4e-9
    )
    assert step_ps(step_time, 10, 1000, 100, 5050) == 10**9 + 10 * 10**7 + 1000 * 20_000 + 100 * 3 * 10**7 + 5050 * 4000
    assert step_ps(FittedStepTime(overhead_s=0.0), 0, 0) == 1


def test_fit_recovers_the_coefficients_it_was_made_with() -> None:
    truth = STEP_TIMES["fitted"]
    rng = np.random.default_rng(7)
    points = rng.integers(0, [256, 300_000, 2048, 2_000_000], size=(200, 4))
    seconds = [truth.seconds(*map(int, point)) for point in points]
    for relative in (False, True):
        fit = FittedStepTime.fit(points, seconds, relative=relative)
        assert fit.r_squared == pytest.approx(1.0, abs=1e-9)
        assert fit.worst_relative_error < 1e-6
        assert fit.step_time.per_context_token_s == pytest.approx(2.3456e-8, rel=1e-6)
        assert fit.step_time.per_prefill_pair_s == pytest.approx(1e-10, rel=1e-4)


def test_fit_never_gives_a_negative_coefficient_and_reports_what_it_misses() -> None:
    points = np.array([[1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0], [4, 0, 0, 0], [5, 0, 0, 0]])
    fit = FittedStepTime.fit(points, [5.0, 4.0, 3.0, 2.0, 1.0])
    assert fit.step_time.per_request_s == 0.0
    assert fit.step_time.overhead_s == pytest.approx(3.0)
    assert fit.r_squared == pytest.approx(0.0, abs=1e-12)
    assert fit.worst_relative_error == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("points", "seconds"),
    [
        (np.zeros((6, 3)), np.ones(6)),
        (np.zeros((6, 4)), np.ones(5)),
        (np.zeros((4, 4)), np.ones(4)),
        (np.zeros((6, 4)), np.zeros(6)),
        (-np.ones((6, 4)), np.ones(6)),
        (np.zeros((6, 4)), np.full(6, np.nan)),
    ],
)
def test_fit_refuses_measurements_that_make_no_sense(points: np.ndarray, seconds: np.ndarray) -> None:
    with pytest.raises(BadValueError):
        FittedStepTime.fit(points, seconds)


@pytest.mark.parametrize("value", [-1e-9, math.inf, math.nan, "1ms", True])
def test_fitted_refuses_a_parameter_that_is_no_duration(value: float) -> None:
    with pytest.raises(BadValueError, match="per_request_s"):
        FittedStepTime(overhead_s=0.0, per_request_s=value)


# Roofline


def test_a_lone_decode_takes_the_time_to_read_the_weights() -> None:
    seconds = (2 * (LLAMA_DENSE + LLAMA_HEAD) + 131_072) / 3.35e12
    assert LLAMA.seconds(1, 0) == pytest.approx(seconds, rel=1e-9)
    assert seconds == pytest.approx(15.009e9 / 3.35e12, rel=1e-4)


def test_context_costs_the_time_to_read_its_cache() -> None:
    assert LLAMA.context_slope_ps == round(131_072 / 3.35e12 * 1e12)


def test_a_large_prompt_takes_the_time_of_its_arithmetic() -> None:
    P, S = 8192, 8192 * 8193 // 2
    arithmetic = 2 * LLAMA_DENSE * P + 4 * 32 * 4096 * S
    memory = 2 * LLAMA_HEAD + 131_072 * P
    assert LLAMA.seconds(0, 0, P, S) == pytest.approx(arithmetic / 9.89e14 + memory / 3.35e12, rel=1e-9)


def test_efficiencies_and_overhead_stretch_their_terms() -> None:
    slow = RooflineStepTime(
        device="H100-SXM", model="Llama-3.1-8B", overhead_s=1e-3, bandwidth_efficiency=0.5, flops_efficiency=0.5
    )
    assert slow.seconds(1, 0) == pytest.approx(1e-3 + 2 * LLAMA.seconds(1, 0), rel=1e-9)


def test_tensor_parallelism_divides_the_work_and_adds_two_all_reduces_a_layer() -> None:
    one = RooflineStepTime(device="H100-SXM", model="Llama-3.1-70B", **IDEAL)
    four = RooflineStepTime(
        device="H100-SXM", model="Llama-3.1-70B", tensor_parallel=4, all_reduce_latency_s=5e-6, **IDEAL
    )
    all_reduce = 161 * (5e-6 + 1.5 * 2 * 8192 * 64 / 4.5e11)
    logits = 5e-6 + 3 * 2 * 128256 / 4 * 64 / 4.5e11
    assert four.seconds(64, 0) == pytest.approx(one.seconds(64, 0) / 4 + all_reduce + logits, rel=1e-9)
    assert four.context_slope_ps == pytest.approx(one.context_slope_ps / 4, abs=1)


def test_a_link_that_is_known_counts_in_place_of_the_data_sheets() -> None:
    slow, fast = (
        RooflineStepTime(
            device="H100-SXM", model="Llama-3.1-70B", tensor_parallel=2,
            link=Link(bytes_per_s=speed, latency_s=0.0),
        )
        for speed in (1e10, 2e10)
    )  # fmt: skip
    sent_bytes = 161 * 2 * 8192 + 128256
    assert slow.seconds(64, 0) - fast.seconds(64, 0) == pytest.approx(64 * sent_bytes / 2e10, rel=1e-9)


def test_kv_heads_are_copied_beyond_their_number() -> None:
    def slope(degree: int) -> int:
        return RooflineStepTime(
            device="H100-SXM", model="Llama-3.1-70B", tensor_parallel=degree, **IDEAL
        ).context_slope_ps

    assert slope(16) == slope(8)


def test_experts_read_are_those_that_the_tokens_are_expected_to_touch() -> None:
    step_time = RooflineStepTime(device="RTXPRO6000", model="Qwen3-30B-A3B", **IDEAL)
    m = model("Qwen3-30B-A3B")

    def expert_bytes(tokens: int) -> float:
        rest = 2 * (m.dense_parameters + m.head_parameters) + m.kv_bytes_per_token * tokens
        return step_time.seconds(tokens, 0) * 1.792e12 - rest

    one_expert = 2 * m.expert_parameters / 128
    assert expert_bytes(1) == pytest.approx(8 * one_expert, rel=1e-6)
    assert expert_bytes(2) == pytest.approx((8 + 8 * 120 / 128) * one_expert, rel=1e-6)
    assert expert_bytes(100) == pytest.approx(128 * (1 - (120 / 128) ** 100) * one_expert, rel=1e-6)


def test_latent_attention_is_bound_by_whichever_limit_is_lower() -> None:
    def slope(degree: int) -> int:
        return RooflineStepTime(
            device="H200-SXM", model="DeepSeek-V3", tensor_parallel=degree, precision="fp8", **IDEAL
        ).context_slope_ps

    arithmetic = 2 * 61 * 128 * 1088 / 9.89e14
    assert slope(1) == round(arithmetic * 1e12)
    assert slope(8) == round(70_272 / 4.8e12 * 1e12)  # the cache is whole on every device, the heads are not


def test_fp8_halves_the_weights_and_doubles_the_rate() -> None:
    fp8 = RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B", precision="fp8", **IDEAL)
    write = 131_072 / 3.35e12
    assert fp8.seconds(1, 0) - write == pytest.approx((LLAMA.seconds(1, 0) - write) / 2, rel=1e-9)
    assert fp8.seconds(0, 0, 8192) < 0.51 * LLAMA.seconds(0, 0, 8192)
    with pytest.raises(BadValueError, match="8-bit"):
        RooflineStepTime(device="A100-SXM-80GB", model="Llama-3.1-8B", precision="fp8")


def test_names_and_objects_give_the_same_times() -> None:
    by_object = RooflineStepTime(device=device("H100-SXM"), model=model("Llama-3.1-8B"), **IDEAL)
    assert step_ps(by_object, 5, 5000, 100, 5050) == step_ps(LLAMA, 5, 5000, 100, 5050)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel", 3),
        ("tensor_parallel", 0),
        ("precision", "fp4"),
        ("overhead_s", -1e-3),
        ("flops_efficiency", 0.0),
        ("flops_efficiency", 1.1),
        ("bandwidth_efficiency", -0.5),
        ("link_efficiency", math.nan),
        ("all_reduce_latency_s", -1.0),
    ],
)
def test_roofline_refuses_a_parameter_out_of_range_by_name(name: str, value: object) -> None:
    with pytest.raises(BadValueError, match=name):
        RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B", **{name: value})  # type: ignore[arg-type]


def test_roofline_refuses_unknown_names() -> None:
    with pytest.raises(UnknownNameError):
        RooflineStepTime(device="H101", model="Llama-3.1-8B")
    with pytest.raises(UnknownNameError):
        RooflineStepTime(device="H100-SXM", model="Llama-9")


def estimates() -> list[dict[str, str]]:
    folder = Path(os.environ.get("WAVETANK_DATA", "")) / "gpu-specs-and-estimates"
    file = folder / "step_estimates.csv.gz"
    if not file.is_file():
        pytest.skip("data set gpu-specs-and-estimates is not on this machine")
    with gzip.open(file, "rt") as text:
        return list(csv.DictReader(text))


def test_roofline_is_near_predictions_from_measured_operators_on_nvlink_devices() -> None:
    # A roofline leaves out kernel inefficiencies that differ by shape; within a factor of 1.7 it is still the same
    # step.  PCIe devices are left out: the predictions' PCIe collectives cross sockets.
    names = {"h100_sxm": "H100-SXM", "h200_sxm": "H200-SXM", "a100_sxm": "A100-SXM-80GB"}
    ratios = []
    for row in estimates():
        if row["system"] not in names:
            continue
        step_time = RooflineStepTime(
            device=names[row["system"]],
            model=row["model"].split("/")[1].removeprefix("Meta-"),
            tensor_parallel=int(row["tp"]),
        )
        n, tokens = int(row["batch"]), int(row["context_tokens"])
        if row["phase"] == "decode_step":
            seconds = step_time.seconds(n, n * tokens)
        else:
            seconds = step_time.seconds(0, 0, n * tokens, n * tokens * (tokens + 1) // 2)
        ratios.append(seconds * 1e3 / float(row["latency_ms"]))
    assert len(ratios) > 100
    assert min(ratios) > 1 / 1.7
    assert max(ratios) < 1.7
    assert 0.85 < np.median(ratios) < 1.05


SHARED = {"device": "RTXPRO6000", "model": "Qwen3-30B-A3B", **IDEAL}


def test_engines_that_share_experts_read_their_part_of_the_weights() -> None:
    alone = RooflineStepTime(**SHARED, all_reduce_latency_s=0.0)
    both = RooflineStepTime(**SHARED, all_reduce_latency_s=0.0, expert_parallel=2)
    qwen, tokens = model("Qwen3-30B-A3B"), 500
    # So many tokens touch every expert, and reading the weights still takes longer than the arithmetic.
    saved = qwen.expert_parameters * 2 / 2 / 1.792e12
    sent = 2 * 48 * 2 * qwen.hidden * tokens / 6.4e10
    assert alone.seconds(tokens, 0) - both.seconds(tokens, 0) == pytest.approx(saved - sent, rel=1e-4)


def test_the_exchange_of_shared_experts_starts_twice_a_layer() -> None:
    slow, fast = (RooflineStepTime(**SHARED, all_reduce_latency_s=s, expert_parallel=4) for s in (1e-3, 0.0))
    assert slow.seconds(1, 0) - fast.seconds(1, 0) == pytest.approx(2 * 48 * 1e-3)


@pytest.mark.parametrize("workers", [0, 3, 256, True, 2.0])
def test_experts_that_do_not_divide_are_refused(workers: int) -> None:
    with pytest.raises(BadValueError, match="expert_parallel"):
        RooflineStepTime(**SHARED, expert_parallel=workers)
    with pytest.raises(BadValueError, match="expert_parallel"):
        RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B", expert_parallel=2)


def test_without_overlap_arithmetic_and_traffic_add_up_and_in_between_there_is_a_hyperbola() -> None:
    whole, none, half = (replace(LLAMA, overlap=share) for share in (1.0, 0.0, 0.5))
    dense_bytes_s, head_bytes_s = (2 * n / 3.35e12 for n in (LLAMA_DENSE, LLAMA_HEAD))
    for tokens in (1, 64, 300, 4096):
        dense_flops_s, head_flops_s = 2 * LLAMA_DENSE * tokens / 9.89e14, 2 * LLAMA_HEAD * tokens / 9.89e14
        written_s = 131_072 * tokens / 3.35e12
        pairs = ((dense_bytes_s, dense_flops_s), (head_bytes_s, head_flops_s))
        assert whole.seconds(tokens, 0) == pytest.approx(sum(map(max, pairs)) + written_s)
        assert none.seconds(tokens, 0) == pytest.approx(sum(map(sum, pairs)) + written_s)
        hyperbola = sum(0.5 * (a + b + math.sqrt((a - b) ** 2 + 2 * a * b)) for a, b in pairs)
        assert half.seconds(tokens, 0) == pytest.approx(hyperbola + written_s)


def test_layers_and_sequences_cost_what_is_said() -> None:
    more = replace(LLAMA, layer_s=1e-4, sequence_s=1e-5)
    assert more.seconds(7, 700) - LLAMA.seconds(7, 700) == pytest.approx(32e-4 + 7e-5)
    # A prompt chunk is one sequence that gets a token.
    assert more.seconds(0, 0, 50, 1275) - LLAMA.seconds(0, 0, 50, 1275) == pytest.approx(32e-4 + 1e-5)


def test_the_kv_cache_may_be_read_at_another_share_of_the_bandwidth() -> None:
    half = replace(LLAMA, kv_bandwidth_efficiency=0.5)
    assert half.context_slope_ps == pytest.approx(2 * LLAMA.context_slope_ps, abs=2)
    assert half.seconds(8, 0) == LLAMA.seconds(8, 0)


def test_slow_experts_lengthen_only_what_their_arithmetic_limits() -> None:
    plain = RooflineStepTime(device="RTXPRO6000", model="Qwen3-30B-A3B", **IDEAL)
    slow = replace(plain, expert_efficiency=0.25)
    assert slow.seconds(1, 100) == plain.seconds(1, 100)
    experts_s = 2 * model("Qwen3-30B-A3B").expert_parameters * (8 / 128) * 8192 / 4.67800535e14
    assert slow.seconds(0, 0, 8192, 0) - plain.seconds(0, 0, 8192, 0) == pytest.approx(3 * experts_s, rel=1e-6)


def test_linear_layers_alone_leave_out_attention_experts_head_and_collectives() -> None:
    step = RooflineStepTime(
        device="H100-SXM", model="Llama-3.1-8B", tensor_parallel=2, layer_s=1e-5, **{**IDEAL, "overhead_s": 1.0}
    )
    assert step.linear_layers_s(1) == pytest.approx(LLAMA_DENSE / 3.35e12 + 32e-5)
    assert step.linear_layers_s(4096) == pytest.approx(LLAMA_DENSE * 4096 / 9.89e14 + 32e-5)


@pytest.mark.parametrize(("field", "value"), [
    ("overlap", -0.1), ("overlap", 1.1), ("kv_bandwidth_efficiency", 0.0), ("expert_efficiency", 0.0),
    ("expert_efficiency", 1.5), ("layer_s", -1.0), ("sequence_s", math.inf), ("overlap", math.nan),
])  # fmt: skip
def test_a_fitted_figure_out_of_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(BadValueError, match=field):
        replace(LLAMA, **{field: value})  # type: ignore[arg-type]
