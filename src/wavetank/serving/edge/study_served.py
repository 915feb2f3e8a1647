"""Study ``edge-served``: schedulers of early-exit networks on this machine's CPU, beside what the simulation says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.edge.simulation import simulate_edge
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.units import show

if TYPE_CHECKING:
    from wavetank.serving.edge.interface import ExitProfile


@dataclass(frozen=True, kw_only=True)
class EdgeServed(Study):
    """Three trained networks with four exits read pages of digits on one core, under one scheduler after the other;
    requests come at random times, half of them for the smallest network.  The same arrivals are simulated with the mean
    latencies that were measured before.
    """

    name: ClassVar[str] = "edge-served"
    baseline: ClassVar[str] = "longest-queue-final"
    primary: ClassVar[str] = "in_time_accuracy"
    secondary: ClassVar[tuple[str, ...]] = ("violation_ratio", "p95_s", "p95_error")
    in_process = True
    takes_turns = True
    default_seeds = 3
    metrics = (
        Metric("violation_ratio", "", "lower", "measured", "share of requests that were late or dropped",
               words="share of late requests"),
        Metric("p95_s", "s", "lower", "measured", "95th percentile of times in the system of served requests",
               words="95th percentile of times"),
        Metric("accuracy", "", "higher", "measured", "share of right answers; dropped requests have none"),
        Metric("in_time_accuracy", "", "higher", "measured", "share of requests with a right answer in time",
               words="share of right answers in time"),
        Metric("exit_depth", "exits", "", "measured", "exit taken, 1 for the first, mean", table=False),
        Metric("p95_error", "", "lower", "measured", "|simulated / measured - 1| of the 95th percentile",
               words="error of the simulated 95th percentile"),
        Metric("violation_error", "", "lower", "measured", "|simulated - measured|, share of late ones", table=False),
        Metric("predicted_p95_s", "s", "", "simulated", "95th percentile of the same arrivals, simulated", table=False),
        Metric("latency_s", "s", "lower", "measured", "mean latency of the whole largest network, batch of one",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Right answers in time", y="in_time_accuracy", says="Longer is better."),
        Chart("bars", "95th percentile of times", y="p95_s", says="Shorter is better."),
        Chart("bars", "Error of the simulated 95th percentile", y="p95_error", says="Shorter is nearer to the run."),
    )  # fmt: skip

    load: float = setting(
        1.3, says="Time of all requests, one by one through whole networks, over the time there is", low=0.01, high=20.0
    )
    slo_times: float = setting(
        4.0, says="Deadline, as a multiple of the whole largest network's latency, batch of one", low=0.1, high=1000.0
    )
    seconds: float = setting(3.0, unit="s", says="Length of a run", low=0.5, high=3600.0)
    mix: tuple[float, ...] = setting((3.0, 2.0, 1.0), says="Requests of the three networks, in proportion", low=0.0,
                                     high=1000.0)  # fmt: skip
    max_batch: int = setting(8, unit="requests", says="Largest batch", low=1, high=64)

    def check(self) -> None:
        """Train the networks, or name what is missing for that."""
        from wavetank.errors import BadValueError
        from wavetank.serving.edge.networks import networks

        if len(self.mix) != 3 or not any(self.mix):
            raise BadValueError("The mix names three networks.", given=self.mix, allowed="three numbers, one above 0",
                                where="mix")  # fmt: skip
        networks()

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        mean, _ = _profiles(self.max_batch)
        whole = ", ".join(
            f"{name} {show(mean.seconds(i, mean.exits - 1, 1), 's')}" for i, name in enumerate(mean.models)
        )
        return (
            f"Whole networks take, batch of one: {whole}; exits are right in {mean.accuracy[0][0]:.1%} to "
            f"{mean.accuracy[2][-1]:.1%} of the digits that they were not trained on.",
            "One thread decides and computes, another sends; figures belong to this machine. The simulation knows mean "
            "latencies and the time of a decision, and no interruptions.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Serve, and simulate the same arrivals."""
        from wavetank.serving.edge.live import decision_s, serve_edge
        from wavetank.serving.edge.networks import digits, networks

        mean, high = _profiles(self.max_batch)
        slo_s = self.slo_times * mean.seconds(len(mean.models) - 1, mean.exits - 1, 1)
        _, _, images, labels = digits()
        run = serve_edge(networks(), images, labels, self.arrivals(mean, seed), high, system, slo_s)
        sent = [run.arrival_s[run.model == model] for model in range(len(mean.models))]
        thinks_s = decision_s(system, high, slo_s)
        simulated = simulate_edge(sent, high, system, slo_s, mean, decision_s=thinks_s)
        # Where there are few requests, all of them count.
        warm_up = min(20, min(each.size for each in sent if each.size) // 4)
        figures, said = (each.figures(mean, slo_s, warm_up) for each in (run, simulated))
        found = Measurements()
        for name in ("in_time_accuracy", "violation_ratio", "p95_s", "accuracy", "exit_depth"):
            if np.isfinite(figures[name]):
                found.put(name, figures[name])
        if np.isfinite(figures["p95_s"]) and np.isfinite(said["p95_s"]):
            found.put("p95_error", abs(said["p95_s"] / figures["p95_s"] - 1))
            found.put("predicted_p95_s", said["p95_s"])
        found.put("violation_error", abs(said["violation_ratio"] - figures["violation_ratio"]))
        found.put("latency_s", mean.seconds(len(mean.models) - 1, mean.exits - 1, 1))
        return found

    def arrivals(self, profile: ExitProfile, seed: int) -> list[NDArray[np.float64]]:
        """Return the arrivals of each network.

        Parameters
        ----------
        profile : ExitProfile
        seed : int
        """
        parts = np.array(self.mix) / sum(self.mix)
        work_s = sum(part * profile.seconds(m, profile.exits - 1, 1) for m, part in enumerate(parts))
        found = []
        for model, part in enumerate(parts):
            draws = stream(seed, "edge-served", model)
            count = draws.poisson(self.load / work_s * part * self.seconds)
            found.append(np.sort(draws.uniform(0.0, self.seconds, count)))
        if not any(each.size for each in found):
            # A run without requests has no figures.
            found[int(parts.argmax())] = np.array([self.seconds / 2])
        return found


@cache
def _profiles(max_batch: int) -> tuple[ExitProfile, ExitProfile]:
    from wavetank.serving.edge.live import profile_networks
    from wavetank.serving.edge.networks import digits, networks

    _, _, images, labels = digits()
    return profile_networks(networks(), images, labels, max_batch=max_batch)
