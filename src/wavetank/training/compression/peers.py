"""What torch has for gradients: gloo's own all-reduce, and the hook of DDP that sends matrices of low rank.

Both run in real processes only.  Source of the hook: T. Vogels, S. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank
Gradient Compression for Distributed Optimization", NeurIPS 2019, arXiv 1905.13727.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.settings import check_ranges, setting
from wavetank.training.compression.interface import Floats, Task

_ROW = 512


@dataclass(frozen=True, kw_only=True)
class GlooSum:
    """gloo's all-reduce of numbers as they are."""

    def summing(self, rank: Any, values: Floats, task: Task) -> Callable[[], tuple[Floats, int]]:
        """Return the call that sums and says how many bytes this process has sent, by the rounds of a ring.

        Parameters
        ----------
        rank : wavetank.live.rank_process.Rank
        values : float32 array (n,)
        task : Task
        """
        import torch

        def call() -> tuple[Floats, int]:
            tensor = torch.from_numpy(values.copy())
            rank.all_reduce(tensor)
            return np.asarray(tensor.numpy()), 2 * (rank.size - 1) * values.nbytes // rank.size

        return call


@dataclass(frozen=True, kw_only=True)
class PowerSgd:
    """torch's hook ``powerSGD_hook``, with error feedback and warm start as by default.

    The numbers are the gradients of a linear model under ``DistributedDataParallel``, as matrices of whole rows.
    """

    matrix_rank: int = setting(4, says="Rank of the matrices that are sent", low=1, high=512)

    def __post_init__(self) -> None:
        check_ranges(self)

    def summing(self, rank: Any, values: Floats, task: Task) -> Callable[[], tuple[Floats, int]]:
        """Return the call that does a backward pass and says how many bytes this process has sent.

        Parameters
        ----------
        rank : wavetank.live.rank_process.Rank
        values : float32 array (n,)
        task : Task
        """
        import torch
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks
        from torch.nn.parallel import DistributedDataParallel

        gradients = [torch.from_numpy(each.copy()) for each in _matrices(values, task)]

        class Linear(torch.nn.Module):  # type: ignore[misc]
            """Has the numbers as its gradients."""

            def __init__(self) -> None:
                super().__init__()
                self.weights = torch.nn.ParameterList([torch.zeros_like(each) for each in gradients])

            def forward(self) -> Any:
                return sum((weight * each).sum() for weight, each in zip(self.weights, gradients, strict=True))

        rank.default_group()
        model = Linear()
        parallel = DistributedDataParallel(model)
        # The hook begins to compress after two plain steps, in which DDP settles its buckets.
        state = hooks.PowerSGDState(None, matrix_approximation_rank=self.matrix_rank, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, hooks.powerSGD_hook)

        def call() -> tuple[Floats, int]:
            before = state.total_numel_after_compression
            model.zero_grad()
            parallel().backward()
            sums = torch.cat([weight.grad.reshape(-1) for weight in model.weights]) * rank.size
            sent = state.total_numel_after_compression - before
            return np.asarray(sums.numpy()), 2 * (rank.size - 1) * 4 * sent // rank.size

        call()
        call()
        return call


def _matrices(values: Floats, task: Task) -> list[Floats]:
    """Return the numbers as matrices of the task's rows, or of square layers; what is left over is a row."""
    if len(task.shape) > 1:
        return [values.reshape(-1, task.shape[-1])]
    whole = values.size // (_ROW * _ROW) * _ROW * _ROW
    found = [each.reshape(_ROW, _ROW) for each in values[:whole].reshape(-1, _ROW * _ROW)]
    return [*found, values[whole:]] if whole < values.size else found
