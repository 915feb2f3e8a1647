"""Caches that change ranks byte for byte, across real processes."""

import multiprocessing
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

from wavetank.serving.tiers.buffers import heads_of, packed, scatter, sends
from wavetank.serving.tiers.exchange import Exchange, take_part
from wavetank.serving.tiers.sharding import moved_share

HEADS, TOKENS, PAGES, LAYERS, PAGE, WIDTH = 8, 30, 12, 3, 4, 16


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (1, 4), (4, 2), (2, 2)])
def test_caches_change_ranks_byte_for_byte_and_only_what_the_formula_says_is_sent(before, after):
    draws = np.random.default_rng(before * 10 + after)
    whole = draws.integers(0, 1 << 16, (LAYERS, 2, TOKENS, HEADS, WIDTH)).astype(np.uint16)
    memories = []

    def shared(shape):
        memories.append(SharedMemory(create=True, size=int(np.prod(shape)) * 2))
        return memories[-1].name

    ranks = max(before, after)
    tables = [draws.permutation(PAGES)[: -(-TOKENS // PAGE)] for _ in range(2)]
    plan = Exchange(before, after, HEADS, TOKENS, PAGES, LAYERS, PAGE, WIDTH, *tables, {}, {}, {})
    try:
        for rank in range(before):
            plan.old[rank * ranks // before] = shared(plan.shape(before))
            pages = np.ndarray(plan.shape(before), np.uint16, memories[-1].buf)
            low, high = heads_of(HEADS, before, rank)
            scatter(whole[:, :, :, low:high], pages, plan.table_before, 0)
            del pages
        for rank in range(after):
            plan.new[rank * ranks // after] = shared(plan.shape(after))
        for rank in range(ranks):
            for each in sends(HEADS, before, after, rank):
                plan.buffers[rank, each.to_rank] = shared(plan.buffer_shape(each.end - each.first))
        context = multiprocessing.get_context("spawn")
        barrier, sent = context.Barrier(ranks), context.Array("q", ranks)
        processes = [context.Process(target=take_part, args=(rank, plan, barrier, sent)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
        assert [process.exitcode for process in processes] == [0] * ranks
        assert sum(sent) == moved_share(before, after) * whole.nbytes
        found = []
        for rank in range(after):
            memory = next(each for each in memories if each.name == plan.new[rank * ranks // after])
            pages = np.ndarray(plan.shape(after), np.uint16, memory.buf)
            found.append(packed(pages, plan.table_after, TOKENS, 0, HEADS // after))
            del pages
        assert np.array_equal(np.concatenate(found, axis=3), whole)
    finally:
        for memory in memories:
            memory.close()
            memory.unlink()
