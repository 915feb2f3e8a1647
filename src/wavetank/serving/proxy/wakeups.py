"""Wake an event loop at an exact time: timers of event loops keep whole milliseconds, which is much for a short step.

On Linux a timer of the kernel (``timerfd``) is watched like a socket; elsewhere the loop's own timer is used, which
comes up to a millisecond late.  Never early.

Source: timerfd_create(2), Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000
# Half a millisecond more than asked for is never too early for a loop that rounds to the nearest one.
_ROUNDING_S = 0.0005


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Wakeup:
    """One timer that calls back when its time has come.

    Parameters
    ----------
    callback : callable
        Called in the running event loop, once for every :meth:`at`.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._due_s = math.inf
        self._handle: asyncio.Handle | None = None
        self._library, self._timer = _kernel_timer()
        if self._timer >= 0:
            self._loop.add_reader(self._timer, self._expired)

    def at(self, when_s: float) -> None:
        """Call back at a time of ``time.monotonic``, soon where it has passed; an earlier order is forgotten."""
        self.cancel()
        self._due_s = when_s
        left_s = when_s - time.monotonic()
        if left_s <= 0:
            # In the next turn of the loop, so that others get theirs.
            self._handle = self._loop.call_soon(self._fire)
        elif self._library is not None:
            self._set(when_s)
        else:
            self._handle = self._loop.call_later(left_s + _ROUNDING_S, self._fire)

    def cancel(self) -> None:
        """Forget the order, if there is one."""
        self._due_s = math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Give the timer back; nothing is called any more."""
        self.cancel()
        if self._timer >= 0:
            self._loop.remove_reader(self._timer)
            os.close(self._timer)
            self._timer = -1
            self._library = None

    def _set(self, when_s: float) -> None:
        seconds, nanoseconds = divmod(int(when_s * _NS_PER_S) + 1, _NS_PER_S)
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
        self._library.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)  # type: ignore[union-attr]

    def _expired(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._timer, 8)
        # What expired may be an order that was forgotten or replaced meanwhile.
        if self._handle is None and self._due_s < math.inf:
            self._fire()

    def _fire(self) -> None:
        self._handle, due_s = None, self._due_s
        if time.monotonic() < due_s:
            self.at(due_s)
        else:
            self._due_s = math.inf
            self._callback()


def _kernel_timer() -> tuple[ctypes.CDLL | None, int]:
    if sys.platform != "linux":
        return None, -1
    try:
        library = ctypes.CDLL(None, use_errno=True)
        timer = int(library.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return None, -1
    return (library, timer) if timer >= 0 else (None, -1)
