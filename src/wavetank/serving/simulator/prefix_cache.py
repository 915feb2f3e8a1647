"""What a simulated worker keeps of prompts: units, reference counted, least recently used out first.

What units are is for a policy to say (:mod:`wavetank.serving.simulator.reuse`); those of prefix caching are whole
blocks.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from wavetank.serving.simulator.tables import EVICTIONS, REFRESHES, Rules, Tables


@njit(forceinline=True)
def _is_resident(t: Tables, w: int, unit: int) -> bool:
    return t.resident.shape[1] > 0 and t.resident[w, unit] != 0


@njit(forceinline=True)
def _is_free(t: Tables, unit: int) -> bool:
    return t.unit_free.size > 0 and t.unit_free[unit] != 0


@njit(forceinline=True)
def _changed(t: Tables, w: int, unit: int, present: int) -> None:
    """Take note that a unit is new in the cache of a worker or gone from it, for those who read such events.

    They know of it at the next refresh.  What counts until then is whether it was there at the last one: kept, with the
    refresh's number, when a unit changes for the first time since.
    """
    t.workers[w].stored += (2 * present - 1) * t.unit_tokens[unit]
    if t.changes.shape[1] > 0 and t.changes[w, unit] >> 1 != t.counts[REFRESHES]:
        t.changes[w, unit] = t.counts[REFRESHES] << 1 | (1 - present)


@njit(forceinline=True)
def _was_there(t: Tables, w: int, unit: int) -> bool:
    """Say whether a worker had a unit at the last refresh."""
    if _is_resident(t, w, unit):
        return True
    change = t.changes[w, unit]
    return change & 1 != 0 if change >> 1 == t.counts[REFRESHES] else t.cache_held[w, unit] >= 0


@njit
def _elsewhere(t: Tables, w: int, unit: int) -> bool:
    """Say whether another worker had a unit at the last refresh."""
    for other in range(t.workers.size):  # noqa: SIM110  (compiled code has no generators)
        if other != w and _was_there(t, other, unit):
            return True
    return False


@njit
def known_tokens(t: Tables, w: int, r: int) -> int:
    """Return how many tokens of the prompt are in units that the worker had at the last refresh.

    These are the leading ones and free ones; the last token of a prompt never counts.
    """
    known = np.int64(0)
    left = np.int64(t.requests[r].prompt - 1)
    leading = True
    for i in range(t.unit_offsets[r], t.unit_offsets[r + 1]):
        unit = t.unit_ids[i]
        tokens = t.unit_tokens[unit]
        free = _is_free(t, unit)
        if (free or (leading and tokens <= left)) and _was_there(t, w, unit):
            known += tokens
        else:
            leading = False
            if t.unit_free.size == 0:
                break
        left -= tokens
    return min(known, np.int64(t.requests[r].prompt - 1))


@njit
def _cache_remove(t: Tables, w: int, unit: int) -> None:
    older, newer = t.cache_prev[w, unit], t.cache_next[w, unit]
    if older >= 0:
        t.cache_next[w, older] = newer
    else:
        t.workers[w].cache_old = newer
    if newer >= 0:
        t.cache_prev[w, newer] = older
    else:
        t.workers[w].cache_new = older


@njit
def _cache_append(t: Tables, w: int, unit: int) -> None:
    worker = t.workers[w]
    t.cache_prev[w, unit] = worker.cache_new
    t.cache_next[w, unit] = -1
    if worker.cache_new >= 0:
        t.cache_next[w, worker.cache_new] = unit
    else:
        worker.cache_old = unit
    worker.cache_new = unit


@njit
def evict(t: Tables, rules: Rules, w: int, grown: int) -> None:
    """Remove units of a worker that no request holds, least recently used first, until everything fits.

    Parameters
    ----------
    t : Tables
    rules : Rules
    w : int
    grown : int
        Tokens that its requests have generated since those it holds were counted.
    """
    worker = t.workers[w]
    while worker.cached > 0 and (
        worker.held + grown + worker.cached > worker.capacity or worker.cached > rules.store_tokens
    ):
        unit = worker.cache_old
        _cache_remove(t, w, unit)
        t.cache_held[w, unit] = -1
        worker.cached -= t.unit_tokens[unit]
        _changed(t, w, unit, 0)
        t.counts[EVICTIONS] += 1


@njit
def _reused_with_moves(t: Tables, rules: Rules, w: int, r: int) -> int:
    """Do the work of :func:`reused_tokens` where units are moved, computed again, fetched, or there all the time."""
    exact = moved = firsts = fetched = np.int64(0)
    left = np.int64(t.requests[r].prompt - 1)
    # Of the run of moved units in progress: the one that it came to, and first tokens that it has yet to compute again.
    source = np.int64(-1)
    again = np.int64(0)
    leading = True
    for i in range(t.unit_offsets[r], t.unit_offsets[r + 1]):
        unit = t.unit_ids[i]
        tokens = t.unit_tokens[unit]
        free = _is_free(t, unit)
        found = np.int64(-1)
        if free or (leading and tokens <= left):
            if _is_resident(t, w, unit) or t.cache_held[w, unit] >= 0:
                found = unit
            elif rules.fetches and _elsewhere(t, w, unit):
                found = unit
                fetched += tokens
        if found >= 0 and not free:
            exact += tokens
            left -= tokens
            continue
        if found < 0:
            leading = False
            if rules.named and tokens <= left and t.unit_names[i] >= 0:
                found = np.int64(t.named[w, t.unit_names[i]])
                if found >= 0 and t.cache_held[w, found] < 0:
                    found = np.int64(-1)
        left -= tokens
        if found < 0:
            source = np.int64(-1)
            continue
        if free or source < 0 or t.unit_parent[found] != source:
            again = np.int64(rules.again)
        source = np.int64(-1) if free else found
        first = min(again, tokens)
        again -= first
        firsts += first
        moved += tokens
    recomputed = firsts + -(-(moved - firsts) * rules.again_share // 1_000_000)
    # The answer follows from the last token, which is computed whatever was found.
    recomputed = max(recomputed, exact + moved - (t.requests[r].prompt - 1))
    t.found[r].recomputed = recomputed
    t.found[r].fetched = fetched
    return exact + moved - recomputed


@njit
def reused_tokens(t: Tables, rules: Rules, w: int, r: int) -> int:
    """Return how many tokens of the prompt the worker need not compute; the last token is always computed."""
    if rules.moves:
        return _reused_with_moves(t, rules, w, r)
    matched = np.int64(0)
    most = np.int64(t.requests[r].prompt - 1)
    for i in range(t.unit_offsets[r], t.unit_offsets[r + 1]):
        unit = t.unit_ids[i]
        if t.cache_held[w, unit] < 0 or matched + t.unit_tokens[unit] > most:
            break
        matched += t.unit_tokens[unit]
    return matched


@njit
def shared_tokens(t: Tables, w: int, r: int) -> int:
    """Return how many of the request's tokens are in units that others hold on the worker."""
    shared = np.int64(0)
    for i in range(t.unit_offsets[r], t.unit_offsets[r + 1]):
        if t.cache_held[w, t.unit_ids[i]] > 0:
            shared += t.unit_tokens[t.unit_ids[i]]
    return shared


@njit
def hold_units(t: Tables, rules: Rules, w: int, r: int) -> None:
    """Hold the request's units, whose tokens are counted as held already, and make room for them."""
    worker = t.workers[w]
    for i in range(t.unit_offsets[r], t.unit_offsets[r + 1]):
        unit = t.unit_ids[i]
        if _is_resident(t, w, unit):
            continue
        count = t.cache_held[w, unit]
        if count > 0:
            worker.held -= t.unit_tokens[unit]
        elif count == 0:
            _cache_remove(t, w, unit)
            worker.cached -= t.unit_tokens[unit]
        else:
            _changed(t, w, unit, 1)
        t.cache_held[w, unit] = max(count, 0) + 1
    if rules.named:
        for i in range(t.unit_offsets[r], t.unit_offsets[r + 1]):
            name = t.unit_names[i]
            if name >= 0 and (t.named[w, name] < 0 or t.cache_held[w, t.named[w, name]] < 0):
                t.named[w, name] = t.unit_ids[i]
    evict(t, rules, w, 0)


@njit
def _release_units(t: Tables, w: int, r: int) -> None:
    """Give up the request's units, whose tokens are no longer counted as held."""
    worker = t.workers[w]
    # Last unit first: the ends of prompts are the first to be evicted.
    for i in range(t.unit_offsets[r + 1] - 1, t.unit_offsets[r] - 1, -1):
        unit = t.unit_ids[i]
        if _is_resident(t, w, unit):
            continue
        t.cache_held[w, unit] -= 1
        if t.cache_held[w, unit] > 0:
            worker.held += t.unit_tokens[unit]
        else:
            worker.cached += t.unit_tokens[unit]
            _cache_append(t, w, unit)


@njit(forceinline=True)
def release(t: Tables, rules: Rules, w: int, r: int, total: int) -> None:
    """Give back the tokens and the units that a request holds in the cache of a worker."""
    t.workers[w].held -= total
    if rules.caching:
        _release_units(t, w, r)


@njit
def forget_units(t: Tables, w: int) -> None:
    """Empty the cache of a worker that is gone with all its requests."""
    for unit in range(t.cache_held.shape[1]):
        if t.cache_held[w, unit] >= 0:
            t.cache_held[w, unit] = -1
            _changed(t, w, unit, 0)
