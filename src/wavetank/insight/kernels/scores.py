"""Scores of similarity, each from 0 (nothing in common) to 1 (the same): functions of compositions and of the plane.

All take one array of queries and one of candidates and return every pair.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

Floats = NDArray[np.float64]


def overlap(u: Floats, v: Floats) -> Floats:
    """Return 1 - |u - v| / 2, the part of two compositions that they share (total variation).

    Parameters
    ----------
    u : array, shape (queries, parts)
    v : array, shape (candidates, parts)

    Returns
    -------
    array, shape (queries, candidates)

    Examples
    --------
    >>> overlap(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5], [0.0, 1.0]])).tolist()
    [[0.5, 0.0]]
    """
    return np.clip(1.0 - np.abs(u[:, None] - v[None]).sum(-1) / 2.0, 0.0, 1.0)


def cosine(u: Floats, v: Floats) -> Floats:
    """Return the cosine of the angle between vectors without negative parts; 0 for a vector of zeros.

    Parameters
    ----------
    u : array, shape (queries, parts)
    v : array, shape (candidates, parts)

    Returns
    -------
    array, shape (queries, candidates)
    """
    lengths = np.linalg.norm(u, axis=-1)[:, None] * np.linalg.norm(v, axis=-1)[None]
    # Sums of products rather than a matrix product, so that a pair's figure does not depend on who else is compared.
    inner = (u[:, None] * v[None]).sum(-1)
    return np.clip(np.divide(inner, lengths, out=np.where(np.isnan(lengths), np.nan, 0.0), where=lengths > 0), 0.0, 1.0)


def jensen_shannon(u: Floats, v: Floats) -> Floats:
    """Return 1 - the square root of the Jensen-Shannon divergence of compositions, in bits.

    Parameters
    ----------
    u : array, shape (queries, parts)
    v : array, shape (candidates, parts)

    Returns
    -------
    array, shape (queries, candidates)

    Examples
    --------
    >>> float(jensen_shannon(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])).round(4)[0, 0])
    0.4421
    """
    left, right = u[:, None], v[None]
    # Each part is divided by the mean of both before the logarithm, which is exactly 1 where they are the same.
    middle = (left + right) / 2.0
    safe = np.where(middle > 0, middle, 1.0)
    divergence = (xlogy(left, left / safe) + xlogy(right, right / safe)).sum(-1) / (2.0 * np.log(2.0))
    return np.asarray(1.0 - np.sqrt(np.clip(divergence, 0.0, 1.0)), np.float64)


def on_the_plane(u: Floats, v: Floats) -> Floats:
    """Return exp(-|d1| - |d2|) of the distances along both axes of the roofline plane.

    Parameters
    ----------
    u : array, shape (queries, 2)
        Logarithms of operations a byte and of operations a second.
    v : array, shape (candidates, 2)

    Returns
    -------
    array, shape (queries, candidates)
    """
    return np.exp(-np.abs(u[:, None] - v[None]).sum(-1))


def same_category(u: Floats, v: Floats, border: float) -> Floats:
    """Return 1 inside a category, and across the border what is left of it for kernels so far from it.

    Parameters
    ----------
    u : array, shape (queries,)
        Margins: above zero in one category, below in the other.
    v : array, shape (candidates,)
    border : float
        Margin at which a pair across the border keeps 1/e.

    Returns
    -------
    array, shape (queries, candidates)
    """
    nearer = np.minimum(np.abs(u)[:, None], np.abs(v)[None])
    return np.where((u > 0)[:, None] == (v > 0)[None], 1.0, np.exp(-nearer / border))
