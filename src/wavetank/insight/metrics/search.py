"""A tuner that looks at the trace of every trial, not at its speed alone.

A trial's time is divided by what its trace says: computing, communication that nothing hides, and the rest, in which
the ranks wait.  Each part follows another law of the configuration, simpler than that of their sum: computing hardly
knows how a job is cut, communication grows with tensor shards, waiting with stages and few microbatches.  So each part
gets a Gaussian process of its own, and the time that is expected of a configuration is the sum of three.  The first
trials are spread over the space: every process needs to see something of each law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from wavetank.settings import setting
from wavetank.study.tuning import Floats, Space, Trial, expected_improvement, gaussian_process, untried

PARTS = ("compute_fraction", "exposed_communication")
"""The shares of a trial's time that a trace gives; what is left of it is waiting."""
_LEAST = 1e-3


@dataclass(frozen=True, kw_only=True)
class CclSearch:
    """Tuner by a Gaussian process for each part of a trial's time."""

    traces: bool = setting(True, says="Whether trials are divided by their traces; else the time alone counts")
    filtered: bool = setting(True, says="Whether what a formula says does not fit is never tried")
    start: int = setting(4, unit="trials", says="Trials that are spread over the space first", low=1, high=1000)
    length: float = setting(0.7, says="Distance at which parts still resemble, of the range of each number", low=0.01,
                            high=100.0)  # fmt: skip

    def propose(self, space: Space, tried: Sequence[Trial], draws: Generator) -> int:
        """Return the farthest from all tried at first, then the one with the largest expected improvement.

        Parameters
        ----------
        space : Space
        tried : sequence of Trial
        draws : Generator
            For the first trial, and between equal ones.
        """
        left = untried(space, tried)
        fits = [number for number in left if space.predicted_bytes[number] <= space.room_bytes]
        left = fits if self.filtered and fits else left
        if not tried:
            return left[int(draws.integers(len(left)))]
        features = space.features
        worked = [trial for trial in tried if trial.speed is not None]
        if len(tried) < self.start or not worked:
            seen = features[[trial.number for trial in tried]]
            apart = np.abs(features[left][:, None, :] - seen[None]).sum(-1).min(1)
            best = np.flatnonzero(apart >= apart.max() - 1e-9)
            return left[int(best[draws.integers(best.size)])]
        at = features[[trial.number for trial in worked]]
        mean, deviation = self._speeds(at, worked, features[left])
        fastest = max(float(np.log(trial.speed)) for trial in worked if trial.speed is not None)
        gain = expected_improvement(mean, deviation, fastest)
        # What differs by rounding alone is equal; of equal ones the first.
        return left[int(np.argmax(np.round(gain / max(float(gain.max()), 1e-300), 9)))]

    def _speeds(self, at: Floats, worked: Sequence[Trial], where: Floats) -> tuple[Floats, Floats]:
        """Return mean and deviation of the logarithms of speeds."""
        times = np.array([1.0 / trial.speed for trial in worked if trial.speed is not None])
        rows = [times]
        if self.traces and all(set(PARTS) <= set(trial.figures) for trial in worked):
            shares = np.array([[trial.figures[part] for part in PARTS] for trial in worked]).clip(0.0, 1.0)
            shares /= np.maximum(shares.sum(1, keepdims=True), 1.0)
            rest = 1.0 - shares.sum(1)
            rows = [times * np.maximum(share, _LEAST) for share in (*shares.T, rest)]
        total, variance = np.zeros(len(where)), np.zeros(len(where))
        for row in rows:
            mean, deviation = gaussian_process(at, np.log(row), where, self.length)
            part = np.exp(mean)
            total += part
            variance += (part * deviation) ** 2
        return -np.log(total), np.maximum(np.sqrt(variance) / total, 1e-6)
