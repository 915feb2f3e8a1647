"""What the fullest rank of a plan holds, in whole bytes.

Parameters take 16 bytes with Adam in mixed precision: 2 for the weight, 2 for its gradient, 4 for a copy in single
precision and 8 for two moments.  A layer keeps 12 bytes per token and hidden unit for attention, its scores unless they
are fused, and 2 (3 ffn + hidden) for every expert that a token goes to.  With 1F1B, stage i holds as many microbatches
as there are stages from it on.
"""

from __future__ import annotations

from wavetank.errors import BadValueError
from wavetank.training.plans.interface import Job, Plan, Shape

WEIGHT, GRADIENT, OPTIMIZER = 2, 2, 12
"""Bytes of a parameter."""


def layer_activations(shape: Shape, *, micro: int, tokens: int, fused: bool, experts: int = 1, tensor: int = 1) -> int:
    """Return what one layer keeps of one microbatch until its backward pass, bytes.

    Parameters
    ----------
    shape : Shape
    micro, tokens : int
        Sequences, and tokens of each.
    fused : bool
        Whether attention keeps no scores.
    experts : int
        Ranks by which the activations of routed experts are divided.
    tensor : int
        Ranks by which all is divided.
    """
    rows = micro * tokens
    kept = 12 * rows * shape.hidden + 2 * rows * shape.shared * 3 * shape.ffn
    if not fused:
        kept += 4 * shape.heads * rows * tokens
    routed = 2 * rows * shape.per_token * (3 * shape.ffn + shape.hidden)
    return _up(kept, tensor) + _up(routed, tensor * experts)


def stage_bytes(job: Job, plan: Plan, stage: int = 0) -> int:
    """Return what a rank of a stage holds, bytes.

    Parameters
    ----------
    job : Job
    plan : Plan
    stage : int
        From 0; the first holds most.

    Raises
    ------
    BadValueError
        If the plan has no such stage.
    """
    if not 0 <= stage < plan.pipeline:
        raise BadValueError("The plan has no such stage.", given=stage, allowed=f"0 to {plan.pipeline - 1}")
    shape = job.shape
    layers = layers_of(shape, plan, stage)
    dense, routed = _up(shape.dense, plan.tensor), _up(shape.experts * shape.expert, plan.experts * plan.tensor)
    states = sum(
        _states(layers * size, replicas, plan.shards)
        for size, replicas in ((dense, plan.experts * plan.data), (routed, plan.data))
    )
    if plan.shards == 3:
        # The weights of the layer at work, gathered.
        states += WEIGHT * (dense + routed)
    whole = layer_activations(
        shape, micro=plan.micro, tokens=job.tokens, fused=job.fused, tensor=plan.tensor,
        experts=1 if job.counted else plan.experts,
    )  # fmt: skip
    in_flight = min(plan.pipeline - stage, job.microbatches(plan))
    if not plan.checkpoint:
        return states + layers * in_flight * whole
    kept = _up(2 * plan.micro * job.tokens * shape.hidden, plan.tensor)
    return states + layers * in_flight * kept + whole


def fits(job: Job, plan: Plan) -> bool:
    """Return whether the fullest rank of a plan has room.

    Parameters
    ----------
    job : Job
    plan : Plan
    """
    return stage_bytes(job, plan) <= job.room_bytes


def layers_of(shape: Shape, plan: Plan, stage: int = 0) -> int:
    """Return the layers of a stage: as even as can be, the first ones have one more.

    Parameters
    ----------
    shape : Shape
    plan : Plan
    stage : int
    """
    return shape.layers // plan.pipeline + (stage < shape.layers % plan.pipeline)


def _states(parameters: int, replicas: int, shards: int) -> int:
    if shards == 0:
        return (WEIGHT + GRADIENT + OPTIMIZER) * parameters
    if shards == 1:
        return (WEIGHT + GRADIENT) * parameters + OPTIMIZER * _up(parameters, replicas)
    return (WEIGHT + GRADIENT + OPTIMIZER) * _up(parameters, replicas)


def _up(number: int, parts: int) -> int:
    return -(-number // parts)
