"""The readable sweep: one slice of a padded grid for each neighbour, added up in the order of the pattern.

Everything faster is held against this.  Each term is rounded twice, once for the product and once for the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.stencils.pattern import Stencil, check_grid, check_steps

# What numpy calls the three ways to go on beyond the edge; what is beyond a fixed rim is never used.
_PADDING = {"dirichlet": "edge", "periodic": "wrap", "reflect": "symmetric"}


def reference_sweep(
    grid: NDArray[Any], pattern: Stencil, steps: int = 1, *, boundary: str = "dirichlet"
) -> NDArray[Any]:
    """Apply a stencil ``steps`` times.

    Parameters
    ----------
    grid : ndarray of float32 or float64, shape (height, width)
        Not modified.
    pattern : Stencil
    steps : int
        Sweeps over the whole grid, 0 or more.
    boundary : str
        One of :data:`~wavetank.kernels.stencils.pattern.BOUNDARIES`.

    Returns
    -------
    ndarray of the grid's shape and type

    Raises
    ------
    BadValueError
        If the grid cannot be swept; see :func:`~wavetank.kernels.stencils.pattern.check_grid`.
    """
    check_grid(grid, pattern, boundary)
    steps = check_steps(steps)
    new = np.array(grid, order="C")
    radius = pattern.radius
    for _ in range(steps):
        new = weighted_sum(np.pad(new, radius, mode=_PADDING[boundary]), pattern)  # type: ignore[call-overload]
        if boundary == "dirichlet":
            keep_rim(new, grid, radius)
    return new


def weighted_sum(padded: NDArray[Any], pattern: Stencil) -> NDArray[Any]:
    """Return one sweep over a grid with its halo.

    Parameters
    ----------
    padded : ndarray, shape (..., height + 2 radius, width + 2 radius)
        Leading axes are grids of their own: the tiles of a mesh, for example.
    pattern : Stencil

    Returns
    -------
    ndarray, shape (..., height, width)
    """
    radius = pattern.radius
    height, width = padded.shape[-2] - 2 * radius, padded.shape[-1] - 2 * radius
    total: NDArray[Any] | None = None
    for (dy, dx), weight in zip(pattern.offsets, pattern.coefficients_as(padded.dtype), strict=True):
        shifted = padded[..., radius + dy : radius + dy + height, radius + dx : radius + dx + width]
        total = weight * shifted if total is None else total + weight * shifted
    return np.asarray(total)


def alternate(step: Callable[[Any, Any], object], grid: Any, pair: Sequence[Any], steps: int) -> Any:
    """Take ``steps`` steps from one grid to another, and return the one that holds the result.

    Parameters
    ----------
    step : callable
        ``step(old, new)`` writes one sweep of ``old`` to ``new``.
    grid : ndarray or torch tensor, shape (height, width)
        What the first step reads; never written.
    pair : sequence of two such
        Written in turn; one of them suffices for a single step.
    steps : int
        0 or more.
    """
    for number in range(steps):
        target = pair[number % 2]
        step(grid, target)
        grid = target
    return grid


def inner(grid: Any, radius: int, dy: int = 0, dx: int = 0) -> Any:
    """Return the view of an array or tensor without its rim, shifted by an offset of at most ``radius``."""
    height, width = grid.shape
    return grid[radius + dy : height - radius + dy, radius + dx : width - radius + dx]


def keep_rim(new: Any, old: Any, radius: int) -> None:
    """Copy the outermost ``radius`` rows and columns of ``old`` into ``new``."""
    if radius:
        new[:radius], new[-radius:] = old[:radius], old[-radius:]
        new[:, :radius], new[:, -radius:] = old[:, :radius], old[:, -radius:]
