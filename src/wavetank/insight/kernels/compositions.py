"""From counted shares to compositions: eight leaves of the top-down tree, two categories, the roofline plane."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.kernels.interface import Profiles

Floats = NDArray[np.float64]

LEAVES = ("retiring", "frontend", "bad speculation", "core", "L1", "L2", "L3", "DRAM")
# Below this intensity memory limits a kernel on every machine; a copy has none at all, and needs a place on the plane.
LEAST_FLOPS_PER_BYTE = 1.0 / 64.0


def leaves(shares: Floats) -> Floats:
    """Return compositions of eight leaves that sum to 1.

    Small negative shares, which derived counters have, are clipped: after averaging, for that is where noise around
    zero has cancelled.  Each level of the tree is scaled to sum to its parent: retiring, frontend, bad speculation and
    backend to 1, core and memory to backend, the four levels to memory.  Where a parent has slots and none of its parts
    was counted, they share it evenly; where the backend was not counted, it is core and memory.

    Parameters
    ----------
    shares : array, shape (..., 10)
        Means over runs, columns as in :data:`~wavetank.workloads.topdown.SHARES`; NaN for a level of the memory is a
        gap, NaN in the five others makes the composition NaN.

    Returns
    -------
    array, shape (..., 8)
        In the order of :data:`LEAVES`.

    Examples
    --------
    >>> leaves(np.array([0.4, 0.0, 0.0, 0.1, 0.2, -0.08, 0.1, 0.0, 0.1, 0.6])).round(3).tolist()
    [0.4, 0.0, 0.0, 0.2, 0.0, 0.2, 0.0, 0.2]
    """
    five = np.clip(shares[..., :5], 0.0, None)
    parts = five[..., 3:]
    levels = np.clip(np.nan_to_num(shares[..., 5:9]), 0.0, None)
    backend = np.clip(shares[..., 9:], 0.0, None)
    backend = np.where(np.isnan(backend), parts.sum(-1, keepdims=True), backend)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.concatenate((five[..., :3], backend), axis=-1)
        top = top / top.sum(-1, keepdims=True)
    split = top[..., 3:] * _scaled(parts)
    return np.concatenate((top[..., :3], split[..., :1], split[..., 1:] * _scaled(levels)), axis=-1)


def _scaled(parts: Floats) -> Floats:
    """Return parts that sum to 1, even ones where all are zero."""
    sums = parts.sum(-1, keepdims=True)
    return np.asarray(np.where(sums == 0, 1.0 / parts.shape[-1], parts / np.where(sums == 0, 1.0, sums)), np.float64)


def margins(compositions: Floats) -> Floats:
    """Return by how much more of the slots memory takes than core and retiring; above zero, memory binds the kernel.

    Parameters
    ----------
    compositions : array, shape (..., 8)
    """
    return np.asarray(compositions[..., 4:].sum(-1) - compositions[..., 0] - compositions[..., 3], np.float64)


def mean_leaves(profiles: Profiles) -> Floats:
    """Return the compositions of mean profiles.

    Parameters
    ----------
    profiles : Profiles

    Returns
    -------
    array, shape (kernels, 8)
    """
    return leaves(profiles.mean().shares[:, 0])


def roofline(profiles: Profiles) -> Floats:
    """Return where kernels stand on the roofline plane, in natural logarithms.

    Parameters
    ----------
    profiles : Profiles

    Returns
    -------
    array, shape (kernels, 2)
        Of operations a byte, at least :data:`LEAST_FLOPS_PER_BYTE`, and of that times the bytes a second; NaN where
        either is not known.
    """
    intensity = np.maximum(profiles.flops_per_byte, LEAST_FLOPS_PER_BYTE)
    rate = profiles.mean().bytes_per_s[:, 0]
    with np.errstate(divide="ignore"):
        plane = np.log(np.stack((intensity, intensity * rate), axis=-1))
    return np.where(np.isfinite(plane), plane, np.nan)
