"""PageRank: the share of time that a walker who sometimes jumps anywhere spends at each vertex.

A step multiplies the vector of ranks by the transposed adjacency matrix.  Without edge weights every entry of a column
is 1 / out-degree of its vertex: the ranks are divided once before the product, and the matrix has no values at all.

Source: L. Page, S. Brin, R. Motwani and T. Winograd, "The PageRank Citation Ranking: Bringing Order to the Web",
Stanford, 1999; ends and tolerance as in networkx.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.sparse.compressed import compressed_rows
from wavetank.kernels.sparse.products import SpMVPlan
from wavetank.machine.limits import require_memory


def _check(name: str, value: Any, kind: type, holds: Callable[[Any], bool], allowed: str) -> None:
    if not isinstance(value, kind) or not holds(value):
        raise BadValueError(f"{name} is out of range.", given=value, allowed=allowed, where="pagerank")


def pagerank(
    graph: Any, *, damping: float = 0.85, tolerance: float = 1e-10, max_products: int = 1000, weighted: bool = False,
    threads: int | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Return the PageRank of every vertex; the ranks sum to 1.

    Parameters
    ----------
    graph : scipy sparse matrix or array, torch sparse tensor, or tuple
        Square; entry (i, j) is an edge from i to j.  Explicit zeros are edges unless ``weighted``.
    damping : float
        Probability to follow an edge, 0 to below 1.
    tolerance : float
        Ends when the ranks change by less than this a vertex, summed over all; above 0.
    max_products : int
        The most products to compute.
    weighted : bool
        Follow edges in proportion to their values, which are then not negative.
    threads : int, optional
        As for :class:`SpMVPlan`.

    Returns
    -------
    ndarray of float64, shape (vertices,)

    Raises
    ------
    BadValueError
        If the graph is not square, a parameter or weight is out of range, or memory is too short.
    WavetankError
        If the ranks do not settle within ``max_products``.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> pagerank(csr_array([[0, 1], [1, 0]])).round(3)
    array([0.5, 0.5])
    """
    given = compressed_rows(graph)
    n = given.shape[0]
    if given.shape[1] != n:
        raise BadValueError("A graph's matrix is square.", given=f"{given.shape}", where="pagerank")
    _check("damping", damping, Real, lambda value: 0 <= value < 1, "0 to below 1")
    _check("tolerance", tolerance, Real, lambda value: value > 0, "above 0")
    _check("max_products", max_products, Integral, lambda value: value >= 1, "a whole number, at least 1")
    if n == 0:
        return np.zeros(0)
    # Weights, and the rows and columns of the transposed matrix, beside the plan.
    require_memory(36 * given.nonzeros + 64 * n, f"PageRank of {n:,} vertices")
    weights = given.values.astype(np.float64) if weighted else np.ones(given.nonzeros)
    if weighted and not (np.isfinite(weights).all() and (weights >= 0).all()):
        wrong = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise BadValueError(
            "A weight is negative or not finite.", given=f"{weights[wrong]} at entry {wrong:,}", where="pagerank"
        )
    from scipy.sparse import csr_array

    edges = csr_array((weights, given.columns, given.starts), shape=given.shape)
    with np.errstate(over="ignore"):
        leaving = np.asarray(edges.sum(axis=1)).ravel()
    if not np.isfinite(leaving).all():
        raise BadValueError(
            "The weights of a vertex have no finite sum.", given=f"vertex {int(np.argmin(np.isfinite(leaving)))}",
            where="pagerank", hint="divide all weights by the largest one: the ranks stay the same",
        )  # fmt: skip
    plan = SpMVPlan(edges.T, threads=threads, engine="rows")
    dangling = leaving == 0
    share = np.divide(1.0, leaving, out=np.zeros(n), where=~dangling)
    ranks = np.full(n, 1.0 / n)
    for _ in range(max_products):
        followed = plan.multiply(ranks * share)
        followed *= damping
        followed += (1.0 - damping + damping * ranks[dangling].sum()) / n
        # Rounding must not add up over many products.
        followed /= followed.sum()
        change = float(np.abs(followed - ranks).sum())
        ranks = followed
        if change < n * tolerance:
            return ranks
    raise WavetankError(
        "The ranks have not settled.", given=f"a change of {change:.3g} after {max_products} products",
        allowed=f"less than {n * tolerance:.3g}", hint="raise max_products or tolerance",
    )  # fmt: skip
