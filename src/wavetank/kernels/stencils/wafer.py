"""A stencil on a wafer-scale engine: each processing element keeps a tile and trades halos with its four neighbours.

Memory next to every core and links of one word a cycle take away what limits stencils elsewhere, so that arithmetic
decides.  The mapped program runs here for the whole mesh on real arrays, with the exchange as the machine would do it;
its cycles come out of a closed form that a simulator of routers and words (``wafer_mesh``) confirms on small meshes.

Figures of the machine: 762 x 1176 elements less 7 columns and 2 rows that the host's runtime takes (Cerebras SDK
documentation, compiling for CS-3), 48 KB of memory each, two 32-bit reads and one 32-bit write per cycle, hence one
float32 multiply-add (the same, appendix on SIMD mode); 1.1 GHz.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil, check_grid, check_steps
from wavetank.kernels.stencils.wafer_tiles import (
    WORD_BYTES,
    Tiling,
    Traffic,
    gather,
    may_change,
    scatter,
    step,
    tile_bytes,
)
from wavetank.machine.limits import require_memory
from wavetank.settings import setting


class WaferCycles(NamedTuple):
    """Modelled cycles of one iteration on the slowest element."""

    exchange: int
    """Both phases: starting, words through the ramp, hops."""
    early: int
    """Arithmetic that goes on meanwhile; 0 without overlap."""
    late: int
    """Arithmetic that waits for the halo."""

    @property
    def total(self) -> int:
        """Return the cycles of the iteration."""
        return max(self.exchange, self.early) + self.late


class WaferRun(NamedTuple):
    """What came out of a mapped program."""

    grid: NDArray[Any]
    """Shape and type of the input."""
    tiling: Tiling
    traffic: Traffic
    """Words that crossed the mesh in all sweeps."""
    cycles: int
    """Modelled, of all sweeps."""


@dataclass(frozen=True, kw_only=True)
class WaferStencil:
    """The mapped stencil program and its machine; every figure of the machine can be changed."""

    mesh_rows: int = setting(1174, says="Rows of processing elements", low=1, high=10_000)
    mesh_columns: int = setting(755, says="Columns of processing elements", low=1, high=10_000)
    memory_bytes: int = setting(49_152, unit="bytes", says="Memory per element", low=64, high=1 << 30)
    reserved_bytes: int = setting(
        8_192, unit="bytes", says="Part of an element's memory for code and coefficients", low=0, high=1 << 30
    )
    clock_per_s: float = setting(1.1e9, says="Clock cycles per second", low=1.0, high=1e12)
    multiply_adds_per_cycle: int = setting(1, says="Multiply-adds per cycle of one element in float32", low=1, high=64)
    hop_cycles: int = setting(1, says="Cycles from router to router", low=1, high=1000)
    start_cycles: int = setting(
        10, says="Cycles to start a phase of sending or a vector instruction", low=0, high=100_000
    )
    overlap: bool = setting(False, says="Whether cells that need no halo are computed while halos travel")

    @property
    def elements(self) -> int:
        """Return the processing elements of the mesh."""
        return self.mesh_rows * self.mesh_columns

    @property
    def peak_flops_per_s(self) -> float:
        """Return multiplications and additions of the whole mesh."""
        return 2.0 * self.multiply_adds_per_cycle * self.elements * self.clock_per_s

    @property
    def memory_bytes_per_s(self) -> float:
        """Return what all elements read and write: two words and one for every multiply-add."""
        return 3.0 * WORD_BYTES * self.multiply_adds_per_cycle * self.elements * self.clock_per_s

    def largest_side(self, radius: int) -> int:
        """Return the side of the largest square tile that fits an element; 0 when none does."""
        side = 0
        while tile_bytes(side + 1, side + 1, radius) <= self.memory_bytes - self.reserved_bytes:
            side += 1
        return side

    def largest_grid(self, pattern: Stencil) -> tuple[int, int]:
        """Return height and width of the largest grid cut into square tiles."""
        side = self.largest_side(pattern.radius)
        return side * self.mesh_rows, side * self.mesh_columns

    def plan(
        self,
        height: int,
        width: int,
        pattern: Stencil,
        *,
        boundary: str = "dirichlet",
        tile: tuple[int, int] | None = None,
    ) -> Tiling:
        """Cut a grid into tiles, as small as the mesh allows, since only the largest tile decides.

        Parameters
        ----------
        height, width : int
            Of the grid, in cells.
        pattern : Stencil
        boundary : str
            ``dirichlet``, ``periodic`` or ``reflect``.
        tile : (int, int), optional
            Height and width of the tiles; chosen by default.

        Raises
        ------
        BadValueError
            If a tile does not fit an element's memory, is narrower than the radius, needs more elements than there
            are, or would have to be filled up where edges are joined or mirrored.
        """
        radius, least = pattern.radius, max(pattern.radius, 1)
        if tile is None:
            exact = boundary != "dirichlet"
            tile = (
                _tile_side(height, self.mesh_rows, least, exact),
                _tile_side(width, self.mesh_columns, least, exact),
            )
        self._check_tile(tile, radius, (height, width), boundary)
        return Tiling(
            height=height,
            width=width,
            rows=-(-height // tile[0]),
            columns=-(-width // tile[1]),
            tile_height=tile[0],
            tile_width=tile[1],
            radius=radius,
            boundary=boundary,
        )

    def cycles(self, tiling: Tiling, pattern: Stencil) -> WaferCycles:
        """Return the cycles of one iteration in closed form.

        A phase takes its start, one cycle for each word that the busiest element sends through its ramp, and the hops
        of the last word.  A vector instruction takes its start and one cycle for each group of multiply-adds.
        """
        radius, hops = tiling.radius, 2 if tiling.boundary == "periodic" else 1
        exchange = 0
        for along, words in (
            ("columns", tiling.tile_height * radius),
            ("rows", (tiling.tile_width + 2 * radius) * radius),
        ):
            sends = tiling.neighbours(along) if radius else 0
            exchange += (self.start_cycles + sends * words + hops * self.hop_cycles) if sends else 0
        height, width = tiling.tile_height, tiling.tile_width
        if not (self.overlap and radius and min(height, width) > 2 * radius):
            return WaferCycles(exchange, 0, self._sum_cycles(height, width, pattern))
        interior = self._sum_cycles(height - 2 * radius, width - 2 * radius, pattern)
        rim = 2 * self._sum_cycles(radius, width, pattern) + 2 * self._sum_cycles(height - 2 * radius, radius, pattern)
        return WaferCycles(exchange, interior, rim)

    def modelled_s(self, tiling: Tiling, pattern: Stencil, steps: int = 1) -> float:
        """Return the modelled seconds of ``steps`` sweeps, data already on the wafer."""
        return steps * self.cycles(tiling, pattern).total / self.clock_per_s

    def modelled_updates_per_s(self, tiling: Tiling, pattern: Stencil) -> float:
        """Return the cells of the grid that are updated a second, padding left out."""
        return tiling.height * tiling.width / self.modelled_s(tiling, pattern)

    def bound_updates_per_s(self, pattern: Stencil) -> float:
        """Return the updates a second when every element computes all the time.

        Memory and arithmetic bind alike: each multiply-add reads two words and writes one.
        """
        return self.elements * self.clock_per_s * self.multiply_adds_per_cycle / pattern.points

    def run(self, grid: NDArray[Any], pattern: Stencil, steps: int = 1, *, boundary: str = "dirichlet") -> WaferRun:
        """Execute the mapped program for the whole mesh on arrays.

        Parameters
        ----------
        grid : ndarray, shape (height, width), float32 or float64
            Not modified.  The machine's words are float32; float64 is for comparing.  NaN and infinities spread as in
            the plain sweep.
        pattern : Stencil
        steps : int
        boundary : str

        Raises
        ------
        BadValueError
            If the grid cannot be swept or does not fit the wafer; see :meth:`plan`.
        """
        grid = np.asarray(grid)
        check_grid(grid, pattern, boundary)
        steps = check_steps(steps)
        tiling = self.plan(grid.shape[0], grid.shape[1], pattern, boundary=boundary)
        require_memory(
            4 * grid.itemsize * tiling.elements * (tiling.tile_bytes // (2 * WORD_BYTES)),
            f"Holding {tiling.elements:,} tiles of a wafer",
        )
        tiles, changing = scatter(grid, tiling), may_change(tiling)
        sent = Traffic(0, 0)
        for _ in range(steps):
            words = step(tiles, pattern, tiling, changing, self.overlap)
            sent = Traffic(sent.first_words + words.first_words, sent.second_words + words.second_words)
        return WaferRun(gather(tiles, tiling), tiling, sent, steps * self.cycles(tiling, pattern).total)

    def sweep(
        self, grid: NDArray[Any], pattern: Stencil, steps: int = 1, *, boundary: str = "dirichlet"
    ) -> NDArray[Any]:
        """Return the grid after ``steps`` sweeps of the mapped program; see :meth:`run`."""
        return self.run(grid, pattern, steps, boundary=boundary).grid

    def _sum_cycles(self, height: int, width: int, pattern: Stencil) -> int:
        return pattern.points * (self.start_cycles + -(-height * width // self.multiply_adds_per_cycle))

    def _check_tile(self, tile: tuple[int, int], radius: int, shape: tuple[int, int], boundary: str) -> None:
        height, width = tile
        if min(height, width) < max(radius, 1):
            raise BadValueError(
                "A tile is narrower than the stencil's radius, so that a halo would come from beyond the neighbour.",
                given=f"tiles of {height} x {width}, radius {radius}",
                allowed=f"sides of at least {max(radius, 1)}",
                where="tile",
            )
        needs, has = tile_bytes(height, width, radius), self.memory_bytes - self.reserved_bytes
        if needs > has:
            side = self.largest_side(radius)
            raise BadValueError(
                "The tiles do not fit the memory of a processing element, which holds each twice, with its halo.",
                given=f"tiles of {height} x {width} with radius {radius}: {needs:,} bytes",
                allowed=f"{max(has, 0):,} bytes ({self.memory_bytes:,} less {self.reserved_bytes:,} for code)",
                where=f"a grid of {shape[0]:,} x {shape[1]:,} on {self.mesh_rows:,} x {self.mesh_columns:,} elements",
                hint=f"square tiles have at most {side} x {side} cells, "
                f"so the grid at most {side * self.mesh_rows:,} x {side * self.mesh_columns:,}",
            )
        rows, columns = -(-shape[0] // height), -(-shape[1] // width)
        if rows > self.mesh_rows or columns > self.mesh_columns:
            raise BadValueError(
                "These tiles need more processing elements than the mesh has.",
                given=f"{rows:,} x {columns:,} elements for tiles of {height} x {width}",
                allowed=f"{self.mesh_rows:,} x {self.mesh_columns:,} elements",
                where="tile",
                hint="larger tiles",
            )
        if boundary != "dirichlet" and (shape[0] % height or shape[1] % width):
            raise BadValueError(
                f"With {boundary} edges the last tiles cannot be filled up.",
                given=f"{shape[0]:,} x {shape[1]:,} cells in tiles of {height} x {width}",
                allowed="tiles that divide the grid",
                where="tile",
            )


def _tile_side(cells: int, most: int, least: int, exact: bool) -> int:
    """Return the shortest side that needs at most ``most`` tiles; one that divides ``cells`` where ``exact``."""
    side = max(least, -(-cells // most))
    while exact and cells % side:
        side += 1
    return side
