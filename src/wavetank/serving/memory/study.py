"""Study ``memory-split``: how one memory is divided between embedding rows and keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.machine.limits import require_memory
from wavetank.serving.memory.che import mean_service_s
from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.interface import WINDOW, Replay, run_policy
from wavetank.serving.memory.traffic import SCENARIOS, Traffic, make_traffic, scenario
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

# Windows at the beginning that are not counted.
_WARM_UP = 80
# Five columns of eight bytes, and as much again while they are made.
_REQUEST_BYTES = 80


@dataclass(frozen=True, kw_only=True)
class MemorySplitStudy(Study):
    """A node replays the same requests through its true caches under each policy, window by window.  The mix has six
    regimes that no policy was trained or tuned on, each turning into the next; other scenarios are steady traffic,
    histories that grow, and bursts.
    """

    name: ClassVar[str] = "memory-split"
    baseline: ClassVar[str] = "fixed-split"
    primary: ClassVar[str] = "p99_s"
    secondary: ClassVar[tuple[str, ...]] = ("within_share", "service_s")
    must_be_zero: ClassVar[tuple[str, ...]] = ("over_bytes",)
    metrics = (
        Metric("p99_s", "s", "lower", "simulated",
               "99th percentile of latencies within each twelfth of the requests, geometric mean over these; mix",
               words="99th percentile of latency"),
        Metric("p99_whole_s", "s", "lower", "simulated", "99th percentile of the latencies of all requests; mix",
               words="99th percentile over the whole trace"),
        Metric("within_share", "", "higher", "simulated", "share of the requests within the objective; mix",
               words="share within the objective"),
        Metric("service_s", "s", "lower", "simulated", "mean time of a request without its wait; mix",
               words="time without waiting"),
        Metric("decision_s", "s", "lower", "measured", "time of one decision on this machine; median"),
        Metric("over_bytes", "bytes", "lower", "simulated", "most by which both caches held more than the memory"),
        Metric("refill_share", "", "lower", "simulated", "bytes copied in the background over all copied bytes"),
        Metric("share_then", "", "", "simulated", "share of embedding rows during the mix", table=False),
        Metric("scenario_p99_s", "s", "lower", "simulated", "p99_s of each scenario", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "99th percentile of latency", y="p99_s", says="Shorter is better."),
        Chart("bars", "99th percentile by scenario", y="scenario_p99_s", by="scenario",
              says="Where traffic does not change, a fixed boundary is hard to beat."),
        Chart("timeline", "Share of embedding rows during the mix", y="share_then", by="time_share",
              says="How far and how fast the boundary follows the regimes."),
    )  # fmt: skip

    requests: int = setting(120_000, unit="requests", says="Length of a scenario, roughly", low=12_000, high=10**8)
    load: float = setting(
        0.75, says="Share of the time in which a node with the reference boundary is busy", low=0.01, high=2.0
    )
    transition: float = setting(
        0.5, says="Share of a regime's requests over which it turns into the next; 0: it jumps", low=0.0, high=1.0
    )
    memory_bytes: float = setting(20e9, unit="bytes", says="Memory that both caches share", low=1e9, high=1e13)
    copy_bytes_per_s: float = setting(
        6e9, unit="bytes/s", says="Rate at which rows are gathered from the host", low=1e6, high=1e12
    )
    rows_per_token: int = setting(16, says="Rows that a token looks up", low=1, high=1000)
    slo_s: float = setting(0.1, unit="s", says="Objective for a request's latency", low=1e-4, high=1e4)

    def check(self) -> None:
        """Refuse a memory in which not one history fits beside the least share of rows, and traces too long for this
        machine's.
        """
        need = _REQUEST_BYTES * self.requests * len(SCENARIOS)
        require_memory(need, f"Replaying {self.requests:,} requests", hint="take fewer requests")
        longest = 15_000 * 1.2 * self.node().kv_bytes_per_token
        if longest > 0.98 * self.memory_bytes:
            raise BadValueError(
                "Not one history fits into this memory.", given=f"{self.memory_bytes / 1e9:g} GB",
                allowed=f"at least {longest / 0.98e9:.2f} GB", where=f"study {self.name}, memory_bytes",
            )  # fmt: skip

    def node(self) -> Node:
        """Return the node of these settings."""
        return Node(
            memory_bytes=self.memory_bytes, copy_bytes_per_s=self.copy_bytes_per_s, rows_per_token=self.rows_per_token
        )

    def traffic(self, name: str, seed: int) -> Traffic:
        """Return the trace of a scenario; seeds 0 to 4 of the generator are left to training and tuning.

        Parameters
        ----------
        name : str
        seed : int
        """
        return _traffic(name, seed + 5, self.requests, self.transition, self.node(), self.load)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures: how far the replay is from what known popularities give."""
        node, traffic = self.node(), self.traffic("steady", 0)
        from wavetank.serving.memory.rivals import FixedSplit

        found = float(run_policy(traffic, FixedSplit()).service_s[_WARM_UP:].mean())
        known = mean_service_s(node, FixedSplit().share, 0.8, 1.0, 6000.0)
        return (
            f"Node times are formulas, not measurements. In steady traffic the replay's mean time of a request is "
            f"{found / known - 1:+.1%} from Che's approximation for the known popularities.",
            f"A window has {WINDOW} requests; a look-up stands for {traffic.group} rows of neighbouring ranks.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Replay every scenario under one policy."""
        found = Measurements()
        over = 0.0
        for name in SCENARIOS:
            run = run_policy(self.traffic(name, seed), system, slo_s=self.slo_s, check_memory=True)
            over = max(over, run.over_bytes)
            found.put("scenario_p99_s", _p99_s(run), scenario=name)
            if name == "mix":
                counted = run.latency_s[_WARM_UP * WINDOW :]
                found.put("p99_s", _p99_s(run))
                found.put("p99_whole_s", float(np.quantile(counted, 0.99)))
                found.put("within_share", float(np.mean(counted <= self.slo_s)))
                found.put("service_s", float(run.service_s[_WARM_UP:].mean()))
                found.put("decision_s", float(np.median(run.decision_s)))
                found.put("refill_share", run.refill_bytes / max(run.refill_bytes + run.demand_bytes, 1.0))
                for place in np.linspace(0, len(run.shares) - 1, 49).astype(int):
                    found.put("share_then", float(run.shares[place]),
                              time_share=round(float(place) / len(run.shares), 4))  # fmt: skip
        found.put("over_bytes", over)
        return found


def _p99_s(run: Replay) -> float:
    """Return the geometric mean of the 99th percentiles of twelve equal stretches."""
    counted = run.latency_s[_WARM_UP * WINDOW :]
    return float(np.exp(np.mean([np.log(np.quantile(part, 0.99)) for part in np.array_split(counted, 12)])))


@lru_cache(maxsize=6)
def _traffic(name: str, seed: int, requests: int, transition: float, node: Node, load: float) -> Traffic:
    segments, swaps = scenario(name, seed, requests, transition)
    return make_traffic(segments, node, seed, load=load, swaps_per_minute=swaps)
