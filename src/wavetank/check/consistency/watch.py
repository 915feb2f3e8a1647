"""A watch beside a check: it ends what outlives its time or outgrows its memory, wherever it is.

Searches look at their budgets themselves and end with a sentence of their own.  All that comes before a search (reading
a file, telling who saw whose write, building a graph) is linear, but over millions of operations it takes minutes and
gigabytes as well.  A second thread looks at the clock and at the size of the process and raises an error in the thread
that checks, which CPython delivers between two steps of Python code; compiled code is left to end by itself.
"""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import Self

from wavetank.check.deadline import Deadline, resident_bytes

_LOOKS_S = 0.05
# Searches notice the end of their time themselves, and say more about it.
_GRACE, _LEAST_GRACE_S = 0.05, 0.5
# An error may arrive where it is caught and lost: it is sent again.
_AGAIN_S = 0.5


class BudgetSpentError(BaseException):
    """A check has used up its time or its memory; no ``except Exception`` on its way keeps it."""


class Watch:
    """Raises :class:`BudgetSpentError` in the thread that entered it when a budget is used up.

    Parameters
    ----------
    seconds : float
        Wall time without what compiling takes; a little more is left to searches that end by themselves.
    memory_bytes : int
        By how much the process may grow.
    """

    def __init__(self, seconds: float, memory_bytes: int) -> None:
        self.seconds, self.memory_bytes = seconds, memory_bytes
        self.spent = ""
        """Which budget is used up, ``time`` or ``memory``, and in words how large it was; empty before that."""
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._deadline = Deadline(self.seconds)
        self._thread = threading.Thread(
            target=self._look, args=(threading.get_ident(), self._deadline, resident_bytes()), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self.close()

    def left_s(self) -> float:
        """Return how much of the time is left, at least 0."""
        return max(0.0, self._deadline.left_s)

    def close(self) -> None:
        """Stop watching; an error that was sent and has not arrived is kept from the caller.  May be called again."""
        while True:
            try:
                with self._lock:
                    self._done.set()
                # An error that was sent arrives at one of these jumps.  Were it taken back instead, CPython 3.11 would
                # look for one at every later step: slowly, and without an end where a debugger traces the thread.
                for _ in range(4):
                    pass
                break
            except BudgetSpentError:
                continue
        if self._thread is not None:
            self._thread.join()

    def _look(self, checked: int, deadline: Deadline, size_bytes: int) -> None:
        grace_s = max(_LEAST_GRACE_S, _GRACE * self.seconds)
        while not self._done.wait(_AGAIN_S if self.spent else _LOOKS_S):
            if not self.spent and deadline.left_s < -grace_s:
                self.spent = f"time: {self.seconds:g} s were used up"
            elif not self.spent and resident_bytes() - size_bytes > self.memory_bytes:
                self.spent = f"memory: {self.memory_bytes / 2**20:,.0f} MiB were used up"
            with self._lock:
                if self.spent and not self._done.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(checked), ctypes.py_object(BudgetSpentError)
                    )
