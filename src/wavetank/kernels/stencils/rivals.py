"""What people use for a stencil today, behind one interface, and the copy that bounds a single sweep.

All of them keep the outermost ``radius`` cells and alternate between two grids.  What belongs to a library's own
container or to its compiler is made by ``prepare`` and not timed.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from wavetank.errors import BadValueError, missing_extra
from wavetank.kernels.stencils.pattern import Stencil, check_grid
from wavetank.kernels.stencils.reference import alternate, inner, keep_rim
from wavetank.kernels.stencils.row_blocks import column_and_row
from wavetank.kernels.stencils.sweep import aligned_grid
from wavetank.kernels.stencils.temporal import stream_row
from wavetank.machine.cuda import require_torch
from wavetank.machine.thread_pool import cuts, let_idle_threads_sleep
from wavetank.machine.threads import allowed_threads, together
from wavetank.sim.compiled import compiled

# Cells of a row layout at a time: 2 MiB of float32.
_LAYOUT_CELLS = 1 << 19
# Sweeps that Devito's tuner may use.
_TUNED_STEPS = 40
# More than C's fenv_t has on any system.
_FLOAT_MODE_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class GridCopy:
    """Copies the grid, all threads at once: what a sweep takes that reads and writes every cell once and costs nothing.

    It stands for one sweep whatever the number of steps.
    """

    def prepare(self, grid: NDArray[Any], pattern: Stencil, steps: int, boundary: str) -> Callable[[], NDArray[Any]]:
        """Return the copy."""
        out = aligned_grid(grid.shape, grid.dtype, grid)
        bands = cuts(grid.shape[0], allowed_threads())

        def call() -> NDArray[Any]:
            together(self.band, [(out[top:bottom], grid[top:bottom]) for top, bottom in bands], len(bands))
            return out

        return call

    def band(self, out: NDArray[Any], grid: NDArray[Any]) -> None:
        """Copy a band of rows."""
        np.copyto(out, grid)


@dataclass(frozen=True, kw_only=True)
class GridStream(GridCopy):
    """Copies the grid with stores that pass the caches by, which spares reading what is overwritten."""

    def band(self, out: NDArray[Any], grid: NDArray[Any]) -> None:
        """Copy a band of rows, which are contiguous."""
        stream_row(out.ctypes.data, grid.ctypes.data, grid.nbytes)


@compiled(nogil=True, fastmath={"contract"})
def _triad(out: NDArray[Any], one: NDArray[Any], other: NDArray[Any]) -> None:
    three = out.dtype.type(3)
    for i in range(out.size):
        out[i] = one[i] + three * other[i]


@dataclass(frozen=True, kw_only=True)
class GridTriad:
    """STREAM's triad on two grids: twice the reads of a copy, so two thirds of its time stand for a sweep."""

    def prepare(self, grid: NDArray[Any], pattern: Stencil, steps: int, boundary: str) -> Callable[[], NDArray[Any]]:
        """Return the triad."""
        other = aligned_grid(grid.shape, grid.dtype, grid)
        other[...] = grid
        out = aligned_grid(grid.shape, grid.dtype, other)
        bands = [(top * grid.shape[1], end * grid.shape[1]) for top, end in cuts(grid.shape[0], allowed_threads())]
        flat = [array.reshape(-1) for array in (out, grid, other)]

        def call() -> NDArray[Any]:
            together(_triad, [tuple(array[start:end] for array in flat) for start, end in bands], len(bands))
            return out

        return call


def _check_fixed_rim(grid: NDArray[Any], pattern: Stencil, boundary: str) -> None:
    check_grid(grid, pattern, boundary)
    if boundary != "dirichlet":
        raise BadValueError(
            "The libraries are compared on grids with a fixed rim.", given=boundary, allowed="dirichlet"
        )


@dataclass(frozen=True, kw_only=True)
class NumpySlices:
    """One slice of the grid for each neighbour, multiplied and added up without new arrays."""

    def prepare(self, grid: NDArray[Any], pattern: Stencil, steps: int, boundary: str) -> Callable[[], NDArray[Any]]:
        """Return the call to time.

        Raises
        ------
        BadValueError
            If the grid cannot be swept, or the boundary is not ``dirichlet``.
        """
        _check_fixed_rim(grid, pattern, boundary)
        # Placed as our own results are, so that nobody waits for their own stores.
        first = aligned_grid(grid.shape, grid.dtype, grid)
        pair = (first, aligned_grid(grid.shape, grid.dtype, first))
        for each in pair:
            each[...] = grid
        return partial(alternate, self.sweeper(grid, pattern), grid, pair, steps)

    def sweeper(self, grid: NDArray[Any], pattern: Stencil) -> Callable[[NDArray[Any], NDArray[Any]], None]:
        """Return ``sweep(old, new)``, which writes all but the rim of ``new``."""
        radius = pattern.radius
        product = np.empty_like(inner(grid, radius))
        weights = pattern.coefficients_as(grid.dtype)

        def sweep(old: NDArray[Any], new: NDArray[Any]) -> None:
            total = inner(new, radius)
            for number, (offset, weight) in enumerate(zip(pattern.offsets, weights, strict=True)):
                if number == 0:
                    np.multiply(inner(old, radius, *offset), weight, out=total)
                else:
                    np.multiply(inner(old, radius, *offset), weight, out=product)
                    np.add(total, product, out=total)

        return sweep


@dataclass(frozen=True, kw_only=True)
class ScipyCorrelate(NumpySlices):
    """``scipy.ndimage``, the fastest of its filters for the weights, with one thread; the rim is put back.

    ``uniform_filter`` for a box of equal weights, ``correlate1d`` twice for one that is a column times a row, else
    ``correlate``.  All of them add in float64.
    """

    def sweeper(self, grid: NDArray[Any], pattern: Stencil) -> Callable[[NDArray[Any], NDArray[Any]], None]:
        """Return the sweep."""
        from scipy import ndimage

        weights, factors = pattern.matrix(), column_and_row(pattern)
        side, between, mean = weights.shape[0], np.empty_like(grid), _is_mean(pattern)

        def sweep(old: NDArray[Any], new: NDArray[Any]) -> None:
            if _equal_box(pattern):
                ndimage.uniform_filter(old, side, output=new, mode="nearest")
                if not mean:
                    np.multiply(new, grid.dtype.type(pattern.coefficients[0] * side**2), out=new)
            elif factors is not None:
                ndimage.correlate1d(old, factors[0], axis=0, output=between, mode="nearest")
                ndimage.correlate1d(between, factors[1], axis=1, output=new, mode="nearest")
            else:
                ndimage.correlate(old, weights, output=new, mode="nearest")
            keep_rim(new, grid, pattern.radius)

        return sweep


@dataclass(frozen=True, kw_only=True)
class OpenCV(NumpySlices):
    """OpenCV, the fastest of its filters for the weights, with the threads it takes; the rim is put back.

    ``boxFilter`` for a box of equal weights, ``sepFilter2D`` for one that is a column times a row, else ``filter2D``.
    """

    def sweeper(self, grid: NDArray[Any], pattern: Stencil) -> Callable[[NDArray[Any], NDArray[Any]], None]:
        """Return the sweep."""
        try:
            import cv2
        except ImportError:
            raise missing_extra("cv2", "kernel-peers", needed_for="The system opencv") from None
        cv2.setNumThreads(allowed_threads())
        weights, factors = pattern.matrix().astype(grid.dtype), column_and_row(pattern)
        side, mean = weights.shape[0], _is_mean(pattern)
        border = {"borderType": cv2.BORDER_REPLICATE}

        def sweep(old: NDArray[Any], new: NDArray[Any]) -> None:
            if _equal_box(pattern):
                cv2.boxFilter(old, -1, (side, side), dst=new, normalize=mean, **border)
                if not mean:
                    np.multiply(new, weights[0, 0], out=new)
            elif factors is not None:
                column, row = (factor.astype(grid.dtype) for factor in factors)
                cv2.sepFilter2D(old, -1, row, column, dst=new, **border)
            else:
                cv2.filter2D(old, -1, weights, dst=new, **border)
            keep_rim(new, grid, pattern.radius)

        return sweep


def _equal_box(pattern: Stencil) -> bool:
    """Return whether all cells of a square have one weight."""
    return pattern.shape == "box" and pattern.radius > 0 and len(set(pattern.coefficients)) == 1


def _is_mean(pattern: Stencil) -> bool:
    """Return whether the weights of an equal box add up to one, so that no second pass need scale the mean."""
    return abs(pattern.coefficients[0] * pattern.points - 1.0) < 1e-12


@compiled(nogil=True, fastmath={"contract"})
def _rows_by_terms(
    old: NDArray[Any], new: NDArray[Any], offsets: NDArray[np.int64], weights: NDArray[Any], top: int, bottom: int
) -> None:
    radius = np.abs(offsets).max()
    width = old.shape[1]
    for y in range(top, bottom):
        total = new[y, radius : width - radius]
        for k in range(weights.size):
            start = radius + offsets[k, 1]
            row = old[y + offsets[k, 0], start : start + total.size]
            weight = weights[k]
            if k == 0:
                for x in range(total.size):
                    total[x] = weight * row[x]
            else:
                for x in range(total.size):
                    total[x] += weight * row[x]


@dataclass(frozen=True, kw_only=True)
class NumbaRows(NumpySlices):
    """Compiled loops: for every row, one vectorised pass per neighbour; all threads, a band of rows each."""

    def sweeper(self, grid: NDArray[Any], pattern: Stencil) -> Callable[[NDArray[Any], NDArray[Any]], None]:
        """Return the sweep."""
        offsets = np.array(pattern.offsets)
        weights = pattern.coefficients_as(grid.dtype)
        radius = pattern.radius
        bands = [(top + radius, end + radius) for top, end in cuts(grid.shape[0] - 2 * radius, allowed_threads())]

        def sweep(old: NDArray[Any], new: NDArray[Any]) -> None:
            calls = [(old, new, offsets, weights, top, bottom) for top, bottom in bands]
            together(_rows_by_terms, calls, len(bands))

        return sweep


@dataclass(frozen=True, kw_only=True)
class Im2Row(NumpySlices):
    """A row of neighbours for every cell, times the vector of weights."""

    def sweeper(self, grid: NDArray[Any], pattern: Stencil) -> Callable[[NDArray[Any], NDArray[Any]], None]:
        """Return the sweep."""
        radius = pattern.radius
        height, width = (side - 2 * radius for side in grid.shape)
        rows = max(1, _LAYOUT_CELLS // (width * pattern.points))
        layout = np.empty((rows, width, pattern.points), grid.dtype)
        weights = pattern.coefficients_as(grid.dtype)

        def sweep(old: NDArray[Any], new: NDArray[Any]) -> None:
            shifted = [inner(old, radius, *offset) for offset in pattern.offsets]
            target = inner(new, radius)
            for top in range(0, height, rows):
                count = min(rows, height - top)
                for k, cells in enumerate(shifted):
                    layout[:count, :, k] = cells[top : top + count]
                target[top : top + count] = layout[:count] @ weights

        return sweep


@dataclass(frozen=True, kw_only=True)
class ConvStencilRows(NumpySlices):
    """ConvStencil's layout: n + 1 cells at once from two rows of n squared neighbours, by two triangular products."""

    def sweeper(self, grid: NDArray[Any], pattern: Stencil) -> Callable[[NDArray[Any], NDArray[Any]], None]:
        """Return the sweep."""
        radius = pattern.radius
        side = 2 * radius + 1
        height, width = (cells - 2 * radius for cells in grid.shape)
        groups = -(-width // (side + 1))
        first, second = (tile.astype(grid.dtype) for tile in _tessellation(pattern.matrix()))
        rows = max(1, _LAYOUT_CELLS // (groups * side * side))
        # Columns for whole groups, and for the second half of the last one.
        wide = np.zeros((rows + 2 * radius, groups * (side + 1) + side), grid.dtype)
        down, along = wide.strides
        halves = [
            as_strided(wide[:, skip:], (rows, groups, side, side), (down, along * (side + 1), down, along))
            for skip in (0, side)
        ]
        layout = np.empty((rows, groups, side, side), grid.dtype)
        sums, product = (np.empty((rows * groups, side + 1), grid.dtype) for _ in range(2))

        def sweep(old: NDArray[Any], new: NDArray[Any]) -> None:
            target = inner(new, radius)
            for top in range(0, height, rows):
                count = min(rows, height - top)
                wide[: count + 2 * radius, : grid.shape[1]] = old[top : top + count + 2 * radius]
                cells = count * groups
                for half, weights, place in zip(halves, (first, second), (sums, product), strict=True):
                    layout[:count] = half[:count]
                    np.matmul(layout[:count].reshape(cells, side * side), weights, out=place[:cells])
                np.add(sums[:cells], product[:cells], out=sums[:cells])
                target[top : top + count] = sums[:cells].reshape(count, groups * (side + 1))[:, :width]

        return sweep


def _tessellation(weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the two matrices, shape (n * n, n + 1), that take 2 n columns of n rows to n + 1 neighbouring cells."""
    side = weights.shape[0]
    both = np.zeros((side, 2 * side, side + 1))
    for cell in range(side + 1):
        both[:, cell : cell + side, cell] = weights
    first, second = both[:, :side], both[:, side:]
    return first.reshape(side * side, side + 1), second.reshape(side * side, side + 1)


@dataclass(frozen=True, kw_only=True)
class TorchConv2d(NumpySlices):
    """``torch.nn.functional.conv2d`` of one channel, on all threads that torch takes."""

    def sweeper(self, grid: NDArray[Any], pattern: Stencil) -> Callable[[NDArray[Any], NDArray[Any]], None]:
        """Return the sweep."""
        let_idle_threads_sleep()
        torch = require_torch("The system torch-conv2d")
        radius = pattern.radius
        weights = torch.from_numpy(pattern.matrix().astype(grid.dtype))[None, None]

        def sweep(old: NDArray[Any], new: NDArray[Any]) -> None:
            with torch.inference_mode():
                source = torch.from_numpy(old if old.flags.writeable else old.copy())
                found = torch.nn.functional.conv2d(source[None, None], weights)
                inner(new, radius)[...] = found[0, 0].numpy()

        return sweep


@dataclass(frozen=True, kw_only=True)
class Devito:
    """A Devito operator: C with OpenMP, generated and compiled before the call that is timed."""

    def prepare(self, grid: NDArray[Any], pattern: Stencil, steps: int, boundary: str) -> Callable[[], NDArray[Any]]:
        """Return the operator's run.

        Filling Devito's array with the grid's cells is part of no call: a second call goes on from where the first
        ended, so only the first gives the grid after ``steps`` sweeps; the work is the same.
        """
        _check_fixed_rim(grid, pattern, boundary)
        field, plain, blocked = _devito_operators(grid.shape, str(grid.dtype), pattern)
        radius = pattern.radius
        threads = allowed_threads()
        run = _fastest_devito(plain, blocked, threads)
        for buffer in range(2):
            _devito_cells(field, radius)[buffer] = grid

        def call() -> NDArray[Any]:
            if steps:
                with kept_float_mode():
                    run(steps)
            return np.asarray(_devito_cells(field, radius)[steps % 2])

        return call


def _fastest_devito(plain: Any, blocked: Any, threads: int) -> Callable[[int], object]:
    """Return ``run(steps)`` of the faster operator, blocks as Devito's tuner finds them; the grid's cells are lost."""

    def run_of(operator: Any, given: dict[str, Any]) -> Callable[[int], object]:
        return lambda steps: operator.apply(time_m=0, time_M=steps - 1, nthreads=threads, **given)

    with kept_float_mode():
        blocked.apply(time_m=0, time_M=_TUNED_STEPS - 1, nthreads=threads, autotune="aggressive")
        tuned = [each["tuned"] for each in getattr(blocked, "_state", {}).get("autotuning", ()) if "tuned" in each]
        blocks = {str(name): int(size) for name, size in tuned[-1].items() if name != "nthreads"} if tuned else {}
        runs = [run_of(plain, {}), run_of(blocked, blocks)]
        times: list[list[float]] = [[], []]
        for _ in range(3):
            for run, took in zip(runs, times, strict=True):
                start = time.perf_counter()
                run(4)
                took.append(time.perf_counter() - start)
    return runs[0] if min(times[0]) <= min(times[1]) else runs[1]


def _devito_cells(field: Any, radius: int) -> Any:
    """Return the cells that Devito holds, rim included, shape (2, height, width)."""
    cells = np.asarray(field.data_with_halo)
    skip = (cells.shape[1] - field.grid.shape[0]) // 2 - radius
    held = [slice(skip, skip + side + 2 * radius) for side in field.grid.shape]
    return cells[(slice(None), *held)]


@lru_cache(maxsize=1)
def _devito_operators(shape: tuple[int, int], dtype: str, pattern: Stencil) -> tuple[Any, Any, Any]:
    let_idle_threads_sleep()
    try:
        from devito import Eq, Grid, Operator, TimeFunction, configuration
    except ImportError:
        raise missing_extra("devito", "kernel-peers", needed_for="The system devito") from None
    configuration["log-level"] = "ERROR"
    configuration["language"] = "openmp"
    radius = pattern.radius
    kind = np.dtype(dtype).type
    whole = Grid(shape=tuple(side - 2 * radius for side in shape), dtype=kind)
    field = TimeFunction(name="u", grid=whole, time_order=1, space_order=max(2 * radius, 2))
    y, x = whole.dimensions
    total = sum(
        weight * field.subs({y: y + dy * y.spacing, x: x + dx * x.spacing})
        for (dy, dx), weight in zip(pattern.offsets, pattern.coefficients, strict=True)
    )
    step = Eq(field.forward, total)
    # By default Devito leaves loops over two dimensions unblocked, and its tuner has nothing to choose.
    return field, Operator(step), Operator(step, opt=("advanced", {"blockrelax": True}))


@contextmanager
def kept_float_mode() -> Iterator[None]:
    """Give this thread back its mode of floating-point arithmetic.

    Devito's code, for one, turns subnormal numbers into zeros from then on, in every computation of the calling thread.
    """
    # The process has the C library of mathematics loaded.
    library = ctypes.CDLL(None)
    mode = ctypes.create_string_buffer(_FLOAT_MODE_BYTES)
    library.fegetenv(mode)
    try:
        yield
    finally:
        library.fesetenv(mode)
