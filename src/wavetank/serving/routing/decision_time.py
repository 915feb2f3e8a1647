"""How long one routing decision takes, measured on a cluster's worth of made-up state."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numba import types, void
from numpy.typing import NDArray

from wavetank.serving.routing.interface import (
    ACTIVE_TYPE,
    ARRIVAL_TYPE,
    POOL_TYPE,
    ActiveView,
    Arrival,
    ArrivalRouter,
    PoolRouter,
    PoolView,
    idle_workers,
    waiting_requests,
    workers_at,
)
from wavetank.serving.routing.python_routers import compiled_policy
from wavetank.serving.simulator.tables import CHOOSE_TYPE, PLACE_TYPE
from wavetank.sim.compiled import compiled
from wavetank.sim.lent import words
from wavetank.sim.rng import stream

_FLOATS, _INTS = types.float64[::1], types.int64[::1]


@compiled(void(CHOOSE_TYPE, types.int64, _INTS, ARRIVAL_TYPE, _FLOATS, _FLOATS))
def _choose_often(
    choose: Any, times: int, view_words: NDArray[np.int64], arrival: Arrival, state: Any, parameters: Any
) -> None:
    view = workers_at(view_words)
    for _ in range(times):
        choose(view, arrival, state, parameters)


@compiled(void(PLACE_TYPE, types.int64, _INTS, POOL_TYPE, ACTIVE_TYPE, _FLOATS, _FLOATS, _INTS))
def _place_often(
    place: Any,
    times: int,
    view_words: NDArray[np.int64],
    pool: PoolView,
    active: ActiveView,
    state: Any,
    parameters: Any,
    placed: NDArray[np.int64],
) -> None:
    view = workers_at(view_words)
    for _ in range(times):
        placed[:] = -1
        place(view, pool, active, state, parameters, placed)


def decision_s(router: ArrivalRouter | PoolRouter, *, workers: int, waiting: int = 500, slots: int = 128) -> float:
    """Return the wall time of one decision in seconds, mean over enough decisions to fill about 20 ms.

    Parameters
    ----------
    router : ArrivalRouter or PoolRouter
    workers : int
        Workers in the view, each with half of its slots taken.
    waiting : int
        Requests in the pool (pool routers only); one free slot a worker.
    slots : int
        Slots of a worker.
    """
    rng = stream(0, "decision-time")
    kv = rng.uniform(1e4, 2e5, workers)
    running = np.full(workers, slots - 1, np.int64)
    view = idle_workers(workers, kv_tokens=kv, kv_capacity_tokens=1e6, running=running, slots=slots)
    state = np.ascontiguousarray(router.initial_state(workers), np.float64).copy()
    with compiled_policy(router, view) as (function, parameters):
        arguments: tuple[Any, ...]
        if isinstance(router, PoolRouter):
            active = int(running.sum()) if getattr(router, "reads_active", False) else 0
            prompts = rng.lognormal(6.5, 1.0, max(active, waiting))
            pool = waiting_requests(np.floor(prompts[:waiting]) + 1, workers)
            alive = ActiveView(
                np.repeat(np.arange(workers), running)[:active].astype(np.int64), np.floor(prompts[:active]) + 1,
                np.full(active, 100.0), np.full(active, 100.0),
            )  # fmt: skip
            repeat: Any = _place_often
            arguments = (words(view), pool, alive, state, parameters, np.full(waiting, -1, np.int64))
        else:
            repeat = _choose_often
            arguments = (words(view), Arrival(0.0, 1000.0, float("nan")), state, parameters)
        times = 1
        while True:
            start = time.perf_counter()
            repeat(function, times, *arguments)
            took = time.perf_counter() - start
            if took > 0.02:
                return took / times
            times *= 4
