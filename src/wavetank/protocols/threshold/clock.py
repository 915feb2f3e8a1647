"""How much time a check may still take: the only place of the checkers where a clock is read."""

from __future__ import annotations

import math
import time


class OutOfTimeError(Exception):
    """Raised by a checker whose time is up; it becomes the verdict "undecided"."""


class Deadline:
    """A point in time.

    Parameters
    ----------
    seconds : float
        From now.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._start = time.perf_counter()
        self._end = self._start + seconds

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self._end - time.perf_counter()

    @property
    def spent_s(self) -> float:
        """Seconds since the deadline was set."""
        return time.perf_counter() - self._start

    def check(self) -> None:
        """Raise OutOfTimeError when the time is up."""
        if self.left_s <= 0:
            raise OutOfTimeError("the time is up")

    def at_most(self, seconds: float) -> Deadline:
        """Return a deadline of that many seconds from now, no later than this one."""
        return Deadline(min(seconds, self.left_s))
