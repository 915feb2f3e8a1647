"""A small model that tests train, in this process and in ranks."""

from __future__ import annotations

from typing import Any

from wavetank.live.rank_process import Rank
from wavetank.training.failures.trainer import ResilientTrainer

BUCKET_BYTES = 800


def built(group: Any = None, **options: Any) -> ResilientTrainer:
    import torch

    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(12, 12), torch.nn.Linear(12, 1)
    ).double()

    def loss(model: Any, number: int) -> Any:
        return ((model(torch.randn(4, 6, dtype=torch.float64)) - number % 5) ** 2).mean()

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return ResilientTrainer(model, optimizer, loss, group=group, bucket_bytes=BUCKET_BYTES, **options)


def trained(trainer: ResilientTrainer, steps: int, count: int) -> tuple[list[Any], Any]:
    import torch

    reports = [trainer.step(range(step * count, (step + 1) * count)) for step in range(steps)]
    parameters = torch.cat([each.detach().reshape(-1) for each in trainer.model.parameters()])
    return reports, parameters.numpy().copy()


def train(rank: Rank, steps: int, count: int) -> list[Any]:
    reports, parameters = trained(built(rank), steps, count)
    return [parameters, [[list(r.members), list(r.computed), r.attempts, r.recovery_s] for r in reports]]
