"""How many requests every size of an LRU cache would miss, from one pass over their items.

An item's stack distance is the number of different items requested since its last request, itself included: an LRU
cache answers the request if and only if it holds at least that many.  Distances are counted with a Fenwick tree over
the times of last requests, in O(log n) each.

Source: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

NEVER = np.iinfo(np.int64).max
"""Distance of a first request."""


def stack_distances(items: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the stack distance of every request.

    Parameters
    ----------
    items : array of integers, shape (requests,)
        What is requested, in order.

    Returns
    -------
    ndarray of int64, shape (requests,)
        1 for a repetition of the request before; :data:`NEVER` for a first one.

    Raises
    ------
    BadValueError
        If these are no whole numbers in one row.
    """
    given = np.asarray(items)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise BadValueError(
            "A stream of items is one row of whole numbers.", given=f"{given.dtype} of shape {given.shape}",
            allowed="integers of shape (requests,)",
        )  # fmt: skip
    if not given.size:
        return np.empty(0, dtype=np.int64)
    _, numbers = np.unique(given, return_inverse=True)
    return _distances(np.ascontiguousarray(numbers, dtype=np.int64), int(numbers.max()) + 1)


@compiled
def _distances(numbers: npt.NDArray[np.int64], kinds: int) -> npt.NDArray[np.int64]:
    n = len(numbers)
    tree = np.zeros(n + 1, np.int64)
    last = np.full(kinds, -1, np.int64)
    found = np.empty(n, np.int64)
    present = 0
    for now in range(n):
        item = numbers[now]
        before = last[item]
        if before < 0:
            found[now] = NEVER
            present += 1
        else:
            # Items whose last request is at or before `before`; all others came after it.
            older = 0
            place = before + 1
            while place > 0:
                older += tree[place]
                place -= place & -place
            found[now] = present - older + 1
            place = before + 1
            while place <= n:
                tree[place] -= 1
                place += place & -place
        place = now + 1
        while place <= n:
            tree[place] += 1
            place += place & -place
        last[item] = now
    return found


def miss_ratio_curve(items: npt.ArrayLike, sizes: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the share of requests that LRU caches of several sizes miss, all started empty.

    Parameters
    ----------
    items : array of integers, shape (requests,)
    sizes : array of integers, shape (sizes,)
        Items that a cache holds; 0 misses everything.

    Returns
    -------
    ndarray of float64, shape (sizes,)
        NaN where nothing is requested.

    Raises
    ------
    BadValueError
        If the stream is no row of whole numbers, or the sizes are not whole numbers.
    """
    held = np.asarray(sizes)
    if held.size and (held.dtype.kind not in "iu" or held.min() < 0):
        raise BadValueError("Caches hold whole numbers of items.", given=held.tolist(), allowed="0, 1, 2 and so on")
    distances = np.sort(stack_distances(items))
    if not len(distances):
        return np.full(held.shape, np.nan)
    return np.asarray(1.0 - np.searchsorted(distances, held, side="right") / len(distances))
