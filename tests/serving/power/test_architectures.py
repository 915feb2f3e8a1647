"""Bytes and operations of a step, counted again by hand."""

import dataclasses

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.power.architectures import architecture, architectures, crossover_context

GQA, MLA, DELTA, MAMBA, HYBRID = map(architecture, ("gqa", "mla", "gated-deltanet", "mamba2", "hybrid"))


def test_what_a_decode_step_of_grouped_queries_moves_and_computes():
    work = GQA.decode(4, 1000)
    # Two bytes a weight; 32 layers of 2 x 8 heads x 128 x 2 bytes a token.
    assert work.bytes == 2 * 7_504_924_672 + 4 * 1000 * 32 * 2 * 8 * 128 * 2
    assert work.flops == 4 * (2 * 7_504_924_672 + 1000 * 32 * 4 * 32 * 128)
    assert (work.scan_flops, work.kernels, work.tokens) == (0, 32 * 9, 4)


@pytest.mark.parametrize("fixed", [DELTA, MAMBA])
def test_states_cost_the_same_at_any_context_and_caches_grow_linearly(fixed):
    assert fixed.decode(8, 1) == fixed.decode(8, 1_000_000)
    for growing in (GQA, MLA, HYBRID):
        one, two, four = (growing.decode(8, context).bytes for context in (1000, 2000, 4000))
        assert four - two == 2 * (two - one) > 0


def test_states_are_read_and_written_and_caches_read():
    assert DELTA.context_bytes(123) == 2 * 32 * 32 * 128 * 128 * 4
    assert HYBRID.context_bytes(10) == 8 * 4096 * 10 + 2 * 24 * 2_097_152


@pytest.mark.parametrize(("growing", "fixed"), [(GQA, DELTA), (GQA, MAMBA), (MLA, DELTA), (HYBRID, DELTA), (GQA, MLA)])
def test_at_the_crossover_both_move_the_same_and_beyond_it_the_growing_one_more(growing, fixed):
    at = crossover_context(growing, fixed)
    assert growing.decode(1, at).bytes == pytest.approx(fixed.decode(1, at).bytes, rel=1e-12)
    assert growing.decode(5, at + 1).bytes > fixed.decode(5, at + 1).bytes
    if at > 0:
        assert growing.decode(5, at - 1).bytes < fixed.decode(5, at - 1).bytes


def test_known_crossovers_of_grouped_queries():
    # 128 MiB of delta states, read and written, against 128 KiB a token.
    assert crossover_context(GQA, DELTA) == 1024
    assert crossover_context(GQA, MAMBA) == 2048
    assert crossover_context(DELTA, GQA) is None
    assert crossover_context(GQA, MLA) == 0


def test_prompts_cost_pairs_only_where_there_is_attention():
    short, long = DELTA.prefill(2, 1000), DELTA.prefill(2, 2000)
    assert long.flops == 2 * short.flops
    assert long.scan_flops == 2 * short.scan_flops > 0
    assert GQA.prefill(2, 2000).flops > 2 * GQA.prefill(2, 1000).flops


def test_what_a_batch_holds_is_weights_and_what_each_sequence_keeps():
    assert GQA.held_bytes(3, 10) == 2 * 7_504_924_672 + 3 * 10 * 32 * 4096
    assert MAMBA.held_bytes(3, 10) == 2 * 7_504_924_672 + 3 * 32 * 4_194_304


@pytest.mark.parametrize(("batch", "context"), [(0, 10), (-1, 10), (1, -1), (1, float("nan")), (1, float("inf"))])
def test_batches_without_sequences_and_contexts_that_are_none_are_refused(batch, context):
    for work in (GQA.decode, MAMBA.prefill):
        with pytest.raises(BadValueError):
            work(batch, context)
    with pytest.raises(BadValueError):
        GQA.prefill(1, 0)


def test_bad_shapes_and_names_are_refused():
    with pytest.raises(BadValueError, match="more layers"):
        dataclasses.replace(GQA, cache_layers=33)
    with pytest.raises(BadValueError, match="negative"):
        dataclasses.replace(GQA, state_bytes=-1)
    with pytest.raises(UnknownNameError) as caught:
        architecture("mamba")
    assert caught.value.nearest == "mamba2"
    assert len({architecture(name).parameters for name in architectures()}) == 1
