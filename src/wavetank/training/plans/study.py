"""Study ``parallel-plan``: how models with many experts are best cut over the ranks of a machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import model
from wavetank.platforms.machines import Machine, machine
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.plans.costs import StepCost, forget_prices, mfu, step_cost
from wavetank.training.plans.interface import Job, NoPlanError, Planner, Shape, legal_plans
from wavetank.training.plans.memory import stage_bytes
from wavetank.training.plans.piper import share_that_fits


@dataclass(frozen=True, kw_only=True)
class ParallelPlan(Study):
    """Planners cut models with many experts over the ranks of a machine: stages, groups of experts, tensor shards,
    replicas, microbatches, checkpoints, shards of ZeRO.  A plan must fit into memory, in whole bytes; its step is
    modelled from peak speeds, bandwidths and bytes, the same for all.
    """

    name: ClassVar[str] = "parallel-plan"
    baseline: ClassVar[str] = "expert-parallel"
    primary: ClassVar[str] = "mfu"
    secondary: ClassVar[tuple[str, ...]] = ("exchange_share", "bubble_share", "planning_s")
    exact: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("mfu", "", "higher", "modelled",
               "operations of the model, forward and backward, nothing that is computed again / (time of a step * peak "
               "of all ranks); geometric mean over the cases", words="model FLOPs utilisation"),
        Metric("exchange_share", "", "lower", "modelled", "time in which tokens are exchanged / time of a step, mean "
               "over the cases", words="share of exchanges"),
        Metric("bubble_share", "", "lower", "modelled", "time in which the pipeline fills and drains / time of a step, "
               "mean over the cases", words="share of the bubble"),
        Metric("memory_share", "", "", "counted", "bytes of the fullest rank / memory of a device, "
               "largest of the cases", words="share of memory"),
        Metric("infeasible_cases", "", "lower", "counted", "cases in which no plan of the planner fits into memory; "
               "with one, it has no figures over the cases"),
        Metric("fitting_share", "", "", "counted", "plans that fit into memory / all legal ones, mean over the cases; "
               "the same for all planners", table=False),
        Metric("planning_s", "s", "lower", "measured", "planning one case on this machine, the slowest of all",
               words="time to plan"),
        Metric("mfu_by_case", "", "higher", "modelled", "model FLOPs utilisation by model and ranks", table=False,
               words="model FLOPs utilisation"),
        Metric("stages", "", "", "counted", "stages of the plan", table=False),
        Metric("experts_group", "ranks", "", "counted", "ranks that divide the experts of a layer", table=False),
        Metric("tensor_shards", "ranks", "", "counted", "ranks that divide matrices", table=False),
        Metric("micro_sequences", "sequences", "", "counted", "sequences of a microbatch", table=False),
        Metric("mfu_by_bandwidth", "", "higher", "modelled", "geometric mean over the cases of MFU by bandwidth inside "
               "of a group of nodes / bandwidth between groups", table=False, words="model FLOPs utilisation"),
        Metric("mfu_by_half_rows", "", "higher", "modelled", "geometric mean over the cases of MFU by the rows at "
               "which a product reaches half of its best speed", table=False, words="model FLOPs utilisation"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Model FLOPs utilisation", y="mfu", says="Longer is better."),
        Chart("bars", "Model FLOPs utilisation by model and ranks", y="mfu_by_case", by="case",
              says="Where stages help, and where they do not."),
        Chart("sweep", "By bandwidth inside over between groups of nodes", y="mfu_by_bandwidth", by="ratio", log="x",
              says="Whether a gain depends on how slow the global links are."),
    )  # fmt: skip

    machine: str = setting("Frontier", says="Machine: Frontier, SuperMUC-NG-2")
    cases: tuple[str, ...] = setting(
        ("Mixtral-8x7B@64", "Qwen3-30B-A3B@64", "Qwen3-235B-A22B@256", "DeepSeek-V3@512"),
        says="Models of the catalog with experts, and the ranks that train each: MODEL@RANKS",
    )
    sequences_per_rank: int = setting(4, unit="sequences", says="Batch of a step, per rank", low=1, high=4096)
    tokens: int = setting(4096, unit="tokens", says="Length of sequences", low=16, high=1 << 20)
    memory_share: float = setting(0.92, says="Share of a device's memory that a plan may fill", low=0.01, high=1.0)
    fused: bool = setting(True, says="Whether attention keeps no scores for the backward pass")
    counted: bool = setting(
        True, says="Whether each rank of a group brings its own sequences to the experts; otherwise their activations "
        "are divided by the group, as in Piper's formula"
    )  # fmt: skip
    half_rows: float = setting(
        256.0, unit="rows", says="Rows at which a product reaches half of its best speed", low=0.0, high=1e6
    )
    product_share: float = setting(0.7, says="Share of the peak that products reach at best", low=0.01, high=1.0)
    hidden_share: float = setting(0.7, says="Share of the traffic of gradients that hides", low=0.0, high=1.0)
    global_ratio: float = setting(
        0.0, says="Bandwidth inside over bandwidth between groups of nodes; 0: the machine's", low=0.0, high=64.0
    )
    latency: bool = setting(True, says="Whether messages take a time to start")
    ratios: tuple[float, ...] = setting((1.0, 2.0, 4.0, 8.0), says="Further such ratios", low=0.1, high=64.0)
    rows: tuple[float, ...] = setting((0.0, 64.0, 1024.0), unit="rows", says="Further half_rows", low=0.0, high=1e6)

    def check(self) -> None:
        """Refuse cases that are none."""
        if not self.cases:
            raise BadValueError("There are models to be trained.", given="none", where="cases")
        for case in self.cases:
            self.job(case)

    def platform(self, ratio: float) -> Machine:
        """Return the machine, with other links between groups of nodes.

        Parameters
        ----------
        ratio : float
            Bandwidth of the level below the highest over that of the highest; 0 leaves it.
        """
        found = machine(self.machine)
        levels = list(found.levels)
        if ratio and len(levels) > 2:
            whole = levels[-2].bytes_per_s * levels[-2].size
            levels[-1] = replace(levels[-1], bytes_per_s=whole / ratio)
        found = replace(found, levels=tuple(levels))
        return found if self.latency else found.with_latencies(0.0)

    def job(self, case: str, *, ratio: float | None = None, half_rows: float | None = None) -> Job:
        """Return what is to be planned.

        Parameters
        ----------
        case : str
            MODEL@RANKS.
        ratio, half_rows : float, optional
            In place of the settings.

        Raises
        ------
        BadValueError
            For words that are no case.
        """
        name, at, ranks = case.rpartition("@")
        if not at or not ranks.isascii() or not ranks.isdigit():
            raise BadValueError("This is no case.", given=case, allowed="MODEL@RANKS, as in DeepSeek-V3@512",
                                where="cases")  # fmt: skip
        return Job(
            shape=Shape.of(model(name)), machine=self.platform(self.global_ratio if ratio is None else ratio),
            ranks=int(ranks), batch=int(ranks) * self.sequences_per_rank, tokens=self.tokens,
            memory_share=self.memory_share, fused=self.fused, counted=self.counted,
            half_rows=self.half_rows if half_rows is None else half_rows, product_share=self.product_share,
            hidden_share=self.hidden_share,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        levels = self.platform(self.global_ratio).levels
        return (
            "Times are formulas: every layer has experts, products reach a share of the peak that depends on their "
            "rows, and tokens are even among experts.",
            f"{self.machine}: " + ", ".join(
                f"{level.name} of {level.size} at {level.bytes_per_s / level.links / 1e9:g} GB/s a link and "
                f"{level.alpha_s * 1e6:g} us"
                for level in levels
            ) + "; latencies, and the speed between groups of nodes, are assumed.",
        )  # fmt: skip

    def measure(self, system: Planner, seed: int) -> Measurements:
        """Plan every case."""
        found = Measurements()
        rates: list[float] = []
        costs: list[StepCost] = []
        filled, fitting, planning_s = 0.0, 0.0, 0.0
        for case in self.cases:
            job = self.job(case)
            fitting += share_that_fits(job, legal_plans(job)) / len(self.cases)
            forget_prices()
            began = time.perf_counter()
            try:
                plan = system.plan(job)
            except NoPlanError:
                continue
            planning_s = max(planning_s, time.perf_counter() - began)
            job.check(plan)
            if (needs := stage_bytes(job, plan)) > job.room_bytes:
                raise BadValueError("The plan does not fit into memory.", given=f"{needs} bytes: {plan}",
                                    allowed=f"{job.room_bytes} bytes", where=case)  # fmt: skip
            filled = max(filled, needs / job.machine.device.memory_bytes)
            costs.append(step_cost(job, plan))
            rates.append(mfu(job, costs[-1].time_s))
            found.put("mfu_by_case", rates[-1], case=case)
            for name, value in (("stages", plan.pipeline), ("experts_group", plan.experts),
                                ("tensor_shards", plan.tensor), ("micro_sequences", plan.micro)):  # fmt: skip
                found.put(name, value, case=case)
        found.put("infeasible_cases", len(self.cases) - len(rates))
        found.put("fitting_share", fitting)
        if len(rates) < len(self.cases):
            return found
        found.put("mfu", _mean(rates))
        found.put("exchange_share", sum(each.exchange_s / each.time_s for each in costs) / len(costs))
        found.put("bubble_share", sum(each.bubble_s / each.time_s for each in costs) / len(costs))
        found.put("memory_share", filled)
        found.put("planning_s", planning_s)
        for ratio in self.ratios:
            found.put("mfu_by_bandwidth", self._mfu(system, ratio=ratio), ratio=ratio)
        for rows in self.rows:
            found.put("mfu_by_half_rows", self._mfu(system, half_rows=rows), rows=rows)
        return found

    def _mfu(self, system: Planner, *, ratio: float | None = None, half_rows: float | None = None) -> float:
        jobs = [self.job(case, ratio=ratio, half_rows=half_rows) for case in self.cases]
        return _mean([mfu(job, step_cost(job, system.plan(job)).time_s) for job in jobs])


def _mean(values: list[float]) -> float:
    product = 1.0
    for each in values:
        product *= each
    mean: float = product ** (1 / len(values))
    return mean
