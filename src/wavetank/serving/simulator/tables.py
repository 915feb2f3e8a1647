"""The tables of the compiled simulator: what it knows of requests, workers, barrier domains and adapters.

All tables are numpy arrays of records, made once per run; the heap holds the finishing steps of a worker's requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit, typeof, types
from numpy.typing import NDArray

from wavetank.platforms.step_time import STEP_SIGNATURE, FittedStepTime
from wavetank.serving.routing.interface import (
    SIMULATED_CHOOSE_SIGNATURE,
    SIMULATED_PLACE_SIGNATURE,
    PoolView,
)
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reuse import ReuseRule, Units, no_units, parents
from wavetank.sim.borrow import borrowed
from wavetank.sim.lent import borrower

NEVER = np.int64(2**62)
PS = 1e12

# What ended the simulation.
FINE, BAD_WORKER, BAD_PLACEMENT, STUCK, LATE, UNFIT = 0, 1, 2, 3, 4, 5
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

# What workers of one kind can do; a worker has what every step needs.
LIMITS = np.dtype(
    [
        ("admit_below", np.int64),  # KV tokens that may be held after an admission beside others
        ("budget", np.int64),  # tokens a step
        ("table_from", np.int64),  # its part of the table of the step time
        ("table_until", np.int64),
        ("slots", np.int32),
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
        ("capacity", np.int64),  # KV tokens
        ("slope_ps", np.int64),  # of the step time per context token; -1 when it is no line
        ("stored", np.int64),  # tokens of the units in its cache, held or kept for reuse
        ("fetch_ps", np.int64),  # what the planned step waits for, from other workers' caches
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
        ("kind", np.int32),  # its row of the limits
        # Where batches are decided a step ahead:
        ("known", np.int32),  # waiting requests, from the head of the queue on, that the next decision knew
        ("room", np.int32),  # slots that were free when it was made
        ("late", np.int32),  # 1: somebody waits for no more than the next decision
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
        ("slope_ps", np.int64),  # of the planned step's time per context token; -1 where what follows is shorter
        ("load_ps", np.int64),  # of loading, in the step that load_step says
        ("load_step", np.int64),  # the domain's step before which it loaded last
        ("uses", np.int64),
        ("last", np.int64),  # turns in the queue: the highest given, and the lowest, for who returns to its head
        ("first", np.int64),
        ("known", np.int64),  # the highest turn that the next decision knew, where batches are decided a step ahead
        ("came", np.int64),  # requests since the step before
        ("distinct", np.int32),  # adapters in the batch
        ("resident", np.int32),  # adapters on the device
        ("listed", np.int32),  # adapters, or none, that requests wait for
    ],
    align=True,
)

# What was found of a request's prompt at its last admission, beside what is reused as it is.
FOUND = np.dtype([("recomputed", np.int32), ("fetched", np.int32)], align=True)

# A request's adapter, and its turn in its worker's queue.
ASK = np.dtype([("turn", np.int64), ("adapter", np.int32)], align=True)

# What routers are shown of a request beside its prompt.
ASKED = np.dtype(
    [
        ("expected", np.float64),
        ("spread", np.float64),
        ("max_tokens", np.float64),
        ("deadline_s", np.float64),  # on the simulation's clock
        ("model", np.int64),
        ("adapter", np.int64),
        ("session", np.int64),
        ("tier", np.int64),
    ],
    align=True,
)


class Rules(NamedTuple):
    """The numbers that govern every worker, as plain integers."""

    workers: int
    routers: int  # copies of the router, among which requests are dealt
    group: int  # workers a domain
    slots: int  # of the worker with the most
    sync_ps: int  # a step of a group takes this much longer
    refresh_ps: int  # 0: routers see the present
    block_tokens: int  # of the trace's prefix blocks; 0 when it has none
    caching: int  # 1: workers keep units of prompts for reuse
    events: int  # 1: routers are shown which
    moves: int  # 1: units are found elsewhere than behind what they followed, too
    named: int  # 1: by their names
    fetches: int  # 1: from other workers
    overlapped: int  # 1: fetching takes place beside a step's computing
    again: int  # first tokens of a moved run that are computed again
    again_share: int  # of the other moved tokens, in millionths
    fetch_token_ps: int
    fetch_latency_ps: int
    store_tokens: int  # most that are kept for reuse only
    keeps: int  # 1: a prompt that has ended keeps its KV cache until it was handed over to a decode worker
    window: int  # most waiting requests a pool router sees
    memory_ps: int  # how long the router's own record of sent prefixes counts
    probes: int
    count_from_ps: int  # the counted window starts here
    count_until_ps: int  # and ends here
    max_waiting: int  # of a worker's queue; 0: any number
    ahead: int  # 1: a step's batch is decided while the step before it runs
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
    overhead_arrival_ps: int


class Tables(NamedTuple):
    """The arrays the simulation works on."""

    requests: NDArray[Any]  # REQUEST (n,)
    workers: NDArray[Any]  # WORKER (workers,)
    limits: NDArray[Any]  # LIMITS (kinds,)
    domains: NDArray[Any]  # DOMAIN (domains,)
    heap: NDArray[np.int64]  # (domains, room): finishing step << 32 | request
    ending_next: NDArray[np.int32]  # (n,)
    step_table: NDArray[np.float64]  # those of all kinds, one after the other
    block_ids: NDArray[np.int64]
    block_offsets: NDArray[np.int64]  # (n + 1,), zeros without prefixes
    unit_ids: NDArray[np.int64]  # what the workers' caches keep of prompts, all requests one after the other
    unit_names: NDArray[np.int64]  # as many, where units have names; -1 for none
    unit_offsets: NDArray[np.int64]  # (n + 1,)
    unit_tokens: NDArray[np.int64]  # (distinct units,)
    unit_free: NDArray[np.int8]  # (distinct units,): 1: found wherever it stands; or none
    unit_parent: NDArray[np.int64]  # (distinct units,): the one before it; where units have names
    resident: NDArray[np.int8]  # (workers, distinct units): 1: there all the time, outside the KV cache; or none
    named: NDArray[np.int32]  # (workers, names): the unit that has a name there; -1: none ever had
    found: NDArray[Any]  # FOUND (n,) or none
    cache_held: NDArray[np.int32]  # (workers, distinct units): how many requests hold it; -1 absent
    cache_next: NDArray[np.int32]  # (workers, distinct units): towards more recently used
    cache_prev: NDArray[np.int32]
    sent_ps: NDArray[np.int64]  # (routers * workers, blocks): when that copy of the router last sent it there
    sent: NDArray[np.float64]  # (routers, 2, workers): requests and tokens that each copy sent since the refresh
    changes: NDArray[np.int64]  # (workers, distinct units): see prefix_cache; none where nobody reads what was there
    lora: NDArray[np.int8]  # (routers * workers, adapters): there at the refresh, or wanted or sent since; or none
    serves: NDArray[np.int8]  # (workers, models); none where every worker has every model
    probe_ps: NDArray[np.int64]  # (probes,)
    probe_tokens: NDArray[np.float64]  # (probes, workers): resident tokens
    probe_running: NDArray[np.int64]  # (probes, workers)
    pool: NDArray[np.int64]  # (n,): waiting requests in order of arrival; of prefill workers: prompts that have ended
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
    n: int,
    rules: Rules,
    parts: Sequence[Cluster],
    *,
    units: Units | None = None,
    router_blocks: int,
    max_blocks: int,
    events: bool = False,
    router_adapters: int = 0,
    serves: NDArray[np.int8] | None = None,
) -> Tables:
    """Allocate the tables; about 100 bytes a request without prefixes.

    Parameters
    ----------
    n : int
        Requests.
    rules : Rules
    parts : sequence of Cluster
        The workers by kind.
    units : Units, optional
        What the workers' caches keep of prompts.
    router_blocks : int
        Distinct prefix blocks of the router's record of what it sent; 0 where there is no such thing.
    max_blocks : int
        Prefix blocks of all requests together.
    events : bool
        Whether somebody reads what was in the workers' caches at the last refresh.
    router_adapters : int
        Adapters of which a router is shown where they are.
    serves : int8 array (workers, models), optional
        Which worker has which model; all have all by default.
    """
    domains = rules.workers // rules.group
    workers = np.zeros(rules.workers, WORKER)
    for name in ("queue_head", "queue_tail", "newest", "partial", "ending", "cache_old", "cache_new"):
        workers[name] = -1
    workers["changed"] = 1
    workers["kind"] = np.repeat(np.arange(len(parts)), [part.workers for part in parts])
    each = workers["kind"]
    workers["capacity"] = np.array([part.kv_capacity_tokens for part in parts])[each]
    workers["slope_ps"] = np.array([part.step_time.context_slope_ps for part in parts])[each]
    limits = np.zeros(len(parts), LIMITS)
    ends = np.cumsum([part.step_time.table.size for part in parts])
    for row, part, end in zip(limits, parts, ends, strict=True):
        row["admit_below"] = math.floor(part.kv_capacity_tokens * (1 - part.kv_watermark))
        row["budget"] = part.max_batched_tokens
        row["table_from"], row["table_until"] = end - part.step_time.table.size, end
        row["slots"] = part.max_running
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
        limits=limits,
        domains=state,
        heap=np.empty((domains, 2 * rules.group * rules.slots + 64), np.int64),
        ending_next=np.full(n, -1, np.int32),
        step_table=np.concatenate([np.asarray(part.step_time.table, np.float64) for part in parts]),
        block_ids=np.empty(max_blocks, np.int64),
        block_offsets=np.zeros(n + 1 if max_blocks else 1, np.int64),
        **_unit_tables(n, rules, units or no_units(0), events),
        sent_ps=np.full((rules.routers * rules.workers, router_blocks), -NEVER, np.int64),
        sent=np.zeros((rules.routers, 2, rules.workers) if rules.routers > 1 else (0, 2, 0)),
        lora=np.zeros((rules.routers * rules.workers, router_adapters), np.int8),
        serves=np.zeros((rules.workers, 0), np.int8) if serves is None else np.ascontiguousarray(serves, np.int8),
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


def reuse_rules(units: Units, rule: ReuseRule) -> dict[str, int]:
    """Return the numbers of a rule of reuse in the units of the compiled core.

    Parameters
    ----------
    units : Units
    rule : ReuseRule
    """
    named = units.names is not None and units.names.size > 0
    return {
        "moves": int(named or rule.fetch or units.free is not None or units.resident is not None),
        "named": int(named),
        "fetches": int(rule.fetch),
        "overlapped": int(rule.overlapped),
        "again": rule.again_tokens,
        "again_share": rule.again_millionths,
        "fetch_token_ps": rule.fetch_token_ps,
        "fetch_latency_ps": rule.fetch_latency_ps,
        "store_tokens": rule.store_tokens or int(NEVER),
    }


def found_columns(tables: Tables, cluster: Cluster) -> dict[str, Any]:
    """Return what was found of prompts beside what was reused as it is, as a run has it.

    Parameters
    ----------
    tables : Tables
    cluster : Cluster
    """
    if not tables.found.size or cluster.reuse is None:
        return {}
    return {
        "recomputed_tokens": tables.found["recomputed"].copy(),
        "transferred_bytes": tables.found["fetched"] * cluster.reuse.rule().bytes_per_token,
    }


def _unit_tables(n: int, rules: Rules, units: Units, events: bool) -> dict[str, NDArray[Any]]:
    """Return the tables of what the workers' caches keep."""
    workers, distinct = rules.workers, units.tokens.size
    lists = {name: np.full((workers, distinct), -1, np.int32) for name in ("cache_held", "cache_next", "cache_prev")}
    names = np.zeros(0, np.int64) if units.names is None else units.names
    resident = np.zeros((workers, 0), np.int8) if units.resident is None else units.resident
    return {
        **lists,
        "changes": np.full((workers, distinct if events else 0), -1, np.int64),
        "unit_ids": units.ids,
        "unit_names": names,
        "unit_offsets": units.offsets,
        "unit_tokens": units.tokens,
        "unit_free": np.zeros(0, np.int8) if units.free is None else np.ascontiguousarray(units.free, np.int8),
        "unit_parent": parents(units) if names.size else np.zeros(0, np.int64),
        "resident": np.ascontiguousarray(resident, np.int8),
        "named": np.full((workers, int(names.max(initial=-1)) + 1), -1, np.int32),
        "found": np.zeros(n if rules.moves else 0, FOUND),
    }


def _rules_type() -> Any:
    return typeof(Rules(*([np.int64(1)] * len(Rules._fields))))


RULES_TYPE = _rules_type()
_ONE_WORKER = (Cluster(workers=1, step_time=FittedStepTime(overhead_s=1.0)),)
TABLES_TYPE = typeof(
    make_tables(1, Rules(*([1] * len(Rules._fields))), _ONE_WORKER, router_blocks=1, max_blocks=1)
)
ASKED_TYPE = typeof(np.zeros(1, ASKED))
STEP_TYPE = types.FunctionType(STEP_SIGNATURE)
CHOOSE_TYPE = types.FunctionType(SIMULATED_CHOOSE_SIGNATURE)
PLACE_TYPE = types.FunctionType(SIMULATED_PLACE_SIGNATURE)
FLOATS = types.float64[::1]

tables_at, rules_at = borrower(TABLES_TYPE), borrower(RULES_TYPE)

# ---------------------------------------------------------------------------------------------------------------------
# Tables, rules and the workers' view are lent; every function that is not inlined borrows other arrays again: the
# compiler then knows that nothing in it counts references, which is worth a factor of three.


@njit(forceinline=True)
def borrow_pool(pool: PoolView) -> PoolView:
    """Return the pool for use within a call, free of reference counts."""
    return PoolView(
        borrowed(pool.prompt_tokens),
        borrowed(pool.waited_s),
        borrowed(pool.waited_steps),
        borrowed(pool.expected_output_tokens),
        borrowed(pool.output_spread_tokens),
        borrowed(pool.max_tokens),
        borrowed(pool.deadline_s),
        borrowed(pool.model),
        borrowed(pool.adapter),
        borrowed(pool.session),
        borrowed(pool.tier),
        borrowed(pool.serves),
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
def pop(heap: Any, size: int) -> int:
    """Remove the least key from a heap of ``size`` keys and return the new size."""
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
def live_top(t: Tables, d: int) -> int:
    """Return the least live finishing step of a domain, dropping entries that a preemption made stale."""
    domain = t.domains[d]
    heap = t.heap[d]
    while domain.heap_size > 0:
        key = heap[0]
        if t.requests[key & 0xFFFFFFFF].finish_step == key >> 32:
            return key >> 32
        domain.heap_size = pop(heap, domain.heap_size)
    return NEVER


@njit(forceinline=True)
def schedule_finish(t: Tables, d: int, r: int) -> None:
    """Put the step at which a request will finish into the heap of its domain."""
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
