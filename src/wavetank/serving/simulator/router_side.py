"""What the compiled simulator shows to routers, and how it takes in what they decide."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.serving.routing.interface import ActiveView, Arrival, PoolView, WorkersView, fits
from wavetank.serving.simulator.prefix_cache import evict, known_tokens
from wavetank.serving.simulator.tables import (
    ACTIVE,
    BAD_PLACEMENT,
    BAD_WORKER,
    DECISIONS,
    FINE,
    PS,
    REFRESHES,
    UNFIT,
    Rules,
    Tables,
    borrow_pool,
)
from wavetank.serving.simulator.worker_steps import advance, advance_all, enqueue, steps_done
from wavetank.sim.borrow import borrowed
from wavetank.sim.streams import mix


@njit
def _refresh_holdings(t: Tables, rules: Rules, view: WorkersView, now_ps: int) -> None:
    """Bring what routers know of the workers' prefix caches and adapters to ``now_ps``."""
    for w in range(rules.workers):
        worker = t.workers[w]
        domain = t.domains[w // rules.group]
        if t.changes.shape[1] > 0:
            # At the end of its phase the worker would make the same room.
            evict(t, rules, w, worker.decoding * steps_done(domain, now_ps) if domain.planned else np.int64(0))
            # Others fetch by it; a router is shown it where it asks for it.
            if rules.events:
                view.cached_total_tokens[w] = worker.stored
        for a in range(t.lora.shape[1]):
            for copy in range(rules.routers):
                t.lora[copy * rules.workers + w, a] = t.lines[w, a].used >= 0 or t.lines[w, a].head >= 0


@njit
def refresh(t: Tables, rules: Rules, view: WorkersView, now_ps: int) -> None:
    """Bring the view to ``now_ps``; the domains have been advanced there."""
    for w in range(rules.workers):
        worker = t.workers[w]
        domain = t.domains[w // rules.group]
        grown = worker.decoding * steps_done(domain, now_ps) if domain.planned else np.int64(0)
        view.kv_tokens[w] = worker.held + grown
        view.running[w] = worker.running
        view.waiting[w] = worker.queue_length
        view.waiting_tokens[w] = worker.queue_tokens
        view.sent_requests[w] = 0
        view.sent_tokens[w] = 0.0
    if t.changes.shape[1] + t.lora.shape[1] > 0:
        _refresh_holdings(t, rules, view, now_ps)
    if rules.routers > 1:
        t.sent[:] = 0.0
    t.counts[REFRESHES] += 1


@njit(forceinline=True)
def router_of(rules: Rules, r: int) -> int:
    """Return the copy of the router that a request is dealt to: any of them is as likely as any other."""
    if rules.routers == 1:
        return np.int64(0)
    return np.int64(mix(np.uint64(r + 1)) % np.uint64(rules.routers))


@njit
def show_what_it_sent(t: Tables, rules: Rules, view: WorkersView, copy: int) -> None:
    """Bring the view from what another copy of the router sent to what this one did."""
    for w in range(rules.workers):
        view.sent_requests[w] = np.int64(t.sent[copy, 0, w])
        view.sent_tokens[w] = t.sent[copy, 1, w]


@njit
def _match_sent(t: Tables, rules: Rules, view: WorkersView, r: int, now_ps: int, copy: int) -> None:
    start, stop = t.block_offsets[r], t.block_offsets[r + 1]
    for w in range(rules.workers):
        matched = 0
        for i in range(start, stop):
            if now_ps - t.sent_ps[copy * rules.workers + w, t.block_ids[i]] > rules.memory_ps:
                break
            matched += 1
        view.matched_tokens[w] = min(matched * rules.block_tokens, t.requests[r].prompt)


@njit
def look_at(t: Tables, rules: Rules, view: WorkersView, asked: Any, r: int, now_ps: int, copy: int) -> None:
    """Fill in what the view says of a single arrival."""
    if t.sent_ps.shape[1] > 0:
        _match_sent(t, rules, view, r, now_ps, copy)
    for w in range(rules.workers):
        if t.serves.shape[1] > 0:
            view.serves[w] = asked.model < 0 or t.serves[w, asked.model] != 0
        if t.lora.shape[1] > 0:
            loaded = t.lora[copy * rules.workers + w, asked.adapter] if asked.adapter >= 0 else 0
            view.adapter_loaded[w] = loaded
        if rules.events:
            view.cached_tokens[w] = known_tokens(t, w, r)


@njit(forceinline=True)
def ask_router(
    t: Tables,
    rules: Rules,
    view: WorkersView,
    choose: Any,
    states: NDArray[np.float64],
    parameters: NDArray[np.float64],
    said: Any,
    r: int,
    now_ps: int,
    copy: int,
) -> int:
    """Let a copy of a router place a request; returns the worker, or what is wrong, negative."""
    t.counts[DECISIONS] += 1
    first, last = (t.block_offsets[r], t.block_offsets[r + 1]) if t.sent_ps.shape[1] > 0 else (0, 0)
    arrival = Arrival(
        now_ps / PS,
        np.float64(t.requests[r].prompt),
        said.expected,
        said.spread,
        said.max_tokens,
        said.deadline_s,
        said.model,
        said.adapter,
        said.session,
        said.tier,
        t.block_ids[first:last],
    )
    w = choose(view, arrival, states[copy], parameters)
    if w < 0 or w >= rules.workers:
        return -BAD_WORKER
    return w if fits(view, w) else -UNFIT


@njit(forceinline=True)
def record_sent(t: Tables, rules: Rules, view: WorkersView, w: int, r: int, now_ps: int, copy: int) -> None:
    """Note that this copy of the router sent a request to a worker."""
    row = copy * rules.workers + w
    if t.lora.shape[1] > 0 and t.asks[r].adapter < rules.adapters:
        t.lora[row, t.asks[r].adapter] = 1
    view.sent_requests[w] += 1
    view.sent_tokens[w] += t.requests[r].prompt
    if rules.routers > 1:
        t.sent[copy, 0, w] += 1.0
        t.sent[copy, 1, w] += t.requests[r].prompt
    if t.sent_ps.shape[1] > 0:
        for i in range(t.block_offsets[r], t.block_offsets[r + 1]):
            t.sent_ps[row, t.block_ids[i]] = now_ps


@njit(forceinline=True)
def send(t: Tables, rules: Rules, view: WorkersView, w: int, r: int, now_ps: int, copy: int) -> None:
    """Send a request to a worker, which has been advanced to this moment, and note that this copy of the router did."""
    record_sent(t, rules, view, w, r, now_ps, copy)
    enqueue(t, rules, w, r, now_ps)


@njit
def _active_view(t: Tables, rules: Rules, active: ActiveView, now_ps: int) -> int:
    """Fill the table of decoding requests and return how many there are."""
    count = 0
    for w in range(rules.workers):
        domain = t.domains[w // rules.group]
        done = steps_done(domain, now_ps) if domain.planned else np.int64(0)
        r = np.int64(t.workers[w].newest)
        while r >= 0:
            request = t.requests[r]
            if request.finish_step >= 0:
                remaining = request.finish_step - domain.step - done
                active.worker[count] = w
                active.prompt_tokens[count] = request.prompt
                active.generated_tokens[count] = request.output - remaining
                active.remaining_tokens[count] = remaining
                count += 1
            r = np.int64(request.prev)
    return count


@njit
def refresh_pool(t: Tables, rules: Rules, view: WorkersView, active: ActiveView, now_ps: int) -> None:
    """Bring all that a pool router sees of the workers to ``now_ps``."""
    refresh(t, rules, view, now_ps)
    t.counts[ACTIVE] = _active_view(t, rules, active, now_ps) if active.worker.size > 0 else 0


@njit(forceinline=True)
def _describe(t: Tables, rules: Rules, pool: PoolView, i: int, asked: Any) -> None:
    """Fill in what a pool router sees of a waiting request beside its prompt and its wait."""
    pool.expected_output_tokens[i] = asked.expected
    pool.output_spread_tokens[i] = asked.spread
    pool.max_tokens[i] = asked.max_tokens
    pool.deadline_s[i] = asked.deadline_s
    pool.model[i] = asked.model
    pool.adapter[i] = asked.adapter
    pool.session[i] = asked.session
    pool.tier[i] = asked.tier
    if t.serves.shape[1] > 0:
        for w in range(rules.workers):
            pool.serves[i, w] = asked.model < 0 or t.serves[w, asked.model] != 0


@njit(forceinline=True)
def _first(pool: PoolView, n: int) -> PoolView:
    """Return the view of the first ``n`` waiting requests."""
    return PoolView(
        pool.prompt_tokens[:n],
        pool.waited_s[:n],
        pool.waited_steps[:n],
        pool.expected_output_tokens[:n],
        pool.output_spread_tokens[:n],
        pool.max_tokens[:n],
        pool.deadline_s[:n],
        pool.model[:n],
        pool.adapter[:n],
        pool.session[:n],
        pool.tier[:n],
        pool.serves[:n],
    )


@njit(forceinline=True)
def ask_pool_router(
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
    """Let a pool router decide once; returns of how many waiting requests ``placed`` now says where they go."""
    first, last = t.pool_ends[0], t.pool_ends[1]
    n = min(last - first, rules.window)
    if n == 0:
        return np.int64(0)
    free = np.int64(0)
    for w in range(rules.workers):
        free += max(view.slots[w] - view.running[w] - view.waiting[w] - view.sent_requests[w], 0)
        view.age_s[w] = (now_ps - refreshed_ps) / PS
    if free == 0:
        return np.int64(0)
    for i in range(n):
        r = t.pool[first + i]
        pool.prompt_tokens[i] = t.requests[r].prompt
        pool.waited_s[i] = (now_ps - t.requests[r].arrival_ps) / PS
        pool.waited_steps[i] = t.pool_steps[r]
        _describe(t, rules, pool, i, asked[r if asked.size > 1 else 0])
        placed[i] = -1
        t.pool_steps[r] += 1
    m = t.counts[ACTIVE]
    t.counts[DECISIONS] += 1
    place(
        view,
        _first(pool, n),
        ActiveView(
            active.worker[:m], active.prompt_tokens[:m], active.generated_tokens[:m], active.remaining_tokens[:m]
        ),
        state,
        parameters,
        placed[:n],
    )
    return n


@njit(forceinline=True)
def keep_waiting(t: Tables, placed: NDArray[np.int64], n: int) -> None:
    """Take those of the first ``n`` requests out of the pool that were placed."""
    first = t.pool_ends[0]
    # What stays moves up to the requests behind the window.
    kept = first + n
    for i in range(n - 1, -1, -1):
        if placed[i] < 0:
            kept -= 1
            t.pool[kept] = t.pool[first + i]
    t.pool_ends[0] = kept


@njit
def place_pool(
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
    now_ps: int,
    refreshed_ps: int,
) -> int:
    """Let a pool router decide once; returns FINE, BAD_PLACEMENT or UNFIT."""
    pool = borrow_pool(pool)
    placed, state, parameters, asked = borrowed(placed), borrowed(state), borrowed(parameters), borrowed(asked)
    n = ask_pool_router(t, rules, view, pool, active, placed, place, state, parameters, asked, now_ps, refreshed_ps)
    # Workers receive their new requests in order of arrival.
    for i in range(n):
        w = placed[i]
        if w >= rules.workers or w < -1:
            return BAD_PLACEMENT
        if w >= 0:
            if view.takes[w] == 0 or pool.serves[i, w] == 0:
                return UNFIT
            advance(t, rules, step_time, w // rules.group, now_ps)
            send(t, rules, view, w, t.pool[t.pool_ends[0] + i], now_ps, np.int64(0))
    keep_waiting(t, placed, n)
    return FINE


@njit
def probe_workers(t: Tables, rules: Rules, number: int, now_ps: int) -> None:
    """Keep the workers' loads as those of a probe; they have been advanced to this moment."""
    for w in range(rules.workers):
        worker = t.workers[w]
        domain = t.domains[w // rules.group]
        grown = worker.decoding * steps_done(domain, now_ps) if domain.planned else np.int64(0)
        t.probe_tokens[number, w] = worker.context + grown
        t.probe_running[number, w] = worker.running


@njit
def probe_until(t: Tables, rules: Rules, step_time: Any, probe_ps: NDArray[np.int64], probe: int, until_ps: int) -> int:
    """Take the probes from number ``probe`` up to ``until_ps``; returns the number of the next one."""
    while probe < probe_ps.size and probe_ps[probe] <= until_ps:
        advance_all(t, rules, step_time, probe_ps[probe])
        probe_workers(t, rules, probe, probe_ps[probe])
        probe += 1
    return probe
