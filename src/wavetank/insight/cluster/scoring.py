"""When a score is an alarm, and how good alarms are: one accounting for all detectors.

A score counts when it was held for some samples.  Of every few samples (:data:`BLOCK`) the largest held score is
kept; alarms of a node within half an hour are one.  The threshold is the least one at which a week without failures
has no more alarms a day than are wished.  A fault is found by an alarm on its node between its first sample and
:data:`GRACE_S` after the node was taken out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.scoreboard import AlarmScore, Event, alarm_score, threshold_for
from wavetank.errors import BadValueError
from wavetank.insight.cluster.simulated_cluster import STEP_S, Fault
from wavetank.sim.compiled import compiled

BLOCK = 6
MERGED_S = 1800.0
GRACE_S = 300.0
# The highest scores of a week among which its threshold is looked for.
_HIGHEST = 3000


class Held:
    """Scores that were held, as the largest of each block of samples.

    Parameters
    ----------
    held : int
        Samples for which a score must last.
    """

    def __init__(self, held: int) -> None:
        if held < 1:
            raise BadValueError("A score is held for one sample at least.", given=held)
        self.held = held
        self._tail: NDArray[np.float32] | None = None
        self.blocks: list[NDArray[np.float32]] = []

    def take(self, scores: NDArray[np.float32]) -> None:
        """Take the next scores, whole blocks of them.

        Parameters
        ----------
        scores : ndarray of float32, shape (nodes, samples)
        """
        nodes, samples = scores.shape
        if samples % BLOCK:
            raise BadValueError("Scores come in whole blocks.", given=samples, allowed=f"a multiple of {BLOCK}")
        if self._tail is None:
            # What was before is not known: nothing is held yet.
            self._tail = np.full((nodes, self.held - 1), -np.inf, dtype=np.float32)
        joined = np.concatenate([self._tail, scores.astype(np.float32, copy=False)], axis=1)
        self._tail = joined[:, joined.shape[1] - self.held + 1 :].copy()
        lowest = np.empty((nodes, samples), dtype=np.float32)
        _lowest(joined, self.held, lowest)
        self.blocks.append(lowest.reshape(nodes, samples // BLOCK, BLOCK).max(axis=2))

    def all(self) -> NDArray[np.float32]:
        """Return the largest held scores, shape (nodes, blocks)."""
        return np.concatenate(self.blocks, axis=1)


@compiled
def _lowest(scores, held, out):  # type: ignore[no-untyped-def]
    nodes, samples = out.shape
    for node in range(nodes):
        for sample in range(samples):
            least = scores[node, sample]
            for before in range(1, held):
                least = min(least, scores[node, sample + before])
            out[node, sample] = least


def threshold(held: NDArray[np.float32], wished_per_day: float) -> float:
    """Return the least threshold that keeps to a wished rate of alarms in a time without failures.

    Parameters
    ----------
    held : ndarray of float32, shape (nodes, blocks)
    wished_per_day : float
    """
    days = held.shape[1] * BLOCK * STEP_S / 86_400
    least = -np.inf if held.size <= _HIGHEST else float(np.partition(held.ravel(), -_HIGHEST)[-_HIGHEST])
    scores: dict[Hashable, tuple[NDArray[np.float64], NDArray[np.float32]]] = {}
    for node, row in enumerate(held):
        (chosen,) = np.nonzero(row >= least)
        scores[node] = (_times(chosen), row[chosen])
    return max(threshold_for(scores, per_day=wished_per_day, days=days, within_s=MERGED_S), least)


def judged(
    held: NDArray[np.float32], tau: float, faults: Sequence[Fault], *, first: int = 0,
    nodes: Sequence[int] | None = None,
) -> AlarmScore:  # fmt: skip
    """Return how the alarms at a threshold meet faults.

    Parameters
    ----------
    held : ndarray of float32, shape (nodes, blocks)
    tau : float
        Scores above it are alarms.
    faults : sequence of Fault
    first : int
        The sample of the stream at which the first block begins.
    nodes : sequence of int, optional
        Of the rows; by default all from 0.
    """
    days = held.shape[1] * BLOCK * STEP_S / 86_400
    alarms: dict[Hashable, NDArray[np.float64]] = {}
    for node, row in zip(nodes if nodes is not None else range(len(held)), held, strict=True):
        (above,) = np.nonzero(row > tau)
        if above.size:
            alarms[int(node)] = _times(above) + first * STEP_S
    return alarm_score(alarms, [event_of(each) for each in faults], days=days, within_s=MERGED_S)


def at_recall(held: NDArray[np.float32], recall: float, faults: Sequence[Fault], *, first: int = 0) -> AlarmScore:
    """Return how alarms meet faults at the highest threshold that finds a share of them: by hindsight, for all alike.

    Parameters
    ----------
    held : ndarray of float32, shape (nodes, blocks)
    recall : float
        Above 0, at most 1: share of the faults to be found.
    faults : sequence of Fault
    first : int
        The sample of the stream at which the first block begins.

    Returns
    -------
    AlarmScore
        Where no threshold finds this share, that of the lowest one: its recall says it.
    """
    wanted = math.ceil(recall * len(faults) - 1e-9)
    levels = np.unique(held)
    # Scores above the lowest level: the recall falls as the threshold rises, and is found by halving.
    low, high = 0, levels.size - 1
    while low < high:
        middle = (low + high + 1) // 2
        if judged(held, float(levels[middle]), faults, first=first).found >= wanted:
            low = middle
        else:
            high = middle - 1
    return judged(held, float(levels[low]), faults, first=first)


def event_of(fault: Fault) -> Event:
    """Return a fault as what an alarm is to find.

    Parameters
    ----------
    fault : Fault
    """
    return Event(subject=fault.node, begin_s=fault.begin * STEP_S, end_s=fault.end * STEP_S + GRACE_S, label=fault.kind)


def _times(blocks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return when blocks are over: an alarm is raised then at the latest."""
    return (blocks.astype(np.float64) + 1) * BLOCK * STEP_S
