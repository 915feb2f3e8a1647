"""What a recovery policy sees and decides.

A policy is given a bench before a run: the job, how often it fails, and rehearsals in which plans can be tried.  It
answers with a plan, and later, whenever a replica dies, with what the survivors do.  What everything takes is computed
by :mod:`~wavetank.training.failures.simulate`, by the same rules for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wavetank.errors import BadValueError
from wavetank.platforms.links import Link

FROM_CHECKPOINT = "restart from the last checkpoint"
COMPUTE_LOST = "compute what was lost and reduce again"
COMPUTE_ALL = "compute the whole step again"
LEAVE_OUT = "reduce again without what was lost"
SKIP_STEP = "throw the step away"
REPLACE = "compute the step again with a spare replica"
ANSWERS = (FROM_CHECKPOINT, COMPUTE_LOST, COMPUTE_ALL, LEAVE_OUT, SKIP_STEP, REPLACE)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job of equal replicas, and what its operations take.

    Parameters
    ----------
    replicas : int
        At the start.
    gpus : int
        Of each replica.
    microbatches : int
        Of a step, over all replicas.
    tokens : int
        Of a microbatch.
    microbatch_s : float
        In which a replica computes one, forward and backward, s.
    gradient_bytes : float
        That each GPU reduces with its peers in the other replicas.
    link : Link
        Between these peers.
    snapshot_s : float
        In which the buckets of a step are copied, s.
    detect_s : float
        From a death, or from the end of the computation where that is later, until survivors have noticed, s.
    regroup_s : float
        In which survivors agree and form a new group, s.
    copy_s : float
        In which a replica takes over the state of another one, s.
    checkpoint_s : float
        For which a checkpoint stops the job, s.
    restart_s : float
        From the notice of a death until the job computes again from its checkpoint, s.
    """

    replicas: int
    gpus: int
    microbatches: int
    tokens: int
    microbatch_s: float
    gradient_bytes: float
    link: Link
    snapshot_s: float = 0.0
    detect_s: float = 0.0
    regroup_s: float = 0.0
    copy_s: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("replicas", "gpus", "tokens"):
            if getattr(self, name) < 1:
                raise BadValueError("A job needs replicas, GPUs and tokens.", given=getattr(self, name),
                                    allowed="1 or more", where=name)  # fmt: skip
        if self.microbatches < self.replicas:
            raise BadValueError(
                "Every replica of a job begins with a microbatch.",
                given=f"{self.microbatches} microbatches for {self.replicas} replicas",
                allowed=f"{self.replicas} or more",
            )
        if not 0 < self.microbatch_s < float("inf"):
            raise BadValueError("A microbatch takes time.", given=self.microbatch_s, allowed="more than 0 s")
        for name in ("gradient_bytes", "snapshot_s", "detect_s", "regroup_s", "copy_s", "checkpoint_s", "restart_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadValueError("This is no cost of a job.", given=getattr(self, name), allowed="0 or more, finite",
                                    where=name)  # fmt: skip

    def quota(self, count: int, replicas: int) -> int:
        """Return the microbatches of the replica that has most of them: balanced or not, the ceiling of the mean."""
        return -(-count // replicas)

    def reduce_s(self, replicas: int) -> float:
        """Return how long replicas take to sum their gradients."""
        return self.link.all_reduce_s(replicas, self.gradient_bytes) if replicas > 1 else 0.0

    def step_s(self, count: int, replicas: int) -> float:
        """Return how long a step without failure takes.

        Parameters
        ----------
        count : int
            Microbatches.
        replicas : int
        """
        return self.quota(count, replicas) * self.microbatch_s + self.reduce_s(replicas)


class Plan(NamedTuple):
    """What a policy decides before a run.

    Attributes
    ----------
    checkpoint_every : int
        Steps between checkpoints; 0 for none.
    spares : int
        Replicas that are held ready and compute nothing.
    keeps_batch : bool
        Whether survivors compute the microbatches of the lost ones too, so that every step has all of them.
    snapshots : bool
        Whether buckets are copied before they are reduced.
    rejoins : bool
        Whether a replica that was repaired joins at the next step, with the state of another one.
    """

    checkpoint_every: int = 0
    spares: int = 0
    keeps_batch: bool = True
    snapshots: bool = False
    rejoins: bool = False


class Loss(NamedTuple):
    """What a policy knows when a replica has died.

    Attributes
    ----------
    replicas : int
        That are left.
    spares : int
        That are ready.
    steps_since_checkpoint : int
        That a restart would do again.
    """

    replicas: int
    spares: int
    steps_since_checkpoint: int


class Bench(Protocol):
    """What a policy may look at before a run.

    Attributes
    ----------
    job : Job
    """

    job: Job

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures of the job at full size, s; infinite without failures."""
        ...

    def rehearse(self, recovery: Recovery, plan: Plan) -> float:
        """Return tokens per GPU hour of live replicas under other failures of the same kind."""
        ...


class Recovery(Protocol):
    """Keeps a job going."""

    def plan(self, bench: Bench) -> Plan:
        """Return what is decided before a run."""
        ...

    def answer(self, loss: Loss) -> str:
        """Return what survivors do: one of :data:`ANSWERS`."""
        ...
