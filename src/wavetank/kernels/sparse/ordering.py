"""Where the items of x will come from: an estimate of cache misses, and an order of columns that has fewer.

On a processor an irregular product waits for x, not for the matrix.  Most nonzeros of a graph sit in few columns; put
first, these share cache lines and stay in cache.  What that would save is estimated on samples of the nonzeros with two
small model caches, so that the decision is the same on every machine and run.

Source: the order is frequency-based clustering, Y. Zhang et al., "Making Caches Work for Graph Analytics", IEEE Big
Data 2017.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled

_LINE_BYTES = 64
_NEAR_LINES, _FAR_LINES = 512, 8192
# Where x stays in a second-level cache only the near model cache decides, and short samples warm that.
_SAMPLES, _SAMPLE, _SHORT_SAMPLE = 4, 1 << 15, 1 << 12
# Costs of a miss of the near and the far model cache, and of moving one item of x into its new place: relative to each
# other only.
_NEAR_COST, _FAR_COST, _MOVE_COST = 0.25, 0.75, 1.5
# From this share of near misses on, one gather instruction is faster than a load a lane.
_GATHER_FROM = 0.25
# Without that many columns x stays in a second-level cache in any order.
_FEW_COLUMNS = 1 << 15


class Order(NamedTuple):
    """How a plan reads x."""

    gather: bool
    """Whether lanes read x by a gather instruction."""
    columns: NDArray[np.uint32] | None
    """The given column at each place of the new order, shape (columns used,); None to leave columns as they are."""
    ranks: NDArray[np.uint32] | None
    """The place of each given column, of use for those with nonzeros, shape (columns,); None as above."""


@compiled(nogil=True)
def misses(columns: NDArray[Any], ranks: Any, items_a_line: int) -> tuple[float, float]:
    """Return the shares of ``columns`` that miss a near and a far model cache, both direct-mapped, once warm."""
    near, far = np.full(_NEAR_LINES, -1, np.int64), np.full(_FAR_LINES, -1, np.int64)
    near_misses, far_misses, counted = 0, 0, 0
    for i in range(columns.size):
        column = np.int64(columns[i])
        if ranks is not None:
            column = np.int64(ranks[column])
        line = column // items_a_line
        counts = i >= columns.size // 2
        counted += counts
        if near[line % _NEAR_LINES] != line:
            near[line % _NEAR_LINES] = line
            near_misses += counts
            if far[line % _FAR_LINES] != line:
                far[line % _FAR_LINES] = line
                far_misses += counts
    return near_misses / max(counted, 1), far_misses / max(counted, 1)


@compiled(nogil=True)
def _count(columns: NDArray[Any], counts: NDArray[Any]) -> None:
    for i in range(columns.size):
        counts[columns[i]] += 1


def _samples(columns: NDArray[Any], width: int) -> list[NDArray[Any]]:
    sample = _SAMPLE if width > _FEW_COLUMNS else _SHORT_SAMPLE
    if columns.size <= _SAMPLES * sample:
        return [columns]
    return [columns[at : at + sample] for at in np.linspace(0, columns.size - sample, _SAMPLES).astype(int)]


def _mean_misses(samples: list[NDArray[Any]], ranks: Any, items_a_line: int) -> tuple[float, float]:
    shares = np.array([misses(sample, ranks, items_a_line) for sample in samples])
    near, far = shares.mean(axis=0)
    return float(near), float(far)


def hottest_first(columns: NDArray[Any], width: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the columns with nonzeros by falling number of them, and the place of each; equal ones keep their order.

    Parameters
    ----------
    columns : ndarray of integers, shape (nonzeros,)
    width : int
        Columns of the matrix.
    """
    counts = np.zeros(width, np.int64)
    _count(columns, counts)
    # Counts above 16 bits are rare and all of them hot: a radix sort of 16 bits is enough.
    keys = (np.iinfo(np.uint16).max - np.minimum(counts, np.iinfo(np.uint16).max)).astype(np.uint16)
    order = np.argsort(keys, kind="stable").astype(np.uint32)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(width, dtype=np.uint32)
    return order[: np.count_nonzero(counts)], ranks


def choose_order(columns: NDArray[Any], width: int, item_bytes: int, wanted: str = "auto") -> Order:
    """Return how x is best read.

    Parameters
    ----------
    columns : ndarray of integers, shape (nonzeros,)
        Row after row.
    width : int
        Columns of the matrix.
    item_bytes : int
        Bytes of an item of x.
    wanted : {"auto", "given", "hottest-first"}
        Order of the columns; "auto" takes what the estimate favours.
    """
    if not columns.size:
        return Order(False, None, None)
    samples, items_a_line = _samples(columns, width), _LINE_BYTES // item_bytes
    near, far = _mean_misses(samples, None, items_a_line)
    as_given = Order(near >= _GATHER_FROM, None, None)
    most_saved = columns.size * (_NEAR_COST * near + _FAR_COST * far)
    if wanted == "given" or (wanted == "auto" and (width <= _FEW_COLUMNS or most_saved <= _MOVE_COST * width)):
        return as_given
    order, ranks = hottest_first(columns, width)
    hot_near, hot_far = _mean_misses(samples, ranks, items_a_line)
    saved = columns.size * (_NEAR_COST * (near - hot_near) + _FAR_COST * (far - hot_far))
    if wanted == "auto" and saved <= _MOVE_COST * width:
        return as_given
    return Order(hot_near >= _GATHER_FROM, order, ranks)
