"""Plain Python routers inside the compiled simulator.

A router whose function is not compiled is called through a small compiled shim that steps into the interpreter.  The
shim passes a number, under which the router and the simulator's own view arrays are kept on this side of the border,
so that a call boxes little more than scalars.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numba import njit, objmode
from numba.core.registry import CPUDispatcher
from numpy.typing import NDArray

from wavetank.serving.routing.interface import (
    NO_BLOCKS,
    SIMULATED_CHOOSE_SIGNATURE,
    SIMULATED_PLACE_SIGNATURE,
    Arrival,
    ArrivalRouter,
    PoolRouter,
    WorkersView,
)

_open: dict[int, tuple[Any, WorkersView]] = {}
_numbers = itertools.count(1)


@contextlib.contextmanager
def compiled_policy(router: ArrivalRouter | PoolRouter, view: WorkersView) -> Iterator[tuple[Any, NDArray[np.float64]]]:
    """Give the compiled function of a router, and the parameters to call it with.

    Parameters
    ----------
    router : ArrivalRouter or PoolRouter
    view : WorkersView
        The arrays that the simulator refreshes in place.
    """
    pools = isinstance(router, PoolRouter)
    function = router.place if isinstance(router, PoolRouter) else router.choose
    parameters = np.ascontiguousarray(router.parameters(), np.float64)
    if isinstance(function, CPUDispatcher):
        yield function, parameters
        return
    number = next(_numbers)
    _open[number] = (router, view)
    try:
        yield _shim(pools), np.concatenate([[float(number)], parameters])
    finally:
        del _open[number]


def _call_choose(
    numbers: tuple[Any, ...], codes: tuple[Any, ...], blocks: NDArray[np.int64], state: Any, parameters: Any
) -> int:
    router, view = _open[int(parameters[0])]
    # The simulator frees its table of blocks at its end; a router may want to keep what it was shown.
    arrival = Arrival._make((*numbers, *codes, blocks.copy() if blocks.size else NO_BLOCKS))
    return int(router.choose(view, arrival, state, parameters[1:]))


def _call_place(pool: Any, active: Any, state: Any, parameters: Any, placed: Any) -> int:
    router, view = _open[int(parameters[0])]
    # The simulator reuses these arrays and frees them at its end; a router may want to keep what it was shown.
    pool, active = (type(part)(*(column.copy() for column in part)) for part in (pool, active))
    return int(router.place(view, pool, active, state, parameters[1:], placed))


@cache
def _shim(pools: bool) -> Any:
    # Compiled on first use: only those who bring a Python router wait for it.
    if pools:

        @njit(SIMULATED_PLACE_SIGNATURE)
        def place(view, pool, active, state, parameters, placed):  # type: ignore[no-untyped-def]
            with objmode(count="int64"):
                count = _call_place(pool, active, state, parameters, placed)
            return count

        return place

    @njit(SIMULATED_CHOOSE_SIGNATURE)
    def choose(view, arrival, state, parameters):  # type: ignore[no-untyped-def]
        numbers = (
            arrival.time_s,
            arrival.prompt_tokens,
            arrival.expected_output_tokens,
            arrival.output_spread_tokens,
            arrival.max_tokens,
            arrival.deadline_s,
        )
        codes = (arrival.model, arrival.adapter, arrival.session, arrival.tier)
        blocks = arrival.blocks
        with objmode(worker="int64"):
            worker = _call_choose(numbers, codes, blocks, state, parameters)
        return worker

    return choose
