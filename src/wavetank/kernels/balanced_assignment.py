"""Items that cost time and take room, onto bins of unequal speed: the longest first, each to where it ends soonest.

The rule is LPT (longest processing time first) in two dimensions: bins that have no room left are passed over.  Without
a limit of room and with equal speeds its largest load is at most 4/3 - 1/(3 bins) of the best one.

Source: R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on Applied Mathematics 17(2), 1969.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def longest_first(costs: Floats, sizes: Floats, bins: int, room: float = np.inf, speeds: Floats | None = None) -> Ints:
    """Return the bin of each item; -1 for one that has no room anywhere.

    Of items that cost the same the larger comes first, then the earlier; of bins where an item ends at the same time
    the one with more room left, then the first.

    Parameters
    ----------
    costs, sizes : float64 array (items,)
        Work of an item, and the room that it takes.
    bins : int
    room : float, default inf
        Room of each bin.
    speeds : float64 array (bins,), optional
        Work per second of each bin; all 1 when left out.

    Returns
    -------
    int64 array (items,)

    Raises
    ------
    BadValueError
        If there is no bin, or a cost, a size, a speed or the room is no number in range; only the room may be infinite.

    Examples
    --------
    >>> longest_first(np.array([3.0, 3.0, 2.0, 2.0, 2.0]), np.ones(5), 2).tolist()
    [0, 1, 0, 1, 0]
    """
    costs, sizes = np.ascontiguousarray(costs, np.float64), np.ascontiguousarray(sizes, np.float64)
    speeds = np.ones(max(bins, 0)) if speeds is None else np.ascontiguousarray(speeds, np.float64)
    # Written so that nan fails too.
    right = costs.shape == sizes.shape and costs.ndim == 1 and room >= 0
    right = right and all(bool(np.all((each >= 0) & np.isfinite(each))) for each in (costs, sizes, speeds))
    if bins < 1 or speeds.shape != (bins,) or not right or not np.all(speeds > 0):
        raise BadValueError(
            "Items have a finite cost and size from 0, bins room from 0 and a finite speed above 0.",
            given=f"{costs.shape} costs, {sizes.shape} sizes, {bins} bins, {speeds.shape} speeds, room {room}",
        )  # fmt: skip
    order = np.lexsort((np.arange(costs.size), -sizes, -costs))
    placed: Ints = _placed(costs, sizes, speeds, float(room), order)
    return placed


@compiled
def _placed(costs, sizes, speeds, room, order):  # type: ignore[no-untyped-def]
    loads, taken = np.zeros(speeds.size), np.zeros(speeds.size)
    where = np.full(costs.size, -1, np.int64)
    for item in order:
        best, ends = -1, np.inf
        for each in range(speeds.size):
            if taken[each] + sizes[item] > room:
                continue
            end = (loads[each] + costs[item]) / speeds[each]
            if end < ends or (end == ends and taken[each] < taken[best]):
                best, ends = each, end
        if best >= 0:
            where[item] = best
            loads[best] += costs[item]
            taken[best] += sizes[item]
    return where
