"""What a router sees and decides.  One definition, used by the simulator and by what runs for real.

Two kinds of router:

* an :class:`ArrivalRouter` places every request when it arrives (``choose``);
* a :class:`PoolRouter` lets requests wait in one pool and places any number of them at every decision (``place``):
  before each step where there is a single barrier group, else at arrivals and refreshes.

Both are pure functions of a view, their parameters and a small state array that the caller owns.  Compiled with
:func:`choose_function` or :func:`place_function` they run inside the simulator's loop through a function pointer;
plain Python functions work as well, slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numba import typeof, types
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled


class WorkersView(NamedTuple):
    """The workers as a router knows them: as old as the last refresh, never fresher.

    All arrays have shape (workers,).  What the router itself sent since the refresh is in the ``sent_`` fields and not
    in the others.
    """

    kv_tokens: NDArray[np.float64]  # held in the KV cache by admitted requests
    kv_capacity_tokens: NDArray[np.float64]
    running: NDArray[np.int64]  # admitted requests, prefilling or decoding
    slots: NDArray[np.int64]  # most requests that may run at once
    waiting: NDArray[np.int64]  # requests queued at the worker
    waiting_tokens: NDArray[np.float64]  # their prompts
    sent_requests: NDArray[np.int64]  # sent by this router since the refresh
    sent_tokens: NDArray[np.float64]
    matched_tokens: NDArray[np.float64]  # of this arrival's prompt: the prefix that was sent to the worker before
    age_s: NDArray[np.float64]  # since the refresh


class Arrival(NamedTuple):
    """The request to place."""

    time_s: float
    prompt_tokens: float
    expected_output_tokens: float  # nan when nobody predicts it


class PoolView(NamedTuple):
    """The oldest waiting requests, in order of arrival; all arrays have shape (waiting,)."""

    prompt_tokens: NDArray[np.float64]
    waited_s: NDArray[np.float64]
    waited_steps: NDArray[np.int64]  # decisions since the request came into the pool's window
    expected_output_tokens: NDArray[np.float64]  # nan when nobody predicts it


class ActiveView(NamedTuple):
    """The decoding requests, as old as the workers' view; arrays have shape (decoding,).

    Empty unless the router says ``reads_active``.
    """

    worker: NDArray[np.int64]
    prompt_tokens: NDArray[np.float64]
    generated_tokens: NDArray[np.float64]
    remaining_tokens: NDArray[np.float64]  # the truth, for oracles; nan outside a simulation


def _view_types() -> tuple[Any, Any, Any, Any]:
    f8, i8 = np.zeros(1), np.zeros(1, np.int64)
    workers = WorkersView(f8, f8, i8, i8, i8, f8, i8, f8, f8, f8)
    return (
        typeof(workers),
        typeof(Arrival(0.0, 0.0, 0.0)),
        typeof(PoolView(f8, f8, i8, f8)),
        typeof(ActiveView(i8, f8, f8, f8)),
    )


WORKERS_TYPE, ARRIVAL_TYPE, POOL_TYPE, ACTIVE_TYPE = _view_types()
_FLOATS, _INTS = types.float64[::1], types.int64[::1]

# choose(view, arrival, state, parameters) -> worker
CHOOSE_SIGNATURE = types.int64(WORKERS_TYPE, ARRIVAL_TYPE, _FLOATS, _FLOATS)
# place(view, pool, active, state, parameters, placed) -> how many; placed[i] becomes the worker of request i, or -1
PLACE_SIGNATURE = types.int64(WORKERS_TYPE, POOL_TYPE, ACTIVE_TYPE, _FLOATS, _FLOATS, _INTS)

Choose = Callable[[WorkersView, Arrival, NDArray[np.float64], NDArray[np.float64]], int]
Place = Callable[[WorkersView, PoolView, ActiveView, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]], int]


def choose_function(function: Choose) -> Any:
    """Compile a ``choose`` function for the simulator's inner loop (kept on disk where it stands in a file)."""
    return compiled(CHOOSE_SIGNATURE, nogil=True)(function)


def place_function(function: Place) -> Any:
    """Compile a ``place`` function for the simulator's inner loop (kept on disk where it stands in a file)."""
    return compiled(PLACE_SIGNATURE, nogil=True)(function)


class Router(Protocol):
    """What both kinds of router promise.

    A router may set the class attributes ``reads_prefix`` (then ``matched_tokens`` is kept for it) and, for a pool
    router, ``reads_active`` (then the :class:`ActiveView` is filled) and ``reads_remaining`` (then it decides from
    ``remaining_tokens``, which only a simulation knows, and cannot be launched).
    """

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return the router's state before its first decision; any length."""
        ...

    def parameters(self) -> NDArray[np.float64]:
        """Return the parameters in the order in which the compiled function reads them."""
        ...


class NoState:
    """Base of routers that keep nothing from one decision to the next."""

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return no state."""
        return np.zeros(0)


class NoParameters:
    """Base of routers without parameters that their decisions read."""

    def parameters(self) -> NDArray[np.float64]:
        """Return no parameters."""
        return np.zeros(0)


@runtime_checkable
class ArrivalRouter(Router, Protocol):
    """Chooses a worker for each arriving request."""

    choose: Choose


@runtime_checkable
class PoolRouter(Router, Protocol):
    """Chooses which waiting requests to place, and where."""

    place: Place
