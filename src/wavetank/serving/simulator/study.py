"""Study ``simulator-speed``: what the serving simulator costs."""

from __future__ import annotations

import subprocess
import time
import tracemalloc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.live.processes import python_code
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

if TYPE_CHECKING:
    from wavetank.serving.routing.interface import Arrival, WorkersView
    from wavetank.serving.simulator.cluster import Cluster
    from wavetank.serving.simulator.reuse import ReusePolicy
    from wavetank.workloads.requests import RequestTrace

ROUTERS = ("round-robin", "random-worker", "power-of-two", "fewest-requests", "fewest-kv-tokens", "vllm-default")
POOL_ROUTERS = ("balance-route-0", "balance-route")
_START = """
import numpy as np
from wavetank.platforms import FittedStepTime
from wavetank.serving import Cluster, RequestTrace, simulate
from wavetank.serving.routing.power_of_two import PowerOfTwo
trace = RequestTrace(arrival_s=np.arange(9.0), prompt_tokens=np.full(9, 9), output_tokens=np.full(9, 9))
simulate(trace, Cluster(step_time=FittedStepTime(overhead_s=0.01)), PowerOfTwo())
"""


@dataclass(frozen=True, kw_only=True)
class _PythonFewestRequests:
    """A router as a newcomer writes it: a few lines of numpy."""

    def choose(self, view: WorkersView, arrival: Arrival, state: Any, parameters: Any) -> int:
        return int(np.argmin(view.running + view.waiting + view.sent_requests))

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        return np.zeros(0)

    def parameters(self) -> NDArray[np.float64]:
        return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class SimulatorSpeed(Study):
    """The same generated chat traffic for both simulators; the reference gets fewer requests, for it ticks every step.
    Everything runs in this process, one after the other; the start is a fresh process with compiled code on disk.
    """

    name = "simulator-speed"
    baseline = "serving-reference"
    primary = "requests_per_s"
    secondary = ("bytes_per_request", "start_s")
    cases_by = "case"
    in_process = True
    default_seeds = 3
    metrics = (
        Metric(
            "requests_per_s", "requests/s", "higher", "measured",
            "requests served / wall time, metrics of every request kept",
        ),
        Metric(
            "steps_per_s", "steps/s", "higher", "measured",
            "steps of all workers (of the group: its barriers) / wall time",
        ),
        Metric(
            "bytes_per_request", "bytes", "lower", "measured",
            "peak of the memory allocated during a run / requests",
        ),
        Metric(
            "start_s", "s", "lower", "measured",
            "a fresh process from start to end of a run of 9 requests, code cached", words="start-up time",
        ),
    )  # fmt: skip
    charts = (
        Chart("bars", "Requests per second", y="requests_per_s", by="case", log="x", says="Longer is faster."),
        Chart("bars", "Steps per second", y="steps_per_s", by="case", log="x", says="Longer is faster."),
    )

    requests: int = setting(
        1_000_000, unit="requests", says="Requests for the compiled simulator", low=1000, high=100_000_000
    )
    group_requests: int = setting(
        100_000, unit="requests", says="Requests for the lockstep group, and for workers that keep prompts",
        low=1000, high=10**8,
    )  # fmt: skip
    python_requests: int = setting(
        100_000, unit="requests", says="Requests behind a plain Python router", low=1000, high=10**8
    )
    reference_requests: int = setting(
        400, unit="requests", says="Requests for the reference simulator", low=10, high=10**6
    )
    workers: int = setting(16, unit="workers", says="Number of independent replicas", low=1, high=10_000)
    group_workers: int = setting(144, unit="workers", says="Workers of the lockstep group", low=2, high=10_000)
    rate_per_s: float = setting(100.0, unit="requests/s", says="Arrival rate at the replicas", low=0.1, high=1e6)
    group_rate_per_s: float = setting(
        100.0, unit="requests/s", says="Arrival rate at the lockstep group", low=0.1, high=1e6
    )

    def cluster(self) -> Cluster:
        """Return the independent replicas."""
        from wavetank.serving.simulator.cluster import Cluster

        return Cluster(workers=self.workers)

    def group(self) -> Cluster:
        """Return the lockstep group."""
        from wavetank.serving.simulator.cluster import Cluster

        return Cluster(workers=self.group_workers, group_size=self.group_workers)

    def traffic(self, n: int, rate_per_s: float, seed: int) -> RequestTrace:
        """Return chat requests (mean output 211 tokens)."""
        from wavetank.workloads.generate import generate_requests

        return generate_requests(rate_per_s=rate_per_s, n_requests=n, seed=seed)

    def repeated(self, n: int, seed: int) -> RequestTrace:
        """Return chat requests of which 70 % begin with one of 16 texts."""
        from wavetank.workloads.generate import SharedPrefix, generate_requests

        return generate_requests(
            rate_per_s=self.rate_per_s, n_requests=n, seed=seed, shared_prefix=SharedPrefix(share=0.7)
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Time one simulator on every case."""
        from wavetank.ledger import catalog
        from wavetank.serving.fidelity.simulators import ReferenceSimulator

        found = Measurements()
        slow = isinstance(system, ReferenceSimulator)
        replicas = self.traffic(self.reference_requests if slow else self.requests, self.rate_per_s, seed)
        slowest = np.inf
        for name in ROUTERS[:1] if slow else ROUTERS + POOL_ROUTERS:
            router = catalog.system(name).build()
            rate = _timed(found, system, replicas, self.cluster(), router, f"{self.workers} replicas, {name}")
            if name in ROUTERS:
                slowest = min(slowest, rate)
        group = replicas.head(50) if slow else self.traffic(self.group_requests, self.group_rate_per_s, seed)
        for name in ("vllm-default",) if slow else ("vllm-default", *POOL_ROUTERS):
            router = catalog.system(name).build()
            _timed(found, system, group, self.group(), router, f"group of {self.group_workers}, {name}")
        if slow:
            return found
        found.put("requests_per_s", slowest, case="slowest built-in arrival router")
        few = replicas.head(self.python_requests)
        _timed(
            found, system, few, self.cluster(), _PythonFewestRequests(), f"{self.workers} replicas, plain Python router"
        )
        for words, policy in _policies().items():
            keeping = replace(self.cluster(), reuse=policy)
            _timed(
                found, system, self.repeated(self.group_requests, seed), keeping,
                catalog.system("round-robin").build(), f"{self.workers} replicas, round-robin, {words}",
            )  # fmt: skip
        some = replicas.head(100_000)
        tracemalloc.start()
        try:
            system.finish_s(some, self.cluster(), catalog.system("vllm-default").build())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        found.put("bytes_per_request", peak / len(some), case="memory and start")
        found.put("start_s", _start_s(), case="memory and start")
        return found


def _policies() -> dict[str, ReusePolicy]:
    """Return what workers keep of prompts: as little to do as prefix caching has, and as much as there is."""
    from wavetank.serving.simulator.reuse import ContentReuse, PrefixReuse, ReuseRule

    everything = ReuseRule(again_tokens=4, again_share=0.15, fetch=True)
    return {"prefixes kept": PrefixReuse(), "contents kept, moved and fetched": ContentReuse(how=everything)}


def _timed(found: Measurements, system: Any, requests: RequestTrace, cluster: Cluster, router: Any, case: str) -> float:
    system.finish_s(requests.head(20), cluster, router)
    start = time.perf_counter()
    _, steps = system.finish_s(requests, cluster, router)
    took = time.perf_counter() - start
    found.put("requests_per_s", len(requests) / took, case=case)
    found.put("steps_per_s", steps / took, case=case)
    return len(requests) / took


def _start_s() -> float:
    start = time.perf_counter()
    done = subprocess.run(python_code(_START), capture_output=True, text=True, timeout=300)
    took = time.perf_counter() - start
    if done.returncode:
        raise WavetankError("A fresh process could not run the simulator.", given=done.stderr[-500:])
    return took
