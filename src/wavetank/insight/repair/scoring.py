"""Which episodes are cases, and how good decisions on them are: one accounting for all agents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.diagnosis.scoreboard import area_of_risk, risk_at
from wavetank.errors import BadValueError
from wavetank.insight.repair.interface import ACTIONS, CAN_BE_UNDONE, Cuts, Decisions, Episodes, Flags, Floats, Levels

BROKEN = 3
"""Windows without the objective that make a case."""
_IMPROVES = 0.5


class Trigger(NamedTuple):
    """When somebody looks: the objective is broken in three windows, or the readings are too surprising.

    Attributes
    ----------
    cuts : Cuts
    surprise : ndarray of float64, shape (9, 3)
        -ln of how often a healthy service has each level, in nats.
    limit : float
        The 99th percentile of the summed surprise of healthy episodes.
    """

    cuts: Cuts
    surprise: Floats
    limit: float

    def cases(self, episodes: Episodes) -> Flags:
        """Return which episodes are looked at, shape (cases,).

        Parameters
        ----------
        episodes : Episodes
        """
        broken: Flags = (~episodes.slo_ok).sum(axis=1) >= BROKEN
        return broken | (self.surprises(episodes) > self.limit)

    def surprises(self, episodes: Episodes) -> Floats:
        """Return the surprise of each episode, summed over windows and readings, in nats.

        Parameters
        ----------
        episodes : Episodes
        """
        levels = self.cuts.levels(episodes.readings)
        known = levels >= 0
        each = self.surprise[np.arange(levels.shape[-1]), np.where(known, levels, 0)]
        total: Floats = np.where(known, each, 0.0).sum(axis=(1, 2))
        return total


def trigger_of(healthy: Episodes, cuts: Cuts) -> Trigger:
    """Return the trigger that a healthy service's windows give.

    Parameters
    ----------
    healthy : Episodes
    cuts : Cuts
    """
    levels = cuts.levels(healthy.readings).reshape(-1, healthy.readings.shape[-1])
    counts = np.stack([(levels == level).sum(axis=0) + 1.0 for level in range(3)], axis=1)
    surprise = -np.log(counts / counts.sum(axis=1, keepdims=True))
    unlimited = Trigger(cuts, surprise, float("inf"))
    return unlimited._replace(limit=float(np.quantile(unlimited.surprises(healthy), 0.99)))


class Score(NamedTuple):
    """How good decisions are.

    Attributes
    ----------
    cases : int
    acted, right, destructive : int
        Cases in which an action was taken, in which it repairs a fault that is present, in which it does not.
    area : float
        Below the curve of risk against coverage.
    """

    cases: int
    acted: int
    right: int
    destructive: int
    area: float


def harmful(episodes: Episodes, action: Levels) -> Flags:
    """Return in which cases an action repairs nothing that is there, taken or not.

    Parameters
    ----------
    episodes : Episodes
    action : ndarray of int64, shape (cases,)
        Places in ``ACTIONS``.

    Raises
    ------
    BadValueError
        If an action is none, or a case has none.
    """
    if action.shape != (len(episodes.present),) or ((action < 0) | (action >= len(ACTIONS))).any():
        raise BadValueError("Every case has a best action.", given=action.shape, allowed=ACTIONS)
    wrong: Flags = ~episodes.present[np.arange(len(action)), action]
    return wrong


def scored(episodes: Episodes, decisions: Decisions) -> Score:
    """Return how good decisions are.

    Parameters
    ----------
    episodes : Episodes
    decisions : Decisions
    """
    wrong = harmful(episodes, decisions.action)
    return Score(
        cases=len(wrong), acted=int(decisions.acts.sum()), right=int((decisions.acts & ~wrong).sum()),
        destructive=int((decisions.acts & wrong).sum()), area=area_of_risk(decisions.sure, wrong),
    )  # fmt: skip


def risk(episodes: Episodes, decisions: Decisions, coverage: float) -> float:
    """Return the share of harmful actions if an agent acted in this share of cases, its surest.

    Parameters
    ----------
    episodes : Episodes
    decisions : Decisions
    coverage : float
        0 gives 0.
    """
    return risk_at(decisions.sure, harmful(episodes, decisions.action), coverage) if coverage > 0 else 0.0


def rolled_back(before: Episodes, after: Episodes, action: Levels, windows: int) -> Flags:
    """Return which actions are taken back after some windows, since they improved too little; shape (cases,).

    An action stays where the objective is broken in at most half as large a share of the windows as before it.

    Parameters
    ----------
    before, after : Episodes
        The same cases before and after the action, both with as many windows at least.
    action : ndarray of int64, shape (cases,)
    windows : int
        That are waited for; 1 or more.

    Raises
    ------
    BadValueError
        If there are not as many windows, or the cases are not the same.
    """
    if not 1 <= windows <= after.slo_ok.shape[1] or len(before.slo_ok) != len(after.slo_ok):
        raise BadValueError("An action is judged by some of the windows after it.", given=windows,
                            allowed=f"1 to {after.slo_ok.shape[1]}, of the same cases")  # fmt: skip
    was, now = (~before.slo_ok).mean(axis=1), (~after.slo_ok[:, :windows]).mean(axis=1)
    found: Flags = (now > _IMPROVES * was) & np.array(CAN_BE_UNDONE)[action]
    return found
