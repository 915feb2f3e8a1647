"""The recipe of SuperMUC-NG Phase 2: a few rules and a formula of memory narrow the search, a surrogate does the rest.

Tensor shards stay inside of a node, and what a formula says does not fit is not tried.  The first trial is the one the
rules would take: the smallest bubble, then the largest microbatch.  Then a Gaussian process over the logarithms of all
numbers predicts the speed of what was not tried, and the configuration with the largest expected improvement is next.
A trial that did not fit says so to a second estimate, the chance that a configuration fits; it is no slow trial, or the
regions next to the limit, which are good ones, would be avoided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from wavetank.settings import setting
from wavetank.study.tuning import Floats, Space, Trial, alike, expected_improvement, gaussian_process, untried


@dataclass(frozen=True, kw_only=True)
class SuperMucRecipe:
    """Tuner by rules, a formula of memory and expected improvement under a Gaussian process."""

    filtered: bool = setting(True, says="Whether what a formula says does not fit is never tried")
    rules: bool = setting(True, says="Whether tensor shards stay in a node and the first trial follows from rules")
    start: int = setting(4, unit="trials", says="Trials before the surrogate chooses", low=1, high=1000)
    length: float = setting(0.5, says="Distance at which speeds still resemble, of the range of each number", low=0.01,
                            high=100.0)  # fmt: skip

    def propose(self, space: Space, tried: Sequence[Trial], draws: Generator) -> int:
        """Return the next configuration."""
        left = self.allowed(space, untried(space, tried))
        if self.rules and not tried:
            return min(left, key=lambda number: _by_rules(space.configurations[number]))
        worked = [(trial.number, trial.speed) for trial in tried if trial.speed is not None]
        if len(tried) < self.start or not worked:
            return left[int(draws.integers(len(left)))]
        features = space.features
        at = features[[number for number, _ in worked]]
        logs = np.log([speed for _, speed in worked])
        mean, deviation = gaussian_process(at, np.asarray(logs), features[left], self.length)
        gain = expected_improvement(mean, deviation, float(logs.max()))
        all_at = features[[trial.number for trial in tried]]
        worth = gain * chance_to_fit(all_at, [trial.speed is not None for trial in tried], features[left], self.length)
        # What differs by rounding alone is equal; of equal ones the first.
        return left[int(np.argmax(np.round(worth / max(float(worth.max()), 1e-300), 9)))]

    def allowed(self, space: Space, left: list[int]) -> list[int]:
        """Return the configurations that rules and formula leave; all that are left, where that is none.

        Parameters
        ----------
        space : Space
        left : list of int
            Not tried yet.
        """
        kept = [
            number
            for number in left
            if (not self.filtered or space.predicted_bytes[number] <= space.room_bytes)
            and (not self.rules or space.configurations[number][0] <= space.node)
        ]
        return kept or left


def _by_rules(configuration: tuple[int, ...]) -> tuple[float, ...]:
    tensor, stages, micro, microbatches, *_ = configuration
    return (stages - 1) / (microbatches + stages - 1), -micro, tensor


def chance_to_fit(at: Floats, fitted: Sequence[bool], where: Floats, length: float) -> Floats:
    """Return the chance that configurations fit: a vote of the trials near them, with one vote of 0.9 for all.

    Parameters
    ----------
    at : float64 array (n, features)
    fitted : sequence of bool
        Whether each trial did.
    where : float64 array (m, features)
    length : float
        At which a vote has lost 0.4 of its weight; a quarter of it counts here, for limits are sharp.
    """
    weights = alike(where, at, length / 4)
    return np.asarray((0.9 + weights @ np.array(fitted, np.float64)) / (1.0 + weights.sum(1)))
