"""The two serving simulators as systems: the compiled one, and the readable one that ticks every step.

The second is the oracle of the first (they agree to the picosecond) and its baseline in speed.

The closed form of a decode phase is derived in :mod:`wavetank.serving.simulator.core`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from wavetank.serving.routing.interface import ArrivalRouter, PoolRouter
    from wavetank.serving.simulator.cluster import Cluster
    from wavetank.workloads.requests import RequestTrace


@dataclass(frozen=True, kw_only=True)
class CompiledSimulator:
    """The compiled simulator with exact fast-forward."""

    def finish_s(
        self, requests: RequestTrace, cluster: Cluster, router: ArrivalRouter | PoolRouter
    ) -> tuple[NDArray[np.float64], int]:
        """Return when each request was done, in s, and how many steps the workers (or groups) took."""
        from wavetank.serving.simulator.simulate import simulate

        run = simulate(requests, cluster, router)
        return run.finish_s, run.steps


@dataclass(frozen=True, kw_only=True)
class ReferenceSimulator:
    """The readable simulator: plain Python, one step at a time."""

    def finish_s(
        self, requests: RequestTrace, cluster: Cluster, router: ArrivalRouter | PoolRouter
    ) -> tuple[NDArray[np.float64], int]:
        """Return when each request was done, in s, and how many steps the workers (or groups) took."""
        from wavetank.platforms.step_time import PS_PER_S
        from wavetank.serving.simulator.reference import simulate_slowly

        found = simulate_slowly(requests, cluster, router)
        return found["finish_ps"] / PS_PER_S, int(found["steps"][0])
