"""The prefix cache of a simulated worker: whole blocks, reference counted, least recently used out first."""

from __future__ import annotations

import numpy as np
from numba import njit

from wavetank.serving.simulator.tables import EVICTIONS, REFRESHES, Rules, Tables


@njit(forceinline=True)
def _full_blocks(t: Tables, rules: Rules, r: int) -> int:
    if not rules.caching:
        return 0
    return min(t.block_offsets[r + 1] - t.block_offsets[r], t.requests[r].prompt // rules.block_tokens)


@njit(forceinline=True)
def _changed(t: Tables, w: int, block: int, present: int) -> None:
    """Take note that a block is new in the cache of a worker or gone from it, for routers that read such events.

    They know of it at the next refresh.  What counts until then is whether it was there at the last one: kept, with the
    refresh's number, when a block changes for the first time since.
    """
    t.workers[w].blocks += 2 * present - 1
    if t.changes.shape[1] > 0 and t.changes[w, block] >> 1 != t.counts[REFRESHES]:
        t.changes[w, block] = t.counts[REFRESHES] << 1 | (1 - present)


@njit
def known_blocks(t: Tables, rules: Rules, w: int, r: int) -> int:
    """Return how many leading blocks of the prompt the worker had at the last refresh, as :func:`matched_blocks`."""
    most = min(_full_blocks(t, rules, r), (t.requests[r].prompt - 1) // rules.block_tokens)
    start = t.block_offsets[r]
    for i in range(most):
        block = t.block_ids[start + i]
        change = t.changes[w, block]
        there = change & 1 if change >> 1 == t.counts[REFRESHES] else np.int64(t.cache_held[w, block] >= 0)
        if not there:
            return i
    return most


@njit
def _cache_remove(t: Tables, w: int, block: int) -> None:
    older, newer = t.cache_prev[w, block], t.cache_next[w, block]
    if older >= 0:
        t.cache_next[w, older] = newer
    else:
        t.workers[w].cache_old = newer
    if newer >= 0:
        t.cache_prev[w, newer] = older
    else:
        t.workers[w].cache_new = older


@njit
def _cache_append(t: Tables, w: int, block: int) -> None:
    worker = t.workers[w]
    t.cache_prev[w, block] = worker.cache_new
    t.cache_next[w, block] = -1
    if worker.cache_new >= 0:
        t.cache_next[w, worker.cache_new] = block
    else:
        worker.cache_old = block
    worker.cache_new = block


@njit
def evict(t: Tables, rules: Rules, w: int, grown: int) -> None:
    """Remove blocks of a worker that no request holds, least recently used first, until everything fits.

    Parameters
    ----------
    t : Tables
    rules : Rules
    w : int
    grown : int
        Tokens that its requests have generated since those it holds were counted.
    """
    worker = t.workers[w]
    while worker.held + grown + worker.cached > worker.capacity and worker.cached > 0:
        block = worker.cache_old
        _cache_remove(t, w, block)
        t.cache_held[w, block] = -1
        worker.cached -= rules.block_tokens
        _changed(t, w, block, 0)
        t.counts[EVICTIONS] += 1


@njit
def matched_blocks(t: Tables, rules: Rules, w: int, r: int) -> int:
    """Return how many leading blocks of the prompt the worker has; the last token is always computed."""
    most = min(_full_blocks(t, rules, r), (t.requests[r].prompt - 1) // rules.block_tokens)
    start = t.block_offsets[r]
    for i in range(most):
        if t.cache_held[w, t.block_ids[start + i]] < 0:
            return i
    return most


@njit
def shared_tokens(t: Tables, rules: Rules, w: int, r: int) -> int:
    """Return how many of the request's tokens are in blocks that others hold on the worker."""
    shared = np.int64(0)
    start = t.block_offsets[r]
    for i in range(_full_blocks(t, rules, r)):
        if t.cache_held[w, t.block_ids[start + i]] > 0:
            shared += rules.block_tokens
    return shared


@njit
def hold_blocks(t: Tables, rules: Rules, w: int, r: int) -> None:
    """Hold the request's blocks, whose tokens are counted as held already, and make room for them."""
    worker = t.workers[w]
    start = t.block_offsets[r]
    for i in range(_full_blocks(t, rules, r)):
        block = t.block_ids[start + i]
        count = t.cache_held[w, block]
        if count > 0:
            worker.held -= rules.block_tokens
        elif count == 0:
            _cache_remove(t, w, block)
            worker.cached -= rules.block_tokens
        else:
            _changed(t, w, block, 1)
        t.cache_held[w, block] = max(count, 0) + 1
    evict(t, rules, w, 0)


@njit
def _release_blocks(t: Tables, rules: Rules, w: int, r: int) -> None:
    """Give up the request's blocks, whose tokens are no longer counted as held."""
    worker = t.workers[w]
    start = t.block_offsets[r]
    # Last block first: the ends of prompts are the first to be evicted.
    for i in range(_full_blocks(t, rules, r) - 1, -1, -1):
        block = t.block_ids[start + i]
        t.cache_held[w, block] -= 1
        if t.cache_held[w, block] > 0:
            worker.held += rules.block_tokens
        else:
            worker.cached += rules.block_tokens
            _cache_append(t, w, block)


@njit(forceinline=True)
def release(t: Tables, rules: Rules, w: int, r: int, total: int) -> None:
    """Give back the tokens and the blocks that a request holds in the cache of a worker."""
    t.workers[w].held -= total
    if rules.caching:
        _release_blocks(t, rules, w, r)


@njit
def forget_blocks(t: Tables, w: int) -> None:
    """Empty the prefix cache of a worker that is gone with all its requests."""
    for block in range(t.cache_held.shape[1]):
        if t.cache_held[w, block] >= 0:
            t.cache_held[w, block] = -1
            _changed(t, w, block, 0)
