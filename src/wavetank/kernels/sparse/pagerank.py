"""PageRank: the share of time that a walker who sometimes jumps anywhere spends at each vertex.

A step multiplies the vector of ranks by the transposed adjacency matrix.  Without edge weights every entry of a column
is 1 / out-degree of its vertex: the ranks are divided once before the product, and the matrix has no values at all.

Source: L. Page, S. Brin, R. Motwani and T. Winograd, "The PageRank Citation Ranking: Bringing Order to the Web",
Stanford, 1999; ends and tolerance as in networkx.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.sparse.compressed import compressed_rows
from wavetank.kernels.sparse.products import SpMVPlan


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
        At most so many products.
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
        If the graph is not square or a parameter or weight is out of range.
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
    for name, value, holds, allowed in (
        ("damping", damping, 0 <= damping < 1, "0 to below 1"),
        ("tolerance", tolerance, tolerance > 0, "above 0"),
        ("max_products", max_products, max_products >= 1, "at least 1"),
    ):
        if not holds:
            raise BadValueError(f"{name} is out of range.", given=value, allowed=allowed, where="pagerank")
    if n == 0:
        return np.zeros(0)
    weights = given.values.astype(np.float64) if weighted else np.ones(given.nonzeros)
    if weighted and not (np.isfinite(weights).all() and (weights >= 0).all()):
        wrong = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise BadValueError(
            "A weight is negative or not finite.", given=f"{weights[wrong]} at entry {wrong:,}", where="pagerank"
        )
    from scipy.sparse import csr_array

    edges = csr_array((weights, given.columns, given.starts), shape=given.shape)
    leaving = np.asarray(edges.sum(axis=1)).ravel()
    plan = SpMVPlan(edges.T, threads=threads)
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
