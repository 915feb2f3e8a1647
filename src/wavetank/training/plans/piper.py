"""Piper: a pipeline whose stages hold few layers each, so that the experts of a layer need few ranks.

All experts must lie somewhere.  Without stages, experts of all layers are divided over a group so large that its
exchanges of tokens, four a layer, leave the node and go through the slowest links.  With stages, the weights of a rank
come from few layers, and a group can be as small as a node; what that costs is a bubble.  Every plan whose memory fits,
in whole bytes, is priced by one model of its step, and the fastest is taken.  Exchanges that leave nodes go through
them in three phases.  Experts that get more tokens than others change places while training goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wavetank.settings import setting
from wavetank.training.plans.costs import step_cost
from wavetank.training.plans.interface import Job, NoPlanError, Plan, legal_plans
from wavetank.training.plans.memory import fits, stage_bytes


@dataclass(frozen=True, kw_only=True)
class Piper:
    """Planner that prices all pairs of stages and groups of experts with every microbatch that fits."""

    exchange: str = setting(
        "best", says="Ways to exchange tokens: in three phases or flat, as is faster, or flat only",
        choices=("best", "flat"),
    )  # fmt: skip
    largest_micro: int = setting(8, unit="sequences", says="Largest microbatch", low=1, high=1024)

    def candidates(self, job: Job) -> Iterable[Plan]:
        """Return the plans that are considered.

        Parameters
        ----------
        job : Job
        """
        ways = ("flat", "halo") if self.exchange == "best" else ("flat",)
        return legal_plans(job, tensor=False, exchanges=ways, largest_micro=self.largest_micro)

    def plan(self, job: Job) -> Plan:
        """Return the fastest plan that fits."""
        return fastest(job, self.candidates(job))


def fastest(job: Job, plans: Iterable[Plan]) -> Plan:
    """Return the plan with the shortest step among those that fit; of equal ones that with the smallest groups.

    Parameters
    ----------
    job : Job
    plans : iterable of Plan

    Raises
    ------
    NoPlanError
        If none fits; it names the one that needs least.
    """
    best: tuple[tuple[int, int, Plan], Plan] | None = None
    least: tuple[int, Plan] | None = None
    for plan in plans:
        needs = stage_bytes(job, plan)
        if needs > job.room_bytes:
            least = min(least, (needs, plan)) if least else (needs, plan)
            continue
        # In whole nanoseconds, so that equal plans are equal.
        key = round(step_cost(job, plan).time_s * 1e9), plan.experts, plan
        if best is None or key < best[0]:
            best = key, plan
    if best is not None:
        return best[1]
    if least is None:
        raise NoPlanError("There is no plan for this job.", given=f"{job.ranks} ranks, {job.batch} sequences",
                          hint="take a batch that more groups of ranks divide")  # fmt: skip
    raise NoPlanError(
        "No plan fits into the memory of a rank.", given=f"{least[0] / 2**30:.1f} GiB with {least[1]}",
        allowed=f"{job.room_bytes / 2**30:.1f} GiB", hint="take more ranks",
    )  # fmt: skip


def share_that_fits(job: Job, plans: Iterable[Plan]) -> float:
    """Return which share of plans fits into memory.

    Parameters
    ----------
    job : Job
    plans : iterable of Plan
        At least one.
    """
    asked = [fits(job, plan) for plan in plans]
    return sum(asked) / len(asked)
