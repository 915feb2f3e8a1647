"""Study ``workflow-scheduling``: which scheduler ends workflows of language-model calls first."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from wavetank.serving.fidelity.shipped_fit import shipped_fit
from wavetank.serving.workflows.applications import MIXES, MODELS, applications, needs, on_shape, unsure
from wavetank.serving.workflows.costs import Times
from wavetank.serving.workflows.interface import Application, Platform, platform_of
from wavetank.serving.workflows.prices import balance, work_left
from wavetank.serving.workflows.simulate import Run, simulate
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads.workflows import read_workflow

GPUS = ("H100-SXM", "H100-SXM", "A100-SXM-80GB", "A100-SXM-80GB", "L40S", "L40S", "A10", "A10")


@dataclass(frozen=True, kw_only=True)
class WorkflowScheduling(Study):
    """Applications of several shapes run on unequal GPUs, each of which keeps some models and prefixes.  Once all are
    there at the start (the makespan is decided), once they arrive at random (their latencies are).  Schedulers see
    lengths of answers within an error, and decide at every arrival and end of a stage.  Small workflows run by
    themselves as well, beside a bound that knows everything.
    """

    name: ClassVar[str] = "workflow-scheduling"
    baseline: ClassVar[str] = "stages-round-robin"
    primary: ClassVar[str] = "makespan_s"
    secondary: ClassVar[tuple[str, ...]] = ("latency_p95_s", "latency_mean_s", "decision_s")
    metrics = (
        Metric("makespan_s", "s", "lower", "simulated",
               "from the start, when all applications are there, to the end of the last stage"),
        Metric("latency_p95_s", "s", "lower", "simulated",
               "95 % quantile over the applications that arrive at random: from arrival to the end of the last stage",
               words="p95 latency"),
        Metric("latency_mean_s", "s", "lower", "simulated", "mean over the same applications", words="mean latency"),
        Metric("loads_per_stage", "", "lower", "simulated", "models loaded per stage, all applications at the start"),
        Metric("reused_share", "", "higher", "simulated",
               "share of the tokens of prefixes that were cached, all applications at the start",
               words="share of prefixes reused"),
        Metric("small_makespan_s", "s", "lower", "modelled",
               "one small workflow by itself with lengths known: geometric mean of the makespans; of the oracle the "
               "lower bound", words="makespan of small workflows"),
        Metric("decision_s", "s", "lower", "measured", "time of one decision, on this machine; 95 % quantile",
               words="time per decision"),
        Metric("application_latency_s", "s", "lower", "simulated", "quantiles of the latencies", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Makespan", y="makespan_s", says="Shorter bars end all applications earlier."),
        Chart("distribution", "Latency of applications that arrive at random", y="application_latency_s", by="quantile",
              says="A line further left answers more applications within a time."),
        Chart("pareto", "Loads against makespan", x="loads_per_stage", y="makespan_s",
              says="Few loads alone do not make a short makespan."),
    )  # fmt: skip

    workflows: str = setting(
        "agents", choices=MIXES, says="Templates of agents, recorded shapes (data set wfinstances), or both"
    )
    file: str = setting("", says="A workflow of your own in WfFormat, which takes the place of all applications")
    applications: int = setting(10, says="Applications that are there at the start, and that arrive", low=1, high=1000)
    load: float = setting(
        0.7, says="Rate of arrivals over the one at which divisible work fills all devices", low=0.05, high=2.0
    )
    error: float = setting(
        0.3, says="Standard deviation of the logarithm of expected over real lengths of answers", low=0.0, high=3.0
    )
    gpus: tuple[str, ...] = setting(GPUS, says="The devices, as the platforms name them")
    load_bytes_per_s: float = setting(
        25e9, unit="bytes/s", says="Rate at which models are loaded, at most the device's PCIe link", low=1e6, high=1e13
    )
    network_bytes_per_s: float = setting(1.25e9, unit="bytes/s", says="Between any two devices", low=1e3, high=1e13)
    small: int = setting(3, says="Small workflows that run by themselves", low=0, high=5)

    def check(self) -> None:
        """Read the workflows once, so that mistakes show before any trial."""
        for each in self.batch(0):
            for stage in each.stages:
                self.platform().may(stage)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the file, or of the recorded shapes."""
        if self.file:
            return {self.file: hashlib.sha256(Path(self.file).read_bytes()).hexdigest()}
        if needs(self.workflows):
            from wavetank.workloads.datasets import entry

            return {file.path: file.sha256 for file in entry(needs(self.workflows)).files}
        return {}

    def opening(self) -> tuple[str, ...]:
        """Return what runs and what is assumed."""
        stages = sum(len(each.stages) for each in self.batch(0))
        what = f"copies of {self.file}" if self.file else f"applications ({self.workflows})"
        return (
            f"{self.applications} {what} with {stages} stages under seed 0 on {len(self.gpus)} devices; models, "
            "lengths of prompts and answers and sizes of outputs are drawn, a device computes one stage at a time.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            shipped_fit().said_of_roofline(self.gpus[0], calibrated=True),
            "Batching on a device is left out: a stage has it alone.",
        )

    def platform(self) -> Platform:
        """Return the devices."""
        return _platform(self.gpus, self.load_bytes_per_s, self.network_bytes_per_s)

    def batch(self, seed: int) -> tuple[Application, ...]:
        """Return the applications of a seed, all there at the start."""
        if self.file:
            shape = read_workflow(self.file)
            seeds = [seed * 100_003 + i for i in range(self.applications)]
            return tuple(unsure(on_shape(shape, each), self.error, each) for each in seeds)
        return applications(self.workflows, self.applications, seed, error=self.error)

    def arriving(self, seed: int) -> tuple[Application, ...]:
        """Return the same number of applications with times of arrival at the load."""
        batch = self.batch(seed)
        platform = self.platform()
        times = [Times(application=each, platform=platform) for each in batch]
        least = balance(work_left(times, {}), np.zeros(len(platform.devices))).least_s
        gaps = stream(seed, "workflows", "arrivals").exponential(least / len(batch) / self.load, len(batch))
        return tuple(replace(each, arrival_s=at) for each, at in zip(batch, np.cumsum(gaps).tolist(), strict=True))

    def measure(self, system: Any, seed: int) -> Measurements:
        """Let a scheduler run all applications twice, and small ones by themselves."""
        platform = self.platform()
        found = Measurements()
        cases = self.small_cases(seed)
        if hasattr(system, "least_makespan_s"):
            if cases:
                found.put("small_makespan_s", _mean([system.least_makespan_s([each], platform)[0] for each in cases]))
            return found
        batch = self.batch(seed)
        run = simulate(batch, platform, system)
        found.put("makespan_s", run.makespan_s)
        found.put("loads_per_stage", sum(each.loads for each in run.stages) / len(run.stages))
        found.put("reused_share", _reused(batch, run))
        later = simulate(self.arriving(seed), platform, system)
        found.put("latency_p95_s", float(np.quantile(later.latency_s, 0.95)))
        found.put("latency_mean_s", float(later.latency_s.mean()))
        for quantile in (0.1, 0.25, 0.5, 0.75, 0.9):
            found.put("application_latency_s", float(np.quantile(later.latency_s, quantile)), quantile=quantile)
        if cases:
            found.put("small_makespan_s", _mean([simulate([each], platform, system).makespan_s for each in cases]))
        found.put("decision_s", float(np.quantile(run.decision_s + later.decision_s, 0.95)))
        return found

    def small_cases(self, seed: int) -> tuple[Application, ...]:
        """Return small templates with known lengths, of which no stage can be shared."""
        made = applications("agents", 5, 1_000 + seed)
        fit = [each for each in made if all(stage.most_shards == 1 for stage in each.stages)]
        return tuple(sorted(fit, key=lambda each: len(each.stages))[: self.small])


@lru_cache(maxsize=8)
def _platform(gpus: tuple[str, ...], load_bytes_per_s: float, network_bytes_per_s: float) -> Platform:
    return platform_of(gpus, MODELS, load_bytes_per_s=load_bytes_per_s, network_bytes_per_s=network_bytes_per_s)


def _reused(batch: tuple[Application, ...], run: Run) -> float:
    asked = sum(batch[each.key[0]].stages[each.key[1]].prefix_tokens * len(each.devices) for each in run.stages)
    return sum(each.reused_tokens for each in run.stages) / asked if asked else 0.0


def _mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
