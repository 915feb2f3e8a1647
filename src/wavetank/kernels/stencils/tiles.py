"""Tiles of 32 x 32 in four faces of 16 x 16, and bfloat16: what a Tensix core takes and gives.

Memory holds a tile face by face, upper left, upper right, lower left, lower right, each by rows.  bfloat16 is the upper
half of a float32, rounded to nearest, ties to even.  All of it is done with bit operations on arrays.

Source: Tenstorrent, TT-Metalium documentation, "Tiles" and "Conversion between tiles and row-major format".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.row_blocks import move_bytes
from wavetank.sim.compiled import compiled

TILE = 32
FACE = 16
BFLOAT16_BYTES = 2
TILE_BYTES = TILE * TILE * BFLOAT16_BYTES
"""A tile of bfloat16."""

_FACE_ROW_BYTES = FACE * BFLOAT16_BYTES
_FACE_BYTES = FACE * _FACE_ROW_BYTES
_BLOCK_TILES = 4
_QUIET = np.uint16(0x40)
_NAN_ABOVE = np.uint32(0x7F800000)


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16, ties to even; NaN stays NaN, what is too large becomes infinite.

    Returns
    -------
    ndarray of uint16
        The bits.

    Raises
    ------
    BadValueError
        If the values are not float32.
    """
    values = np.asarray(values)
    if values.dtype != np.dtype(np.float32):
        raise BadValueError(
            "bfloat16 is rounded from float32.",
            given=str(values.dtype),
            allowed="float32",
            hint="convert it first: values.astype(np.float32)",
        )
    bits = values.view(np.uint32)
    # Half of the last kept place, less one where that place is even; the carry may run into the exponent.
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    kept = rounded.astype(np.uint16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > _NAN_ABOVE
    return np.where(nan, (bits >> np.uint32(16)).astype(np.uint16) | _QUIET, kept)


def from_bfloat16_bits(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values of bfloat16 bits, exactly."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round float32 values to the nearest that bfloat16 can hold."""
    return from_bfloat16_bits(bfloat16_bits(values))


def tiles_along(cells: int) -> int:
    """Return the number of tiles that cover ``cells`` cells."""
    return -(-cells // TILE)


def tilise(grid: NDArray[Any]) -> NDArray[Any]:
    """Cut a grid into tiles, the last ones filled up with zeros.

    Parameters
    ----------
    grid : ndarray, shape (height, width)

    Returns
    -------
    ndarray, shape (tile rows, tile columns, 4, 16, 16)
        Faces from the upper left by rows.

    Raises
    ------
    BadValueError
        If the grid has no two dimensions.
    """
    grid = np.asarray(grid)
    if grid.ndim != 2:
        raise BadValueError("Tiles are cut from two dimensions.", given=f"shape {grid.shape}", where="grid")
    rows, columns = tiles_along(grid.shape[0]), tiles_along(grid.shape[1])
    full = np.zeros((rows * TILE, columns * TILE), grid.dtype)
    full[: grid.shape[0], : grid.shape[1]] = grid
    faces = full.reshape(rows, 2, FACE, columns, 2, FACE).transpose(0, 3, 1, 4, 2, 5)
    return np.ascontiguousarray(faces).reshape(rows, columns, 4, FACE, FACE)


def untilise(tiles: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """Put tiles together again and leave out what filled them up.

    Parameters
    ----------
    tiles : ndarray, shape (tile rows, tile columns, 4, 16, 16)
    shape : (int, int)
        Height and width of the grid.

    Raises
    ------
    BadValueError
        If the tiles are not those of such a grid.
    """
    tiles = np.asarray(tiles)
    rows, columns = tiles_along(shape[0]), tiles_along(shape[1])
    if tiles.shape != (rows, columns, 4, FACE, FACE):
        raise BadValueError(
            "These are not the tiles of such a grid.",
            given=f"tiles of shape {tiles.shape} for a grid of {shape[0]} x {shape[1]}",
            allowed=f"shape {(rows, columns, 4, FACE, FACE)}",
        )
    full = tiles.reshape(rows, columns, 2, 2, FACE, FACE).transpose(0, 2, 4, 1, 3, 5)
    return np.ascontiguousarray(full.reshape(rows * TILE, columns * TILE)[: shape[0], : shape[1]])


def squares_of(tiles: NDArray[Any]) -> NDArray[Any]:
    """Return tiles as squares by rows, shape (..., 32, 32), from faces, shape (..., 4, 16, 16)."""
    lead = tiles.shape[:-3]
    faces = tiles.reshape(*lead, 2, 2, FACE, FACE)
    return np.ascontiguousarray(faces.swapaxes(-3, -2)).reshape(*lead, TILE, TILE)


def faces_of(squares: NDArray[Any]) -> NDArray[Any]:
    """Return tiles as faces, shape (..., 4, 16, 16), from squares by rows, shape (..., 32, 32)."""
    lead = squares.shape[:-2]
    halves = squares.reshape(*lead, 2, FACE, 2, FACE).swapaxes(-3, -2)
    return np.ascontiguousarray(halves).reshape(*lead, 4, FACE, FACE)


@compiled(nogil=True, inline="always")
def _rounded(bits: np.uint32) -> np.uint16:
    rounded = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet = np.uint32(bits | np.uint32(0x400000))
    nan = np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16((quiet if nan else rounded) >> np.uint32(16))


@compiled(nogil=True)
def round_row(row: NDArray[np.uint32], line: NDArray[np.uint16]) -> None:
    """Round the float32 bits of a row to bfloat16, into a line of the same length."""
    for j in range(row.size):
        line[j] = _rounded(row[j])


@compiled(nogil=True)
def pack_shifted(
    bits: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    first: int,
    last: int,
    tiles: NDArray[np.uint16],
) -> None:
    """Write tile rows ``first`` to ``last`` of shifted grids as bfloat16 tiles: round, shift and tilise in one pass.

    Parameters
    ----------
    bits : ndarray of uint32, shape (height, width)
        The float32 grid's bits.
    offsets : ndarray of int64, shape (points, 2)
        Row and column of the neighbour that each cell takes its value from; beyond the grid's edge it is 0.
    first, last : int
        Tile rows.
    tiles : ndarray of uint16, shape (points, last - first, tile columns, 4, 16, 16)
        Written.  What fills up the last tiles is any cell's value or 0.
    """
    height, width = bits.shape
    columns = tiles.shape[2]
    reach = np.max(np.abs(offsets))
    line = np.zeros(_BLOCK_TILES * TILE + 2 * reach, np.uint16)
    begin = line.ctypes.data
    for block in range(0, columns, _BLOCK_TILES):
        # A few tiles at a time, so that both halves of a line of the cache are written while it is near.
        count = min(_BLOCK_TILES, columns - block)
        left = max(block * TILE - reach, 0)
        right = min((block + count) * TILE + reach, width)
        skip = left - (block * TILE - reach)
        line[:] = 0
        for row in range(first * TILE - reach, last * TILE + reach):
            if row >= 0 and row < height:
                round_row(bits[row, left:right], line[skip : skip + right - left])
            else:
                line[:] = 0
            for point in range(offsets.shape[0]):
                place = row - offsets[point, 0] - first * TILE
                if place < 0 or place >= (last - first) * TILE:
                    continue
                source = begin + BFLOAT16_BYTES * (reach + offsets[point, 1])
                # A row runs through two faces of each tile.
                face = tiles[point, place // TILE, block, place % TILE // FACE * 2]
                target = face[place % FACE].ctypes.data
                for _ in range(count):
                    move_bytes(target, source, _FACE_ROW_BYTES)
                    move_bytes(target + _FACE_BYTES, source + _FACE_ROW_BYTES, _FACE_ROW_BYTES)
                    target += TILE_BYTES
                    source += 2 * _FACE_ROW_BYTES


@compiled(nogil=True)
def pack_rows_of_neighbours(
    bits: NDArray[np.uint32], offsets: NDArray[np.int64], first: int, last: int, tiles: NDArray[np.uint16]
) -> None:
    """Write tiles whose rows are 32 neighbouring cells of a grid row and whose columns are their neighbours' values.

    Parameters
    ----------
    bits : ndarray of uint32, shape (height, width)
        The float32 grid's bits.
    offsets : ndarray of int64, shape (points, 2)
        Row and column of each neighbour relative to the cell; beyond the grid's edge its value is 0.
    first, last : int
        Grid rows.
    tiles : ndarray of uint16, shape (last - first, tiles along a row, tiles of columns, 4, 16, 16)
        Written where there are neighbours; the columns beyond them must be 0 already.
    """
    height, width = bits.shape
    for row in range(first, last):
        for block in range(tiles.shape[1]):
            for half in range(2):
                start = block * TILE + half * FACE
                for point in range(offsets.shape[0]):
                    target = tiles[row - first, block, point // TILE, 2 * half + point % TILE // FACE]
                    at = point % FACE
                    y, left = row + offsets[point, 0], start + offsets[point, 1]
                    if y >= 0 and y < height and left >= 0 and left + FACE <= width:
                        source = bits[y, left : left + FACE]
                        for i in range(FACE):
                            target[i, at] = _rounded(source[i])
                        continue
                    for i in range(FACE):
                        x = left + i
                        inside = y >= 0 and y < height and x >= 0 and x < width
                        target[i, at] = _rounded(bits[y, x]) if inside else np.uint16(0)


@compiled(nogil=True)
def unpack_tiles(tiles: NDArray[np.uint16], radius: int, first: int, last: int, bits: NDArray[np.uint32]) -> None:
    """Write the cells of tile rows ``first`` to ``last`` into a grid as float32, but for its rim.

    Parameters
    ----------
    tiles : ndarray of uint16, shape (last - first, tile columns, 4, 16, 16)
    radius : int
        Rows and columns at the edge that are left as they are.
    first, last : int
    bits : ndarray of uint32, shape (height, width)
        The float32 grid's bits; written.
    """
    height, width = bits.shape
    for row in range(max(first * TILE, radius), min(last * TILE, height - radius)):
        inside = row % TILE
        for tile_column in range(tiles.shape[1]):
            for half in range(2):
                source = tiles[row // TILE - first, tile_column, 2 * (inside // FACE) + half, inside % FACE]
                start = tile_column * TILE + half * FACE
                if start >= radius and start + FACE <= width - radius:
                    target = bits[row, start : start + FACE]
                    for j in range(FACE):
                        target[j] = np.uint32(source[j]) << np.uint32(16)
                    continue
                for j in range(max(0, radius - start), min(FACE, width - radius - start)):
                    bits[row, start + j] = np.uint32(source[j]) << np.uint32(16)


@compiled(nogil=True)
def unpack_first_columns(
    tiles: NDArray[np.uint16], radius: int, first: int, last: int, bits: NDArray[np.uint32]
) -> None:
    """Write the first column of tiles whose rows are cells into a grid as float32, but for its rim.

    Parameters
    ----------
    tiles : ndarray of uint16, shape (last - first, tiles along a row, 4, 16, 16)
    radius : int
    first, last : int
        Grid rows.
    bits : ndarray of uint32, shape (height, width)
        The float32 grid's bits; written.
    """
    height, width = bits.shape
    for row in range(max(first, radius), min(last, height - radius)):
        for column in range(radius, width - radius):
            inside = column % TILE
            value = tiles[row - first, column // TILE, 2 * (inside // FACE), inside % FACE, 0]
            bits[row, column] = np.uint32(value) << np.uint32(16)
