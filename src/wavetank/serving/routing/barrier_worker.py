"""One worker of a real lockstep group: a process that keeps a KV cache and reads it once per decode step.

The work of a step is decode attention: for every running request the worker appends the newest token's key and value
to the request's cache, then lets the query heads that share them attend over all of it.  Time grows with the resident
KV tokens and, a little, with the requests.  Started as ``python -m wavetank.serving.routing.barrier_worker`` by
:mod:`wavetank.serving.routing.barrier`, which says what to do by single bytes on standard input; the plan of a step and
the worker's times are in memory that both have mapped.  End of input ends the worker, so that none outlives its
coordinator.

Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1; one key and value head for several query
heads: Ainslie et al., "GQA", EMNLP 2023.

Differs from the sources:

1. One layer and one key and value head, in float32; keys, values and queries are random numbers, for no model is run.
2. A request's cache is contiguous, in a slot with room for the longest request.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LOAD, STEP, COPY = b"l", b"s", b"c"
DONE = b"."
# What a plain copy moves at least, so that it does not run from a cache.
COPIED_BYTES = 1 << 25
_BANK_TOKENS = 4096
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class GroupShape:
    """What the workers of a lockstep group are made of.

    Parameters
    ----------
    workers : int
    slots : int
        Requests that a worker decodes at once.
    longest_tokens : int
        Room of a slot: prompt and output of the longest request.
    head_dim : int
        Floats of a token's key, and of its value.
    query_heads : int
        Query heads that share the key and value head.
    """

    workers: int
    slots: int
    longest_tokens: int
    head_dim: int = 128
    query_heads: int = 8

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's key and value."""
        return 2 * self.head_dim * FLOAT_BYTES

    @property
    def cache_bytes(self) -> int:
        """Bytes of one worker's KV cache; only what requests fill is ever touched."""
        return self.slots * self.longest_tokens * self.token_bytes


class SharedPlan(NamedTuple):
    """What coordinator and workers share: arrays over one mapped block of memory."""

    context_tokens: NDArray[np.int64]  # (workers, slots): KV tokens before the step; 0: empty
    load_tokens: NDArray[np.int64]  # (workers, slots): prompt tokens whose keys and values a worker is to load
    started_s: NDArray[np.float64]  # (workers,): when it began its last command, on the system's monotonic clock
    ended_s: NDArray[np.float64]  # (workers,): when it reached the barrier


def plan_bytes(shape: GroupShape) -> int:
    """Return the size of the shared block."""
    return 8 * shape.workers * (2 * shape.slots + 2)


def shared_plan(block: mmap.mmap, shape: GroupShape) -> SharedPlan:
    """Return the arrays that lie in a shared block."""
    cells = shape.workers * shape.slots
    table = (shape.workers, shape.slots)
    whole = np.frombuffer(block, np.int64, 2 * cells)
    times = np.frombuffer(block, np.float64, 2 * shape.workers, offset=whole.nbytes)
    return SharedPlan(
        whole[:cells].reshape(table),
        whole[cells:].reshape(table),
        times[: shape.workers],
        times[shape.workers :],
    )


def attend(
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    scores: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return softmax(queries keys^T / sqrt(head_dim)) values: attention over one request's cache.

    Parameters
    ----------
    queries : float32 array (query_heads, head_dim)
    keys, values : float32 array (tokens, head_dim)
    scores : float32 array, at least (query_heads * tokens,)
        Scratch.

    Returns
    -------
    float32 array (query_heads, head_dim)
    """
    heads, tokens = len(queries), len(keys)
    weights = scores[: heads * tokens].reshape(heads, tokens)
    np.matmul(queries * np.float32(queries.shape[1] ** -0.5), keys.T, out=weights)
    weights -= weights.max(axis=1, keepdims=True)
    np.exp(weights, out=weights)
    return (weights @ values) / weights.sum(axis=1, keepdims=True)


class KVCache:
    """The keys and values of one worker, slot by slot.

    Parameters
    ----------
    shape : GroupShape
    """

    def __init__(self, shape: GroupShape) -> None:
        rng = np.random.default_rng(0)
        self._bank = rng.standard_normal((2, _BANK_TOKENS, shape.head_dim), np.float32)
        self._queries = rng.standard_normal((shape.query_heads, shape.head_dim), np.float32)
        self._scores = np.empty(shape.query_heads * (shape.longest_tokens + 1), np.float32)
        # A step appends before it reads: one token more than the longest request holds.
        self.keys, self.values = np.zeros((2, shape.slots, shape.longest_tokens + 1, shape.head_dim), np.float32)
        self.outputs = np.zeros((shape.slots, shape.query_heads, shape.head_dim), np.float32)

    def load(self, slot: int, tokens: int) -> None:
        """Copy the keys and values of a prompt that was computed elsewhere."""
        for start in range(0, tokens, _BANK_TOKENS):
            count = min(_BANK_TOKENS, tokens - start)
            self.keys[slot, start : start + count] = self._bank[0, :count]
            self.values[slot, start : start + count] = self._bank[1, :count]

    def decode(self, slot: int, tokens: int) -> None:
        """Append a token behind ``tokens`` others and attend over all of them."""
        row = tokens % _BANK_TOKENS
        self.keys[slot, tokens] = self._bank[0, row]
        self.values[slot, tokens] = self._bank[1, row]
        keys, values = self.keys[slot, : tokens + 1], self.values[slot, : tokens + 1]
        self.outputs[slot] = attend(self._queries, keys, values, self._scores)


def main() -> None:
    """Do what standard input says until it ends."""
    spec = json.loads(sys.argv[1])
    shape, me = GroupShape(**spec["shape"]), spec["worker"]
    plan = shared_plan(mmap.mmap(spec["plan_fd"], plan_bytes(shape)), shape)
    cache = KVCache(shape)
    source = np.ones(COPIED_BYTES // 8)
    target = np.zeros_like(source)
    commands, answers = sys.stdin.fileno(), sys.stdout.fileno()
    os.write(answers, DONE)
    while command := os.read(commands, 1):
        plan.started_s[me] = time.perf_counter()
        if command == STEP:
            for slot, tokens in enumerate(plan.context_tokens[me].tolist()):
                if tokens:
                    cache.decode(slot, tokens)
        elif command == LOAD:
            for slot, tokens in enumerate(plan.load_tokens[me].tolist()):
                cache.load(slot, tokens)
        else:
            np.copyto(target, source)
        plan.ended_s[me] = time.perf_counter()
        try:
            os.write(answers, DONE)
        except BrokenPipeError:
            # The coordinator is gone.
            return


if __name__ == "__main__":
    main()
