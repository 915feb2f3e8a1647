"""Study ``ai-ran``: slow moves and fast shares where radio functions and AI services use the same machines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.sharing.shares import shares
from wavetank.serving.sharing.simulation import SharingRun, simulate_sharing
from wavetank.serving.sharing.traffic import Scene, make_scene
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

# Requests of the first minute do not count: nothing was known yet.
_WARM_UP_S = 60.0


@dataclass(frozen=True, kw_only=True)
class AIRAN(Study):
    """Six nodes of two sizes run radio cells, whose shares are due at every moment, and AI services with deadlines.
    The hot services change; a controller may move services, which stops them for a while.  Nodes divide GPU and CPU by
    a rule.
    """

    name: ClassVar[str] = "ai-ran"
    baseline: ClassVar[str] = "still-equal"
    default_seeds = 6
    primary: ClassVar[str] = "fulfilment"
    secondary: ClassVar[tuple[str, ...]] = ("ai_fulfilment", "radio_fulfilment")
    metrics = (
        Metric("fulfilment", "", "higher", "simulated", "mean over all services: share of requests in time, or of the "
               "time in which a radio function had its shares"),
        Metric("ai_fulfilment", "", "higher", "simulated", "mean over AI services of their share of requests in time",
               words="fulfilment of AI services"),
        Metric("request_fulfilment", "", "higher", "simulated", "share of all AI requests in time", table=False),
        Metric("radio_fulfilment", "", "higher", "simulated", "mean over radio functions of the share of the time in "
               "which they had their shares", words="fulfilment of radio functions"),
        Metric("worst_fulfilment", "", "higher", "simulated", "least fulfilment of an AI service", table=False),
        Metric("moves", "moves", "", "simulated", "services that were moved"),
        Metric("refused", "moves", "lower", "simulated", "moves that could not be made", table=False),
        Metric("decision_s", "s", "lower", "measured", "time of one slow decision on this machine; median"),
        Metric("shares_s", "s", "lower", "measured", "time of dividing a resource among 20 jobs; median", table=False),
        Metric("fulfilment_at", "", "higher", "simulated", "fulfilment of AI services at one load", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Fulfilment of AI services", y="ai_fulfilment", says="Longer is better."),
        Chart("sweep", "Fulfilment of AI services as their load grows", y="fulfilment_at", by="load",
              says="Higher is better."),
        Chart("pareto", "AI services and moves", y="ai_fulfilment", x="moves", says="Higher, with fewer moves."),
    )  # fmt: skip

    nodes: int = setting(6, unit="nodes", says="Machines; every second one is twice as large", low=2, high=64)
    ai_services: int = setting(12, unit="services", says="AI services", low=1, high=500)
    load: float = setting(
        0.75, says="GPU work of AI requests over what radio functions leave, on average", low=0.05, high=5.0
    )
    loads: tuple[float, ...] = setting((0.5, 1.0), says="Other loads, for the chart", low=0.05, high=5.0)
    hot_s: float = setting(150.0, unit="s", says="How long the same services are hot", low=1.0, high=1e7)
    hot_times: float = setting(4.0, says="By how much a hot service's rate is higher", low=1.0, high=100.0)
    downtime_times: float = setting(
        1.0,
        says="Multiple of the time that a move stops a service (its model over 10 Gbit/s, and 2 s)",
        low=0.0,
        high=1e6,
    )
    seconds: float = setting(600.0, unit="s", says="Length of a run", low=120.0, high=1e5)
    epoch_s: float = setting(20.0, unit="s", says="Time between slow decisions", low=1.0, high=1e4)

    def check(self) -> None:
        """Refuse services that the nodes' memory does not hold."""
        self.scene(0, self.load)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        scene = self.scene(0, self.load)
        return (
            f"Made traffic: {len(scene.services) - self.ai_services} radio functions, {self.ai_services} AI services, "
            f"{scene.requests.arrival_s.size:,} requests (seed 0). Radio slots are merged: what counts is the time in "
            "which a function had the shares that it needs.",
            "Services count alike; requests of the first minute do not count. A script answers for the agent: no "
            "language model was asked.",
        )

    def scene(self, seed: int, load: float) -> Scene:
        """Return the scene of a seed.

        Parameters
        ----------
        seed : int
        load : float
        """
        return _scene(seed, self.nodes, self.ai_services, self.seconds, load, self.hot_s, self.hot_times,
                      self.downtime_times)  # fmt: skip

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run every load."""
        found = Measurements()
        for load in dict.fromkeys((self.load, *self.loads)):
            scene = self.scene(seed, load)
            run = simulate_sharing(scene, system.controller(seed, scene), system.rule, epoch_s=self.epoch_s)
            fulfilled = run.by_service(scene, min(_WARM_UP_S, self.seconds / 4))
            radio = np.array([each.radio for each in scene.services])
            if load == self.load:
                self._put(found, run, fulfilled, radio)
            found.put("fulfilment_at", float(np.nanmean(fulfilled[~radio])), load=load)
        found.put("shares_s", _shares_s(seed))
        return found

    def _put(
        self, found: Measurements, run: SharingRun, fulfilled: NDArray[np.float64], radio: NDArray[np.bool_]
    ) -> None:
        found.put("fulfilment", float(np.nanmean(fulfilled)))
        found.put("ai_fulfilment", float(np.nanmean(fulfilled[~radio])))
        found.put("radio_fulfilment", float(fulfilled[radio].mean()))
        found.put("worst_fulfilment", float(np.nanmin(fulfilled[~radio])))
        found.put("request_fulfilment", float(run.in_time.mean()))
        found.put("moves", float(run.moves))
        found.put("refused", float(run.refused))
        if run.decide_s.size:
            found.put("decision_s", float(np.median(run.decide_s)))


def _shares_s(seed: int) -> float:
    draws = stream(seed, "shares")
    work, time_s = draws.exponential(0.01, 20), draws.uniform(0.5, 2.0, 20)
    weight, times = np.ones(20), []
    for _ in range(201):
        began = time.perf_counter()
        shares(work, time_s, weight, 1.0)
        times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))


@lru_cache(maxsize=8)
def _scene(seed: int, nodes: int, ai_services: int, seconds: float, load: float, hot_s: float, hot_times: float,
           downtime_times: float) -> Scene:  # fmt: skip
    return make_scene(
        seed, nodes=nodes, ai_services=ai_services, seconds=seconds, load=load, hot_s=hot_s, hot_times=hot_times,
        downtime_times=downtime_times,
    )  # fmt: skip
