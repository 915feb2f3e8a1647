"""Running medians, local lines and robust fits of series with gaps: what a decomposition is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
NORMAL = 1.482602218505602
_TINY = 1e-300


def running_median(values: Floats, seen: Flags, half: int) -> Floats:
    """Return the median of what was seen within ``half`` slots on both sides.

    Parameters
    ----------
    values : array of float, shape (n,)
    seen : array of bool, shape (n,)
    half : int
        Widened where fewer than half a window of values was seen, up to the whole series.

    Returns
    -------
    numpy.ndarray of float64, shape (n,)
        NaN where nothing was seen at all.
    """
    return _medians(np.ascontiguousarray(values, np.float64), np.ascontiguousarray(seen, np.bool_), max(half, 1))


def local_line(values: Floats, weights: Floats, half: float) -> Floats:
    """Return, slot by slot, the value of a line fitted to what is near, weighted by the cube of the distance's cube.

    Parameters
    ----------
    values : array of float, shape (n,)
        Read only where the weight is above 0.
    weights : array of float, shape (n,)
        0 where nothing was seen.
    half : float
        Distance in slots from which a value has no weight; doubled where too few values are near.

    Returns
    -------
    numpy.ndarray of float64, shape (n,)
        NaN where nothing was seen at all.
    """
    return _lines(
        np.ascontiguousarray(values, np.float64), np.ascontiguousarray(weights, np.float64), max(float(half), 2.0)
    )


def smoothed_subseries(values: Floats, weights: Floats, period: int, cycles: float) -> Floats:
    """Return, slot by slot, the mean of the same phase in near cycles, whose weight falls with the distance.

    Parameters
    ----------
    values : array of float, shape (n,)
    weights : array of float, shape (n,)
    period : int
        In slots.
    cycles : float
        Distance in cycles from which a value has no weight.
    """
    return _subseries(
        np.ascontiguousarray(values, np.float64), np.ascontiguousarray(weights, np.float64), period, max(cycles, 1.0)
    )


def spread_of(values: Floats) -> float:
    """Return 1.4826 times the median of absolute values: the standard deviation of normal noise around 0."""
    return float(NORMAL * np.median(np.abs(values))) if values.size else 0.0


def bisquare(rest: Floats, seen: Flags) -> Floats:
    """Return weights that fall from 1 to 0 where the rest reaches six of its medians, as LOESS has them.

    Parameters
    ----------
    rest : array of float, shape (n,)
    seen : array of bool, shape (n,)
    """
    middle = float(np.median(np.abs(rest[seen]))) if seen.any() else 0.0
    if middle <= 0:
        return seen.astype(np.float64)
    share = np.where(seen, np.abs(rest) / (6.0 * middle), 1.0)
    return np.where(share < 1.0, (1.0 - np.minimum(share, 1.0) ** 2) ** 2, 0.0)


def fitted(columns: Floats, values: Floats, weights: Floats, *, rounds: int = 5, ridge: float = 1e-9) -> Floats:
    """Return the coefficients of columns with the least absolute deviations, by weighted least squares.

    Parameters
    ----------
    columns : array of float, shape (n, k)
    values : array of float, shape (n,)
    weights : array of float, shape (n,)
        0 where nothing was seen.
    rounds : int
        Each divides the weights by the deviations of the round before, of at least a third of their usual size.
    ridge : float
        Share of the columns' squares added on the diagonal, so that columns that are alike stay small.
    """
    used = weights > 0
    of, target, first = columns[used], values[used], np.asarray(weights[used], np.float64)
    now: Floats = first
    found: Floats = np.zeros(columns.shape[1])
    for _ in range(rounds):
        left = (of * now[:, None]).T @ of
        left[np.diag_indices_from(left)] += ridge * max(float(np.trace(left)) / max(left.shape[0], 1), _TINY)
        found = np.asarray(np.linalg.solve(left, (of * now[:, None]).T @ target), np.float64)
        rest = np.abs(target - of @ found)
        usual = float(np.median(rest)) if rest.size else 0.0
        if usual <= 0:
            break
        now = first / np.maximum(rest, usual / 3.0) * usual
    return found


@compiled
def _places(seen):  # type: ignore[no-untyped-def]
    """Return the slots that were seen, and how many lie before each slot, so that windows cost what they hold."""
    before = np.zeros(seen.size + 1, np.int64)
    for at in range(seen.size):
        before[at + 1] = before[at] + seen[at]
    return np.flatnonzero(seen), before


@compiled
def _medians(values, seen, half):  # type: ignore[no-untyped-def]
    n = values.size
    out = np.full(n, np.nan)
    places, before = _places(seen)
    if places.size == 0:
        return out
    known = values[places]
    need = min(half + 1, places.size)
    for at in range(n):
        wide = half
        while True:
            low, high = before[max(at - wide, 0)], before[min(at + wide + 1, n)]
            if high - low >= need:
                break
            wide *= 2
        out[at] = np.median(known[low:high])
    return out


@compiled
def _lines(values, weights, half):  # type: ignore[no-untyped-def]
    n = values.size
    out = np.full(n, np.nan)
    places, before = _places(weights > 0)
    if places.size == 0:
        return out
    for at in range(n):
        wide = half
        while True:
            low, high = max(int(at - wide), 0), min(int(at + wide) + 1, n)
            w = wx = wxx = wy = wxy = 0.0
            many = 0
            for other in places[before[low] : before[high]]:
                distance = abs(other - at) / wide
                if distance >= 1:
                    continue
                weight = weights[other] * (1 - distance**3) ** 3
                x = (other - at) / wide
                w += weight
                wx += weight * x
                wxx += weight * x * x
                wy += weight * values[other]
                wxy += weight * x * values[other]
                many += 1
            if (many >= 5 and w > 1e-6) or (low == 0 and high == n):
                break
            wide *= 2
        if w <= 0:
            continue
        determinant = w * wxx - wx * wx
        out[at] = (wxx * wy - wx * wxy) / determinant if determinant > 1e-9 * w * w else wy / w
    return out


@compiled
def _subseries(values, weights, period, cycles):  # type: ignore[no-untyped-def]
    n = values.size
    out = np.zeros(n)
    for at in range(n):
        wide = cycles
        while True:
            total = sum_ = 0.0
            reach = int(wide)
            for cycle in range(-reach, reach + 1):
                other = at + cycle * period
                if 0 <= other < n and weights[other] > 0 and abs(cycle) < wide:
                    weight = weights[other] * (1 - (abs(cycle) / wide) ** 3) ** 3
                    total += weight
                    sum_ += weight * values[other]
            if total > 0 or wide * period > n:
                break
            wide *= 2
        if total > 0:
            out[at] = sum_ / total
    return out
