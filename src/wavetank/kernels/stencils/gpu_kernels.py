"""What runs on a GPU of a stencil: a program takes a rectangle of cells, a thread a column of it.

The rows of the old grid are read from top to bottom, each once for every column of the pattern, and added to the sums
of all rows that they are neighbours of, which stay in registers: a box of radius 4 takes 9 loads per cell instead of
81.  Neighbouring columns come from the first-level cache; memory is read and written once.  The terms that count are
known when a kernel is compiled, so that nothing is multiplied by a weight of 0.

Source: P. Tillet, H. T. Kung, D. Cox, "Triton: An Intermediate Language and Compiler for Tiled Neural Network
Computations", MAPL 2019; Triton's documentation.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Boundaries, as in wavetank.kernels.stencils.pattern.BOUNDARIES.
_DIRICHLET = tl.constexpr(0)
_PERIODIC = tl.constexpr(1)


@triton.jit
def _beyond(place: tl.tensor, side: tl.tensor, BOUNDARY: tl.constexpr) -> tl.tensor:
    """Return the row or column that stands for one beyond the edge; what a fixed rim never uses is any inside."""
    if BOUNDARY == _PERIODIC:
        return tl.where(place < 0, place + side, tl.where(place >= side, place - side, place))
    return tl.where(place < 0, -1 - place, tl.where(place >= side, 2 * side - 1 - place, place))


@triton.constexpr_function
def _counts(terms: int, place: int) -> bool:
    """Return whether the neighbour at this place of the square counts."""
    return bool(terms >> place & 1)


@triton.constexpr_function
def _number(terms: int, place: int) -> int:
    """Return how many neighbours count before the one at this place."""
    return (terms & ((1 << place) - 1)).bit_count()


@triton.constexpr_function
def _column_counts(terms: int, side: int, column: int) -> bool:
    """Return whether any neighbour of this column of the square counts."""
    return any(terms >> (row * side + column) & 1 for row in range(side))


@triton.jit
def sweep_rectangle(
    old: tl.tensor, new: tl.tensor, weights: tl.tensor, height: tl.tensor, width: tl.tensor, RADIUS: tl.constexpr,
    TERMS: tl.constexpr, BOUNDARY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Write one rectangle of the next grid.

    Parameters
    ----------
    old, new : float, shape (height, width)
        Contiguous, and apart from each other.
    weights : float, shape (terms,)
    height, width : int
    RADIUS : int
    TERMS : int
        Bit ``(dy + RADIUS) * (2 RADIUS + 1) + dx + RADIUS`` is 1 where that neighbour counts.
    BOUNDARY : int
        0 for a fixed rim, 1 for a torus, 2 for mirrored edges.
    ROWS, COLUMNS : int
        Of a rectangle; columns are a power of two.
    """
    # In two dimensions the second number of a program is limited to 65,535, so rectangles are numbered along rows.
    across = tl.cdiv(width, COLUMNS)
    program = tl.program_id(0)
    first = program // across * ROWS
    columns = program % across * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    rim = (columns < RADIUS) | (columns >= width - RADIUS)
    SIDE: tl.constexpr = 2 * RADIUS + 1
    POINTS: tl.constexpr = _number(TERMS, SIDE * SIDE)
    factors = ()
    for number in tl.static_range(POINTS):
        factors = factors + (tl.load(weights + number),)  # type: ignore[assignment]
    # Sums of rows that are not complete, the next to be complete first, and the cells that a fixed rim keeps.
    zero = tl.zeros((COLUMNS,), dtype=old.dtype.element_ty)
    sums = (zero,) * SIDE
    kept = (zero,) * (RADIUS + 1)
    for read in tl.static_range(ROWS + 2 * RADIUS):
        y = first + read - RADIUS
        if BOUNDARY == _DIRICHLET:
            # What lies beyond the rim is read by no sum that is written.
            row = old + tl.minimum(tl.maximum(y, 0), height - 1).to(tl.int64) * width
        else:
            row = old + _beyond(tl.minimum(y, height + RADIUS - 1), height, BOUNDARY).to(tl.int64) * width
        for column in tl.static_range(SIDE):
            if _column_counts(TERMS, SIDE, column) or column == RADIUS:
                x = columns + (column - RADIUS)
                if BOUNDARY == _DIRICHLET:
                    cells = tl.load(row + x, mask=(x >= 0) & (x < width), other=0.0)
                else:
                    cells = tl.load(row + _beyond(x, width, BOUNDARY), mask=inside, other=0.0)
                if column == RADIUS:
                    kept = kept[1:] + (cells,)
                for dy in tl.static_range(SIDE):
                    if _counts(TERMS, dy * SIDE + column):
                        # This row is the neighbour dy - RADIUS below of the row whose sum is the SIDE - 1 - dy-th.
                        term = factors[_number(TERMS, dy * SIDE + column)] * cells
                        sums = sums[: SIDE - 1 - dy] + (sums[SIDE - 1 - dy] + term,) + sums[SIDE - dy :]
        if read >= 2 * RADIUS:
            y = first + read - 2 * RADIUS
            total = sums[0]
            if BOUNDARY == _DIRICHLET:
                total = tl.where(rim | (y < RADIUS) | (y >= height - RADIUS), kept[0], total)
            tl.store(new + y.to(tl.int64) * width + columns, total, mask=inside & (y < height))
        sums = sums[1:] + (zero,)
