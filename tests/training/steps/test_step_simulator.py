"""The executor as a system."""

import numpy as np

from wavetank.sim.step_reference import reference_times
from wavetank.training.steps.interface import StepCase
from wavetank.training.steps.step_simulator import CompiledSteps
from wavetank.workloads.pipelines import pipeline_graph


def test_its_call_gives_the_reference_times_every_time():
    graph = pipeline_graph(stages=3, microbatches=5, forward_ps=10, backward_ps=[20, 30, 20], send_ps=2, links=[0] * 3)
    call = CompiledSteps().prepare(StepCase(graph, {}))
    expected = reference_times(graph.steps).end_ps
    assert np.array_equal(call().end_ps, expected)
    assert np.array_equal(call().end_ps, expected)
