"""The adapters of a simulated worker: a queue in lines per adapter, slots, least recently used out first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.serving.simulator.adapters import scaled_ps
from wavetank.serving.simulator.tables import NEVER, Rules, Tables
from wavetank.sim.borrow import borrowed


class _Benches(NamedTuple):
    """The tables that adapters need: few, for passing all of them on takes the compiler long."""

    requests: NDArray[Any]
    asks: NDArray[Any]
    benches: NDArray[Any]
    lines: NDArray[Any]


@njit(forceinline=True)
def benches(t: Tables) -> _Benches:
    """Return the tables that adapters use, alone: fewer arguments for what is not inlined."""
    return _Benches(t.requests, t.asks, t.benches, t.lines)


@njit(forceinline=True)
def _borrow_benches(t: _Benches) -> _Benches:
    return _Benches(borrowed(t.requests), borrowed(t.asks), borrowed(t.benches), borrowed(t.lines))


@njit
def wait_for_adapter(t: _Benches, w: int, r: int, returns: int) -> None:
    """Put a request at the end of its adapter's line, or at the head when it returns from the batch."""
    t = _borrow_benches(t)
    bench = t.benches[w]
    ask = t.asks[r]
    line = t.lines[w, ask.adapter]
    if returns:
        bench.first -= 1
        ask.turn = bench.first
        t.requests[r].next = line.head
        line.head = r
        if line.tail < 0:
            line.tail = r
    else:
        bench.last += 1
        ask.turn = bench.last
        t.requests[r].next = -1
        if line.tail >= 0:
            t.requests[line.tail].next = r
        else:
            line.head = r
        line.tail = r
    if line.place < 0:
        line.place = bench.listed
        t.lines[w, bench.listed].listed = ask.adapter
        bench.listed += 1


@njit
def first_that_may_run(t: _Benches, adapters: int, slots: int, w: int, late: int) -> int:
    """Return the first request of the queue whose adapter is in the batch or may join it; -1 for nobody.

    ``late`` leaves out those that came after the batch was decided.
    """
    t = _borrow_benches(t)
    bench = t.benches[w]
    found = np.int64(-1)
    turn = bench.known + 1 if late else NEVER
    for i in range(bench.listed):
        a = t.lines[w, i].listed
        line = t.lines[w, a]
        if line.running > 0 or bench.distinct < slots or a == adapters:
            r = np.int64(line.head)
            if t.asks[r].turn < turn:
                turn = t.asks[r].turn
                found = r
    return found


@njit
def may_use_adapter(t: _Benches, adapters: int, slots: int, w: int, r: int) -> bool:
    """Say whether a request's adapter is in the batch or may join it."""
    t = _borrow_benches(t)
    a = t.asks[r].adapter
    return a == adapters or t.lines[w, a].running > 0 or t.benches[w].distinct < slots


@njit
def use_adapter(t: _Benches, adapters: int, slots: int, w: int, r: int, step: int) -> int:
    """Take a request's adapter into the batch; returns how many that loads: 0 or 1."""
    t = _borrow_benches(t)
    bench = t.benches[w]
    a = np.int64(t.asks[r].adapter)
    line = t.lines[w, a]
    if a == adapters:
        return 0
    line.running += 1
    if line.running > 1:
        return 0
    bench.distinct += 1
    if line.used >= 0:
        return 0
    if bench.resident == slots:
        oldest = np.int64(-1)
        for b in range(adapters):
            other = t.lines[w, b]
            if other.used >= 0 and other.running == 0 and (oldest < 0 or other.used < t.lines[w, oldest].used):
                oldest = np.int64(b)
        t.lines[w, oldest].used = -1
    else:
        bench.resident += 1
    bench.uses += 1
    line.used = bench.uses
    bench.load_ps = line.load_ps + line.first_ps + (bench.load_ps if bench.load_step == step else np.int64(0))
    bench.load_step = step
    line.first_ps = 0
    return 1


@njit
def take_adapter(t: _Benches, adapters: int, slots: int, w: int, r: int, step: int) -> int:
    """Take a request out of its adapter's line and its adapter into the batch; returns how many that loads: 0 or 1."""
    t = _borrow_benches(t)
    bench = t.benches[w]
    a = np.int64(t.asks[r].adapter)
    line = t.lines[w, a]
    line.head = t.requests[r].next
    if line.head < 0:
        line.tail = -1
        bench.listed -= 1
        last = t.lines[w, bench.listed].listed
        t.lines[w, line.place].listed = last
        t.lines[w, last].place = line.place
        line.place = -1
    return use_adapter(t, adapters, slots, w, r, step)


@njit
def leave_adapter(t: _Benches, adapters: int, w: int, r: int) -> None:
    """Let a request leave the batch: its adapter stays on the device, and may be evicted once nobody uses it."""
    t = _borrow_benches(t)
    a = np.int64(t.asks[r].adapter)
    line = t.lines[w, a]
    if a == adapters:
        return
    line.running -= 1
    if line.running == 0:
        bench = t.benches[w]
        bench.distinct -= 1
        bench.uses += 1
        line.used = bench.uses


@njit
def extended_step_ps(t: Tables, rules: Rules, step_time: Any, w: int) -> int:
    """Return what the worker's own step takes with adapters, their loading, the scheduler and requests that came."""
    worker = t.workers[w]
    bench = t.benches[w]
    limits = t.limits[worker.kind]
    context = worker.context if worker.slope_ps < 0 else np.int64(0)
    table = t.step_table[limits.table_from : limits.table_until]
    own = step_time(worker.decoding, context, worker.prefill_tokens, worker.prefill_pairs, table)
    bench.slope_ps = max(worker.slope_ps, 0)
    if bench.distinct > 0:
        factor = rules.factor + rules.factor_each * bench.distinct
        own = scaled_ps(own, factor) + rules.each_ps * bench.distinct
        bench.slope_ps = scaled_ps(bench.slope_ps, factor)
    own += bench.slope_ps * (worker.context - context)
    if bench.load_step == t.domains[w // rules.group].step:
        # What follows it is shorter: it is planned alone.
        own += bench.load_ps
        bench.slope_ps = -1
    if rules.overhead:
        waiting = rules.overhead_waiting_ps * worker.queue_length
        own += max(rules.overhead_ps + rules.overhead_running_ps * worker.running + waiting, 0)
        if bench.came > 0 and rules.overhead_arrival_ps > 0:
            own += rules.overhead_arrival_ps * bench.came
            bench.slope_ps = -1
    bench.came = 0
    return own
