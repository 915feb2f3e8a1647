"""Study ``step-simulator-speed``: how fast training steps are simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import GaveUpError, WavetankError
from wavetank.machine.clocks import CpuClock
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.sim.step_reference import reference_times
from wavetank.sim.steps import StepTimes
from wavetank.study.study import Chart, Metric
from wavetank.study.timing import Case, Repeated, Seconds, TimingStudy, in_a_row
from wavetank.training.steps.interface import StepCase
from wavetank.workloads.pipelines import pipeline_graph

CASES = ("ordered", "shared")
FORMULA = "closed-form-steps"
STAGES_PER_LINK = 8
_FORWARD_PS, _SPREAD_PS = 1_000_000_000, 100_000_000
# What takes less than that is called several times in a row.
_SHORT_S = 0.05


class _Expected(NamedTuple):
    step: StepCase
    end_ps: Any


@dataclass(frozen=True, kw_only=True)
class StepSimulatorSpeed(TimingStudy):
    """Every system simulates one step of 1F1B from the beginning, and its processor time counts: all use one core.  In
    the case ``ordered`` results are with the next stage at once, so that times are longest paths.  In ``shared`` they
    are sent, eight stages share a link, and no two operations take the same time.  The graph is made, checked and laid
    out before; ``prepare_s`` says what the latter takes.  Every end of an operation is compared with that of the plain
    Python reference before anything is timed.  All systems are given the same partners of messages and collectives;
    this graph has neither receives nor collectives.
    """

    name = "step-simulator-speed"
    baseline = "python-steps"
    clock = CpuClock
    primary = "operations_per_s"
    secondary = ("prepare_s",)
    metrics = (
        Metric(
            "operations_per_s", "operations/s", "higher", "measured",
            "operations of the graph / processor time of one simulation, which is that of one core",
        ),
        Metric(
            "prepare_s", "s", "lower", "measured", "processor time in which a checked graph is laid out, once",
            words="time to prepare", table=False,
        ),
    )  # fmt: skip
    charts = (
        Chart("bars", "Operations per second", y="operations_per_s", by="case", log="x", says="Longer is faster."),
    )

    stages: int = setting(128, unit="stages", says="Stages of the pipeline", low=2, high=4096)
    microbatches: int = setting(512, unit="micro-batches", says="Micro-batches of a step", low=1, high=100_000)
    rounds: int = setting(2, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the two cases."""
        return CASES

    def case(self, name: str, seed: int) -> Case:
        """Return the step and the ends of its operations."""
        pipeline: dict[str, Any] = {
            "schedule": "1f1b", "stages": self.stages, "microbatches": self.microbatches,
            "forward_ps": _FORWARD_PS, "backward_ps": 2 * _FORWARD_PS,
        }  # fmt: skip
        if name == "ordered":
            step = StepCase(pipeline_graph(**pipeline), pipeline)
        else:
            graph = pipeline_graph(
                **pipeline,
                send_ps=_FORWARD_PS // 100,
                links=[stage // STAGES_PER_LINK for stage in range(self.stages)],
            )
            # No two requests for a link come at the same picosecond: simulators would serve these in any order.
            more_ps = stream(seed, "step-simulator-speed").integers(0, _SPREAD_PS, len(graph))
            step = StepCase(replace(graph, duration_ps=graph.duration_ps + more_ps), {})
        return Case(name, _Expected(step, reference_times(step.graph.steps).end_ps))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the simulator's call, several times in a row where it is short."""
        call: Callable[[], object] = system.prepare(case.data.step)
        try:
            took_s = self.clock.of(self).seconds(call)
            if took_s < _SHORT_S:
                # The first call may have compiled or loaded something.
                took_s = self.clock.of(self).seconds(call)
        except GaveUpError:
            # It says so again in the warm-up, where it leaves the case.
            return call
        times = int(_SHORT_S / max(took_s, 1e-7)) + 1
        return call if times == 1 else Repeated(in_a_row(call, times), times)

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compare every end, or the makespan, with the reference's."""
        expected = case.data.end_ps
        right = (
            np.array_equal(result.end_ps, expected) if isinstance(result, StepTimes) else result == int(expected.max())
        )
        if not right:
            raise WavetankError(f"{system} gives other times than the reference.", where=case.name)

    def result_figures(self, case: Case, name: str, system: Any, result: Any) -> dict[str, float]:
        """Return how long preparing takes."""
        clock = self.clock.of(self)
        return {"prepare_s": clock.seconds(lambda: system.prepare(case.data.step))}

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> dict[str, float]:
        """Return the rate; a formula runs no operations."""
        return {} if name == FORMULA else {"operations_per_s": len(case.data.step.graph) / times[name]}
