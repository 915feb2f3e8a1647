"""What a decomposition and a forecaster are, and the decisions that an analyst may fix.

A series is a :class:`~wavetank.workloads.series.Regular`: values on a grid of equal steps with its gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.periods import Period
from wavetank.workloads.series import Regular

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Forecaster(Protocol):
    """Says what comes after a series."""

    def forecast(self, history: Regular, steps: int) -> Floats:
        """Return the values of the next steps, in the unit of the series."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What an analyst fixes in place of the automatic choice.

    Parameters
    ----------
    periods : tuple of float, optional
        In steps of the grid; None for those that are found, () for none.
    changes : tuple of int, optional
        Times in ns at which a new level begins; None for those that are found, () for none.
    why : str
        The analyst's reason.
    """

    periods: tuple[float, ...] | None = None
    changes: tuple[int, ...] | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Decomposition:
    """The parts of a series; their sum is the series, or its logarithm.

    Parameters
    ----------
    series : Regular
    scale : str
        "log" if parts add up to the logarithm of the series, else "linear".
    level : numpy.ndarray of float64, shape (slots,)
        Constant between level shifts.
    trend : numpy.ndarray of float64, shape (slots,)
    cycles : mapping of float to numpy.ndarray of float64, shape (slots,)
        By period in steps, 0 where the cycle is off.
    on : mapping of float to numpy.ndarray of bool, shape (slots,)
        Where a cycle is on.
    outlier : numpy.ndarray of float64, shape (slots,)
        What single slots have that no neighbour has; 0 elsewhere.
    remainder : numpy.ndarray of float64, shape (slots,)
        NaN where the series is missing.
    changes : tuple of int
        Slots at which a new level begins.
    periods : tuple of Period
        As they were found; with powers of 0 where an analyst fixed them.
    """

    series: Regular
    scale: str
    level: Floats
    trend: Floats
    cycles: Mapping[float, Floats]
    on: Mapping[float, Flags]
    outlier: Floats
    remainder: Floats
    changes: tuple[int, ...]
    periods: tuple[Period, ...]

    @property
    def seasonal(self) -> Floats:
        """Sum of the cycles, shape (slots,)."""
        return np.sum([np.zeros(self.level.size), *self.cycles.values()], axis=0)

    def total(self) -> Floats:
        """Return the sum of all parts in the unit of the series; NaN where it is missing."""
        parts = self.level + self.trend + self.seasonal + self.outlier + self.remainder
        return np.exp(parts) if self.scale == "log" else parts

    def jump(self, change: int) -> float:
        """Return by how much the level changes at a slot: as a share of the level before where parts are logarithms.

        Parameters
        ----------
        change : int
            One of ``changes``.
        """
        step = float(self.level[change] - self.level[change - 1])
        return float(np.expm1(step)) if self.scale == "log" else step

    def amplitude(self, period: float) -> float:
        """Return half the distance of the highest and the lowest value of a cycle where it is on; 0 where it never is.

        Parameters
        ----------
        period : float
            One of the cycles' keys.
        """
        on = self.on[period]
        return float(np.ptp(self.cycles[period][on])) / 2.0 if on.any() else 0.0
