"""From what nodes report to how far each is from its peers: the view that all detectors of a study share.

A node is compared with the others of the same moment (:func:`wavetank.diagnosis.peers.peer_scores`), so that what all
do together moves no score.  Two things are learned from a time without failures: below which difference a metric means
nothing, and how far a node usually is from its peers.  A metric that a node does not report while its peers do counts
as a distance that grows with every missing sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.peers import NORMAL, peer_scores
from wavetank.errors import BadValueError
from wavetank.insight.cluster.interface import View

# Distances beyond it are as bad as it.
FARTHEST = 1000.0
# By which the distance of a silent metric grows with each missing sample.
SILENT = 1.0
_FLOOR_OF_SPREAD, _FLOOR_OF_LEVEL = 0.25, 1e-3


class PeerView:
    """Makes views of chunks, in their order.

    Parameters
    ----------
    learned : ndarray of float, shape (metrics, nodes, samples)
        A time without failures.

    Raises
    ------
    BadValueError
        If it has no samples, or infinite ones.
    """

    def __init__(self, learned: NDArray[np.floating]) -> None:
        if learned.ndim != 3 or not learned.size or np.isinf(learned).any():
            raise BadValueError("Nothing can be learned from this.", given=f"an array of shape {learned.shape}",
                                allowed="metrics x nodes x samples, finite or missing")  # fmt: skip
        self.floors = np.array([_floor(metric) for metric in learned])
        self.usual = np.zeros(learned.shape[:2], dtype=np.float32)
        self._missing = np.zeros(learned.shape[:2], dtype=np.int64)
        scores = self._scores(learned)
        heard = np.isfinite(scores).any(axis=2)
        if heard.any():
            self.usual[heard] = np.nanmedian(scores[heard], axis=1)

    def view(self, values: NDArray[np.floating]) -> View:
        """Return the view of the next chunk.

        Parameters
        ----------
        values : ndarray of float, shape (metrics, nodes, samples)

        Raises
        ------
        BadValueError
            If it has other metrics or nodes than what was learned.
        """
        if values.shape[:2] != self.usual.shape:
            raise BadValueError("A chunk has the metrics and nodes that were learned.", given=values.shape,
                                allowed=f"{self.usual.shape} and samples")  # fmt: skip
        scores = self._scores(values) - self.usual[:, :, None]
        live = np.isfinite(values)
        # A node is silent only where most others speak.
        spoken = live.mean(axis=1, keepdims=True) > 0.5
        silent = ~live & spoken
        rows = np.flatnonzero(silent.any(axis=2) | (self._missing > 0))
        for row in rows:
            metric, node = divmod(int(row), values.shape[1])
            before = int(self._missing[metric, node])
            self._missing[metric, node] = _count(silent[metric, node], scores[metric, node], before)
        scores[~live & ~spoken] = 0.0
        return View(values.astype(np.float32, copy=False), np.nan_to_num(scores, nan=0.0))

    def _scores(self, values: NDArray[np.floating]) -> NDArray[np.float32]:
        found = np.empty(values.shape, dtype=np.float32)
        for metric, floor in enumerate(self.floors):
            scores = peer_scores(values[metric].T, floor)
            found[metric] = np.clip(scores, -FARTHEST, FARTHEST).T
        return found


def _count(silent: NDArray[np.bool_], scores: NDArray[np.float32], missing: int) -> int:
    """Write the distance of silent samples; return for how many samples the metric is missing at the end."""
    for sample, is_silent in enumerate(silent.tolist()):
        missing = missing + 1 if is_silent else 0
        if is_silent:
            scores[sample] = min(SILENT * missing, FARTHEST)
    return missing


def _floor(metric: NDArray[np.floating]) -> float:
    """Return the difference below which a metric means nothing."""
    some = metric[:, :: max(1, metric.shape[1] // 500)].astype(np.float64)
    some = some[:, np.isfinite(some).any(axis=0)]
    if not some.size:
        return 1.0
    level = np.nanmedian(some, axis=0)
    spread = NORMAL * np.median(np.nanmedian(np.abs(some - level), axis=0))
    floor = float(_FLOOR_OF_SPREAD * spread + _FLOOR_OF_LEVEL * np.median(np.abs(level)))
    # A metric that is always zero: one of its unit.
    return floor if floor > 0 else 1.0
