"""Four ways to change a random draw, none of them clever.

A toy answers one question, what a draw becomes, so that a test can say beforehand what a study must find.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from wavetank.errors import BadTraceError
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Leaves every draw as it is."""

    def change(self, draw: float, seed: int) -> float:
        """Return what a draw becomes."""
        return draw


@dataclass(frozen=True, kw_only=True)
class Shifted:
    """Takes a fixed share off every draw.

    Parameters
    ----------
    share : float
        The share that is taken off.
    label : str, default "toy"
        A word without a meaning,
        told over two lines.
    """

    share: float = setting(0.5, says="the share that is taken off", low=0, high=1)
    label: str = "toy"
    pause_s: float | None = setting(None, unit="s", says="a pause nobody takes", low=0, high=60)

    def change(self, draw: float, seed: int) -> float:
        """Return what a draw becomes."""
        return draw * (1 - self.share)


@dataclass(frozen=True, kw_only=True)
class Fragile:
    """Breaks down in every n-th seed."""

    every: int = setting(2, says="the seeds it breaks down in are the multiples of this number", low=1, high=100)
    how: str = setting("defect", says="what happens then", choices=("defect", "bad-trace", "killed"))

    def change(self, draw: float, seed: int) -> float:
        """Return what a draw becomes."""
        if seed % self.every == 0:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "bad-trace":
                raise BadTraceError("The toy's trace has no rows.", hint="give it rows")
            raise ZeroDivisionError("the toy broke")
        return draw


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Takes its time."""

    wait_s: float = setting(0.2, unit="s", says="how long every trial takes", low=0, high=60)

    def change(self, draw: float, seed: int) -> float:
        """Return what a draw becomes."""
        time.sleep(self.wait_s)
        return draw
