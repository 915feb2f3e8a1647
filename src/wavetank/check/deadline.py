"""How much time a check may still take, and how much memory its process has: where checkers learn either."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path


def _now_s() -> float:
    """Return the time of a clock that stands still while this process compiles: that is no part of a check."""
    # Who has not loaded numba has compiled nothing.
    compiled = sys.modules.get("wavetank.sim.compiled")
    return time.monotonic() - (compiled.compiling_s() if compiled else 0.0)


def resident_bytes() -> int:
    """Return the memory this process takes now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class OutOfTimeError(Exception):
    """Raised by a checker whose time is up; it becomes the verdict "undecided"."""


class Deadline:
    """A point in time, which moves on by what compiling takes.

    Parameters
    ----------
    seconds : float
        From now.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._start = _now_s()
        self._end = self._start + seconds

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self._end - _now_s()

    @property
    def spent_s(self) -> float:
        """Seconds since the deadline was set."""
        return _now_s() - self._start

    def check(self) -> None:
        """Raise OutOfTimeError when the time is up."""
        if self.left_s <= 0:
            raise OutOfTimeError("the time is up")

    def at_most(self, seconds: float) -> Deadline:
        """Return a deadline of that many seconds from now, no later than this one."""
        return Deadline(min(seconds, self.left_s))


class Allowance(Deadline):
    """A deadline and a limit of memory; calling it returns whether time is left.

    Parameters
    ----------
    seconds : float
        From now.
    memory_bytes : int
        For what a search remembers.
    """

    def __init__(self, seconds: float, memory_bytes: int) -> None:
        super().__init__(seconds)
        self.memory_bytes = memory_bytes

    def __call__(self) -> bool:
        return self.left_s > 0

    def share(self, part: float) -> Allowance:
        """Return an allowance of this part of the time that is left, with the same memory."""
        return Allowance(max(0.0, self.left_s) * part, self.memory_bytes)
