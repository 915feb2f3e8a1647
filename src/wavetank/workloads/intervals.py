"""Sets of times as sorted intervals without overlap: their union, what two have in common, and their length.

An interval holds its start and not its end; whole nanoseconds keep every length exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavetank.errors import BadValueError


class Intervals(NamedTuple):
    """Intervals in the order of time, none empty, none touching another.

    Attributes
    ----------
    starts, ends : numpy.ndarray of int64
        Of shape (n,).
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def length(self) -> int:
        """The sum of all lengths."""
        return int((self.ends - self.starts).sum())


def union(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """Return the union of intervals in any order; empty ones count for nothing.

    Parameters
    ----------
    starts, ends : array of int, shape (n,)
        Whole units of time, for instance nanoseconds.

    Raises
    ------
    BadValueError
        If an interval ends before it starts, or the two arrays differ in shape.
    """
    begin, end = np.asarray(starts, np.int64).ravel(), np.asarray(ends, np.int64).ravel()
    if begin.shape != end.shape:
        raise BadValueError("Every interval has a start and an end.", given=(begin.size, end.size))
    if (end < begin).any():
        at = int(np.argmax(end < begin))
        raise BadValueError("An interval ends before it starts.", given=(int(begin[at]), int(end[at])))
    filled = end > begin
    order = np.argsort(begin[filled], kind="stable")
    begin, end = begin[filled][order], end[filled][order]
    if not begin.size:
        return Intervals(begin, end)
    reached = np.maximum.accumulate(end)
    first = np.concatenate(([True], begin[1:] > reached[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(begin[first], reached[last])


def common(one: Intervals, other: Intervals) -> Intervals:
    """Return the times that both sets hold.

    Parameters
    ----------
    one, other : Intervals
    """
    times = np.concatenate((one.starts, other.starts, one.ends, other.ends))
    steps = np.repeat([1, -1], one.starts.size + other.starts.size)
    # At one time ends come first: intervals that touch have nothing in common.
    order = np.lexsort((steps, times))
    held = np.cumsum(steps[order])
    both = np.flatnonzero(held == 2)
    times = times[order]
    return union(times[both], times[both + 1]) if both.size else Intervals(times[:0], times[:0])


def without(one: Intervals, other: Intervals) -> Intervals:
    """Return the times of one set that the other does not hold.

    Parameters
    ----------
    one, other : Intervals
    """
    if not one.starts.size:
        return one
    low = min(int(one.starts[0]), int(other.starts[0])) if other.starts.size else int(one.starts[0])
    high = max(int(one.ends[-1]), int(other.ends[-1])) if other.ends.size else int(one.ends[-1])
    begin, end = np.concatenate(([low], other.ends)), np.concatenate((other.starts, [high]))
    return common(one, union(begin, np.maximum(begin, end)))
