"""What else is done when replicas die: restarting, going on with fewer, spares, throwing the step away."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavetank.platforms.checkpoints import young_interval_s
from wavetank.settings import setting
from wavetank.training.failures.interface import (
    FROM_CHECKPOINT,
    LEAVE_OUT,
    REPLACE,
    SKIP_STEP,
    Bench,
    Job,
    Loss,
    Plan,
    Recovery,
)

_FACTORS = (0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0)
_FEW = range(1, 9)


def _intervals(job: Job, mtbf_s: float) -> list[int]:
    """Return numbers of steps worth trying between two checkpoints."""
    step_s = job.step_s(job.microbatches, job.replicas)
    best = young_interval_s(max(job.checkpoint_s, 0.01 * step_s), mtbf_s) / step_s if mtbf_s < math.inf else 1e6
    return sorted({*_FEW, *(max(1, round(best * factor)) for factor in _FACTORS)})


def _best_interval(recovery: Recovery, bench: Bench, plan: Plan) -> Plan:
    plans = [plan._replace(checkpoint_every=every) for every in _intervals(bench.job, bench.mtbf_s)]
    return max(plans, key=lambda each: bench.rehearse(recovery, each))


@dataclass(frozen=True, kw_only=True)
class CheckpointRestart:
    """Stops everything at a failure, and starts all living replicas again from the last checkpoint.

    Survivors share the microbatches of a step, as with ReCoVer, and machines that were repaired are used again.  A
    recovery policy has ``plan(bench) -> plan`` and ``answer(loss) -> answer``, see
    :mod:`wavetank.training.failures.interface`.
    """

    checkpoint_every: int = setting(
        0, unit="steps", says="Steps between checkpoints; 0: the best in rehearsals", low=0, high=10**9
    )

    def plan(self, bench: Bench) -> Plan:
        """Return the interval, after a search.

        Parameters
        ----------
        bench : Bench
        """
        if self.checkpoint_every:
            return Plan(checkpoint_every=self.checkpoint_every)
        return _best_interval(self, bench, Plan())

    def answer(self, loss: Loss) -> str:
        """Return that the job restarts.

        Parameters
        ----------
        loss : Loss
        """
        return FROM_CHECKPOINT


@dataclass(frozen=True, kw_only=True)
class DropAndContinue:
    """Repairs the collective alone: survivors go on with what they have, in this step and in all that follow.

    Nothing is computed again, and every step after a failure has fewer microbatches than it should.
    """

    checkpoint_every: int = setting(
        100, unit="steps", says="Steps between checkpoints, for what no survivor can recover from; 0: none", low=0,
        high=10**9,
    )  # fmt: skip

    def plan(self, bench: Bench) -> Plan:
        """Return a plan whose batch shrinks.

        Parameters
        ----------
        bench : Bench
        """
        return Plan(checkpoint_every=self.checkpoint_every, keeps_batch=False, snapshots=True)

    def answer(self, loss: Loss) -> str:
        """Return that the gradients are summed without those of the dead.

        Parameters
        ----------
        loss : Loss
        """
        return LEAVE_OUT


@dataclass(frozen=True, kw_only=True)
class ReplicaRestart:
    """The rule of torchft: a failed step is not applied, and the dead replica alone starts again, if it can.

    Survivors go on with the next step, whose batch is smaller until the replica is back with the state of another one.
    """

    checkpoint_every: int = setting(
        100, unit="steps", says="Steps between checkpoints, for what no survivor can recover from; 0: none", low=0,
        high=10**9,
    )  # fmt: skip

    def plan(self, bench: Bench) -> Plan:
        """Return a plan in which replicas come back.

        Parameters
        ----------
        bench : Bench
        """
        return Plan(checkpoint_every=self.checkpoint_every, keeps_batch=False, rejoins=True)

    def answer(self, loss: Loss) -> str:
        """Return that the step is thrown away.

        Parameters
        ----------
        loss : Loss
        """
        return SKIP_STEP


@dataclass(frozen=True, kw_only=True)
class HotSpares:
    """Holds replicas ready that take the place of dead ones within the step; without any left the job restarts."""

    spares: int = setting(
        -1, unit="replicas", says="Replicas held ready; -1: the best number in rehearsals", low=-1, high=10_000
    )

    def plan(self, bench: Bench) -> Plan:
        """Return how many spares are held, and the interval of checkpoints for when they are used up.

        Parameters
        ----------
        bench : Bench
        """
        found, most = Plan(), bench.job.replicas
        counts = [self.spares] if self.spares >= 0 else sorted({0, 1, 2, 4, *range(8, most + 1, 8)})
        every = _best_interval(CheckpointRestart(), bench, found).checkpoint_every
        plans = [
            found._replace(checkpoint_every=steps, spares=count)
            for count in counts
            for steps in sorted({every, 4 * every, 100})
        ]
        return max(plans, key=lambda each: bench.rehearse(self, each))

    def answer(self, loss: Loss) -> str:
        """Return that a spare takes over, or that the job restarts.

        Parameters
        ----------
        loss : Loss
        """
        return REPLACE if loss.spares else FROM_CHECKPOINT
