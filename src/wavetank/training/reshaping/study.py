"""Study ``reshaping``: what a job of hundreds of GPUs trains while single ones become slow or die."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device
from wavetank.platforms.links import Link
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.reshaping.fault_events import (
    DATA_SET,
    GPUS,
    MOST_SERVERS,
    Event,
    drawn_events,
    recorded_events,
    slow_share_of_trace,
)
from wavetank.training.reshaping.interface import Floats, Job, Reshaper, healthy_plan, step_ps
from wavetank.training.reshaping.pipeline_clock import PS
from wavetank.training.reshaping.simulate import Run, Times, simulate
from wavetank.workloads import datasets

DEAD, SLOW, MIXED, TRACE = "dead", "slow", "mixed", "trace"
SCHEDULES = (DEAD, SLOW, MIXED, TRACE)
_SLOW_SHARE = {DEAD: 0.0, SLOW: 1.0}
_HEAD = 128  # numbers of a head of attention


@dataclass(frozen=True, kw_only=True)
class Reshaping(Study):
    """A job with tensor, pipeline and data parallelism under faults of single GPUs: each dies, or loses a share of its
    speed.  After every change a reshaper makes a plan; steps take what the 1F1B schedule of the slowest pipeline and
    the sum of gradients take, and changes what new groups and missing state take.  There are no spare GPUs.
    """

    name: ClassVar[str] = "reshaping"
    baseline: ClassVar[str] = "restart-anew"
    primary: ClassVar[str] = "throughput_share"
    secondary: ClassVar[tuple[str, ...]] = ("worst_step", "changing_share", "stopped_share")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("throughput_share", "", "higher", "simulated",
               "steps trained and kept / those of the same time without faults", words="throughput"),
        Metric("worst_step", "", "lower", "simulated",
               "longest step that was in force after a change of plan / the healthy step", words="longest step"),
        Metric("changing_share", "", "lower", "simulated",
               "share of the time in which the job stood still for notices, changes and restarts", words="standstill"),
        Metric("stopped_share", "", "lower", "simulated",
               "share of the time in which no plan was left", words="time without a plan"),
        Metric("plans", "", "", "simulated", "changes of plan"),
        Metric("one_fault_share", "", "higher", "simulated",
               "throughput after one fault, all changes done, / that of the healthy job", table=False,
               words="throughput after one fault"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Throughput under faults", y="throughput_share", says="1 is a job without faults."),
        Chart("sweep", "As faults become rarer", y="throughput_share", by="every_min", log="x",
              says="Minutes between faults."),
        Chart("sweep", "After one fault", y="one_fault_share", by="loss",
              says="Share of its speed that one GPU loses; 1 is a dead one."),
    )  # fmt: skip

    schedule: str = setting(MIXED, choices=SCHEDULES, says="Faults: all kill, all slow, mixed by class, or as recorded")
    tensor: int = setting(4, unit="GPUs", says="GPUs of a tensor-parallel group", low=1, high=64)
    stages: int = setting(16, unit="stages", says="Stages of a pipeline", low=1, high=128)
    replicas: int = setting(4, unit="replicas", says="Data-parallel replicas", low=1, high=256)
    layers: int = setting(80, unit="layers", says="Layers of the model", low=1, high=1000)
    heads: int = setting(64, says="Heads of attention, of 128 numbers", low=1, high=1024)
    parameters: float = setting(70e9, says="Parameters of the model", low=1e6, high=1e15)
    share: int = setting(32, unit="microbatches", says="Micro-batches of each replica per step", low=1, high=4096)
    tokens: int = setting(4096, unit="tokens", says="Tokens of a micro-batch", low=1, high=10_000_000)
    device: str = setting("A100-SXM-80GB", says="GPU, by name")
    utilisation: float = setting(0.45, says="Share of the GPUs' peak that computing reaches", low=0.001, high=1.0)
    room: float = setting(2.0, says="By which layers on a GPU may grow until its memory is full", low=1.0, high=100.0)
    every_min: float = setting(30.0, unit="min", says="Minutes between faults (not of the trace)", low=0.1, high=1e6)
    hours: float = setting(6.0, unit="h", says="Length of the run (not of the trace)", low=0.01, high=1e5)
    repair_h: float = setting(1e9, unit="h", says="Hours until a GPU is well again (not of the trace)", low=0.01,
                              high=1e9)  # fmt: skip
    losses: tuple[float, ...] = setting((0.1, 0.25, 0.5), says="Shares of its speed that a slow GPU loses", low=0.001,
                                        high=0.999)  # fmt: skip
    faster: float = setting(100.0, says="Divides all times of the trace", low=0.01, high=1e6)
    days: float = setting(30.0, unit="days", says="Days of the trace", low=0.1, high=348.0)
    dead_s: float = setting(10.0, unit="s", says="From a death to its notice", low=0.0, high=1e6)
    slow_steps: int = setting(5, unit="steps", says="Steps from a slowdown to its notice", low=0, high=100_000)
    validate_s: float = setting(3.0, unit="s", says="Standstill to find the slow GPU", low=0.0, high=1e6)
    regroup_s: float = setting(5.0, unit="s", says="Time in which new groups are formed", low=0.0, high=1e6)
    restart_s: float = setting(300.0, unit="s", says="Time of a restart", low=0.0, high=1e6)
    unsaved_s: float = setting(150.0, unit="s", says="Work that a restart does again, on average", low=0.0, high=1e6)
    intervals: tuple[float, ...] = setting((15.0, 120.0), unit="min", says="Further times between faults", low=0.1,
                                           high=1e6)  # fmt: skip

    def check(self) -> None:
        """Refuse jobs that there cannot be, and more servers than were recorded."""
        self.job()
        if self.schedule in (TRACE, MIXED):
            datasets.find(DATA_SET)
        if self.schedule == TRACE and self.job().devices > GPUS * MOST_SERVERS:
            raise BadValueError("The trace has too few servers.", given=self.job().devices,
                                allowed=f"at most {GPUS * MOST_SERVERS} GPUs", where=f"study {self.name}")  # fmt: skip

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the trace."""
        if self.schedule not in (TRACE, MIXED):
            return {}
        (file,) = datasets.entry(DATA_SET).files
        return {DATA_SET: file.sha256}

    def job(self) -> Job:
        """Return the job and what its operations take."""
        gpu = device(self.device)
        layer_parameters = self.parameters / self.layers
        hidden = self.heads * _HEAD
        # Products with parameters, and causal attention in both passes.
        flops = 6 * layer_parameters * self.tokens + 6 * hidden * self.tokens**2
        return Job(
            tensor=self.tensor, stages=self.stages, replicas=self.replicas, layers=self.layers, heads=self.heads,
            microbatches=self.share * self.replicas,
            layer_ps=max(1, round(flops / (gpu.bf16_flops_per_s * self.utilisation) * PS)),
            activation_bytes=2.0 * hidden * self.tokens, layer_bytes=2 * layer_parameters,
            link=Link(bytes_per_s=gpu.link_bytes_per_s, latency_s=gpu.link_latency_s, per_hop=True),
            network=Link(bytes_per_s=gpu.network_bytes_per_s, latency_s=gpu.link_latency_s, per_hop=True),
            room=self.room, regroup_s=self.regroup_s,
        )  # fmt: skip

    def times(self) -> Times:
        """Return what notices and restarts take."""
        return Times(
            dead_s=self.dead_s, slow_steps=self.slow_steps, validate_s=self.validate_s, restart_s=self.restart_s,
            unsaved_s=self.unsaved_s, quiet_s=self.every_min * 60,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        job = self.job()
        step_s = step_ps(job, _well(job), healthy_plan(job)) / PS
        return (
            f"{job.devices} {self.device} as {self.tensor} x {self.stages} x {self.replicas}; a healthy step takes "
            f"{step_s:.1f} s. Micro-batches are alike; what sequence lengths do is the matter of slow-ranks.",
            "All reshapers notice faults as soon; rerouted micro-batches fit into idle time without a loss, a bound in "
            "favour of recycle-rule.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Train under the faults of a seed, with other times between them, and after one fault alone."""
        found = Measurements()
        run, healthy = self.trained(system, seed)
        found.put("throughput_share", run.steps / healthy)
        found.put("worst_step", run.worst)
        found.put("changing_share", run.changing_s / run.time_s)
        found.put("stopped_share", run.stopped_s / run.time_s)
        found.put("plans", run.plans)
        if self.schedule != TRACE:
            found.put("throughput_share", run.steps / healthy, every_min=self.every_min)
            for every_min in sorted({*self.intervals} - {self.every_min}):
                other = replace(self, every_min=every_min)
                less, whole = other.trained(system, seed)
                found.put("throughput_share", less.steps / whole, every_min=every_min)
        for loss in sorted({*self.losses, 1.0}):
            found.put("one_fault_share", self.after_one(system, seed, loss), loss=loss)
        return found

    def trained(self, system: Reshaper, seed: int) -> tuple[Run, float]:
        """Return the run of a reshaper under the faults of a seed, and the steps of a job without any.

        Parameters
        ----------
        system : Reshaper
        seed : int
        """
        job = self.job()
        events, horizon_s = self.events(seed)
        times = self.times()
        if self.schedule == TRACE:
            times = replace(times, quiet_s=horizon_s / (len(events) + 1))
        run = simulate(job, events, horizon_s, system, times)
        return run, horizon_s * PS / step_ps(job, _well(job), healthy_plan(job))

    def events(self, seed: int) -> tuple[tuple[Event, ...], float]:
        """Return the faults of a seed, and the end of the run, s.

        Parameters
        ----------
        seed : int
        """
        draws = stream(seed, "faults of GPUs")
        share = _SLOW_SHARE[self.schedule] if self.schedule in _SLOW_SHARE else slow_share_of_trace()
        if self.schedule == TRACE:
            return recorded_events(self.job().devices, faster=self.faster, slow_share=share, losses=self.losses,
                                   days=self.days, draws=draws)  # fmt: skip
        horizon_s = self.hours * 3600
        return drawn_events(
            self.job().devices, every_s=self.every_min * 60, horizon_s=horizon_s, slow_share=share, losses=self.losses,
            repair_s=self.repair_h * 3600, draws=draws,
        ), horizon_s  # fmt: skip

    def after_one(self, system: Reshaper, seed: int, loss: float) -> float:
        """Return the throughput share after one fault when all changes are done.

        Parameters
        ----------
        system : Reshaper
        seed : int
        loss : float
            Share of its speed that a GPU loses; 1 kills it.
        """
        job = self.job()
        struck = int(stream(seed, "one fault").integers(job.devices))
        run = simulate(job, [Event(0.0, struck, 1.0 - loss)], 1e9, system, replace(self.times(), quiet_s=math.inf))
        return run.segments[-1][2] * step_ps(job, _well(job), healthy_plan(job)) / PS


def _well(job: Job) -> Floats:
    return np.ones(job.devices)
