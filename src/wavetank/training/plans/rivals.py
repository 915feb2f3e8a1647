"""Other planners: the same search over fewer or other plans, the usual default, the middle one, and all there are.

Each chooses microbatches, checkpoints and the shards of ZeRO by the same costs as Piper does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wavetank.settings import setting
from wavetank.training.plans.costs import step_cost
from wavetank.training.plans.interface import Job, NoPlanError, Plan, legal_plans
from wavetank.training.plans.memory import fits, stage_bytes
from wavetank.training.plans.piper import fastest


@dataclass(frozen=True, kw_only=True)
class Searched:
    """Planner that takes the fastest of some plans that fit."""

    pipeline: bool = setting(False, says="Whether there may be stages")
    tensor: bool = setting(False, says="Whether matrices may be divided among the ranks of a node")
    exchange: str = setting("flat", says="Ways to exchange tokens", choices=("flat", "halo", "best"))
    largest_micro: int = setting(8, unit="sequences", says="Largest microbatch", low=1, high=1024)
    shards: int = setting(3, says="Largest stage of ZeRO", choices=(0, 1, 3))

    def candidates(self, job: Job) -> Iterable[Plan]:
        """Return the plans that are considered.

        Parameters
        ----------
        job : Job
        """
        ways = ("flat", "halo") if self.exchange == "best" else (self.exchange,)
        plans = legal_plans(
            job, pipeline=self.pipeline, tensor=self.tensor, exchanges=ways, largest_micro=self.largest_micro
        )
        return (plan for plan in plans if plan.shards <= self.shards)

    def plan(self, job: Job) -> Plan:
        """Return the fastest plan."""
        return fastest(job, self.candidates(job))


@dataclass(frozen=True, kw_only=True)
class LargestGroup:
    """Planner that searches nothing: the largest group of experts, one sequence a microbatch, ever more savings of
    memory until it fits.
    """

    def plan(self, job: Job) -> Plan:
        """Return the first plan that fits."""
        plans = list(legal_plans(job, pipeline=False, tensor=False, exchanges=("flat",), largest_micro=1))
        group = max((each.experts for each in plans), default=0)
        for plan in sorted(
            (each for each in plans if each.experts == group and each.shards), key=lambda each: each[5:7]
        ):
            if fits(job, plan):
                return plan
        raise NoPlanError(
            "The largest group of experts does not fit into the memory of a rank.", given=f"{group} ranks"
        )


@dataclass(frozen=True, kw_only=True)
class MedianPlan:
    """Planner without a model of time: what the plan in the middle of all that fit takes, as one drawn at random."""

    def plan(self, job: Job) -> Plan:
        """Return the plan in the middle of all that fit, by the time of their step."""
        times = sorted(
            (round(step_cost(job, plan).time_s * 1e9), plan)
            for plan in legal_plans(job)
            if stage_bytes(job, plan) <= job.room_bytes
        )
        if not times:
            raise NoPlanError("No plan fits into the memory of a rank.", given=f"{job.ranks} ranks")
        return times[len(times) // 2][1]
