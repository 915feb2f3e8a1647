"""Matches with what is known of them: intervals by bootstrap over runs, ambiguous sets, coverage.

The best candidate is a match when the lower end of its interval is above the upper end of every other's.  Otherwise
all candidates whose intervals reach the best one's are the answer: an ambiguous set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.insight.kernels.interface import Comparison, Profiles
from wavetank.sim.rng import stream

Floats = NDArray[np.float64]

LEVEL = 0.95
LEAST_RUNS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Matches:
    """Candidates of each query.

    Parameters
    ----------
    queries, candidates : tuple of str
    similarity, low, high : array, shape (queries, candidates)
        Of the means over all runs, and the ends of the interval; NaN where a pair must not be compared.
    """

    queries: tuple[str, ...]
    candidates: tuple[str, ...]
    similarity: Floats
    low: Floats
    high: Floats

    def ranked(self, query: int) -> NDArray[np.int64]:
        """Return the candidates that can be compared, the most alike first, equal ones in their order.

        Parameters
        ----------
        query : int
        """
        order = np.argsort(-self.similarity[query], kind="stable")
        return order[~np.isnan(self.similarity[query][order])]

    def answer(self, query: int) -> NDArray[np.int64]:
        """Return the ambiguous set, the most alike first: one candidate where the match is clear.

        Parameters
        ----------
        query : int
        """
        order = self.ranked(query)
        if not order.size:
            return order
        return order[self.high[query][order] >= self.low[query][order[0]]]


def matches(
    compare: Comparison,
    queries: Profiles,
    candidates: Profiles,
    *,
    rounds: int,
    seed: int,
    others: bool = False,
) -> Matches:
    """Return the matches of queries among candidates.

    Parameters
    ----------
    compare : callable
    queries, candidates : Profiles
        Each with several runs, of which every round draws as many as there are, with replacement.
    rounds : int
        Of the bootstrap.
    seed : int
    others : bool
        Whether a kernel must not match a candidate of its own name.

    Raises
    ------
    BadValueError
        If there are no rounds.
    """
    if rounds < 1:
        raise BadValueError("A bootstrap needs rounds.", given=rounds, allowed="1 or more")
    draw = stream(seed, "kernel-matches")
    drawn = np.stack([compare(queries.drawn(draw), candidates.drawn(draw)) for _ in range(rounds)])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    similarity = compare(queries.mean(), candidates.mean())
    if others:
        own = np.array(queries.names)[:, None] == np.array(candidates.names)[None]
        similarity, low, high = (np.where(own, np.nan, each) for each in (similarity, low, high))
    return Matches(
        queries=queries.names, candidates=candidates.names, similarity=similarity,
        low=np.minimum(low, similarity), high=np.maximum(high, similarity),
    )  # fmt: skip


def coverage(found: Matches, time_s: Floats, threshold: float) -> float:
    """Return the share of the time that goes into kernels whose best candidate is at least so similar.

    Parameters
    ----------
    found : Matches
    time_s : array, shape (queries,)
    threshold : float

    Returns
    -------
    float
        NaN where no time is known.
    """
    best = np.array([found.similarity[at, order[0]] if (order := found.ranked(at)).size else -1.0
                     for at in range(len(found.queries))])  # fmt: skip
    known = ~np.isnan(time_s)
    whole = float(time_s[known].sum())
    return float(time_s[known & (best >= threshold)].sum()) / whole if whole > 0 else float("nan")


def order_of_display(similarity: Floats) -> NDArray[np.int64]:
    """Return kernels in the order of the leaves of a tree that joins the most alike first.

    Parameters
    ----------
    similarity : array, shape (kernels, kernels)
        Symmetric, without gaps.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if similarity.shape[0] < 2:
        return np.arange(similarity.shape[0])
    apart = 1.0 - (similarity + similarity.T) / 2.0
    np.fill_diagonal(apart, 0.0)
    return np.asarray(leaves_list(linkage(squareform(np.clip(apart, 0.0, 1.0), checks=False), "average")), np.int64)
