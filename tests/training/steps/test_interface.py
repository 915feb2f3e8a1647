"""Every simulator of the study keeps the promise of the interface."""

import pytest

from wavetank.ledger import catalog
from wavetank.sim.steps import StepTimes
from wavetank.training.steps.interface import StepCase
from wavetank.workloads.pipelines import pipeline_graph

PIPELINE = {"schedule": "gpipe", "stages": 3, "microbatches": 4, "forward_ps": 5, "backward_ps": 9}


@pytest.mark.parametrize("name", catalog.built_in().plain_run("step-simulator-speed"))
def test_a_prepared_call_gives_times_or_the_makespan_every_time(name):
    if name == "simpy-steps":
        pytest.importorskip("simpy")
    call = catalog.system(name).build().prepare(StepCase(pipeline_graph(**PIPELINE), PIPELINE))
    for _ in range(2):
        found = call()
        makespan_ps = found.makespan_ps if isinstance(found, StepTimes) else found
        assert makespan_ps == (4 + 3 - 1) * (5 + 9)
