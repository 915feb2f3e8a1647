"""What an agent that repairs a service sees, and what it decides.

An agent is a frozen dataclass of settings whose ``fitted(learning)`` returns an object with ``decide(readings,
slo_ok)``.  It is shown one window of a case, before anybody knows what is wrong, and may act or hand the case on.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.repair.networks import MISSING

Floats = NDArray[np.float64]
Levels = NDArray[np.int64]
Flags = NDArray[np.bool_]

FAULTS = ("cpu-contention", "leak", "congestion")
ACTIONS = ("limit-neighbour", "restart-worker", "lower-rate")
"""What repairs each fault, in the order of the faults; workers are restarted after they were drained."""
CAN_BE_UNDONE = (True, False, True)
"""Whether an action can be taken back: what a restarted worker had at hand is gone."""
MECHANISMS = ("run_queue", "cpu_share", "rss_slope", "page_faults", "retransmits", "rtt")
SYMPTOMS = ("latency", "throughput", "errors")
WORSE = (1, -1, 1)
"""In which direction each symptom is worse."""
READINGS = (*MECHANISMS, *SYMPTOMS)
NAMES = (*FAULTS, *READINGS, "slo_ok")
"""The variables of a causal graph, in the order of its nodes."""
LEVELS = (*(2 for _ in FAULTS), *(3 for _ in READINGS), 2)


class Episodes(NamedTuple):
    """Cases, each with some windows of telemetry and the planted truth.

    Attributes
    ----------
    readings : ndarray of float64, shape (cases, windows, 9)
        In standard deviations of a healthy service, in the order of ``READINGS``; NaN where nothing was read.
    slo_ok : ndarray of bool, shape (cases, windows)
        Whether the service kept its objective.
    present : ndarray of bool, shape (cases, 3)
        Which known faults are planted.
    unknown : ndarray of bool, shape (cases,)
        Whether a fault is planted that no graph has.
    """

    readings: Floats
    slo_ok: Flags
    present: Flags
    unknown: Flags

    def chosen(self, which: Flags) -> Episodes:
        """Return some of the cases.

        Parameters
        ----------
        which : ndarray of bool, shape (cases,)
        """
        return Episodes(self.readings[which], self.slo_ok[which], self.present[which], self.unknown[which])

    def shown(self) -> tuple[Floats, Flags]:
        """Return what an agent is shown: the last window without the objective, or the last one where all kept it.

        Returns
        -------
        readings : numpy.ndarray of float64, shape (cases, 9)
        slo_ok : numpy.ndarray of bool, shape (cases,)
        """
        windows = self.slo_ok.shape[1]
        broken = ~self.slo_ok
        at = np.where(broken.any(axis=1), windows - 1 - broken[:, ::-1].argmax(axis=1), windows - 1)
        rows = np.arange(len(at))
        return self.readings[rows, at], self.slo_ok[rows, at]


class Learning(NamedTuple):
    """What an agent learns from, all of it from other seeds than the cases that judge it.

    Attributes
    ----------
    healthy : Episodes
        Without faults.
    history : Episodes
        With known faults and without, whether anybody looked or not: tables of a graph come from these, since those
        of cases alone would take what made somebody look for an effect.
    train, validation : Episodes
        Cases, with known faults.
    parents : tuple of tuple of int
        The causal graph over ``NAMES`` as operators drew it; it may have wrong edges.
    seed : int
        For agents that draw.
    """

    healthy: Episodes
    history: Episodes
    train: Episodes
    validation: Episodes
    parents: tuple[tuple[int, ...], ...]
    seed: int


class Decisions(NamedTuple):
    """What an agent decides, case by case.

    Attributes
    ----------
    action : ndarray of int64, shape (cases,)
        The best action, as a place in ``ACTIONS``, also where it is not taken.
    acts : ndarray of bool, shape (cases,)
        Whether it is taken; other cases are handed on.
    sure : ndarray of float64, shape (cases,)
        How sure the agent is: in this order it would take actions if it were to take more, or fewer.
    """

    action: Levels
    acts: Flags
    sure: Floats


class FittedAgent(Protocol):
    """An agent that has learned."""

    def decide(self, readings: Floats, slo_ok: Flags) -> Decisions:
        """Return what to do, for readings of shape (cases, 9) and objectives of shape (cases,)."""
        ...


class RepairAgent(Protocol):
    """Decides which repair a service needs, or that somebody else should."""

    def fitted(self, learning: Learning) -> FittedAgent:
        """Return the agent with what it learned."""
        ...


class Cuts(NamedTuple):
    """Where readings become low, normal and high.

    Attributes
    ----------
    low, high : ndarray of float64, shape (9,)
    """

    low: Floats
    high: Floats

    def levels(self, readings: Floats) -> Levels:
        """Return the levels 0, 1 and 2 of readings of shape (..., 9), and ``MISSING`` where nothing was read.

        Parameters
        ----------
        readings : ndarray of float64
        """
        with np.errstate(invalid="ignore"):
            levels = (readings >= self.low).astype(np.int64) + (readings > self.high)
        return np.where(np.isfinite(readings), levels, MISSING)


def cuts_of(healthy: Episodes, share: float = 0.1) -> Cuts:
    """Return the cuts below and above which this share of a healthy service's readings lies.

    Parameters
    ----------
    healthy : Episodes
    share : float
        Of either side, below a half.
    """
    low, high = np.nanquantile(healthy.readings.reshape(-1, len(READINGS)), [share, 1 - share], axis=0)
    return Cuts(low, high)


def states_of(episodes: Episodes, cuts: Cuts) -> Levels:
    """Return the levels of all variables in all windows, faults included, shape (cases * windows, nodes).

    Parameters
    ----------
    episodes : Episodes
    cuts : Cuts
    """
    windows = episodes.slo_ok.shape[1]
    levels = cuts.levels(episodes.readings).reshape(-1, len(READINGS))
    present = np.repeat(episodes.present.astype(np.int64), windows, axis=0)
    return np.concatenate((present, levels, episodes.slo_ok.reshape(-1, 1).astype(np.int64)), axis=1)
