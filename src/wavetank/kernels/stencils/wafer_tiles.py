"""A grid cut into tiles, one for each processing element of a wafer, and the exchange of their halos.

The whole mesh is one array of four axes, so that what every element does in a phase is one assignment of slices.  The
exchange takes two phases: columns go east and west first, then whole rows with the columns just received go north and
south.  So the corners that box stencils need arrive although no link is diagonal.

Source: the two-phase exchange is as in M. Jacquelin, M. Araya-Polo, J. Meng, "Massively Scalable Stencil Algorithm",
arXiv 2204.03775, and in message-passing codes since the 1990s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import weighted_sum

WORD_BYTES = 4
"""A word of the fabric, and a cell of a float32 grid."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a grid lies on the mesh.

    Attributes
    ----------
    height, width : int
        Of the grid, in cells.
    rows, columns : int
        Of the rectangle of elements in use.
    tile_height, tile_width : int
        Cells of one element, without halo.
    radius : int
        Cells of halo on each side.
    boundary : str
    """

    height: int
    width: int
    rows: int
    columns: int
    tile_height: int
    tile_width: int
    radius: int
    boundary: str

    @property
    def elements(self) -> int:
        """Return the elements in use."""
        return self.rows * self.columns

    @property
    def padded_rows(self) -> int:
        """Return the rows of cells that only fill the last tiles."""
        return self.rows * self.tile_height - self.height

    @property
    def padded_columns(self) -> int:
        """Return the columns of cells that only fill the last tiles."""
        return self.columns * self.tile_width - self.width

    @property
    def tile_bytes(self) -> int:
        """Return what an element stores for its tile: twice, each with its halo."""
        return tile_bytes(self.tile_height, self.tile_width, self.radius)

    def neighbours(self, along: str) -> int:
        """Return how many neighbours the busiest element sends to along ``"rows"`` or ``"columns"``: 0, 1 or 2."""
        count = self.rows if along == "rows" else self.columns
        # On a ring of two, both edges lead to the same neighbour, and both are sent.
        return (2 if count > 1 else 0) if self.boundary == "periodic" else min(count - 1, 2)

    def words(self) -> tuple[int, int]:
        """Return the words that one iteration sends over the mesh: in the first phase and in the second."""
        pairs = [count if self.boundary == "periodic" and count > 1 else count - 1 for count in self.mesh]
        across = 2 * self.tile_height * self.radius
        down = 2 * (self.tile_width + 2 * self.radius) * self.radius
        return self.rows * pairs[1] * across, self.columns * pairs[0] * down

    @property
    def mesh(self) -> tuple[int, int]:
        """Return rows and columns of elements."""
        return self.rows, self.columns

    def describe(self) -> str:
        """Return one sentence for people, which states the padding where there is any."""
        text = (
            f"{self.height:,} x {self.width:,} cells on {self.rows:,} x {self.columns:,} elements, "
            f"{self.tile_height} x {self.tile_width} each, {self.tile_bytes:,} bytes"
        )
        if self.padded_rows or self.padded_columns:
            text += f"; the last tiles are filled up by {self.padded_rows} rows and {self.padded_columns} columns"
        return text


def tile_bytes(height: int, width: int, radius: int) -> int:
    """Return the bytes of two copies of a float32 tile with halo."""
    return 2 * WORD_BYTES * (height + 2 * radius) * (width + 2 * radius)


class Traffic(NamedTuple):
    """Words that crossed the mesh."""

    first_words: int
    """Columns, east and west."""
    second_words: int
    """Rows with corners, north and south."""

    @property
    def words(self) -> int:
        """Return all of them."""
        return self.first_words + self.second_words


def scatter(grid: NDArray[Any], tiling: Tiling) -> NDArray[Any]:
    """Return the tiles of a grid, halos still empty.

    Parameters
    ----------
    grid : ndarray, shape (height, width)
    tiling : Tiling

    Returns
    -------
    ndarray, shape (rows, columns, tile_height + 2 radius, tile_width + 2 radius)
    """
    full = np.zeros((tiling.rows * tiling.tile_height, tiling.columns * tiling.tile_width), grid.dtype)
    full[: tiling.height, : tiling.width] = grid
    radius = tiling.radius
    tiles = np.zeros(
        (tiling.rows, tiling.columns, tiling.tile_height + 2 * radius, tiling.tile_width + 2 * radius), grid.dtype
    )
    _inside(tiles, radius)[...] = full.reshape(
        tiling.rows, tiling.tile_height, tiling.columns, tiling.tile_width
    ).swapaxes(1, 2)
    return tiles


def gather(tiles: NDArray[Any], tiling: Tiling) -> NDArray[Any]:
    """Return the grid that lies in the tiles, shape (height, width); halos and padding are left out."""
    inside = _inside(tiles, tiling.radius).swapaxes(1, 2)
    full = inside.reshape(tiling.rows * tiling.tile_height, tiling.columns * tiling.tile_width)
    return full[: tiling.height, : tiling.width].copy()


def may_change(tiling: Tiling) -> NDArray[np.bool_]:
    """Return which cells a sweep replaces, tile by tile, shape (rows, columns, tile_height, tile_width).

    A fixed rim and padding never change.
    """
    margin = tiling.radius if tiling.boundary == "dirichlet" else 0
    rows = np.arange(tiling.rows * tiling.tile_height)
    columns = np.arange(tiling.columns * tiling.tile_width)
    down = (rows >= margin) & (rows < tiling.height - margin)
    across = (columns >= margin) & (columns < tiling.width - margin)
    return (
        (down[:, None] & across[None, :])
        .reshape(tiling.rows, tiling.tile_height, tiling.columns, tiling.tile_width)
        .swapaxes(1, 2)
    )


def exchange_columns(tiles: NDArray[Any], tiling: Tiling) -> int:
    """Fill the halos to the west and east from the neighbours' cells, in place; return the words sent."""
    if not tiling.radius:
        return 0
    # With both axes of cells swapped, columns are rows.
    return _exchange(tiles.swapaxes(0, 1).swapaxes(2, 3), tiling.radius, tiling.boundary, tiling.radius)


def exchange_rows(tiles: NDArray[Any], tiling: Tiling) -> int:
    """Fill the halos to the north and south, corners included, in place; return the words sent."""
    return _exchange(tiles, tiling.radius, tiling.boundary, 0) if tiling.radius else 0


def _exchange(tiles: NDArray[Any], radius: int, boundary: str, skip: int) -> int:
    """Exchange along the first axis of elements and of cells, without ``skip`` cells at both ends of the other."""
    along = slice(skip, tiles.shape[3] - skip)
    height = tiles.shape[2] - 2 * radius
    first, last = tiles[:, :, radius : 2 * radius, along], tiles[:, :, height : height + radius, along]
    before, after = tiles[:, :, :radius, along], tiles[:, :, height + radius :, along]
    before[1:] = last[:-1]
    after[:-1] = first[1:]
    words = last[:-1].size + first[1:].size
    if boundary == "periodic":
        before[:1], after[-1:] = last[-1:], first[:1]
        if len(tiles) > 1:
            words += last[-1:].size + first[:1].size
    elif boundary == "reflect":
        before[:1], after[-1:] = first[:1, :, ::-1], last[-1:, :, ::-1]
    return int(words)


def interior_sum(tiles: NDArray[Any], pattern: Stencil, radius: int) -> NDArray[Any] | None:
    """Return the sums of the cells that need no halo; None where a tile has none such."""
    inside = _inside(tiles, radius)
    if min(inside.shape[2:]) <= 2 * radius:
        return None
    return weighted_sum(inside, pattern)


def rim_sums(tiles: NDArray[Any], pattern: Stencil, radius: int, out: NDArray[Any]) -> None:
    """Write the sums of the cells within ``radius`` of a tile's edge into ``out``: two rows, then two columns."""
    height, width = out.shape[2:]
    out[:, :, :radius] = weighted_sum(tiles[:, :, : 3 * radius], pattern)
    out[:, :, height - radius :] = weighted_sum(tiles[:, :, height - radius :], pattern)
    between = tiles[:, :, radius : height + radius]
    out[:, :, radius : height - radius, :radius] = weighted_sum(between[..., : 3 * radius], pattern)
    out[:, :, radius : height - radius, width - radius :] = weighted_sum(between[..., width - radius :], pattern)


def _inside(tiles: NDArray[Any], radius: int) -> NDArray[Any]:
    return tiles[:, :, radius : tiles.shape[2] - radius, radius : tiles.shape[3] - radius]


def store(tiles: NDArray[Any], sums: NDArray[Any], changing: NDArray[np.bool_], radius: int) -> None:
    """Put the sums into the tiles where cells may change."""
    np.copyto(_inside(tiles, radius), sums, where=changing)


def step(tiles: NDArray[Any], pattern: Stencil, tiling: Tiling, changing: NDArray[np.bool_], overlap: bool) -> Traffic:
    """Take one sweep on the whole mesh, in place, and return what crossed it.

    Parameters
    ----------
    tiles : ndarray, shape (rows, columns, tile_height + 2 radius, tile_width + 2 radius)
    pattern : Stencil
    tiling : Tiling
    changing : ndarray of bool, shape (rows, columns, tile_height, tile_width)
    overlap : bool
        Whether the cells that need no halo are summed before the halos arrive.
    """
    radius = tiling.radius
    early = interior_sum(tiles, pattern, radius) if overlap and radius else None
    traffic = Traffic(exchange_columns(tiles, tiling), exchange_rows(tiles, tiling))
    if early is None:
        sums = weighted_sum(tiles, pattern)
    else:
        sums = np.empty(changing.shape, tiles.dtype)
        sums[:, :, radius:-radius, radius:-radius] = early
        rim_sums(tiles, pattern, radius, sums)
    store(tiles, sums, changing, radius)
    return traffic
