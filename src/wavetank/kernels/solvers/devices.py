"""What a solver asks of a device, and how a device keeps its blocks.

A device stores blocks of the triangle and does on them what a solver asks: factor, solve, update, multiply.  There are
those of :mod:`~wavetank.kernels.solvers.cpu_device` and of :mod:`~wavetank.kernels.solvers.torch_device`; two of them
at work on one matrix are a :class:`~wavetank.kernels.solvers.pair.Pair`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.solvers.triangle import column_starts, triangle_blocks

Vector = NDArray[np.float64]


class Device(Protocol):
    """What a solver asks of a device.

    Rows and columns are those of blocks; ranges are half-open.  Arrays are the device's own (numpy's or torch's), in
    its own memory; vectors have ``blocks * block`` entries.
    """

    def allocate(self, blocks: int, block: int, first: int) -> None:
        """Make room for the block rows from ``first`` on."""
        ...

    def load(self, matrix: Any, low: int, high: int) -> None:
        """Store these rows of a dense matrix (row-major float64) or of a :class:`BlockTriangle`."""
        ...

    def column(self, column: int, low: int, high: int) -> Any:
        """Return these rows of a column, shape ((high - low) * block, block), as a view."""
        ...

    def vector(self) -> Any:
        """Return a vector of zeros."""
        ...

    def factor_diagonal(self, k: int) -> tuple[int, float]:
        """Factor block (k, k) in place; return (0, -) or the number, from 1, and the value of the bad pivot."""
        ...

    def solve_column(self, k: int, low: int, high: int) -> None:
        """Multiply these rows of column k from the right by the inverse of the transposed factor of block (k, k)."""
        ...

    def update(self, k: int, first: int, last: int, low: int, high: int) -> None:
        """Subtract L_ik L_jk^T from the blocks (i, j), first <= j < last and j <= i, of the rows from low to high."""
        ...

    def substitute(self, x: Any) -> None:
        """Replace ``x`` by the solution of L L^T x = b; needs all rows."""
        ...

    def multiply(self, x: Any, out: Any, low: int, high: int, stop: int, across: int) -> None:
        """Add to ``out`` what these rows, columns before ``stop``, contribute to the product with ``x``.

        ``across`` is that of :func:`~wavetank.kernels.solvers.triangle.multiply_rows`.
        """
        ...

    def block_product_s(self, block: int) -> float:
        """Return the seconds that the product of two blocks takes, measured."""
        ...

    def dot(self, x: Any, y: Any) -> float:
        """Return the scalar product of two vectors or parts."""
        ...

    def advance(self, alpha: float, x: Any, r: Any, d: Any, q: Any) -> float:
        """Set ``x += alpha d`` and ``r -= alpha q``; return the square of the norm of ``r``."""
        ...

    def redirect(self, beta: float, d: Any, r: Any) -> None:
        """Set ``d = r + beta d``."""
        ...

    def add(self, y: Any, x: Any) -> None:
        """Set ``y += x``."""
        ...

    def receive(self, target: Any, source: Any) -> None:
        """Copy an array of the host's memory, which nobody writes any more, into one of the device's own.

        What the device computes meanwhile must not touch ``target``; what it is asked for later waits for the copy.
        """
        ...

    def mark(self) -> Any:
        """Return a mark after everything asked for so far."""
        ...

    def has_passed(self, mark: Any) -> bool:
        """Return whether everything before a mark is done."""
        ...

    def seconds_between(self, start: Any, end: Any) -> float:
        """Wait for the second of two marks; return the seconds between them."""
        ...

    def finish(self) -> None:
        """Wait until everything asked for is done."""
        ...

    def stop(self) -> None:
        """End calls that other threads have made as early as can be; what they were to write is not needed."""
        ...


class Store:
    """Blocks in one array; numpy's and torch's slices work alike."""

    data: Any
    starts: NDArray[np.int64]
    blocks: int
    block: int

    def column(self, column: int, low: int, high: int) -> Any:
        """Return the blocks ``low`` to ``high - 1`` of a column, below one another, as a view."""
        size = self.block * self.block
        start = int(self.starts[column])
        return self.data[(start + low) * size : (start + high) * size].reshape(-1, self.block)

    def _place(self, blocks: int, block: int, first: int) -> int:
        """Lay the columns out; return the number of entries."""
        self.blocks, self.block = blocks, block
        self.starts = column_starts(blocks, first)
        return (triangle_blocks(blocks) - triangle_blocks(first)) * block * block


def least_s(call: Callable[[], object]) -> float:
    """Return the least seconds of a few calls."""
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)
