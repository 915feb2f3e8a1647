"""What a simulated worker and its barrier domain do: queue, admission, preemption, phases of steps, completion."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from wavetank.serving.simulator.adapter_slots import (
    benches,
    extended_step_ps,
    first_that_may_run,
    leave_adapter,
    may_use_adapter,
    take_adapter,
    use_adapter,
    wait_for_adapter,
)
from wavetank.serving.simulator.prefix_cache import evict, hold_units, release, reused_tokens, shared_tokens
from wavetank.serving.simulator.reuse import MOST_FETCH_PS
from wavetank.serving.simulator.tables import (
    COMPLETED,
    LOADS,
    MATCHED,
    PHASES,
    PREEMPTIONS,
    Rules,
    Tables,
    live_top,
    pop,
    schedule_finish,
)
from wavetank.sim.borrow import borrowed

# ---------------------------------------------------------------------------------------------------------------------
# One worker: queue, admission, preemption, completion.


@njit(forceinline=True)
def enqueue(t: Tables, rules: Rules, w: int, r: int, now_ps: int) -> None:
    """Put a request at the end of a worker's queue; a phase in progress ends at the first boundary from now on."""
    worker = t.workers[w]
    request = t.requests[r]
    d = w // rules.group
    domain = t.domains[d]
    request.worker = w
    if rules.adapters:
        wait_for_adapter(benches(t), w, r, np.int64(0))
    else:
        request.next = -1
        if worker.queue_tail >= 0:
            t.requests[worker.queue_tail].next = r
        else:
            worker.queue_head = r
        worker.queue_tail = r
    worker.queue_length += 1
    worker.queue_tokens += request.prompt
    domain.queued += 1
    if rules.extended:
        t.benches[w].came += 1
    if domain.idle:
        domain.idle = 0
        domain.now_ps = max(domain.now_ps, now_ps)
    elif worker.queue_length == 1 and worker.running < t.limits[worker.kind].slots:
        cut_phase(domain, now_ps)
    elif rules.extended or rules.ahead:
        # It may overtake those whose adapter has no slot, and the scheduler takes longer; where batches are decided
        # ahead, the next boundary is the one at which it becomes known.
        cut_phase(domain, now_ps)


@njit(forceinline=True)
def _duration(domain: Any, steps: int) -> int:
    return steps * domain.first_ps + domain.growth_ps * (steps * (steps - 1) // 2)


@njit(forceinline=True)
def _steps_until(domain: Any, when_ps: int) -> int:
    """Return the least number of steps (>= 1) of the phase that end at or after ``when_ps``."""
    span = when_ps - domain.now_ps
    if span <= domain.first_ps:
        return 1
    growth = domain.growth_ps
    if growth == 0:
        return (span + domain.first_ps - 1) // domain.first_ps
    half = 0.5 * growth
    linear = domain.first_ps - half
    steps = np.int64((np.sqrt(linear * linear + 4.0 * half * span) - linear) / (2.0 * half))
    steps = max(steps, 1)
    while _duration(domain, steps) < span:
        steps += 1
    while steps > 1 and _duration(domain, steps - 1) >= span:
        steps -= 1
    return steps


@njit(forceinline=True)
def cut_phase(domain: Any, when_ps: int) -> None:
    """Let the phase in progress end at the first boundary at or after ``when_ps``."""
    if domain.planned and domain.phase_steps > 1:
        steps = _steps_until(domain, when_ps)
        if steps < domain.phase_steps:
            domain.phase_steps = steps
            domain.phase_end_ps = domain.now_ps + _duration(domain, steps)


@njit(forceinline=True)
def shorten_phase(domain: Any, steps: int) -> None:
    """Let the phase in progress take no more than a number of steps."""
    if domain.planned and steps < domain.phase_steps:
        domain.phase_steps = steps
        domain.phase_end_ps = domain.now_ps + _duration(domain, steps)


@njit(forceinline=True)
def steps_done(domain: Any, when_ps: int) -> int:
    """Return how many steps of the planned phase ended at or before ``when_ps``."""
    if when_ps >= domain.phase_end_ps:
        return domain.phase_steps
    if domain.phase_steps <= 1:
        return 0
    steps = _steps_until(domain, when_ps)
    return steps if _duration(domain, steps) == when_ps - domain.now_ps else steps - 1


@njit(forceinline=True)
def _link_running(t: Tables, w: int, r: int) -> None:
    worker = t.workers[w]
    request = t.requests[r]
    request.prev = worker.newest
    request.next = -1
    if worker.newest >= 0:
        t.requests[worker.newest].next = r
    worker.newest = r


@njit(forceinline=True)
def _unlink_running(t: Tables, rules: Rules, w: int, r: int) -> None:
    request = t.requests[r]
    if request.next >= 0:
        t.requests[request.next].prev = request.prev
    else:
        t.workers[w].newest = request.prev
    if request.prev >= 0:
        t.requests[request.prev].next = request.next
    request.next = -1
    request.prev = -1
    t.workers[w].running -= 1
    if rules.adapters:
        leave_adapter(benches(t), rules.adapters, w, r)


@njit(forceinline=True)
def _complete(t: Tables, rules: Rules, w: int, r: int, now_ps: int, resident: int) -> None:
    request = t.requests[r]
    request.finish_ps = now_ps
    request.finish_step = -1
    request.generated = request.output
    _unlink_running(t, rules, w, r)
    release(t, rules, w, r, resident)
    t.domains[w // rules.group].active -= 1
    t.counts[COMPLETED] += 1


@njit(forceinline=True)
def _keep(t: Tables, rules: Rules, w: int, r: int) -> None:
    """Let a prompt that has ended on a prefill worker leave the batch; its KV cache stays until it was handed over."""
    _unlink_running(t, rules, w, r)
    t.domains[w // rules.group].active -= 1
    t.pool[t.pool_ends[1]] = r
    t.pool_ends[1] += 1


@njit
def join(t: Tables, rules: Rules, w: int, r: int) -> int:
    """Let a request whose KV cache came from elsewhere decode from the next step on.

    Its place in the batch and its KV tokens were reserved.  Returns 0 where its adapter has no slot yet.
    """
    domain = t.domains[w // rules.group]
    if rules.adapters:
        if not may_use_adapter(benches(t), rules.adapters, rules.adapter_slots, w, r):
            return 0
        t.counts[LOADS] += use_adapter(benches(t), rules.adapters, rules.adapter_slots, w, r, domain.step)
    _link_running(t, w, r)
    domain.active += 1
    _start_decoding(t, rules, w, r, domain.step)
    return 1


@njit
def _preempt_newest(t: Tables, rules: Rules, w: int) -> None:
    """Send the request admitted last back to the head of the queue, to recompute its tokens later."""
    worker = t.workers[w]
    domain = t.domains[w // rules.group]
    r = np.int64(worker.newest)
    request = t.requests[r]
    if worker.partial == r:
        worker.partial = -1
        resident = np.int64(request.prompt + request.generated)
    else:
        request.generated = request.output - np.int32(request.finish_step - domain.step)
        # The last generated token is not in the cache yet: the next step would have put it there.
        resident = np.int64(request.prompt + request.generated - 1)
        request.finish_step = -1
        worker.decoding -= 1
        worker.context -= resident
        worker.changed = 1
    _unlink_running(t, rules, w, r)
    release(t, rules, w, r, resident)
    request.preemptions += 1
    if rules.adapters:
        wait_for_adapter(benches(t), w, r, np.int64(1))
    else:
        request.next = worker.queue_head
        worker.queue_head = r
        if worker.queue_tail < 0:
            worker.queue_tail = r
    worker.queue_length += 1
    worker.queue_tokens += request.prompt
    worker.known += 1
    domain.queued += 1
    domain.active -= 1
    t.counts[PREEMPTIONS] += 1


@njit(forceinline=True)
def _start_decoding(t: Tables, rules: Rules, w: int, r: int, step: int) -> None:
    """Let a request whose context is resident decode from the next step on."""
    worker = t.workers[w]
    request = t.requests[r]
    request.finish_step = step + request.output - request.generated
    worker.decoding += 1
    worker.context += request.prompt + request.generated - 1
    worker.changed = 1
    schedule_finish(t, w // rules.group, r)


@njit(forceinline=True)
def _admit(t: Tables, rules: Rules, w: int, late: int) -> None:
    """Fill the worker's next step: make room for its decoding requests, then prefill within the token budget.

    ``late``: who may come in was decided when the step before began.
    """
    worker = t.workers[w]
    domain = t.domains[w // rules.group]
    worker.prefill_tokens = 0
    worker.prefill_pairs = 0
    worker.fetch_ps = 0
    while worker.held + worker.decoding > worker.capacity:
        _preempt_newest(t, rules, w)
    if worker.partial < 0 and worker.queue_length == 0:
        return
    limits = t.limits[worker.kind]
    budget = limits.budget - worker.decoding
    if worker.partial >= 0:
        r = np.int64(worker.partial)
        request = t.requests[r]
        done = np.int64(worker.partial_done)
        left = request.prompt + request.generated - done
        chunk = min(left, budget)
        worker.prefill_tokens += chunk
        worker.prefill_pairs += chunk * done + chunk * (chunk + 1) // 2
        budget -= chunk
        if chunk == left:
            worker.partial = -1
            t.ending_next[r] = worker.ending
            worker.ending = r
        else:
            worker.partial_done = done + chunk
    while budget > 0 and worker.queue_length > 0 and worker.running < limits.slots:
        if late and (worker.known <= 0 or worker.room <= 0):
            worker.late = 1
            break
        if rules.adapters:
            r = first_that_may_run(benches(t), rules.adapters, rules.adapter_slots, w, late)
            if r < 0:
                # Whether one that came late may run is seen at the next boundary.
                worker.late = late
                break
        else:
            r = np.int64(worker.queue_head)
        request = t.requests[r]
        total = np.int64(request.prompt + request.generated)
        grown = total
        if rules.caching:
            grown -= shared_tokens(t, w, r)
        limit = limits.admit_below if worker.running > 0 else worker.capacity
        if worker.held + worker.decoding + grown > limit:
            break
        if rules.adapters:
            t.counts[LOADS] += take_adapter(benches(t), rules.adapters, rules.adapter_slots, w, r, domain.step)
        else:
            worker.queue_head = request.next
            if worker.queue_head < 0:
                worker.queue_tail = -1
        worker.queue_length -= 1
        worker.queue_tokens -= request.prompt
        worker.known -= 1
        worker.room -= 1
        domain.queued -= 1
        domain.active += 1
        matched = np.int64(0)
        if rules.caching:
            matched = reused_tokens(t, rules, w, r)
            t.counts[MATCHED] += matched
            if rules.fetches and t.found[r].fetched > 0:
                fetch_ps = rules.fetch_latency_ps + t.found[r].fetched * rules.fetch_token_ps
                worker.fetch_ps = min(worker.fetch_ps + fetch_ps, MOST_FETCH_PS)
        request.matched = matched
        worker.held += total
        if rules.caching:
            hold_units(t, rules, w, r)
        _link_running(t, w, r)
        worker.running += 1
        left = total - matched
        chunk = min(left, budget)
        worker.prefill_tokens += chunk
        worker.prefill_pairs += chunk * matched + chunk * (chunk + 1) // 2
        budget -= chunk
        if chunk == left:
            t.ending_next[r] = worker.ending
            worker.ending = r
        else:
            worker.partial = r
            worker.partial_done = matched + chunk


# ---------------------------------------------------------------------------------------------------------------------
# One domain: plan a phase, finish it.


@njit(forceinline=True)
def _worker_step_ps(t: Tables, rules: Rules, step_time: Any, w: int) -> int:
    """Return what the worker's own step takes; 0 when it has nothing to do."""
    worker = t.workers[w]
    if worker.decoding == 0 and worker.prefill_tokens == 0:
        return np.int64(0)
    if rules.extended:
        return extended_step_ps(t, rules, step_time, w)
    slope = worker.slope_ps
    if slope < 0:
        limits = t.limits[worker.kind]
        table = t.step_table[limits.table_from : limits.table_until]
        return step_time(worker.decoding, worker.context, worker.prefill_tokens, worker.prefill_pairs, table)
    if worker.changed or worker.prefill_tokens > 0:
        limits = t.limits[worker.kind]
        table = t.step_table[limits.table_from : limits.table_until]
        worker.base_ps = step_time(worker.decoding, 0, worker.prefill_tokens, worker.prefill_pairs, table)
        worker.changed = 1 if worker.prefill_tokens > 0 else 0
    return worker.base_ps + slope * worker.context


@njit(forceinline=True)
def _with_fetches(t: Tables, rules: Rules, w: int, own_ps: int) -> int:
    """Return what the worker's step takes with the units that it fetches from others."""
    if not rules.fetches:
        return own_ps
    fetch_ps = t.workers[w].fetch_ps
    return max(own_ps, fetch_ps) if rules.overlapped else own_ps + fetch_ps


@njit(forceinline=True)
def _overlap(from_ps: int, until_ps: int, rules: Rules) -> int:
    """Return how much of a span of time lies in the counted window."""
    return max(min(until_ps, rules.count_until_ps) - max(from_ps, rules.count_from_ps), np.int64(0))


@njit
def _count_step(rules: Rules, domain: Any, workers: Any, slowest_ps: int, prefill: int, imbalance: float) -> None:
    """Count the step that a group, these workers, has just planned."""
    workers = borrowed(workers)
    now = domain.now_ps
    work = np.int64(0)
    counted = np.int64(0)
    whole = rules.count_from_ps <= now and now + slowest_ps <= rules.count_until_ps
    for w in range(workers.size):
        own = workers[w].own_ps
        work += own
        if not whole:
            counted += _overlap(now, now + own, rules)
    domain.work_ps += work
    domain.work_counted_ps += work if whole else counted
    domain.imbalance += imbalance
    if rules.count_from_ps <= now <= rules.count_until_ps:
        domain.imbalance_counted += imbalance
        domain.steps_counted += 1
    if prefill > 0:
        domain.prefill_steps += 1
        domain.mixed_ps += domain.first_ps
        domain.mixed_counted_ps += _overlap(now, now + domain.first_ps, rules)


@njit
def _work_until(rules: Rules, domain: Any, when_ps: int) -> int:
    """Return the own work of a lone worker in its phase up to a moment."""
    when = min(max(when_ps, domain.now_ps), domain.phase_end_ps)
    steps = steps_done(domain, when)
    ended = _duration(domain, steps)
    own = domain.first_ps + steps * domain.growth_ps - rules.sync_ps
    return ended - steps * rules.sync_ps + min(when - domain.now_ps - ended, own)


@njit(forceinline=True)
def _count_phase(rules: Rules, domain: Any, prefill: int) -> None:
    """Count the phase that a lone worker is about to end."""
    start, end = domain.now_ps, domain.phase_end_ps
    work = end - start - domain.phase_steps * rules.sync_ps
    domain.work_ps += work
    if rules.count_from_ps <= start and end <= rules.count_until_ps:
        domain.work_counted_ps += work
    elif start < rules.count_until_ps and end > rules.count_from_ps:
        domain.work_counted_ps += _work_until(rules, domain, rules.count_until_ps) - _work_until(
            rules, domain, rules.count_from_ps
        )
    if prefill > 0:
        domain.prefill_steps += 1
        domain.mixed_ps += end - start
        domain.mixed_counted_ps += _overlap(start, end, rules)


@njit(forceinline=True)
def decide_next(t: Tables, rules: Rules, w: int) -> None:
    """Remember who waits, and how many slots are free, while the batch of the step after the planned one is decided."""
    worker = t.workers[w]
    worker.known = worker.queue_length
    worker.room = t.limits[worker.kind].slots - worker.running
    if rules.adapters:
        t.benches[w].known = t.benches[w].last


@njit(forceinline=True)
def plan(t: Tables, rules: Rules, step_time: Any, d: int) -> None:
    """Decide the phase that starts at the domain's boundary, or let the domain fall idle."""
    domain = t.domains[d]
    first = d * rules.group
    if domain.queued == 0 and domain.active == 0:
        domain.idle = 1
        return
    t.counts[PHASES] += 1
    # Without a step before it nothing was decided yet.
    late = np.int64(rules.ahead and domain.active > 0)
    if rules.group == 1:
        worker = t.workers[first]
        worker.late = 0
        _admit(t, rules, first, late)
        if rules.ahead:
            decide_next(t, rules, first)
        own = _with_fetches(t, rules, first, _worker_step_ps(t, rules, step_time, first))
        if own == 0:
            # What waits has no room beside KV caches that are handed over.
            domain.idle = 1
            return
        domain.first_ps = own + rules.sync_ps
        domain.growth_ps = 0
        steps = np.int64(1)
        slope = worker.slope_ps
        if rules.extended:
            slope = t.benches[first].slope_ps if slope >= 0 else slope
        if worker.prefill_tokens == 0 and slope >= 0:
            domain.growth_ps = slope * worker.decoding
            steps = live_top(t, d) - domain.step
            room = (worker.capacity - worker.held) // worker.decoding
            steps = max(min(steps, room), 1)
            if worker.late:
                steps = np.int64(1)
        domain.phase_steps = steps
    else:
        slowest = np.int64(0)
        heaviest = np.int64(0)
        load = np.int64(0)
        prefill = np.int64(0)
        for w in range(first, first + rules.group):
            _admit(t, rules, w, late)
            own = _with_fetches(t, rules, w, _worker_step_ps(t, rules, step_time, w))
            t.workers[w].own_ps = own
            slowest = max(slowest, own)
            prefill += t.workers[w].prefill_tokens
            context = t.workers[w].context
            load += context
            heaviest = max(heaviest, context)
        if rules.ahead:
            for w in range(first, first + rules.group):
                decide_next(t, rules, w)
        if slowest == 0:
            domain.idle = 1
            return
        domain.first_ps = slowest + rules.sync_ps
        domain.growth_ps = 0
        domain.phase_steps = 1
        group = t.workers[first : first + rules.group]
        _count_step(rules, domain, group, slowest, prefill, np.float64(rules.group * heaviest - load))
    domain.phase_end_ps = domain.now_ps + _duration(domain, domain.phase_steps)
    domain.planned = 1


@njit(forceinline=True)
def finish(t: Tables, rules: Rules, d: int) -> None:
    """Take the domain to the end of its planned phase: tokens, completions, ended prefills."""
    domain = t.domains[d]
    heap = t.heap[d]
    first = d * rules.group
    steps = domain.phase_steps
    now = domain.phase_end_ps
    if rules.group == 1:
        _count_phase(rules, domain, t.workers[first].prefill_tokens)
    for w in range(first, first + rules.group):
        worker = t.workers[w]
        grown = worker.decoding * steps
        worker.context += grown
        worker.held += grown
        if rules.caching and steps > 1:
            # Units that growth pushed out before the last step are gone, whatever that step's completions free.
            worker.held -= worker.decoding
            evict(t, rules, w, 0)
            worker.held += worker.decoding
    domain.step += steps
    domain.now_ps = now
    domain.planned = 0
    while domain.heap_size > 0 and heap[0] >> 32 <= domain.step:
        key = heap[0]
        domain.heap_size = pop(heap, domain.heap_size)
        r = key & 0xFFFFFFFF
        request = t.requests[r]
        if request.finish_step != key >> 32:
            continue
        w = np.int64(request.worker)
        worker = t.workers[w]
        resident = np.int64(request.prompt + request.output - 1)
        worker.decoding -= 1
        worker.context -= resident
        worker.changed = 1
        _complete(t, rules, w, r, now, resident)
    for w in range(first, first + rules.group):
        worker = t.workers[w]
        while worker.ending >= 0:
            r = np.int64(worker.ending)
            worker.ending = t.ending_next[r]
            request = t.requests[r]
            request.generated += 1
            if request.first_ps < 0:
                request.first_ps = now
            if request.generated == request.output:
                _complete(t, rules, w, r, now, np.int64(request.prompt + request.generated - 1))
            elif rules.keeps:
                _keep(t, rules, w, r)
            else:
                _start_decoding(t, rules, w, r, domain.step)
        if rules.caching:
            evict(t, rules, w, 0)


@njit(forceinline=True)
def advance(t: Tables, rules: Rules, step_time: Any, d: int, until_ps: int) -> None:
    """Take a domain to ``until_ps``: steps that end by then are done, the step that starts then is not yet planned."""
    domain = t.domains[d]
    # Most calls find nothing to do, and passing the tables on costs more than this look.
    if domain.phase_end_ps <= until_ps if domain.planned else not domain.idle and domain.now_ps < until_ps:
        _work(t, rules, step_time, d, until_ps)


@njit
def advance_all(t: Tables, rules: Rules, step_time: Any, until_ps: int) -> None:
    """Let every domain work until a moment, in ps."""
    for d in range(rules.workers // rules.group):
        advance(t, rules, step_time, d, until_ps)


@njit
def _work(t: Tables, rules: Rules, step_time: Any, d: int, until_ps: int) -> None:
    domain = t.domains[d]
    while True:
        if domain.planned:
            if domain.phase_end_ps > until_ps:
                return
            finish(t, rules, d)
        elif domain.idle or domain.now_ps >= until_ps:
            return
        else:
            plan(t, rules, step_time, d)


# ---------------------------------------------------------------------------------------------------------------------
# One domain that is gone in the middle of a step.


@njit
def break_off(t: Tables, rules: Rules, d: int, now_ps: int) -> int:
    """End the planned phase of a domain at a moment within it; returns how many steps that broke off: 0 or 1.

    Steps that have ended are done.  The one in progress counts as a step, and its time up to this moment as work.
    """
    domain = t.domains[d]
    if not domain.planned:
        return 0
    first = d * rules.group
    done = steps_done(domain, now_ps)
    begun_ps, step_ps = domain.now_ps, domain.first_ps
    prefill = t.workers[first].prefill_tokens
    if done > 0:
        step_ps += done * domain.growth_ps
        domain.phase_steps = done
        domain.phase_end_ps = begun_ps + _duration(domain, done)
        begun_ps = domain.phase_end_ps
        finish(t, rules, d)
    domain.planned = 0
    if begun_ps == now_ps:
        return 0
    if rules.group == 1:
        worked_ps = min(now_ps - begun_ps, step_ps - rules.sync_ps)
        domain.work_ps += worked_ps
        domain.work_counted_ps += _overlap(begun_ps, begun_ps + worked_ps, rules)
        if prefill > 0:
            domain.prefill_steps += 1
            domain.mixed_ps += now_ps - begun_ps
            domain.mixed_counted_ps += _overlap(begun_ps, now_ps, rules)
        return 1
    # A group's step was counted as a whole when it was planned.
    prefill = np.int64(0)
    for w in range(first, first + rules.group):
        own_ps = t.workers[w].own_ps
        worked_ps = min(now_ps - begun_ps, own_ps)
        domain.work_ps -= own_ps - worked_ps
        domain.work_counted_ps -= _overlap(begun_ps + worked_ps, begun_ps + own_ps, rules)
        prefill += t.workers[w].prefill_tokens
    if prefill > 0:
        domain.mixed_ps -= begun_ps + step_ps - now_ps
        domain.mixed_counted_ps -= _overlap(now_ps, begun_ps + step_ps, rules)
    return 1
