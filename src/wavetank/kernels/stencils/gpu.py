"""Stencils on a GPU: our own sweep, what people use there, and the copy that bounds a single sweep.

Grids stay on the device from step to step.  Each step reads one grid and writes the other, one launch per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from wavetank.errors import BadValueError, missing_extra
from wavetank.kernels.as_array import refuse_gradients
from wavetank.kernels.stencils.pattern import BOUNDARIES, Stencil, check_grid, check_steps
from wavetank.kernels.stencils.reference import alternate, inner, keep_rim
from wavetank.machine.cuda import require_cuda, require_free, require_torch

# Of a rectangle: a thread has one column, so that a warp's load is a line of the cache.  More rows share more of what
# they load; many terms in many rows take minutes to compile.
_COLUMNS, _WARPS = 128, 4
_MOST_ROWS, _MOST_SUMMED = 16, 648
_NEEDED_FOR = "A stencil on a GPU"


def sweep_on_gpu(grid: Any, pattern: Stencil, steps: int = 1, *, boundary: str = "dirichlet") -> Any:
    """Apply a stencil to a grid on a GPU ``steps`` times.

    Sums are added up in the pattern's order; the device's compiler may fuse products into them.

    Parameters
    ----------
    grid : torch tensor, shape (height, width), float32 or float64
        On a CUDA device, or anywhere where Triton interprets its kernels (``TRITON_INTERPRET=1``).  Not modified; need
        not be contiguous.  One that requires its gradient is refused unless under ``torch.no_grad()``.
    pattern : Stencil
    steps : int
        0 or more.
    boundary : str
        One of :data:`~wavetank.kernels.stencils.pattern.BOUNDARIES`.

    Returns
    -------
    torch tensor
        On the grid's device; what the device still has to do may be under way.

    Raises
    ------
    BadValueError
        If the grid cannot be swept, is not on a CUDA device, or two more do not fit the device's memory.
    MissingExtraError
        If Triton is not installed.
    """
    steps = check_steps(steps)
    torch = require_torch(_NEEDED_FOR)
    refuse_gradients(grid, "grid")
    dtype = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}.get(grid.dtype, grid.dtype)
    check_grid(SimpleNamespace(ndim=grid.ndim, dtype=dtype, shape=tuple(grid.shape)), pattern, boundary)  # type: ignore[arg-type]
    copies = min(steps, 2) + (not grid.is_contiguous())
    purpose = f"Sweeping a grid of {grid.shape[0]:,} x {grid.shape[1]:,} cells"
    require_free(grid.device, copies * grid.numel() * grid.element_size(), purpose, where="grid")
    source = grid.detach().contiguous()
    if steps == 0:
        return source.clone()
    pair = [torch.empty_like(source) for _ in range(min(steps, 2))]
    step = _launcher(torch, source, pattern, boundary)
    return alternate(step, source, pair, steps)


def _launcher(torch: Any, like: Any, pattern: Stencil, boundary: str) -> Callable[[Any, Any], None]:
    """Return ``step(old, new)``, which queues one sweep."""
    try:
        from triton.runtime.interpreter import InterpretedFunction

        from wavetank.kernels.stencils.gpu_kernels import sweep_rectangle
    except ImportError:
        raise missing_extra("triton", "torch", needed_for=_NEEDED_FOR) from None
    if like.device.type != "cuda" and not isinstance(sweep_rectangle, InterpretedFunction):
        raise BadValueError(
            "This sweep runs on a CUDA device.", given=str(like.device), allowed="cuda, cuda:1", where="grid",
            hint="wavetank.kernels.stencil sweeps grids in main memory",
        )  # fmt: skip
    height, width = like.shape
    radius = pattern.radius
    terms = sum(1 << ((dy + radius) * (2 * radius + 1) + dx + radius) for dy, dx in pattern.offsets)
    weights = torch.tensor(pattern.coefficients, dtype=like.dtype, device=like.device)
    rows = max(1, min(_MOST_ROWS, _MOST_SUMMED // pattern.points))
    rectangles = -(-height // rows) * -(-width // _COLUMNS)

    def step(old: Any, new: Any) -> None:
        sweep_rectangle[(rectangles,)](
            old, new, weights, height, width, RADIUS=radius, TERMS=terms, BOUNDARY=BOUNDARIES.index(boundary),
            ROWS=rows, COLUMNS=_COLUMNS, num_warps=_WARPS,
        )  # fmt: skip

    return step


@dataclass(frozen=True, kw_only=True)
class GpuSweep:
    """Our own sweep in Triton, one launch per step; see :func:`sweep_on_gpu`."""

    def prepare(self, grid: Any, pattern: Stencil, steps: int) -> Callable[[], Any]:
        """Return the call that queues ``steps`` sweeps with a fixed rim; its result may be overwritten by the next."""
        torch = require_cuda(_NEEDED_FOR, str(grid.device))
        pair = (torch.empty_like(grid), torch.empty_like(grid))
        return partial(alternate, self.stepper(torch, grid, pattern), grid, pair, steps)

    def stepper(self, torch: Any, grid: Any, pattern: Stencil) -> Callable[[Any, Any], None]:
        """Return ``step(old, new)``, which queues one sweep."""
        return _launcher(torch, grid, pattern, "dirichlet")


@dataclass(frozen=True, kw_only=True)
class TorchSlices(GpuSweep):
    """One slice of the grid for each neighbour, added up in place: a launch per neighbour."""

    def stepper(self, torch: Any, grid: Any, pattern: Stencil) -> Callable[[Any, Any], None]:
        """Return ``step(old, new)``."""
        radius = pattern.radius

        def step(old: Any, new: Any) -> None:
            keep_rim(new, old, radius)
            total = inner(new, radius)
            for number, (offset, weight) in enumerate(zip(pattern.offsets, pattern.coefficients, strict=True)):
                if number == 0:
                    torch.mul(inner(old, radius, *offset), weight, out=total)
                else:
                    total.add_(inner(old, radius, *offset), alpha=weight)

        return step


@dataclass(frozen=True, kw_only=True)
class TorchConv2dGpu(GpuSweep):
    """``torch.nn.functional.conv2d`` of one channel by cuDNN, in full float32."""

    def stepper(self, torch: Any, grid: Any, pattern: Stencil) -> Callable[[Any, Any], None]:
        """Return ``step(old, new)``."""
        radius = pattern.radius
        weights = torch.tensor(pattern.matrix(), dtype=grid.dtype, device=grid.device)[None, None]

        def step(old: Any, new: Any) -> None:
            keep_rim(new, old, radius)
            with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                found = torch.nn.functional.conv2d(old[None, None], weights)[0, 0]
            inner(new, radius).copy_(found)

        return step


@dataclass(frozen=True, kw_only=True)
class GridCopyGpu(GpuSweep):
    """Copies the grid on the device: what a sweep takes that reads and writes every cell once and costs nothing.

    It stands for one sweep whatever the number of steps.
    """

    def prepare(self, grid: Any, pattern: Stencil, steps: int) -> Callable[[], Any]:
        """Return the call that queues the copy."""
        out = require_cuda(_NEEDED_FOR, str(grid.device)).empty_like(grid)
        return lambda: out.copy_(grid)
