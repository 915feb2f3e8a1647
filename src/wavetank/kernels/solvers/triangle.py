"""The lower triangle of a symmetric matrix, in blocks.

Only blocks on and below the diagonal are kept, column by column from top to bottom, each block row by row.  So the
blocks of one column, and of any run of rows within it, lie behind each other: together they are one tall row-major
matrix, which a BLAS takes as it is.  The last row of blocks is filled up with the identity, which changes neither a
factorisation nor a product with a vector that is zero there.

Source: T. Thuering, A. Strack, D. Pflueger, "Comparing the Performance of Heterogeneous Conjugate Gradient and
Cholesky Solvers on Various Hardware Using SYCL", 2026, arXiv 2605.13209.  The product that uses each block for both
triangles is that of R. Nath, S. Tomov, T. Dong, J. Dongarra, "Optimizing symmetric dense matrix-vector multiplication
on GPUs", SC 2011.

Differs from the source:

1. The block size need not be a power of two.
2. The filling is the identity, not zero, so that it can be factorised.
3. A product reads each block once, for its part of both triangles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.as_array import array_of
from wavetank.machine.limits import require_memory
from wavetank.sim.compiled import compiled

Vector = NDArray[np.float64]
Starts = NDArray[np.int64]

# Entries (i, j) and (j, i) may differ by this share of sqrt(a_ii a_jj); the lower one counts.
SYMMETRY_TOLERANCE = 1e-10


def blocks_of(rows: int, block: int) -> int:
    """Return the number of blocks along a side of a matrix with ``rows`` rows."""
    return -(-rows // block)


def triangle_blocks(blocks: int) -> int:
    """Return the number of blocks on and below the diagonal."""
    return blocks * (blocks + 1) // 2


def column_starts(blocks: int, first: int = 0) -> Starts:
    """Return ``starts``: block (i, j) of a store of the block rows from ``first`` on is the ``starts[j] + i``-th.

    Returns
    -------
    starts : int64 array, shape (blocks,)
    """
    columns = np.arange(blocks, dtype=np.int64)
    tops = np.maximum(columns, first)
    kept = np.cumsum(blocks - tops) - (blocks - tops)
    return np.ascontiguousarray(kept - tops)


# Set in a float64 that is no finite number; the exponent's bits.
_EXPONENT = 0x7FF << 52
# Entries of a cache line.
_LINE = 8


@compiled(nogil=True)
def _copy_if_symmetric(bits: Starts, top: int, left: int, out: Starts, at: int, block: int) -> bool:
    """Store a block; return whether its mirror image has the same bits, and all its entries are finite.

    In squares of whole cache lines, without a branch: this reads memory as fast as it comes.
    """
    wrong = np.int64(0)
    for i in range(0, block, _LINE):
        for j in range(0, block, _LINE):
            for r in range(_LINE):
                for c in range(_LINE):
                    value = bits[top + i + r, left + j + c]
                    out[at + (i + r) * block + j + c] = value
                    wrong |= value ^ bits[left + j + c, top + i + r]
                    wrong |= np.int64((value & _EXPONENT) == _EXPONENT)
    return bool(wrong == 0)


@compiled(nogil=True)
def _pack_rows(
    a: NDArray[np.float64], bits: Starts, data: Vector, out: Starts, starts: Starts, block: int, low: int, high: int,
    tolerance: float,
) -> tuple[int, int, int]:  # fmt: skip
    """Store block rows low to high of the dense ``a``; return (0, -, -) or (1: not finite, 2: asymmetric, row, column).

    ``bits`` and ``out`` are ``a`` and ``data`` as integers.  Blocks are visited in pairs (i, j) and (j, i); a whole
    one whose entries differ from their mirror images, if only by rounding, is visited again, entry by entry.
    """
    size = a.shape[0]
    blocks = starts.size
    for row in range(low, high):
        for column in range(row + 1):
            base = (starts[column] + row) * block * block
            if (
                block % _LINE == 0
                and (row + 1) * block <= size
                and _copy_if_symmetric(bits, row * block, column * block, out, base, block)
            ):
                continue
            for i in range(block):
                global_row = row * block + i
                at = base + i * block
                if global_row >= size:
                    for j in range(block):
                        data[at + j] = 1.0 if column == blocks - 1 and i == j else 0.0
                    continue
                width = min(block, size - column * block)
                for j in range(width):
                    value = a[global_row, column * block + j]
                    data[at + j] = value
                    if not np.isfinite(value):
                        return 1, global_row, column * block + j
                for j in range(width, block):
                    data[at + j] = 0.0
            height = min(block, size - row * block)
            for j in range(min(block, size - column * block)):
                global_column = column * block + j
                for i in range(height):
                    other = a[global_column, row * block + i]
                    value = data[base + i * block + j]
                    if other != value:
                        global_row = row * block + i
                        if not np.isfinite(other):
                            return 1, global_column, global_row
                        scale = np.sqrt(np.abs(a[global_row, global_row] * a[global_column, global_column]))
                        if not np.abs(other - value) <= tolerance * scale:
                            return 2, global_row, global_column
    return 0, 0, 0


@compiled(nogil=True)
def _unpack(data: Vector, starts: Starts, block: int, out: NDArray[np.float64]) -> None:
    size = out.shape[0]
    for column in range(starts.size):
        for row in range(column, starts.size):
            base = (starts[column] + row) * block * block
            for i in range(min(block, size - row * block)):
                for j in range(min(block, size - column * block)):
                    value = data[base + i * block + j]
                    out[row * block + i, column * block + j] = value
                    out[column * block + j, row * block + i] = value


@compiled(nogil=True, fastmath=True)
def _both_ways(data: Vector, at: int, block: int, right: Vector, left: Vector, down: Vector, up: Vector) -> None:
    """Add ``A @ right`` to ``down`` and ``A.T @ left`` to ``up``; ``A`` is the block that begins at ``at``.

    Four rows at a time, so that ``up`` is read and written once for four.
    """
    row = 0
    while row + 4 <= block:
        a = data[at + row * block : at + (row + 1) * block]
        b = data[at + (row + 1) * block : at + (row + 2) * block]
        c = data[at + (row + 2) * block : at + (row + 3) * block]
        d = data[at + (row + 3) * block : at + (row + 4) * block]
        l0, l1, l2, l3 = left[row], left[row + 1], left[row + 2], left[row + 3]
        s0 = s1 = s2 = s3 = 0.0
        for j in range(block):
            x = right[j]
            s0 += a[j] * x
            s1 += b[j] * x
            s2 += c[j] * x
            s3 += d[j] * x
            up[j] += a[j] * l0 + b[j] * l1 + c[j] * l2 + d[j] * l3
        down[row] += s0
        down[row + 1] += s1
        down[row + 2] += s2
        down[row + 3] += s3
        row += 4
    while row < block:
        a = data[at + row * block : at + (row + 1) * block]
        l0 = left[row]
        s0 = 0.0
        for j in range(block):
            s0 += a[j] * right[j]
            up[j] += a[j] * l0
        down[row] += s0
        row += 1


@compiled(nogil=True, fastmath=True)
def _downwards(data: Vector, at: int, block: int, right: Vector, down: Vector) -> None:
    for row in range(block):
        a = data[at + row * block : at + (row + 1) * block]
        total = 0.0
        for j in range(block):
            total += a[j] * right[j]
        down[row] += total


@compiled(nogil=True, fastmath=True)
def _upwards(data: Vector, at: int, block: int, left: Vector, up: Vector) -> None:
    for row in range(block):
        a = data[at + row * block : at + (row + 1) * block]
        factor = left[row]
        for j in range(block):
            up[j] += a[j] * factor


@compiled(nogil=True)
def multiply_rows(
    data: Vector,
    starts: Starts,
    block: int,
    low: int,
    high: int,
    stop: int,
    share: int,
    shares: int,
    across: int,
    repeats: int,
    x: Vector,
    out: Vector,
    waste: Vector,
) -> None:
    """Add to ``out`` what the block rows from ``low`` to ``high`` contribute to the product with ``x``.

    Parameters
    ----------
    data, starts : arrays
        The store, see :func:`column_starts`.
    block, low, high : int
    stop : int
        Only the columns before this one.
    share, shares : int
        Only every ``shares``-th column from ``share`` on: threads of one device take turns.
    across : int
        What to do with the blocks left of column ``low``: 3 uses them for both triangles, 1 only as they are, 2 only
        transposed.  Blocks from column ``low`` on always serve both.
    repeats : int
        Each block is used this many times; all but the last go to ``waste``.  Makes a slow device out of a fast one.
    x, out, waste : float64 arrays, shape (blocks * block,)
    """
    for column in range(share, min(high, stop), shares):
        right = x[column * block : (column + 1) * block]
        for row in range(max(column, low), high):
            at = (starts[column] + row) * block * block
            rows = slice(row * block, (row + 1) * block)
            for turn in range(repeats):
                target = out if turn == repeats - 1 else waste
                down = target[rows]
                up = target[column * block : (column + 1) * block]
                if row == column or (column < low and across == 1):
                    _downwards(data, at, block, right, down)
                elif column < low and across == 2:
                    _upwards(data, at, block, x[rows], up)
                else:
                    _both_ways(data, at, block, right, x[rows], down, up)


def readable(a: Any) -> NDArray[np.float64]:
    """Return the square matrix ``a`` as a row-major float64 array, without a copy where it is one or its transpose.

    Raises
    ------
    BadValueError
        When it is no square matrix of real numbers.
    """
    matrix = array_of(a, "a")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise BadValueError(
            "The matrix must be square.", given=f"shape {matrix.shape}", allowed="(N, N) with N of 1 or more", where="a"
        )
    if matrix.dtype.kind not in "fiub":
        raise BadValueError(
            "The matrix must hold real numbers.", given=f"dtype {matrix.dtype}", allowed="float64, or what becomes it",
            where="a",
        )  # fmt: skip
    if matrix.dtype == np.float64 and matrix.flags.f_contiguous and not matrix.flags.c_contiguous:
        return matrix.T
    if matrix.dtype != np.float64 or not matrix.flags.c_contiguous:
        require_memory(8 * matrix.size, f"A float64 copy of the matrix, {matrix.shape[0]:,} rows,")
    return np.ascontiguousarray(matrix, dtype=np.float64)


def pack_rows(matrix: NDArray[np.float64], data: Vector, starts: Starts, block: int, low: int, high: int) -> None:
    """Store the block rows from ``low`` to ``high`` of a dense matrix, and check them.

    Parameters
    ----------
    matrix : float64 array, shape (N, N), row-major
    data : float64 array
        Written.
    starts : int64 array
        See :func:`column_starts`.
    block, low, high : int

    Raises
    ------
    BadValueError
        For an entry that is not finite, or differs from its mirror image by more than rounding.
    """
    fault, row, column = _pack_rows(
        matrix, matrix.view(np.int64), data, data.view(np.int64), starts, block, low, high, SYMMETRY_TOLERANCE
    )
    if fault == 1:
        raise BadValueError(
            "The matrix holds an entry that is not finite.", given=float(matrix[row, column]),
            where=f"a[{row}, {column}]", hint="remove the rows without a value, or fill them in",
        )  # fmt: skip
    if fault == 2:
        raise BadValueError(
            "The matrix is not symmetric.",
            given=f"a[{row}, {column}] = {matrix[row, column]:.17g}, a[{column}, {row}] = {matrix[column, row]:.17g}",
            allowed=f"a difference of {SYMMETRY_TOLERANCE:g} sqrt(a_ii a_jj)",
            where=f"a[{row}, {column}]",
            hint="(a + a.T) / 2 is symmetric",
        )


@dataclass(frozen=True, eq=False)
class BlockTriangle:
    """A symmetric matrix as the blocks of its lower triangle.

    Parameters
    ----------
    size : int
        Rows of the matrix, N.
    block : int
        Rows of a block, b.
    data : float64 array, shape (n (n + 1) / 2 * b * b,) with n = ceil(N / b)
        The blocks in the order of :func:`block_id`.
    """

    size: int
    block: int
    data: Vector

    @property
    def blocks(self) -> int:
        """Return the number of blocks along a side, n."""
        return blocks_of(self.size, self.block)

    @classmethod
    def empty(cls, size: int, block: int) -> BlockTriangle:
        """Return a triangle whose content is whatever the memory held.

        Raises
        ------
        BadValueError
            When the sizes are not positive or memory does not suffice.
        """
        if size < 1 or block < 1:
            raise BadValueError("A triangle has rows and blocks.", given=f"{size} rows, blocks of {block}")
        length = triangle_blocks(blocks_of(size, block)) * block * block
        require_memory(8 * length, f"The triangle of a matrix with {size:,} rows")
        return cls(size, block, np.empty(length))

    @classmethod
    def pack(cls, a: Any, block: int = 128) -> BlockTriangle:
        """Return the triangle of a dense symmetric matrix, shape (N, N).

        Raises
        ------
        BadValueError
            When it is not square, finite and symmetric.
        """
        matrix = readable(a)
        triangle = cls.empty(matrix.shape[0], block)
        pack_rows(matrix, triangle.data, column_starts(triangle.blocks), block, 0, triangle.blocks)
        return triangle

    def unpack(self) -> NDArray[np.float64]:
        """Return the dense matrix, shape (N, N)."""
        require_memory(8 * self.size**2, f"A dense matrix with {self.size:,} rows")
        out = np.empty((self.size, self.size))
        _unpack(self.data, column_starts(self.blocks), self.block, out)
        return out

    def multiply(self, x: Any) -> Vector:
        """Return the product with a vector, shape (N,); every block is read once."""
        vector = np.asarray(x, np.float64)
        if vector.shape != (self.size,):
            raise BadValueError(
                "The vector does not fit the matrix.", given=f"shape {vector.shape}", allowed=f"({self.size},)"
            )
        padded = np.zeros(self.blocks * self.block)
        padded[: self.size] = vector
        out = np.zeros_like(padded)
        starts = column_starts(self.blocks)
        multiply_rows(self.data, starts, self.block, 0, self.blocks, self.blocks, 0, 1, 3, 1, padded, out, out)
        return out[: self.size]
