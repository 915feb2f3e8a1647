"""What a detector of failing nodes sees and says.

A detector is a frozen dataclass of settings whose ``watcher(metrics, layers)`` returns an object with a memory.  It is
shown a day without failures (``learn``), then asked for scores, chunk after chunk; higher is worse.  Which score is an
alarm is decided outside, by one rule for all (:mod:`wavetank.insight.cluster.scoring`): the score must be held, and
the threshold comes out of a week without failures.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class View(NamedTuple):
    """A part of the history of a cluster.

    Attributes
    ----------
    values : ndarray of float32, shape (metrics, nodes, samples)
        As reported; NaN where a node did not report.
    scores : ndarray of float32, shape (metrics, nodes, samples)
        Distance of a node from its peers in robust standard deviations, less what is usual for this node; of a metric
        that a node does not report while its peers do, a number that grows while it is missing.
    """

    values: NDArray[np.float32]
    scores: NDArray[np.float32]


class Watcher(Protocol):
    """A detector at work."""

    def learn(self, view: View) -> None:
        """Take in a part of a time without failures."""

    def score(self, view: View) -> NDArray[np.float32]:
        """Return how suspicious each node is, shape (nodes, samples)."""


class ClusterDetector(Protocol):
    """Finds nodes that fail."""

    @property
    def held(self) -> int:
        """Samples for which a score must last before it counts."""

    def watcher(self, metrics: tuple[str, ...], layers: tuple[str, ...]) -> Watcher:
        """Return a watcher of metrics, of which ``layers`` names the layer of each."""
