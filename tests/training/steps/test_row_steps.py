"""Predicted steps: sums by hand where there are any, and what must make a step longer or shorter."""

import dataclasses

import pytest
from tests.training.steps.test_gpu_rows import ROW

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device, model
from wavetank.training.steps.row_steps import FlopsOverPeak, RowSteps

# Alone, at the whole peak, whatever the rows.
ALONE = dataclasses.replace(ROW, ranks=1, node=1, tensor=1, shards=1, micro=8)
PEAK = RowSteps(product_share=1.0, half_rows=0.0)
LLAMA, A100 = model("Llama-3.1-8B"), device("A100-SXM-80GB")


def test_flops_over_peak_are_six_for_each_parameter_and_token():
    assert FlopsOverPeak().seconds(ROW) == pytest.approx(6 * 8_030_261_248 * 8 * 1024 / (8 * 3.12e14))


def test_a_device_alone_takes_its_operations_and_those_of_attention():
    tokens = 8 * 1024
    met = LLAMA.parameters - LLAMA.head_parameters
    pairs = 8 * 1024 * 1025 / 2
    flops = 3 * (2 * met * tokens + LLAMA.prefill_flops_per_pair * pairs)
    assert PEAK.seconds(ALONE) == pytest.approx(flops / 3.12e14, rel=1e-3)
    # Half of the speed at as many rows as half_rows.
    slow = RowSteps(product_share=0.5, half_rows=float(tokens)).seconds(ALONE)
    flops = 3 * (2 * met * 2 * tokens + LLAMA.prefill_flops_per_pair * pairs)
    assert slow == pytest.approx(flops / 1.56e14, rel=1e-3)


def test_replicas_add_an_all_reduce_of_the_gradients_that_hides_but_for_its_end():
    two = dataclasses.replace(ALONE, ranks=2, node=2, replicas=2, batch=16)
    alone = PEAK.seconds(ALONE)
    assert alone < PEAK.seconds(two) < 1.2 * alone
    slow = dataclasses.replace(two, node_bytes_per_s=1e9)
    gradients_s = 2 * 4 * (LLAMA.parameters / 2) / 1e9
    # The wire is what counts, and begins when the last layer's gradients are there.
    assert gradients_s < PEAK.seconds(slow) < gradients_s + alone


def test_shards_gather_weights_twice_and_scatter_gradients():
    slow = dataclasses.replace(ALONE, ranks=2, node=2, shards=2, batch=16, node_bytes_per_s=1e9)
    half = LLAMA.parameters / 2 / 1e9
    # Gathered and scattered on streams of their own.
    assert 2 * 2 * half < PEAK.seconds(slow) < (2 * 2 + 4) * half + PEAK.seconds(ALONE)


def test_tensor_shards_divide_the_computing_and_wait_for_their_rows():
    fast = dataclasses.replace(ALONE, ranks=4, node=4, tensor=4, node_bytes_per_s=1e15)
    latencies_s = 32 * 2 * 4 * 3 * A100.link_latency_s
    assert PEAK.seconds(fast) == pytest.approx(PEAK.seconds(ALONE) / 4 + latencies_s, rel=0.02)
    slow = dataclasses.replace(fast, node_bytes_per_s=1e9)
    rows_s = 32 * 2 * 4 * 0.75 * 2 * 8 * 1024 * 4096 / 1e9
    assert PEAK.seconds(slow) == pytest.approx(PEAK.seconds(fast) + rows_s, rel=0.01)


def test_stages_fill_and_drain_as_the_closed_form_says():
    staged = dataclasses.replace(ALONE, ranks=4, node=4, stages=4, micro=1, node_bytes_per_s=1e15)
    equal = PEAK.seconds(dataclasses.replace(staged, ranks=1, node=1, stages=1, micro=8))
    # The head makes the last stage longer, so that it cannot be faster than equal ones.
    assert PEAK.seconds(staged) > equal / 4 * (8 + 3) / 8
    assert PEAK.seconds(staged) < 1.35 * equal / 4 * (8 + 3) / 8
    with pytest.raises(BadValueError, match="stage has a layer"):
        PEAK.seconds(dataclasses.replace(staged, ranks=64, stages=64))


def test_experts_on_all_ranks_need_no_gathering_of_their_weights():
    # The data set's known answer: of eight ranks, experts divided by all of them make a step three times as fast.
    few = dataclasses.replace(ROW, model="DeepSeek-V2-Lite", tensor=4, shards=2, micro=4, experts=4)
    every = dataclasses.replace(few, experts=8)
    assert PEAK.seconds(every) < PEAK.seconds(few)
    gathers = [graph.duration_ps[graph.stream == 1].sum() for graph in (PEAK.graph(few), PEAK.graph(every))]
    expert_bytes = 2 * 64 * 3 * 2048 * 1408
    # Forward and backward, of half of what a group of four holds, over the network.
    each_s = expert_bytes / 4 / 2 / 25e9 + A100.link_latency_s
    assert (gathers[0] - gathers[1]) / 1e12 == pytest.approx(2 * 26 * each_s, rel=0.01)


def test_predictions_do_not_look_at_the_answer():
    other = dataclasses.replace(ROW, name="y", step_s=99.0)
    assert RowSteps().seconds(other) == RowSteps().seconds(ROW)
    with pytest.raises(BadValueError):
        RowSteps(product_share=0.0)
