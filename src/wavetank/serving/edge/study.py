"""Study ``edge-deadlines``: which model of an edge device runs next, and how deep, so that few requests are late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.edge.interface import ExitProfile
from wavetank.serving.edge.published import published_profile
from wavetank.serving.edge.simulation import simulate_edge
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.units import show

# The scheduler looks up latencies at this quantile of the noise.
_P95 = 1.6449


@dataclass(frozen=True, kw_only=True)
class EdgeDeadlines(Study):
    """Three residual networks with four exits share a device; Poisson arrivals, half of them for the smallest network.
    The rate is swept to and beyond what the whole models keep up.  Latencies are published figures with noise; the
    scheduler sees their 95th percentile.
    """

    name: ClassVar[str] = "edge-deadlines"
    baseline: ClassVar[str] = "longest-queue-final"
    primary: ClassVar[str] = "in_time_accuracy"
    secondary: ClassVar[tuple[str, ...]] = ("violation_ratio", "p95_s", "accuracy")
    metrics = (
        Metric("violation_ratio", "", "lower", "simulated",
               "share of requests that were late or dropped, mean over the rates", words="share of late requests"),
        Metric("p95_s", "s", "lower", "simulated", "95th percentile of times in the system of served requests, mean "
               "over the rates", words="95th percentile of times"),
        Metric("accuracy", "", "higher", "simulated", "share of right answers by the accuracy of the exits taken; "
               "dropped requests have none; mean over the rates"),
        Metric("in_time_accuracy", "", "higher", "simulated", "share of requests with a right answer in time, mean "
               "over the rates", words="share of right answers in time"),
        Metric("exit_depth", "exits", "", "simulated", "exit taken, 1 for the first, mean over requests and rates"),
        Metric("dropped_share", "", "lower", "simulated", "share of requests that were dropped, mean over the rates"),
        Metric("violation_ratio_at", "", "lower", "simulated", "the share of late requests at one rate", table=False),
        Metric("p95_at_s", "s", "lower", "simulated", "the 95th percentile at one rate", table=False),
    )  # fmt: skip
    charts = (
        Chart("sweep", "Late requests as the rate grows", y="violation_ratio_at", by="rate_per_s",
              says="Lower is better."),
        Chart("pareto", "Late requests and accuracy", y="violation_ratio", x="accuracy",
              says="Lower and further right is better."),
    )  # fmt: skip

    slo_s: float = setting(0.05, unit="s", says="Deadline of a request after its arrival", low=1e-4, high=100.0)
    rates: tuple[float, ...] = setting(
        (20.0, 60.0, 100.0, 140.0, 180.0, 220.0), unit="requests/s",
        says="Rates of the largest network's requests; the others have 2 and 3 times as many", low=0.01, high=1e5,
    )  # fmt: skip
    mix: tuple[float, ...] = setting((3.0, 2.0, 1.0), says="Requests of the three networks, as multiples of the rate",
                                     low=0.0, high=1000.0)  # fmt: skip
    seconds: float = setting(20.0, unit="s", says="Length of a run", low=0.1, high=1e5)
    warm_up: int = setting(
        100, unit="requests", says="First requests of each model that do not count", low=0, high=10**6
    )
    max_batch: int = setting(10, unit="requests", says="Largest batch", low=1, high=1024)
    fixed: float = setting(0.6, says="Share of a batch's latency that does not depend on its size", low=0.0, high=1.0)
    noise: float = setting(0.05, says="Standard deviation of the logarithm of latencies", low=0.0, high=2.0)

    def check(self) -> None:
        """Refuse what cannot be served at all."""
        if len(self.mix) != 3 or not any(self.mix):
            raise BadValueError("The mix names three networks.", given=self.mix, allowed="three numbers, one above 0",
                                where="mix")  # fmt: skip
        if not self.rates or len(set(self.rates)) < len(self.rates):
            raise BadValueError("The sweep has no rate, or one of them twice.", given=self.rates,
                                allowed="one rate or more, each once", where="rates")  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        least_s = min(exits[0][0] for exits in self._profile().latency_s)
        hopeless = (
            (f"The deadline of {show(self.slo_s, 's')} is below the shortest inference: every request is late.",)
            if self.slo_s < least_s else ()
        )  # fmt: skip
        return (
            "Latencies were published for batches of five alone; other batches and the noise are assumptions (settings "
            "fixed and noise).",
            *hopeless,
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Sweep the rate."""
        found = Measurements()
        all_of: dict[str, list[float]] = {}
        actual = self._profile()
        seen = _longer(actual, float(np.exp(_P95 * self.noise)))
        for rate in self.rates:
            noise = np.exp(stream(seed, "latencies", str(rate)).normal(0.0, self.noise, 10_000))
            run = simulate_edge(self.arrivals(rate, seed), seen, system, self.slo_s, actual, noise)
            figures = run.figures(seen, self.slo_s, self.warm_up)
            found.put("violation_ratio_at", figures["violation_ratio"], rate_per_s=rate)
            if np.isfinite(figures["p95_s"]):
                found.put("p95_at_s", figures["p95_s"], rate_per_s=rate)
            for name, value in figures.items():
                all_of.setdefault(name, []).append(value)
        for name, values in all_of.items():
            # Where all requests of a rate were dropped there is no percentile, and no mean over the rates.
            if np.isfinite(values).all():
                found.put(name, float(np.mean(values)))
        return found

    def arrivals(self, rate_per_s: float, seed: int) -> list[NDArray[np.float64]]:
        """Return the arrivals of each network.

        Parameters
        ----------
        rate_per_s : float
        seed : int
        """
        found = []
        for model, times in enumerate(self.mix):
            draws = stream(seed, "arrivals", str(rate_per_s), model)
            count = draws.poisson(rate_per_s * times * self.seconds)
            found.append(np.sort(draws.uniform(0.0, self.seconds, count)))
        return found

    def _profile(self) -> ExitProfile:
        return published_profile(self.fixed, self.max_batch)


def _longer(profile: ExitProfile, factor: float) -> ExitProfile:
    longer = tuple(
        tuple(tuple(value * factor for value in batches) for batches in exits) for exits in profile.latency_s
    )
    return ExitProfile(models=profile.models, latency_s=longer, accuracy=profile.accuracy)
