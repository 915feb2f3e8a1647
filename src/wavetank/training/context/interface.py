"""The batch, the ranks that share its attention, and what one step of a sharer costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BYTES_PER_ELEMENT = 2  # bf16
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The heads of one attention layer; those of Llama-3-70B by default, as in the source.

    Parameters
    ----------
    queries, keys : int
        Heads of queries, and of keys and values.
    dim : int
        Numbers per head.
    """

    queries: int = 64
    keys: int = 8
    dim: int = 128

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token, bytes."""
        return 2 * self.keys * self.dim * _BYTES_PER_ELEMENT

    @property
    def qo_bytes(self) -> int:
        """Query and output of one token, bytes."""
        return 2 * self.queries * self.dim * _BYTES_PER_ELEMENT

    @property
    def flops_per_pair(self) -> int:
        """Operations for one query token on one key token in the forward pass, all heads."""
        return 4 * self.queries * self.dim


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The ranks.

    Parameters
    ----------
    flops_per_s : float64 array (ranks,)
        Peak of each device.
    network_bytes_per_s : float64 array (ranks,)
        Of each device to other nodes, one direction.
    link_bytes_per_s : float64 array (ranks,)
        Of each device to others of its node.
    latency_s : float
        Start-up time of one message.
    node : int
        Devices of a node, neighbours in number.
    kernel_share : float
        Share of the peak that attention reaches on long blocks.
    half_tokens : float
        Length of blocks on which it reaches half of that share.
    """

    flops_per_s: Floats
    network_bytes_per_s: Floats
    link_bytes_per_s: Floats
    latency_s: float = 1e-5
    node: int = 8
    kernel_share: float = 0.65
    half_tokens: float = 1024.0
    heads: Heads = field(default_factory=Heads)

    def __post_init__(self) -> None:
        # Written so that nan fails too.
        for name in ("flops_per_s", "network_bytes_per_s", "link_bytes_per_s"):
            value = getattr(self, name)
            if value.shape != (self.ranks,) or not self.ranks or not np.all((value > 0) & np.isfinite(value)):
                raise BadValueError("Each rank has a speed above 0.", given=str(value)[:80], where=name)
        if not (self.latency_s >= 0 and self.node >= 1 and 0 < self.kernel_share <= 1 and self.half_tokens >= 0):
            raise BadValueError(
                "A figure of the cluster is out of range.",
                given=(self.latency_s, self.node, self.kernel_share, self.half_tokens),
            )  # fmt: skip

    @property
    def ranks(self) -> int:
        """How many devices there are."""
        return int(self.flops_per_s.size)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The sequences of one step, and who computes their attention.

    Parameters
    ----------
    lengths : int64 array (sequences,)
        Tokens of each; attention is causal, and never goes across sequences.
    cluster : Cluster
    room_tokens : int
        Tokens that a rank may hold.
    """

    lengths: Ints
    cluster: Cluster
    room_tokens: int

    def __post_init__(self) -> None:
        if self.lengths.size == 0 or self.lengths.dtype.kind not in "iu" or self.lengths.min() < 1:
            raise BadValueError("Sequences have a token or more, in whole numbers.", given=str(self.lengths[:5]))
        if self.tokens > self.room_tokens * self.cluster.ranks:
            raise BadValueError(
                "The batch has more tokens than the ranks can hold.", given=self.tokens,
                allowed=f"{self.room_tokens * self.cluster.ranks}", hint="take more ranks, or more tokens per rank",
            )  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.lengths.sum())


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the forward and the backward pass of one layer's attention take.

    Parameters
    ----------
    time_s : float
        Until the last rank is done.
    compute_s : float64 array (ranks,)
        What each rank computes.
    sent_bytes, received_bytes : float64 array (ranks,)
        In the forward pass.
    rounds, degree : int
        Rounds of messages of the forward pass, and the fewest that there can be; 0 where messages have no rounds.
    choice : float
        What was chosen for this batch: tokens of a block, or ranks of a group.
    """

    time_s: float
    compute_s: Floats
    sent_bytes: Floats
    received_bytes: Floats
    rounds: int = 0
    degree: int = 0
    choice: float = 0.0


class Sharer(Protocol):
    """Shares the attention of a batch among ranks."""

    def step(self, batch: Batch) -> Step:
        """Return what one step takes.

        Parameters
        ----------
        batch : Batch
        """
        ...


def imbalance(values: Floats) -> float:
    """Return max / mean - 1; 0 where there is nothing, or nothing but rounding.

    Parameters
    ----------
    values : float64 array
    """
    mean = float(values.mean())
    found = float(values.max()) / mean - 1.0 if mean > 0 else 0.0
    return found if found > _ROUNDING else 0.0
