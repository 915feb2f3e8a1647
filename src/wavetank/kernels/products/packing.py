"""Sums of blocks, formed while they are packed for the micro-kernel, and results added where they belong.

A lower-complexity scheme multiplies sums of blocks.  A product copies its operands into a packed form anyway, so the
sum is formed on the way: block sums are never written to memory as matrices.  In the same way a finished tile is
added, while it is still in the nearest cache, to every block of the result that wants it.

Source: J. Huang, T. Smith, G. Henry, R. van de Geijn, "Strassen's Algorithm Reloaded", SC 2016, which packs sums inside
the product; H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026, which fuses product and combination.

Differs from the source:
1. Blocks may reach over the edge of a matrix; what lies outside counts as zero, so that no operand is padded or copied.
2. Transposed operands are turned in registers while they are packed.

Addresses, sizes and strides are bytes in int64 unless a name says otherwise.  A *term* is one block of a sum: ``at``
its address, ``high`` and ``wide`` how many of its rows and columns lie inside the matrix, ``scale`` its coefficient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.kernels.products.microkernel import (
    add_from_part,
    add_part,
    add_rows,
    fetch_line,
    set_from_part,
    set_part,
    sum_blocks,
    sum_panels,
    transpose_square,
)


class Terms(NamedTuple):
    """The blocks that each product's sum of one operand is made of, product after product."""

    start: NDArray[np.int64]
    """Shape (products + 1,): where each product's terms begin."""
    at: NDArray[np.int64]
    """Addresses of the blocks."""
    high: NDArray[np.int64]
    """Rows of each block that lie inside the matrix."""
    wide: NDArray[np.int64]
    """Columns that do."""
    scale: NDArray[np.floating]
    """Coefficients, in the type of the product."""
    first: NDArray[np.bool_]
    """For results: whether this is the block's first contribution, which is stored and not added."""
    at_address: int
    """Where ``at`` is kept."""
    scale_address: int
    """Where ``scale`` is kept."""
    row_bytes: int
    """Distance of neighbours in a column."""
    column_bytes: int
    """Distance of neighbours in a row."""


@njit(cache=True, nogil=True)
def _pack_edge(terms, product, row, rows, column, columns, target, target_row, lanes, itemsize):  # type: ignore[no-untyped-def]
    """Pack rows of which some lie outside a block, or end within a vector."""
    begin, end = terms.start[product], terms.start[product + 1]
    for i in range(rows):
        to = target + i * target_row
        for term in range(begin, end):
            source = terms.at[term] + (row + i) * terms.row_bytes + column * itemsize
            inside = max(0, min(columns, terms.wide[term] - column)) if row + i < terms.high[term] else 0
            scale = terms.scale[term]
            for j in range(0, columns if term == begin else inside, lanes):
                if term == begin:
                    set_from_part(to + j * itemsize, source + j * itemsize, scale, inside - j)
                else:
                    add_from_part(to + j * itemsize, source + j * itemsize, scale, inside - j)


@njit(cache=True, nogil=True)
def pack_rows(one, terms, product, row, rows, column, columns, target, target_row, panel, lanes, itemsize):  # type: ignore[no-untyped-def]
    """Pack ``rows`` rows of a sum, from ``row`` on, ``columns`` elements each from ``column`` on.

    Rows are written one after the other, ``target_row`` bytes apart, up to a whole vector; what is outside is zero.
    ``panel`` is the number of elements of a row of the register tile.
    """
    begin, end = terms.start[product], terms.start[product + 1]
    if terms.column_bytes == itemsize:
        high, wide = rows, columns
        for term in range(begin, end):
            high = min(high, terms.high[term] - row)
            wide = min(wide, terms.wide[term] - column)
        high, wide = max(high, 0), max(wide, 0)
        wide -= wide % lanes
        if high > 0 and wide > 0:
            offset = row * terms.row_bytes + column * itemsize
            at = terms.at_address + 8 * begin
            scale = terms.scale_address + itemsize * begin
            if wide % panel == 0:
                sum_panels(
                    one, target, target_row, offset, terms.row_bytes, high, wide // panel, at, scale, end - begin
                )
            else:
                sum_blocks(
                    one, target, target_row, offset, terms.row_bytes, high, wide // lanes, at, scale, end - begin
                )
            if wide < columns:
                _pack_edge(
                    terms, product, row, high, column + wide, columns - wide, target + wide * itemsize, target_row,
                    lanes, itemsize,
                )  # fmt: skip
        else:
            high = 0
        if high < rows:
            _pack_edge(
                terms, product, row + high, rows - high, column, columns, target + high * target_row, target_row,
                lanes, itemsize,
            )  # fmt: skip
        return
    for i in range(0, rows, lanes):
        for j in range(0, columns, lanes):
            to = target + i * target_row + j * itemsize
            for term in range(begin, end):
                source = terms.at[term] + (row + i) * terms.row_bytes + (column + j) * terms.column_bytes
                transpose_square(
                    to,
                    target_row,
                    source,
                    terms.column_bytes,
                    terms.scale[term],
                    term > begin,
                    min(columns - j, terms.wide[term] - column - j),
                    min(rows - i, terms.high[term] - row - i),
                )


@njit(cache=True, nogil=True)
def fetch_rows(terms, product, row, rows, column, columns, itemsize):  # type: ignore[no-untyped-def]
    """Ask for what :func:`pack_rows` will read."""
    for term in range(terms.start[product], terms.start[product + 1]):
        high = min(rows, terms.high[term] - row)
        wide = min(columns, terms.wide[term] - column)
        source = terms.at[term] + row * terms.row_bytes + column * terms.column_bytes
        if terms.column_bytes == itemsize:
            count, step, length = high, terms.row_bytes, wide * itemsize
        else:
            count, step, length = wide, terms.column_bytes, high * itemsize
        if length > 0:
            for i in range(count):
                begin = source + i * step
                for place in range(begin - begin % 64, begin + length, 64):
                    fetch_line(place)


@njit(cache=True, nogil=True)
def add_tile(terms, product, row, rows, column, columns, tile, lanes, itemsize):  # type: ignore[no-untyped-def]
    """Add a finished tile of ``rows`` x ``columns`` to every block that this product contributes to."""
    for term in range(terms.start[product], terms.start[product + 1]):
        high = min(rows, terms.high[term] - row)
        wide = min(columns, terms.wide[term] - column)
        scale, add = terms.scale[term], not terms.first[term]
        target = terms.at[term] + row * terms.row_bytes + column * itemsize
        if high > 0 and wide == columns:
            add_rows(target, terms.row_bytes, tile, high, scale, add)
            continue
        for i in range(high):
            to, source = target + i * terms.row_bytes, tile + i * columns * itemsize
            for j in range(0, wide, lanes):
                if add:
                    add_part(to + j * itemsize, source + j * itemsize, scale, wide - j)
                else:
                    set_part(to + j * itemsize, source + j * itemsize, scale, wide - j)


@njit(cache=True, nogil=True)
def fetch_tile(terms, product, row, rows, column, columns, itemsize):  # type: ignore[no-untyped-def]
    """Ask for the lines that :func:`add_tile` will write."""
    for term in range(terms.start[product], terms.start[product + 1]):
        target = terms.at[term] + row * terms.row_bytes + column * itemsize
        length = min(columns, terms.wide[term] - column) * itemsize
        if length > 0:
            for i in range(min(rows, terms.high[term] - row)):
                begin = target + i * terms.row_bytes
                for place in range(begin - begin % 64, begin + length, 64):
                    fetch_line(place)


@njit(cache=True, nogil=True)
def spread_rows(terms, product, row, rows, column, columns, source, source_row, lanes, itemsize):  # type: ignore[no-untyped-def]
    """Add ``rows`` whole rows of a product kept in memory to every block that it contributes to."""
    begin, end = terms.start[product], terms.start[product + 1]
    for i in range(rows):
        for term in range(begin, end):
            if row + i >= terms.high[term]:
                continue
            wide = min(columns, terms.wide[term] - column)
            scale, add = terms.scale[term], not terms.first[term]
            to = terms.at[term] + (row + i) * terms.row_bytes + column * itemsize
            at = source + i * source_row
            for j in range(0, wide, lanes):
                if add:
                    add_part(to + j * itemsize, at + j * itemsize, scale, wide - j)
                else:
                    set_part(to + j * itemsize, at + j * itemsize, scale, wide - j)


def terms_of(
    matrix: NDArray[Any], coefficients: NDArray[np.int64], parts: tuple[int, int], block: tuple[int, int]
) -> Terms:
    """Return which blocks of ``matrix`` make the sums with these coefficients.

    Parameters
    ----------
    matrix : array, 2-D
        Must outlive the terms: they hold addresses in it.
    coefficients : array of int64, shape (products, parts[0] * parts[1])
    parts : (int, int)
        How many blocks there are, down and across.
    block : (int, int)
        Rows and columns of a block; the last ones may reach over the edge.
    """
    products, places = np.nonzero(coefficients)
    down, across = places // parts[1] * block[0], places % parts[1] * block[1]
    at = matrix.ctypes.data + down * matrix.strides[0] + across * matrix.strides[1]
    scale = coefficients[products, places].astype(matrix.dtype)
    first = np.zeros(len(places), np.bool_)
    first[np.unique(places, return_index=True)[1]] = True
    at = at.astype(np.int64)
    return Terms(
        start=np.searchsorted(products, np.arange(len(coefficients) + 1)).astype(np.int64),
        at=at,
        high=np.clip(matrix.shape[0] - down, 0, block[0]).astype(np.int64),
        wide=np.clip(matrix.shape[1] - across, 0, block[1]).astype(np.int64),
        scale=scale,
        first=first,
        at_address=at.ctypes.data,
        scale_address=scale.ctypes.data,
        row_bytes=matrix.strides[0],
        column_bytes=matrix.strides[1],
    )
