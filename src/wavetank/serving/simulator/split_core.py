"""The compiled simulator of prefill and decode workers that work at the same time and hand KV caches over.

Both pools have the tables, workers and steps of :mod:`wavetank.serving.simulator.core`.  One loop goes from event to
event of both: steps that end, arrivals, caches that have arrived.  At each moment, in this order:

1. caches that have arrived leave their prefill worker and wait for the next step of their decode worker;
2. steps end;
3. views are refreshed;
4. requests that arrive are sent to a prefill worker;
5. prompts that have ended are sent to a decode worker, or wait in the pool of a router that has one;
6. at decode workers whose step has ended, or to which a prompt was sent, the prompts that wait there start their
   transfers, in the order in which they were sent, while there is room;
7. steps begin.

*Room.*  The worker has a free place in its batch, no preempted request waits there, and with the prompt its KV cache
holds the next token of everyone.  Place and tokens are reserved from then on.  Until the cache has arrived, its tokens
stay on the prefill worker, too: new prompts wait there for room.

*Transfers* of one prefill worker follow each other on its link; the start-up time of one passes while the next is on
the wire.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import int64, njit, typeof, types
from numpy.typing import NDArray

from wavetank.serving.routing.interface import (
    ACTIVE_TYPE,
    POOL_TYPE,
    ActiveView,
    PoolView,
    WorkersView,
    place_function,
    workers_at,
)
from wavetank.serving.simulator.prefix_cache import release
from wavetank.serving.simulator.router_side import (
    ask_pool_router,
    ask_router,
    keep_waiting,
    look_at,
    probe_workers,
    record_sent,
    refresh,
    refresh_pool,
    router_of,
    show_what_it_sent,
)
from wavetank.serving.simulator.tables import (
    ASKED_TYPE,
    BAD_PLACEMENT,
    CHOOSE_TYPE,
    COMPLETED,
    FINE,
    FLOATS,
    LATE,
    NEVER,
    PATIENCE,
    PLACE_TYPE,
    PS,
    RETRY_PS,
    STEP_TYPE,
    STUCK,
    UNFIT,
    Rules,
    Tables,
    borrow_pool,
    rules_at,
    tables_at,
)
from wavetank.serving.simulator.worker_steps import (
    cut_phase,
    decide_next,
    enqueue,
    finish,
    join,
    plan,
    shorten_phase,
    steps_done,
)
from wavetank.sim.borrow import borrowed
from wavetank.sim.compiled import compiled
from wavetank.sim.lent import borrower


class HandOver(NamedTuple):
    """What is between prefill and decode workers."""

    wire_ps: NDArray[np.int64]  # (n,): time of a request's KV cache on an idle link
    latency_ps: int
    pooled: int  # 1: the decode router has a pool
    began_ps: NDArray[np.int64]  # (n,): when room was reserved; -1 before that
    landed_ps: NDArray[np.int64]  # (n,): when its KV cache arrives
    known: NDArray[np.int8]  # (n,): 1 where it had arrived when the next step was decided
    link_free_ps: NDArray[np.int64]  # (prefill workers,)
    next: NDArray[np.int64]  # (n,): in the line of a decode worker, then among those that have arrived there
    line_head: NDArray[np.int64]  # (decode workers,): prompts that wait for room there
    line_tail: NDArray[np.int64]
    line_length: NDArray[np.int64]
    line_tokens: NDArray[np.int64]
    looks: NDArray[np.int8]  # (decode workers,): 1 where somebody came into the line, or a step ended, at this moment
    landed_head: NDArray[np.int64]  # (decode workers,): those that have arrived and wait for a step
    landed_tail: NDArray[np.int64]
    wanted: NDArray[np.int64]  # (decode workers, adapters): requests sent there that are not yet in the batch
    flying: NDArray[np.int64]  # (n,): heap of requests by landed_ps, then by number
    in_flight: NDArray[np.int64]  # (1,): size of the heap


def hand_over(n: int, prefill_workers: int, decode_workers: int, adapters: int) -> HandOver:
    """Return the empty tables for ``n`` requests.

    Parameters
    ----------
    n : int
    prefill_workers, decode_workers : int
    adapters : int
        Adapters of which the decode router is shown where they are.
    """
    nobody = np.full(decode_workers, -1, np.int64)
    none = np.zeros(decode_workers, np.int64)
    return HandOver(
        wire_ps=np.zeros(n, np.int64), latency_ps=0, pooled=0, began_ps=np.full(n, -1, np.int64),
        landed_ps=np.full(n, -1, np.int64), known=np.zeros(n, np.int8),
        link_free_ps=np.zeros(prefill_workers, np.int64), next=np.full(n, -1, np.int64),
        line_head=nobody.copy(), line_tail=nobody.copy(), line_length=none.copy(), line_tokens=none.copy(),
        looks=np.zeros(decode_workers, np.int8), landed_head=nobody.copy(), landed_tail=nobody.copy(),
        wanted=np.zeros((decode_workers, adapters), np.int64), flying=np.zeros(n, np.int64),
        in_flight=np.zeros(1, np.int64),
    )  # fmt: skip


hand_over_at = borrower(typeof(hand_over(1, 1, 1, 1)))

# ---------------------------------------------------------------------------------------------------------------------
# Caches on their way: a heap by the time of their arrival.


@njit(forceinline=True)
def _earlier(h: HandOver, one: int, other: int) -> Any:
    if h.landed_ps[one] != h.landed_ps[other]:
        return h.landed_ps[one] < h.landed_ps[other]
    return one < other


@njit
def _fly(h: HandOver, r: int) -> None:
    at = h.in_flight[0]
    h.in_flight[0] += 1
    while at > 0:
        above = (at - 1) >> 1
        if not _earlier(h, r, h.flying[above]):
            break
        h.flying[at] = h.flying[above]
        at = above
    h.flying[at] = r


@njit
def _pop_flying(h: HandOver) -> int:
    first = h.flying[0]
    h.in_flight[0] -= 1
    size = h.in_flight[0]
    r = h.flying[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _earlier(h, h.flying[below + 1], h.flying[below]):
            below += 1
        if not _earlier(h, h.flying[below], r):
            break
        h.flying[at] = h.flying[below]
        at = below
    h.flying[at] = r
    return first


# ---------------------------------------------------------------------------------------------------------------------
# Steps.


@njit
def _plan(t: Tables, rules: Rules, step_time: Any, d: int) -> None:
    plan(t, rules, step_time, d)


@njit
def _finish(t: Tables, rules: Rules, d: int) -> None:
    finish(t, rules, d)


@njit
def _next_end(t: Tables) -> Any:
    """Return when the next step or phase ends."""
    nearest = NEVER
    for d in range(t.domains.size):
        if t.domains[d].planned:
            nearest = min(nearest, t.domains[d].phase_end_ps)
    return nearest


@njit
def _finish_due(t: Tables, rules: Rules, now_ps: int) -> None:
    for d in range(t.domains.size):
        if t.domains[d].planned and t.domains[d].phase_end_ps <= now_ps:
            _finish(t, rules, d)


@njit
def _finish_decode(t: Tables, rules: Rules, h: HandOver, d: int) -> None:
    _finish(t, rules, d)
    h.looks[d * rules.group : (d + 1) * rules.group] = 1


@njit(forceinline=True)
def _wake(domain: Any, now_ps: int) -> None:
    if domain.idle:
        domain.idle = 0
        domain.now_ps = now_ps


@njit
def _begin_prefill(t: Tables, rules: Rules, step_time: Any) -> None:
    for d in range(t.domains.size):
        if not t.domains[d].planned and not t.domains[d].idle:
            _plan(t, rules, step_time, d)


@njit
def _join_landed(t: Tables, rules: Rules, h: HandOver, d: int, late: int) -> int:
    """Let those whose caches have arrived into the batch; returns how many still wait.

    ``late``: the batch was decided when the step before began.
    """
    left = 0
    for w in range(d * rules.group, (d + 1) * rules.group):
        r = h.landed_head[w]
        before = np.int64(-1)
        while r >= 0:
            after = h.next[r]
            if (late and not h.known[r]) or not join(t, rules, w, r):
                before = r
                left += 1
            else:
                if h.wanted.shape[1] > 0 and t.asks[r].adapter < h.wanted.shape[1]:
                    h.wanted[w, t.asks[r].adapter] -= 1
                if before >= 0:
                    h.next[before] = after
                else:
                    h.landed_head[w] = after
                if after < 0:
                    h.landed_tail[w] = before
            r = after
    return left


@njit
def _begin_decode(t: Tables, rules: Rules, h: HandOver, step_time: Any, waits: int) -> None:
    """Begin the steps of decode workers that are at a boundary; ``waits``: somebody waits in the router's pool."""
    for d in range(t.domains.size):
        domain = t.domains[d]
        while not domain.planned and not domain.idle:
            late = np.int64(rules.ahead and domain.active > 0)
            if rules.ahead and not late:
                # Nothing was decided while nobody ran, so that those who join keep nobody out.
                for w in range(d * rules.group, (d + 1) * rules.group):
                    decide_next(t, rules, w)
            left = _join_landed(t, rules, h, d, late)
            _plan(t, rules, step_time, d)
            if left > 0:
                for w in range(d * rules.group, (d + 1) * rules.group):
                    r = h.landed_head[w]
                    while r >= 0:
                        h.known[r] = 1
                        r = h.next[r]
                # Who was not yet decided about, or whose adapter has no slot, is looked at before the next step; where
                # the last one that ran was preempted, at once.
                if domain.idle:
                    domain.idle = 0
            if domain.planned and (left > 0 or (waits and t.domains.size == 1)):
                cut_phase(domain, domain.now_ps + 1)


# ---------------------------------------------------------------------------------------------------------------------
# From a prefill worker to a decode worker.


@njit
def _land(tp: Tables, rp: Rules, td: Tables, rd: Rules, h: HandOver, now_ps: int) -> None:
    """Let the caches that arrive at this moment leave their prefill workers."""
    while h.in_flight[0] > 0 and h.landed_ps[h.flying[0]] <= now_ps:
        r = _pop_flying(h)
        w = np.int64(tp.requests[r].worker)
        release(tp, rp, w, r, np.int64(tp.requests[r].prompt))
        if tp.domains[w // rp.group].queued > 0:
            _wake(tp.domains[w // rp.group], now_ps)
        w = np.int64(td.requests[r].worker)
        h.next[r] = -1
        if h.landed_tail[w] >= 0:
            h.next[h.landed_tail[w]] = r
        else:
            h.landed_head[w] = r
        h.landed_tail[w] = r
        if rd.extended:
            td.benches[w].came += 1
        domain = td.domains[w // rd.group]
        _wake(domain, now_ps)
        cut_phase(domain, now_ps)


@njit(forceinline=True)
def _has_room(t: Tables, rules: Rules, w: int, r: int, now_ps: int) -> bool:
    worker = t.workers[w]
    limits = t.limits[worker.kind]
    if worker.running >= limits.slots or worker.queue_length > 0:
        return False
    domain = t.domains[w // rules.group]
    grown = worker.decoding * steps_done(domain, now_ps) if domain.planned else np.int64(0)
    limit = limits.admit_below if worker.running > 0 else worker.capacity
    return worker.held + grown + worker.running + t.requests[r].prompt + 1 <= limit


@njit
def _begin_transfers(tp: Tables, td: Tables, rd: Rules, h: HandOver, now_ps: int) -> None:
    """Start the transfers for which decode workers have room."""
    for w in range(rd.workers):
        worker = td.workers[w]
        domain = td.domains[w // rd.group]
        if not h.looks[w]:
            continue
        h.looks[w] = 0
        while h.line_head[w] >= 0 and _has_room(td, rd, w, h.line_head[w], now_ps):
            r = h.line_head[w]
            h.line_head[w] = h.next[r]
            if h.line_head[w] < 0:
                h.line_tail[w] = -1
            h.line_length[w] -= 1
            h.line_tokens[w] -= td.requests[r].prompt
            worker.held += td.requests[r].prompt
            worker.running += 1
            if worker.decoding > 0:
                shorten_phase(domain, (worker.capacity - worker.held) // worker.decoding)
            if rd.extended:
                # The scheduler takes longer.
                cut_phase(domain, now_ps)
            h.began_ps[r] = now_ps
            sender = tp.requests[r].worker
            h.link_free_ps[sender] = min(max(h.link_free_ps[sender], now_ps), NEVER) + h.wire_ps[r]
            h.landed_ps[r] = h.link_free_ps[sender] + h.latency_ps
            _fly(h, r)


@njit
def _stand_in_line(t: Tables, h: HandOver, w: int, r: int) -> None:
    t.requests[r].worker = w
    h.next[r] = -1
    if h.line_tail[w] >= 0:
        h.next[h.line_tail[w]] = r
    else:
        h.line_head[w] = r
    h.line_tail[w] = r
    h.line_length[w] += 1
    h.line_tokens[w] += t.requests[r].prompt
    h.looks[w] = 1
    if h.wanted.shape[1] > 0 and t.asks[r].adapter < h.wanted.shape[1]:
        h.wanted[w, t.asks[r].adapter] += 1


# ---------------------------------------------------------------------------------------------------------------------
# Routers.


@njit
def _look(
    t: Tables, rules: Rules, h: HandOver, view: WorkersView, active: ActiveView, decodes: int, now_ps: int
) -> int:
    """Bring a view to ``now_ps``, which is returned; that of the decode workers counts the lines as waiting."""
    if not decodes:
        refresh(t, rules, view, now_ps)
        return now_ps
    if h.pooled:
        refresh_pool(t, rules, view, active, now_ps)
    else:
        refresh(t, rules, view, now_ps)
    for w in range(rules.workers):
        view.waiting[w] += h.line_length[w]
        view.waiting_tokens[w] += h.line_tokens[w]
        if t.lora.shape[1] > 0:
            for a in range(h.wanted.shape[1]):
                if h.wanted[w, a] > 0:
                    for copy in range(rules.routers):
                        t.lora[copy * rules.workers + w, a] = 1
    return now_ps


@njit(forceinline=True)
def _due(rules: Rules, refreshed_ps: int, until_ps: int) -> Any:
    """Return the last refresh up to a moment; NEVER where there is none since the last one."""
    if rules.refresh_ps == 0:
        return NEVER
    due = until_ps // rules.refresh_ps * rules.refresh_ps
    return due if due > refreshed_ps else NEVER


@njit
def _choose(
    t: Tables,
    rules: Rules,
    view: WorkersView,
    choose: Any,
    states: NDArray[np.float64],
    parameters: NDArray[np.float64],
    asked: NDArray[Any],
    r: int,
    now_ps: int,
    refreshed_ps: int,
) -> int:
    """Let a router place a request; returns the worker, or what is wrong, negative."""
    states, parameters, asked = borrowed(states), borrowed(parameters), borrowed(asked)
    for w in range(rules.workers):
        view.age_s[w] = (now_ps - refreshed_ps) / PS
    said = asked[r if asked.size > 1 else 0]
    copy = router_of(rules, r)
    if rules.routers > 1:
        show_what_it_sent(t, rules, view, copy)
    look_at(t, rules, view, said, r, now_ps, copy)
    w = ask_router(t, rules, view, choose, states, parameters, said, r, now_ps, copy)
    if w < 0:
        return w
    record_sent(t, rules, view, w, r, now_ps, copy)
    return w


@njit
def _ask_pool(
    t: Tables,
    rules: Rules,
    view: WorkersView,
    pool: PoolView,
    active: ActiveView,
    placed: NDArray[np.int64],
    place: Any,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    asked: NDArray[Any],
    now_ps: int,
    refreshed_ps: int,
) -> int:
    """Let a pool router decide once; returns how many requests it looked at, or what is wrong, negative."""
    pool = borrow_pool(pool)
    placed, state, parameters, asked = borrowed(placed), borrowed(state), borrowed(parameters), borrowed(asked)
    n = ask_pool_router(t, rules, view, pool, active, placed, place, state, parameters, asked, now_ps, refreshed_ps)
    for i in range(n):
        w = placed[i]
        if w >= rules.workers or w < -1:
            return -BAD_PLACEMENT
        if w >= 0 and (view.takes[w] == 0 or pool.serves[i, w] == 0):
            return -UNFIT
    return n


@njit
def _in_order(numbers: NDArray[np.int64], size: int) -> None:
    numbers = borrowed(numbers)
    for i in range(1, size):
        number = numbers[i]
        at = i
        while at > 0 and numbers[at - 1] > number:
            numbers[at] = numbers[at - 1]
            at -= 1
        numbers[at] = number


@njit(forceinline=True)
def _asks_now(td: Tables, rd: Rules, h: HandOver, now_ps: int, ended: int, completed: int, retries: int) -> int:
    """Say whether a router with a pool decides at this moment.

    Where the decode workers step together, before each of their steps; else when a prompt has ended, and at every
    refresh, or with fresh signals whenever a request completes.
    """
    if td.domains.size == 1:
        domain = td.domains[0]
        if domain.planned:
            # Somebody waits: the group looks at the pool at its next boundary.
            cut_phase(domain, now_ps)
            if domain.phase_end_ps > now_ps:
                return 0
            _finish_decode(td, rd, h, np.int64(0))
        return not domain.idle or ended or retries
    if rd.refresh_ps > 0:
        return ended or now_ps % rd.refresh_ps == 0
    return ended or completed or retries


@place_function
def nobody_waits(
    view: WorkersView,
    pool: PoolView,
    active: ActiveView,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    placed: NDArray[np.int64],
) -> int:
    """Place nobody: stands for the pool of a router that has none."""
    return 0


_ROUTER = (CHOOSE_TYPE, types.float64[:, ::1], FLOATS, types.int64[::1])


@compiled(
    types.UniTuple(int64, 2)(
        *(types.int64[::1],) * 5, STEP_TYPE, STEP_TYPE, *_ROUTER, *_ROUTER, PLACE_TYPE, POOL_TYPE, ACTIVE_TYPE,
        types.int64[::1], ASKED_TYPE, types.int64[::1],
    ),
    nogil=True,
    at_first_call=True,
)  # fmt: skip
def run_split(
    prefill_words: NDArray[np.int64],
    prefill_rules: NDArray[np.int64],
    decode_words: NDArray[np.int64],
    decode_rules: NDArray[np.int64],
    hand_over_words: NDArray[np.int64],
    prefill_step: Any,
    decode_step: Any,
    choose: Any,
    states: NDArray[np.float64],
    parameters: NDArray[np.float64],
    view_words: NDArray[np.int64],
    decode_choose: Any,
    decode_states: NDArray[np.float64],
    decode_parameters: NDArray[np.float64],
    decode_view_words: NDArray[np.int64],
    decode_place: Any,
    pool: PoolView,
    active: ActiveView,
    placed: NDArray[np.int64],
    asked: NDArray[Any],
    probe_ps: NDArray[np.int64],
) -> tuple[int, int]:
    """Run the whole trace; returns how it ended, and behind which router: 0 of prefill workers, 1 of decode workers.

    Tables, rules and views are given as their words (:func:`wavetank.sim.lent.words`).  Of ``decode_choose`` and
    ``decode_place`` one is called: the latter where the decode router has a pool.
    """
    tp, rp, td, rd = tables_at(prefill_words), rules_at(prefill_rules), tables_at(decode_words), rules_at(decode_rules)
    h, view, decode_view = hand_over_at(hand_over_words), workers_at(view_words), workers_at(decode_view_words)
    asked, probe_ps = borrowed(asked), borrowed(probe_ps)
    n = tp.requests.size
    single = td.domains.size == 1
    now = refreshed = decode_refreshed = np.int64(0)
    arrived = probe = in_vain = 0
    _look(tp, rp, h, view, active, 0, now)
    _look(td, rd, h, decode_view, active, 1, now)
    while True:
        before = now
        now = min(_next_end(tp), _next_end(td))
        if arrived < n:
            now = min(now, tp.requests[arrived].arrival_ps)
        if h.in_flight[0] > 0:
            now = min(now, h.landed_ps[h.flying[0]])
        waits = td.pool_ends[0] < td.pool_ends[1]
        # Where nothing else happens, a router that placed nobody (its view may be stale) is asked again.
        retries = waits and now == NEVER
        if waits and not single and rd.refresh_ps > 0:
            now = min(now, (decode_refreshed // rd.refresh_ps + 1) * rd.refresh_ps)
        elif retries:
            now = before + max(rd.refresh_ps, RETRY_PS)
        in_vain = in_vain + 1 if retries else 0
        if in_vain > PATIENCE:
            return STUCK, 1
        if now >= NEVER:
            break
        # What was to be looked at since the last event.
        while probe < probe_ps.size and probe_ps[probe] < now:
            probe_workers(td, rd, probe, probe_ps[probe])
            probe += 1
        due = _due(rp, refreshed, now - 1)
        if due != NEVER:
            refreshed = _look(tp, rp, h, view, active, 0, due)
        due = _due(rd, decode_refreshed, now - 1)
        if due != NEVER:
            decode_refreshed = _look(td, rd, h, decode_view, active, 1, due)
        _land(tp, rp, td, rd, h, now)
        completed = td.counts[COMPLETED]
        _finish_due(tp, rp, now)
        for d in range(td.domains.size):
            if td.domains[d].planned and td.domains[d].phase_end_ps <= now:
                _finish_decode(td, rd, h, d)
        completed = np.int64(td.counts[COMPLETED] > completed)
        if _due(rp, refreshed, now) != NEVER:
            refreshed = _look(tp, rp, h, view, active, 0, now)
        if _due(rd, decode_refreshed, now) != NEVER:
            decode_refreshed = _look(td, rd, h, decode_view, active, 1, now)
        while arrived < n and tp.requests[arrived].arrival_ps == now:
            if rp.refresh_ps == 0:
                refreshed = _look(tp, rp, h, view, active, 0, now)
            w = _choose(tp, rp, view, choose, states, parameters, asked, arrived, now, refreshed)
            if w < 0:
                return -w, 0
            enqueue(tp, rp, w, arrived, now)
            arrived += 1
        ended = tp.pool_ends[1]
        tp.pool_ends[1] = 0
        _in_order(tp.pool, ended)
        for i in range(ended):
            r = tp.pool[i]
            request = td.requests[r]
            request.arrival_ps = request.first_ps = now
            request.generated = 1
            if h.pooled:
                td.pool[td.pool_ends[1]] = r
                td.pool_ends[1] += 1
                continue
            if rd.refresh_ps == 0:
                decode_refreshed = _look(td, rd, h, decode_view, active, 1, now)
            w = _choose(
                td, rd, decode_view, decode_choose, decode_states, decode_parameters, asked, r, now, decode_refreshed
            )
            if w < 0:
                return -w, 1
            _stand_in_line(td, h, w, r)
        if td.pool_ends[0] < td.pool_ends[1] and _asks_now(td, rd, h, now, ended, completed, retries):
            if rd.refresh_ps == 0:
                decode_refreshed = _look(td, rd, h, decode_view, active, 1, now)
            looked = _ask_pool(
                td, rd, decode_view, pool, active, placed, decode_place, decode_states[0], decode_parameters, asked,
                now, decode_refreshed,
            )  # fmt: skip
            if looked < 0:
                return -looked, 1
            for i in range(looked):
                if placed[i] >= 0:
                    r = td.pool[td.pool_ends[0] + i]
                    record_sent(td, rd, decode_view, placed[i], r, now, np.int64(0))
                    _stand_in_line(td, h, placed[i], r)
            keep_waiting(td, borrowed(placed), looked)
        _begin_transfers(tp, td, rd, h, now)
        # A cache that takes no time.
        _land(tp, rp, td, rd, h, now)
        _finish_due(td, rd, now)
        _begin_prefill(tp, rp, prefill_step)
        _begin_decode(td, rd, h, decode_step, np.int64(td.pool_ends[0] < td.pool_ends[1]))
    while probe < probe_ps.size:
        probe_workers(td, rd, probe, probe_ps[probe])
        probe += 1
    for r in range(n):
        if tp.requests[r].finish_ps < 0 and td.requests[r].finish_ps < 0:
            return LATE, 1
    return FINE, 0
