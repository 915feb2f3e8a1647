"""How far a node is from its peers, which do the same work: robust scores that what all do together does not move.

Source: median and median absolute deviation as in the operators' rules of arXiv 2605.09370 (interrupts, runnable
processes and page-outs against the median of the cluster); the factor 1.4826 makes the deviation that of a normal law.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

NORMAL = 1.4826
"""Standard deviation of a normal law over its median absolute deviation."""
LEAST_PEERS = 3


def peer_scores(values: ArrayLike, floor: ArrayLike, *, least: int = LEAST_PEERS) -> NDArray[np.float64]:
    """Return (value - median of all live nodes) / (1.4826 MAD + floor), node by node.

    Parameters
    ----------
    values : array of float, shape (..., nodes)
        What the nodes of a row reported at one time; NaN where one did not.
    floor : array of float, shape (...)
        Above 0, in the unit of the values: differences of about this size mean nothing.
    least : int
        Live peers, the node itself left out, below which nothing is said.

    Returns
    -------
    numpy.ndarray of float64, shape (..., nodes)
        NaN where the node is not live or has too few live peers; infinite values count as not live.

    Raises
    ------
    BadValueError
        If a floor is not above 0, or of another shape.
    """
    of = np.asarray(values, np.float64)
    if of.ndim < 1:
        raise BadValueError("Nodes are the last axis of the values.", given=of.shape)
    least_difference = np.asarray(floor, np.float64)
    if not (np.isfinite(least_difference) & (least_difference > 0)).all():
        raise BadValueError("A floor is above 0.", given=floor)
    try:
        rows = np.ascontiguousarray(np.broadcast_to(least_difference, of.shape[:-1]).ravel())
    except ValueError as error:
        raise BadValueError(
            "There is one floor for all rows, or one a row.", given=(least_difference.shape, of.shape)
        ) from error
    flat = np.ascontiguousarray(of.reshape(-1, of.shape[-1]) if of.size else of.reshape(rows.size, of.shape[-1]))
    out = np.empty_like(flat)
    _scores(flat, rows, max(least, 1), out)
    return out.reshape(of.shape)


@compiled
def _scores(values, floors, least, out):  # type: ignore[no-untyped-def]
    live = np.empty(values.shape[1])
    for row in range(values.shape[0]):
        many = 0
        for node in range(values.shape[1]):
            if np.isfinite(values[row, node]):
                live[many] = values[row, node]
                many += 1
        if many <= least:
            out[row] = np.nan
            continue
        middle = _median(live, many)
        for at in range(many):
            live[at] = abs(live[at] - middle)
        spread = NORMAL * _median(live, many) + floors[row]
        for node in range(values.shape[1]):
            value = values[row, node]
            out[row, node] = (value - middle) / spread if np.isfinite(value) else np.nan


@compiled
def _median(values, many):  # type: ignore[no-untyped-def]
    """Median of the first ones, which change places."""
    half = many // 2
    upper = _ranked(values, many, half)
    if many % 2:
        return upper
    below = values[0]
    for at in range(1, half):
        below = max(below, values[at])
    # Not the sum, which may be beyond what is finite.
    return below + (upper - below) / 2 if (below >= 0) == (upper >= 0) else (below + upper) / 2


@compiled
def _ranked(values, many, rank):  # type: ignore[no-untyped-def]
    """Return the value of a rank from 0; smaller ones stand before it afterwards (Hoare's selection)."""
    low, high = 0, many - 1
    while low < high:
        pivot = values[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if rank <= right:
            high = right
        elif rank >= left:
            low = left
        else:
            break
    return values[rank]
