"""The two simulators as systems."""

import numpy as np

from wavetank.platforms import FittedStepTime
from wavetank.serving.fidelity.simulators import CompiledSimulator, ReferenceSimulator
from wavetank.serving.routing.baselines import FewestRequests
from wavetank.serving.simulator.cluster import Cluster
from wavetank.workloads.generate import generate_requests


def test_both_give_the_same_finishing_times_and_count_the_same_steps():
    requests = generate_requests(rate_per_s=20.0, n_requests=80, seed=3)
    for group_size in (1, 2):
        cluster = Cluster(
            workers=4,
            group_size=group_size,
            step_time=FittedStepTime(overhead_s=5e-3, per_request_s=1e-4, per_context_token_s=1e-7),
        )
        fast_s, fast_steps = CompiledSimulator().finish_s(requests, cluster, FewestRequests())
        slow_s, slow_steps = ReferenceSimulator().finish_s(requests, cluster, FewestRequests())
        np.testing.assert_array_equal(fast_s, slow_s)
        assert fast_steps == slow_steps > 0
