"""The compiled simulator: replicas with continuous batching, alone or in lockstep groups, behind any router.

Time is a whole number of picoseconds, so the closed form below and a simulator that ticks every step agree to the last
bit (:mod:`wavetank.serving.reference` is that simulator, and a property test holds the two together).

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

from typing import Any, NamedTuple

import numpy as np
from numba import int64, njit, typeof, types
from numpy.typing import NDArray

from wavetank.platforms.step_time import STEP_SIGNATURE
from wavetank.serving.adapters import scaled_ps
from wavetank.serving.interfaces import (
    ACTIVE_TYPE,
    CHOOSE_SIGNATURE,
    PLACE_SIGNATURE,
    POOL_TYPE,
    WORKERS_TYPE,
    ActiveView,
    Arrival,
    PoolView,
    WorkersView,
)
from wavetank.sim.borrow import borrowed
from wavetank.sim.compiled import compiled

NEVER = np.int64(2**62)
PS = 1e12

# What ended the simulation.
FINE, BAD_WORKER, BAD_PLACEMENT, STUCK, LATE = 0, 1, 2, 3, 4
# Decisions in a row that place nothing while nobody runs, before a router counts as stuck.
PATIENCE = 10_000

REQUEST = np.dtype(
    [
        ("arrival_ps", np.int64),
        ("first_ps", np.int64),  # when its first token came
        ("finish_ps", np.int64),
        ("finish_step", np.int64),  # the domain's step after which it is done; -1 when not decoding
        ("prompt", np.int32),
        ("output", np.int32),
        ("generated", np.int32),  # kept up to date only when it stops decoding
        ("worker", np.int32),  # -1 before it is placed
        ("next", np.int32),  # in the worker's queue, or towards the newest running request
        ("prev", np.int32),
        ("preemptions", np.int32),
        ("matched", np.int32),  # prompt tokens found in the prefix cache at its last admission
    ],
    align=True,
)

WORKER = np.dtype(
    [
        ("held", np.int64),  # KV tokens of admitted requests, prompts reserved whole
        ("cached", np.int64),  # KV tokens kept for prefix reuse only: free when needed
        ("context", np.int64),  # tokens that the decoding requests read a step
        ("queue_tokens", np.int64),
        ("base_ps", np.int64),  # the part of the step time that does not grow with the context
        ("prefill_tokens", np.int64),  # of the planned step
        ("prefill_pairs", np.int64),
        ("own_ps", np.int64),  # what the planned step takes it alone, in a group
        ("decoding", np.int32),
        ("running", np.int32),  # decoding or prefilling
        ("queue_head", np.int32),
        ("queue_tail", np.int32),
        ("queue_length", np.int32),
        ("newest", np.int32),  # the running request admitted last
        ("partial", np.int32),  # the request whose prefill is cut by the token budget
        ("partial_done", np.int32),
        ("ending", np.int32),  # requests whose prefill ends with the planned step: a chain through ending_next
        ("cache_old", np.int32),  # least and most recently used block that nobody holds
        ("cache_new", np.int32),
        ("changed", np.int32),  # base_ps is out of date
    ],
    align=True,
)

DOMAIN = np.dtype(
    [
        ("now_ps", np.int64),  # the last boundary
        ("phase_end_ps", np.int64),
        ("phase_steps", np.int64),
        ("step", np.int64),  # steps done
        ("first_ps", np.int64),  # time of the planned phase's first step
        ("growth_ps", np.int64),  # by which each step of the phase is longer than the one before
        ("heap_size", np.int64),
        ("queued", np.int64),  # requests waiting at its workers
        ("active", np.int64),  # admitted requests
        ("planned", np.int64),
        ("idle", np.int64),
        # Sums of the whole run, and of what of it lies in the counted window.
        ("work_ps", np.int64),  # over steps and workers: the worker's own step time
        ("work_counted_ps", np.int64),
        ("mixed_ps", np.int64),  # over steps that contain prefill: the step's time
        ("mixed_counted_ps", np.int64),
        ("imbalance", np.float64),  # tokens, over steps; a step counts where it starts
        ("imbalance_counted", np.float64),
        ("steps_counted", np.int64),
        ("prefill_steps", np.int64),  # steps that contain prefill
    ],
    align=True,
)


# A worker's view of one adapter; the entry behind the last adapter is for requests without one.
ADAPTER = np.dtype(
    [
        ("used", np.int64),  # on the device: when it was loaded or left the batch, by the worker's count; else -1
        ("load_ps", np.int64),
        ("first_ps", np.int64),  # more of it the first time
        ("running", np.int32),  # requests of the batch that use it
        ("head", np.int32),  # its waiting requests in the order of the queue
        ("tail", np.int32),
        ("place", np.int32),  # where it stands among the adapters that requests wait for; -1: none does
        ("listed", np.int32),  # the adapter that stands at this entry's number among those
    ],
    align=True,
)

# A worker's adapters together.
BENCH = np.dtype(
    [
        ("slope_ps", np.int64),  # of the planned step's time per context token; -1 where adapters are loaded in it
        ("load_ps", np.int64),  # of loading, in the step that load_step says
        ("load_step", np.int64),  # the domain's step before which it loaded last
        ("uses", np.int64),
        ("last", np.int64),  # turns in the queue: the highest given, and the lowest, for who returns to its head
        ("first", np.int64),
        ("distinct", np.int32),  # adapters in the batch
        ("resident", np.int32),  # adapters on the device
        ("listed", np.int32),  # adapters, or none, that requests wait for
    ],
    align=True,
)

# A request's adapter, and its turn in its worker's queue.
ASK = np.dtype([("turn", np.int64), ("adapter", np.int32)], align=True)


class Rules(NamedTuple):
    """The numbers that govern every worker, as plain integers."""

    workers: int
    group: int  # workers a domain
    slots: int
    budget: int  # tokens a step
    capacity: int  # KV tokens
    admit_below: int  # KV tokens that may be held after an admission beside others
    sync_ps: int  # a step of a group takes this much longer
    slope_ps: int  # of the step time per context token; -1 when it is no line
    refresh_ps: int  # 0: routers see the present
    block_tokens: int  # of the trace's prefix blocks; 0 when it has none
    caching: int  # 1: workers keep a prefix cache
    prefilled: int  # 1: requests come with their prompt in the cache (a decode pool)
    window: int  # most waiting requests a pool router sees
    memory_ps: int  # how long the router's own record of sent prefixes counts
    probes: int
    count_from_ps: int  # the counted window starts here
    count_until_ps: int  # and ends here
    max_waiting: int  # of a worker's queue; 0: any number
    adapters: int  # that the trace names; 0: requests need none
    adapter_slots: int  # most distinct adapters in a batch
    factor: int  # of a batch with adapters, in millionths
    factor_each: int  # and more for each distinct one
    each_ps: int  # added to a step for each distinct one
    extended: int  # 1: there are adapters, or the scheduler takes time in every step
    overhead: int  # 1: the scheduler takes time in every step
    overhead_ps: int
    overhead_running_ps: int
    overhead_waiting_ps: int


class Tables(NamedTuple):
    """The arrays the simulation works on."""

    requests: NDArray[Any]  # REQUEST (n,)
    workers: NDArray[Any]  # WORKER (workers,)
    domains: NDArray[Any]  # DOMAIN (domains,)
    heap: NDArray[np.int64]  # (domains, room): finishing step << 32 | request
    ending_next: NDArray[np.int32]  # (n,)
    step_table: NDArray[np.float64]
    block_ids: NDArray[np.int32]
    block_offsets: NDArray[np.int64]  # (n + 1,), zeros without prefixes
    cache_held: NDArray[np.int32]  # (workers, blocks): how many requests hold it; -1 absent
    cache_next: NDArray[np.int32]  # (workers, blocks): towards more recently used
    cache_prev: NDArray[np.int32]
    sent_ps: NDArray[np.int64]  # (workers, blocks): when the router last sent it there
    probe_ps: NDArray[np.int64]  # (probes,)
    probe_tokens: NDArray[np.float64]  # (probes, workers): resident tokens
    probe_running: NDArray[np.int64]  # (probes, workers)
    pool: NDArray[np.int64]  # (n,): waiting requests in order of arrival
    pool_steps: NDArray[np.int64]  # (n,): decisions a request has seen
    pool_ends: NDArray[np.int64]  # (2,): first and one past the last in pool
    asks: NDArray[Any]  # ASK (n,); none where requests need no adapters
    benches: NDArray[Any]  # BENCH (workers,)
    lines: NDArray[Any]  # ADAPTER (workers, adapters + 1)
    counts: NDArray[np.int64]  # (10,): decisions, refreshes, phases, preemptions, ...


DECISIONS, REFRESHES, PHASES, PREEMPTIONS, EVICTIONS, MATCHED, ACTIVE, COMPLETED, LOADS, REFUSED = range(10)
# A router that leaves everybody idle while requests wait is asked again after this long, or after a refresh.
RETRY_PS = np.int64(1_000_000_000)


def make_tables(
    n: int, rules: Rules, step_table: NDArray[np.float64], blocks: int, router_blocks: int, max_blocks: int
) -> Tables:
    """Allocate the tables; about 100 bytes a request without prefixes."""
    domains = rules.workers // rules.group
    workers = np.zeros(rules.workers, WORKER)
    for name in ("queue_head", "queue_tail", "newest", "partial", "ending", "cache_old", "cache_new"):
        workers[name] = -1
    workers["changed"] = 1
    state = np.zeros(domains, DOMAIN)
    state["idle"] = 1
    benches = np.zeros(rules.workers if rules.extended else 0, BENCH)
    benches["load_step"] = -1
    lines = np.zeros((rules.workers, rules.adapters + 1) if rules.adapters else (0, 0), ADAPTER)
    for name in ("used", "head", "tail", "place"):
        lines[name] = -1
    requests = np.zeros(n, REQUEST)
    for name in ("first_ps", "finish_ps", "finish_step", "worker", "next", "prev"):
        requests[name] = -1
    return Tables(
        requests=requests,
        workers=workers,
        domains=state,
        heap=np.empty((domains, 2 * rules.group * rules.slots + 64), np.int64),
        ending_next=np.full(n, -1, np.int32),
        step_table=np.ascontiguousarray(step_table, np.float64),
        block_ids=np.empty(max_blocks, np.int32),
        block_offsets=np.zeros(n + 1 if max_blocks else 1, np.int64),
        cache_held=np.full((rules.workers, blocks), -1, np.int32),
        cache_next=np.full((rules.workers, blocks), -1, np.int32),
        cache_prev=np.full((rules.workers, blocks), -1, np.int32),
        sent_ps=np.full((rules.workers, router_blocks), -NEVER, np.int64),
        probe_ps=np.zeros(rules.probes, np.int64),
        probe_tokens=np.zeros((rules.probes, rules.workers)),
        probe_running=np.zeros((rules.probes, rules.workers), np.int64),
        pool=np.empty(n, np.int64),
        pool_steps=np.zeros(n, np.int64),
        pool_ends=np.zeros(2, np.int64),
        asks=np.zeros(n if rules.adapters else 0, ASK),
        benches=benches,
        lines=lines,
        counts=np.zeros(10, np.int64),
    )


def _rules_type() -> Any:
    return typeof(Rules(*([np.int64(1)] * len(Rules._fields))))


RULES_TYPE = _rules_type()
TABLES_TYPE = typeof(
    make_tables(1, Rules(*([1] * len(Rules._fields))), np.zeros(1), blocks=1, router_blocks=1, max_blocks=1)
)
STEP_TYPE = types.FunctionType(STEP_SIGNATURE)
CHOOSE_TYPE = types.FunctionType(CHOOSE_SIGNATURE)
PLACE_TYPE = types.FunctionType(PLACE_SIGNATURE)
_FLOATS = types.float64[::1]

# ---------------------------------------------------------------------------------------------------------------------
# Every function that is not inlined borrows its tables again: the compiler then knows that nothing in it counts
# references, which is worth a factor of three.


@njit(forceinline=True)
def _borrow(t: Tables) -> Tables:
    """Return the same tables for use within a call, free of reference counts."""
    return Tables(
        borrowed(t.requests),
        borrowed(t.workers),
        borrowed(t.domains),
        borrowed(t.heap),
        borrowed(t.ending_next),
        borrowed(t.step_table),
        borrowed(t.block_ids),
        borrowed(t.block_offsets),
        borrowed(t.cache_held),
        borrowed(t.cache_next),
        borrowed(t.cache_prev),
        borrowed(t.sent_ps),
        borrowed(t.probe_ps),
        borrowed(t.probe_tokens),
        borrowed(t.probe_running),
        borrowed(t.pool),
        borrowed(t.pool_steps),
        borrowed(t.pool_ends),
        borrowed(t.asks),
        borrowed(t.benches),
        borrowed(t.lines),
        borrowed(t.counts),
    )


@njit(forceinline=True)
def _borrow_view(view: WorkersView) -> WorkersView:
    return WorkersView(
        borrowed(view.kv_tokens),
        borrowed(view.kv_capacity_tokens),
        borrowed(view.running),
        borrowed(view.slots),
        borrowed(view.waiting),
        borrowed(view.waiting_tokens),
        borrowed(view.sent_requests),
        borrowed(view.sent_tokens),
        borrowed(view.matched_tokens),
        borrowed(view.age_s),
    )


# ---------------------------------------------------------------------------------------------------------------------
# The heap of finishing steps: least first.


@njit(forceinline=True)
def _push(heap: Any, size: int, key: int) -> int:
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if heap[above] <= key:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = key
    return size + 1


@njit(forceinline=True)
def _pop(heap: Any, size: int) -> int:
    size -= 1
    key = heap[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= key:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = key
    return size


@njit(forceinline=True)
def _live_top(t: Tables, d: int) -> int:
    """Return the least live finishing step of a domain, dropping entries that a preemption made stale."""
    domain = t.domains[d]
    heap = t.heap[d]
    while domain.heap_size > 0:
        key = heap[0]
        if t.requests[key & 0xFFFFFFFF].finish_step == key >> 32:
            return key >> 32
        domain.heap_size = _pop(heap, domain.heap_size)
    return NEVER


@njit(forceinline=True)
def _schedule_finish(t: Tables, d: int, r: int) -> None:
    domain = t.domains[d]
    heap = t.heap[d]
    if domain.heap_size == heap.size:
        # Only stale entries can fill it: keep the live ones.
        live = 0
        for i in range(domain.heap_size):
            key = heap[i]
            if t.requests[key & 0xFFFFFFFF].finish_step == key >> 32:
                live = _push(heap, live, key)
        domain.heap_size = live
    domain.heap_size = _push(heap, domain.heap_size, (t.requests[r].finish_step << 32) | r)


# ---------------------------------------------------------------------------------------------------------------------
# The prefix cache of a worker: whole blocks, reference counted, least recently used out first.


@njit(forceinline=True)
def _full_blocks(t: Tables, rules: Rules, r: int) -> int:
    if not rules.caching:
        return 0
    return min(t.block_offsets[r + 1] - t.block_offsets[r], t.requests[r].prompt // rules.block_tokens)


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
def _evict(t: Tables, rules: Rules, w: int) -> None:
    worker = t.workers[w]
    while worker.held + worker.cached > rules.capacity and worker.cached > 0:
        block = worker.cache_old
        _cache_remove(t, w, block)
        t.cache_held[w, block] = -1
        worker.cached -= rules.block_tokens
        t.counts[EVICTIONS] += 1


@njit
def _matched_blocks(t: Tables, rules: Rules, w: int, r: int) -> int:
    """Return how many leading blocks of the prompt the worker has; the last token is always computed."""
    most = min(_full_blocks(t, rules, r), (t.requests[r].prompt - 1) // rules.block_tokens)
    start = t.block_offsets[r]
    for i in range(most):
        if t.cache_held[w, t.block_ids[start + i]] < 0:
            return i
    return most


@njit
def _shared_tokens(t: Tables, rules: Rules, w: int, r: int) -> int:
    """Return how many of the request's tokens are in blocks that others hold on the worker."""
    shared = np.int64(0)
    start = t.block_offsets[r]
    for i in range(_full_blocks(t, rules, r)):
        if t.cache_held[w, t.block_ids[start + i]] > 0:
            shared += rules.block_tokens
    return shared


@njit
def _hold_blocks(t: Tables, rules: Rules, w: int, r: int) -> None:
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
        t.cache_held[w, block] = max(count, 0) + 1
    _evict(t, rules, w)


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
def _release(t: Tables, rules: Rules, w: int, r: int, total: int) -> None:
    t.workers[w].held -= total
    if rules.caching:
        _release_blocks(t, rules, w, r)


# ---------------------------------------------------------------------------------------------------------------------
# The adapters of a worker: one line a piece in its queue, slots, least recently used out first.


class _Benches(NamedTuple):
    """The tables that adapters need: few, for passing all of them on takes the compiler long."""

    requests: NDArray[Any]
    asks: NDArray[Any]
    benches: NDArray[Any]
    lines: NDArray[Any]


@njit(forceinline=True)
def _benches(t: Tables) -> _Benches:
    return _Benches(t.requests, t.asks, t.benches, t.lines)


@njit(forceinline=True)
def _borrow_benches(t: _Benches) -> _Benches:
    return _Benches(borrowed(t.requests), borrowed(t.asks), borrowed(t.benches), borrowed(t.lines))


@njit
def _wait_for_adapter(t: _Benches, w: int, r: int, returns: int) -> None:
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
def _first_that_may_run(t: _Benches, adapters: int, slots: int, w: int) -> int:
    """Return the first request of the queue whose adapter is in the batch or may join it; -1 for nobody."""
    t = _borrow_benches(t)
    bench = t.benches[w]
    found = np.int64(-1)
    turn = NEVER
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
def _take_adapter(t: _Benches, adapters: int, slots: int, w: int, r: int, step: int) -> int:
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
def _leave_adapter(t: _Benches, adapters: int, w: int, r: int) -> None:
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
def _extended_step_ps(t: Tables, rules: Rules, step_time: Any, w: int) -> int:
    """Return what the worker's own step takes with adapters, their loading and the scheduler's overhead."""
    t = _borrow(t)
    worker = t.workers[w]
    bench = t.benches[w]
    context = worker.context if rules.slope_ps < 0 else np.int64(0)
    own = step_time(worker.decoding, context, worker.prefill_tokens, worker.prefill_pairs, t.step_table)
    bench.slope_ps = max(rules.slope_ps, 0)
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
    return own


# ---------------------------------------------------------------------------------------------------------------------
# One worker: queue, admission, preemption, completion.


@njit(forceinline=True)
def _enqueue(t: Tables, rules: Rules, w: int, r: int, now_ps: int) -> None:
    """Put a request at the end of a worker's queue; a phase in progress ends at the first boundary from now on."""
    worker = t.workers[w]
    request = t.requests[r]
    d = w // rules.group
    domain = t.domains[d]
    request.worker = w
    if rules.adapters:
        _wait_for_adapter(_benches(t), w, r, np.int64(0))
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
    if domain.idle:
        domain.idle = 0
        domain.now_ps = max(domain.now_ps, now_ps)
    elif worker.queue_length == 1 and worker.running < rules.slots:
        _cut_phase(domain, now_ps)
    elif rules.extended:
        # It may overtake those whose adapter has no slot, and the scheduler takes longer.
        _cut_phase(domain, now_ps)


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
def _cut_phase(domain: Any, when_ps: int) -> None:
    """Let the phase in progress end at the first boundary at or after ``when_ps``."""
    if domain.planned and domain.phase_steps > 1:
        steps = _steps_until(domain, when_ps)
        if steps < domain.phase_steps:
            domain.phase_steps = steps
            domain.phase_end_ps = domain.now_ps + _duration(domain, steps)


@njit(forceinline=True)
def _steps_done(domain: Any, when_ps: int) -> int:
    """Return how many steps of the planned phase ended at or before ``when_ps``."""
    if when_ps >= domain.phase_end_ps:
        return domain.phase_steps
    if domain.phase_steps <= 1:
        return 0
    steps = _steps_until(domain, when_ps)
    return steps if _duration(domain, steps) == when_ps - domain.now_ps else steps - 1


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
        _leave_adapter(_benches(t), rules.adapters, w, r)


@njit(forceinline=True)
def _complete(t: Tables, rules: Rules, w: int, r: int, now_ps: int, resident: int) -> None:
    request = t.requests[r]
    request.finish_ps = now_ps
    request.finish_step = -1
    request.generated = request.output
    _unlink_running(t, rules, w, r)
    _release(t, rules, w, r, resident)
    t.domains[w // rules.group].active -= 1
    t.counts[COMPLETED] += 1


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
    _release(t, rules, w, r, resident)
    request.preemptions += 1
    if rules.adapters:
        _wait_for_adapter(_benches(t), w, r, np.int64(1))
    else:
        request.next = worker.queue_head
        worker.queue_head = r
        if worker.queue_tail < 0:
            worker.queue_tail = r
    worker.queue_length += 1
    worker.queue_tokens += request.prompt
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
    _schedule_finish(t, w // rules.group, r)


@njit(forceinline=True)
def _admit(t: Tables, rules: Rules, w: int) -> None:
    """Fill the worker's next step: make room for its decoding requests, then prefill within the token budget."""
    worker = t.workers[w]
    domain = t.domains[w // rules.group]
    worker.prefill_tokens = 0
    worker.prefill_pairs = 0
    while worker.held + worker.decoding > rules.capacity:
        _preempt_newest(t, rules, w)
    if worker.partial < 0 and worker.queue_length == 0:
        return
    budget = rules.budget - worker.decoding
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
    while budget > 0 and worker.queue_length > 0 and worker.running < rules.slots:
        if rules.adapters:
            r = _first_that_may_run(_benches(t), rules.adapters, rules.adapter_slots, w)
            if r < 0:
                break
        else:
            r = np.int64(worker.queue_head)
        request = t.requests[r]
        total = np.int64(request.prompt + request.generated)
        arrived = rules.prefilled and request.preemptions == 0
        if arrived:
            # A decode pool receives prompt and first token; that token's own keys come with its first step.
            total -= 1
        grown = total
        if rules.caching:
            grown -= _shared_tokens(t, rules, w, r)
        if arrived:
            # It decodes in this very step, and that takes a token more.
            grown += 1
        limit = rules.admit_below if worker.running > 0 else rules.capacity
        if worker.held + worker.decoding + grown > limit:
            break
        if rules.adapters:
            t.counts[LOADS] += _take_adapter(_benches(t), rules.adapters, rules.adapter_slots, w, r, domain.step)
        else:
            worker.queue_head = request.next
            if worker.queue_head < 0:
                worker.queue_tail = -1
        worker.queue_length -= 1
        worker.queue_tokens -= request.prompt
        domain.queued -= 1
        domain.active += 1
        matched = np.int64(0)
        if rules.caching:
            matched = _matched_blocks(t, rules, w, r) * rules.block_tokens
            t.counts[MATCHED] += matched
        request.matched = matched
        worker.held += total
        if rules.caching:
            _hold_blocks(t, rules, w, r)
        request.prev = worker.newest
        request.next = -1
        if worker.newest >= 0:
            t.requests[worker.newest].next = r
        worker.newest = r
        worker.running += 1
        if arrived:
            _start_decoding(t, rules, w, r, domain.step)
            budget -= 1
            continue
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
        return _extended_step_ps(t, rules, step_time, w)
    if rules.slope_ps < 0:
        return step_time(worker.decoding, worker.context, worker.prefill_tokens, worker.prefill_pairs, t.step_table)
    if worker.changed or worker.prefill_tokens > 0:
        worker.base_ps = step_time(worker.decoding, 0, worker.prefill_tokens, worker.prefill_pairs, t.step_table)
        worker.changed = 1 if worker.prefill_tokens > 0 else 0
    return worker.base_ps + rules.slope_ps * worker.context


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
    steps = _steps_done(domain, when)
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
def _plan(t: Tables, rules: Rules, step_time: Any, d: int) -> None:
    """Decide the phase that starts at the domain's boundary, or let the domain fall idle."""
    domain = t.domains[d]
    first = d * rules.group
    if domain.queued == 0 and domain.active == 0:
        domain.idle = 1
        return
    t.counts[PHASES] += 1
    if rules.group == 1:
        worker = t.workers[first]
        _admit(t, rules, first)
        own = _worker_step_ps(t, rules, step_time, first)
        domain.first_ps = own + rules.sync_ps
        domain.growth_ps = 0
        steps = np.int64(1)
        slope = rules.slope_ps
        if rules.extended:
            slope = t.benches[first].slope_ps if slope >= 0 else slope
        if worker.prefill_tokens == 0 and slope >= 0:
            domain.growth_ps = slope * worker.decoding
            steps = _live_top(t, d) - domain.step
            room = (rules.capacity - worker.held) // worker.decoding
            steps = max(min(steps, room), 1)
        domain.phase_steps = steps
    else:
        slowest = np.int64(0)
        heaviest = np.int64(0)
        load = np.int64(0)
        prefill = np.int64(0)
        for w in range(first, first + rules.group):
            _admit(t, rules, w)
            own = _worker_step_ps(t, rules, step_time, w)
            t.workers[w].own_ps = own
            slowest = max(slowest, own)
            prefill += t.workers[w].prefill_tokens
            context = t.workers[w].context
            load += context
            heaviest = max(heaviest, context)
        domain.first_ps = slowest + rules.sync_ps
        domain.growth_ps = 0
        domain.phase_steps = 1
        group = t.workers[first : first + rules.group]
        _count_step(rules, domain, group, slowest, prefill, np.float64(rules.group * heaviest - load))
    domain.phase_end_ps = domain.now_ps + _duration(domain, domain.phase_steps)
    domain.planned = 1


@njit(forceinline=True)
def _finish(t: Tables, rules: Rules, d: int) -> None:
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
            # Blocks that growth pushed out before the last step are gone, whatever that step's completions free.
            worker.held -= worker.decoding
            _evict(t, rules, w)
            worker.held += worker.decoding
    domain.step += steps
    domain.now_ps = now
    domain.planned = 0
    while domain.heap_size > 0 and heap[0] >> 32 <= domain.step:
        key = heap[0]
        domain.heap_size = _pop(heap, domain.heap_size)
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
            else:
                _start_decoding(t, rules, w, r, domain.step)
        if rules.caching:
            _evict(t, rules, w)


@njit(forceinline=True)
def _advance(t: Tables, rules: Rules, step_time: Any, d: int, until_ps: int) -> None:
    """Take a domain to ``until_ps``: steps that end by then are done, the step that starts then is not yet planned."""
    domain = t.domains[d]
    # Most calls find nothing to do, and passing the tables on costs more than this look.
    if domain.phase_end_ps <= until_ps if domain.planned else not domain.idle and domain.now_ps < until_ps:
        _work(t, rules, step_time, d, until_ps)


@njit
def _advance_all(t: Tables, rules: Rules, step_time: Any, until_ps: int) -> None:
    t = _borrow(t)
    for d in range(rules.workers // rules.group):
        _advance(t, rules, step_time, d, until_ps)


@njit
def _work(t: Tables, rules: Rules, step_time: Any, d: int, until_ps: int) -> None:
    t = _borrow(t)
    domain = t.domains[d]
    while True:
        if domain.planned:
            if domain.phase_end_ps > until_ps:
                return
            _finish(t, rules, d)
        elif domain.idle or domain.now_ps >= until_ps:
            return
        else:
            _plan(t, rules, step_time, d)


# ---------------------------------------------------------------------------------------------------------------------
# The router's side: views, decisions.


@njit
def _refresh(t: Tables, rules: Rules, view: WorkersView, now_ps: int) -> None:
    """Bring the view to ``now_ps``; the domains have been advanced there."""
    t = _borrow(t)
    view = _borrow_view(view)
    t.counts[REFRESHES] += 1
    for w in range(rules.workers):
        worker = t.workers[w]
        domain = t.domains[w // rules.group]
        grown = worker.decoding * _steps_done(domain, now_ps) if domain.planned else np.int64(0)
        view.kv_tokens[w] = worker.held + grown
        view.running[w] = worker.running
        view.waiting[w] = worker.queue_length
        view.waiting_tokens[w] = worker.queue_tokens
        view.sent_requests[w] = 0
        view.sent_tokens[w] = 0.0


@njit
def _match_sent(t: Tables, rules: Rules, view: WorkersView, r: int, now_ps: int) -> None:
    start, stop = t.block_offsets[r], t.block_offsets[r + 1]
    for w in range(rules.workers):
        matched = 0
        for i in range(start, stop):
            if now_ps - t.sent_ps[w, t.block_ids[i]] > rules.memory_ps:
                break
            matched += 1
        view.matched_tokens[w] = min(matched * rules.block_tokens, t.requests[r].prompt)


@njit(forceinline=True)
def _send(t: Tables, rules: Rules, view: WorkersView, w: int, r: int, now_ps: int) -> None:
    view.sent_requests[w] += 1
    view.sent_tokens[w] += t.requests[r].prompt
    if t.sent_ps.shape[1] > 0:
        for i in range(t.block_offsets[r], t.block_offsets[r + 1]):
            t.sent_ps[w, t.block_ids[i]] = now_ps
    _enqueue(t, rules, w, r, now_ps)


@njit
def _active_view(t: Tables, rules: Rules, active: ActiveView, now_ps: int) -> int:
    """Fill the table of decoding requests and return how many there are."""
    count = 0
    for w in range(rules.workers):
        domain = t.domains[w // rules.group]
        done = _steps_done(domain, now_ps) if domain.planned else np.int64(0)
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
def _refresh_pool(t: Tables, rules: Rules, view: WorkersView, active: ActiveView, now_ps: int) -> None:
    """Bring all that a pool router sees of the workers to ``now_ps``."""
    t = _borrow(t)
    view = _borrow_view(view)
    _refresh(t, rules, view, now_ps)
    t.counts[ACTIVE] = _active_view(t, rules, active, now_ps) if active.worker.size > 0 else 0


@njit
def _place_pool(
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
    expected: NDArray[np.float64],
    now_ps: int,
    refreshed_ps: int,
) -> int:
    """Let a pool router decide once; returns FINE or BAD_PLACEMENT."""
    t = _borrow(t)
    view = _borrow_view(view)
    pool = PoolView(
        borrowed(pool.prompt_tokens),
        borrowed(pool.waited_s),
        borrowed(pool.waited_steps),
        borrowed(pool.expected_output_tokens),
    )
    placed, state, parameters, expected = borrowed(placed), borrowed(state), borrowed(parameters), borrowed(expected)
    first, last = t.pool_ends[0], t.pool_ends[1]
    n = min(last - first, rules.window)
    if n == 0:
        return FINE
    free = np.int64(0)
    for w in range(rules.workers):
        free += max(view.slots[w] - view.running[w] - view.waiting[w] - view.sent_requests[w], 0)
        view.age_s[w] = (now_ps - refreshed_ps) / PS
    if free == 0:
        return FINE
    for i in range(n):
        r = t.pool[first + i]
        pool.prompt_tokens[i] = t.requests[r].prompt
        pool.waited_s[i] = (now_ps - t.requests[r].arrival_ps) / PS
        pool.waited_steps[i] = t.pool_steps[r]
        pool.expected_output_tokens[i] = expected[r]
        placed[i] = -1
        t.pool_steps[r] += 1
    m = t.counts[ACTIVE]
    t.counts[DECISIONS] += 1
    place(
        view,
        PoolView(pool.prompt_tokens[:n], pool.waited_s[:n], pool.waited_steps[:n], pool.expected_output_tokens[:n]),
        ActiveView(
            active.worker[:m], active.prompt_tokens[:m], active.generated_tokens[:m], active.remaining_tokens[:m]
        ),
        state,
        parameters,
        placed[:n],
    )
    # Workers receive their new requests in order of arrival.
    for i in range(n):
        w = placed[i]
        if w >= rules.workers or w < -1:
            return BAD_PLACEMENT
        if w >= 0:
            _advance(t, rules, step_time, w // rules.group, now_ps)
            _send(t, rules, view, w, t.pool[first + i], now_ps)
    # What stays moves up to the requests behind the window.
    kept = first + n
    for i in range(n - 1, -1, -1):
        if placed[i] < 0:
            kept -= 1
            t.pool[kept] = t.pool[first + i]
    t.pool_ends[0] = kept
    return FINE


@njit
def _interrupt(t: Tables, rules: Rules, d: int, now_ps: int) -> None:
    """Let a domain look at the pool at its first boundary from now on."""
    domain = t.domains[d]
    if domain.idle:
        domain.idle = 0
        domain.now_ps = max(domain.now_ps, now_ps)
    else:
        _cut_phase(domain, now_ps)


@njit
def _probe(t: Tables, rules: Rules, number: int, now_ps: int) -> None:
    for w in range(rules.workers):
        worker = t.workers[w]
        domain = t.domains[w // rules.group]
        grown = worker.decoding * _steps_done(domain, now_ps) if domain.planned else np.int64(0)
        t.probe_tokens[number, w] = worker.context + grown
        t.probe_running[number, w] = worker.running


@njit
def _probe_until(
    t: Tables, rules: Rules, step_time: Any, probe_ps: NDArray[np.int64], probe: int, until_ps: int
) -> int:
    """Take the probes from number ``probe`` up to ``until_ps``; returns the number of the next one."""
    t = _borrow(t)
    while probe < probe_ps.size and probe_ps[probe] <= until_ps:
        _advance_all(t, rules, step_time, probe_ps[probe])
        _probe(t, rules, probe, probe_ps[probe])
        probe += 1
    return probe


_ROUTED = (
    TABLES_TYPE,
    RULES_TYPE,
    STEP_TYPE,
)


@compiled(
    int64(*_ROUTED, CHOOSE_TYPE, _FLOATS, _FLOATS, WORKERS_TYPE, _FLOATS, types.int64[::1]),
    nogil=True,
    at_first_call=True,
)
def run_arrivals(
    t: Tables,
    rules: Rules,
    step_time: Any,
    choose: Any,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    view: WorkersView,
    expected: NDArray[np.float64],
    probe_ps: NDArray[np.int64],
) -> int:
    """Run the whole trace behind a router that places every request at its arrival; returns how it ended."""
    t = _borrow(t)
    view = _borrow_view(view)
    refreshed = np.int64(0)
    probe = 0
    _refresh(t, rules, view, np.int64(0))
    for r in range(t.requests.size):
        now = t.requests[r].arrival_ps
        due = now if rules.refresh_ps == 0 else now // rules.refresh_ps * rules.refresh_ps
        # A probe takes the domains further, and the router must not see what comes after its look.
        if probe < probe_ps.size and probe_ps[probe] < due:
            probe = _probe_until(t, rules, step_time, probe_ps, probe, due - 1)
        if due > refreshed or rules.refresh_ps == 0:
            _advance_all(t, rules, step_time, due)
            _refresh(t, rules, view, due)
            refreshed = due
        if probe < probe_ps.size and probe_ps[probe] <= now:
            probe = _probe_until(t, rules, step_time, probe_ps, probe, now)
        if rules.refresh_ps > 0:
            age = (now - refreshed) / PS
            for w in range(rules.workers):
                view.age_s[w] = age
        if t.sent_ps.shape[1] > 0:
            _match_sent(t, rules, view, r, now)
        t.counts[DECISIONS] += 1
        w = choose(view, Arrival(now / PS, np.float64(t.requests[r].prompt), expected[r]), state, parameters)
        if w < 0 or w >= rules.workers:
            return BAD_WORKER
        _advance(t, rules, step_time, w // rules.group, now)
        if rules.max_waiting > 0 and t.workers[w].queue_length >= rules.max_waiting:
            t.counts[REFUSED] += 1
            continue
        _send(t, rules, view, w, r, now)
    _probe_until(t, rules, step_time, probe_ps, probe, NEVER)
    _advance_all(t, rules, step_time, NEVER)
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
    expected: NDArray[np.float64],
    refreshed: NDArray[np.int64],
    until_ps: int,
) -> int:
    """Take the only domain to ``until_ps``, with a decision before every step that it starts."""
    t = _borrow(t)
    view = _borrow_view(view)
    domain = t.domains[0]
    in_vain = 0
    while True:
        if domain.planned:
            if domain.phase_end_ps > until_ps:
                return FINE
            in_vain = 0
            _finish(t, rules, np.int64(0))
        elif domain.idle or domain.now_ps >= until_ps:
            return FINE
        elif domain.queued == 0 and domain.active == 0 and t.pool_ends[0] == t.pool_ends[1]:
            domain.idle = 1
            return FINE
        else:
            now = domain.now_ps
            if rules.refresh_ps == 0 or now >= refreshed[0] + rules.refresh_ps:
                _refresh_pool(t, rules, view, active, now)
                refreshed[0] = now
            ended = _place_pool(
                t, rules, step_time, view, pool, active, placed, place, state, parameters, expected, now, refreshed[0]
            )
            if ended != FINE:
                return ended
            _plan(t, rules, step_time, np.int64(0))
            if t.pool_ends[0] < t.pool_ends[1]:
                # While requests wait every step begins with a decision, and otherwise with a look that is due.
                _cut_phase(domain, now)
            elif rules.refresh_ps > 0:
                _cut_phase(domain, refreshed[0] + rules.refresh_ps)
            if domain.idle and t.pool_ends[0] < t.pool_ends[1]:
                # Nobody runs and the router placed nobody (its view may be stale): it decides again a refresh later.
                in_vain += 1
                if in_vain > PATIENCE:
                    return STUCK
                domain.idle = 0
                domain.now_ps = now + max(rules.refresh_ps, RETRY_PS)


@njit
def _next_completion(t: Tables, rules: Rules, step_time: Any, retry_ps: int, until_ps: int) -> int:
    """Take all domains to the next moment at which a request completes, at ``until_ps`` at the latest.

    Returns that moment, ``retry_ps`` when no domain has anything to do, or NEVER when nothing completes until then.
    """
    t = _borrow(t)
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
                _advance(t, rules, step_time, d, domain.now_ps + 1)
            if domain.planned:
                nearest = min(nearest, domain.phase_end_ps)
        if not busy:
            return retry_ps
        if nearest > until_ps:
            return NEVER
        _advance_all(t, rules, step_time, nearest)
        if t.counts[COMPLETED] > completed:
            return nearest


@compiled(
    int64(
        *_ROUTED,
        PLACE_TYPE,
        _FLOATS,
        _FLOATS,
        WORKERS_TYPE,
        POOL_TYPE,
        ACTIVE_TYPE,
        types.int64[::1],
        _FLOATS,
        types.int64[::1],
    ),
    nogil=True,
    at_first_call=True,
)
def run_pool(
    t: Tables,
    rules: Rules,
    step_time: Any,
    place: Any,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    view: WorkersView,
    pool: PoolView,
    active: ActiveView,
    placed: NDArray[np.int64],
    expected: NDArray[np.float64],
    probe_ps: NDArray[np.int64],
) -> int:
    """Run the whole trace behind a router with a pool; returns how it ended.

    One domain: the router decides before every step.  Several: at every arrival, and while requests wait at every
    refresh; where signals are always fresh, at every moment at which a request completes, and a millisecond after a
    decision that left everybody idle.
    """
    t = _borrow(t)
    view = _borrow_view(view)
    domains = rules.workers // rules.group
    refreshed = np.zeros(1, np.int64)
    probe = 0
    n = t.requests.size
    tick = rules.refresh_ps
    _refresh_pool(t, rules, view, active, np.int64(0))
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
            else:
                until = min(now - 1, probe_ps[probe]) if probe < probe_ps.size else now - 1
                now = min(now, _next_completion(t, rules, step_time, refreshed[0] + RETRY_PS, until))
                if now == NEVER:
                    return LATE
        if probe < probe_ps.size and probe_ps[probe] <= now:
            now = probe_ps[probe]
            if domains == 1:
                ended = _advance_pool(
                    t, rules, step_time, view, pool, active, placed, place, state, parameters, expected, refreshed, now
                )
                if ended != FINE:
                    return ended
            else:
                if rules.refresh_ps > 0 and r < n and t.pool_ends[0] == t.pool_ends[1]:
                    due = t.requests[r].arrival_ps // tick * tick
                    if refreshed[0] < due <= now:
                        # The router looks before the probe takes the domains further.
                        _advance_all(t, rules, step_time, due)
                        _refresh_pool(t, rules, view, active, due)
                        refreshed[0] = due
                _advance_all(t, rules, step_time, now)
            _probe(t, rules, probe, now)
            probe += 1
            continue
        if domains == 1:
            ended = _advance_pool(
                t, rules, step_time, view, pool, active, placed, place, state, parameters, expected, refreshed, now
            )
            if ended != FINE:
                return ended
            if r < n:
                t.pool[t.pool_ends[1]] = r
                t.pool_ends[1] += 1
                r += 1
                _interrupt(t, rules, np.int64(0), now)
            elif probe == probe_ps.size and t.pool_ends[0] < t.pool_ends[1]:
                return LATE
            continue
        due = now // tick * tick if rules.refresh_ps > 0 else now
        if due > refreshed[0] or rules.refresh_ps == 0:
            _advance_all(t, rules, step_time, due)
            _refresh_pool(t, rules, view, active, due)
            refreshed[0] = due
        if r < n and t.requests[r].arrival_ps == now:
            t.pool[t.pool_ends[1]] = r
            t.pool_ends[1] += 1
            r += 1
        before = t.pool_ends[0]
        ended = _place_pool(
            t, rules, step_time, view, pool, active, placed, place, state, parameters, expected, now, refreshed[0]
        )
        if ended != FINE:
            return ended
        busy = r < n or t.pool_ends[0] > before
        if not busy:
            _advance_all(t, rules, step_time, now)
            for d in range(domains):
                busy = busy or t.domains[d].active > 0 or t.domains[d].queued > 0
        in_vain = 0 if busy else in_vain + 1
        if in_vain > PATIENCE:
            return STUCK
    _advance_all(t, rules, step_time, NEVER)
    return FINE
