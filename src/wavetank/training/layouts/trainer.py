"""Training with ragged shards: every bucket is gathered before it is used, and its gradients are scattered afterwards.

While a bucket computes, the next one is gathered.  The forward pass keeps what autograd needs; weights are gathered a
second time for the backward pass, into the memory that autograd's views know.  Needs the extra ``torch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.training.layouts.buffer import Bucket, finished
from wavetank.training.layouts.checkpoints import MANIFEST, Checkpoint, Piece, part_name, write_manifest, write_part
from wavetank.training.layouts.interface import Tensor
from wavetank.training.layouts.optimizers import Muon, Optimizer, Part, roots
from wavetank.training.layouts.placement import RaggedShard, redistribute
from wavetank.training.layouts.vescale import plan_layout, units_by_rank

_DIGEST_BYTES = 40


class Stage(NamedTuple):
    """One bucket of a model.

    Parameters
    ----------
    tensors : tuple of Tensor
    forward : callable
        ``forward(parameters, inner, batch) -> inner``; that of the last stage gives the loss.
    """

    tensors: tuple[Tensor, ...]
    forward: Callable[[Sequence[Any], Any, Any], Any]


class ShardedTrainer:
    """Trains a model whose parameters are shared by the ranks of a group.

    Parameters
    ----------
    stages : sequence of Stage
    optimizer : Sgd, AdamW, Adam8 or Muon
    batch : callable
        ``batch(number)`` gives the microbatch of that number, the same on every rank.
    initial : sequence of sequence of torch.Tensor
        Weights of each stage.
    rank, ranks : int
    group : torch process group, or None
        None for one rank.
    unit : int
        Of which a slice has a whole number, in elements.
    ordered : bool
        As for :class:`~wavetank.training.layouts.buffer.Bucket`.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        optimizer: Optimizer,
        batch: Callable[[int], Any],
        initial: Sequence[Sequence[Any]],
        *,
        rank: int = 0,
        ranks: int = 1,
        group: Any = None,
        unit: int = 1,
        ordered: bool = True,
    ) -> None:
        self.stages, self.optimizer, self.rank, self.ranks = tuple(stages), optimizer, rank, ranks
        self.steps_done = 0
        self._batch, self._group = batch, group
        self.buckets = [
            Bucket(plan_layout(stage.tensors, ranks, unit=unit), rank, group, ordered=ordered) for stage in stages
        ]
        for bucket, values in zip(self.buckets, initial, strict=True):
            bucket.fill(values)
        self.tensors = [each for stage in self.stages for each in stage.tensors]
        whole = isinstance(optimizer, Muon)
        matrices = [i for i, each in enumerate(self.tensors) if whole and len(each.shape) == 2]
        self._roots = dict(zip(matrices, roots([self.tensors[i] for i in matrices], ranks), strict=True))
        self.parts = [self._part(bucket, i, number) for number, (bucket, i) in enumerate(self._places())]

    def _places(self) -> list[tuple[Bucket, int]]:
        return [(bucket, i) for bucket in self.buckets for i in range(len(bucket.layout.tensors))]

    def _part(self, bucket: Bucket, i: int, number: int) -> Part:
        tensor = bucket.layout.tensors[i]
        weights = bucket.part(bucket.weights, i).numpy()
        lengths = {
            "element": weights.size, "block": -(-weights.size // tensor.block),
            "matrix": tensor.size * (self._roots.get(number) == self.rank),
        }  # fmt: skip
        state = {kind: np.zeros(lengths[grain], dtype) for kind, (dtype, grain) in self.optimizer.kinds(tensor).items()}
        start = bucket.layout.held(i, self.rank)[0]
        return Part(number, tensor, start, weights, bucket.part(bucket.summed, i).numpy(), state)

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self, microbatches: Sequence[int]) -> float:
        """Train one step on the mean loss of some microbatches, and return it; a gradient of nan changes nothing.

        Parameters
        ----------
        microbatches : sequence of int
            As many for each rank.

        Raises
        ------
        BadValueError
            If ranks do not divide the microbatches.
        WavetankError
            On every rank, if a gradient is not finite; it names the tensor.
        GroupBrokenError
            If a rank is gone or late.
        """
        import torch

        if not microbatches or len(microbatches) % self.ranks:
            raise BadValueError("Every rank has as many microbatches.", given=len(microbatches),
                                allowed=f"a multiple of {self.ranks}")  # fmt: skip
        for bucket in self.buckets:
            bucket.summed.zero_()
        loss = torch.zeros(self.ranks, dtype=torch.float64)
        for number in microbatches[self.rank :: self.ranks]:
            loss[self.rank] += self.accumulate(number, 1.0 / len(microbatches))
        self._check_gradients()
        if self._group is not None:
            finished(self._group.allreduce([loss]).wait)
        self.steps_done += 1
        for part in self.parts:
            if part.number in self._roots:
                self._whole(part)
            else:
                self.optimizer.update(part, self.steps_done)
        return float(sum(loss.tolist()))

    def accumulate(self, number: int, share: float) -> float:
        """Compute one microbatch, add its gradients to those of this rank's slices, and return its share of the loss.

        Parameters
        ----------
        number : int
        share : float
            Weight of its loss.
        """
        import torch

        batch = self._batch(number)
        inner: Any = None
        kept: list[tuple[Any, Any]] = []
        last = len(self.buckets) - 1
        for i, (stage, bucket) in enumerate(zip(self.stages, self.buckets, strict=True)):
            parameters = bucket.gather()
            if i < last:
                self.buckets[i + 1].begin_gather()
            enters = None if inner is None else inner.detach().requires_grad_()
            inner = stage.forward(parameters, enters, batch)
            kept.append((enters, inner))
            if i < last:
                bucket.release()
        back = torch.tensor(share, dtype=torch.float64)
        loss = float(inner.detach() * back)
        for i in range(last, -1, -1):
            bucket, (enters, leaves) = self.buckets[i], kept.pop()
            parameters = bucket.gather()
            if i:
                self.buckets[i - 1].begin_gather()
            inputs = parameters if enters is None else [enters, *parameters]
            gradients = torch.autograd.grad(leaves, inputs, back)
            if enters is not None:
                back, *gradients = gradients
            bucket.release()
            bucket.add_gradients(gradients)
        return loss

    def _check_gradients(self) -> None:
        import torch

        wrong = torch.tensor([int(np.count_nonzero(~np.isfinite(part.gradient))) for part in self.parts])
        if self._group is not None:
            finished(self._group.allreduce([wrong]).wait)
        for tensor, count in zip(self.tensors, wrong.tolist(), strict=True):
            if count:
                raise WavetankError(
                    f"The gradient of {tensor.name!r} is not finite.", given=f"{count} of {tensor.size} elements",
                    where=f"step {self.steps_done + 1}", hint="nothing was changed; leave the batch out",
                )  # fmt: skip

    def _whole(self, part: Part) -> None:
        """Bring the gradient of a matrix to its root, and what is to be subtracted back."""
        import torch

        bucket, i = self._places()[part.number]
        size, root = part.tensor.size, self._roots[part.number]
        units = tuple(units_by_rank(bucket.layout, i).tolist())
        here = RaggedShard(units, part.tensor.block)
        there = RaggedShard(tuple(int(each == root) for each in range(self.ranks)), size)
        gradient = torch.from_numpy(part.gradient)
        try:
            whole = redistribute(self._group, self.rank, self.ranks, gradient, size, here, there).numpy()
            update = self.optimizer.direction(whole, part.state, part.tensor) if self.rank == root else whole  # type: ignore[union-attr]
            back = redistribute(self._group, self.rank, self.ranks, torch.from_numpy(update), size, there, here)
        except RuntimeError as error:
            finished(_raising(error))
            raise
        part.weights[:] -= back.numpy()

    # -- what is kept --------------------------------------------------------------------------------------------------

    def full_weights(self) -> list[Any]:
        """Return every parameter, whole, as arrays; all ranks call it.

        Raises
        ------
        GroupBrokenError
            If a rank is gone or late.
        """
        found = []
        for bucket in self.buckets:
            found += [each.detach().clone().numpy() for each in bucket.gather()]
            bucket.release()
        return found

    def save(self, folder: Path) -> None:
        """Write a checkpoint that any number of ranks can read; all ranks call it.

        Parameters
        ----------
        folder : Path
            Of this checkpoint alone.

        Raises
        ------
        BadFileError
            If there is one already, or it cannot be written.
        GroupBrokenError
            If a rank is gone or late: then there is no checkpoint.
        """
        import torch

        if (folder / MANIFEST).exists():
            raise BadFileError("There is a checkpoint already.", where=str(folder), hint="name another folder")
        pieces: list[Piece] = []
        for part in self.parts:
            pieces.append(("weights", part.number, part.start, part.weights))
            for kind, (_, grain) in self.optimizer.kinds(part.tensor).items():
                start = {"element": part.start, "block": part.start // part.tensor.block, "matrix": 0}[grain]
                pieces.append((kind, part.number, start, part.state[kind]))
        size, digest = write_part(folder, self.rank, [each for each in pieces if each[3].size])
        own = torch.frombuffer(bytearray(size.to_bytes(8, "little") + bytes.fromhex(digest)), dtype=torch.uint8)
        every = own.clone()
        if self._group is not None:
            every = torch.empty(self.ranks * _DIGEST_BYTES, dtype=torch.uint8)
            finished(self._group._allgather_base(every, own).wait)
        if self.rank == 0:
            data = every.numpy().tobytes()
            words = [data[i : i + _DIGEST_BYTES] for i in range(0, len(data), _DIGEST_BYTES)]
            found = [(int.from_bytes(each[:8], "little"), each[8:].hex()) for each in words]
            parts = {part_name(i, each[1]): each for i, each in enumerate(found)}
            name = type(self.optimizer).__name__
            write_manifest(folder, step=self.steps_done, tensors=self.tensors, parts=parts, optimizer=name)
        if self._group is not None:
            finished(self._group.barrier().wait)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, of any number of ranks.

        Parameters
        ----------
        folder : Path

        Raises
        ------
        BadFileError
            If it is incomplete, damaged, or of another model, optimiser or format; weights may have changed then.
        GroupBrokenError
            If a step failed and a rank is gone since.
        """
        for bucket in self.buckets:
            bucket.drop()
        kept = Checkpoint(folder, self.tensors, type(self.optimizer).__name__)
        for part in self.parts:
            kept.read("weights", part.number, part.start, part.weights)
            for kind, (_, grain) in self.optimizer.kinds(part.tensor).items():
                start = {"element": part.start, "block": part.start // part.tensor.block, "matrix": 0}[grain]
                kept.read(kind, part.number, start, part.state[kind])
        self.steps_done = kept.step


def _raising(error: Exception) -> Callable[[], object]:
    def wait() -> object:
        raise error

    return wait
