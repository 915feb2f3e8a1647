"""The two serving simulators as contenders: the compiled one, and the readable one that ticks every step.

The second is the oracle of the first (they agree to the picosecond) and its baseline in speed.

Source: Wavetank's own; the closed form of a decode phase is derived in :mod:`wavetank.serving.core`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from wavetank.serving.cluster import Cluster
    from wavetank.serving.interfaces import ArrivalRouter, PoolRouter
    from wavetank.workloads.requests import RequestTrace


@dataclass(frozen=True, kw_only=True)
class CompiledSimulator:
    """The compiled simulator with exact fast-forward."""

    def finish_s(
        self, requests: RequestTrace, cluster: Cluster, router: ArrivalRouter | PoolRouter
    ) -> tuple[NDArray[np.float64], int]:
        """Return when each request was done, in s, and how many steps the workers (or groups) took."""
        from wavetank.serving.simulator import simulate

        run = simulate(requests, cluster, router)
        return run.finish_s, run.steps


@dataclass(frozen=True, kw_only=True)
class ReferenceSimulator:
    """The readable simulator: plain Python, one step at a time."""

    def finish_s(
        self, requests: RequestTrace, cluster: Cluster, router: ArrivalRouter | PoolRouter
    ) -> tuple[NDArray[np.float64], int]:
        """Return when each request was done, in s, and how many steps the workers (or groups) took."""
        from wavetank.serving.reference import PS_PER_S, simulate_slowly

        found = simulate_slowly(requests, cluster, router)
        return found["finish_ps"] / PS_PER_S, int(found["steps"][0])
