"""Change points: where the level of a series jumps, by the least sum of absolute deviations from segments' medians.

Cutting a series so that the deviations from each segment's median plus a penalty for each cut are least is solved
exactly by dynamic programming; a start that is already worse than a cut can be dropped for good (PELT), once the cut is
far enough back to begin a segment of its own.  Costs of a growing segment follow from its two middle values alone.

Source: R. Killick, P. Fearnhead, I. Eckley, "Optimal Detection of Changepoints With a Linear Computational Cost",
JASA 107(500), 2012; deviations in place of squares let outliers be.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

Floats = NDArray[np.float64]
_NORMAL = 1.482602218505602
# Sorted windows of all starts together: above, values are taken together in blocks.
_LARGEST = 2048


def noise_of(values: Floats) -> float:
    """Return the standard deviation of the noise, from differences of neighbours: level shifts do not count.

    Parameters
    ----------
    values : array of float, shape (n,)
        Finite; at least two.

    Returns
    -------
    float
        1.4826 times the median of absolute differences, over the root of two.
    """
    steps = np.abs(np.diff(np.asarray(values, np.float64)))
    return float(_NORMAL * np.median(steps) / math.sqrt(2.0)) if steps.size else 0.0


def change_points(values: Floats, *, penalty: float, least: int = 14) -> NDArray[np.int64]:
    """Return where segments begin, the first one at 0 left out, with the least cost over all ways to cut.

    Parameters
    ----------
    values : array of float, shape (n,)
        Finite, in order of time; what is missing is left out before.
    penalty : float
        Above 0, in the unit of the values: what a cut costs; absolute deviations are added up against it.
    least : int
        Fewest values of a segment.

    Returns
    -------
    numpy.ndarray of int64, shape (cuts,)
        Ascending.  Series of more than 2,048 values are cut between blocks first, then each cut is moved to the best
        place within two blocks.

    Raises
    ------
    BadValueError
        For values that are not finite, a penalty not above 0, or segments of no values.
    """
    of = np.ascontiguousarray(values, np.float64)
    if of.ndim != 1 or not np.isfinite(of).all():
        raise BadValueError("Change points are sought in one series of finite values.", given=of.shape)
    if not (math.isfinite(penalty) and penalty > 0):
        raise BadValueError("A penalty is finite and above 0.", given=penalty)
    if least < 1:
        raise BadValueError("A segment has at least one value.", given=least)
    if of.size < 2 * least:
        return np.empty(0, np.int64)
    if of.size <= _LARGEST:
        return np.asarray(_cuts(of, penalty, least), np.int64)
    block = -(-of.size // _LARGEST)
    whole = of.size // block * block
    coarse: Floats = np.median(of[:whole].reshape(-1, block), axis=1)
    found = _cuts(np.ascontiguousarray(coarse), penalty / block, max(-(-least // block), 1)) * block
    return _refined(of, found, block, least)


def cost_of(values: Floats, cuts: NDArray[np.int64], penalty: float) -> float:
    """Return what a way to cut costs: absolute deviations from the segments' medians, and the penalty for each cut.

    Parameters
    ----------
    values : array of float, shape (n,)
    cuts : array of int, shape (cuts,)
    penalty : float
    """
    parts = np.split(np.asarray(values, np.float64), cuts)
    return float(sum(np.abs(each - np.median(each)).sum() for each in parts)) + penalty * len(cuts)


def _refined(values: Floats, cuts: NDArray[np.int64], block: int, least: int) -> NDArray[np.int64]:
    """Move each cut to the best place near it, between its neighbours."""
    edges = [0, *cuts.tolist(), values.size]
    for at in range(1, len(edges) - 1):
        low = max(edges[at] - 2 * block, edges[at - 1] + least)
        high = min(edges[at] + 2 * block, edges[at + 1] - least)
        left, right = values[edges[at - 1] : edges[at + 1]], edges[at - 1]
        options = range(low, high + 1)
        if options:
            edges[at] = min(options, key=lambda cut: cost_of(left, np.array([cut - right]), 0.0))
    return np.array(edges[1:-1], np.int64)


@compiled
def _cuts(values, penalty, least):  # type: ignore[no-untyped-def]
    n = values.size
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    before = np.zeros(n + 1, np.int64)
    # Per start: its sorted values, the cost of the segment so far, and until which end it may be used.
    window = np.empty((n, n))
    cost = np.zeros(n)
    until = np.full(n, n + 1, np.int64)
    alive = np.empty(n, np.int64)
    many = 0
    for end in range(1, n + 1):
        value = values[end - 1]
        # A start is open if a segment may end there: it has a finite cost, or is the very first.
        start = end - 1
        if best[start] < np.inf:
            alive[many] = start
            many += 1
        kept = 0
        for at in range(many):
            start = alive[at]
            if until[start] <= end:
                continue
            alive[kept] = start
            kept += 1
            size = end - 1 - start
            cost[start] += _grown(window[start], size, value)
            if size + 1 >= least:
                total = best[start] + cost[start] + penalty
                if total < best[end]:
                    best[end] = total
                    before[end] = start
        many = kept
        if best[end] < np.inf:
            for at in range(many):
                start = alive[at]
                # Not before a segment that begins here could be long enough.
                if end - start >= least and best[start] + cost[start] > best[end] and until[start] > end + least:
                    until[start] = end + least
    found = np.empty(n, np.int64)
    cuts = 0
    at = before[n]
    while at > 0:
        found[cuts] = at
        cuts += 1
        at = before[at]
    return found[:cuts][::-1].copy()


@compiled
def _grown(window, size, value):  # type: ignore[no-untyped-def]
    """Insert a value into the sorted ones; return by how much the sum of deviations from their median grows."""
    if size == 0:
        window[0] = value
        return 0.0
    low, high = window[(size - 1) // 2], window[size // 2]
    grown = low - value if value < low else (value - high if value > high else 0.0)
    first, last = 0, size
    while first < last:
        middle = (first + last) // 2
        if window[middle] <= value:
            first = middle + 1
        else:
            last = middle
    for at in range(size, first, -1):
        window[at] = window[at - 1]
    window[first] = value
    return grown
