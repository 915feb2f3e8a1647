"""What changes of workers do in the compiled simulator: to the workers, to their requests, to the autoscaler.

The rules are those of :mod:`~wavetank.serving.simulator.changes`.  A request of a worker that is gone is sent again as
the launched router does: to the worker with the fewest requests in flight among those that the view shows to take it
and that it was not sent to, as often as ``tries`` allows.  A worker that is gone, or drains, refuses connections: that
counts as no try, and the next worker is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit, typeof
from numpy.typing import NDArray

from wavetank.platforms.step_time import PS_PER_S
from wavetank.serving.routing.interface import WorkersView
from wavetank.serving.simulator.changes import (
    DRAIN,
    DRAINING,
    FAIL,
    FAILED,
    JOIN,
    LOST,
    NOWHERE,
    OFF,
    RECOVER,
    REFUSED,
    STOP,
    UP,
    Changes,
)
from wavetank.serving.simulator.prefix_cache import forget_units
from wavetank.serving.simulator.router_side import router_of, send, show_what_it_sent
from wavetank.serving.simulator.tables import COMPLETED, NEVER, Rules, Tables
from wavetank.serving.simulator.tables import REFUSED as REFUSED_COUNT
from wavetank.serving.simulator.worker_steps import break_off
from wavetank.sim.lent import borrower

if TYPE_CHECKING:
    from wavetank.serving.simulator.changes import Churn
    from wavetank.serving.simulator.cluster import Cluster


class Fates(NamedTuple):
    """What a run with changes knows beside its tables."""

    change_ps: NDArray[np.int64]  # (changes,)
    change_domain: NDArray[np.int64]
    change_action: NDArray[np.int64]
    state: NDArray[np.int64]  # (domains,): UP, DRAINING, FAILED or OFF
    up_since_ps: NDArray[np.int64]  # (domains,): since when it takes requests, where it does
    due_ps: NDArray[np.int64]  # (domains,): when it takes requests, where it starts; else NEVER
    outcome: NDArray[np.int8]  # (n,)
    sends: NDArray[np.int32]  # (n,): how often it was sent to a worker that took it
    tried: NDArray[np.int64]  # (n, workers / 32): bits of the workers that it was sent to
    since_ps: NDArray[np.int64]  # (n,): since when nobody takes it; NEVER where somebody does
    orphans: NDArray[np.int64]  # (n,): requests of workers that are gone, to be sent again
    waiting: NDArray[np.int64]  # (n,): requests that no worker takes, in the order in which that was seen
    listed: NDArray[np.int64]  # (n,): for a moment, the requests of one worker
    first_load_ps: NDArray[np.int64]  # (adapters + 1,): what a new worker's first load of an adapter takes more
    bounds: NDArray[np.float64]  # (2,): of the autoscaler
    sums: NDArray[np.int64]  # (10,): see below
    recomputed: int  # 1: streams that had begun go on elsewhere
    tries: int
    wait_ps: int
    start_ps: int
    scale_every_ps: int  # 0: no autoscaler
    least: int  # domains that it leaves
    workers_each: int  # of a domain


# Of the sums: the next change, the next look of the autoscaler, how many are in the lists, and what is counted.
NEXT, LOOK_PS, ORPHANS, WAITING, STRANDED, REFUSED_CONNECTIONS, ENDED, ENDED_PS, UP_PS, UP_COUNTED_PS = range(10)
_BITS = 32


def make_fates(churn: Churn, cluster: Cluster, changes: Changes, n: int, first_ps: int, adapters: int) -> Fates:
    """Allocate what a run with changes needs beside its tables.

    Parameters
    ----------
    churn : Churn
    cluster : Cluster
    changes : Changes
        Those known before the run.
    n : int
        Requests.
    first_ps : int
        The first arrival.
    adapters : int
        That the trace names.
    """
    domains = cluster.workers // cluster.group_size
    scales = churn.scale_high > 0
    state = np.full(domains, UP, np.int64)
    if scales and churn.first_workers:
        state[churn.first_workers // cluster.group_size :] = OFF
    sums = np.zeros(10, np.int64)
    sums[ENDED_PS] = first_ps
    every_ps = round(churn.scale_every_s * PS_PER_S) if scales else 0
    sums[LOOK_PS] = first_ps + every_ps
    first_load_ps = np.zeros(adapters + 1, np.int64)
    if adapters and cluster.adapters is not None:
        first_load_ps[:adapters] = cluster.adapters.firsts_ps(adapters)
    return Fates(
        change_ps=changes.time_ps,
        change_domain=changes.group,
        change_action=changes.action,
        state=state,
        up_since_ps=np.full(domains, first_ps, np.int64),
        due_ps=np.full(domains, NEVER, np.int64),
        outcome=np.zeros(n, np.int8),
        sends=np.zeros(n, np.int32),
        tried=np.zeros((n, -(-cluster.workers // _BITS)), np.int64),
        since_ps=np.full(n, NEVER, np.int64),
        orphans=np.zeros(n, np.int64),
        waiting=np.zeros(n, np.int64),
        listed=np.zeros(n, np.int64),
        first_load_ps=first_load_ps,
        bounds=np.array([churn.scale_low, churn.scale_high]),
        sums=sums,
        recomputed=int(churn.streams == "recomputed"),
        tries=churn.tries,
        wait_ps=round(churn.wait_s * PS_PER_S),
        start_ps=round(churn.start_s * PS_PER_S),
        scale_every_ps=every_ps,
        least=-(-churn.least_workers // cluster.group_size),
        workers_each=cluster.group_size,
    )


def _fates_type() -> Any:
    i8, none = np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
    one = np.int64(1)
    return typeof(
        Fates(
            i8, i8, i8, i8, i8, i8, np.zeros(1, np.int8), np.zeros(1, np.int32), none, i8, i8, i8, i8, i8, np.zeros(2),
            i8, one, one, one, one, one, one, one,
        )
    )  # fmt: skip


FATES_TYPE = _fates_type()
fates_at = borrower(FATES_TYPE)

# ---------------------------------------------------------------------------------------------------------------------
# What a worker has.


@njit
def _requests_of(t: Tables, rules: Rules, f: Fates, w: int) -> int:
    """List the requests of a worker, in no order, and return how many they are."""
    count = 0
    r = np.int64(t.workers[w].newest)
    while r >= 0:
        f.listed[count] = r
        count += 1
        r = np.int64(t.requests[r].prev)
    lines = t.benches[w].listed if rules.adapters else np.int64(1)
    for i in range(lines):
        r = np.int64(t.lines[w, t.lines[w, i].listed].head if rules.adapters else t.workers[w].queue_head)
        while r >= 0:
            f.listed[count] = r
            count += 1
            r = np.int64(t.requests[r].next)
    return count


@njit
def _in_flight(t: Tables, rules: Rules, f: Fates, w: int, copy: int) -> int:
    """Return how many requests a worker has from a copy of the router."""
    if rules.routers == 1:
        return t.workers[w].queue_length + t.workers[w].running
    own = 0
    for i in range(_requests_of(t, rules, f, w)):
        own += router_of(rules, f.listed[i]) == copy
    return own


@njit
def _empty(t: Tables, rules: Rules, f: Fates, w: int) -> None:
    """Take all that a worker has: queue, batch, KV cache, adapters."""
    worker = t.workers[w]
    worker.held = worker.cached = worker.context = worker.queue_tokens = 0
    worker.prefill_tokens = worker.prefill_pairs = worker.own_ps = 0
    worker.decoding = worker.running = worker.queue_length = worker.partial_done = 0
    worker.known = worker.room = worker.late = 0
    worker.queue_head = worker.queue_tail = worker.newest = worker.partial = worker.ending = -1
    worker.changed = 1
    if rules.caching:
        forget_units(t, w)
    worker.cache_old = worker.cache_new = -1
    if rules.extended:
        bench = t.benches[w]
        bench.came = bench.load_ps = bench.distinct = bench.resident = bench.listed = 0
        bench.load_step = -1
        for a in range(t.lines.shape[1] if rules.adapters else 0):
            line = t.lines[w, a]
            line.used = line.head = line.tail = line.place = -1
            line.running = 0
            line.first_ps = f.first_load_ps[a]


@njit
def _leave_up(rules: Rules, f: Fates, d: int, now_ps: int, state: int) -> None:
    """Count the time for which a domain took requests, and let it be something else."""
    if f.state[d] == UP:
        f.sums[UP_PS] += now_ps - f.up_since_ps[d]
        f.sums[UP_COUNTED_PS] += max(
            min(now_ps, rules.count_until_ps) - max(f.up_since_ps[d], rules.count_from_ps), np.int64(0)
        )
    f.state[d] = state


@njit
def _take_again(f: Fates, d: int, now_ps: int) -> None:
    f.state[d] = UP
    f.up_since_ps[d] = now_ps


@njit
def _lose(t: Tables, rules: Rules, f: Fates, d: int, now_ps: int) -> None:
    """Let the workers of a domain go; their requests are lost, or remembered as orphans."""
    domain = t.domains[d]
    broken = break_off(t, rules, d, now_ps)
    for w in range(d * rules.group, (d + 1) * rules.group):
        for i in range(_requests_of(t, rules, f, w)):
            r = f.listed[i]
            request = t.requests[r]
            if request.finish_step >= 0:
                request.generated = request.output - np.int32(request.finish_step - domain.step)
            request.finish_step = request.next = request.prev = -1
            if request.first_ps >= 0 and not f.recomputed:
                _end(f, r, LOST, now_ps)
            else:
                f.orphans[f.sums[ORPHANS]] = r
                f.sums[ORPHANS] += 1
        _empty(t, rules, f, w)
    domain.step += broken
    domain.heap_size = domain.queued = domain.active = 0
    domain.idle = 1


@njit
def _end(f: Fates, r: int, outcome: int, now_ps: int) -> None:
    f.outcome[r] = outcome
    f.sums[ENDED_PS] = now_ps
    f.sums[ENDED] += 1


@njit
def all_ended(t: Tables, f: Fates) -> bool:
    """Say whether every request has come to its end, by the time that the domains have been advanced to."""
    return t.counts[COMPLETED] + t.counts[REFUSED_COUNT] + f.sums[ENDED] == t.requests.size


# ---------------------------------------------------------------------------------------------------------------------
# Changes.


@njit
def next_change_ps(f: Fates) -> int:
    """Return when the next change is due, or the autoscaler looks; NEVER without one."""
    due = f.change_ps[f.sums[NEXT]] if f.sums[NEXT] < f.change_ps.size else NEVER
    if f.scale_every_ps > 0:
        due = min(due, f.sums[LOOK_PS])
        for d in range(f.state.size):
            due = min(due, f.due_ps[d])
    return due


@njit
def _change(t: Tables, rules: Rules, f: Fates, d: int, action: int, now_ps: int) -> None:
    state = f.state[d]
    if state in (UP, DRAINING):
        if action in (FAIL, STOP):
            _leave_up(rules, f, d, now_ps, FAILED if action == FAIL else OFF)
            _lose(t, rules, f, d, now_ps)
        elif state == UP and action == DRAIN:
            _leave_up(rules, f, d, now_ps, DRAINING)
        elif state == DRAINING and action == JOIN:
            _take_again(f, d, now_ps)
    elif (state == FAILED and action == RECOVER) or (state == OFF and action == JOIN):
        _take_again(f, d, now_ps)


@njit
def _scale(t: Tables, rules: Rules, f: Fates, waiting: int, now_ps: int) -> None:
    """Let the autoscaler look once: drained workers without requests are off, some are started, or one is drained."""
    up, starting, flying = 0, 0, waiting
    for d in range(f.state.size):
        busy = t.domains[d].queued + t.domains[d].active
        if f.state[d] == DRAINING and busy == 0:
            f.state[d] = OFF
            for w in range(d * rules.group, (d + 1) * rules.group):
                _empty(t, rules, f, w)
        flying += busy
        up += f.state[d] == UP
        starting += f.due_ps[d] < NEVER
    low, high = f.bounds[0], f.bounds[1]
    workers = (up + starting) * rules.group
    if flying > high * workers:
        wanted = np.int64(np.ceil(flying / (high * rules.group)))
        for d in range(f.state.size):
            if up + starting >= wanted:
                break
            if f.state[d] == OFF and f.due_ps[d] == NEVER:
                f.due_ps[d] = now_ps + f.start_ps
                starting += 1
    elif flying < low * workers and flying <= high * (workers - rules.group) and starting == 0 and up > f.least:
        calmest, least = -1, NEVER
        for d in range(f.state.size):
            busy = t.domains[d].queued + t.domains[d].active
            if f.state[d] == UP and busy <= least:
                calmest, least = d, busy
        _leave_up(rules, f, calmest, now_ps, DRAINING)


@njit
def change_workers(t: Tables, rules: Rules, f: Fates, waiting: int, now_ps: int) -> None:
    """Make all changes of a moment; the domains have been advanced there.

    First those of the list, in its order, then workers join whose start-up ends, then the autoscaler looks, who counts
    ``waiting`` requests beside those at the workers.
    """
    while f.sums[NEXT] < f.change_ps.size and f.change_ps[f.sums[NEXT]] == now_ps:
        i = f.sums[NEXT]
        f.sums[NEXT] += 1
        _change(t, rules, f, f.change_domain[i], f.change_action[i], now_ps)
    if f.scale_every_ps > 0:
        for d in range(f.state.size):
            if f.due_ps[d] == now_ps:
                f.due_ps[d] = NEVER
                if f.state[d] == OFF:
                    _take_again(f, d, now_ps)
        if f.sums[LOOK_PS] == now_ps:
            f.sums[LOOK_PS] += f.scale_every_ps
            _scale(t, rules, f, waiting, now_ps)


@njit
def close_up_times(rules: Rules, f: Fates, last_ps: int) -> None:
    """Count the time for which the workers took requests up to the end of the run."""
    for d in range(f.state.size):
        if f.state[d] == UP:
            _leave_up(rules, f, d, max(last_ps, f.up_since_ps[d]), UP)
            # The counted window may end later.
            f.sums[UP_COUNTED_PS] += max(
                rules.count_until_ps - max(f.up_since_ps[d], rules.count_from_ps, last_ps), np.int64(0)
            )


# ---------------------------------------------------------------------------------------------------------------------
# Requests on their way.


@njit
def show_who_takes(rules: Rules, f: Fates, view: WorkersView) -> None:
    """Bring to the view who takes requests, at a refresh."""
    for w in range(rules.workers):
        view.takes[w] = f.state[w // rules.group] == UP


@njit
def shows_somebody(t: Tables, rules: Rules, view: WorkersView, model: int) -> bool:
    """Say whether the view shows a worker that takes requests and has a model."""
    for w in range(rules.workers):
        if view.takes[w] != 0 and (t.serves.shape[1] == 0 or model < 0 or t.serves[w, model] != 0):
            return True
    return False


@njit
def _try(f: Fates, r: int, w: int) -> None:
    f.tried[r, w // _BITS] |= np.int64(1) << (w % _BITS)


@njit
def refuse_connection(f: Fates, r: int, w: int) -> None:
    """Note that a request was sent to a worker that is gone or drains."""
    f.sums[REFUSED_CONNECTIONS] += 1
    _try(f, r, w)


@njit
def deliver(t: Tables, rules: Rules, f: Fates, view: WorkersView, w: int, r: int, now_ps: int, copy: int) -> None:
    """Hand a request to a worker that is there, which has been advanced to this moment."""
    _try(f, r, w)
    f.since_ps[r] = NEVER
    if rules.max_waiting > 0 and t.workers[w].queue_length >= rules.max_waiting:
        t.counts[REFUSED_COUNT] += 1
        f.outcome[r] = REFUSED
        return
    f.sends[r] += 1
    send(t, rules, view, w, r, now_ps, copy)


@njit
def send_elsewhere(t: Tables, rules: Rules, f: Fates, view: WorkersView, model: int, r: int, now_ps: int) -> bool:
    """Send a request to one of the workers that the view shows and that it was not sent to: fewest in flight first.

    Returns whether one took it.  All domains have been advanced to this moment.
    """
    copy = router_of(rules, r)
    if rules.routers > 1:
        show_what_it_sent(t, rules, view, copy)
    while True:
        best, least = -1, NEVER
        for w in range(rules.workers):
            if view.takes[w] == 0 or f.tried[r, w // _BITS] >> (w % _BITS) & 1:
                continue
            if t.serves.shape[1] > 0 and model >= 0 and t.serves[w, model] == 0:
                continue
            flying = _in_flight(t, rules, f, w, copy)
            if flying < least:
                best, least = w, flying
        if best < 0:
            return False
        if f.state[best // rules.group] == UP:
            deliver(t, rules, f, view, best, r, now_ps, copy)
            return True
        refuse_connection(f, r, best)


@njit
def give_up(t: Tables, f: Fates, r: int, now_ps: int) -> None:
    """End a request in an error: a stream that had begun is lost."""
    _end(f, r, LOST if t.requests[r].first_ps >= 0 else NOWHERE, now_ps)


@njit
def forget_tries(f: Fates, r: int) -> None:
    """Let a request that waits be sent to any worker again."""
    f.tried[r, :] = 0


@njit
def stranded(t: Tables, f: Fates, r: int, now_ps: int) -> bool:
    """Take in that no worker takes a request; returns whether it waits for one."""
    if f.wait_ps == 0:
        give_up(t, f, r, now_ps)
        return False
    forget_tries(f, r)
    f.since_ps[r] = now_ps
    return True


@njit
def sorted_orphans(f: Fates) -> int:
    """Put the orphans into the order of arrival, and return how many there are."""
    count = f.sums[ORPHANS]
    f.orphans[:count] = np.sort(f.orphans[:count])
    f.sums[ORPHANS] = 0
    return count


@njit
def may_be_sent_again(t: Tables, f: Fates, r: int, now_ps: int) -> bool:
    """Say whether an orphan has a try left; without one it ends."""
    if f.sends[r] < f.tries:
        return True
    give_up(t, f, r, now_ps)
    return False
