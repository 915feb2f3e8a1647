"""Sweeps a stencil over a grid at the speed of memory, or several times as fast where several steps are taken.

One sweep reads and writes every cell once, so memory decides: rows are loaded once, kept in cache until the last row
that needs them is done, and finished rows are stored past the caches.  Many sweeps are taken several at a time, so that
memory is crossed once for all of them and the arithmetic decides instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.as_array import array_of, is_tensor, overlaps_itself
from wavetank.kernels.stencils.pattern import BOUNDARIES, Stencil, check_grid, check_steps
from wavetank.kernels.stencils.row_blocks import Form, blocks, form_of
from wavetank.kernels.stencils.temporal import PAGE_BYTES, Tile, buffer_bytes, pitch_bytes, run_pass, tiles_of
from wavetank.machine.limits import require_memory
from wavetank.machine.stream_stores import LINE_BYTES
from wavetank.machine.threads import allowed_threads, together
from wavetank.settings import setting

# Buffered rows of a thread, with the rows that pass by, stay within a second-level cache of 1 MiB.
_CACHE_BYTES = 1 << 19
# A result beyond this does not stay in cache anyway, so it is stored past it.
_STREAMED_BYTES = 1 << 23
# Below these many cells a thread costs more than it saves.
_CELLS_WORTH_A_THREAD = 1 << 16
_MAX_DEPTH = 64
# Cell updates of one compiled call: at most a few tenths of a second, as Ctrl-C is noticed between calls.
_CALL_UPDATES = 1 << 25
# Rows between one that is written and one that is read for it, at most.
_ROWS_AROUND = 9


class Blocking(NamedTuple):
    """How a grid is cut: no choice changes any bit of the result."""

    depth: int
    """Sweeps a pass."""
    columns: int
    """Most columns of a strip."""
    threads: int


def stencil(
    grid: Any,
    pattern: Stencil,
    steps: int = 1,
    *,
    boundary: str = "dirichlet",
    threads: int | None = None,
    out: NDArray[Any] | None = None,
) -> Any:
    """Apply a stencil to a grid ``steps`` times.

    Every cell becomes the weighted sum of its neighbours.  NaN and infinities spread to the cells that depend on them,
    as IEEE 754 says.  The result is the same, bit for bit, for any number of threads and however the steps are split
    over calls; it differs from :func:`~wavetank.kernels.stencils.reference.reference_sweep` by rounding, since
    products and sums are fused here.

    Parameters
    ----------
    grid : ndarray or torch tensor, shape (height, width), float32 or float64
        Not modified; may be read-only and not contiguous.  A tensor on a CUDA device is swept there, where ``threads``
        means nothing; see :func:`~wavetank.kernels.stencils.gpu.sweep_on_gpu`.  Gradients do not flow: a tensor that
        requires its own is refused unless under ``torch.no_grad()``.
    pattern : Stencil
    steps : int
        0 or more.
    boundary : str
        ``dirichlet`` (the outermost ``radius`` rows and columns are kept), ``periodic`` or ``reflect``.
    threads : int, optional
        The most to use; all that :func:`~wavetank.machine.threads.allowed_threads` allows by default.
    out : ndarray, optional
        Where to write; of the grid's shape and type and apart from it in memory.  Not with a grid on a GPU.

    Returns
    -------
    ndarray, shape (height, width)
        ``out`` if given.  A tensor if ``grid`` is one.

    Raises
    ------
    BadValueError
        If the grid has no two dimensions, another type, or a side shorter than 2 radius + 1; if ``out`` does not fit
        or overlaps the grid or itself; if there is not enough memory.

    Examples
    --------
    >>> import numpy as np
    >>> stencil(np.eye(3), Stencil.star(1), boundary="periodic")[0, 0]
    np.float64(0.2)
    """
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise BadValueError("The number of threads is not valid.", given=threads, allowed="1 or more", where="threads")
    return StencilSweep(threads=threads or 0).sweep(grid, pattern, steps, boundary=boundary, out=out)


@dataclass(frozen=True, kw_only=True)
class StencilSweep:
    """The blocked sweep; see :func:`stencil`."""

    threads: int = setting(0, says="Most threads; 0 for all allowed threads", low=0, high=1024)
    depth: int = setting(0, says="Sweeps per pass over memory; 0 chooses by the stencil", low=0, high=_MAX_DEPTH)
    columns: int = setting(0, unit="cells", says="Most columns per strip; 0 chooses by the cache size", low=0, high=1e9)

    def sweep(
        self,
        grid: Any,
        pattern: Stencil,
        steps: int = 1,
        *,
        boundary: str = "dirichlet",
        out: NDArray[Any] | None = None,
    ) -> Any:
        """Return the grid after ``steps`` sweeps; parameters and errors are those of :func:`stencil`."""
        if is_tensor(grid):
            import torch

            if grid.device.type == "cuda":
                return _on_gpu(grid, pattern, steps, boundary, out)
            return torch.from_numpy(self.sweep(array_of(grid, "grid"), pattern, steps, boundary=boundary, out=out))
        old = array_of(grid, "grid")
        check_grid(old, pattern, boundary)
        steps = check_steps(steps)
        if out is not None:
            _check_out(out, old)
        form = form_of(pattern, old.dtype)
        blocking = self.blocking(old.shape, pattern, steps, old.dtype)
        passes = -(-steps // blocking.depth)
        direct = out is not None and _rows_are_contiguous(out)
        copies = (not _rows_are_contiguous(old)) + (passes > 1) + (not direct)
        require_memory(copies * old.nbytes, f"Sweeping a grid of {old.shape[0]:,} x {old.shape[1]:,} cells")
        result = out if direct and out is not None else aligned_grid(old.shape, old.dtype, old)
        if not _rows_are_contiguous(old):
            old = np.array(old, order="C")
        if steps == 0:
            result[...] = old
        else:
            self._passes(old, result, form, pattern.radius, steps, passes, blocking, BOUNDARIES.index(boundary))
        if out is not None and not direct:
            out[...] = result
            return out
        return result

    def prepare(self, grid: NDArray[Any], pattern: Stencil, steps: int, boundary: str) -> Callable[[], NDArray[Any]]:
        """Return the call to time; its result is overwritten by the next call."""
        out = aligned_grid(grid.shape, grid.dtype, grid)

        def call() -> NDArray[Any]:
            return np.asarray(self.sweep(grid, pattern, steps, boundary=boundary, out=out))

        return call

    def blocking(self, shape: tuple[int, ...], pattern: Stencil, steps: int, dtype: Any) -> Blocking:
        """Return how a grid of this shape is cut."""
        item = np.dtype(dtype).itemsize
        radius, rows = pattern.radius, form_of(pattern, dtype).rows
        depth = max(1, min(self.depth or _depth(radius), steps))
        passes = -(-max(steps, 1) // depth)
        depth = -(-max(steps, 1) // passes)
        # Rows that pass by on their way in count as well.
        most = _CACHE_BYTES // (item * (depth * (rows + 2 * radius) + rows)) // 64 * 64
        columns = self.columns or max(most, 256)
        if self.threads:
            return Blocking(depth, columns, min(allowed_threads(self.threads), shape[0]))
        worth = min(shape[0] * shape[1] // _CELLS_WORTH_A_THREAD, shape[0] // (4 * depth * radius + 1))
        return Blocking(depth, columns, max(1, min(allowed_threads(), worth)))

    def _passes(
        self,
        old: NDArray[Any],
        result: NDArray[Any],
        form: Form,
        radius: int,
        steps: int,
        passes: int,
        blocking: Blocking,
        boundary: int,
    ) -> None:
        addresses = blocks(form.key, form.rows)
        height, width = old.shape
        columns = min(blocking.columns, width)
        # Also cut for threads that a limit of the user's keeps from helping: what they find does not depend on it.
        bands = max(
            blocking.threads,
            min(self.threads, height),
            min(-(-height * columns * blocking.depth // _CALL_UPDATES), height),
        )
        tiles = tiles_of((height, width), bands, blocking.columns)
        most = max(tile.right - tile.left for tile in tiles)
        pitch = pitch_bytes(most, blocking.depth, radius, old.itemsize)
        length = buffer_bytes(pitch, blocking.depth, radius, form.rows) // old.itemsize
        buffers = [aligned_grid((1, length), old.dtype)[0] for _ in range(blocking.threads)]
        spare = aligned_grid(old.shape, old.dtype, result) if passes > 1 else result
        streaming = result.nbytes >= _STREAMED_BYTES

        def finish(tile: Tile, source: NDArray[Any], target: NDArray[Any], depth: int) -> None:
            # No more calls are made at once than there are buffers.
            buffer = buffers.pop()
            try:
                run_pass(
                    source, target, addresses, form.rows, radius, form.coefficients, buffer, pitch, *tile,
                    depth, boundary, streaming,
                )  # fmt: skip
            finally:
                buffers.append(buffer)

        source, left = old, steps
        for number in range(passes):
            depth = -(-left // (passes - number))
            # The last pass ends in the result, the one before in the spare grid, and so on.
            target = result if (passes - number) % 2 else spare
            # What is read is always a read-only view, so that one compiled version serves all grids.
            view = source.view()
            view.flags.writeable = False
            together(finish, [(tile, view, target, depth) for tile in tiles], blocking.threads)
            source, left = target, left - depth


def aligned_grid(shape: tuple[int, ...], dtype: Any, like: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return an array of that shape, not filled, whose first cell lies in its line of the cache as that of ``like``.

    Without ``like`` it starts a line.  Cells that lie alike are loaded and stored a whole line at a time.  Within its
    page the first cell lies elsewhere than that of ``like``, such that no row is written where, modulo a page, one of
    the rows around it is about to be read: a load would wait for the store.
    """
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    store = np.empty(count + PAGE_BYTES // kind.itemsize, kind)
    wanted = 0 if like is None else like.ctypes.data + _apart(shape[-1] * kind.itemsize)
    skip = (wanted - store.ctypes.data) % (LINE_BYTES if like is None else PAGE_BYTES) // kind.itemsize
    return store[skip : skip + count].reshape(shape)


@cache
def _apart(pitch: int) -> int:
    """Return the distance between two grids, modulo a page, that keeps rows of one apart from nearby ones of the other.

    Twice the distance does as well, so that a third grid may follow.
    """
    rows = np.arange(-_ROWS_AROUND, _ROWS_AROUND + 1) * pitch
    lines = np.arange(0, PAGE_BYTES, LINE_BYTES)
    away = np.stack([(times * lines[:, None] + rows[None]) % PAGE_BYTES for times in (1, 2)])
    least = np.minimum(away, PAGE_BYTES - away).min(axis=(0, 2))
    return int(lines[least.argmax()])


def _depth(radius: int) -> int:
    # Enough sweeps that memory is no longer what binds, and few enough that strips stay wide.
    return (16, 16, 16, 8, 8)[radius]


def _rows_are_contiguous(grid: NDArray[Any]) -> bool:
    return grid.strides[1] == grid.itemsize and grid.strides[0] >= grid.shape[1] * grid.itemsize and grid.flags.aligned


def _on_gpu(grid: Any, pattern: Stencil, steps: int, boundary: str, out: Any) -> Any:
    from wavetank.kernels.stencils.gpu import sweep_on_gpu

    if out is not None:
        raise BadValueError(
            "The result of a grid on a GPU has no place to be given.", given=type(out).__name__, where="out",
            hint="leave it out, and copy what is returned",
        )  # fmt: skip
    return sweep_on_gpu(grid, pattern, steps, boundary=boundary)


def _check_out(out: NDArray[Any], grid: NDArray[Any]) -> None:
    if not isinstance(out, np.ndarray) or out.shape != grid.shape or out.dtype != grid.dtype:
        given = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise BadValueError(
            "The result does not fit into the given place.",
            given=given,
            allowed=f"{grid.dtype} of shape {grid.shape}",
            where="out",
        )
    if not out.flags.writeable:
        raise BadValueError("The result's place is read-only.", where="out", hint="leave it out, or give a copy")
    if overlaps_itself(out):
        raise BadValueError(
            "Cells of the result share memory.", given=f"strides {out.strides}", where="out",
            allowed="memory of its own for each cell",
        )  # fmt: skip
    if np.may_share_memory(out, grid):
        raise BadValueError(
            "The result would overwrite cells that are still to be read.",
            where="out",
            hint="leave it out, or give an array apart from the grid",
        )
