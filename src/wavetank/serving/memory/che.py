"""Hit ratios of LRU caches from known popularities, and the boundary that is best for them.

Che's approximation: an item stays for a characteristic time T after each request, the same for all items, where T is
such that the expected number of items present is the size of the cache.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.serving.memory.costs import Node

Floats = npt.NDArray[np.float64]


def zipf(items: int, exponent: float, group: int = 1) -> Floats:
    """Return the popularities of ranked items, or of groups of neighbours.

    Parameters
    ----------
    items : int
    exponent : float
        0 for equal popularities.
    group : int, default 1
        Neighbours in rank that are taken together; the last group may be smaller.

    Returns
    -------
    ndarray of float64, shape (ceil(items / group),)
        Sums to 1.

    Raises
    ------
    BadValueError
        If there are no items, or the exponent is negative or not finite.
    """
    if items < 1 or group < 1 or not 0 <= exponent < 100:
        raise BadValueError(
            "These popularities are ill defined.", given=f"{items} items, groups of {group}, exponent {exponent}",
            allowed="one item or more, groups of one or more, an exponent from 0 to 100",
        )  # fmt: skip
    return _zipf(items, float(exponent), group).copy()


@functools.lru_cache(maxsize=8)
def _zipf(items: int, exponent: float, group: int) -> Floats:
    first = np.arange(0, items, group, dtype=np.float64)
    counts = np.minimum(first + group, items) - first
    # Far from the first ranks a group's mean is its middle's, to a relative error below 1e-4.
    sums = counts * (first + (counts + 1) / 2) ** -exponent
    exact = min(items, 64 * group)
    head = np.add.reduceat(np.arange(1, exact + 1, dtype=np.float64) ** -exponent, np.arange(0, exact, group))
    sums[: len(head)] = head
    found: Floats = sums / sums.sum()
    return found


def hit_ratio(popularity: Floats, capacity: float, counts: Floats | None = None) -> float:
    """Return the share of requests that an LRU cache answers, by Che's approximation.

    Parameters
    ----------
    popularity : ndarray of float64, shape (kinds,)
        Of one item of each kind.
    capacity : float
        Items that fit.
    counts : ndarray of float64, shape (kinds,), optional
        Items of each kind; one by default.  The popularities times these sum to 1.

    Raises
    ------
    BadValueError
        If the popularities are none, or the capacity is no number.
    """
    each = np.ones(len(popularity)) if counts is None else counts
    if not (np.all(popularity >= 0) and abs(float(np.sum(each * popularity)) - 1) < 1e-6) or math.isnan(capacity):
        raise BadValueError("These popularities or this capacity are ill defined.",
                            given=f"a sum of {float(np.sum(each * popularity)):g}, room for {capacity} items",
                            allowed="popularities of 0 or more that sum to 1, a number of items")  # fmt: skip
    if capacity <= 0:
        return 0.0
    if capacity >= np.sum(each[popularity > 0]):
        return 1.0

    def present(time: float) -> float:
        return float(np.sum(each * -np.expm1(-popularity * time)))

    low, high = 0.0, float(np.sum(each))
    while present(high) < capacity:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        if present(middle) < capacity:
            low = middle
        else:
            high = middle
    return float(np.sum(each * popularity * -np.expm1(-popularity * (low + high) / 2)))


@functools.lru_cache(maxsize=512)
def _kinds(items: int, exponent: float) -> tuple[Floats, Floats]:
    """Return popularities and counts of ranked items: one by one up to a thousand, then in ever longer runs."""
    bounds = np.unique(np.concatenate((np.arange(1, min(items, 1000) + 1), np.geomspace(1000, items, 600).astype(int))))
    bounds = np.append(bounds[bounds <= items], items + 1)
    first, counts = bounds[:-1].astype(np.float64), np.diff(bounds).astype(np.float64)
    # The mean over a run is close to the value at its middle: runs are shorter than a fiftieth of their rank.
    weights = (first + (counts - 1) / 2) ** -exponent
    return weights / np.sum(weights * counts), counts


@functools.lru_cache(maxsize=100_000)
def zipf_hit_ratio(items: int, exponent: float, capacity: float) -> float:
    """Return :func:`hit_ratio` for Zipf popularities.

    Parameters
    ----------
    items : int
    exponent : float
    capacity : float
        Items that fit.

    Raises
    ------
    BadValueError
        If there are no items, the exponent is negative or not finite, or the capacity is no number.
    """
    if items < 1 or not 0 <= exponent < 100:
        raise BadValueError("These popularities are ill defined.", given=f"{items} items, exponent {exponent}",
                            allowed="one item or more, an exponent from 0 to 100")  # fmt: skip
    popularity, counts = _kinds(items, float(exponent))
    return hit_ratio(popularity, capacity, counts)


def mean_service_s(node: Node, share: float, row_exponent: float, user_exponent: float, history: float) -> float:
    """Return the mean time of a request without a queue, for known popularities.

    Parameters
    ----------
    node : Node
    share : float
        Of the memory, for embedding rows.
    row_exponent, user_exponent : float
        Zipf exponents of look-ups and of users.
    history : float
        Tokens of a user's history.

    Raises
    ------
    BadValueError
        If the share is none, a history has no tokens, or an exponent is negative or not finite.
    """
    if not (0 <= share <= 1 and 0 < history < math.inf):
        raise BadValueError("A share of the memory or a history is out of range.",
                            given=f"share {share}, history of {history} tokens",
                            allowed="a share from 0 to 1, a history above 0")  # fmt: skip
    rows = share * node.memory_bytes / node.row_bytes
    users = (1 - share) * node.memory_bytes / (history * node.kv_bytes_per_token)
    hit_rows = zipf_hit_ratio(node.rows, row_exponent, rows)
    hit_users = zipf_hit_ratio(node.users, user_exponent, users)

    def seconds(tokens: float, context: float) -> float:
        copied = tokens * node.rows_per_token * (1 - hit_rows) * node.row_bytes
        return copied / node.copy_bytes_per_s + node.compute_s(tokens, context)

    new = float(node.new_tokens)
    return hit_users * seconds(new, history) + (1 - hit_users) * seconds(history + new, history / 2)


def best_share(
    node: Node, row_exponent: float, user_exponent: float, history: float, step: float = 0.02
) -> tuple[float, float]:
    """Return the share of least mean time, and that time.

    Parameters
    ----------
    node : Node
    row_exponent, user_exponent, history : float
        As for :func:`mean_service_s`.
    step : float, default 0.02
        Distance of the shares that are tried.

    Returns
    -------
    (float, float)
        Share, and s.

    Raises
    ------
    BadValueError
        If the distance leaves no share to try, or as for :func:`mean_service_s`.
    """
    if not 1e-6 <= step <= 0.5:
        raise BadValueError("This distance of shares leaves none to try.", given=step, allowed="up to 0.5")
    shares = np.arange(step, 1 - step / 2, step)
    times = [mean_service_s(node, float(share), row_exponent, user_exponent, history) for share in shares]
    best = int(np.argmin(times))
    return round(float(shares[best]), 10), times[best]
