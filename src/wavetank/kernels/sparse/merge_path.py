"""The merge path: equal work for every worker, whatever the lengths of the rows.

A sparse product is a merge of two lists, the ends of the rows and the positions of the nonzeros: a path over a grid of
``rows + nonzeros`` steps, where a step to the right consumes a nonzero and a step down finishes a row.  Where the path
crosses a diagonal is found by binary search, so a path is cut into equal pieces without walking it.

Source: D. Merrill and M. Garland, "Merge-based Parallel Sparse Matrix-Vector Multiplication", SC 2016.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled


@compiled(nogil=True)
def crossing(row_starts: NDArray[Any], diagonal: int) -> tuple[int, int]:
    """Return where the path crosses a diagonal: (rows finished, nonzeros consumed), whose sum is ``diagonal``.

    Parameters
    ----------
    row_starts : ndarray of integers, shape (rows + 1,)
        Row i holds the nonzeros ``row_starts[i]`` to ``row_starts[i + 1] - 1``.
    diagonal : int
        0 to rows + nonzeros.
    """
    rows = row_starts.size - 1
    low: Any = max(diagonal - np.int64(row_starts[rows]), 0)
    high: Any = min(diagonal, rows)
    while low < high:
        middle = (low + high) // 2
        if np.int64(row_starts[middle + 1]) <= diagonal - middle - 1:
            low = middle + 1
        else:
            high = middle
    return low, diagonal - low


@compiled(nogil=True)
def row_of(row_starts: NDArray[Any], nonzero: int, low: int, high: int) -> int:
    """Return the row between ``low`` and ``high`` that holds a nonzero, by binary search."""
    while low < high:
        middle = (low + high) // 2
        if np.int64(row_starts[middle + 1]) <= nonzero:
            low = middle + 1
        else:
            high = middle
    return low


def partition(row_starts: NDArray[Any], steps: int) -> NDArray[np.int64]:
    """Cut the path into pieces of ``steps`` steps, the last one shorter.

    Parameters
    ----------
    row_starts : ndarray of integers, shape (rows + 1,)
    steps : int
        Length of a piece, at least 1.

    Returns
    -------
    ndarray of int64, shape (pieces + 1, 2)
        Rows finished and nonzeros consumed before each piece, and at the end.
    """
    total = row_starts.size - 1 + int(row_starts[-1])
    diagonals = np.minimum(np.arange(0, total + steps, steps), total) if total else np.zeros(1, np.int64)
    return np.array([crossing(row_starts, diagonal) for diagonal in diagonals], np.int64).reshape(-1, 2)
