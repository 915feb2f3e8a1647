"""Study ``training-faults``: how many tokens a job trains while its replicas die."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device
from wavetank.platforms.links import Link
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.failures.failure_times import (
    DATA_SET,
    StepFailures,
    TimedFailures,
    paper_schedule,
    poisson_failures,
    recorded_failures,
)
from wavetank.training.failures.interface import Job, Plan, Recovery
from wavetank.training.failures.simulate import TrainingRun, simulate
from wavetank.workloads import datasets

PAPER, POISSON, TRACE = "paper", "poisson", "trace"
_MOST_SERVERS = 400
_REHEARSALS = 4


@dataclass(frozen=True, kw_only=True)
class TrainingFaults(Study):
    """A job of equal replicas trains on while they die: at every fifth executed step, while gradients are summed
    (paper), without memory in time (poisson), or as servers of a real cluster did (trace).  Steps take what their
    microbatches and the all-reduce take; seeds draw where and when replicas die.  Every policy first tries plans in
    rehearsals, under other failures of the same kind.
    """

    name: ClassVar[str] = "training-faults"
    baseline: ClassVar[str] = "checkpoint-restart"
    primary: ClassVar[str] = "tokens_per_live_gpu_hour"
    secondary: ClassVar[tuple[str, ...]] = ("tokens_per_owned_gpu_hour", "batch_missing_share", "samples_lost_share")
    must_be_zero: ClassVar[tuple[str, ...]] = ("batch_missing_share",)
    metrics = (
        Metric("tokens_per_live_gpu_hour", "", "higher", "simulated",
               "tokens trained and kept per GPU hour of replicas in use and of spares; waits and restarts included",
               words="tokens per live GPU hour"),
        Metric("tokens_per_owned_gpu_hour", "", "higher", "simulated",
               "tokens trained and kept per hour of all GPUs that the job began with, spares included",
               words="tokens per owned GPU hour"),
        Metric("tokens_per_healthy_gpu_hour", "", "higher", "simulated",
               "tokens trained and kept per hour of all GPUs that are not broken, in use or not",
               words="tokens per healthy GPU hour"),
        Metric("batch_missing_share", "", "lower", "simulated",
               "1 - microbatches in the steps that are kept / those that these steps should have",
               words="microbatches missing from steps"),
        Metric("samples_lost_share", "", "lower", "simulated",
               "share of the microbatches that were due and will never be trained", words="lost samples"),
        Metric("redone_share", "", "lower", "simulated",
               "share of the computed microbatches that are not in the parameters", words="work done for nothing"),
        Metric("recovery_s", "s", "lower", "simulated", "mean time from a death until the job is where it was",
               words="time of a recovery"),
        Metric("failures", "", "", "simulated", "deaths of replicas in use"),
        Metric("replicas_left", "replicas", "", "simulated", "replicas in use at the end"),
        Metric("checkpoint_every", "steps", "", "simulated", "steps between checkpoints; 0 for none"),
        Metric("spares", "replicas", "", "simulated", "replicas held ready at the start"),
    )  # fmt: skip
    charts = (
        Chart("bars", "Tokens per GPU hour of live replicas", y="tokens_per_live_gpu_hour",
              says="Longer trains more with what is alive."),
        Chart("sweep", "As restarts take longer", y="tokens_per_live_gpu_hour", by="restart_steps", log="x",
              says="Where the lines meet, restarting is as good."),
        Chart("sweep", "As failures become rarer", y="tokens_per_live_gpu_hour", by="failure_steps", log="x",
              says="Executed steps per failure."),
        Chart("sweep", "As the run becomes longer", y="tokens_per_live_gpu_hour", by="failures",
              says="Each failure leaves one replica less."),
        Chart("sweep", "Recorded faults, as if on more servers", y="tokens_per_live_gpu_hour", by="faster", log="x",
              says="1 is the cluster as it was."),
        Chart("pareto", "Tokens against the batch", x="batch_missing_share", y="tokens_per_live_gpu_hour",
              says="Up and to the left is better."),
    )  # fmt: skip

    schedule: str = setting(PAPER, choices=(PAPER, POISSON, TRACE), says="Which failures strike")
    replicas: int = setting(64, unit="replicas", says="Replicas at the start", low=2, high=10_000)
    gpus: int = setting(8, unit="GPUs", says="GPUs of a replica", low=1, high=10_000)
    share: int = setting(128, unit="microbatches", says="Microbatches of each replica per step, at the start", low=1,
                         high=1_000_000)  # fmt: skip
    tokens: int = setting(2048, unit="tokens", says="Tokens of a microbatch", low=1, high=10_000_000)
    parameters: float = setting(7e9, says="Parameters of the model", low=1e3, high=1e15)
    device: str = setting("A100-SXM-40GB", says="GPU, by name")
    utilisation: float = setting(0.4, says="Share of the GPUs' peak that a microbatch reaches", low=0.001, high=1.0)
    checkpoint_steps: float = setting(
        0.5, unit="steps", says="Time for which a checkpoint stops the job, in steps of the whole job", low=0, high=1e6
    )
    restart_steps: float = setting(
        9.5, unit="steps", says="Time of a restart, in steps of the whole job", low=0, high=1e6
    )
    detect_s: float = setting(1.0, unit="s", says="Time until a death is noticed", low=0, high=1e6)
    regroup_s: float = setting(1.0, unit="s", says="Time in which survivors form a new group", low=0, high=1e6)
    failure_steps: int = setting(5, unit="steps", says="Steps per failure (paper, poisson)", low=1, high=10**9)
    failures: int = setting(32, says="Failures of the run (paper), or expected ones (poisson)", low=0, high=10_000)
    repair_steps: float = setting(
        1e9, unit="steps", says="Time after which a replica can be used again (poisson)", low=0, high=1e12
    )
    broken_gpus: int = setting(1, unit="GPUs", says="GPUs that a failure breaks (paper, poisson)", low=1, high=10_000)
    faster: float = setting(
        1.0, says="Divides all times of the trace: 10 is a cluster ten times as large", low=0.01, high=1e6
    )
    restarts: tuple[float, ...] = setting(
        (0.5, 2.0, 4.0, 20.0, 40.0), unit="steps", says="Further times of a restart", low=0, high=1e6
    )
    intervals: tuple[int, ...] = setting(
        (2, 10, 30, 100, 1000), unit="steps", says="Further steps per failure", low=1, high=10**9
    )
    lengths: tuple[int, ...] = setting((4, 16, 48), says="Further numbers of failures (paper)", low=0, high=10_000)
    crowds: tuple[float, ...] = setting(
        (10.0, 100.0, 1000.0), says="Further factors of faster (trace)", low=0.01, high=1e6
    )

    def check(self) -> None:
        """Refuse runs that nobody survives, and more servers than were recorded."""
        most = max(self.failures, *self.lengths, 0) if self.schedule == PAPER else 0
        if most >= self.replicas:
            raise BadValueError(
                "No replica would be left.",
                given=f"{most} failures of {self.replicas} replicas",
                allowed=f"at most {self.replicas - 1}",
                where=f"study {self.name}, failures and lengths",
            )
        if self.broken_gpus > self.gpus:
            raise BadValueError("A failure breaks no more GPUs than a replica has.", given=self.broken_gpus,
                                allowed=f"at most {self.gpus}", where=f"study {self.name}, broken_gpus")  # fmt: skip
        if self.schedule == TRACE and self.replicas > _MOST_SERVERS // 2:
            raise BadValueError(
                "The trace has too few servers for these replicas and as many spares.",
                given=self.replicas,
                allowed=f"at most {_MOST_SERVERS // 2}",
                where=f"study {self.name}, replicas",
            )
        if self.schedule == TRACE:
            datasets.find(DATA_SET)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the trace."""
        if self.schedule != TRACE:
            return {}
        (file,) = datasets.entry(DATA_SET).files
        return {DATA_SET: file.sha256}

    def job(self) -> Job:
        """Return the job and what its operations take."""
        gpu = device(self.device)
        gradient_bytes = 4 * self.parameters / self.gpus
        flops = 6 * self.parameters * self.tokens
        found = Job(
            replicas=self.replicas,
            gpus=self.gpus,
            microbatches=self.share * self.replicas,
            tokens=self.tokens,
            microbatch_s=flops / (self.gpus * gpu.bf16_flops_per_s * self.utilisation),
            gradient_bytes=gradient_bytes,
            link=Link(bytes_per_s=gpu.network_bytes_per_s, latency_s=gpu.link_latency_s, per_hop=True),
            snapshot_s=2 * gradient_bytes / gpu.hbm_bytes_per_s,
            detect_s=self.detect_s,
            regroup_s=self.regroup_s,
            # Weights in 2 bytes, master weights and two moments in 4.
            copy_s=14 * self.parameters / self.gpus / gpu.network_bytes_per_s,
        )
        step_s = found.step_s(found.microbatches, found.replicas)
        return replace(found, checkpoint_s=self.checkpoint_steps * step_s, restart_s=self.restart_steps * step_s)

    def opening(self) -> tuple[str, ...]:
        """Return what is assumed."""
        job = self.job()
        step_s = job.step_s(job.microbatches, job.replicas)
        strikes = {
            PAPER: f"a replica dies at every {self.failure_steps}. executed step, {self.failures} times",
            POISSON: f"a replica dies every {self.failure_steps * step_s:,.0f} s on average",
            TRACE: "servers fail as recorded" + (f", {self.faster:g} times faster" if self.faster != 1 else ""),
        }[self.schedule]
        return (
            f"{self.replicas} replicas of {self.gpus} {self.device}, steps of {step_s:.1f} s without failure; "
            f"{strikes}. A checkpoint takes {job.checkpoint_s:.1f} s, a restart {job.restart_s:.0f} s.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "What a restart takes decides the comparison; it is assumed, and swept.",
            "With `paper`, failures come by executed steps, none during a restart; else they come in time, also then.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run a policy under the failures of a seed, and again with other costs and failures."""
        found = Measurements()
        run, plan = self.trained(system, seed)
        for metric, value in _figures(run).items():
            found.put(metric, value)
        found.put("checkpoint_every", plan.checkpoint_every)
        found.put("spares", plan.spares)
        for name, values in self._sweeps().items():
            for value in sorted({getattr(self, name), *values}):
                other, _ = self.trained_at(system, seed, **{name: value})
                for metric in ("tokens_per_live_gpu_hour", "tokens_per_owned_gpu_hour"):
                    found.put(metric, _figures(other)[metric], **{name: value})
        return found

    def _sweeps(self) -> dict[str, tuple[float, ...]]:
        if self.schedule == TRACE:
            return {"restart_steps": self.restarts, "faster": self.crowds}
        sweeps: dict[str, tuple[float, ...]] = {"restart_steps": self.restarts, "failure_steps": self.intervals}
        return {**sweeps, "failures": self.lengths} if self.schedule == PAPER else sweeps

    def trained_at(self, system: Recovery, seed: int, **other: float) -> tuple[TrainingRun, Plan]:
        """Return what :meth:`trained` returns with another setting."""
        return replace(self, **other).trained(system, seed)  # type: ignore[arg-type]

    def trained(self, system: Recovery, seed: int) -> tuple[TrainingRun, Plan]:
        """Return the run of a policy, and its plan.

        Parameters
        ----------
        system : Recovery
        seed : int
        """
        plan = system.plan(RehearsalBench(self, seed))
        return self.run_of(system, plan, self.failures_of(seed, "run")), plan

    def run_of(self, system: Recovery, plan: Plan, failures: StepFailures | TimedFailures) -> TrainingRun:
        """Return the run of a policy with a plan under given failures."""
        # A server of the trace is away as a whole.
        broken = self.gpus if self.schedule == TRACE else self.broken_gpus
        return simulate(self.job(), failures, system, plan, broken_gpus=broken)

    def failures_of(self, seed: int, purpose: str) -> StepFailures | TimedFailures:
        """Return the failures of a seed: of the run itself, or of a rehearsal.

        Parameters
        ----------
        seed : int
        purpose : str
        """
        draws = stream(seed, "failures", purpose)
        if self.schedule == PAPER:
            return paper_schedule(self.failure_steps, self.failures, draws)
        if self.schedule == TRACE:
            return recorded_failures(min(2 * self.replicas, _MOST_SERVERS), self.faster, draws)
        job = self.job()
        step_s = job.step_s(job.microbatches, job.replicas)
        return poisson_failures(
            2 * self.replicas,
            self.failure_steps * step_s * self.replicas,
            self.repair_steps * step_s,
            max(1, self.failures) * self.failure_steps * step_s,
            draws,
        )


class RehearsalBench:
    """What a policy may look at before a run of the study.

    Parameters
    ----------
    study : TrainingFaults
    seed : int
        Of the run; rehearsals draw failures of their own.
    """

    def __init__(self, study: TrainingFaults, seed: int) -> None:
        self.study = study
        self.job = study.job()
        # One of the paper's schedules is as good as another; where chance decides more, a plan is tried several times.
        names = ["rehearsal"] if study.schedule == PAPER else [f"rehearsal {number}" for number in range(_REHEARSALS)]
        self._failures = [study.failures_of(seed, name) for name in names]

    @functools.cached_property
    def mtbf_s(self) -> float:
        """Mean time between failures of the job at full size, s."""
        step_s = self.job.step_s(self.job.microbatches, self.job.replicas)
        count, time_s = 0, 0.0
        for each in self._failures:
            if isinstance(each, StepFailures):
                count, time_s = count + len(each.places), time_s + each.every * step_s * len(each.places)
            else:
                count, time_s = count + len(each.first(self.job.replicas).time_s), time_s + each.horizon_s
        return time_s / count if count else math.inf

    def rehearse(self, recovery: Recovery, plan: Plan) -> float:
        """Return tokens per live GPU hour, the mean under the failures of all rehearsals."""
        runs = [self.study.run_of(recovery, plan, each) for each in self._failures]
        return sum(run.per_gpu_hour(run.live_gpu_s) for run in runs) / len(runs)


def _figures(run: TrainingRun) -> dict[str, float]:
    return {
        "tokens_per_live_gpu_hour": run.per_gpu_hour(run.live_gpu_s),
        "tokens_per_owned_gpu_hour": run.per_gpu_hour(run.owned_gpu_s),
        "tokens_per_healthy_gpu_hour": run.per_gpu_hour(run.healthy_gpu_s),
        "batch_missing_share": 1 - run.trained / run.wanted if run.wanted else 0.0,
        "samples_lost_share": run.dropped / max(1, run.dropped + run.trained),
        "redone_share": 1 - run.trained / run.computed if run.computed else 0.0,
        "recovery_s": run.recovering_s / run.failures if run.failures else 0.0,
        "failures": run.failures,
        "replicas_left": run.replicas,
    }
