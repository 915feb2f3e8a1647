"""The event loops of the compiled simulator where workers fail, recover, drain and join.

They are those of :mod:`~wavetank.serving.simulator.core`, kept apart so that a run without changes pays nothing.  At
one moment steps end, then a view that is due is refreshed, then workers change, then requests are sent again, then
requests arrive; a view that is always fresh shows the changes of its moment.

*Where nobody is seen to take a request* it waits: behind a router that places requests at arrival in a line of its own,
to be sent at the first refresh that shows a worker; behind a router with a pool in the pool.
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
from wavetank.serving.simulator.changes import UP
from wavetank.serving.simulator.changing_workers import (
    ENDED_PS,
    ORPHANS,
    STRANDED,
    WAITING,
    Fates,
    all_ended,
    change_workers,
    close_up_times,
    deliver,
    fates_at,
    forget_tries,
    give_up,
    may_be_sent_again,
    next_change_ps,
    refuse_connection,
    send_elsewhere,
    show_who_takes,
    shows_somebody,
    sorted_orphans,
    stranded,
)
from wavetank.serving.simulator.core import interrupt, next_completion
from wavetank.serving.simulator.router_side import (
    ask_pool_router,
    ask_router,
    keep_waiting,
    look_at,
    probe_until,
    probe_workers,
    refresh,
    refresh_pool,
    router_of,
    show_what_it_sent,
)
from wavetank.serving.simulator.tables import (
    ASKED_TYPE,
    BAD_PLACEMENT,
    CHOOSE_TYPE,
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
from wavetank.serving.simulator.worker_steps import advance, advance_all, cut_phase, finish, plan
from wavetank.sim.borrow import borrowed
from wavetank.sim.compiled import compiled

_WORDS = types.int64[::1]
# The words of the tables, of the rules and of the fates, and the step time.
_ROUTED = (_WORDS, _WORDS, _WORDS, STEP_TYPE)


@njit(forceinline=True)
def _model_of(asked: NDArray[Any], r: int) -> int:
    return asked[r if asked.size > 1 else 0].model


@njit
def _last_end_ps(t: Tables, f: Fates) -> int:
    """Return when the last request arrived or ended."""
    last = f.sums[ENDED_PS]
    for r in range(t.requests.size):
        last = max(last, t.requests[r].finish_ps, t.requests[r].arrival_ps)
    return last


# ---------------------------------------------------------------------------------------------------------------------
# Behind a router that places requests at arrival.


@njit
def _let_wait(t: Tables, f: Fates, r: int, now_ps: int) -> None:
    if stranded(t, f, r, now_ps):
        f.waiting[f.sums[WAITING]] = r
        f.sums[WAITING] += 1


@njit
def _send_those_that_wait(
    t: Tables, rules: Rules, f: Fates, view: WorkersView, asked: NDArray[Any], now_ps: int, shown: int
) -> None:
    """Send requests that waited for a worker to one that the view now shows, and end the waits that took too long.

    ``shown``: the view was refreshed at this moment.
    """
    asked = borrowed(asked)
    kept = 0
    for i in range(f.sums[WAITING]):
        r = f.waiting[i]
        since_ps = f.since_ps[r]
        if shown:
            if send_elsewhere(t, rules, f, view, _model_of(asked, r), r, now_ps):
                continue
            forget_tries(f, r)
        if since_ps + f.wait_ps <= now_ps:
            give_up(t, f, r, now_ps)
        else:
            f.waiting[kept] = r
            kept += 1
    f.sums[WAITING] = kept


@njit
def _send_orphans(t: Tables, rules: Rules, f: Fates, view: WorkersView, asked: NDArray[Any], now_ps: int) -> None:
    asked = borrowed(asked)
    for i in range(sorted_orphans(f)):
        r = f.orphans[i]
        if may_be_sent_again(t, f, r, now_ps) and not send_elsewhere(t, rules, f, view, _model_of(asked, r), r, now_ps):
            _let_wait(t, f, r, now_ps)


@njit(forceinline=True)
def _next_waiting_ps(rules: Rules, f: Fates, refreshed_ps: int) -> int:
    """Return when something happens to requests that wait for a worker; NEVER where none does."""
    if f.sums[WAITING] == 0:
        return NEVER
    due = f.since_ps[f.waiting[0]] + f.wait_ps
    if rules.refresh_ps > 0:
        due = min(due, (refreshed_ps // rules.refresh_ps + 1) * rules.refresh_ps)
    return due


@compiled(
    int64(*_ROUTED, CHOOSE_TYPE, types.float64[:, ::1], FLOATS, _WORDS, ASKED_TYPE, _WORDS),
    nogil=True,
    at_first_call=True,
)
def run_arrivals_with_changes(
    table_words: NDArray[np.int64],
    rule_words: NDArray[np.int64],
    fate_words: NDArray[np.int64],
    step_time: Any,
    choose: Any,
    states: NDArray[np.float64],
    parameters: NDArray[np.float64],
    view_words: NDArray[np.int64],
    asked: NDArray[Any],
    probe_ps: NDArray[np.int64],
) -> int:
    """Run the whole trace behind a router that places every request at its arrival; returns how it ended.

    As :func:`wavetank.serving.simulator.core.run_arrivals`, with the words of :class:`Fates` beside the others.
    """
    t, rules, view, f = tables_at(table_words), rules_at(rule_words), workers_at(view_words), fates_at(fate_words)
    asked, probe_ps = borrowed(asked), borrowed(probe_ps)
    looks = t.sent_ps.shape[1] + t.serves.shape[1] + t.lora.shape[1] + rules.events > 0
    refreshed = np.int64(0)
    probe = 0
    n = t.requests.size
    r = 0
    show_who_takes(rules, f, view)
    refresh(t, rules, view, np.int64(0))
    while True:
        arrival_ps = t.requests[r].arrival_ps if r < n else NEVER
        change_ps = next_change_ps(f)
        now = min(arrival_ps, change_ps, _next_waiting_ps(rules, f, refreshed))
        if now == NEVER:
            break
        due = now if rules.refresh_ps == 0 else now // rules.refresh_ps * rules.refresh_ps
        if probe < probe_ps.size and probe_ps[probe] < due:
            probe = probe_until(t, rules, step_time, probe_ps, probe, due - 1)
        shown = rules.refresh_ps > 0 and due > refreshed
        if shown:
            advance_all(t, rules, step_time, due)
            show_who_takes(rules, f, view)
            refresh(t, rules, view, due)
            refreshed = due
            shown = due == now
        if probe < probe_ps.size and probe_ps[probe] <= now:
            probe = probe_until(t, rules, step_time, probe_ps, probe, now)
        if change_ps == now or f.sums[WAITING] > 0:
            advance_all(t, rules, step_time, now)
            if change_ps == now:
                if r == n and all_ended(t, f):
                    break
                change_workers(t, rules, f, f.sums[WAITING], now)
            if f.sums[ORPHANS] + f.sums[WAITING] > 0:
                if rules.refresh_ps == 0 and change_ps == now:
                    show_who_takes(rules, f, view)
                    refresh(t, rules, view, now)
                    shown = True
                _send_those_that_wait(t, rules, f, view, asked, now, np.int64(shown))
                _send_orphans(t, rules, f, view, asked, now)
        if arrival_ps != now:
            continue
        if rules.refresh_ps == 0:
            advance_all(t, rules, step_time, now)
            show_who_takes(rules, f, view)
            refresh(t, rules, view, now)
            refreshed = now
        else:
            age = (now - refreshed) / PS
            for w in range(rules.workers):
                view.age_s[w] = age
        said = asked[r if asked.size > 1 else 0]
        copy = router_of(rules, r)
        if rules.routers > 1:
            show_what_it_sent(t, rules, view, copy)
        if looks:
            look_at(t, rules, view, said, r, now, copy)
        if shows_somebody(t, rules, view, said.model):
            w = ask_router(t, rules, view, choose, states, parameters, said, r, now, copy)
            if w < 0:
                return -w
            if f.state[w // rules.group] == UP:
                advance(t, rules, step_time, w // rules.group, now)
                deliver(t, rules, f, view, w, r, now, copy)
            else:
                refuse_connection(f, r, w)
                advance_all(t, rules, step_time, now)
                if not send_elsewhere(t, rules, f, view, said.model, r, now):
                    _let_wait(t, f, r, now)
        else:
            _let_wait(t, f, r, now)
        r += 1
    probe_until(t, rules, step_time, probe_ps, probe, NEVER)
    advance_all(t, rules, step_time, NEVER)
    close_up_times(rules, f, _last_end_ps(t, f))
    return FINE


# ---------------------------------------------------------------------------------------------------------------------
# Behind a router with a pool.


@njit
def _look_for_somebody(t: Tables, rules: Rules, f: Fates, view: WorkersView, asked: NDArray[Any], now_ps: int) -> bool:
    """Take note of the requests of the pool that the view shows no worker for, and end those of which that is too long.

    Returns whether anybody takes requests.
    """
    asked = borrowed(asked)
    all_take, any_takes = True, False
    for w in range(rules.workers):
        all_take = all_take and view.takes[w] != 0
        any_takes = any_takes or view.takes[w] != 0
    if all_take and f.sums[STRANDED] == 0:
        return True
    kept = t.pool_ends[1]
    f.sums[STRANDED] = 0
    for i in range(t.pool_ends[1] - 1, t.pool_ends[0] - 1, -1):
        r = t.pool[i]
        if shows_somebody(t, rules, view, _model_of(asked, r)):
            f.since_ps[r] = NEVER
        else:
            f.since_ps[r] = min(f.since_ps[r], now_ps)
            if f.since_ps[r] + f.wait_ps <= now_ps:
                give_up(t, f, r, now_ps)
                continue
            f.sums[STRANDED] += 1
        kept -= 1
        t.pool[kept] = r
    t.pool_ends[0] = kept
    return any_takes


@njit
def _back_to_pool(t: Tables, f: Fates, r: int) -> None:
    """Put an orphan back into the pool, in its place by arrival."""
    at = t.pool_ends[0] - 1
    t.pool_ends[0] = at
    while at + 1 < t.pool_ends[1] and t.pool[at + 1] < r:
        t.pool[at] = t.pool[at + 1]
        at += 1
    t.pool[at] = r


@njit
def _send_orphans_of_pool(
    t: Tables, rules: Rules, f: Fates, view: WorkersView, asked: NDArray[Any], now_ps: int
) -> None:
    asked = borrowed(asked)
    for i in range(sorted_orphans(f)):
        r = f.orphans[i]
        if not may_be_sent_again(t, f, r, now_ps) or send_elsewhere(t, rules, f, view, _model_of(asked, r), r, now_ps):
            continue
        if stranded(t, f, r, now_ps):
            f.sums[STRANDED] += 1
            _back_to_pool(t, f, r)


@njit
def _place_among_changes(
    t: Tables,
    rules: Rules,
    f: Fates,
    step_time: Any,
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
    """Let a pool router decide once, where the view shows anybody; returns how that ended."""
    pool = borrow_pool(pool)
    placed, state, parameters, asked = borrowed(placed), borrowed(state), borrowed(parameters), borrowed(asked)
    if not _look_for_somebody(t, rules, f, view, asked, now_ps):
        return FINE
    n = ask_pool_router(t, rules, view, pool, active, placed, place, state, parameters, asked, now_ps, refreshed_ps)
    for i in range(n):
        w = placed[i]
        if w >= rules.workers or w < -1:
            return BAD_PLACEMENT
        if w < 0:
            continue
        if view.takes[w] == 0 or pool.serves[i, w] == 0:
            return UNFIT
        r = t.pool[t.pool_ends[0] + i]
        if f.state[w // rules.group] == UP:
            advance(t, rules, step_time, w // rules.group, now_ps)
            deliver(t, rules, f, view, w, r, now_ps, np.int64(0))
            continue
        refuse_connection(f, r, w)
        advance_all(t, rules, step_time, now_ps)
        if not send_elsewhere(t, rules, f, view, _model_of(asked, r), r, now_ps) and stranded(t, f, r, now_ps):
            # It stays where it is.
            f.sums[STRANDED] += 1
            placed[i] = -1
    keep_waiting(t, placed, n)
    return FINE


@njit
def _advance_pool_among_changes(
    t: Tables,
    rules: Rules,
    f: Fates,
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
                show_who_takes(rules, f, view)
                refresh_pool(t, rules, view, active, now)
                refreshed[0] = now
            ended = _place_among_changes(
                t, rules, f, step_time, view, pool, active, placed, place, state, parameters, asked, now, refreshed[0]
            )
            if ended != FINE:
                return ended
            plan(t, rules, step_time, np.int64(0))
            if t.pool_ends[0] < t.pool_ends[1]:
                cut_phase(domain, now)
            elif rules.refresh_ps > 0:
                cut_phase(domain, refreshed[0] + rules.refresh_ps)
            if domain.idle and t.pool_ends[0] < t.pool_ends[1]:
                in_vain += view.takes[0]
                if in_vain > PATIENCE:
                    return STUCK
                domain.idle = 0
                domain.now_ps = now + max(rules.refresh_ps, RETRY_PS)
                if domain.now_ps >= NEVER:
                    return LATE


@compiled(
    int64(
        *_ROUTED, PLACE_TYPE, FLOATS, FLOATS, _WORDS, POOL_TYPE, ACTIVE_TYPE, _WORDS, ASKED_TYPE, _WORDS,
    ),
    nogil=True,
    at_first_call=True,
)  # fmt: skip
def run_pool_with_changes(
    table_words: NDArray[np.int64],
    rule_words: NDArray[np.int64],
    fate_words: NDArray[np.int64],
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

    As :func:`wavetank.serving.simulator.core.run_pool`; where signals are always fresh and there are several domains,
    the router also decides after every change.
    """
    t, rules, view, f = tables_at(table_words), rules_at(rule_words), workers_at(view_words), fates_at(fate_words)
    domains = rules.workers // rules.group
    refreshed = np.zeros(1, np.int64)
    probe = 0
    n = t.requests.size
    tick = rules.refresh_ps
    show_who_takes(rules, f, view)
    refresh_pool(t, rules, view, active, np.int64(0))
    r = 0
    in_vain = 0
    while True:
        waits = t.pool_ends[0] < t.pool_ends[1]
        change_ps = next_change_ps(f)
        if r == n and probe == probe_ps.size and not waits and change_ps == NEVER:
            break
        arrival_ps = t.requests[r].arrival_ps if r < n else NEVER
        now = min(arrival_ps, change_ps)
        if domains > 1 and waits:
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
                ended = _advance_pool_among_changes(
                    t, rules, f, step_time, view, pool, active, placed, place, state, parameters, asked, refreshed, now
                )
                if ended != FINE:
                    return ended
            else:
                coming = min(arrival_ps, change_ps)
                if tick > 0 and coming < NEVER and not waits:
                    due = coming // tick * tick
                    if refreshed[0] < due <= now:
                        # The router looks before the probe takes the domains further.
                        advance_all(t, rules, step_time, due)
                        show_who_takes(rules, f, view)
                        refresh_pool(t, rules, view, active, due)
                        refreshed[0] = due
                advance_all(t, rules, step_time, now)
            probe_workers(t, rules, probe, now)
            probe += 1
            continue
        if domains == 1:
            ended = _advance_pool_among_changes(
                t, rules, f, step_time, view, pool, active, placed, place, state, parameters, asked, refreshed, now
            )
            if ended != FINE:
                return ended
            if change_ps == now and now < NEVER:
                if r == n and all_ended(t, f):
                    break
                change_workers(t, rules, f, t.pool_ends[1] - t.pool_ends[0], now)
                _send_orphans_of_pool(t, rules, f, view, asked, now)
                if t.pool_ends[0] < t.pool_ends[1]:
                    interrupt(t, rules, np.int64(0), now)
            if arrival_ps == now and r < n:
                t.pool[t.pool_ends[1]] = r
                t.pool_ends[1] += 1
                r += 1
                interrupt(t, rules, np.int64(0), now)
            elif now == NEVER and t.pool_ends[0] < t.pool_ends[1]:
                return LATE
            continue
        due = now // tick * tick if tick > 0 else now
        if tick > 0 and due > refreshed[0]:
            advance_all(t, rules, step_time, due)
            show_who_takes(rules, f, view)
            refresh_pool(t, rules, view, active, due)
            refreshed[0] = due
        changed = change_ps == now
        if changed:
            advance_all(t, rules, step_time, now)
            if r == n and all_ended(t, f):
                break
            change_workers(t, rules, f, t.pool_ends[1] - t.pool_ends[0], now)
            if f.sums[ORPHANS] > 0:
                if tick == 0:
                    show_who_takes(rules, f, view)
                    refresh_pool(t, rules, view, active, now)
                _send_orphans_of_pool(t, rules, f, view, asked, now)
        if tick == 0:
            advance_all(t, rules, step_time, now)
            show_who_takes(rules, f, view)
            refresh_pool(t, rules, view, active, now)
            refreshed[0] = now
        if arrival_ps == now:
            t.pool[t.pool_ends[1]] = r
            t.pool_ends[1] += 1
            r += 1
        elif tick > 0 and due < now:
            # A change alone is no reason to decide: the router has not seen it.
            continue
        before = t.pool_ends[0]
        ended = _place_among_changes(
            t, rules, f, step_time, view, pool, active, placed, place, state, parameters, asked, now, refreshed[0]
        )
        if ended != FINE:
            return ended
        busy = r < n or t.pool_ends[0] > before
        if not busy:
            advance_all(t, rules, step_time, now)
            for d in range(domains):
                busy = busy or t.domains[d].active > 0 or t.domains[d].queued > 0
        for w in range(rules.workers):
            busy = busy or view.takes[w] == 0
        in_vain = 0 if busy else in_vain + 1
        if in_vain > PATIENCE:
            return STUCK
    advance_all(t, rules, step_time, NEVER)
    close_up_times(rules, f, _last_end_ps(t, f))
    return FINE
