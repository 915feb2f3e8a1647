"""Data-parallel training whose steps survive the death of replicas, with the same parameters as if none had died.

Gradients are reduced bucket by bucket.  A replica that dies in the middle leaves some buckets summed over all, one of
them half summed, and others untouched.  Every bucket is therefore copied before its reduction; the survivors put the
copies back, compute the microbatches that died, and reduce again among themselves.  A survivor repeats no work, and
every step sums the gradients of exactly the same microbatches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wavetank.errors import BadValueError
from wavetank.live.membership import Decision
from wavetank.live.rank_process import GroupBrokenError
from wavetank.training.failures.quotas import assign, balanced, take_over


class Group(Protocol):
    """What a trainer needs of the other replicas; :class:`wavetank.live.rank_process.Rank` has it."""

    number: int
    members: tuple[int, ...]

    def all_reduce(self, tensor: Any, **at: int) -> None:
        """Sum in place over the members, or raise GroupBrokenError."""

    def agree(self, well: bool) -> Decision:
        """Vote, and return the answer that all living members get."""

    def point(self, name: str, **at: int) -> None:
        """Name a place that has been reached."""


class Alone:
    """The group of a single replica."""

    number = 0
    members: tuple[int, ...] = (0,)

    def all_reduce(self, tensor: Any, **at: int) -> None:
        """Leave the tensor: it is the sum already."""

    def agree(self, well: bool) -> Decision:
        """Return that the work counts."""
        return Decision(True, 0, (0,), ())

    def point(self, name: str, **at: int) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class StepReport:
    """What a step did.

    Parameters
    ----------
    step : int
        From 0.
    loss : float
        Mean over the microbatches of the step.
    members : tuple of int
        Replicas from now on.
    computed : tuple of int
        Microbatch ids that this replica computed.
    attempts : int
        Reductions of all buckets, the last one included; 1 when nothing happened.
    recovery_s : float
        From noticing the first break, or from the vote that reports it, until all gradients are summed: agreement, the
        new group, lost microbatches and the sums included; 0 when nothing happened.
    """

    step: int
    loss: float
    members: tuple[int, ...]
    computed: tuple[int, ...]
    attempts: int
    recovery_s: float


class ResilientTrainer:
    """Steps of stochastic gradient descent over replicas that may die at any moment.

    Parameters
    ----------
    model : torch.nn.Module
        Equal parameters on every replica; buffers (of batch normalisation, say) are not exchanged.
    optimizer : torch.optim.Optimizer
        Over the parameters of the model.
    microbatches : callable
        ``microbatches(model, id) -> loss``, a scalar tensor; data must depend on the id alone, never on the rank.
        Torch's random numbers are seeded with the id before each call.
    group : Group
        The other replicas; none by default.
    quota : callable
        ``quota(count, replicas) -> quotas``; ``balanced`` or ``majors``.
    bucket_bytes : int
        Gradients are reduced in pieces of about this size.
    rollback : bool
        Without it, broken buckets are reduced again as they are: wrong, and there to show what the copies are for.

    Raises
    ------
    BadValueError
        If no parameter of the model is to be trained, or the size of a bucket is not positive.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        microbatches: Callable[[Any, int], Any],
        *,
        group: Group | None = None,
        quota: Callable[[int, int], list[int]] = balanced,
        bucket_bytes: int = 1 << 20,
        rollback: bool = True,
    ) -> None:
        self.model, self.optimizer, self.microbatches = model, optimizer, microbatches
        self.group: Group = Alone() if group is None else group
        self.quota, self.rollback = quota, rollback
        self.steps_done = 0
        parameters = [each for each in model.parameters() if each.requires_grad]
        if not parameters or bucket_bytes < 1:
            raise BadValueError(
                "A trainer needs parameters that are trained, and buckets of a positive size.",
                given=f"{len(parameters)} parameters, buckets of {bucket_bytes} bytes",
            )
        self._buckets = _buckets_of(parameters, bucket_bytes)

    def step(self, ids: Sequence[int]) -> StepReport:
        """Sum the gradients of the microbatches over all replicas, divide by their number, and step the optimizer.

        Parameters
        ----------
        ids : sequence of int
            Global ids of the microbatches of this step, the same on every replica.

        Raises
        ------
        BadValueError
            If ids occur twice, or a loss or gradient is not finite: then on every replica, with parameters unchanged.
        """
        import torch

        ids = list(ids)
        if not ids or len(set(ids)) != len(ids):
            raise BadValueError("A step needs different microbatches.", given=ids, allowed="ids that occur once")
        group, held = self.group, assign(ids, self.group.members, self.quota(len(ids), len(self.group.members)))
        losses = torch.zeros(len(ids), dtype=torch.float64)
        buckets = [*self._buckets, losses]
        for bucket in buckets:
            bucket.zero_()
        mine = list(held[group.number])
        self._accumulate(mine, ids, losses)
        attempts, begun_s = 0, math.inf
        while True:
            attempts += 1
            copies, broken_s = self._reduce(buckets, attempts)
            decision = group.agree(broken_s is None)
            if decision.commit:
                break
            begun_s = min(begun_s, time.monotonic() if broken_s is None else broken_s)
            if self.rollback:
                for bucket, copy in zip(buckets, copies, strict=False):
                    bucket.copy_(copy)
            members = decision.members
            extra = take_over(held, members, self.quota(len(ids), len(members)))
            held = {rank: held[rank] + extra[rank] for rank in members}
            self._accumulate(extra[group.number], ids, losses)
            mine += extra[group.number]
        recovery_s = max(0.0, time.monotonic() - begun_s)
        self._apply(ids, losses)
        report = StepReport(
            self.steps_done, float(losses.mean()), decision.members, tuple(mine), attempts, recovery_s
        )  # fmt: skip
        self.steps_done += 1
        return report

    def _accumulate(self, mine: Sequence[int], ids: Sequence[int], losses: Any) -> None:
        import torch

        for each in mine:
            self.group.point("microbatch", step=self.steps_done, id=each)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(each)
                loss = self.microbatches(self.model, each)
                loss.backward()
            losses[ids.index(each)] += loss.detach()

    def _reduce(self, buckets: Sequence[Any], attempt: int) -> tuple[list[Any], float | None]:
        """Return the copies of the buckets that were begun, and when a reduction broke."""
        copies = []
        for number, bucket in enumerate(buckets):
            copies.append(bucket.clone())
            try:
                self.group.all_reduce(bucket, step=self.steps_done, bucket=number, attempt=attempt)
            except GroupBrokenError:
                return copies, time.monotonic()
        return copies, None

    def _apply(self, ids: Sequence[int], losses: Any) -> None:
        import torch

        bad = [each for each, loss in zip(ids, losses.tolist(), strict=True) if not math.isfinite(loss)]
        finite = all(bool(torch.isfinite(bucket).all()) for bucket in self._buckets)
        if bad or not finite:
            raise BadValueError(
                f"The gradient of step {self.steps_done} is not finite; the parameters are as before.",
                given=f"losses of the microbatches {bad}" if bad else "finite losses, but gradients that are not",
                hint="leave these microbatches out, or lower the learning rate",
            )
        for bucket in self._buckets:
            bucket /= len(ids)
        self.optimizer.step()


def _buckets_of(parameters: Sequence[Any], bucket_bytes: int) -> list[Any]:
    """Return flat buffers whose views are the gradients, the last layers first, as backward passes finish them."""
    import torch

    groups: list[list[Any]] = []
    room = 0
    for each in reversed(parameters):
        size = each.numel() * each.element_size()
        if not groups or size > room or groups[-1][0].dtype != each.dtype:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(each)
        room -= size
    buckets = []
    for group in groups:
        flat = torch.zeros(sum(each.numel() for each in group), dtype=group[0].dtype)
        begin = 0
        for each in group:
            each.grad = flat[begin : begin + each.numel()].view_as(each)
            begin += each.numel()
        buckets.append(flat)
    return buckets
