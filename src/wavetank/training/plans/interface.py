"""The job that is planned, and the plan: in how many stages, groups of experts, tensor shards and replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from wavetank.errors import BadValueError, WavetankError
from wavetank.platforms.catalog import Model
from wavetank.platforms.fabric import Fabric
from wavetank.platforms.machines import Machine

SHARDS = (0, 1, 3)
"""Stages of ZeRO: nothing, optimizer states, or all states divided among replicas."""


class NoPlanError(WavetankError):
    """No plan fits into the memory of the ranks."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A mixture-of-experts model as planners see it: layers that are all alike, without embeddings.

    Parameters
    ----------
    layers, hidden, heads : int
    ffn : int
        Width of one expert.
    experts, per_token, shared : int
        Routed experts of a layer, those that a token goes to, and those that every token goes to besides.
    attention : int
        Parameters of a layer's attention.
    pair_flops : int
        Operations of one layer's attention for a pair of tokens, forward.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    experts: int
    per_token: int
    shared: int
    attention: int
    pair_flops: int

    @classmethod
    def of(cls, model: Model, *, paper: bool = False) -> Shape:
        """Return the shape of a model with experts.

        Parameters
        ----------
        model : Model
        paper : bool
            Whether attention has 4 hidden^2 parameters, as in the source, not those of its grouped or latent heads.

        Raises
        ------
        BadValueError
            For a model without experts.
        """
        if not model.experts:
            raise BadValueError("The model has no experts.", given=model.name, allowed="a mixture of experts")
        return cls(
            layers=model.layers, hidden=model.hidden, heads=model.heads, ffn=model.expert_ffn, experts=model.experts,
            per_token=model.experts_per_token, shared=model.shared_experts,
            attention=4 * model.hidden**2 if paper else model.attention_parameters // model.layers,
            pair_flops=model.prefill_flops_per_pair // model.layers,
        )  # fmt: skip

    @property
    def expert(self) -> int:
        """Parameters of one expert: three matrices."""
        return 3 * self.hidden * self.ffn

    @property
    def dense(self) -> int:
        """Parameters of a layer that every token meets."""
        return self.attention + self.shared * self.expert

    @property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return self.layers * (self.dense + self.experts * self.expert)

    def flops_per_token(self, tokens: int) -> int:
        """Return the operations of one token, forward and backward: 6 a parameter that it meets, and its attention.

        Parameters
        ----------
        tokens : int
            Of its sequence; attention is causal.
        """
        met = self.dense + self.per_token * self.expert
        return self.layers * (6 * met + 3 * self.pair_flops * tokens // 2)


class Plan(NamedTuple):
    """How a job is cut; ranks are numbered with tensor shards innermost, then experts, replicas and stages.

    Parameters
    ----------
    pipeline, experts, tensor, data : int
        Stages, ranks that divide the experts of a layer, ranks that divide matrices, and replicas of all that.
    micro : int
        Sequences of a microbatch.
    checkpoint : bool
        Whether activations are computed again in the backward pass.
    shards : int
        One of :data:`SHARDS`.
    exchange : str
        ``flat`` or ``halo``.
    """

    pipeline: int
    experts: int
    tensor: int
    data: int
    micro: int
    checkpoint: bool
    shards: int
    exchange: str

    @property
    def ranks(self) -> int:
        """How many ranks it takes."""
        return self.pipeline * self.experts * self.tensor * self.data


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model to be trained on a part of a machine.

    Parameters
    ----------
    shape : Shape
    machine : Machine
    ranks : int
    batch : int
        Sequences of a step.
    tokens : int
        Of a sequence.
    memory_share : float
        Of a device's memory that a plan may fill.
    fused : bool
        Whether attention keeps no scores.
    counted : bool
        Whether each rank of a group brings sequences of its own to the experts; otherwise the activations of experts
        are divided by the group, as the source has it.
    half_rows : float
        Rows of a matrix product at which it reaches half of its best speed.
    product_share : float
        Share of the peak that it reaches at best.
    hidden_share : float
        Of the traffic of gradients and weights that hides behind computing.
    """

    shape: Shape
    machine: Machine
    ranks: int
    batch: int
    tokens: int = 4096
    memory_share: float = 0.92
    fused: bool = True
    counted: bool = True
    half_rows: float = 256.0
    product_share: float = 0.7
    hidden_share: float = 0.7

    def __post_init__(self) -> None:
        for name in ("ranks", "batch", "tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadValueError("A job has whole numbers.", given=value, allowed="1 or more", where=name)
        # Written so that nan fails too.
        right = 0 < self.memory_share <= 1 and 0 < self.product_share <= 1 and 0 <= self.hidden_share <= 1
        if not (right and 0 <= self.half_rows < math.inf):
            raise BadValueError(
                "A share of the job is out of range.",
                given=(self.memory_share, self.product_share, self.hidden_share, self.half_rows),
            )  # fmt: skip
        _ = self.fabric

    @cached_property
    def fabric(self) -> Fabric:
        """What connects the ranks."""
        return self.machine.fabric(self.ranks)

    @property
    def room_bytes(self) -> int:
        """What a rank may hold."""
        return int(self.machine.device.memory_bytes * self.memory_share)

    @property
    def flops(self) -> int:
        """Operations of the model in one step; what is computed again does not count."""
        return self.batch * self.tokens * self.shape.flops_per_token(self.tokens)

    def microbatches(self, plan: Plan) -> int:
        """Return how many microbatches of a plan go through its pipeline.

        Parameters
        ----------
        plan : Plan
        """
        return self.batch // (plan.experts * plan.data * plan.micro)

    def check(self, plan: Plan) -> None:
        """Refuse a plan that is none of this job's.

        Parameters
        ----------
        plan : Plan

        Raises
        ------
        BadValueError
            For other ranks, parts that do not come out even, or words that mean nothing.
        """
        shape = self.shape
        wrong = (
            plan.ranks != self.ranks
            or min(plan[:5]) < 1
            or plan.pipeline > shape.layers
            or shape.experts % plan.experts
            or shape.heads % plan.tensor
            or shape.ffn % plan.tensor
            or plan.tensor > self.machine.node
            or self.batch % (plan.experts * plan.data * plan.micro)
            or plan.shards not in SHARDS
            or plan.exchange not in ("flat", "halo")
        )
        if wrong:
            raise BadValueError("This is no plan of the job.", given=plan)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, in order.

    Parameters
    ----------
    number : int
    """
    return [each for each in range(1, number + 1) if number % each == 0]


def legal_plans(
    job: Job, *, pipeline: bool = True, tensor: bool = True, exchanges: tuple[str, ...] = ("flat", "halo"),
    largest_micro: int = 8,
) -> Iterator[Plan]:  # fmt: skip
    """Yield the plans of a job, whether or not they fit into memory.

    Parameters
    ----------
    job : Job
    pipeline, tensor : bool
        Whether there may be more than one stage, or tensor shard.
    exchanges : tuple of str
        Ways to exchange tokens; the hierarchical one is tried where groups cross nodes.
    largest_micro : int
        Sequences of a microbatch at most.
    """
    shape, node = job.shape, job.machine.node
    for stages in [each for each in divisors(job.ranks) if each <= shape.layers] if pipeline else [1]:
        tensors = [each for each in divisors(node) if shape.heads % each == shape.ffn % each == 0] if tensor else [1]
        for shards_of in tensors:
            if job.ranks % (stages * shards_of):
                continue
            left = job.ranks // (stages * shards_of)
            for group in divisors(math.gcd(left, shape.experts)):
                if job.batch % left:
                    continue
                crosses = group * shards_of > node and group * shards_of % node == 0
                ways = [each for each in exchanges if each == "flat" or crosses] or ["flat"]
                for micro in divisors(job.batch // left):
                    if micro > largest_micro:
                        break
                    for checkpoint in (False, True):
                        for shards in SHARDS:
                            for way in ways:
                                yield Plan(stages, group, shards_of, left // group, micro, checkpoint, shards, way)


class Planner(Protocol):
    """Chooses the plan of a job."""

    def plan(self, job: Job) -> Plan:
        """Return the plan; raise :class:`NoPlanError` where none fits.

        Parameters
        ----------
        job : Job
        """
        ...
