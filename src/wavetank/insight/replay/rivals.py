"""Other ways to the length of a changed step: its recorded length, and sums without an order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetank.insight.replay.interface import CollectedStep
from wavetank.insight.replay.timeline import shortest
from wavetank.sim.steps import COLLECTIVE
from wavetank.workloads.chakra import step_graph

_PS_PER_S = 1e12


@dataclass(frozen=True, kw_only=True)
class RecordedDurations:
    """The step takes what it took, and what is added to any rank is added to it: replay without a graph."""

    def step_s(self, step: CollectedStep, rank: int, delay_s: float) -> float:
        """Return the recorded length and the delay.

        Parameters
        ----------
        step : CollectedStep
        rank : int
        delay_s : float
        """
        return step.took_s + delay_s


@dataclass(frozen=True, kw_only=True)
class ClosedFormReplay:
    """The busiest rank's own time, the delay counted, and all collectives behind it: nothing overlaps, nobody waits.

    A collective takes what it took on the rank that waited least.
    """

    def step_s(self, step: CollectedStep, rank: int, delay_s: float) -> float:
        """Return the sum.

        Parameters
        ----------
        step : CollectedStep
        rank : int
        delay_s : float
        """
        graph = shortest(step_graph(step.traces))
        moves = graph.kind == COLLECTIVE
        own_ps = np.bincount(graph.rank, np.where(moves, 0, graph.duration_ps).astype(np.float64))
        own_ps[rank] += delay_s * _PS_PER_S
        busiest = int(own_ps.argmax())
        talks_ps = float(graph.duration_ps[moves & (graph.rank == busiest)].sum())
        return (float(own_ps[busiest]) + talks_ps) / _PS_PER_S
