"""Every step sums the gradients of the same microbatches, whatever number of replicas is left.

A restart throws away the work of every replica because one has died.  Here survivors notice within the step, put back
copies of the buckets that were being summed, compute among themselves what the dead replica had computed, and sum
again.  Nobody waits for a scheduler, a file system or a new process, and the step that comes out is the one that would
have come out without a failure.

:class:`~wavetank.training.failures.trainer.ResilientTrainer` does this with real processes; here the same decisions are
simulated at a size where they pay.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.settings import setting
from wavetank.training.failures.interface import COMPUTE_ALL, COMPUTE_LOST, Bench, Loss, Plan


@dataclass(frozen=True, kw_only=True)
class InStepRecovery:
    """Keeps the number of microbatches of a step, and the work of survivors within it."""

    rollback: bool = setting(True, says="Whether buckets are put back; without it the step is computed again")
    rejoins: bool = setting(False, says="Whether repaired replicas join at the next step")
    checkpoint_every: int = setting(
        100, unit="steps", says="Steps between checkpoints, for what no survivor can recover from; 0: none", low=0,
        high=10**9,
    )  # fmt: skip

    def plan(self, bench: Bench) -> Plan:
        """Return a plan that keeps the batch.

        Parameters
        ----------
        bench : Bench
        """
        return Plan(checkpoint_every=self.checkpoint_every, snapshots=self.rollback, rejoins=self.rejoins)

    def answer(self, loss: Loss) -> str:
        """Return that survivors compute what was lost, or everything where nothing can be put back.

        Parameters
        ----------
        loss : Loss
        """
        return COMPUTE_LOST if self.rollback else COMPUTE_ALL
