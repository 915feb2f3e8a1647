"""The mapped program of a wafer by two processes that share nothing but the halo between them.

Each process holds half of the mesh's rows of elements and sweeps them; the rows of cells at the cut go through shared
memory, in the second phase of the exchange, as every other row goes to a neighbour.  It is a second execution of the
same program, which shows that no tile reads what was not sent to it.

Source: as :mod:`~wavetank.kernels.stencils.wafer`.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.stencils.pattern import Stencil, check_grid, check_steps
from wavetank.kernels.stencils.reference import weighted_sum
from wavetank.kernels.stencils.wafer import WaferStencil
from wavetank.kernels.stencils.wafer_tiles import (
    Tiling,
    exchange_columns,
    exchange_rows,
    gather,
    may_change,
    scatter,
    store,
)

_PATIENCE_S = 120.0


def sweep_in_two_processes(
    machine: WaferStencil, grid: NDArray[Any], pattern: Stencil, steps: int = 1, *, boundary: str = "dirichlet"
) -> NDArray[Any]:
    """Return the grid after ``steps`` sweeps, each half of the mesh in a process of its own.

    Parameters
    ----------
    machine : WaferStencil
    grid : ndarray, shape (height, width)
        Not modified.
    pattern : Stencil
    steps : int
    boundary : str
        ``dirichlet`` or ``reflect``.

    Raises
    ------
    BadValueError
        If the edges are joined, or the mesh has a single row of elements.
    WavetankError
        If a process ends early or does not answer within two minutes.
    """
    grid = np.asarray(grid)
    check_grid(grid, pattern, boundary)
    if boundary == "periodic":
        raise BadValueError("Two processes share one cut, and joined edges have two.", given=boundary, where="boundary")
    steps = check_steps(steps)
    tiling = machine.plan(grid.shape[0], grid.shape[1], pattern, boundary=boundary)
    if tiling.rows < 2:
        raise BadValueError("A mesh of one row of elements cannot be shared.", given=tiling.describe())
    tiles, changing = scatter(grid, tiling), may_change(tiling)
    cut = tiling.rows // 2
    row = tiling.radius * tiling.columns * (tiling.tile_width + 2 * tiling.radius)
    # The first half of the buffer is for the rows that go south, the second for those that go north.
    halo_bytes = max(2 * row * grid.itemsize, 1)
    context = multiprocessing.get_context("spawn")
    halos = SharedMemory(create=True, size=halo_bytes)
    shared = SharedMemory(create=True, size=tiles.nbytes)
    try:
        board: NDArray[Any] = np.ndarray(tiles.shape, tiles.dtype, shared.buf)
        board[...] = tiles
        barrier = context.Barrier(2)
        workers = [
            context.Process(
                target=_half,
                args=(halos.name, shared.name, barrier, tiling, pattern, steps, tiles.dtype.str, changing, cut, south),
                daemon=True,
            )
            for south in (False, True)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(_PATIENCE_S)
        if any(worker.exitcode != 0 for worker in workers):
            codes = [worker.exitcode for worker in workers]
            for worker in workers:
                worker.kill()
            raise WavetankError("A process that sweeps half of a mesh did not end well.", given=f"exit codes {codes}")
        result = gather(board, tiling)
        del board
        return result
    finally:
        for memory in (halos, shared):
            memory.close()
            memory.unlink()


def _half(
    halos_name: str,
    shared_name: str,
    barrier: Any,
    tiling: Tiling,
    pattern: Stencil,
    steps: int,
    dtype: str,
    changing: NDArray[np.bool_],
    cut: int,
    south: bool,
) -> None:
    """Sweep the northern or the southern rows of elements; tiles are copied in, swept and copied back."""
    halos, shared = SharedMemory(halos_name), SharedMemory(shared_name)
    radius, columns = tiling.radius, tiling.columns
    shape = (tiling.rows, columns, tiling.tile_height + 2 * radius, tiling.tile_width + 2 * radius)
    board: NDArray[Any] = np.ndarray(shape, dtype, shared.buf)
    mine = slice(cut, None) if south else slice(0, cut)
    tiles = board[mine].copy()
    post: NDArray[Any] = np.ndarray((2, columns, radius, shape[3]), dtype, halos.buf)
    for _ in range(steps):
        exchange_columns(tiles, tiling)
        exchange_rows(tiles, tiling)
        if radius:
            if south:
                post[1] = tiles[0, :, radius : 2 * radius]
            else:
                post[0] = tiles[-1, :, -2 * radius : -radius]
            barrier.wait(_PATIENCE_S)
            if south:
                tiles[0, :, :radius] = post[0]
            else:
                tiles[-1, :, -radius:] = post[1]
            # Nobody writes the next halo before both have read this one.
            barrier.wait(_PATIENCE_S)
        store(tiles, weighted_sum(tiles, pattern), changing[mine], radius)
    board[mine] = tiles
    del board, post
    halos.close()
    shared.close()
