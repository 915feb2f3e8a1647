"""Covariance matrices of Gaussian processes, and the system identification that asks for them.

A Gaussian process predicts the answer of a dynamic system from the recent past of its input.  Its covariance matrix is
dense, symmetric and positive definite, one row a sample, and training is the solution of one system with it.

Source: C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press, 2006, equation 4.9;
the window of past inputs as regressor is that of T. Thuering, A. Strack, D. Pflueger, 2026, arXiv 2605.13209.

Differs from the source:

1. The samples come from a chain of masses, springs and dampers that is integrated here, not from a data file.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.solvers.triangle import BlockTriangle, column_starts
from wavetank.machine.limits import require_memory
from wavetank.sim.compiled import compiled
from wavetank.sim.rng import stream


@compiled(nogil=True, fastmath=True)
def _fill_triangle(
    points: NDArray[np.float64],
    data: NDArray[np.float64],
    starts: NDArray[np.int64],
    block: int,
    variance: float,
    scale: float,
    noise: float,
) -> None:
    size, width = points.shape
    blocks = starts.size
    for column in range(blocks):
        for row in range(column, blocks):
            base = (starts[column] + row) * block * block
            for i in range(block):
                here = row * block + i
                for j in range(block):
                    there = column * block + j
                    if here >= size or there >= size:
                        data[base + i * block + j] = 1.0 if here == there else 0.0
                        continue
                    distance = 0.0
                    for each in range(width):
                        step = points[here, each] - points[there, each]
                        distance += step * step
                    data[base + i * block + j] = variance * math.exp(-scale * distance) + (
                        noise if here == there else 0.0
                    )


def _checked_points(points: Any, variance: float, length: float, noise: float) -> NDArray[np.float64]:
    array = np.ascontiguousarray(points, np.float64)
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    if array.ndim != 2 or not array.size:
        raise BadValueError("Points are rows.", given=f"shape {array.shape}", allowed="(N, D)", where="points")
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise BadValueError("A point is not finite.", given=float(array[row, column]), where=f"points[{row}, {column}]")
    for name, value, least in (("variance", variance, 0.0), ("length", length, 0.0), ("noise", noise, -1e-300)):
        if not value > least or not math.isfinite(value):
            raise BadValueError("The kernel's parameters are positive; noise may be 0.", given=value, where=name)
    return array


def kernel_triangle(
    points: Any, *, block: int = 128, variance: float = 1.0, length: float = 1.0, noise: float = 0.01
) -> BlockTriangle:
    """Return the squared-exponential covariance matrix as blocks, never as a dense matrix.

    ``K_ij = variance * exp(-|x_i - x_j|^2 / (2 length^2)) + noise * (i == j)``

    Parameters
    ----------
    points : array, shape (N, D) or (N,)
    block : int
    variance, length, noise : float
        1, 1 and 0.01 in the source.

    Raises
    ------
    BadValueError
        For points that are not finite, parameters out of range, or too little memory.
    """
    array = _checked_points(points, variance, length, noise)
    triangle = BlockTriangle.empty(len(array), block)
    starts = column_starts(triangle.blocks)
    _fill_triangle(array, triangle.data, starts, block, variance, 0.5 / length**2, noise)
    return triangle


def kernel_matrix(
    points: Any, others: Any = None, *, variance: float = 1.0, length: float = 1.0, noise: float = 0.01
) -> NDArray[np.float64]:
    """Return the squared-exponential covariance as a dense matrix.

    Parameters
    ----------
    points : array, shape (N, D) or (N,)
    others : array, shape (M, D), optional
        Covariances between ``points`` and these, without noise.
    variance, length, noise : float

    Returns
    -------
    covariance : float64 array, shape (N, N) or (N, M)
    """
    array = _checked_points(points, variance, length, noise)
    if others is None:
        return kernel_triangle(array, variance=variance, length=length, noise=noise).unpack()
    from scipy.spatial.distance import cdist

    right = _checked_points(others, variance, length, noise)
    if right.shape[1] != array.shape[1]:
        raise BadValueError("Points must have as many coordinates.", given=right.shape[1], allowed=str(array.shape[1]))
    require_memory(8 * len(array) * len(right), "A covariance matrix")
    distances = cdist(array, right, "sqeuclidean")
    found: NDArray[np.float64] = variance * np.exp(-0.5 / length**2 * distances)
    return found


def mass_spring_damper(
    samples: int, *, masses: int = 2, step_s: float = 0.5, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a random force on a chain of masses, and where its last mass goes.

    Each mass of 1 kg hangs on the one before it by a spring of 2 N/m and a damper of 2 N s/m, the first on a wall.
    The force acts on the first; it is held for a random while and then takes another random value.

    Parameters
    ----------
    samples : int
    masses : int
    step_s : float
        Between samples; the motion is integrated exactly for a force held that long.
    seed : int

    Returns
    -------
    force_n, position_m : float64 arrays, shape (samples,)
    """
    from scipy.linalg import expm

    if samples < 1 or masses < 1 or not step_s > 0:
        raise BadValueError(
            "A chain has masses and samples.", given=f"{samples} samples, {masses} masses, step_s {step_s}"
        )
    rng = stream(seed, "mass-spring-damper")
    coupling = 2.0 * np.eye(masses) - np.eye(masses, k=1) - np.eye(masses, k=-1)
    coupling[-1, -1] = 1.0
    stiffness, damping = 2.0, 2.0
    motion = np.zeros((2 * masses + 1, 2 * masses + 1))
    motion[:masses, masses : 2 * masses] = np.eye(masses)
    motion[masses : 2 * masses, :masses] = -stiffness * coupling
    motion[masses : 2 * masses, masses : 2 * masses] = -damping * coupling
    motion[masses, -1] = 1.0
    advance = expm(motion * step_s)
    changes = rng.random(samples) < 0.1
    changes[0] = True
    levels = rng.uniform(-1.0, 1.0, samples)
    force = levels[np.maximum.accumulate(np.where(changes, np.arange(samples), 0))]
    state = np.zeros(2 * masses + 1)
    position = np.empty(samples)
    for sample in range(samples):
        state[-1] = force[sample]
        state = advance @ state
        position[sample] = state[masses - 1]
    return force, position


def windows(signal: Any, width: int) -> NDArray[np.float64]:
    """Return, for each sample, it and the ``width - 1`` before it; zeros before the first.

    Parameters
    ----------
    signal : array, shape (N,)
        At least one sample; converted to float64.
    width : int
        Samples per window, 1 or more.

    Returns
    -------
    regressors : float64 array, shape (N, width)
        The newest last.
    """
    values = np.asarray(signal, np.float64)
    if values.ndim != 1 or not values.size or width < 1:
        raise BadValueError("A window runs along a signal.", given=f"shape {values.shape}, width {width}")
    padded = np.concatenate([np.zeros(width - 1), values])
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(padded, width))
