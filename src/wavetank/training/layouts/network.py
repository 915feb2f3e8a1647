"""A network of some thousand parameters with fused experts, on which sharded training is tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.live.rank_process import Rank
from wavetank.sim.rng import stream
from wavetank.training.layouts.interface import Tensor
from wavetank.training.layouts.optimizers import Adam8, AdamW, Muon, Optimizer, Sgd
from wavetank.training.layouts.trainer import ShardedTrainer, Stage

OPTIMIZERS: dict[str, Optimizer] = {"sgd": Sgd(), "adamw": AdamW(), "adam8": Adam8(), "muon": Muon()}
_WORDS, _WIDTH, _HIDDEN, _EXPERTS, _SAMPLES = 23, 12, 20, 3, 16


def stages(block_rows: int = 4) -> list[Stage]:
    """Return the buckets of the network.

    Parameters
    ----------
    block_rows : int
        Rows of a block that must stay whole.
    """

    def tensors(**shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(name.replace("_", " "), shape, min(block_rows * (shape[-1] if len(shape) > 1 else 1), _size(shape)))
            for name, shape in shapes.items()
        )

    inner = {"up": (_HIDDEN, _WIDTH), "up_bias": (_HIDDEN,), "down": (_WIDTH, _HIDDEN), "scale": (_WIDTH,)}
    experts = {"experts": (_EXPERTS, _WIDTH, _WIDTH), "router": (_EXPERTS, _WIDTH)}
    return [
        Stage(tensors(words=(_WORDS, _WIDTH)), _embed),
        Stage(tensors(**inner), _mix),
        Stage(tensors(**experts), _choose),
        Stage(tensors(head=(_WORDS, _WIDTH), head_bias=(_WORDS,)), _loss),
    ]


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def _embed(parameters: Sequence[Any], inner: Any, batch: Any) -> Any:
    return parameters[0][batch[0]]


def _mix(parameters: Sequence[Any], inner: Any, batch: Any) -> Any:
    import torch

    up, bias, down, scale = parameters
    return inner + torch.tanh(inner @ up.T + bias) @ down.T * scale


def _choose(parameters: Sequence[Any], inner: Any, batch: Any) -> Any:
    import torch

    experts, router = parameters
    weights = torch.softmax(inner @ router.T, -1)
    return inner + torch.einsum("se,sw,ewv->sv", weights, inner, experts)


def _loss(parameters: Sequence[Any], inner: Any, batch: Any) -> Any:
    import torch

    head, bias = parameters
    return torch.nn.functional.cross_entropy(inner @ head.T + bias, batch[1])


def batch(number: int) -> Any:
    """Return words and the words that follow them.

    Parameters
    ----------
    number : int
    """
    import torch

    words = stream(number, "fsdp microbatch").integers(0, _WORDS, _SAMPLES)
    return torch.from_numpy(words), torch.from_numpy((3 * words + 1) % _WORDS)


def initial(seed: int, block_rows: int = 4) -> list[list[Any]]:
    """Return the weights of all stages.

    Parameters
    ----------
    seed, block_rows : int
    """
    import torch

    draws = stream(seed, "fsdp network")
    return [
        [torch.from_numpy(draws.normal(0.0, 0.3, each.shape)) for each in stage.tensors] for stage in stages(block_rows)
    ]


def trainer(optimizer: str, seed: int = 0, rank: Rank | None = None, *, ordered: bool = True) -> ShardedTrainer:
    """Return a trainer of the network, alone or as one of some ranks.

    Parameters
    ----------
    optimizer : str
        A key of :data:`OPTIMIZERS`.
    seed : int
        Of the weights.
    rank : Rank, optional
    ordered : bool
        As for :class:`~wavetank.training.layouts.trainer.ShardedTrainer`.

    Raises
    ------
    BadValueError
        For another optimiser.
    """
    if optimizer not in OPTIMIZERS:
        raise BadValueError("There is no such optimiser.", given=optimizer, allowed=OPTIMIZERS)
    shared: dict[str, Any] = {}
    if rank is not None and rank.size > 1:
        shared = {"rank": rank.number, "ranks": rank.size, "group": rank.group}
    return ShardedTrainer(stages(), OPTIMIZERS[optimizer], batch, initial(seed), ordered=ordered, **shared)


def train(
    rank: Rank | None, optimizer: str, steps: int, microbatches: int, *, seed: int = 0, load: str = "", save: str = "",
    ordered: bool = True, poison: int = -1,
) -> list[Any]:  # fmt: skip
    """Train in a rank, and return the losses and all weights.

    Parameters
    ----------
    rank : Rank, optional
        None to train alone.
    optimizer : str
    steps, microbatches : int
        Steps more, and microbatches of each.
    seed : int
    load, save : str
        Folders of checkpoints to begin from and to write at the end; empty for none.
    ordered : bool
    poison : int
        Step before which rank 0 breaks a weight of its slice; -1: none.
    """
    import torch

    torch.set_num_threads(1)
    work = trainer(optimizer, seed, rank, ordered=ordered)
    if load:
        work.load(Path(load))
    losses = []
    for step in range(work.steps_done, work.steps_done + steps):
        if rank is not None:
            rank.point("step", step=step)
        if step == poison and work.rank == 0:
            work.parts[0].weights[0] = np.nan
        losses.append(work.step(range(step * microbatches, (step + 1) * microbatches)))
    if save:
        work.save(Path(save))
    return [losses, work.full_weights()]
