"""A second thread that makes calls in the order in which it was given them, without the time that waking takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from wavetank.machine.threads import start_helpers
from wavetank.sim.compiled import compiled


@intrinsic
def _loaded(context: Any, flag: Any) -> Any:
    """Return the first entry of an int64 array as it is in memory now, whichever thread wrote it last."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(array.data, "acquire", 8)

    return types.int64(flag), generate


@compiled(nogil=True)
def _wait_while(flag: NDArray[np.int64], value: int, turns: int) -> None:
    """Return when ``flag[0]`` is no longer ``value``, or after ``turns`` turns."""
    for _ in range(turns):
        if _loaded(flag) != value:
            return


# About a millisecond: what follows a phase comes sooner, and what waits longer may as well sleep.
_TURNS = 1_000_000
# How long an end that is waited for may go unnoticed.
_LOOK_S = 0.05
# Found of a call that was not made.
DROPPED = object()


class WorkerThread:
    """A second thread that does calls in the order in which it was given them.

    A waiting thread looks at a counter for a while before it sleeps: to wake a sleeping core takes longer than many of
    the phases that a solver consists of.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._found: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._given = np.zeros(1, np.int64)
        self._done = np.zeros(1, np.int64)
        self._taken = 0
        self._dropped = False
        self._at_work = False

    def _do_calls(self) -> None:
        taken = 0
        while True:
            _wait_while(self._given, taken, _TURNS)
            call = self._calls.get()
            taken += 1
            if call is None:
                self._at_work = False
                self._found.put((DROPPED, None))
                return
            found: tuple[Any, BaseException | None]
            try:
                found = (DROPPED if self._dropped else call(), None)
            except BaseException as error:
                # Whatever it is belongs to the thread that asked.
                found = (None, error)
            self._found.put(found)
            self._done[0] = taken

    def __enter__(self) -> WorkerThread:
        self._at_work = True
        start_helpers(self._do_calls, 1)
        return self

    def __exit__(self, *of: object) -> None:
        self._put(None)
        while self._at_work:
            # What was not taken is of no use any more.
            with suppress(Empty):
                self._found.get(timeout=_LOOK_S)

    def _put(self, call: Callable[[], Any] | None) -> None:
        self._calls.put(call)
        self._given[0] += 1

    def drop(self) -> None:
        """Make no call any more that has not begun; :data:`DROPPED` is found instead."""
        self._dropped = True

    def give(self, call: Callable[[], Any]) -> None:
        """Start a call."""
        self._put(call)

    def take(self) -> tuple[Any, BaseException | None]:
        """Wait for the end of the first call that was not taken yet."""
        _wait_while(self._done, self._taken, _TURNS)
        found = self._found.get()
        self._taken += 1
        return found

    def done(self) -> int:
        """Return how many calls have ended that were not taken yet."""
        return int(self._done[0]) - self._taken
