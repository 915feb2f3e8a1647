"""MERBIT's stored form as the paper has it: segments of the merge path, each with one bit a step.

Bit s of a segment is 1 if step s ends a row and 0 if it consumes a nonzero.  Counting the ones before a step gives the
row it belongs to, counting the zeros gives the nonzero: row pointers are no longer needed, and a segment knows nothing
of its neighbours but one open row on either side.  This module is the readable reference; what runs fast on a processor
is :mod:`wavetank.kernels.sparse.lanes`, what runs on a GPU :mod:`wavetank.kernels.sparse.gpu`.

Source: Q. Zhang, Z.-B. Zhang, Z. Yao and Z. Jiang, "MERBIT: A GPU-Based SpMV Method for Iterative Workloads",
arXiv 2605.07391, 2026.

Differs from the source:
1. The paper's own bit layout is not known to us in full; this is ours, with the stated properties.
2. Sums that cross segments are added in the order of the segments, not with atomics, so that results repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.sparse.merge_path import crossing
from wavetank.sim.compiled import compiled

WORD = 64


@dataclass(frozen=True)
class Descriptors:
    """A merge path as segments of bits.

    Parameters
    ----------
    steps : int
        Steps of a segment, a multiple of 64; the last one may be shorter.
    rows, nonzeros : int
        Length of the whole path is their sum.
    first_row, first_nonzero : ndarray of int64, shape (segments + 1,)
        Rows finished and nonzeros consumed before each segment, and in all.
    bits : ndarray of uint64, shape (segments, steps / 64)
        Step s of a segment is bit ``s % 64`` of word ``s // 64``.
    """

    steps: int
    rows: int
    nonzeros: int
    first_row: NDArray[np.int64]
    first_nonzero: NDArray[np.int64]
    bits: NDArray[np.uint64]

    @property
    def nbytes(self) -> int:
        """Return the bytes that stand for the row pointers."""
        return self.bits.nbytes + self.first_row.nbytes + self.first_nonzero.nbytes


@compiled(nogil=True)
def _fill(row_starts: NDArray[Any], steps: int, first_row: Any, first_nonzero: Any, bits: Any) -> None:
    total = row_starts.size - 1 + np.int64(row_starts[-1])
    for segment in range(bits.shape[0]):
        row, nonzero = crossing(row_starts, segment * steps)
        first_row[segment], first_nonzero[segment] = row, nonzero
        length: Any = min(steps, total - segment * steps)
        for step in range(length):
            if row < row_starts.size - 1 and np.int64(row_starts[row + 1]) <= nonzero:
                bits[segment, step // WORD] |= np.uint64(1) << np.uint64(step % WORD)
                row += 1
            else:
                nonzero += 1


def describe(row_starts: NDArray[Any], steps: int = 256) -> Descriptors:
    """Return the descriptors of a matrix in compressed rows.

    Parameters
    ----------
    row_starts : ndarray of integers, shape (rows + 1,)
        As checked by :func:`wavetank.kernels.sparse.compressed.compressed_rows`.
    steps : int
        Steps of a segment, a multiple of 64.
    """
    rows, nonzeros = row_starts.size - 1, int(row_starts[-1])
    segments = -(-(rows + nonzeros) // steps)
    first_row = np.full(segments + 1, rows, np.int64)
    first_nonzero = np.full(segments + 1, nonzeros, np.int64)
    bits = np.zeros((segments, steps // WORD), np.uint64)
    _fill(row_starts, steps, first_row, first_nonzero, bits)
    return Descriptors(steps, rows, nonzeros, first_row, first_nonzero, bits)


def reference_spmv(
    described: Descriptors, columns: NDArray[Any], values: NDArray[Any], x: NDArray[Any]
) -> NDArray[Any]:
    """Return the product of a described matrix and a vector, segment by segment, in plain numpy.

    Parameters
    ----------
    described : Descriptors
    columns, values : ndarray, shape (nonzeros,)
    x : ndarray, shape (columns of the matrix,)

    Returns
    -------
    ndarray, shape (rows,)
    """
    products = values * x[columns]
    y = np.zeros(described.rows, products.dtype)
    carries = []
    for segment in range(described.bits.shape[0]):
        length = min(described.steps, described.rows + described.nonzeros - segment * described.steps)
        words = described.bits[segment].astype("<u8").view(np.uint8)
        ends = np.unpackbits(words, bitorder="little")[:length].astype(np.int64)
        row = described.first_row[segment] + np.cumsum(ends) - ends
        mine = products[described.first_nonzero[segment] : described.first_nonzero[segment + 1]]
        first, last = described.first_row[segment], described.first_row[segment + 1]
        sums = np.zeros(last - first + 1, products.dtype)
        np.add.at(sums, row[ends == 0] - first, mine)
        # The first row was open before; every other row that ends here began here.
        y[first + 1 : last] = sums[1:-1] if last > first else sums[:0]
        carries.append((first, sums[0]))
        if last > first:
            carries.append((last, sums[-1]))
    for row_index, partial in carries:
        if row_index < described.rows:
            y[row_index] += partial
    return y
