"""The compiled part of the simulation: what happens next, instance by instance.

:mod:`wavetank.training.rollouts.simulate` explains the rules and makes the arrays.  Functions here are compiled
into one: calls that remain would copy all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.platforms.step_time import roofline_ps
from wavetank.sim.borrowed import BORROWED
from wavetank.sim.compiled import compiled
from wavetank.sim.streams import next_below
from wavetank.training.rollouts.interface import (
    AFFINITY,
    FREE,
    INTERLEAVE,
    LEAST,
    NONE,
    RANDOM,
    SLACK,
    Floats,
    Ints,
)

FAR = np.int64(2**62)
OPEN_PS = 200_000_000_000
"""A turn goes to a shared instance that has let rollouts compute within this time."""

_IDLE, _SERVE, _GUEST = 0, 1, 2
_NOT_YET, _READY, _RUNNING, _AWAY, _DONE = 0, 1, 2, 3, 4
# Counters.
RECOMPUTED, REROUTED, HALVED, EVICTED, GUEST_PS, OWN_PS, SERVING_PS, GUEST_TOKENS, OWN_TOKENS, LONGEST_GUEST_PS = range(
    10
)
COUNTERS = 10
MOST_STEPS = 400_000_000


class Given(NamedTuple):
    """What a run is given: numbers, times in ps, and arrays of requests, spot instances and trajectories."""

    own: int
    spot: int
    shared: int
    governor: int
    router: int
    staleness: int
    kv: int
    serving_kv: int
    shared_pool: int
    own_pool: int
    own_cap: int
    guest_cap: int
    own_chunk: int
    guest_chunk: int
    serving_chunk: int
    serving_cap: int
    answer: int
    ttft_ps: float
    tpot_ps: float
    shorter: float
    headroom: float
    stall_ps: int
    own_sync_ps: int
    guest_sync_ps: int
    serving_table: Floats
    rollout_table: Floats
    first: Ints
    arrival: Ints
    prompt: Ints
    output: Ints
    up: Ints
    down: Ints
    first_turn: Ints
    start: Ints
    tokens: Ints
    delay: Ints
    ends: Ints
    train_ps: Ints


class State(NamedTuple):
    """What a run changes."""

    # Of instances.
    free_at: Ints
    began_at: Ints
    action: Ints
    ready_at: Ints
    there: Ints
    guests: Ints
    slots: Ints
    guest_kv: Ints
    idle_kv: Ints
    budget: Ints
    flush: Ints
    open_at: Ints
    progress_at: Ints
    last_action: Ints
    # Of shared instances.
    serving_kv: Ints
    most_kv: Ints
    arrived: Ints
    admitted: Ints
    running: Ints
    batch: Ints
    # Of requests.
    unread: Ints
    context_r: Ints
    unwritten: Ints
    last_token: Ints
    part_r: Ints
    # Of trajectories.
    status: Ints
    turn: Ints
    context: Ints
    left: Ints
    unread_t: Ints
    cached: Ints
    known: Ints
    held: Ints
    home: Ints
    used: Ints
    part: Ints
    # Rings, heap and single numbers.
    ready: Ints
    heap_at: Ints
    heap_of: Ints
    one: Ints
    draws: Floats
    counters: Ints
    # Trajectories of each batch that have not ended, and how often each spot instance has come or gone.
    missing: Ints
    spot_next: Ints


# Places in `one`.
_HEAD, _TAIL, _HEAP, _LOW, _STARTED, _VERSION, OVER, _CHANGED = range(8)
ONES = 8


@compiled(forceinline=True, **BORROWED)
def _push_ready(s, i):  # type: ignore[no-untyped-def]
    s.status[i] = _READY
    s.one[_CHANGED] = 1
    s.ready[s.one[_TAIL] % s.ready.size] = i
    s.one[_TAIL] += 1


@compiled(forceinline=True, **BORROWED)
def _push_heap(s, at, i):  # type: ignore[no-untyped-def]
    place = s.one[_HEAP]
    s.one[_HEAP] += 1
    while place > 0:
        above = (place - 1) // 2
        if s.heap_at[above] < at or (s.heap_at[above] == at and s.heap_of[above] < i):
            break
        s.heap_at[place] = s.heap_at[above]
        s.heap_of[place] = s.heap_of[above]
        place = above
    s.heap_at[place] = at
    s.heap_of[place] = i


@compiled(forceinline=True, **BORROWED)
def _pop_heap(s):  # type: ignore[no-untyped-def]
    found = s.heap_of[0]
    s.one[_HEAP] -= 1
    size = s.one[_HEAP]
    at, i = s.heap_at[size], s.heap_of[size]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and (
            s.heap_at[below + 1] < s.heap_at[below]
            or (s.heap_at[below + 1] == s.heap_at[below] and s.heap_of[below + 1] < s.heap_of[below])
        ):
            below += 1
        if at < s.heap_at[below] or (at == s.heap_at[below] and i < s.heap_of[below]):
            break
        s.heap_at[place] = s.heap_at[below]
        s.heap_of[place] = s.heap_of[below]
        place = below
    s.heap_at[place] = at
    s.heap_of[place] = i
    return found


@compiled(forceinline=True, **BORROWED)
def _limit(p, s, g):  # type: ignore[no-untyped-def]
    """What rollouts may hold on an instance, bytes."""
    shared = g - p.own - p.spot
    if shared < 0:
        return p.own_pool
    return min(s.budget[g], p.shared_pool - s.serving_kv[shared])


@compiled(forceinline=True, **BORROWED)
def _drop_cache(s, i):  # type: ignore[no-untyped-def]
    g = s.home[i]
    if g >= 0:
        s.guest_kv[g] -= s.held[i]
        s.idle_kv[g] -= s.held[i]
    s.home[i] = -1
    s.held[i] = 0
    s.cached[i] = 0
    s.one[_CHANGED] = 1


@compiled(forceinline=True, **BORROWED)
def _evict_idle(s, g, limit):  # type: ignore[no-untyped-def]
    """Drop prefixes that no turn uses, the least recently used first, until rollouts hold no more than the limit."""
    while s.guest_kv[g] > limit and s.idle_kv[g] > 0:
        oldest = -1
        for i in range(s.one[_LOW], s.one[_STARTED]):
            if s.home[i] == g and s.status[i] != _RUNNING and (oldest < 0 or s.used[i] < s.used[oldest]):
                oldest = i
        s.counters[EVICTED] += 1
        _drop_cache(s, oldest)


@compiled(forceinline=True, **BORROWED)
def _leave(s, g, place):  # type: ignore[no-untyped-def]
    """Take a turn out of the slots of an instance."""
    for later in range(place, s.guests[g] - 1):
        s.slots[g, later] = s.slots[g, later + 1]
    s.guests[g] -= 1


@compiled(forceinline=True, **BORROWED)
def _abort(s, g, place):  # type: ignore[no-untyped-def]
    i = s.slots[g, place]
    _leave(s, g, place)
    s.guest_kv[g] -= s.held[i]
    s.known[i] = max(s.known[i], s.context[i] - s.unread_t[i])
    s.held[i] = 0
    s.home[i] = -1
    s.cached[i] = 0
    s.counters[REROUTED] += 1
    _push_ready(s, i)


@compiled(forceinline=True, **BORROWED)
def _shrink(s, g, limit):  # type: ignore[no-untyped-def]
    """Make rollouts hold no more than the limit: unused prefixes go first, then the turns that came last."""
    _evict_idle(s, g, limit)
    while s.guest_kv[g] > limit and s.guests[g] > 0:
        _abort(s, g, s.guests[g] - 1)


@compiled(forceinline=True, **BORROWED)
def _need(p, s, i):  # type: ignore[no-untyped-def]
    return (s.context[i] + s.left[i]) * p.kv


@compiled(forceinline=True, **BORROWED)
def _is_quiet(p, s, g, shared, now):  # type: ignore[no-untyped-def]
    """Whether an instance does nothing, and nobody waits to be served."""
    if s.action[g] != _IDLE:
        return False
    if p.governor == FREE:
        return True
    coming = p.first[shared] + s.arrived[shared]
    if coming < p.first[shared + 1] and p.arrival[coming] <= now:
        return False
    return s.running[shared] == 0 and s.admitted[shared] == s.arrived[shared]


@compiled(forceinline=True, **BORROWED)
def _has_room(p, s, g, i, now):  # type: ignore[no-untyped-def]
    """Whether a turn may be placed on an instance now."""
    if s.there[g] == 0 or now < s.ready_at[g]:
        return False
    shared = g - p.own - p.spot
    if s.guests[g] >= (p.guest_cap if shared >= 0 else p.own_cap):
        return False
    if shared >= 0:
        if p.governor == NONE:
            return False
        if now - s.open_at[g] > OPEN_PS and not _is_quiet(p, s, g, shared, now):
            return False
    return s.guest_kv[g] - s.idle_kv[g] + _need(p, s, i) <= _limit(p, s, g)


@compiled(forceinline=True, **BORROWED)
def _choose(p, s, i, now):  # type: ignore[no-untyped-def]
    """The instance for a turn, or -1: the router."""
    home = s.home[i]
    if p.router != LEAST and p.router != RANDOM and home >= 0 and _has_room(p, s, home, i, now):
        return home
    instances = p.own + p.spot + p.shared
    if p.router == RANDOM:
        found = -1
        seen = 0
        for g in range(instances):
            if _has_room(p, s, g, i, now):
                seen += 1
                if next_below(s.draws, seen) == 0:
                    found = g
        return found
    # Under affinity, the shared ones first.
    for turn in range(2):
        first = p.own + p.spot if turn == 0 and p.router == AFFINITY else 0
        best = -1
        for g in range(first, instances):
            if _has_room(p, s, g, i, now):
                if best < 0:
                    best = g
                    continue
                cap = p.guest_cap if g >= p.own + p.spot else p.own_cap
                other = p.guest_cap if best >= p.own + p.spot else p.own_cap
                if s.guests[g] * other < s.guests[best] * cap:
                    best = g
        if best >= 0:
            return best
    return -1


@compiled(forceinline=True, **BORROWED)
def _dispatch(p, s, begin, now):  # type: ignore[no-untyped-def]
    """Place waiting turns, in their order, until one finds no room."""
    while s.one[_HEAD] < s.one[_TAIL]:
        i = s.ready[s.one[_HEAD] % s.ready.size]
        g = _choose(p, s, i, now)
        if g < 0:
            s.one[_CHANGED] = 0
            return
        s.one[_HEAD] += 1
        if s.home[i] == g:
            s.guest_kv[g] -= s.held[i]
            s.idle_kv[g] -= s.held[i]
            s.unread_t[i] = max(s.context[i] - s.cached[i], 0)
            s.home[i] = -1
        else:
            _drop_cache(s, i)
            s.unread_t[i] = s.context[i]
            s.counters[RECOMPUTED] += s.known[i]
        need = _need(p, s, i)
        _evict_idle(s, g, _limit(p, s, g) - need)
        s.held[i] = need
        s.guest_kv[g] += need
        if s.guests[g] == 0:
            s.progress_at[g] = now
        s.slots[g, s.guests[g]] = i
        s.guests[g] += 1
        s.status[i] = _RUNNING
        s.home[i] = g
        s.part[i] = -1
        if begin[s.turn[i]] < 0:
            begin[s.turn[i]] = now
        if s.action[g] == _IDLE:
            s.free_at[g] = now


@compiled(forceinline=True, **BORROWED)
def _start_trajectories(p, s, began):  # type: ignore[no-untyped-def]
    """Let trajectories begin, as many as the declared staleness allows."""
    upto = p.ends[min(s.one[_VERSION] + p.staleness, p.ends.size - 1)]
    while s.one[_STARTED] < upto:
        i = s.one[_STARTED]
        s.one[_STARTED] += 1
        s.turn[i] = p.first_turn[i]
        s.context[i] = p.start[i]
        s.left[i] = p.tokens[s.turn[i]]
        began[i] = s.one[_VERSION]
        _push_ready(s, i)


@compiled(forceinline=True, **BORROWED)
def _guest_ps(p, s, g, chunk, mark):  # type: ignore[no-untyped-def]
    """Time of the next step of rollouts on an instance; marks what each turn does in it."""
    R, C, P, S = 0, 0, 0, 0
    for place in range(s.guests[g]):
        i = s.slots[g, place]
        part = 0
        if s.unread_t[i] > 0:
            part = min(s.unread_t[i], chunk - P)
            if part > 0:
                read = s.context[i] - s.unread_t[i]
                P += part
                S += part * read + part * (part + 1) // 2
            else:
                part = -1
        else:
            R += 1
            C += s.context[i]
        if mark:
            s.part[i] = part
    if R + P == 0:
        return np.int64(0)
    return roofline_ps(R, C, P, S, p.rollout_table)


@compiled(forceinline=True, **BORROWED)
def _serving_ps(p, s, shared, mark):  # type: ignore[no-untyped-def]
    """Time of the next step of serving; marks what each request does in it."""
    R, C, P, S = 0, 0, 0, 0
    for place in range(s.running[shared]):
        r = s.batch[shared, place]
        part = 0
        if s.unread[r] > 0:
            part = min(s.unread[r], p.serving_chunk - P)
            if part > 0:
                P += part
                S += part * s.context_r[r] + part * (part + 1) // 2
            else:
                part = -1
        else:
            R += 1
            C += s.context_r[r]
        if mark:
            s.part_r[r] = part
    if R + P == 0:
        return np.int64(0)
    return roofline_ps(R, C, P, S, p.serving_table)


@compiled(forceinline=True, **BORROWED)
def _slack_ps(p, s, shared, now):  # type: ignore[no-untyped-def]
    """The least slack of all requests of an instance: what rollouts may take before its next step.

    A decoding request has until its last token + TPOT, less the next step; one whose prompt is unread until its arrival
    + TTFT, less the steps that read all prompts up to its own, which count as full: prompts that come meanwhile are
    read in them, too.
    """
    R, C = 0, 0
    least = np.float64(FAR)
    for place in range(s.running[shared]):
        r = s.batch[shared, place]
        if s.unread[r] == 0:
            R += 1
            C += s.context_r[r]
    next_ps = np.float64(_serving_ps(p, s, shared, False)) * p.shorter
    chunk = p.serving_chunk
    whole_ps = np.float64(roofline_ps(R, C, chunk, chunk * (chunk + 1) // 2, p.serving_table)) * p.shorter
    ahead = 0
    for place in range(s.running[shared]):
        r = s.batch[shared, place]
        if s.unread[r] == 0:
            least = min(least, s.last_token[r] + p.tpot_ps - now - next_ps)
        else:
            ahead += s.unread[r]
            least = min(least, p.arrival[r] + p.ttft_ps - now - (ahead + chunk - 1) // chunk * whole_ps)
    first = p.first[shared]
    for r in range(first + s.admitted[shared], first + s.arrived[shared]):
        ahead += p.prompt[r]
        least = min(least, p.arrival[r] + p.ttft_ps - now - (ahead + chunk - 1) // chunk * whole_ps)
    return least


@compiled(forceinline=True, **BORROWED)
def _admit(p, s, g, shared, now):  # type: ignore[no-untyped-def]
    """Take arrived requests into the batch, in their order, while there is room."""
    first, last = p.first[shared], p.first[shared + 1]
    seen = min(now, s.one[OVER])
    while first + s.arrived[shared] < last and p.arrival[first + s.arrived[shared]] <= seen:
        s.arrived[shared] += 1
    while s.admitted[shared] < s.arrived[shared] and s.running[shared] < p.serving_cap:
        r = first + s.admitted[shared]
        need = (p.prompt[r] + p.output[r]) * p.serving_kv
        if s.serving_kv[shared] + need > p.shared_pool:
            break
        s.serving_kv[shared] += need
        s.admitted[shared] += 1
        s.batch[shared, s.running[shared]] = r
        s.running[shared] += 1
        s.unread[r] = p.prompt[r]
        s.unwritten[r] = p.output[r]
        # Past the high-water mark half of what rollouts may hold is taken from them, until the next weights.
        mark = (1.0 - 0.5 * p.headroom) * p.shared_pool
        if s.serving_kv[shared] + s.budget[g] > mark and s.budget[g] > 0:
            s.counters[HALVED] += 1
            s.budget[g] //= 2
        _shrink(s, g, _limit(p, s, g))
    s.most_kv[shared] = max(s.most_kv[shared], s.serving_kv[shared] + s.guest_kv[g])


@compiled(forceinline=True, **BORROWED)
def _end_serving(p, s, shared, now, first_ps, last_ps, gap_ps):  # type: ignore[no-untyped-def]
    kept = 0
    for place in range(s.running[shared]):
        r = s.batch[shared, place]
        part = s.part_r[r]
        wrote = False
        if part > 0:
            s.unread[r] -= part
            s.context_r[r] += part
            if s.unread[r] == 0:
                first_ps[r] = now
                wrote = True
        elif part == 0:
            gap_ps[r] = max(gap_ps[r], now - s.last_token[r])
            wrote = True
        if wrote:
            s.context_r[r] += 1
            s.unwritten[r] -= 1
            s.last_token[r] = now
            if s.unwritten[r] == 0:
                last_ps[r] = now
                s.serving_kv[shared] -= (p.prompt[r] + p.output[r]) * p.serving_kv
                s.one[_CHANGED] = 1
                continue
        s.batch[shared, kept] = r
        kept += 1
    s.running[shared] = kept


@compiled(forceinline=True, **BORROWED)
def _end_guest(p, s, g, now, end):  # type: ignore[no-untyped-def]
    place = 0
    while place < s.guests[g]:
        i = s.slots[g, place]
        part = s.part[i]
        wrote = False
        if part > 0:
            s.unread_t[i] -= part
            wrote = s.unread_t[i] == 0
        elif part == 0:
            wrote = True
        if wrote:
            s.context[i] += 1
            s.left[i] -= 1
            s.counters[GUEST_TOKENS if g >= p.own + p.spot else OWN_TOKENS] += 1
            if s.left[i] == 0:
                turn = s.turn[i]
                end[turn] = now
                _leave(s, g, place)
                s.used[i] = now
                s.cached[i] = s.context[i]
                s.known[i] = s.context[i]
                s.idle_kv[g] += s.held[i]
                s.status[i] = _AWAY
                if turn + 1 == p.first_turn[i + 1]:
                    _drop_cache(s, i)
                _push_heap(s, now + p.delay[turn], i)
                continue
        s.part[i] = -1
        place += 1


@compiled(forceinline=True, **BORROWED)
def _new_weights(p, s, now):  # type: ignore[no-untyped-def]
    """New weights are on their way: caches of the old ones are of no use any more."""
    for i in range(s.one[_LOW], s.one[_STARTED]):
        if s.status[i] == _AWAY or s.status[i] == _READY:
            _drop_cache(s, i)
    for g in range(p.own + p.spot + p.shared):
        s.flush[g] = 1
        s.ready_at[g] = now + (p.own_sync_ps if g < p.own else p.guest_sync_ps)
        if g >= p.own + p.spot:
            shared = g - p.own - p.spot
            s.budget[g] = max(np.int64((1.0 - p.headroom) * p.shared_pool) - s.serving_kv[shared], 0)


@compiled(forceinline=True, **BORROWED)
def _flush(s, g):  # type: ignore[no-untyped-def]
    s.flush[g] = 0
    for place in range(s.guests[g]):
        i = s.slots[g, place]
        if s.unread_t[i] < s.context[i]:
            s.counters[RECOMPUTED] += s.context[i] - s.unread_t[i]
            s.unread_t[i] = s.context[i]


@compiled(forceinline=True, **BORROWED)
def _decide(p, s, g, now):  # type: ignore[no-untyped-def]
    """Begin the next step of an instance: the governor."""
    shared = g - p.own - p.spot
    s.action[g] = _IDLE
    s.free_at[g] = FAR
    if s.flush[g]:
        _flush(s, g)
    ready = s.there[g] == 1 and now >= s.ready_at[g]
    if shared < 0:
        if ready and s.guests[g] > 0:
            _begin(s, g, _GUEST, now, _guest_ps(p, s, g, p.own_chunk, True))
        return
    serves = p.governor != FREE
    if serves:
        _admit(p, s, g, shared, now)
    busy = (serves and s.arrived[shared] > s.admitted[shared]) or s.running[shared] > 0
    guest_ps = np.int64(0)
    if ready and p.governor != NONE:
        guest_ps = _guest_ps(p, s, g, p.guest_chunk, False)
        # Of an instance without turns: what a turn that came would begin with.
        chunk = p.guest_chunk
        asked_ps = guest_ps if guest_ps > 0 else roofline_ps(0, 0, chunk, chunk * (chunk + 1) // 2, p.rollout_table)
        allowed = not busy
        if busy and p.governor == SLACK:
            allowed = np.float64(asked_ps) * p.shorter <= _slack_ps(p, s, shared, now)
        elif busy and p.governor == INTERLEAVE:
            allowed = s.last_action[g] == _SERVE
        if allowed:
            if now - s.open_at[g] > OPEN_PS:
                s.one[_CHANGED] = 1
            s.open_at[g] = now
            if guest_ps > 0:
                s.progress_at[g] = now
                _begin(s, g, _GUEST, now, _guest_ps(p, s, g, p.guest_chunk, True))
                return
        elif s.guests[g] > 0 and now - s.progress_at[g] > p.stall_ps:
            while s.guests[g] > 0:
                _abort(s, g, s.guests[g] - 1)
    if serves and s.running[shared] > 0:
        _begin(s, g, _SERVE, now, _serving_ps(p, s, shared, True))
        return
    s.one[_CHANGED] = 1
    first, last = p.first[shared], p.first[shared + 1]
    if serves and first + s.arrived[shared] < last and p.arrival[first + s.arrived[shared]] <= s.one[OVER]:
        s.free_at[g] = p.arrival[first + s.arrived[shared]]


@compiled(forceinline=True, **BORROWED)
def _begin(s, g, action, now, takes):  # type: ignore[no-untyped-def]
    s.action[g] = action
    s.last_action[g] = action
    s.began_at[g] = now
    s.free_at[g] = now + takes


@compiled(**BORROWED)
def run(p, s, first_ps, last_ps, gap_ps, rollouts_ps, learnt_ps, began, learnt, begin, end):  # type: ignore[no-untyped-def]
    """Run until the trainer is done with the last batch and all is served that came until then.

    Parameters
    ----------
    p : Given
    s : State
    first_ps, last_ps, gap_ps, rollouts_ps, learnt_ps, began, learnt, begin, end : int64 array
        Are filled; :class:`~wavetank.training.rollouts.simulate.Run` explains them.

    Returns
    -------
    int
        When the trainer was done with the last batch, ps; -1 where it takes too many steps.
    """
    instances = p.own + p.spot + p.shared
    steps = p.ends.size
    trained_at = FAR
    for g in range(instances):
        s.there[g] = 0 if p.own <= g < p.own + p.spot else 1
        s.free_at[g] = FAR
        if g >= p.own + p.spot:
            s.budget[g] = np.int64((1.0 - p.headroom) * p.shared_pool)
            shared = g - p.own - p.spot
            if p.governor != FREE and p.first[shared] < p.first[shared + 1]:
                s.free_at[g] = p.arrival[p.first[shared]]
    now = np.int64(0)
    if steps:
        _start_trajectories(p, s, began)
        _dispatch(p, s, begin, now)
    events = 0
    own_told, guest_told = FAR, FAR
    while True:
        events += 1
        if events > MOST_STEPS:
            return -1
        # What comes next; of equal times the trainer, spot instances, environments, and instances in their order.
        now = trained_at
        kind, which = 0, 0
        if own_told < now:
            now, kind = own_told, 1
        if guest_told < now:
            now, kind = guest_told, 2
        for x in range(p.spot):
            at = p.up[x, s.spot_next[x] // 2] if s.spot_next[x] % 2 == 0 else p.down[x, s.spot_next[x] // 2]
            if at < now:
                now, kind, which = at, 3, x
        if s.one[_HEAP] and s.heap_at[0] < now:
            now, kind = s.heap_at[0], 4
        for g in range(instances):
            if s.free_at[g] < now:
                now, kind, which = s.free_at[g], 5, g
        if now >= FAR:
            break
        if kind == 0:
            version = s.one[_VERSION]
            learnt_ps[version] = now
            s.one[_VERSION] += 1
            trained_at = FAR
            if version + 1 == steps:
                # Who came until now is served to the end.
                s.one[OVER] = now
                continue
            _new_weights(p, s, now)
            own_told, guest_told = now + p.own_sync_ps, now + p.guest_sync_ps
            _start_trajectories(p, s, began)
        elif kind == 1:
            own_told = FAR
            for g in range(p.own):
                if s.action[g] == _IDLE and s.guests[g] > 0:
                    s.free_at[g] = now
        elif kind == 2:
            guest_told = FAR
            for g in range(p.own, instances):
                if s.ready_at[g] > now:
                    guest_told = min(guest_told, s.ready_at[g])
            for g in range(p.own, instances):
                if s.action[g] == _IDLE and (s.guests[g] > 0 or g >= p.own + p.spot):
                    s.free_at[g] = now
        elif kind == 3:
            g = p.own + which
            s.there[g] = 1 - s.there[g]
            s.spot_next[which] += 1
            if s.there[g] == 1:
                s.ready_at[g] = now + p.guest_sync_ps
                guest_told = min(guest_told, s.ready_at[g])
            else:
                s.action[g] = _IDLE
                s.free_at[g] = FAR
                _shrink(s, g, 0)
        elif kind == 4:
            i = _pop_heap(s)
            if s.turn[i] + 1 == p.first_turn[i + 1]:
                s.status[i] = _DONE
                batch = s.one[_VERSION]
                while p.ends[batch] <= i:
                    batch += 1
                s.missing[batch] -= 1
                if s.missing[batch] == 0:
                    rollouts_ps[batch] = now
            else:
                s.turn[i] += 1
                s.context[i] += p.answer
                s.left[i] = p.tokens[s.turn[i]]
                _push_ready(s, i)
        else:
            g = which
            took = now - s.began_at[g]
            if s.action[g] == _SERVE:
                s.counters[SERVING_PS] += took
                _end_serving(p, s, g - p.own - p.spot, now, first_ps, last_ps, gap_ps)
            elif s.action[g] == _GUEST:
                s.one[_CHANGED] = 1
                s.counters[GUEST_PS if g >= p.own + p.spot else OWN_PS] += took
                if g >= p.own + p.spot:
                    s.counters[LONGEST_GUEST_PS] = max(s.counters[LONGEST_GUEST_PS], took)
                _end_guest(p, s, g, now, end)
            # Turns that waited may come along in the next step.
            s.action[g] = _IDLE
            s.free_at[g] = FAR
            # Where only a token was served, no turn finds room that had found none before.
            if s.one[_CHANGED]:
                _dispatch(p, s, begin, now)
            _decide(p, s, g, now)
        if kind != 5 or s.one[_CHANGED]:
            _dispatch(p, s, begin, now)
        # Only a trajectory that ended, or a trainer that is free again, changes the answer.
        version = s.one[_VERSION]
        if (kind == 0 or kind == 4) and trained_at == FAR and version < steps and s.missing[version] == 0:
            for i in range(s.one[_LOW], p.ends[version]):
                learnt[i] = version
            s.one[_LOW] = p.ends[version]
            trained_at = now + p.train_ps[version]
    return s.one[OVER]
