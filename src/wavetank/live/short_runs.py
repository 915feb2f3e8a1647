"""Short real runs: a small stack of transformer layers trained by four processes, cut in every way there is.

Tensor shards divide heads and inner units and sum over torch's gloo, stages send activations and gradients in the order
of 1F1B, replicas sum their gradients.  All arithmetic is in double precision, so that every way of cutting gives the
gradients of one process.  What a rank holds is counted: weights, gradients, Adam's moments, and the tensors that the
backward pass needs, at their most.  A run that holds more than there is room for does not fit.  Needs the extra
``torch``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.live.ranks import run_ranks
from wavetank.sim.rng import stream
from wavetank.workloads.pipelines import passes

RANKS = 4
LAYERS, WIDTH, HEADS, TOKENS = 4, 32, 4, 32
SEQUENCES = 16
_INNER = 4 * WIDTH
_SHAPES = ((3, WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, _INNER), (_INNER, WIDTH))
_NUMBER = 8  # bytes


class Cut(NamedTuple):
    """One way to cut a run.

    Parameters
    ----------
    tensor, pipeline : int
        Shards and stages; what is left of four processes are replicas.
    micro : int
        Sequences of a microbatch.
    accumulation : int
        Microbatches of a step, of each replica.
    checkpoint : int
        1 where activations are computed again.
    """

    tensor: int
    pipeline: int
    micro: int
    accumulation: int
    checkpoint: int

    @property
    def data(self) -> int:
        """Replicas."""
        return RANKS // (self.tensor * self.pipeline)


def cuts() -> tuple[Cut, ...]:
    """Return all ways to cut a run: 46."""
    return tuple(
        Cut(tensor, pipeline, micro, SEQUENCES * tensor * pipeline // (RANKS * micro), checkpoint)
        for tensor, pipeline in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1))
        for micro in (1, 2, 4, 8)
        if SEQUENCES * tensor * pipeline >= RANKS * micro
        for checkpoint in (0, 1)
    )


def predicted_bytes(cut: Cut) -> int:
    """Return what a formula says that a rank of the first stage holds at most, bytes.

    Parameters
    ----------
    cut : Cut
    """
    layers = LAYERS // cut.pipeline
    parameters = layers * (4 * WIDTH**2 + 2 * WIDTH * _INNER) // cut.tensor
    rows = cut.micro * TOKENS
    # Two norms of two tensors each; then queries, keys, values, what is mixed, scores twice, inner units twice.
    whole = 6 * rows * WIDTH + (5 * rows * WIDTH + 3 * HEADS * rows * TOKENS + 2 * rows * _INNER) // cut.tensor
    in_flight = min(cut.pipeline, cut.accumulation)
    if cut.checkpoint:
        kept = layers * in_flight * rows * WIDTH + whole
    else:
        kept = layers * in_flight * whole
    return _NUMBER * (4 * parameters + kept)


class Ran(NamedTuple):
    """What a run found.

    Parameters
    ----------
    seconds : list of float
        Of each step after the first.
    held_bytes : int
        Of the fullest rank, at its most.
    """

    seconds: list[float]
    held_bytes: int


def run_cuts(
    of: Sequence[Cut], *, steps: int = 3, timeout_s: float = 300.0, watch: Sequence[Path] | None = None
) -> list[Ran]:
    """Run some cuts one after the other in four processes.

    Parameters
    ----------
    of : sequence of Cut
    steps : int
        Steps of each that are timed; one more comes first.
    timeout_s : float
        For all.
    watch : sequence of Path, optional
        A folder for each: two more steps are recorded by torch's profiler, with a trace ``rankN.json`` of each process.

    Raises
    ------
    BadValueError
        For a cut that is none, or another number of folders.
    WavetankError
        If a process fails or does not end in time.
    """
    known = set(cuts())
    for each in of:
        if tuple(each) not in known:
            raise BadValueError("This is no way to cut a run.", given=each, allowed="one of cuts()")
    if watch is not None and len(watch) != len(of):
        raise BadValueError("Each cut needs a folder for its traces.", given=len(watch), allowed=f"{len(of)} folders")
    for folder in watch or ():
        folder.mkdir(parents=True, exist_ok=True)
    folders = [str(each.resolve()) for each in watch or ()]
    arguments = {"of": [list(each) for each in of], "steps": steps, "watch": folders}
    found = run_ranks(run_here, RANKS, arguments=arguments, timeout_s=timeout_s)
    return [
        Ran([max(rank[k][0][step] for rank in found) for step in range(steps)], max(rank[k][1] for rank in found))
        for k in range(len(of))
    ]


def gradients(cut: Cut, *, timeout_s: float = 120.0) -> NDArray[np.float64]:
    """Return the gradients of all weights in one step of a cut, put together from its ranks.

    Parameters
    ----------
    cut : Cut
    timeout_s : float
    """
    found = run_ranks(gradients_here, RANKS, arguments={"cut": list(cut)}, timeout_s=timeout_s)
    layers = [[np.zeros(shape) for shape in _SHAPES] for _ in range(LAYERS)]
    for number, parts in enumerate(found):
        shard, stage = number % cut.tensor, number // (cut.tensor * cut.data)
        for k, part in enumerate(parts):
            layer, which = divmod(k, len(_SHAPES))
            layers[stage * (LAYERS // cut.pipeline) + layer][which][_part(which, shard, cut.tensor)] = part
    return np.concatenate([each.ravel() for layer in layers for each in layer])


def weights(layer: int) -> list[NDArray[np.float64]]:
    """Return the weights of a layer: of queries, keys and values, of the output, and of the two inner products.

    Parameters
    ----------
    layer : int
    """
    draws = stream(layer, "weights of a short run")
    return [draws.normal(size=shape) / shape[-2] ** 0.5 for shape in _SHAPES]


def sequences() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return inputs and wanted outputs, each of shape (sequences, tokens, width)."""
    draws = stream(0, "sequences of a short run")
    found = draws.normal(size=(2, SEQUENCES, TOKENS, WIDTH))
    return found[0], found[1]


def _part(which: int, shard: int, shards: int) -> tuple[slice, ...]:
    """Return where a shard's part of a weight is: columns of the first of a pair, rows of the second."""
    axis = (2, 0, 1, 0)[which]
    size = _SHAPES[which][axis] // shards
    return (*(slice(None) for _ in range(axis)), slice(shard * size, (shard + 1) * size))


def run_here(rank: Any, of: list[list[int]], steps: int, watch: Sequence[str] = ()) -> list[list[Any]]:
    """Run cuts in this process; return the seconds of every step, and the bytes held, of each.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    of : list of list of int
    steps : int
    watch : sequence of str
        A folder for the traces of each cut; none where there are none.
    """
    import torch.distributed as dist

    rank.default_group()
    groups: dict[tuple[int, int], Any] = {}
    found: list[list[Any]] = []
    for number, words in enumerate(of):
        cut = Cut(*words)
        if cut[:2] not in groups:
            groups[cut[:2]] = _groups(cut, rank.number)
        trainer = _Trainer(cut, rank.number, *groups[cut[:2]])
        seconds = []
        for step in range(steps + 1):
            dist.barrier()
            began = time.perf_counter()
            trainer.step()
            if step:
                seconds.append(time.perf_counter() - began)
        found.append([seconds, trainer.held_bytes()])
        if watch:
            _record(trainer, Path(watch[number]) / f"rank{rank.number}.json")
    return found


def _record(trainer: _Trainer, file: Path) -> None:
    """Write a trace of two marked steps."""
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for step in range(2):
            with record_function(f"ProfilerStep#{step}"):
                trainer.step()
    profiler.export_chrome_trace(str(file))


def gradients_here(rank: Any, cut: list[int]) -> list[NDArray[np.float64]]:
    """Do one step in this process; return the gradients of its weights.

    Parameters
    ----------
    rank : wavetank.live.rank_process.Rank
    cut : list of int
    """
    rank.default_group()
    trainer = _Trainer(Cut(*cut), rank.number, *_groups(Cut(*cut), rank.number))
    trainer.gradients()
    return [np.array(each.grad.numpy()) for each in trainer.parameters]


def _groups(cut: Cut, number: int) -> tuple[Any, Any]:
    """Return this rank's group of tensor shards and of replicas; every rank makes all, in one order."""
    import torch.distributed as dist

    mine: list[Any] = [None, None]
    of_stage = cut.tensor * cut.data
    shards = [range(first, first + cut.tensor) for first in range(0, RANKS, cut.tensor)]
    replicas = [
        range(first + shard, first + of_stage, cut.tensor)
        for first in range(0, RANKS, of_stage)
        for shard in range(cut.tensor)
    ]
    for kind, all_of in enumerate((shards, replicas)):
        for members in all_of:
            group = dist.new_group(list(members))
            if number in members:
                mine[kind] = group
    return mine[0], mine[1]


class _Held:
    """Bytes that the backward pass still needs, and their most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def keep(self, tensor: Any) -> _Kept:
        return _Kept(self, tensor)


class _Kept:
    """A tensor that is counted for as long as it is kept."""

    def __init__(self, held: _Held, tensor: Any) -> None:
        self.held, self.tensor = held, tensor
        self.n_bytes = 0 if tensor.requires_grad and tensor.is_leaf else tensor.numel() * tensor.element_size()
        held.now += self.n_bytes
        held.most = max(held.most, held.now)

    def __del__(self) -> None:
        self.held.now -= self.n_bytes


class _Trainer:
    """What one rank does in a step."""

    def __init__(self, cut: Cut, number: int, shards: Any, replicas: Any) -> None:
        import torch

        self.cut, self.number, self.shards, self.replicas = cut, number, shards, replicas
        self.shard, of_stage = number % cut.tensor, cut.tensor * cut.data
        self.replica, self.stage = number // cut.tensor % cut.data, number // of_stage
        self.stride, self.held = of_stage, _Held()
        layers = LAYERS // cut.pipeline
        self.parameters = [
            torch.nn.Parameter(torch.from_numpy(np.ascontiguousarray(whole[_part(which, self.shard, cut.tensor)])))
            for layer in range(self.stage * layers, (self.stage + 1) * layers)
            for which, whole in enumerate(weights(layer))
        ]
        self.adam = torch.optim.AdamW(self.parameters, lr=1e-4)
        self.inputs, self.wanted = (torch.from_numpy(each) for each in sequences())

    def held_bytes(self) -> int:
        """Return weights, gradients, both moments, and what was kept for backward passes at its most."""
        return 4 * sum(each.numel() * _NUMBER for each in self.parameters) + self.held.most

    def step(self) -> None:
        self.gradients()
        self.adam.step()

    def gradients(self) -> None:
        import torch
        import torch.distributed as dist

        cut, last = self.cut, self.cut.pipeline - 1
        self.adam.zero_grad(set_to_none=True)
        alive: dict[int, tuple[Any, Any]] = {}
        sending: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(self.held.keep, lambda kept: kept.tensor):
            for each in passes("1f1b", self.stage, stages=cut.pipeline, microbatches=cut.accumulation):
                first = (self.replica * cut.accumulation + each.microbatch) * cut.micro
                at = slice(first, first + cut.micro)
                if not each.backward:
                    if self.stage:
                        given = torch.empty((cut.micro, TOKENS, WIDTH), dtype=torch.float64)
                        dist.recv(given, self.number - self.stride, tag=each.microbatch)
                        given.requires_grad_()
                    else:
                        given = self.inputs[at]
                    out = self._forward(given)
                    if self.stage == last:
                        out = ((out - self.wanted[at]) ** 2).sum() / self.wanted.numel()
                    else:
                        sending.append(dist.isend(out.detach(), self.number + self.stride, tag=each.microbatch))
                    alive[each.microbatch] = given, out
                    continue
                given, out = alive.pop(each.microbatch)
                back = None
                if self.stage != last:
                    back = torch.empty_like(out)
                    dist.recv(back, self.number + self.stride, tag=cut.accumulation + each.microbatch)
                out.backward(back)
                if self.stage:
                    sending.append(
                        dist.isend(given.grad, self.number - self.stride, tag=cut.accumulation + each.microbatch)
                    )
        for each in sending:
            each.wait()
        if cut.data > 1:
            for each in self.parameters:
                dist.all_reduce(each.grad, group=self.replicas)

    def _forward(self, rows: Any) -> Any:
        again, enter, leave = _functions()
        for first in range(0, len(self.parameters), len(_SHAPES)):
            own = self.parameters[first : first + len(_SHAPES)]

            def layer(given: Any, qkv: Any, mixed: Any, up: Any, down: Any) -> Any:
                return _layer(given, qkv, mixed, up, down, lambda x: enter(x, self), lambda x: leave(x, self))

            rows = again(layer, rows, *own) if self.cut.checkpoint else layer(rows, *own)
        return rows


def _layer(rows: Any, qkv: Any, mixed: Any, up: Any, down: Any, enter: Any, leave: Any) -> Any:
    """Return what a layer makes of its rows: causal attention, then two inner products, each added to its input."""
    import torch

    batch, dim = rows.shape[0], WIDTH // HEADS
    normed = enter(torch.nn.functional.layer_norm(rows, (WIDTH,)))
    # Heads of this shard only.
    q, k, v = (
        (normed @ each).reshape(batch, TOKENS, -1, dim).transpose(1, 2) for each in (qkv[0], qkv[1], qkv[2])
    )
    scores = q @ k.transpose(2, 3) / dim**0.5
    scores = scores + torch.full((TOKENS, TOKENS), -1e9, dtype=torch.float64).triu(1)
    heads = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, TOKENS, -1)
    rows = rows + leave(heads @ mixed)
    normed = enter(torch.nn.functional.layer_norm(rows, (WIDTH,)))
    return rows + leave(torch.relu(normed @ up) @ down)


@functools.cache
def _functions() -> tuple[Any, Any, Any]:
    """Return a layer that is computed again, and the two sums of tensor shards, as functions with a backward pass."""
    import torch
    import torch.distributed as dist

    class Again(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, layer: Any, rows: Any, *own: Any) -> Any:
            ctx.layer, ctx.own = layer, own
            ctx.save_for_backward(rows)
            with torch.no_grad():
                return layer(rows, *own)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            rows = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                out = ctx.layer(rows, *ctx.own)
            found = torch.autograd.grad(out, (rows, *ctx.own), grad)
            return (None, *found)

    class Enter(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, rows: Any, trainer: Any) -> Any:
            ctx.trainer = trainer
            return rows.view_as(rows)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if ctx.trainer.cut.tensor > 1:
                grad = grad.contiguous().clone()
                dist.all_reduce(grad, group=ctx.trainer.shards)
            return grad, None

    class Leave(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, rows: Any, trainer: Any) -> Any:
            rows = rows.contiguous().clone()
            if trainer.cut.tensor > 1:
                dist.all_reduce(rows, group=trainer.shards)
            return rows

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, None

    return Again.apply, Enter.apply, Leave.apply
