"""One worker of a real lockstep group: what it computes, and how it is commanded."""

import dataclasses
import json
import mmap
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.serving.routing.barrier_worker import (
    COPY,
    DONE,
    LOAD,
    STEP,
    GroupShape,
    KVCache,
    attend,
    plan_bytes,
    shared_plan,
)

SHAPE = GroupShape(workers=2, slots=3, longest_tokens=40, head_dim=16, query_heads=4)


def by_the_book(queries, keys, values):
    """Softmax attention in float64, one query at a time."""
    rows = []
    for query in queries.astype(np.float64):
        weights = np.exp(keys.astype(np.float64) @ query / np.sqrt(len(query)))
        rows.append(weights @ values.astype(np.float64) / weights.sum())
    return np.array(rows)


class TestAttention:
    @given(st.integers(1, 200), st.integers(1, 5), st.sampled_from([1, 8, 33]), st.integers(0, 2**32 - 1))
    @settings(max_examples=60, deadline=None)
    def test_it_is_the_softmax_of_the_scores_times_the_values(self, tokens, heads, width, seed):
        rng = np.random.default_rng(seed)
        queries = rng.standard_normal((heads, width), np.float32)
        keys, values = rng.standard_normal((2, tokens, width), np.float32)
        found = attend(queries, keys, values, np.empty(heads * tokens + 7, np.float32))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, by_the_book(queries, keys, values), rtol=2e-4, atol=2e-5)

    def test_a_single_token_is_its_own_average(self):
        queries, keys, values = np.ones((2, 4), np.float32), np.ones((1, 4), np.float32), np.arange(4.0)[None]
        found = attend(queries, keys, values.astype(np.float32), np.empty(2, np.float32))
        assert found.tolist() == [[0, 1, 2, 3]] * 2

    def test_large_scores_do_not_overflow(self):
        keys = np.array([[1000.0], [-1000.0]], np.float32)
        found = attend(np.full((1, 1), 1000, np.float32), keys, keys, np.empty(2, np.float32))
        assert found.tolist() == [[1000]]


class TestCache:
    def test_a_step_appends_a_token_and_reads_all_of_them(self):
        cache = KVCache(SHAPE)
        cache.load(1, 10)
        before = cache.keys[1, :10].copy()
        cache.decode(1, 10)
        assert (cache.keys[1, :10] == before).all()
        assert cache.keys[1, 10].any()
        expected = by_the_book(cache._queries, cache.keys[1, :11], cache.values[1, :11])
        np.testing.assert_allclose(cache.outputs[1], expected, rtol=2e-4, atol=2e-5)
        assert not cache.outputs[[0, 2]].any()

    def test_a_slot_has_room_for_the_longest_request_to_its_end(self):
        cache = KVCache(SHAPE)
        cache.load(2, 39)
        for tokens in (39, 40):
            cache.decode(2, tokens)
        assert np.isfinite(cache.outputs[2]).all()

    def test_a_prompt_longer_than_the_bank_is_loaded_whole(self):
        cache = KVCache(dataclasses.replace(SHAPE, longest_tokens=9000))
        cache.load(0, 8500)
        assert cache.keys[0, :8500].any(axis=1).all()
        assert not cache.keys[0, 8500:].any()

    def test_its_size_is_that_of_keys_and_values(self):
        assert SHAPE.token_bytes == 2 * 16 * 4
        assert SHAPE.cache_bytes == 3 * 40 * 128


def test_the_shared_arrays_fill_the_block_and_do_not_overlap():
    plan = shared_plan(mmap.mmap(-1, plan_bytes(SHAPE)), SHAPE)
    assert sum(column.nbytes for column in plan) == plan_bytes(SHAPE)
    assert plan.context_tokens.shape == plan.load_tokens.shape == (2, 3)
    for number, column in enumerate(plan, 1):
        column[...] = number
    assert [set(np.ravel(column).tolist()) for column in plan] == [{1}, {2}, {3}, {4}]


@pytest.fixture
def worker():
    """Worker 1 of the group as a process, with the plan it shares."""
    with tempfile.TemporaryFile() as file:
        file.truncate(plan_bytes(SHAPE))
        plan = shared_plan(mmap.mmap(file.fileno(), plan_bytes(SHAPE)), SHAPE)
        spec = {"shape": dataclasses.asdict(SHAPE), "worker": 1, "plan_fd": file.fileno()}
        process = subprocess.Popen(
            [sys.executable, "-m", "wavetank.serving.routing.barrier_worker", json.dumps(spec)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=(file.fileno(),),
        )  # fmt: skip
        yield process, plan
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_worker_answers_every_command_and_ends_with_its_input(worker):
    process, plan = worker
    assert process.stdout.read(1) == DONE
    plan.load_tokens[1] = plan.context_tokens[1] = 5, 0, 7
    last_s = 0.0
    for command in (LOAD, STEP, COPY, STEP):
        process.stdin.write(command)
        assert process.stdout.read(1) == DONE
        assert last_s < plan.started_s[1] < plan.ended_s[1]
        last_s = plan.ended_s[1]
    assert not plan.started_s[0]
    process.stdin.close()
    assert process.wait(10) == 0
