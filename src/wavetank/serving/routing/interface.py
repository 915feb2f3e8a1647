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

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol, get_type_hints, runtime_checkable

import numpy as np
import numpy.typing as npt
from numba import njit, typeof, types
from numpy.typing import NDArray

from wavetank.errors import unknown_name
from wavetank.sim.compiled import compiled
from wavetank.sim.lent import Lent, borrower

NO_BLOCKS: NDArray[np.int64] = np.zeros(0, np.int64)


class WorkersView(NamedTuple):
    """The workers as a router knows them: as old as the last refresh, never fresher.

    All arrays have shape (workers,).  What the router itself sent since the refresh is in the ``sent_`` fields and in
    ``adapter_loaded``, and not in the others.

    ``serves``, ``adapter_loaded`` and ``cached_tokens`` are of the arrival that is decided; a pool router finds the
    first in :class:`PoolView`, and the others are 0 and NaN for it.
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
    identity: NDArray[np.int64]  # the worker's own number, whatever others come and go
    speed: NDArray[np.float64]  # of decoding, relative to the fastest worker: 1.0
    takes: NDArray[np.int64]  # 1: it takes new requests; 0: it drains, has failed, or is not well
    serves: NDArray[np.int64]  # 1: it has this arrival's model
    adapter_loaded: NDArray[np.int64]  # 1: this arrival's adapter is there or wanted there, or was sent there since
    cached_tokens: NDArray[np.float64]  # of this arrival's prompt in its prefix cache; nan when it does not say
    cached_total_tokens: NDArray[np.float64]  # what its prefix cache holds; nan when it does not say


class Arrival(NamedTuple):
    """The request to place.

    Models, adapters and tiers are codes: in a simulation those of the trace, live those of the router's own lists, in
    the order in which they were first seen.
    """

    time_s: float
    prompt_tokens: float
    expected_output_tokens: float  # nan when nobody predicts it
    output_spread_tokens: float = math.nan  # standard deviation of that prediction; nan when nobody says
    max_tokens: float = math.nan  # the longest answer that the request allows; nan when it names none
    deadline_s: float = math.inf  # on the clock of time_s; inf when it has none
    model: int = -1  # -1 when it names none
    adapter: int = -1  # -1 for the model as it is
    session: int = -1  # equal for the requests of a session; -1 when it belongs to none
    tier: int = -1  # 0 for the most urgent; -1 when it names none
    blocks: NDArray[np.int64] = NO_BLOCKS  # its prompt's prefix blocks; none unless the router says ``reads_prefix``


class PoolView(NamedTuple):
    """The oldest waiting requests, in order of arrival; arrays have shape (waiting,) but for ``serves``.

    Fields that :class:`Arrival` has as well mean the same.
    """

    prompt_tokens: NDArray[np.float64]
    waited_s: NDArray[np.float64]
    waited_steps: NDArray[np.int64]  # decisions since the request came into the pool's window
    expected_output_tokens: NDArray[np.float64]  # nan when nobody predicts it
    output_spread_tokens: NDArray[np.float64]
    max_tokens: NDArray[np.float64]
    deadline_s: NDArray[np.float64]
    model: NDArray[np.int64]
    adapter: NDArray[np.int64]
    session: NDArray[np.int64]
    tier: NDArray[np.int64]
    serves: NDArray[np.int8]  # (waiting, workers): 1 where the worker has the request's model


class ActiveView(NamedTuple):
    """The decoding requests, as old as the workers' view; arrays have shape (decoding,).

    Empty unless the router says ``reads_active``.
    """

    worker: NDArray[np.int64]
    prompt_tokens: NDArray[np.float64]
    generated_tokens: NDArray[np.float64]
    remaining_tokens: NDArray[np.float64]  # the truth, for oracles; nan outside a simulation


def idle_workers(n: int, **columns: npt.ArrayLike) -> WorkersView:
    """Return a view of ``n`` idle workers that take and serve everything, but for the columns given.

    Parameters
    ----------
    n : int
    **columns
        Fields of :class:`WorkersView`: one number for all workers, or one for each.
    """
    unknown = float("nan")
    plain: dict[str, Any] = dict.fromkeys(WorkersView._fields, 0) | {
        "kv_capacity_tokens": 1e9, "slots": 64, "identity": np.arange(n), "speed": 1.0, "takes": 1, "serves": 1,
        "cached_tokens": unknown, "cached_total_tokens": unknown,
    }  # fmt: skip
    return _filled(WorkersView, n, plain | _known(WorkersView, columns))


def waiting_requests(prompt_tokens: npt.ArrayLike, workers: int, **columns: npt.ArrayLike) -> PoolView:
    """Return a view of waiting requests that ask for nothing in particular, but for the columns given.

    Parameters
    ----------
    prompt_tokens : array_like, shape (waiting,)
    workers : int
    **columns
        Fields of :class:`PoolView`: one number for all requests, or one for each.
    """
    n = np.size(prompt_tokens)
    plain: dict[str, Any] = dict.fromkeys(PoolView._fields, 0) | Arrival._field_defaults
    plain |= {"prompt_tokens": prompt_tokens, "expected_output_tokens": math.nan}
    columns = _known(PoolView, columns)
    serves = np.broadcast_to(np.asarray(columns.pop("serves", 1)), (n, workers))
    filled = _filled(PoolView, n, {name: column for name, column in (plain | columns).items() if name != "blocks"})
    return filled._replace(serves=np.array(serves, np.int8))


def _known(view: type[Any], columns: dict[str, npt.ArrayLike]) -> dict[str, npt.ArrayLike]:
    for name in columns:
        if name not in view._fields:
            raise unknown_name("field", name, view._fields, where=view.__name__)
    return columns


@cache
def _whole(view: Any) -> frozenset[str]:
    """Return the fields of a view that hold whole numbers."""
    return frozenset(name for name, kind in get_type_hints(view).items() if kind == NDArray[np.int64])


def _filled(view: type[Any], n: int, columns: dict[str, npt.ArrayLike]) -> Any:
    whole = _whole(view)  # type: ignore[arg-type]
    return view(
        **{
            name: np.array(np.broadcast_to(np.asarray(column), n), np.int64 if name in whole else np.float64)
            for name, column in columns.items()
        }
    )


def _view_types() -> tuple[Any, Any, Any, Any]:
    f8, i8 = np.zeros(1), np.zeros(1, np.int64)
    return (
        typeof(idle_workers(1)),
        typeof(Arrival(0.0, 0.0, 0.0)),
        typeof(waiting_requests([1.0], 1)),
        typeof(ActiveView(i8, f8, f8, f8)),
    )


@njit(forceinline=True)
def fits(view: WorkersView, worker: int) -> bool:
    """Say whether a worker takes new requests and has the arrival's model: an arrival goes to no other one.

    Parameters
    ----------
    view : WorkersView
    worker : int
    """
    return view.takes[worker] != 0 and view.serves[worker] != 0


WORKERS_TYPE, ARRIVAL_TYPE, POOL_TYPE, ACTIVE_TYPE = _view_types()
_FLOATS, _INTS = types.float64[::1], types.int64[::1]

LENT_WORKERS_TYPE = Lent(WORKERS_TYPE)
workers_at = borrower(WORKERS_TYPE)
"""Gives compiled code the lent view of its words: see :mod:`wavetank.sim.lent`."""


def _choose_signature(workers: Any) -> Any:
    return types.int64(workers, ARRIVAL_TYPE, _FLOATS, _FLOATS)


def _place_signature(workers: Any) -> Any:
    return types.int64(workers, POOL_TYPE, ACTIVE_TYPE, _FLOATS, _FLOATS, _INTS)


# choose(view, arrival, state, parameters) -> worker
CHOOSE_SIGNATURE = _choose_signature(WORKERS_TYPE)
# place(view, pool, active, state, parameters, placed) -> how many; placed[i] becomes the worker of request i, or -1
PLACE_SIGNATURE = _place_signature(WORKERS_TYPE)
# In a simulation the view is lent, so that a call passes one word in its place.
SIMULATED_CHOOSE_SIGNATURE = _choose_signature(LENT_WORKERS_TYPE)
SIMULATED_PLACE_SIGNATURE = _place_signature(LENT_WORKERS_TYPE)

Choose = Callable[[WorkersView, Arrival, NDArray[np.float64], NDArray[np.float64]], int]
Place = Callable[[WorkersView, PoolView, ActiveView, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]], int]


def choose_function(function: Choose) -> Any:
    """Compile a ``choose`` function, for Python and for the simulator (kept on disk where it stands in a file)."""
    return compiled([CHOOSE_SIGNATURE, SIMULATED_CHOOSE_SIGNATURE], nogil=True)(function)


def place_function(function: Place) -> Any:
    """Compile a ``place`` function, for Python and for the simulator (kept on disk where it stands in a file)."""
    return compiled([PLACE_SIGNATURE, SIMULATED_PLACE_SIGNATURE], nogil=True)(function)


class Router(Protocol):
    """What both kinds of router promise.

    A router may set class attributes, so that only those pay for what they read:

    * ``reads_prefix``: ``matched_tokens`` is kept for it, and an arrival has its ``blocks``;
    * ``reads_adapters``: ``adapter_loaded`` is kept;
    * ``reads_events``: ``cached_tokens`` and ``cached_total_tokens`` are kept;
    * for a pool router ``reads_active``: the :class:`ActiveView` is filled, and ``reads_remaining``: it decides from
      ``remaining_tokens``, which only a simulation knows, and cannot be launched.

    A request must go to a worker that takes it and has its model (:func:`fits`, :attr:`PoolView.serves`): a simulation
    ends where a router sends it elsewhere, and a launched router sends it to another one and counts the mistake.
    Where no worker is fit, an arrival router may name any.
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
