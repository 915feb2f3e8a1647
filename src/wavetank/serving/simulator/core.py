"""The compiled simulator: replicas with continuous batching, alone or in lockstep groups, behind any router.

Time is a whole number of picoseconds, so the closed form below and a simulator that ticks every step agree to the last
bit (:mod:`wavetank.serving.simulator.reference` is that simulator, and a property test holds the two together).

*Domains.*  Workers that share a step barrier form a domain with one clock; an independent replica is a domain of one.
A domain is always at a step boundary (``planned == 0``) or inside a planned phase of ``phase_steps`` equal-batch steps.

*Fast-forward.*  In a domain of one, while nobody prefills, R running requests with C resident tokens take steps of
``f(R) + c*C`` and C grows by R a step: k steps take ``k*(f(R) + c*C) + c*R*k*(k-1)/2``.  The phase ends with the next
completion (a heap keyed by finishing step), when the KV cache is full, or at the first boundary at or after an arrival
that may be admitted (a quadratic, solved in floating point and corrected in integers).

*What is simulated.*  One step gives every decoding request one token; the rest of the token budget goes to prefill
chunks, first come first served.  A request's last prefill chunk yields its first token at the end of that step.  The
prompt is reserved in the KV cache at admission; every decode step adds one token a request; when the cache cannot take
the next step, the request admitted last is preempted, gives up its tokens and recomputes prompt and output later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, njit, types
from numpy.typing import NDArray

from wavetank.serving.routing.interface import (
    ACTIVE_TYPE,
    POOL_TYPE,
    ActiveView,
    PoolView,
    WorkersView,
    workers_at,
)
from wavetank.serving.simulator.router_side import (
    ask_router,
    look_at,
    place_pool,
    probe_until,
    probe_workers,
    refresh,
    refresh_pool,
    router_of,
    send,
    show_what_it_sent,
)
from wavetank.serving.simulator.tables import (
    ASKED_TYPE,
    CHOOSE_TYPE,
    COMPLETED,
    FINE,
    FLOATS,
    LATE,
    NEVER,
    PATIENCE,
    PLACE_TYPE,
    PS,
    REFUSED,
    RETRY_PS,
    STEP_TYPE,
    STUCK,
    Rules,
    Tables,
    rules_at,
    tables_at,
)
from wavetank.serving.simulator.worker_steps import advance, advance_all, cut_phase, finish, plan
from wavetank.sim.borrow import borrowed
from wavetank.sim.compiled import compiled


@njit
def interrupt(t: Tables, rules: Rules, d: int, now_ps: int) -> None:
    """Let a domain look at the pool at its first boundary from now on."""
    domain = t.domains[d]
    if domain.idle:
        domain.idle = 0
        domain.now_ps = max(domain.now_ps, now_ps)
    else:
        cut_phase(domain, now_ps)


# The words of the tables and of the rules, and the step time.
_ROUTED = (types.int64[::1], types.int64[::1], STEP_TYPE)


@compiled(
    int64(*_ROUTED, CHOOSE_TYPE, types.float64[:, ::1], FLOATS, types.int64[::1], ASKED_TYPE, types.int64[::1]),
    nogil=True,
    at_first_call=True,
)
def run_arrivals(
    table_words: NDArray[np.int64],
    rule_words: NDArray[np.int64],
    step_time: Any,
    choose: Any,
    states: NDArray[np.float64],
    parameters: NDArray[np.float64],
    view_words: NDArray[np.int64],
    asked: NDArray[Any],
    probe_ps: NDArray[np.int64],
) -> int:
    """Run the whole trace behind a router that places every request at its arrival; returns how it ended.

    Tables, rules and view are given as their words (:func:`wavetank.sim.lent.words`); ``states`` has a row for every
    copy of the router.
    """
    t, rules, view = tables_at(table_words), rules_at(rule_words), workers_at(view_words)
    # A plain Python router may keep what it is given of its state, which stays counted.
    asked, probe_ps = borrowed(asked), borrowed(probe_ps)
    looks = t.sent_ps.shape[1] + t.serves.shape[1] + t.lora.shape[1] + rules.events > 0
    refreshed = np.int64(0)
    probe = 0
    refresh(t, rules, view, np.int64(0))
    for r in range(t.requests.size):
        now = t.requests[r].arrival_ps
        due = now if rules.refresh_ps == 0 else now // rules.refresh_ps * rules.refresh_ps
        # A probe takes the domains further, and the router must not see what comes after its look.
        if probe < probe_ps.size and probe_ps[probe] < due:
            probe = probe_until(t, rules, step_time, probe_ps, probe, due - 1)
        if due > refreshed or rules.refresh_ps == 0:
            advance_all(t, rules, step_time, due)
            refresh(t, rules, view, due)
            refreshed = due
        if probe < probe_ps.size and probe_ps[probe] <= now:
            probe = probe_until(t, rules, step_time, probe_ps, probe, now)
        if rules.refresh_ps > 0:
            age = (now - refreshed) / PS
            for w in range(rules.workers):
                view.age_s[w] = age
        said = asked[r if asked.size > 1 else 0]
        copy = router_of(rules, r)
        if rules.routers > 1:
            show_what_it_sent(t, rules, view, copy)
        if looks:
            look_at(t, rules, view, said, r, now, copy)
        w = ask_router(t, rules, view, choose, states, parameters, said, r, now, copy)
        if w < 0:
            return -w
        advance(t, rules, step_time, w // rules.group, now)
        if rules.max_waiting > 0 and t.workers[w].queue_length >= rules.max_waiting:
            t.counts[REFUSED] += 1
            continue
        send(t, rules, view, w, r, now, copy)
    probe_until(t, rules, step_time, probe_ps, probe, NEVER)
    advance_all(t, rules, step_time, NEVER)
    return FINE


@njit
def _advance_pool(
    t: Tables,
    rules: Rules,
    step_time: Any,
    view: WorkersView,
    pool: PoolView,
    active: ActiveView,
    placed: NDArray[np.int64],
    place: Any,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    asked: NDArray[Any],
    refreshed: NDArray[np.int64],
    until_ps: int,
) -> int:
    """Take the only domain to ``until_ps``, with a decision before every step that it starts."""
    domain = t.domains[0]
    in_vain = 0
    while True:
        if domain.planned:
            if domain.phase_end_ps > until_ps:
                return FINE
            in_vain = 0
            finish(t, rules, np.int64(0))
        elif domain.idle or domain.now_ps >= until_ps:
            return FINE
        elif domain.queued == 0 and domain.active == 0 and t.pool_ends[0] == t.pool_ends[1]:
            domain.idle = 1
            return FINE
        else:
            now = domain.now_ps
            if rules.refresh_ps == 0 or now >= refreshed[0] + rules.refresh_ps:
                refresh_pool(t, rules, view, active, now)
                refreshed[0] = now
            ended = place_pool(
                t, rules, step_time, view, pool, active, placed, place, state, parameters, asked, now, refreshed[0]
            )
            if ended != FINE:
                return ended
            plan(t, rules, step_time, np.int64(0))
            if t.pool_ends[0] < t.pool_ends[1]:
                # While requests wait every step begins with a decision, and otherwise with a look that is due.
                cut_phase(domain, now)
            elif rules.refresh_ps > 0:
                cut_phase(domain, refreshed[0] + rules.refresh_ps)
            if domain.idle and t.pool_ends[0] < t.pool_ends[1]:
                # Nobody runs and the router placed nobody (its view may be stale): it decides again a refresh later.
                in_vain += 1
                if in_vain > PATIENCE:
                    return STUCK
                domain.idle = 0
                domain.now_ps = now + max(rules.refresh_ps, RETRY_PS)
                if domain.now_ps >= NEVER:
                    return LATE


@njit
def next_completion(t: Tables, rules: Rules, step_time: Any, retry_ps: int, until_ps: int) -> int:
    """Take all domains to the next moment at which a request completes, at ``until_ps`` at the latest.

    Returns that moment, ``retry_ps`` when no domain has anything to do, or NEVER when nothing completes until then.
    """
    domains = rules.workers // rules.group
    completed = t.counts[COMPLETED]
    while True:
        busy = False
        nearest = NEVER
        for d in range(domains):
            domain = t.domains[d]
            busy = busy or domain.active > 0 or domain.queued > 0
            if domain.now_ps <= until_ps:
                # Plans what starts at its boundary; no step ends within a picosecond of its start.
                advance(t, rules, step_time, d, domain.now_ps + 1)
            if domain.planned:
                nearest = min(nearest, domain.phase_end_ps)
        if not busy:
            return retry_ps
        if nearest > until_ps:
            return NEVER
        advance_all(t, rules, step_time, nearest)
        if t.counts[COMPLETED] > completed:
            return nearest


@compiled(
    int64(
        *_ROUTED,
        PLACE_TYPE,
        FLOATS,
        FLOATS,
        types.int64[::1],
        POOL_TYPE,
        ACTIVE_TYPE,
        types.int64[::1],
        ASKED_TYPE,
        types.int64[::1],
    ),
    nogil=True,
    at_first_call=True,
)
def run_pool(
    table_words: NDArray[np.int64],
    rule_words: NDArray[np.int64],
    step_time: Any,
    place: Any,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    view_words: NDArray[np.int64],
    pool: PoolView,
    active: ActiveView,
    placed: NDArray[np.int64],
    asked: NDArray[Any],
    probe_ps: NDArray[np.int64],
) -> int:
    """Run the whole trace behind a router with a pool; returns how it ended.

    One domain: the router decides before every step.  Several: at every arrival, and while requests wait at every
    refresh; where signals are always fresh, at every moment at which a request completes, and a millisecond after a
    decision that left everybody idle.  Tables, rules and view are given as their words
    (:func:`wavetank.sim.lent.words`).
    """
    t, rules, view = tables_at(table_words), rules_at(rule_words), workers_at(view_words)
    domains = rules.workers // rules.group
    refreshed = np.zeros(1, np.int64)
    probe = 0
    n = t.requests.size
    tick = rules.refresh_ps
    refresh_pool(t, rules, view, active, np.int64(0))
    r = 0
    in_vain = 0
    while r < n or probe < probe_ps.size or t.pool_ends[0] < t.pool_ends[1]:
        # The next moment at which something outside the domains happens: a probe, an arrival, a refresh.
        now = NEVER
        if r < n:
            now = t.requests[r].arrival_ps
        if domains > 1 and t.pool_ends[0] < t.pool_ends[1]:
            if tick > 0:
                now = min(now, (refreshed[0] // tick + 1) * tick)
                if now >= NEVER:
                    return LATE
            else:
                until = min(now - 1, probe_ps[probe]) if probe < probe_ps.size else now - 1
                now = min(now, next_completion(t, rules, step_time, refreshed[0] + RETRY_PS, until))
                if now == NEVER:
                    return LATE
        if probe < probe_ps.size and probe_ps[probe] <= now:
            now = probe_ps[probe]
            if domains == 1:
                ended = _advance_pool(
                    t, rules, step_time, view, pool, active, placed, place, state, parameters, asked, refreshed, now
                )
                if ended != FINE:
                    return ended
            else:
                if rules.refresh_ps > 0 and r < n and t.pool_ends[0] == t.pool_ends[1]:
                    due = t.requests[r].arrival_ps // tick * tick
                    if refreshed[0] < due <= now:
                        # The router looks before the probe takes the domains further.
                        advance_all(t, rules, step_time, due)
                        refresh_pool(t, rules, view, active, due)
                        refreshed[0] = due
                advance_all(t, rules, step_time, now)
            probe_workers(t, rules, probe, now)
            probe += 1
            continue
        if domains == 1:
            ended = _advance_pool(
                t, rules, step_time, view, pool, active, placed, place, state, parameters, asked, refreshed, now
            )
            if ended != FINE:
                return ended
            if r < n:
                t.pool[t.pool_ends[1]] = r
                t.pool_ends[1] += 1
                r += 1
                interrupt(t, rules, np.int64(0), now)
            elif probe == probe_ps.size and t.pool_ends[0] < t.pool_ends[1]:
                return LATE
            continue
        due = now // tick * tick if rules.refresh_ps > 0 else now
        if due > refreshed[0] or rules.refresh_ps == 0:
            advance_all(t, rules, step_time, due)
            refresh_pool(t, rules, view, active, due)
            refreshed[0] = due
        if r < n and t.requests[r].arrival_ps == now:
            t.pool[t.pool_ends[1]] = r
            t.pool_ends[1] += 1
            r += 1
        before = t.pool_ends[0]
        ended = place_pool(
            t, rules, step_time, view, pool, active, placed, place, state, parameters, asked, now, refreshed[0]
        )
        if ended != FINE:
            return ended
        busy = r < n or t.pool_ends[0] > before
        if not busy:
            advance_all(t, rules, step_time, now)
            for d in range(domains):
                busy = busy or t.domains[d].active > 0 or t.domains[d].queued > 0
        in_vain = 0 if busy else in_vain + 1
        if in_vain > PATIENCE:
            return STUCK
    advance_all(t, rules, step_time, NEVER)
    return FINE
