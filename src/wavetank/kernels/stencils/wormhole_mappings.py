"""Stencils as a card of matrix tiles computes them: by elements, by rows of neighbours, or by banded matrices.

The card has no shifted load.  Axpy gets the grid once for each neighbour, shifted by the host, and adds weighted tiles
element by element.  MatMul gets the neighbours of each cell as a row and multiplies by a matrix whose first column
holds the weights.  The banded form multiplies from the left and from the right, so that neighbouring tiles bring the
shifts.  All three run here tile by tile on arrays, rounded as the card would round.

Sources: L. Piarulli, D. De Sensi, "Stencil Computations on Tenstorrent Wormhole", arXiv 2605.07599, 2026, for Axpy and
MatMul; Tenstorrent, TT-Metalium documentation, for tiles and number formats.

Differs from the source:
1. The banded form is ours, and so is the order of additions: the pattern's, or along the inner index.
2. Products of two bfloat16 are exact, as with the matrix engine's highest fidelity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import keep_rim
from wavetank.kernels.stencils.tiles import (
    FACE,
    TILE,
    bfloat16_bits,
    faces_of,
    from_bfloat16_bits,
    pack_rows_of_neighbours,
    pack_shifted,
    squares_of,
    tiles_along,
    tilise,
    to_bfloat16,
    unpack_first_columns,
    unpack_tiles,
    untilise,
)
from wavetank.machine.thread_pool import cuts

ACCUMULATORS = ("fp32", "bf16", "exact")
"""``fp32`` and ``bf16``: operands in bfloat16, sums kept in the one or the other.  ``exact``: nothing is rounded beyond
the grid's own type, to check the mapping itself."""

# Grid rows of neighbours that are multiplied at a time: 32 times as much as the rows themselves.
_ROWS_AT_A_TIME = 32


@dataclass(frozen=True)
class Arithmetic:
    """How the card rounds; ``accumulate`` is one of :data:`ACCUMULATORS`."""

    accumulate: str

    @property
    def exact(self) -> bool:
        """Return whether nothing is rounded."""
        return self.accumulate == "exact"

    def operand(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values as they are when they reach the matrix engine."""
        return values if self.exact else to_bfloat16(np.asarray(values, np.float32))

    def kept(self, sums: NDArray[Any]) -> NDArray[Any]:
        """Return sums as the accumulator keeps them."""
        return to_bfloat16(sums) if self.accumulate == "bf16" else sums


def offsets_of(pattern: Stencil) -> NDArray[np.int64]:
    """Return the offsets, shape (points, 2)."""
    return np.array(pattern.offsets, np.int64)


def axpy_sweep(grid: NDArray[Any], pattern: Stencil, arithmetic: Arithmetic) -> NDArray[Any]:
    """Return one sweep by weighted sums of shifted tiles; the rim is kept.

    Parameters
    ----------
    grid : ndarray, shape (height, width), float32; float64 as well where the arithmetic is exact
    pattern : Stencil
    arithmetic : Arithmetic
    """
    weights = arithmetic.operand(pattern.coefficients_as(grid.dtype))
    total: NDArray[Any] | None = None
    for weight, tiles in zip(weights, _shifted_tiles(grid, pattern, arithmetic), strict=True):
        term = weight * tiles
        total = arithmetic.kept(term if total is None else total + term)
    return _untilised(np.asarray(total), grid, pattern.radius, arithmetic)


def matmul_sweep(grid: NDArray[Any], pattern: Stencil, arithmetic: Arithmetic) -> NDArray[Any]:
    """Return one sweep by products of rows of neighbours with a matrix of weights; parameters as :func:`axpy_sweep`."""
    height, width = grid.shape
    weights = weight_tiles(pattern, grid.dtype)
    weights = arithmetic.operand(weights)
    result = grid.copy()
    for first in range(0, height, _ROWS_AT_A_TIME):
        last = min(first + _ROWS_AT_A_TIME, height)
        rows = _rows_of_neighbours(grid, pattern, arithmetic, first, last)
        sums = np.zeros((*rows.shape[:2], TILE, TILE), grid.dtype)
        for part in range(rows.shape[2]):
            for inner in range(TILE):
                # One step of the inner index for all tiles at once.
                product = rows[:, :, part, :, inner, None] * weights[part, inner]
                sums = arithmetic.kept(sums + product)
        if arithmetic.exact:
            result[first:last] = sums[..., 0].reshape(last - first, -1)[:, :width]
        else:
            unpack_first_columns(bfloat16_bits(faces_of(sums)), 0, first, last, result.view(np.uint32))
    return _with_rim(result, grid, pattern.radius)


def banded_sweep(grid: NDArray[Any], pattern: Stencil, arithmetic: Arithmetic) -> NDArray[Any]:
    """Return one sweep as ``A @ U + U @ B`` with banded matrices, tile by tile; parameters as :func:`axpy_sweep`."""
    operands = arithmetic.operand(grid)
    sums = banded_product(squares_of(tilise(operands)), *band_tiles(pattern, grid.dtype, arithmetic), arithmetic)
    return _untilised(faces_of(sums), grid, pattern.radius, arithmetic)


def resident_sweeps(
    grid: NDArray[Any], pattern: Stencil, steps: int, arithmetic: Arithmetic, cores: int
) -> tuple[NDArray[Any], int]:
    """Return the grid after ``steps`` sweeps that never leave the card, and the bytes that cores exchanged.

    Each core holds a stripe of tile rows.  Before a sweep it gets ``radius`` rows of cells from each neighbour.

    Parameters
    ----------
    grid, pattern, arithmetic
        As for :func:`axpy_sweep`.
    steps : int
    cores : int
        At most as many stripes as there are tile rows are made.
    """
    radius, (height, width) = pattern.radius, grid.shape
    tiles = squares_of(tilise(arithmetic.operand(grid)))
    changing = np.zeros(grid.shape, np.bool_)
    changing[radius : height - radius, radius : width - radius] = True
    mask = squares_of(tilise(changing))
    left, right = band_tiles(pattern, grid.dtype, arithmetic)
    stripes = _stripes(len(tiles), cores)
    exchanged = 0
    for _ in range(steps):
        halos = []
        for first, last in stripes:
            # Only the rows that are sent are there; the rest of a neighbour's tiles stays out of reach.
            north, south = np.zeros_like(tiles[:1]), np.zeros_like(tiles[:1])
            if first and radius:
                north[..., -radius:, :] = tiles[first - 1 : first, :, -radius:, :]
                exchanged += 2 * radius * TILE * tiles.shape[1]
            if last < len(tiles) and radius:
                south[..., :radius, :] = tiles[last : last + 1, :, :radius, :]
                exchanged += 2 * radius * TILE * tiles.shape[1]
            halos.append((north, south))
        swept = [
            banded_product(np.concatenate([north, tiles[first:last], south]), left, right, arithmetic)[1:-1]
            for (first, last), (north, south) in zip(stripes, halos, strict=True)
        ]
        tiles = np.where(mask, arithmetic.operand(np.concatenate(swept)), tiles)
    result = untilise(faces_of(tiles), (height, width)).astype(grid.dtype)
    return _with_rim(result, grid, radius), exchanged


def banded_product(
    tiles: NDArray[Any], left: NDArray[Any], right: NDArray[Any], arithmetic: Arithmetic
) -> NDArray[Any]:
    """Return the sums of three products along each axis, for every tile.

    Parameters
    ----------
    tiles : ndarray, shape (tile rows, tile columns, 32, 32)
    left, right : ndarray, shape (3, 32, 32)
        For the tile before, the tile itself and the tile after; see :func:`band_tiles`.
    arithmetic : Arithmetic
    """
    padded = np.pad(tiles, ((1, 1), (1, 1), (0, 0), (0, 0)))
    rows, columns = tiles.shape[:2]
    sums = np.zeros_like(tiles)
    for number in range(3):
        above = padded[number : number + rows, 1:-1]
        # Steps of the inner index in which the band is empty would add zeros.
        for inner in np.flatnonzero(left[number].any(axis=0)):
            product = left[number, :, inner, None] * above[:, :, inner, None, :]
            sums = arithmetic.kept(sums + product)
    for number in range(3):
        beside = padded[1:-1, number : number + columns]
        for inner in np.flatnonzero(right[number].any(axis=1)):
            product = beside[:, :, :, inner, None] * right[number, inner]
            sums = arithmetic.kept(sums + product)
    return sums


def band_tiles(pattern: Stencil, dtype: Any, arithmetic: Arithmetic) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the tiles of ``A`` (weights down the grid, the cell's own included) and ``B`` (weights across it).

    Raises
    ------
    BadValueError
        If a neighbour lies off the axes: then no two banded matrices do it.
    """
    slanted = [place for place in pattern.offsets if place[0] and place[1]]
    if slanted:
        raise BadValueError(
            "The banded form adds what comes along rows and along columns, and this stencil has neighbours off both.",
            given=f"a {pattern.shape} stencil with neighbour {slanted[0]}",
            allowed="stencils whose neighbours lie on the axes",
            hint="mapping=axpy or mapping=matmul",
        )
    left, right = np.zeros((3, TILE, TILE), dtype), np.zeros((3, TILE, TILE), dtype)
    for (dy, dx), weight in zip(pattern.offsets, pattern.coefficients_as(dtype), strict=True):
        for at in range(TILE):
            number, inner = divmod(at + (dx or dy) + TILE, TILE)
            if dx:
                right[number, inner, at] = weight
            else:
                left[number, at, inner] = weight
    return arithmetic.operand(left), arithmetic.operand(right)


def weight_tiles(pattern: Stencil, dtype: Any) -> NDArray[Any]:
    """Return the matrix of MatMul, shape (parts, 32, 32): the weights down the first column, 0 elsewhere."""
    weights = np.zeros((tiles_along(pattern.points), TILE, TILE), dtype)
    weights.reshape(-1, TILE)[: pattern.points, 0] = pattern.coefficients_as(dtype)
    return weights


MAPPINGS: dict[str, Callable[[NDArray[Any], Stencil, Arithmetic], NDArray[Any]]] = {
    "axpy": axpy_sweep,
    "matmul": matmul_sweep,
    "banded": banded_sweep,
}
"""What does one sweep with a round trip to the host."""


def _shifted_tiles(grid: NDArray[Any], pattern: Stencil, arithmetic: Arithmetic) -> NDArray[Any]:
    """Return the grid once for each neighbour, shape (points, tile rows, tile columns, 4, 16, 16)."""
    height, width = grid.shape
    if not arithmetic.exact:
        shape = (pattern.points, tiles_along(height), tiles_along(width), 4, FACE, FACE)
        tiles = np.empty(shape, np.uint16)
        pack_shifted(grid.view(np.uint32), offsets_of(pattern), 0, shape[1], tiles)
        return from_bfloat16_bits(tiles)
    radius = pattern.radius
    padded = np.pad(grid, radius)
    return np.stack(
        [
            tilise(padded[radius + dy : radius + dy + height, radius + dx : radius + dx + width])
            for dy, dx in pattern.offsets
        ]
    )


def _rows_of_neighbours(
    grid: NDArray[Any], pattern: Stencil, arithmetic: Arithmetic, first: int, last: int
) -> NDArray[Any]:
    """Return cells by neighbours, shape (grid rows, tiles along a row, parts, 32, 32)."""
    width = grid.shape[1]
    blocks, parts = tiles_along(width), tiles_along(pattern.points)
    if not arithmetic.exact:
        tiles = np.zeros((last - first, blocks, parts, 4, FACE, FACE), np.uint16)
        pack_rows_of_neighbours(grid.view(np.uint32), offsets_of(pattern), first, last, tiles)
        return squares_of(from_bfloat16_bits(tiles))
    radius = pattern.radius
    padded = np.pad(grid, radius)
    rows = np.zeros((last - first, blocks * TILE, parts * TILE), grid.dtype)
    for number, (dy, dx) in enumerate(pattern.offsets):
        rows[:, :width, number] = padded[radius + dy + first : radius + dy + last, radius + dx : radius + dx + width]
    return rows.reshape(last - first, blocks, TILE, parts, TILE).swapaxes(2, 3)


def _untilised(tiles: NDArray[Any], grid: NDArray[Any], radius: int, arithmetic: Arithmetic) -> NDArray[Any]:
    """Return the grid out of the card's tiles, the rim from the old grid."""
    if arithmetic.exact:
        return _with_rim(untilise(tiles, (grid.shape[0], grid.shape[1])), grid, radius)
    result = grid.copy()
    unpack_tiles(bfloat16_bits(tiles), radius, 0, tiles.shape[0], result.view(np.uint32))
    return result


def _with_rim(result: NDArray[Any], grid: NDArray[Any], radius: int) -> NDArray[Any]:
    keep_rim(result, grid, radius)
    return result


def _stripes(tile_rows: int, cores: int) -> list[tuple[int, int]]:
    """Return the tile rows of each core: neighbouring ranges whose lengths differ by one at most."""
    return cuts(tile_rows, min(cores, tile_rows))
