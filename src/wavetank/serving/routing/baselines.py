"""The routers everybody knows: round robin, random, fewest requests, fewest KV tokens, one queue for all.

They are the baselines of every routing study.  Fewest KV tokens is the strongest cheap rival: it looks at the very
load that a decode step pays for, and an independent study of data-parallel decoding found that most of the gain comes
from this choice of signal rather than from the algorithm behind it (DP-BalanceRouter, "The EP Barrier Tax", 2026).  The
central queue is the same rule with requests held back until a worker has a slot for them: what a pool router gains by
waiting alone, without any choice of who goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.serving.routing.interface import (
    ActiveView,
    Arrival,
    NoParameters,
    NoState,
    PoolView,
    WorkersView,
    choose_function,
    fits,
    place_function,
)
from wavetank.settings import setting
from wavetank.sim.rng import stream_key
from wavetank.sim.streams import next_below

_53_BITS = (1 << 53) - 1


@njit(forceinline=True)
def next_that_fits(view: WorkersView, start: int) -> int:
    """Return the first worker from ``start`` on, and around, that the arrival may go to; ``start`` where none may."""
    workers = view.running.size
    worker = start
    for _ in range(workers):
        if fits(view, worker):
            return worker
        worker = worker + 1 if worker + 1 < workers else 0
    return start


@njit(forceinline=True)
def one_that_fits(view: WorkersView, state: NDArray[np.float64]) -> int:
    """Draw one of the workers that the arrival may go to, each with equal probability; of all where it may to none."""
    workers = view.running.size
    drawn = next_below(state, workers)
    if fits(view, drawn):
        return drawn
    # A second draw, among those alone to which it may go, leaves each of them as likely as any other.
    fit = 0
    for worker in range(workers):
        fit += fits(view, worker)
    if fit > 0:
        left = next_below(state, fit)
        for worker in range(workers):
            if fits(view, worker):
                if left == 0:
                    return worker
                left -= 1
    return drawn


@choose_function
def _round_robin(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    worker = next_that_fits(view, np.int64(state[0]))
    state[0] = (worker + 1) % view.running.size
    return worker


@choose_function
def _random(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    return one_that_fits(view, state)


@njit(forceinline=True)
def _least(
    view: WorkersView, held: NDArray[Any], waiting: NDArray[Any], sent: NDArray[Any], state: NDArray[np.float64]
) -> int:
    """Return the worker with the least sum; the search begins behind the worker that was found last."""
    start = next_that_fits(view, np.int64(state[0]))
    workers = held.size
    best = start
    least = held[start] + waiting[start] + sent[start]
    for i in range(1, workers):
        worker = start + i
        if worker >= workers:
            worker -= workers
        load = held[worker] + waiting[worker] + sent[worker]
        if load < least and fits(view, worker):
            best, least = worker, load
    state[0] = (best + 1) % workers
    return best


@choose_function
def _fewest_requests(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    return _least(view, view.running, view.waiting, view.sent_requests, state)


@choose_function
def _fewest_kv_tokens(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    return _least(view, view.kv_tokens, view.waiting_tokens, view.sent_tokens, state)


@place_function
def _central_queue(
    view: WorkersView,
    pool: PoolView,
    active: ActiveView,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    placed: NDArray[np.int64],
) -> int:
    workers = view.running.size
    free = (view.slots - view.running - view.waiting - view.sent_requests) * view.takes
    load = view.kv_tokens + view.waiting_tokens + view.sent_tokens
    for r in range(pool.prompt_tokens.size):
        tokens = pool.prompt_tokens[r]
        best = -1
        for g in range(workers):
            room = free[g] > 0 and load[g] + tokens <= view.kv_capacity_tokens[g] and pool.serves[r, g] != 0
            if room and (best < 0 or load[g] < load[best]):
                best = g
        if best < 0:
            # First come, first served: nobody passes the one who waits for room.
            return r
        placed[r] = best
        free[best] -= 1
        load[best] += tokens
    return pool.prompt_tokens.size


class _InTurn(NoParameters):
    """Base of routers that begin each decision at the worker behind the last one chosen."""

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return one cell: the worker to begin with."""
        return np.zeros(1)


@dataclass(frozen=True, kw_only=True)
class RoundRobin(_InTurn):
    """Router that goes through the workers in turn."""

    choose = staticmethod(_round_robin)


@dataclass(frozen=True, kw_only=True)
class RandomWorker(NoParameters):
    """Router that draws a worker, each with equal probability."""

    seed: int = setting(0, says="Seed of the router's own random stream", low=0, high=2**31)

    choose = staticmethod(_random)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return key and counter of the stream."""
        return random_stream(self.seed, "random-worker")


@dataclass(frozen=True, kw_only=True)
class FewestRequests(_InTurn):
    """Router that joins the worker with the fewest requests, running or waiting."""

    choose = staticmethod(_fewest_requests)


@dataclass(frozen=True, kw_only=True)
class FewestKVTokens(_InTurn):
    """Router that joins the worker with the fewest KV tokens, held or promised to waiting requests."""

    choose = staticmethod(_fewest_kv_tokens)


@dataclass(frozen=True, kw_only=True)
class CentralQueue(NoState, NoParameters):
    """Pool router: first come, first served to the worker with the fewest KV tokens that has a slot and room."""

    place = staticmethod(_central_queue)


def random_stream(seed: int, purpose: str) -> NDArray[np.float64]:
    """Return key and counter of a policy's own stream, as :mod:`wavetank.sim.streams` keeps them."""
    return np.array([float(stream_key(seed, purpose) & _53_BITS), 0.0])
