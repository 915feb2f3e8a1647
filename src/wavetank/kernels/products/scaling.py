"""Rows, inner indices and columns scaled by powers of two, so that a scheme's errors follow each row and column.

A scheme adds blocks, so the rounding errors of large rows reach small ones.  With A' = R^-1 A S and B' = S^-1 B C^-1,
all rows of A' and columns of B' have a largest entry near 1; the product of A and B is R (A' B') C.  Powers of two
change no digit.

Source: G. Ballard, A. Benson, A. Druinsky, B. Lipshitz, O. Schwartz, "Improving the Numerical Stability of Fast Matrix
Multiplication", SIAM J. Matrix Anal. Appl. 37(4), 2016 (outside, inside and outside-inside scaling).

Differs from the source:
1. Scales are powers of two, read from the exponents of entries.
2. The inside step is used only where it makes the scales of rows and columns smaller on average: the bound of an error
   is proportional to their product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.machine.thread_pool import cuts
from wavetank.machine.threads import together
from wavetank.sim.compiled import compiled

# Below any exponent; sums of a few still fit.
_NONE = -(1 << 20)
# An inside scale of 2^512 would let float64 overflow on the way.
_MOST_INSIDE = 500


@dataclass(frozen=True)
class Scales:
    """Exponents of two: rows of A and columns of B are divided by theirs, inside A is multiplied and B divided.

    Parameters
    ----------
    rows : array of int64, shape (m,)
    inside : array of int64, shape (k,)
    columns : array of int64, shape (n,)
    """

    rows: NDArray[np.int64]
    inside: NDArray[np.int64]
    columns: NDArray[np.int64]


@compiled(nogil=True)
def _tops(bits, mantissa, top, rows, columns, by_row, by_column):  # type: ignore[no-untyped-def]
    """Raise ``by_row`` and ``by_column`` to the largest exponent of entries times 2^rows 2^columns.

    Zeros have none; infinities and NaN neither, since a result with them is computed again without a scheme.
    """
    mask = (1 << (top + 1)) - 1
    bias = mask >> 1
    for i in range(bits.shape[0]):
        highest = by_row[i]
        for j in range(bits.shape[1]):
            size = bits[i, j] & ((1 << (top + 1 + mantissa)) - 1)
            field = size >> mantissa
            if size != 0 and field != mask:
                # One above the exponent, so that scaled entries are below 1; subnormals count as the least normal.
                exponent = max(field, 1) - bias + 1 + rows[i] + columns[j]
                highest = max(highest, exponent)
                by_column[j] = max(by_column[j], exponent)
        by_row[i] = highest


@compiled(nogil=True)
def _scale(source, target, first_rows, first_columns, then_rows, then_columns):  # type: ignore[no-untyped-def]
    """Write entries times the four powers of two of their row and column; ``target`` may be ``source``."""
    for i in range(source.shape[0]):
        first, then = first_rows[i], then_rows[i]
        for j in range(source.shape[1]):
            value = np.float64(source[i, j]) * first * first_columns[j] * then * then_columns[j]
            target[i, j] = value


@compiled(nogil=True, fastmath={"reassoc"})
def _deviation(rows: NDArray[Any]) -> float:
    """Return 0 for finite rows: anything else times zero is not zero."""
    total = 0.0
    for i in range(rows.shape[0]):
        part = rows.dtype.type(0)
        for j in range(rows.shape[1]):
            part += rows[i, j] * rows.dtype.type(0)
        total += part
    return total


def is_finite(matrix: NDArray[Any]) -> bool:
    """Return whether every entry of a float32 or float64 matrix is finite."""
    return bool(_deviation(matrix) == 0.0)


def _exponents(
    matrix: NDArray[Any], rows: NDArray[np.int64], columns: NDArray[np.int64], threads: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the exponents of the largest entries of rows and of columns; 0 for those of zeros."""
    matrix = np.ascontiguousarray(matrix)
    mantissa, top = (23, 7) if matrix.itemsize == 4 else (52, 10)
    bits = matrix.view(np.int32 if matrix.itemsize == 4 else np.int64)
    by_row = np.full(matrix.shape[0], _NONE, np.int64)
    parts = cuts(matrix.shape[0], min(threads, matrix.shape[0]))
    by_column = np.full((len(parts), matrix.shape[1]), _NONE, np.int64)
    calls = [
        (bits[start:stop], mantissa, top, rows[start:stop], columns, by_row[start:stop], by_column[part])
        for part, (start, stop) in enumerate(parts)
    ]
    together(_tops, calls, threads)
    whole = by_column.max(axis=0)
    return np.where(by_row == _NONE, 0, by_row), np.where(whole == _NONE, 0, whole)


def scales_of(a: NDArray[Any], b: NDArray[Any], threads: int = 1) -> Scales:
    """Return the scales for a product of two matrices.

    Parameters
    ----------
    a, b : arrays of float32 or float64, shapes (m, k) and (k, n), no side 0
    threads : int
    """
    none = [np.zeros(side, np.int64) for side in (a.shape[0], a.shape[1], b.shape[1])]
    rows, _ = _exponents(a, none[0], none[1], threads)
    _, columns = _exponents(b, none[1], none[2], threads)
    _, left = _exponents(a, -rows, none[1], threads)
    right, _ = _exponents(b, none[1], -columns, threads)
    inside = np.clip((right - left) // 2, -_MOST_INSIDE, _MOST_INSIDE)
    again, _ = _exponents(a, none[0], inside, threads)
    _, more = _exponents(b, -inside, none[2], threads)
    if again.mean() + more.mean() < rows.mean() + columns.mean():
        return Scales(again, inside, more)
    return Scales(rows, none[1], columns)


def scaled(
    matrix: NDArray[Any], rows: NDArray[np.int64], columns: NDArray[np.int64], target: NDArray[Any], threads: int
) -> None:
    """Write a matrix times 2^rows and 2^columns to ``target``, which may be the matrix itself.

    Exact, unless the result is subnormal or overflows.

    Parameters
    ----------
    matrix : array of float32 or float64
    rows, columns : arrays of int64
        Exponents a row and a column.
    target : array of the same shape and type
    threads : int
    """
    # In halves: for float64 no step over- or underflows unless the result does, or is negligible beside its row.
    factors = [
        np.ldexp(1.0, np.asarray(part, np.int64))
        for part in (rows // 2, columns // 2, rows - rows // 2, columns - columns // 2)
    ]
    calls = [
        (matrix[start:stop], target[start:stop], factors[0][start:stop], factors[1], factors[2][start:stop], factors[3])
        for start, stop in cuts(matrix.shape[0], min(threads, matrix.shape[0]))
    ]
    together(_scale, calls, threads)
