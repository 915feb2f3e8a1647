"""Carries a plan out on a small model, in double precision: the gradients must be those of the healthy layout.

Each layer is ``x + W2 tanh(W1 x)``; its hidden units belong to heads.  A member of a group holds whole heads and adds
its part of the sum, a stage holds consecutive layers, a replica computes its quota of micro-batches, and gradients are
summed over replicas, as in tensor, pipeline and data parallelism.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.training.reshaping.interface import Floats, Job, Plan, Replica, even_layers


class Layers(NamedTuple):
    """Parameters, or their gradients.

    Attributes
    ----------
    first : float64 array (layers, heads, units, width)
    second : float64 array (layers, width, heads, units)
    """

    first: Floats
    second: Floats


class _Member(NamedTuple):
    """What one device holds: the layers from ``begin`` to ``end``, and of these the heads from ``low`` to ``high``."""

    begin: int
    end: int
    low: int
    high: int


def gradients(job: Job, plan: Plan, layers: Layers, inputs: Floats, targets: Floats) -> Layers:
    """Return the gradients of half the squared distance to the targets, summed over all micro-batches of a step.

    Parameters
    ----------
    job : Job
    plan : Plan
        Without empty groups.
    layers : Layers
        As many layers and heads as the job has.
    inputs, targets : float64 array (microbatches, width)

    Raises
    ------
    BadValueError
        If the model or the batch is not the job's.
    """
    if layers.first.shape[:2] != (job.layers, job.heads) or inputs.shape[0] != job.microbatches:
        raise BadValueError(
            "The model and the batch are not those of the job.",
            given=f"{layers.first.shape[0]} layers, {layers.first.shape[1]} heads, {inputs.shape[0]} micro-batches",
            allowed=f"{job.layers} layers, {job.heads} heads, {job.microbatches} micro-batches",
        )
    found = Layers(np.zeros_like(layers.first), np.zeros_like(layers.second))
    begin = 0
    for replica, quota in zip(plan.replicas, plan.quota, strict=True):
        stages = _stages(job, replica)
        for microbatch in range(begin, begin + quota):
            _add(found, layers, stages, inputs[microbatch], targets[microbatch])
        begin += quota
    return found


def _stages(job: Job, replica: Replica) -> list[list[_Member]]:
    found, begin = [], 0
    for group, count in zip(replica.groups, replica.layers, strict=True):
        if not group:
            raise BadValueError("A stage without a group computes nothing.", given=str(replica.groups)[:80])
        heads = np.r_[0, np.cumsum(even_layers(job.heads, len(group)))].tolist()
        found.append([
            _Member(begin, begin + count, low, high) for low, high in itertools.pairwise(heads)
        ])  # fmt: skip
        begin += count
    return found


def _add(found: Layers, layers: Layers, stages: list[list[_Member]], x: Floats, target: Floats) -> None:
    """Add the gradients of one micro-batch: forward through the stages, and back."""
    kept: list[tuple[int, list[_Member], Floats, list[Floats]]] = []
    for members in stages:
        for layer in range(members[0].begin, members[0].end):
            hidden = [np.tanh(layers.first[layer, each.low : each.high] @ x) for each in members]
            kept.append((layer, members, x, hidden))
            parts = [
                np.einsum("whu,hu->w", layers.second[layer, :, each.low : each.high], h)
                for each, h in zip(members, hidden, strict=True)
            ]
            x = x + np.sum(parts, axis=0)
    grad = x - target
    for layer, members, before, hidden in reversed(kept):
        parts = []
        for each, h in zip(members, hidden, strict=True):
            held = slice(each.low, each.high)
            found.second[layer, :, held] += np.einsum("w,hu->whu", grad, h)
            inner = np.einsum("w,whu->hu", grad, layers.second[layer, :, held]) * (1 - h**2)
            found.first[layer, held] += np.einsum("hu,w->huw", inner, before)
            parts.append(np.einsum("hu,huw->w", inner, layers.first[layer, held]))
        grad = grad + np.sum(parts, axis=0)
