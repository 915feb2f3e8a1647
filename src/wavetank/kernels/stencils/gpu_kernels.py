"""What runs on a GPU of a stencil: a program takes a rectangle of cells and adds up shifted loads of the old grid.

Neighbouring programs read the same cells again, which the first-level cache has; memory is read and written once.  The
terms that count are known when a kernel is compiled, so that nothing is multiplied by a weight of 0.

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
        Of a rectangle: powers of two.
    """
    # In two dimensions the second number of a program is limited to 65,535, so rectangles are numbered along rows.
    across = tl.cdiv(width, COLUMNS)
    program = tl.program_id(0)
    rows = (program // across * ROWS + tl.arange(0, ROWS))[:, None]
    columns = (program % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (rows < height) & (columns < width)
    total = tl.zeros((ROWS, COLUMNS), dtype=old.dtype.element_ty)
    SIDE: tl.constexpr = 2 * RADIUS + 1
    number = 0
    for dy in tl.static_range(-RADIUS, RADIUS + 1):
        y = _beyond(rows + dy, height, BOUNDARY).to(tl.int64)
        for dx in tl.static_range(-RADIUS, RADIUS + 1):
            if TERMS >> ((dy + RADIUS) * SIDE + dx + RADIUS) & 1:
                x = _beyond(columns + dx, width, BOUNDARY)
                total += tl.load(weights + number) * tl.load(old + y * width + x, mask=inside, other=0.0)
                number += 1
    place = rows.to(tl.int64) * width + columns
    if BOUNDARY == _DIRICHLET:
        fixed = (rows < RADIUS) | (rows >= height - RADIUS) | (columns < RADIUS) | (columns >= width - RADIUS)
        total = tl.where(fixed, tl.load(old + place, mask=inside, other=0.0), total)
    tl.store(new + place, total, mask=inside)
