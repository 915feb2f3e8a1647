"""The executor of step graphs, as a simulator that can be compared.

Streams are in order, so that the time of an operation is a longest path: no list of events is kept, a stream runs on
until it meets what has not ended.  Only requests for shared links are put in order of time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wavetank.sim.steps import StepTimes
from wavetank.training.steps.interface import StepCase


@dataclass(frozen=True, kw_only=True)
class CompiledSteps:
    """Longest paths in one compiled pass, on one core; see :mod:`wavetank.sim.steps`."""

    def prepare(self, case: StepCase) -> Callable[[], StepTimes]:
        """Return the call that runs the graph, laid out by streams.

        Parameters
        ----------
        case : StepCase
        """
        return case.graph.prepared().times
