"""How long one step of a plan takes: computing, exchanges of tokens, shards, stages, gradients.

The slot of a microbatch on a stage is its forward and its backward pass with all that is waited for.  A step is one
slot of the fullest stage for each microbatch, one of every other stage while the pipeline fills and drains, and what is
left of the gradients' sums: with stages of equal layers the time of 1F1B, with others no less.  Only additions,
products and divisions are used, in one order, so that every processor finds the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wavetank.platforms.fabric import Fabric, Round
from wavetank.platforms.step_time import PS_PER_S
from wavetank.training.plans.exchange import flat_s, halo_phases_s, halo_s, lanes_of
from wavetank.training.plans.interface import Job, Plan
from wavetank.training.plans.memory import GRADIENT, WEIGHT, layers_of


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Where the time of a step goes.

    Parameters
    ----------
    time_s : float
        Of the whole step.
    compute_s, exchange_s, tensor_s, send_s, gather_s : float
        In all slots of one stage: computing, exchanges of tokens, sums of tensor shards, messages to the next stage,
        weights that are gathered.
    bubble_s : float
        In which a stage waits for the pipeline to fill and drain.
    gradient_s : float
        What of the gradients' sums does not hide.
    """

    time_s: float
    compute_s: float
    exchange_s: float
    tensor_s: float
    send_s: float
    gather_s: float
    bubble_s: float
    gradient_s: float


@lru_cache(maxsize=1 << 16)
def ring_s(fabric: Fabric, size: int, stride: int, n_bytes: int) -> float:
    """Return what a ring takes to gather, or to sum and scatter, s; groups in between do the same at once.

    Parameters
    ----------
    fabric : Fabric
    size : int
        Members, ``stride`` apart.
    stride : int
    n_bytes : int
        What all hold together.
    """
    if size == 1:
        return 0.0
    ranks = np.arange(size * stride)
    one = Round(ranks, (ranks + stride) % ranks.size, -(-n_bytes // size))
    return (size - 1) * fabric.round_ps(one) / PS_PER_S


@lru_cache(maxsize=1 << 16)
def stage_send_s(fabric: Fabric, stride: int, n_bytes: int) -> float:
    """Return what messages of all ranks to the next stage take, s.

    Parameters
    ----------
    fabric : Fabric
    stride : int
        Ranks of a stage.
    n_bytes : int
        Of each message.
    """
    ranks = np.arange(fabric.ranks - stride)
    return fabric.round_ps(Round(ranks, ranks + stride, n_bytes)) / PS_PER_S


def exchange_s(job: Job, plan: Plan) -> float:
    """Return what one exchange of a microbatch's tokens takes, s.

    Parameters
    ----------
    job : Job
    plan : Plan
    """
    if plan.experts == 1:
        return 0.0
    fabric, shape = job.fabric, job.shape
    n_bytes = 2 * plan.micro * job.tokens * shape.per_token * shape.hidden // plan.tensor
    if plan.exchange == "flat":
        return flat_s(fabric, plan.experts, plan.tensor, n_bytes)
    lanes = lanes_of(job.machine.nics, job.machine.node, plan.tensor)
    return halo_s(fabric, plan.experts, plan.tensor, n_bytes, lanes)


def layer_compute_s(job: Job, plan: Plan) -> float:
    """Return what the forward pass of one layer computes for one microbatch, s.

    Parameters
    ----------
    job : Job
    plan : Plan
    """
    shape, rows = job.shape, plan.micro * job.tokens
    best = job.machine.device.bf16_flops_per_s * job.product_share * plan.tensor
    # Every rank of the group sends to each expert.
    each = rows * shape.per_token * plan.experts / shape.experts
    dense = 2 * shape.dense * rows / best * ((rows + job.half_rows) / rows)
    routed = 2 * shape.per_token * shape.expert * rows / best * ((each + job.half_rows) / each)
    return dense + routed + shape.pair_flops * rows * job.tokens / 2 / best


def step_cost(job: Job, plan: Plan) -> StepCost:
    """Return what a step takes.

    Parameters
    ----------
    job : Job
    plan : Plan
        One that :meth:`Job.check` does not refuse; whether it fits into memory is not asked here.
    """
    shape, slots = job.shape, job.microbatches(plan)
    fuller = shape.layers % plan.pipeline or plan.pipeline
    full = _slot(job, plan, layers_of(shape, plan))
    slot = sum(full)
    # Stages with a layer less are done sooner; the pipeline goes at the speed of the others.
    less = slot if fuller == plan.pipeline else sum(_slot(job, plan, layers_of(shape, plan, plan.pipeline - 1)))
    bubble = (fuller - 1) * slot + (plan.pipeline - fuller) * less
    # Sums are scattered and gathered once a step, gradients or new weights.
    once, gathered = _rings_s(job, plan, layers_of(shape, plan))
    gradient = 0.0 if plan.shards == 3 else (1.0 - job.hidden_share) * (once + gathered)
    return StepCost(
        time_s=slots * slot + bubble + gradient, compute_s=slots * full.compute, exchange_s=slots * full.exchange,
        tensor_s=slots * full.tensor, send_s=slots * full.send, gather_s=slots * full.gather, bubble_s=bubble,
        gradient_s=gradient,
    )  # fmt: skip


class _Slot(NamedTuple):
    compute: float
    exchange: float
    tensor: float
    send: float
    gather: float


def _slot(job: Job, plan: Plan, layers: int) -> _Slot:
    """Return what a microbatch takes on a stage of some layers, by what."""
    fabric, shape = job.fabric, job.shape
    rows = plan.micro * job.tokens
    # Forward, and twice that backward; once more where activations are computed again.
    again = 1 if plan.checkpoint else 0
    n_bytes = 2 * rows * shape.hidden
    send = 0.0
    if plan.pipeline > 1:
        send = 2 * stage_send_s(fabric, job.ranks // plan.pipeline, -(-n_bytes // plan.tensor))
    gather = 0.0
    if plan.shards == 3:
        # Shards of weights are gathered before either pass, their gradients scattered after each microbatch.
        once, gathered = _rings_s(job, plan, layers)
        gather = (1.0 - job.hidden_share) * (2 * gathered + once)
    return _Slot(
        compute=layers * (3 + again) * layer_compute_s(job, plan),
        exchange=layers * (4 + 2 * again) * exchange_s(job, plan),
        # A sum is scattered and gathered: two for attention and experts forward, two backward.
        tensor=layers * (4 + 2 * again) * 2 * ring_s(fabric, plan.tensor, 1, n_bytes),
        send=send, gather=gather,
    )  # fmt: skip


def _rings_s(job: Job, plan: Plan, layers: int) -> tuple[float, float]:
    """Return what it takes to sum the gradients of some layers over their replicas, and to gather their weights, s."""
    shape = job.shape
    dense = layers * shape.dense // plan.tensor
    routed = layers * shape.experts * shape.expert // (plan.experts * plan.tensor)
    replicas = ((dense, plan.experts * plan.data, plan.tensor), (routed, plan.data, plan.tensor * plan.experts))
    once, gathered = (
        sum(ring_s(job.fabric, size, stride, each * weights) for weights, size, stride in replicas)
        for each in (GRADIENT, WEIGHT)
    )
    return once, gathered


def mfu(job: Job, time_s: float) -> float:
    """Return the share of the peak that a step's useful operations need: model FLOPs utilisation.

    Parameters
    ----------
    job : Job
    time_s : float
    """
    return job.flops / (time_s * job.ranks * job.machine.device.bf16_flops_per_s)


def forget_prices() -> None:
    """Forget what exchanges and rings take, so that the next planner finds nothing that another one has priced."""
    for each in (flat_s, halo_phases_s, ring_s, stage_send_s):
        each.cache_clear()
