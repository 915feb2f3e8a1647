"""The updates and solves of a tiled factorisation, by a register tile instead of a BLAS.

Rows of a column of blocks lie behind each other, which is how the register tile wants its left operand: nothing of it
is packed.  A block of the right operand is transposed into panels once, and serves all rows below it.  A triangular
solve is the same product, panel by panel, with small inverted triangles in between.

Source: the tile is that of :mod:`wavetank.kernels.products.microkernel`; a solve by products and inverted diagonal
blocks is that of K. Goto, R. van de Geijn, "High-performance implementation of the level-3 BLAS", ACM TOMS 35(1), 2008.

Differs from the source:

1. One level of blocking: a block's rows are the depth of the product, and its packed panels fit the second-level cache.
2. Every entry is summed in the same order wherever it lies, so results do not depend on how rows are shared out.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.products.microkernel import (
    LINE_BYTES,
    multiply_tile,
    spread_panels,
    tile_of,
    transpose_square,
)
from wavetank.sim.compiled import compiled

_WORD = 8
# What compiled code is made for: this processor's register tile.
_TILE_ROWS = tile_of(np.dtype(np.float64)).rows
_LANES = tile_of(np.dtype(np.float64)).lanes
_TILE_COLUMNS = tile_of(np.dtype(np.float64)).columns


@cache
def ahead_of_blas() -> bool:
    """Return whether the vectors are wider than those that the BLAS in scipy's wheels is written for."""
    return _LANES * _WORD >= 64


def fits(block: int) -> bool:
    """Return whether blocks with this many rows are cut into whole panels, and worth it."""
    return block % _TILE_COLUMNS == 0 and ahead_of_blas()


def aligned(entries: int) -> NDArray[np.float64]:
    """Return memory that begins with a cache line; its content is whatever was there."""
    whole = np.empty(entries + LINE_BYTES // _WORD)
    start = -whole.ctypes.data % LINE_BYTES // _WORD
    return whole[start : start + entries]


def overhang(block: int) -> int:
    """Return the entries after the last block that a tile may read, and does nothing with."""
    return _TILE_ROWS * block


def scratch(block: int) -> NDArray[np.float64]:
    """Return what a thread needs to work on blocks of ``block`` rows: a packed block, small inverses, a tile."""
    return aligned(block * block + block * _TILE_COLUMNS + _TILE_ROWS * _TILE_COLUMNS)


@compiled(nogil=True)
def _pack(source: int, block: int, target: int) -> None:
    """Write the negative of the block at ``source`` as panels: ``block`` rows of a tile's columns, transposed."""
    for panel in range(0, block, _TILE_COLUMNS):
        for part in range(0, _TILE_COLUMNS, _LANES):
            for depth in range(0, block, _LANES):
                transpose_square(
                    target + ((panel * block) + depth * _TILE_COLUMNS + part) * _WORD, _TILE_COLUMNS * _WORD,
                    source + ((panel + part) * block + depth) * _WORD, block * _WORD, -1.0, False, _LANES, _LANES,
                )  # fmt: skip


@compiled(nogil=True)
def _subtract(left: int, rows: int, packed: int, target: int, block: int, diagonal: bool, tile: int) -> None:
    """Add to ``rows`` rows at ``target`` their product with the packed block; of a diagonal block the lower panels."""
    row_bytes = block * _WORD
    panel_bytes = block * _TILE_COLUMNS * _WORD
    wide = _TILE_COLUMNS * _WORD
    # While one row of tiles is computed, the next one comes from memory, as much with each tile.
    ahead = _TILE_ROWS * row_bytes
    for row in range(0, rows, _TILE_ROWS):
        high = min(_TILE_ROWS, rows - row)
        panels = block // _TILE_COLUMNS
        if diagonal and row < block:
            panels = min(panels, (row + high - 1) // _TILE_COLUMNS + 1)
        to = target + row * row_bytes
        part = ahead // panels
        for panel in range(panels):
            multiply_tile(
                1.0, block, left + row * row_bytes, row_bytes, packed + panel * panel_bytes, tile,
                to + ahead + panel * part, part // block, False,
            )  # fmt: skip
            spread_panels(to + panel * wide, row_bytes, tile, 0, high, 1, 1.0, True)


@compiled(nogil=True)
def update(
    data: int, starts: NDArray[np.int64], block: int, k: int, first: int, last: int, low: int, high: int, repeats: int,
    waste: int, room: int,
) -> None:  # fmt: skip
    """Subtract L_ik L_jk^T from the blocks (i, j) of these columns and rows; of diagonal blocks the lower triangle.

    Parameters
    ----------
    data : int
        Address of the store, at the start of a cache line; an overhang after its end can be read.
    starts : int64 array
        Its places, see :func:`~wavetank.kernels.solvers.triangle.column_starts`.
    block, k : int
    first, last : int
        Columns of blocks, half-open; after ``k``.
    low, high : int
        Rows of blocks, half-open; those above the diagonal are left out.
    repeats : int
        Times that each block is computed; all but the last go to ``waste``, address of a column of blocks.
    room : int
        Address of a thread's own :func:`scratch`.
    """
    size = block * block * _WORD
    tile = room + (block * block + block * _TILE_COLUMNS) * _WORD
    for j in range(first, last):
        top = max(j, low)
        if top >= high:
            break
        _pack(data + (starts[k] + j) * size, block, room)
        left, rows = data + (starts[k] + top) * size, (high - top) * block
        for _ in range(repeats - 1):
            _subtract(left, rows, room, waste + top * size, block, top == j, tile)
        _subtract(left, rows, room, data + (starts[j] + top) * size, block, top == j, tile)


@compiled(nogil=True)
def _invert(lower: NDArray[np.float64], inverse: NDArray[np.float64]) -> None:
    """Write the transposed inverses of the triangles along the diagonal, each as wide as a tile."""
    for panel in range(0, lower.shape[0], _TILE_COLUMNS):
        for column in range(_TILE_COLUMNS):
            for row in range(_TILE_COLUMNS):
                value = 1.0 if row == column else 0.0
                if row < column:
                    inverse[panel + column, row] = 0.0
                    continue
                for inner in range(column, row):
                    value -= lower[panel + row, panel + inner] * inverse[panel + column, inner]
                inverse[panel + column, row] = value / lower[panel + row, panel + row]


@compiled(nogil=True)
def _solve(
    c: int, rows: int, lower: NDArray[np.float64], lower_at: int, room: int, inverse: NDArray[np.float64],
) -> None:  # fmt: skip
    block = lower.shape[0]
    row_bytes, wide = block * _WORD, _TILE_COLUMNS * _WORD
    inverse_at = room + block * block * _WORD
    tile = inverse_at + block * wide
    _pack(lower_at, block, room)
    _invert(lower, inverse)
    for row in range(0, rows, _TILE_ROWS):
        high = min(_TILE_ROWS, rows - row)
        at = c + row * row_bytes
        for column in range(0, block, _TILE_COLUMNS):
            to = at + column * _WORD
            if column:
                multiply_tile(1.0, column, at, row_bytes, room + column * row_bytes, tile, to, 0, False)
                spread_panels(to, row_bytes, tile, 0, high, 1, 1.0, True)
            multiply_tile(1.0, _TILE_COLUMNS, to, row_bytes, inverse_at + column * wide, tile, to, 0, False)
            spread_panels(to, row_bytes, tile, 0, high, 1, 1.0, False)


def solve_right(c: NDArray[np.float64], lower: NDArray[np.float64], room: NDArray[np.float64]) -> None:
    """Compute ``c = c @ inv(lower).T`` in place.

    Parameters
    ----------
    c : float64 array, shape (m, b), row-major
        An overhang after its end can be read.
    lower : float64 array, shape (b, b), row-major
        Only its lower triangle matters.
    room : float64 array
        A thread's own :func:`scratch`.
    """
    block = lower.shape[0]
    inverse = room[block * block : block * block + block * _TILE_COLUMNS].reshape(block, _TILE_COLUMNS)
    _solve(c.ctypes.data, c.shape[0], lower, lower.ctypes.data, room.ctypes.data, inverse)
