"""What kernel similarity is measured against: other scores on the same figures, chance, and who knows the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import MissingExtraError
from wavetank.extras import install_command
from wavetank.insight.kernels import scores
from wavetank.insight.kernels.compositions import mean_leaves, roofline
from wavetank.insight.kernels.interface import Comparison, Profiles
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CosineOfLeaves:
    """The cosine of compositions, or of the shares as they were counted."""

    counted: bool = setting(False, says="Of the nine shares as counted, clipped at zero, in place of the leaves")

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return the comparison.

        Parameters
        ----------
        suite : Profiles
        seed : int
        """
        return lambda queries, candidates: scores.cosine(self._vectors(queries), self._vectors(candidates))

    def _vectors(self, profiles: Profiles) -> Floats:
        if self.counted:
            return np.clip(np.nan_to_num(profiles.mean().shares[:, 0, :9]), 0.0, None)
        return mean_leaves(profiles)


@dataclass(frozen=True, kw_only=True)
class OverlapOfLeaves:
    """The absolute difference of compositions, summed over the leaves (L1)."""

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return the comparison.

        Parameters
        ----------
        suite : Profiles
        seed : int
        """
        return lambda queries, candidates: scores.overlap(mean_leaves(queries), mean_leaves(candidates))


@dataclass(frozen=True, kw_only=True)
class RooflineDistance:
    """The distance on the roofline plane alone; kernels without a place on it are alike to none."""

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return the comparison.

        Parameters
        ----------
        suite : Profiles
        seed : int
        """
        return lambda queries, candidates: np.nan_to_num(scores.on_the_plane(roofline(queries), roofline(candidates)))


@dataclass(frozen=True, kw_only=True)
class StandardScores:
    """Euclid's distance of leaves and logarithms of both rates, each in standard deviations of the suite."""

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return the comparison with the suite's means and deviations.

        Parameters
        ----------
        suite : Profiles
        seed : int
        """
        vectors = _vectors(suite)
        deviation = np.nanstd(vectors, axis=0)
        scale = np.where(deviation > 0, deviation, 1.0)
        return lambda queries, candidates: _nearness(_vectors(queries) / scale, _vectors(candidates) / scale)


@dataclass(frozen=True, kw_only=True)
class RunDiscriminant:
    """The linear discriminant that separates the suite's kernels best, by how much their own runs differ.

    Raises
    ------
    MissingExtraError
        When it is fitted and scikit-learn is not installed.
    """

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return the distance in the discriminant's space, fitted to the runs of the suite.

        Parameters
        ----------
        suite : Profiles
            Each kernel in several runs; with single runs there is nothing to fit, and leaves are compared as they are.
        seed : int
        """
        rows = [
            (at, _vectors(suite.of_runs(np.array([run]))))
            for run in range(suite.runs)
            for at in (np.arange(len(suite.names)),)
        ]
        labels = np.concatenate([at for at, _ in rows])
        # Operations a byte do not differ between runs, which a discriminant takes for a perfect sign.
        values = np.concatenate([vectors for _, vectors in rows])[:, [*range(8), 9]]
        whole = ~np.isnan(values).any(1)
        labels, values = labels[whole], values[whole]
        if suite.runs < 2 or np.unique(labels).size < 3:
            return lambda queries, candidates: _nearness(mean_leaves(queries), mean_leaves(candidates))
        try:
            from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
        except ImportError as error:
            raise MissingExtraError("The discriminant is scikit-learn's.", hint=install_command("insight")) from error
        model = LinearDiscriminantAnalysis(solver="svd").fit(values, labels)

        def compare(queries: Profiles, candidates: Profiles) -> Floats:
            left, right = (_transformed(model, _vectors(each)[:, [*range(8), 9]]) for each in (queries, candidates))
            return _nearness(left, right)

        return compare


@dataclass(frozen=True, kw_only=True)
class RandomMatch:
    """Similarities by chance."""

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return a comparison that draws.

        Parameters
        ----------
        suite : Profiles
        seed : int
        """
        draw = stream(seed, "random-match")
        return lambda queries, candidates: draw.random((len(queries.names), len(candidates.names)))


@dataclass(frozen=True, kw_only=True)
class NearestTime:
    """The kernel whose time moves most alike: it is given the times on the other machine that are asked for."""

    spread: float = setting(1.0, says="Difference of logarithms at which similarity is 1/e", low=1e-3, high=1e3)

    def __post_init__(self) -> None:
        check_ranges(self)

    def knowing(self, moved: Floats) -> Comparison:
        """Return the comparison of kernels by their names' changes of time.

        Parameters
        ----------
        moved : array, shape (kernels,)
            Logarithms of times there over times here, of queries and candidates alike.
        """
        return lambda queries, candidates: np.exp(-np.abs(moved[:, None] - moved[None]) / self.spread)

    def fitted(self, suite: Profiles, seed: int) -> Comparison:
        """Return a comparison that knows nothing, where no times are asked for.

        Parameters
        ----------
        suite : Profiles
        seed : int
        """
        return lambda queries, candidates: np.full((len(queries.names), len(candidates.names)), math.nan)


def _vectors(profiles: Profiles) -> Floats:
    return np.concatenate((mean_leaves(profiles), roofline(profiles)), axis=1)


def _transformed(model: object, values: Floats) -> Floats:
    whole = ~np.isnan(values).any(1)
    found = np.full((len(values), 1), np.nan)
    if whole.any():
        known = np.asarray(model.transform(values[whole]), np.float64)  # type: ignore[attr-defined]
        found = np.full((len(values), known.shape[1]), np.nan)
        found[whole] = known
    return found


def _nearness(u: Floats, v: Floats) -> Floats:
    """Return 1 / (1 + distance), over the features that both have."""
    difference = np.nan_to_num(u[:, None] - v[None])
    return np.asarray(1.0 / (1.0 + np.sqrt((difference**2).sum(-1))), np.float64)
