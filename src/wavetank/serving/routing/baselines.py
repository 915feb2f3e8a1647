"""The routers everybody knows: round robin, random, fewest requests, fewest KV tokens, one queue for all.

They are the baselines of every routing study.  Fewest KV tokens is the strongest cheap rival: it looks at the very
load that a decode step pays for, and an independent study of data-parallel decoding found that most of the gain comes
from this choice of signal rather than from the algorithm behind it (DP-BalanceRouter, "The EP Barrier Tax", 2026).  The
central queue is the same rule with requests held back until a worker has a slot for them: what a pool router gains by
waiting alone, without any choice of who goes.

Source: M. Harchol-Balter, "Performance Modeling and Design of Computer Systems", Cambridge 2013, chapter 24.

Differs from the source:

1. What the router itself sent since its view was refreshed counts as load, as every real gateway counts it.
2. Ties go to the first worker in a round that starts behind the last choice, so that idle workers share the arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.rng import stream_key
from wavetank.serving.interfaces import ActiveView, Arrival, PoolView, WorkersView, choose_function, place_function
from wavetank.settings import setting
from wavetank.sim.streams import next_below

_53_BITS = (1 << 53) - 1


@choose_function
def _round_robin(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    worker = np.int64(state[0])
    state[0] = (worker + 1) % view.running.size
    return worker


@choose_function
def _random(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    return next_below(state, view.running.size)


@choose_function
def _fewest_requests(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    start = np.int64(state[0])
    workers = view.running.size
    best = start
    least = view.running[start] + view.waiting[start] + view.sent_requests[start]
    for i in range(1, workers):
        worker = start + i
        if worker >= workers:
            worker -= workers
        load = view.running[worker] + view.waiting[worker] + view.sent_requests[worker]
        if load < least:
            best, least = worker, load
    state[0] = (best + 1) % workers
    return best


@choose_function
def _fewest_kv_tokens(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    start = np.int64(state[0])
    workers = view.running.size
    best = start
    least = view.kv_tokens[start] + view.waiting_tokens[start] + view.sent_tokens[start]
    for i in range(1, workers):
        worker = start + i
        if worker >= workers:
            worker -= workers
        load = view.kv_tokens[worker] + view.waiting_tokens[worker] + view.sent_tokens[worker]
        if load < least:
            best, least = worker, load
    state[0] = (best + 1) % workers
    return best


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
    free = view.slots - view.running - view.waiting - view.sent_requests
    load = view.kv_tokens + view.waiting_tokens + view.sent_tokens
    for r in range(pool.prompt_tokens.size):
        tokens = pool.prompt_tokens[r]
        best = -1
        for g in range(workers):
            fits = free[g] > 0 and load[g] + tokens <= view.kv_capacity_tokens[g]
            if fits and (best < 0 or load[g] < load[best]):
                best = g
        if best < 0:
            # First come, first served: nobody passes the one who waits for room.
            return r
        placed[r] = best
        free[best] -= 1
        load[best] += tokens
    return pool.prompt_tokens.size


@dataclass(frozen=True, kw_only=True)
class RoundRobin:
    """Router that goes through the workers in turn."""

    choose = staticmethod(_round_robin)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return one cell: the next worker."""
        return np.zeros(1)

    def parameters(self) -> NDArray[np.float64]:
        """Return no parameters."""
        return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class RandomWorker:
    """Router that draws a worker, each with equal probability."""

    seed: int = setting(0, says="start of the router's own random stream", low=0, high=2**31)

    choose = staticmethod(_random)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return key and counter of the stream."""
        return random_stream(self.seed, "random-worker")

    def parameters(self) -> NDArray[np.float64]:
        """Return no parameters."""
        return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class FewestRequests:
    """Router that joins the worker with the fewest requests, running or waiting."""

    choose = staticmethod(_fewest_requests)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return one cell: where the search starts."""
        return np.zeros(1)

    def parameters(self) -> NDArray[np.float64]:
        """Return no parameters."""
        return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class FewestKVTokens:
    """Router that joins the worker with the fewest KV tokens, held or promised to waiting requests."""

    choose = staticmethod(_fewest_kv_tokens)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return one cell: where the search starts."""
        return np.zeros(1)

    def parameters(self) -> NDArray[np.float64]:
        """Return no parameters."""
        return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class CentralQueue:
    """Pool router: first come, first served to the worker with the fewest KV tokens that has a slot and room."""

    place = staticmethod(_central_queue)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return no state."""
        return np.zeros(0)

    def parameters(self) -> NDArray[np.float64]:
        """Return no parameters."""
        return np.zeros(0)


def random_stream(seed: int, purpose: str) -> NDArray[np.float64]:
    """Return key and counter of a policy's own stream, as :mod:`wavetank.sim.streams` keeps them."""
    return np.array([float(stream_key(seed, purpose) & _53_BITS), 0.0])
