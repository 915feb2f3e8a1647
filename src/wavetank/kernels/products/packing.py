"""Sums of blocks, formed while they are packed for the micro-kernel, and results added where they belong.

A lower-complexity scheme multiplies sums of blocks.  A product copies its operands into a packed form anyway, so the
sum is formed on the way: block sums are never written to memory as matrices.  In the same way finished tiles are
added, while they are still in the caches, to every block of the result that wants them.

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
from numpy.typing import NDArray

from wavetank.kernels.products.microkernel import (
    add_from_part,
    add_part,
    set_from_part,
    set_part,
    spread_panels,
    sum_blocks,
    sum_panels,
    transpose_square,
)
from wavetank.sim.compiled import compiled


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


@compiled(nogil=True)
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


@compiled(nogil=True)
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
                    one, target, target_row, panel * itemsize, offset, terms.row_bytes, high, wide // panel, at, scale,
                    end - begin,
                )  # fmt: skip
            else:
                sum_blocks(
                    one, target, target_row, lanes * itemsize, offset, terms.row_bytes, high, wide // lanes, at, scale,
                    end - begin,
                )  # fmt: skip
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


@compiled(nogil=True)
def pack_panels(one, terms, product, row, rows, column, panels, target, panel_bytes, panel, lanes, itemsize):  # type: ignore[no-untyped-def]
    """Pack ``rows`` rows of a sum into ``panels`` column panels, ``panel_bytes`` apart; what is outside is zero.

    ``panel`` is the number of elements of a row of the register tile. Whole rows are read, however wide, because
    that is how memory is fast.
    """
    begin, end = terms.start[product], terms.start[product + 1]
    target_row = panel * itemsize
    whole, high = 0, rows
    if terms.column_bytes == itemsize:
        whole = panels
        for term in range(begin, end):
            high = min(high, terms.high[term] - row)
            whole = min(whole, (terms.wide[term] - column) // panel)
        high = max(high, 0)
        whole = max(whole, 0) if high > 0 else 0
    if whole > 0:
        sum_panels(
            one, target, target_row, panel_bytes, row * terms.row_bytes + column * itemsize, terms.row_bytes, high,
            whole, terms.at_address + 8 * begin, terms.scale_address + itemsize * begin, end - begin,
        )  # fmt: skip
        if high < rows:
            for each in range(whole):
                _pack_edge(
                    terms, product, row + high, rows - high, column + each * panel, panel,
                    target + each * panel_bytes + high * target_row, target_row, lanes, itemsize,
                )  # fmt: skip
    for each in range(whole, panels):
        pack_rows(
            one, terms, product, row, rows, column + each * panel, panel, target + each * panel_bytes, target_row,
            panel, lanes, itemsize,
        )  # fmt: skip


@compiled(nogil=True)
def spread_tiles(terms, product, row, rows, column, panels, tiles, panel_bytes, panel, lanes, itemsize):  # type: ignore[no-untyped-def]
    """Add up to a tile's ``rows`` of finished tiles that lie side by side to every block that they contribute to.

    ``tiles`` is the address of the first of ``panels`` tiles, ``panel_bytes`` apart, of ``panel`` columns each.
    """
    for term in range(terms.start[product], terms.start[product + 1]):
        high = min(rows, terms.high[term] - row)
        wide = min(panels * panel, terms.wide[term] - column)
        if high <= 0 or wide <= 0:
            continue
        scale, add = terms.scale[term], not terms.first[term]
        target = terms.at[term] + row * terms.row_bytes + column * itemsize
        whole = wide // panel
        if whole > 0:
            spread_panels(target, terms.row_bytes, tiles, panel_bytes, high, whole, scale, add)
        rest = wide - whole * panel
        for i in range(high if rest > 0 else 0):
            to = target + i * terms.row_bytes + whole * panel * itemsize
            source = tiles + whole * panel_bytes + i * panel * itemsize
            for j in range(0, rest, lanes):
                if add:
                    add_part(to + j * itemsize, source + j * itemsize, scale, rest - j)
                else:
                    set_part(to + j * itemsize, source + j * itemsize, scale, rest - j)


@compiled(nogil=True)
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
