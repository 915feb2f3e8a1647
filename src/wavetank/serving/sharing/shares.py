"""Shares of a resource by deadline, in closed form.

Of the latencies of a node's jobs relative to their deadlines, ``sum w_i W_i / (x_i D_i)``, the least is reached by
shares in proportion to ``sqrt(w_i W_i / D_i)`` (Karush, Kuhn and Tucker).  A job that is to end in time needs ``W_i /
D_i`` at least: whose share is below it gets just that, and the others divide the rest, until no share is below.  Where
these floors together are more than there is, the jobs with the smallest floors per weight are admitted.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled


@compiled
def divide(work: NDArray[np.float64], time_s: NDArray[np.float64], weight: NDArray[np.float64], count: int,
           whole: float, out: NDArray[np.float64]) -> None:  # fmt: skip
    """Write the shares of ``count`` jobs into ``out``.

    Parameters
    ----------
    work : float64, shape (n,)
        What is left, seconds at a share of 1; a job with 0 gets nothing.
    time_s : float64, shape (n,)
        Until the deadline, above 0.
    weight : float64, shape (n,)
    count : int
        Jobs, the first of the arrays.
    whole : float
        What there is.
    out : float64, shape (n,)
    """
    floors = 0.0
    for i in range(count):
        out[i] = 0.0
        floors += work[i] / time_s[i]
    if whole <= 0.0:
        return
    taken = np.ones(count, np.bool_)
    for i in range(count):
        taken[i] = work[i] > 0.0
    # Sums of the same floors in another order differ in their last digits: that must leave nobody out.
    if floors > whole * (1 + 1e-12):
        taken[:] = False
        cost = np.empty(count)
        for i in range(count):
            cost[i] = work[i] / time_s[i] / weight[i]
        left = whole
        for i in np.argsort(cost):
            floor = work[i] / time_s[i]
            if work[i] > 0.0 and floor <= left + 1e-12 * whole:
                taken[i] = True
                left -= floor
    rest = whole
    free = taken.copy()
    while True:
        total = 0.0
        for i in range(count):
            if free[i]:
                total += math.sqrt(weight[i] * work[i] / time_s[i])
        if total <= 0.0:
            return
        scale = rest / total
        clamped = False
        for i in range(count):
            if free[i]:
                out[i] = scale * math.sqrt(weight[i] * work[i] / time_s[i])
        for i in range(count):
            floor = work[i] / time_s[i]
            # Rounding must not clamp the last job below what is left for it.
            if free[i] and out[i] < floor * (1 - 1e-12):
                out[i] = floor
                rest -= floor
                free[i] = False
                clamped = True
        if not clamped:
            return


def shares(work: ArrayLike, time_s: ArrayLike, weight: ArrayLike, whole: float) -> NDArray[np.float64]:
    """Return the shares of jobs.

    Parameters
    ----------
    work : array_like, shape (n,)
        What is left, seconds at a share of 1.
    time_s : array_like, shape (n,)
        Until the deadline.
    weight : array_like, shape (n,)
    whole : float
        What there is.

    Returns
    -------
    float64, shape (n,)
        With the sum ``whole``, but where the jobs that are admitted are none.

    Raises
    ------
    BadValueError
        If lengths differ, or a number is negative, not finite, or a time or weight is 0.
    """
    given = [np.ascontiguousarray(each, np.float64) for each in (work, time_s, weight)]
    if given[0].ndim != 1 or not given[0].shape == given[1].shape == given[2].shape:
        raise BadValueError("Work, times and weights differ in length.", given=[each.shape for each in given])
    out = np.zeros(given[0].size)
    if not _divided(given[0], given[1], given[2], float(whole), out):
        raise BadValueError(
            "Work must not be negative, times and weights must be above 0, all finite.",
            given=[list(each[:5]) for each in given],
        )
    return out


@compiled
def _divided(work: NDArray[np.float64], time_s: NDArray[np.float64], weight: NDArray[np.float64], whole: float,
             out: NDArray[np.float64]) -> bool:  # fmt: skip
    """Write the shares into ``out`` and return whether the numbers make sense."""
    if not (np.isfinite(whole) and whole >= 0):
        return False
    for i in range(work.size):
        fine = np.isfinite(work[i]) and np.isfinite(time_s[i]) and np.isfinite(weight[i])
        if not (fine and work[i] >= 0 and time_s[i] > 0 and weight[i] > 0):
            return False
    divide(work, time_s, weight, work.size, whole, out)
    return True
