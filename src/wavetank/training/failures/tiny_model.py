"""A language model of a few thousand parameters, trained by replicas that may die.

``wavetank launch trainer`` runs it.  Its sequences follow a rule with noise, so that the loss falls within some steps.
Data depend on the number of the microbatch alone.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from wavetank.live.rank_process import Rank
from wavetank.training.failures.quotas import balanced, majors
from wavetank.training.failures.trainer import Group, ResilientTrainer

QUOTAS = {"balanced": balanced, "majors": majors}
_WORDS, _LENGTH, _WIDTH, _SEQUENCES = 17, 24, 16, 4
_NOISE = 0.05
_BUCKET_BYTES = 8192
# That the gradients and the losses are summed in.
BUCKETS = 8


def tiny_trainer(group: Group | None = None, *, quota: str = "balanced") -> ResilientTrainer:
    """Return a trainer of a small transformer in double precision, with the same parameters on every replica.

    Parameters
    ----------
    group : Group, optional
        The other replicas.
    quota : str
        ``balanced`` or ``majors``.
    """
    import torch
    from torch import nn

    def loss(model: Any, number: int) -> Any:
        # The trainer has seeded torch with the number of the microbatch.
        first = torch.randint(_WORDS, (_SEQUENCES, 1))
        words = [first]
        for _ in range(_LENGTH):
            noise = torch.rand(_SEQUENCES, 1) < _NOISE
            words.append(torch.where(noise, torch.randint(_WORDS, (_SEQUENCES, 1)), (3 * words[-1] + 1) % _WORDS))
        text = torch.cat(words, 1)
        inner = model["words"](text[:, :-1]) + model["places"](torch.arange(_LENGTH))
        scores = model["out"](
            model["layer"](inner, src_mask=torch.full((_LENGTH, _LENGTH), -math.inf, dtype=torch.float64).triu(1))
        )
        return nn.functional.cross_entropy(scores.reshape(-1, _WORDS), text[:, 1:].reshape(-1))

    torch.manual_seed(0)
    parts = {
        "words": nn.Embedding(_WORDS, _WIDTH),
        "places": nn.Embedding(_LENGTH, _WIDTH),
        "layer": nn.TransformerEncoderLayer(_WIDTH, 2, 4 * _WIDTH, dropout=0.0, batch_first=True),
        "out": nn.Linear(_WIDTH, _WORDS),
    }
    model = nn.ModuleDict(parts).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return ResilientTrainer(model, optimizer, loss, group=group, quota=QUOTAS[quota], bucket_bytes=_BUCKET_BYTES)


def parameters_of(trainer: ResilientTrainer) -> Any:
    """Return all parameters as one array."""
    import torch

    flat: Any = torch.cat([each.detach().reshape(-1) for each in trainer.model.parameters()])
    return flat.numpy().copy()


def train(rank: Rank, steps: int, microbatches: int, step_s: float, quota: str) -> Any:
    """Train in a rank, report every step, and return the parameters.

    Parameters
    ----------
    rank : Rank
    steps, microbatches : int
        Steps, and microbatches of each.
    step_s : float
        Least time of a step, s.
    quota : str
    """
    trainer = tiny_trainer(rank, quota=quota)
    for step in range(steps):
        begun_s = time.monotonic()
        report = trainer.step(range(step * microbatches, (step + 1) * microbatches))
        rank.report(
            {
                "step": step,
                "loss": report.loss,
                "members": list(report.members),
                "computed": len(report.computed),
                "attempts": report.attempts,
                "recovery_s": report.recovery_s,
            }
        )
        time.sleep(max(0.0, step_s - (time.monotonic() - begun_s)))
    return parameters_of(trainer)


def trained_alone(steps: int, microbatches: int) -> Any:
    """Return the parameters after the same steps in this process, without any failure.

    Parameters
    ----------
    steps, microbatches : int
    """
    trainer = tiny_trainer()
    for step in range(steps):
        trainer.step(range(step * microbatches, (step + 1) * microbatches))
    return parameters_of(trainer)


def train_on(rank: Rank, steps: int, microbatches: int, every: int, file: str) -> Any:
    """Train in a rank from where a file was left, report the number of every step, and return the parameters.

    Parameters
    ----------
    rank : Rank
    steps, microbatches : int
        Steps of the whole run, and microbatches of each.
    every : int
        Steps between checkpoints.
    file : str
        Of the checkpoints; empty for none.
    """
    import torch

    trainer, first, path = tiny_trainer(rank), 0, Path(file)
    if file and path.exists():
        state = torch.load(path, weights_only=True)
        trainer.model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        first = trainer.steps_done = state["steps"]
    for step in range(first, steps):
        trainer.step(range(step * microbatches, (step + 1) * microbatches))
        rank.report(step)
        if file and (step + 1) % every == 0 and rank.number == rank.members[0]:
            state = {
                "model": trainer.model.state_dict(),
                "optimizer": trainer.optimizer.state_dict(),
                "steps": step + 1,
            }
            unfinished = path.with_suffix(".part")
            torch.save(state, unfinished)
            unfinished.replace(path)
    return parameters_of(trainer)
