"""Routers that hash: a session or a prefix always goes to the same worker, unless that worker has too much to do.

Each worker gets a number for each key, drawn by a hash of both; a key's workers in falling order of these numbers are
its first choice, its second choice and so on.  A worker that leaves takes its own keys with it and moves no others, and
the keys that it leaves behind spread over all who stay.

* *Session affinity* takes the first choice, whatever the load is.
* *Bounded loads* takes the first choice whose load would stay within a multiple of the mean: a popular key spills over
  to the same few workers, in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.serving.routing.interface import Arrival, NoState, WorkersView, choose_function, fits
from wavetank.settings import setting
from wavetank.sim.streams import mix

KEYS = ("session", "prefix")
SPILLS = ("next", "least")


@njit(forceinline=True)
def _number(key: int, identity: int) -> int:
    """Return a worker's number for a key: the larger, the earlier its choice."""
    return mix(mix(np.uint64(identity) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(key))


@njit(forceinline=True)
def _load(view: WorkersView, worker: int) -> int:
    return view.running[worker] + view.waiting[worker] + view.sent_requests[worker]


@njit
def first_choice(view: WorkersView, key: int, most: float) -> int:
    """Return a key's earliest choice among the workers that are fit and whose load is at most ``most``; -1: none.

    Parameters
    ----------
    view : WorkersView
    key : int
    most : float
        In requests.
    """
    best = -1
    highest = np.uint64(0)
    for worker in range(view.running.size):
        if fits(view, worker) and _load(view, worker) <= most:
            number = _number(key, view.identity[worker])
            if best < 0 or number > highest:
                best, highest = worker, number
    return best


@njit
def shortest(view: WorkersView) -> int:
    """Return the fit worker with the fewest requests, the first of equals; 0 where none is fit."""
    best = 0
    least = np.inf
    for worker in range(view.running.size):
        if fits(view, worker) and _load(view, worker) < least:
            best, least = worker, _load(view, worker)
    return best


@choose_function
def _session(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    window_s = parameters[0]
    counts = state[1:]
    # What was sent to each worker in the last while, older requests counting ever less.
    kept = math.exp(-max(arrival.time_s - state[0], 0.0) / window_s)
    state[0] = max(arrival.time_s, state[0])
    best = first_choice(view, arrival.session, np.inf) if arrival.session >= 0 else -1
    least = np.inf
    for worker in range(view.running.size):
        counts[worker] *= kept
        if arrival.session < 0 and fits(view, worker) and counts[worker] < least:
            best, least = worker, counts[worker]
    best = max(best, 0)
    counts[best] += 1.0
    return best


@choose_function
def _bounded(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    by_prefix, least, factor, depth = parameters[0] > 0.0, parameters[1] > 0.0, parameters[2], int(parameters[3])
    key = np.int64(arrival.session)
    if by_prefix:
        # A block stands for all before it, too.
        key = arrival.blocks[min(depth, arrival.blocks.size) - 1] if arrival.blocks.size > 0 else np.int64(-1)
    if key < 0:
        return shortest(view)
    total, workers = 0, 0
    for worker in range(view.running.size):
        if fits(view, worker):
            total += _load(view, worker)
            workers += 1
    if workers == 0:
        return 0
    # With the new request the load is to be within the bound: a whole number, so that somebody always has room.
    most = math.ceil(factor * (total + 1) / workers) - 1
    best = first_choice(view, key, np.float64(most))
    if least and best >= 0 and best != first_choice(view, key, np.inf):
        best = shortest(view)
    return best


@dataclass(frozen=True, kw_only=True)
class SessionAffinity:
    """The session router of vLLM's production stack: a session's hash, and else the fewest requests of late."""

    window_s: float = setting(
        60.0, unit="s", says="Time over which requests without a session are counted", low=1e-3, high=1e6
    )

    choose = staticmethod(_session)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return the time of the last decision and one count per worker."""
        return np.zeros(1 + workers)

    def parameters(self) -> NDArray[np.float64]:
        """Return the time over which requests are counted."""
        return np.array([self.window_s])


@dataclass(frozen=True, kw_only=True)
class BoundedHash(NoState):
    """Consistent hashing with bounded loads, by session or by the beginning of the prompt."""

    reads_prefix: ClassVar[bool] = True

    key: str = setting("prefix", says="What is hashed: the session, or the prompt's beginning", choices=KEYS)
    load_factor: float = setting(
        1.25, says="Multiple of the mean load, the new request included, that no worker is to exceed", low=1.0, high=1e6
    )
    spill: str = setting(
        "next", says="Where a key goes whose worker is full: its next choice, or the shortest queue", choices=SPILLS
    )
    prefix_blocks: int = setting(
        1, unit="blocks", says="Blocks of the prompt's beginning that count", low=1, high=10**6
    )

    choose = staticmethod(_bounded)

    def parameters(self) -> NDArray[np.float64]:
        """Return the key, the rule for spilling, the factor and the blocks."""
        by_prefix, least = KEYS.index(self.key), SPILLS.index(self.spill)
        return np.array([float(by_prefix), float(least), self.load_factor, float(self.prefix_blocks)])
