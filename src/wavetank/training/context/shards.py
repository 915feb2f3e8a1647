"""One long sequence on ranks of unequal devices: groups, tokens and heads of the ranks, and what a layer then takes.

The ranks of a group exchange tokens for heads; between groups keys and values go around, so that each rank attends with
its heads for the tokens of its group to all tokens.  Projections and the feed-forward part follow a rank's own tokens,
attention its heads times its group's tokens: a fast rank can be given more of both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from wavetank.errors import BadValueError
from wavetank.training.context.interface import Cluster, Floats

_BYTES = 2  # bf16
_BACKWARD = 2.0


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of a decoder with as many heads of keys as of queries, as GPT-style models have.

    Parameters
    ----------
    heads, head_dim, ffn : int
        Heads, numbers per head, and width of the feed-forward part of two matrices.
    layers : int
        Layers of the model.
    """

    heads: int = 40
    head_dim: int = 128
    ffn: int = 20_480
    layers: int = 40

    @property
    def hidden(self) -> int:
        """Numbers per token."""
        return self.heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Weights of one layer."""
        return 4 * self.hidden**2 + 2 * self.hidden * self.ffn


@dataclass(frozen=True, kw_only=True)
class LongSequence:
    """The sequence, the ranks and the memory.

    Parameters
    ----------
    tokens : int
    cluster : Cluster
        ``heads`` and ``half_tokens`` of it are not used.
    memory_bytes : float64 array (ranks,)
    layer : Layer
    linear_share : float
        Share of a device's peak that matrix products reach.
    """

    tokens: int
    cluster: Cluster
    memory_bytes: Floats
    layer: Layer = field(default_factory=Layer)
    linear_share: float = 0.7

    def __post_init__(self) -> None:
        if self.tokens < self.cluster.ranks or self.memory_bytes.shape != (self.cluster.ranks,):
            raise BadValueError(
                "A sequence has a token for each rank or more, and each rank its memory.", given=self.tokens,
                allowed=f"{self.cluster.ranks} tokens or more",
            )  # fmt: skip

    @property
    def room_tokens(self) -> Floats:
        """Tokens that each rank can hold beside its share of the weights and the optimiser's state."""
        states = 16.0 * self.layer.parameters * self.layer.layers / self.cluster.ranks
        # Inputs of all layers are kept; one layer is computed again at a time.
        token = _BYTES * self.layer.hidden * (self.layer.layers + 16)
        found: Floats = np.maximum((0.9 * self.memory_bytes - states) / token, 0.0)
        return found


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Who is in which group, and has which tokens and heads.

    Parameters
    ----------
    group : int64 array (ranks,)
        Groups are numbered from 0; ranks of a group need not be neighbours.
    tokens, heads : float64 array (ranks,)
        Sums are those of the sequence, and in each group those of the layer.
    """

    group: np.ndarray
    tokens: Floats
    heads: Floats

    def check(self, problem: LongSequence) -> None:
        """Raise unless tokens and heads add up and fit into the ranks' memory.

        Parameters
        ----------
        problem : LongSequence

        Raises
        ------
        BadValueError
        """
        heads = np.bincount(self.group, self.heads)
        wrong = abs(float(self.tokens.sum()) - problem.tokens) > 1e-6 * problem.tokens
        if wrong or np.abs(heads - problem.layer.heads).max() > 1e-9 or min(self.tokens.min(), self.heads.min()) < 0:
            raise BadValueError("Tokens or heads do not add up.", given=f"{self.tokens.sum():g} tokens, {heads} heads")
        if np.any(self.tokens > problem.room_tokens * (1 + 1e-9)):
            raise BadValueError(
                "A rank has more tokens than its memory holds.", given=f"{float(self.tokens.max()):g} tokens",
                allowed=f"{float(problem.room_tokens[int(np.argmax(self.tokens))]):g} tokens",
            )  # fmt: skip


class Scheduler(Protocol):
    """Divides a long sequence and the heads among ranks."""

    def shards(self, problem: LongSequence) -> Shards:
        """Return shards that pass :meth:`Shards.check`.

        Parameters
        ----------
        problem : LongSequence

        Raises
        ------
        BadValueError
            If the memory of all ranks does not hold the sequence in this way.
        """
        ...


def layer_s(problem: LongSequence, shards: Shards) -> Floats:
    """Return how long each rank takes for forward and backward pass of a layer, its waits for others left out.

    Exchanged heads wait for nothing and hide behind nothing; keys and values that come around hide behind attention.

    Parameters
    ----------
    problem : LongSequence
    shards : Shards

    Returns
    -------
    float64 array (ranks,)
        The layer takes the largest.
    """
    cluster, layer = problem.cluster, problem.layer
    group, tokens, heads = shards.group, shards.tokens, shards.heads
    of_group = np.bincount(group, tokens)[group]
    size = np.bincount(group)[group]
    linear = 2.0 * layer.parameters * tokens / (cluster.flops_per_s * problem.linear_share)
    # Causal: on average half of the sequence is seen.
    pairs = heads * of_group * problem.tokens / 2
    attention = 4.0 * layer.head_dim * pairs / (cluster.flops_per_s * cluster.kernel_share)
    exchanged = 4 * _BYTES * layer.head_dim * np.maximum(
        heads * (of_group - tokens), tokens * (layer.heads - heads)
    )  # fmt: skip
    node = np.arange(cluster.ranks) // cluster.node
    spread = np.zeros(int(group.max()) + 1, bool)
    for each in range(spread.size):
        spread[each] = np.unique(node[group == each]).size > 1
    bandwidth = np.where(spread[group], cluster.network_bytes_per_s, cluster.link_bytes_per_s)
    exchange = exchanged / bandwidth + 2 * cluster.latency_s * (size > 1)
    # All ranks of one node, and so one group or several: their links, not the network.
    around_bandwidth = cluster.network_bytes_per_s if node.max() else cluster.link_bytes_per_s
    around = 2 * _BYTES * layer.head_dim * heads * (problem.tokens - of_group) / around_bandwidth
    forward = exchange + linear + np.maximum(attention, around)
    # Backward computes twice as much and sends twice as much.
    found: Floats = (1 + _BACKWARD) * forward
    return found


def step_s(problem: LongSequence, shards: Shards) -> float:
    """Return how long a step of the model takes, s.

    Parameters
    ----------
    problem : LongSequence
    shards : Shards
    """
    return problem.layer.layers * float(layer_s(problem, shards).max())
