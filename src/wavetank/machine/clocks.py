"""Clocks that measure a call: wall time and processor time; :mod:`wavetank.machine.cuda` has the device's own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, ClassVar, Self


class WallClock:
    """Measures the wall time of a call."""

    measures: ClassVar[str] = "wall time"
    """The beginning of the definition of ``time_s``."""

    @classmethod
    def of(cls, study: Any) -> Self:
        """Return the clock for a study with its settings."""
        return cls()

    def now(self) -> float:
        """Return the seconds since some moment in the past."""
        return time.perf_counter()

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the seconds of one call; garbage is not collected meanwhile."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            start = self.now()
            kept = call()
            took = self.now() - start
            del kept
            return took
        finally:
            if enabled:
                gc.enable()


class CpuClock(WallClock):
    """Measures the processor time of a call: of all threads of this process, and of child processes that ended."""

    measures: ClassVar[str] = "processor time of the process and of its children that ended, in user and system mode,"

    def now(self) -> float:
        """Return the processor time spent so far, in seconds."""
        # Not on every system that Python runs on.
        import resource

        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime
