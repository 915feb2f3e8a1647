"""A stencil on a card of matrix tiles behind a PCIe link: what the mapping computes, and where time and energy go.

The kernel is a small part.  The host cuts, rounds and shuffles the grid into tiles, the link carries the tiles there
and back for every sweep, and starting the card takes longer than many sweeps.  So the account has six entries, of which
the host's two can be measured anywhere and the rest follow from a model whose every figure can be changed.

Figures of the card: Tenstorrent, Wormhole n150 data sheet (72 Tensix cores at 1 GHz, about 1.4 MB of memory each,
288 GB/s, PCIe 4.0 x16, 160 W); TT-Metalium documentation, "Compute Engines and Data Flow within Tensix" (8 x 16 by
16 x 16 products per cycle).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.pattern import Stencil, check_grid, check_steps
from wavetank.kernels.stencils.tiles import (
    BFLOAT16_BYTES,
    FACE,
    TILE,
    TILE_BYTES,
    pack_rows_of_neighbours,
    pack_shifted,
    tiles_along,
    unpack_first_columns,
    unpack_tiles,
)
from wavetank.kernels.stencils.wormhole_mappings import (
    MAPPINGS,
    Arithmetic,
    band_tiles,
    offsets_of,
    resident_sweeps,
)
from wavetank.machine.limits import require_memory
from wavetank.machine.thread_pool import cuts
from wavetank.machine.threads import allowed_threads, together
from wavetank.settings import setting

# A thread's part of the buffer, within a second-level cache.
_STAGE_BYTES = 1 << 20
_BAND_PRODUCTS = 6


class LinkBytes(NamedTuple):
    """What crosses the link, in bytes."""

    once_sent: int
    """Matrices of weights, and the grid where it stays."""
    sweep_sent: int
    """To the card for one sweep."""
    sweep_received: int
    """From the card for one sweep."""
    once_received: int
    """The grid at the end, where it stayed."""

    def total(self, steps: int) -> int:
        """Return the bytes of a run."""
        return self.once_sent + self.once_received + steps * (self.sweep_sent + self.sweep_received)


class Breakdown(NamedTuple):
    """Where the seconds of a run go."""

    start_s: float
    """Starting the card."""
    pack_s: float
    """Host: shifting, rounding, tilising."""
    send_s: float
    """Link, to the card."""
    kernel_s: float
    """Card."""
    receive_s: float
    """Link, back."""
    unpack_s: float
    """Host: untilising."""

    @property
    def total_s(self) -> float:
        """Return all of them; nothing overlaps."""
        return sum(self)

    @property
    def host_s(self) -> float:
        """Return what the host's cores are busy with."""
        return self.pack_s + self.unpack_s


@dataclass(frozen=True, kw_only=True)
class WormholeStencil:
    """A mapping of stencils and the card it runs on; every figure of the card can be changed."""

    mapping: str = setting(
        "axpy", says="How the stencil becomes tiles", choices=("axpy", "matmul", "banded", "resident")
    )
    accumulate: str = setting("fp32", says="Type of the sums on the card", choices=("fp32", "bf16", "exact"))
    cores: int = setting(72, says="Number of Tensix cores", low=1, high=100_000)
    clock_per_s: float = setting(1.0e9, says="Clock cycles per second", low=1.0, high=1e12)
    core_memory_bytes: int = setting(1_400_000, unit="bytes", says="Memory per core", low=1, high=1 << 40)
    memory_bytes_per_s: float = setting(
        288e9, unit="bytes/s", says="Bandwidth of the card's memory", low=1.0, high=1e15
    )
    elementwise_cycles: int = setting(
        32, says="Cycles to multiply and add a tile element by element", low=1, high=1 << 20
    )
    product_cycles: int = setting(64, says="Cycles to multiply two tiles as matrices", low=1, high=1 << 20)
    neighbour_bytes_per_cycle: int = setting(32, says="Bytes per cycle between neighbouring cores", low=1, high=1 << 20)
    link_bytes_per_s: float = setting(
        20e9, unit="bytes/s", says="Bandwidth of PCIe in each direction", low=1.0, high=float("inf")
    )
    start_s: float = setting(1.5, unit="s", says="Time to start the card", low=0.0, high=1e6)
    card_idle_w: float = setting(30.0, unit="W", says="Power of the waiting card", low=0.0, high=1e6)
    card_active_w: float = setting(160.0, unit="W", says="Power of the computing card", low=0.0, high=1e6)
    host_idle_w: float = setting(70.0, unit="W", says="Power of the waiting processor", low=0.0, high=1e6)
    host_active_w: float = setting(275.0, unit="W", says="Power of the computing processor", low=0.0, high=1e6)

    def sweep(
        self, grid: NDArray[Any], pattern: Stencil, steps: int = 1, *, boundary: str = "dirichlet"
    ) -> NDArray[Any]:
        """Return the grid after ``steps`` sweeps as the card would compute them.

        Parameters
        ----------
        grid : ndarray, shape (height, width), float32
            Not modified.  Sides need not be multiples of 32: the last tiles are filled up.  With
            ``accumulate="exact"`` float64 as well.
        pattern : Stencil
        steps : int
        boundary : str
            ``dirichlet`` only.

        Raises
        ------
        BadValueError
            For a grid of another type or boundary; for a stencil or values that the mapping cannot take.
        """
        grid = np.ascontiguousarray(grid)
        check_grid(grid, pattern, boundary)
        steps = check_steps(steps)
        self._check(grid, pattern, boundary)
        arithmetic = Arithmetic(self.accumulate)
        if self.mapping == "resident":
            return resident_sweeps(grid, pattern, steps, arithmetic, self.cores)[0]
        for _ in range(steps):
            grid = MAPPINGS[self.mapping](grid, pattern, arithmetic)
        return grid.copy() if not steps else grid

    def link_bytes(self, height: int, width: int, pattern: Stencil) -> LinkBytes:
        """Return what crosses the link for a grid of that size, whole tiles counted."""
        grid = tiles_along(height) * tiles_along(width) * TILE_BYTES
        if self.mapping == "axpy":
            return LinkBytes(0, pattern.points * grid, grid, 0)
        if self.mapping == "matmul":
            parts = tiles_along(pattern.points)
            blocks = height * tiles_along(width) * TILE_BYTES
            return LinkBytes(parts * TILE_BYTES, parts * blocks, blocks, 0)
        bands = _BAND_PRODUCTS * TILE_BYTES
        if self.mapping == "banded":
            return LinkBytes(bands, grid, grid, 0)
        return LinkBytes(bands + grid, 0, 0, grid)

    def kernel_s(self, height: int, width: int, pattern: Stencil) -> float:
        """Return the modelled seconds of one sweep on the card: arithmetic or memory, whichever takes longer."""
        rows, columns = tiles_along(height), tiles_along(width)
        tiles, link = rows * columns, self.link_bytes(height, width, pattern)
        exchange = 0.0
        if self.mapping == "axpy":
            cycles, moved = -(-tiles // self.cores) * pattern.points * self.elementwise_cycles, sum(link[1:3])
        elif self.mapping == "matmul":
            products = height * columns * tiles_along(pattern.points)
            cycles, moved = -(-products // self.cores) * self.product_cycles, sum(link[1:3])
        else:
            cycles, moved = -(-tiles // self.cores) * _BAND_PRODUCTS * self.product_cycles, 2 * tiles * TILE_BYTES
        if self.mapping == "resident":
            # Stripes of whole tile rows, as they are executed.
            stripes = min(self.cores, rows)
            cycles = -(-rows // stripes) * columns * _BAND_PRODUCTS * self.product_cycles
            if 2 * -(-rows // stripes) * columns * TILE_BYTES <= self.core_memory_bytes:
                moved = 0
            if stripes > 1:
                sent = 2 * pattern.radius * columns * TILE * BFLOAT16_BYTES
                exchange = sent / self.neighbour_bytes_per_cycle / self.clock_per_s
        return max(cycles / self.clock_per_s, moved / self.memory_bytes_per_s) + exchange

    def breakdown(
        self, height: int, width: int, pattern: Stencil, steps: int, *, pack_s: float, unpack_s: float
    ) -> Breakdown:
        """Return where the seconds of a run go.

        Parameters
        ----------
        height, width : int
        pattern : Stencil
        steps : int
        pack_s, unpack_s : float
            The host's seconds to make the tiles of one sweep and to read its result; measured, see :meth:`host`.
        """
        link = self.link_bytes(height, width, pattern)
        turns = 1 if self.mapping == "resident" else steps
        return Breakdown(
            start_s=self.start_s,
            pack_s=turns * pack_s,
            send_s=(link.once_sent + steps * link.sweep_sent) / self.link_bytes_per_s,
            kernel_s=steps * self.kernel_s(height, width, pattern),
            receive_s=(link.once_received + steps * link.sweep_received) / self.link_bytes_per_s,
            unpack_s=turns * unpack_s,
        )

    def energy_joules(self, spent: Breakdown) -> float:
        """Return the energy of card and processor over a run, both idle while the other works."""
        idle = (self.card_idle_w + self.host_idle_w) * spent.total_s
        host = (self.host_active_w - self.host_idle_w) * spent.host_s
        return idle + host + (self.card_active_w - self.card_idle_w) * spent.kernel_s

    def card_joules(self, spent: Breakdown) -> float:
        """Return the energy of the card alone over a run."""
        return self.card_idle_w * spent.total_s + (self.card_active_w - self.card_idle_w) * spent.kernel_s

    def processor_joules(self, busy_s: float) -> float:
        """Return the energy of a processor that does the sweeps itself, without a card."""
        return self.host_active_w * busy_s

    def host(self, grid: NDArray[Any], pattern: Stencil, threads: int = 0) -> HostPart:
        """Return the host's part of one sweep on this grid, ready to be timed.

        Parameters
        ----------
        grid : ndarray of float32, shape (height, width)
        pattern : Stencil
        threads : int
            All cores by default.
        """
        grid = np.ascontiguousarray(grid)
        check_grid(grid, pattern, "dirichlet")
        self._check(grid, pattern, "dirichlet")
        threads = allowed_threads(threads or None)
        require_memory(grid.nbytes + threads * 8 * _STAGE_BYTES, "Preparing tiles for a card")
        if self.mapping == "matmul":
            return _rows_part(grid, pattern, threads)
        return _tiles_part(grid, pattern, threads, shifted=self.mapping == "axpy")

    def _check(self, grid: NDArray[Any], pattern: Stencil, boundary: str) -> None:
        if boundary != "dirichlet":
            raise BadValueError(
                "The card's mappings keep a fixed rim.", given=boundary, allowed="dirichlet", where="boundary"
            )
        if grid.dtype != np.dtype(np.float32) and self.accumulate != "exact":
            raise BadValueError(
                "The card takes bfloat16, which is rounded from float32.",
                given=str(grid.dtype),
                allowed="float32",
                where="grid",
                hint="grid.astype(np.float32), or accumulate=exact to check the mapping",
            )
        if self.mapping in ("banded", "resident"):
            band_tiles(pattern, grid.dtype, Arithmetic("exact"))
            if not np.isfinite(grid).all():
                row, column = np.argwhere(~np.isfinite(grid))[0]
                raise BadValueError(
                    "A product with a banded matrix would spread a NaN or an infinity over whole tiles.",
                    given=grid[row, column],
                    where=f"grid, row {row}, column {column}",
                    hint="mapping=axpy or mapping=matmul",
                )


@dataclass(frozen=True)
class HostPart:
    """The host's part of a sweep: two calls to time."""

    pack: Callable[[], object]
    """Makes all tiles, a piece at a time in a buffer that stays in cache."""
    unpack: Callable[[], object]
    """Turns the card's tiles back into a grid."""


def _tiles_part(grid: NDArray[np.float32], pattern: Stencil, threads: int, *, shifted: bool) -> HostPart:
    """Return the part for tiles of the grid itself, once or for each neighbour."""
    offsets = offsets_of(pattern) if shifted else np.zeros((1, 2), np.int64)
    rows, columns = tiles_along(grid.shape[0]), tiles_along(grid.shape[1])
    bits, found = grid.view(np.uint32), grid.copy().view(np.uint32)
    return _in_pieces(
        rows, len(offsets) * columns, threads,
        lambda count: np.zeros((len(offsets), count, columns, 4, FACE, FACE), np.uint16),
        lambda stage, top, bottom: pack_shifted(bits, offsets, top, bottom, stage[:, : bottom - top]),
        lambda stage, top, bottom: unpack_tiles(stage[0, : bottom - top], pattern.radius, top, bottom, found),
    )  # fmt: skip


def _rows_part(grid: NDArray[np.float32], pattern: Stencil, threads: int) -> HostPart:
    """Return the part for cells by neighbours."""
    offsets = offsets_of(pattern)
    height, blocks, parts_of_row = grid.shape[0], tiles_along(grid.shape[1]), tiles_along(pattern.points)
    bits, found = grid.view(np.uint32), grid.copy().view(np.uint32)
    return _in_pieces(
        height, blocks * parts_of_row, threads,
        lambda count: np.zeros((count, blocks, parts_of_row, 4, FACE, FACE), np.uint16),
        lambda stage, top, bottom: pack_rows_of_neighbours(bits, offsets, top, bottom, stage[: bottom - top]),
        lambda stage, top, bottom: unpack_first_columns(
            stage[: bottom - top, :, 0], pattern.radius, top, bottom, found
        ),
    )  # fmt: skip


def _in_pieces(
    rows: int, tiles_of_row: int, threads: int, stage: Callable[[int], NDArray[np.uint16]],
    pack: Callable[[NDArray[np.uint16], int, int], None], unpack: Callable[[NDArray[np.uint16], int, int], None],
) -> HostPart:  # fmt: skip
    """Return the two calls, each of which takes some rows at a time through a buffer for each thread.

    Parameters
    ----------
    rows, tiles_of_row, threads : int
    stage : callable
        Makes a buffer for a number of rows.
    pack, unpack : callable
        ``pack(buffer, first, last)`` does these rows.
    """
    at_once = max(1, min(rows, _STAGE_BYTES // (tiles_of_row * TILE_BYTES)))
    stages = [stage(at_once) for _ in range(threads)]
    parts = [(number, *cut) for number, cut in enumerate(cuts(rows, threads))]

    def run(work: Callable[[NDArray[np.uint16], int, int], None]) -> None:
        def part(number: int, first: int, last: int) -> None:
            for top in range(first, last, at_once):
                work(stages[number], top, min(top + at_once, last))

        together(part, parts, threads)

    return HostPart(lambda: run(pack), lambda: run(unpack))
