"""Steps of torch's FSDP2 and of ragged shards in the same processes, turn by turn.  Needs the extra ``torch``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.live.rank_process import Rank
from wavetank.training.layouts.interface import Tensor
from wavetank.training.layouts.optimizers import Sgd
from wavetank.training.layouts.trainer import ShardedTrainer, Stage

CONTENDERS = ("ragged", "fsdp2")


def layer_tensors(width: int, experts: int, block_rows: int) -> tuple[Tensor, ...]:
    """Return the parameters of one layer.

    Parameters
    ----------
    width, experts, block_rows : int
    """
    row = block_rows * width
    return (
        Tensor("dense", (width, width), row),
        Tensor("bias", (width,), block_rows),
        Tensor("experts", (experts, width, width), row),
    )


def _layer(parameters: Sequence[Any], inner: Any, batch: Any) -> Any:
    import torch

    dense, bias, experts = parameters
    inner = batch if inner is None else inner
    # A row for each expert: little arithmetic beside the bytes of the weights.
    return torch.tanh(inner @ dense + bias + torch.einsum("sw,ewv->sv", inner, experts))


def _last(parameters: Sequence[Any], inner: Any, batch: Any) -> Any:
    return _layer(parameters, inner, batch).sum()


def time_steps(
    rank: Rank, contender: str, layers: int, width: int, experts: Sequence[int], block_rows: int, rounds: int, seed: int
) -> list[dict[str, Any]]:
    """Return the seconds of steps of the contender and of FSDP2 as it is set in several ways.

    Parameters
    ----------
    rank : Rank
    contender : str
        One of :data:`CONTENDERS`.
    layers, width : int
    experts : sequence of int
        Fused experts of each case.
    block_rows : int
    rounds : int
        Steps of each, after two that are not timed.
    seed : int

    Returns
    -------
    list of dict
        Of each case: ``seconds`` of every round by name, and ``difference``, the largest between gradients of the
        contender and FSDP2.

    Raises
    ------
    BadValueError
        For another contender.
    """
    import torch
    import torch.distributed as dist

    if contender not in CONTENDERS:
        raise BadValueError("There is no such contender.", given=contender, allowed=CONTENDERS)
    torch.set_num_threads(1)
    rank.default_group()
    found = []
    for count in experts:
        tensors = layer_tensors(width, count, block_rows)
        found.append(_timed(rank, contender, layers, tensors, rounds, np.random.default_rng(seed)))
    dist.destroy_process_group()
    return found


def _timed(
    rank: Rank, contender: str, layers: int, tensors: tuple[Tensor, ...], rounds: int, draws: np.random.Generator
) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    width = tensors[0].shape[0]
    initial = [[torch.from_numpy(draws.normal(0, 0.01, each.shape)) for each in tensors] for _ in range(layers)]
    inputs = torch.from_numpy(draws.normal(size=(rank.size, 1, width)))
    models, share = {"fsdp2": _fsdp2(initial, rank.size)}, 1.0 / rank.size
    calls: dict[str, Callable[[], object]] = {}
    if contender == "fsdp2":
        models["fsdp2 again"] = _fsdp2(initial, rank.size)
    else:
        forms = [("", "rows")]
        if tensors[2].shape[0] % rank.size:
            forms += [(" columns", "columns"), (" flat", "flat")]
        for name, form in forms:
            models[f"fsdp2{name} sum"] = _fsdp2(initial, rank.size, form=form, mean=False)
            models[f"fsdp2{name} sum ahead"] = _fsdp2(initial, rank.size, form=form, mean=False, ahead=True)
        stages = [Stage(tensors, _layer)] * (layers - 1) + [Stage(tensors, _last)]
        ours = ShardedTrainer(
            stages, Sgd(), lambda number: inputs[number], initial, rank=rank.number, ranks=rank.size, group=rank.group,
            ordered=False,
        )  # fmt: skip
        calls["ragged"] = functools.partial(_ragged_step, ours, rank.number)
    for name, model in models.items():
        calls[name] = functools.partial(_fsdp2_step, model, inputs[rank.number], share if "sum" in name else 1.0)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        order = list(calls)[turn % len(calls) :] + list(calls)[: turn % len(calls)]
        for name in order:
            dist.barrier()
            began = time.perf_counter()
            calls[name]()
            dist.barrier()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - began)
    return {"seconds": seconds, "difference": _difference(ours, models["fsdp2"], rank) if "ragged" in calls else 0.0}


def _fsdp2(
    initial: Sequence[Sequence[Any]], ranks: int, *, ahead: bool = False, form: str = "rows", mean: bool = True
) -> Any:
    """Return layers under FSDP2, gathered ahead or not.

    Experts are cut along the first dimension (``rows``), the second (``columns``), or are one matrix (``flat``).
    Gradients are its mean, which takes a pass of its own in double precision, or a sum, as ours are.
    """
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self, values: Sequence[Any]) -> None:
            super().__init__()
            self.shape = values[2].shape
            kept = [*values[:2], values[2].reshape(-1, self.shape[-1])] if form == "flat" else values
            self.values = nn.ParameterList([nn.Parameter(each.clone()) for each in kept])

        def forward(self, inner: Any) -> Any:
            dense, bias, experts = self.values
            return _layer([dense, bias, experts.view(self.shape)], inner, None)

    model = nn.Sequential(*(Layer(values) for values in initial))
    mesh = init_device_mesh("cpu", (ranks,))

    def placed(parameter: Any) -> Any:
        return Shard(1) if parameter.ndim == 3 and form == "columns" else Shard(0)

    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, shard_placement_fn=placed)
    fully_shard(model, mesh=mesh)
    if not mean:
        for layer in model:
            layer.set_gradient_divide_factor(1.0)
    if ahead:
        shards: list[Any] = list(model)
        for i, layer in enumerate(shards):
            layer.set_modules_to_forward_prefetch(shards[i + 1 : i + 2])
            layer.set_modules_to_backward_prefetch(shards[max(i - 1, 0) : i])
    return model


def _fsdp2_step(model: Any, own: Any, share: float = 1.0) -> None:
    for each in model.parameters():
        each.grad = None
    loss = model(own).sum()
    (loss * share if share != 1.0 else loss).backward()


def _ragged_step(ours: ShardedTrainer, own: int) -> None:
    for bucket in ours.buckets:
        bucket.summed.zero_()
    ours.accumulate(own, 1.0 / ours.ranks)


def _difference(ours: ShardedTrainer, model: Any, rank: Rank) -> float:
    """Return the largest difference between gradients, which FSDP2 averages."""
    worst = 0.0
    for bucket, layer in zip(ours.buckets, model, strict=True):
        for i, each in enumerate(layer.values):
            whole = each.grad.full_tensor().reshape(-1)
            start, end = bucket.layout.held(i, rank.number)
            if end > start:
                worst = max(worst, float((bucket.part(bucket.summed, i) - whole[start:end]).abs().max()))
    return worst
