"""Kernel similarity: two kernels are alike when the same resources of the machine bind them.

A kernel is where its slots went, the leaves of the top-down tree, and where it stands on the roofline plane.  Kernels
that memory binds and kernels that the core binds are two categories, and a pair across the border is worth less.  It
should win where shares alone do not know how fast the bound resource is used, and rates alone do not know what binds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.kernels import scores
from wavetank.insight.kernels.compositions import margins, mean_leaves, roofline
from wavetank.insight.kernels.interface import Comparison, Profiles
from wavetank.settings import check_ranges, setting

Floats = NDArray[np.float64]

SCORES = {"overlap": scores.overlap, "cosine": scores.cosine, "jensen-shannon": scores.jensen_shannon}
_BORDER = 0.1


@dataclass(frozen=True, kw_only=True)
class KernelSimilarity:
    """Scores pairs by g (w S_composition + (1 - w) S_roofline), with g for pairs across the two categories.

    Where a kernel has no place on the roofline plane (its bytes or times are not known), the composition alone counts.
    """

    score: str = setting("jensen-shannon", says="Score of compositions", choices=tuple(SCORES))
    weight: float = setting(0.5, says="Of the composition against the roofline plane", low=0.0, high=1.0)
    border: float = setting(
        _BORDER, says="Margin at which a pair across the categories keeps 1/e; 0: all pairs count alike", low=0.0,
        high=10.0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return the comparison; nothing is learned from the suite.

        Parameters
        ----------
        suite : Profiles
        seed : int
        """
        return self.compare

    def compare(self, queries: Profiles, candidates: Profiles) -> Floats:
        """Return the similarity of every pair.

        Parameters
        ----------
        queries, candidates : Profiles

        Returns
        -------
        array, shape (queries, candidates)
            From 0 to 1; NaN where a kernel has no composition.
        """
        left, right = mean_leaves(queries), mean_leaves(candidates)
        score = SCORES[self.score](left, right)
        if self.weight < 1.0:
            plane = scores.on_the_plane(roofline(queries), roofline(candidates))
            score = np.where(np.isnan(plane), score, self.weight * score + (1.0 - self.weight) * plane)
        if self.border > 0.0:
            score = score * scores.same_category(margins(left), margins(right), self.border)
        return score
