"""What a controller of branches sees before a step, and what it decides.

A controller is a pure function of a :class:`StepView`, what is predicted of step times, its parameters and a small
state that the caller owns.  Compiled with :func:`choose_function` it runs inside the engine's loop through a function
pointer; a plain Python function works as well, slower.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import njit, objmode, typeof, types
from numba.core.registry import CPUDispatcher
from numpy.typing import NDArray

from wavetank.platforms.step_time import STEP_SIGNATURE, StepFunction
from wavetank.sim.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class StepView(NamedTuple):
    """The step that is about to be taken: one branch of every request that decodes, and a chunk of prompts.

    Arrays of requests have one row for each request of the batch; arrays of candidates one row for each further branch
    that could run, by request and then by the branch's number.
    """

    now_s: float
    tpot_slo_s: float
    step: int  # number of the step
    decodes: int  # protected branches: one for each request past its prompt
    context_tokens: int  # that they read
    prefill_tokens: int  # of prompts, in this step
    prefill_pairs: int
    room: int  # sequences that the batch still takes
    deadline_s: Floats  # (requests,) when the next token of each is due
    last_token_s: Floats  # (requests,) when the last one was out; the arrival before the first
    steps_left: Floats  # (requests,) steps until that next token: 1, or more while a prompt is computed
    width: Ints  # (requests,) branches that ran in the step before; 0 where the stage is new
    protected_left: Floats  # (requests,) tokens that the protected branch is expected to lack
    request: Ints  # (candidates,) row of the request
    context: Floats  # (candidates,) tokens that it reads
    left: Floats  # (candidates,) tokens that it is expected to lack


def view_of(
    *,
    deadline_s: Any = (),
    request: Any = (),
    context: Any = (),
    now_s: float = 0.0,
    tpot_slo_s: float = 0.1,
    step: int = 0,
    decodes: int = 0,
    context_tokens: int = 0,
    prefill_tokens: int = 0,
    prefill_pairs: int = 0,
    room: int = 1 << 30,
    last_token_s: Any = 0.0,
    steps_left: Any = 1.0,
    width: Any = 1,
    protected_left: Any = 100.0,
    left: Any = 100.0,
) -> StepView:
    """Return a view from plain values, one number standing for all rows.

    Parameters
    ----------
    **columns
        The fields of :class:`StepView`.
    """
    due = np.array(deadline_s, np.float64)
    of = np.array(request, np.int64)

    def rows(value: Any, like: NDArray[Any], dtype: Any) -> Any:
        return np.array(np.broadcast_to(np.asarray(value), like.shape), dtype)

    return StepView(
        float(now_s), float(tpot_slo_s), int(step), int(decodes), int(context_tokens), int(prefill_tokens),
        int(prefill_pairs), int(room), due, rows(last_token_s, due, np.float64), rows(steps_left, due, np.float64),
        rows(width, due, np.int64), rows(protected_left, due, np.float64), of, rows(context, of, np.float64),
        rows(left, of, np.float64),
    )  # fmt: skip


VIEW_TYPE = typeof(view_of())
STEP_TYPE = types.FunctionType(STEP_SIGNATURE)
_FLOATS = types.float64[::1]
CHOOSE_SIGNATURE = types.int64(VIEW_TYPE, STEP_TYPE, _FLOATS, _FLOATS, _FLOATS, _FLOATS, types.int64[::1])
"""choose(view, step, table, predictor, state, parameters, admitted) -> how many.

``admitted[i]`` becomes 1 where candidate i runs.  ``step`` with its ``table`` is how long steps really take, which no
real controller knows: only oracles call it.  ``predictor`` is as of :mod:`wavetank.serving.branches.predictor`.
"""

Choose = Callable[[StepView, StepFunction, Floats, Floats, Floats, Floats, Ints], int]


def choose_function(function: Choose) -> Any:
    """Compile a ``choose`` function, for Python and for the engine."""
    return compiled([CHOOSE_SIGNATURE], nogil=True)(function)


class BranchController(Protocol):
    """Chooses which branches run besides the protected ones.

    A controller may have these attributes: ``admission``, the share of the objective for the time per token that the
    step of all branches may be predicted to take, lest new requests wait (0: they never do); ``knows_lengths``, with
    which ``left`` is the truth.
    """

    choose: Choose

    def parameters(self) -> Floats:
        """Return the parameters in the order in which the compiled function reads them."""
        ...


_open: dict[int, Any] = {}
_numbers = itertools.count(1)


@contextlib.contextmanager
def compiled_controller(controller: BranchController) -> Iterator[tuple[Any, Floats]]:
    """Give the compiled function of a controller, and the parameters to call it with.

    Parameters
    ----------
    controller : BranchController
        Whose function may be compiled or plain Python.
    """
    parameters = np.ascontiguousarray(controller.parameters(), np.float64)
    if isinstance(controller.choose, CPUDispatcher):
        yield controller.choose, parameters
        return
    number = next(_numbers)
    _open[number] = controller
    try:
        yield _shim(), np.concatenate([[float(number)], parameters])
    finally:
        del _open[number]


def _call(scalars: Any, columns: Any, table: Any, predictor: Any, state: Any, parameters: Any, admitted: Any) -> int:
    now_s, tpot_slo_s, *whole = scalars
    # The engine reuses these arrays; a controller may want to keep what it was shown.
    view = StepView._make((now_s, tpot_slo_s, *map(int, whole), *(each.copy() for each in columns)))
    controller = _open[int(parameters[0])]
    return int(controller.choose(view, None, table, predictor, state, parameters[1:], admitted))


@cache
def _shim() -> Any:
    # Compiled on first use: only those who bring a Python controller wait for it.
    @njit(CHOOSE_SIGNATURE)
    def choose(view, step, table, predictor, state, parameters, admitted):  # type: ignore[no-untyped-def]
        scalars = (
            view.now_s, view.tpot_slo_s, view.step, view.decodes, view.context_tokens, view.prefill_tokens,
            view.prefill_pairs, view.room,
        )  # fmt: skip
        columns = (
            view.deadline_s, view.last_token_s, view.steps_left, view.width, view.protected_left, view.request,
            view.context, view.left,
        )  # fmt: skip
        with objmode(count="int64"):
            count = _call(scalars, columns, table, predictor, state, parameters, admitted)
        # A block of the interpreter has no returns in it.
        return count  # noqa: RET504

    return choose
