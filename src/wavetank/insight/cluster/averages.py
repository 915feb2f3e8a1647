"""Decayed means of distances from peers, and how far they usually go: what detectors of a study have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.cluster.interface import View
from wavetank.settings import check_ranges, setting
from wavetank.sim.compiled import compiled

# Single samples count up to this many standard deviations: one wild sample is not to decide.
CAP = np.float32(10.0)
# What hardly ever moves is not judged by less than a tenth of a standard deviation.
LEAST_DEVIATION = 0.1


@dataclass(frozen=True, kw_only=True)
class Decaying:
    """What detectors share whose scores decay, and count when they last."""

    half_life: float = setting(10.0, unit="samples", says="Half-life of what is scored", low=0.1, high=10_000)
    held: int = setting(3, unit="samples", says="Samples for which a score must last", low=1, high=1000)

    def __post_init__(self) -> None:
        check_ranges(self)


class Averages:
    """Decayed means of the capped distances of every metric and node, which outlast a chunk.

    Parameters
    ----------
    half_life : float
        Samples.
    """

    def __init__(self, half_life: float) -> None:
        self.keep = 0.5 ** (1.0 / half_life)
        self._last: NDArray[np.float32] | None = None

    def of(self, view: View) -> NDArray[np.float32]:
        """Return the means, shape (metrics, nodes, samples).

        Parameters
        ----------
        view : View
        """
        if self._last is None:
            self._last = np.zeros(view.scores.shape[:2], dtype=np.float32)
        out = np.empty_like(view.scores)
        _averaged(view.scores, np.float32(self.keep), CAP, self._last, out)
        return out


class Standardised:
    """Sizes of decayed means in the standard deviations that they have without failures, metric by metric.

    Parameters
    ----------
    half_life : float
        Samples.
    metrics : int
    """

    def __init__(self, half_life: float, metrics: int) -> None:
        self._half_life = half_life
        self._averages, self._learning = Averages(half_life), Averages(half_life)
        self._squares, self._samples = np.zeros(metrics), 0

    def learn(self, view: View) -> NDArray[np.float32]:
        """Take in a part of a time without failures, and return its decayed means.

        Parameters
        ----------
        view : View
        """
        means = self._learning.of(view)
        # A sample a half-life: as good as independent.
        some = means[:, :, :: max(1, round(self._half_life))].astype(np.float64)
        self._squares += (some**2).sum(axis=(1, 2))
        self._samples += some.shape[1] * some.shape[2]
        return means

    def deviations(self) -> NDArray[np.float32]:
        """Return the standard deviations, shape (metrics,)."""
        return np.maximum(np.sqrt(self._squares / max(1, self._samples)), LEAST_DEVIATION).astype(np.float32)

    def of(self, view: View) -> NDArray[np.float32]:
        """Return the sizes, shape (metrics, nodes, samples).

        Parameters
        ----------
        view : View
        """
        means = self._averages.of(view)
        np.abs(means, out=means)
        means /= self.deviations()[:, None, None]
        return means


@compiled
def _averaged(scores, keep, cap, last, out):  # type: ignore[no-untyped-def]
    metrics, nodes, samples = scores.shape
    new = np.float32(1.0) - keep
    for metric in range(metrics):
        for node in range(nodes):
            mean = last[metric, node]
            for sample in range(samples):
                mean = keep * mean + new * min(max(scores[metric, node, sample], -cap), cap)
                out[metric, node, sample] = mean
            last[metric, node] = mean
