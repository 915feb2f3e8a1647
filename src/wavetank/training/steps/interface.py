"""What a simulator of training steps promises.  One definition, used by the study and by all that it compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from wavetank.sim.steps import StepTimes
from wavetank.workloads.operations import StepGraph


class StepCase(NamedTuple):
    """A step to simulate.

    Parameters
    ----------
    graph : StepGraph
    pipeline : mapping of str to value
        What :func:`wavetank.workloads.pipelines.pipeline_time_ps` takes, where a closed form exists; else empty.
    """

    graph: StepGraph
    pipeline: Mapping[str, Any]


class StepSimulator(Protocol):
    """Says when the operations of a step end.

    ``prepare(case) -> call`` lays the graph out as the simulator wants it; the call simulates the step from the
    beginning, and can be made any number of times.  It returns :class:`wavetank.sim.steps.StepTimes`, or the makespan
    in ps alone where the simulator knows no more.
    """

    def prepare(self, case: StepCase) -> Callable[[], StepTimes | int]:
        """Return the call to time; it raises GaveUpError for a case that the simulator cannot answer."""
        ...
