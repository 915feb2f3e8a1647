"""What attention and messages take: one accounting for all sharers.

A kernel is slow on short blocks.  Its share of the peak follows ``1 / (1 + (half / length) ** log2(3))``, which is a
quarter on blocks of half the tokens of the middle and nine tenths on four times as many: 25 % at 512 tokens, as the
source of FCP measures, and 90 % at 4096; the length of an oblong block is the geometric mean of its sides.  Work is
given in operations at full speed, so that the ranks' speeds divide it.

The backward pass computes 2.5 times as much as the forward pass; it sends keys and values again, and their gradients
back.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wavetank.training.context.interface import Cluster, Floats, Ints

PASSES = ((1.0, 1.0), (2.5, 2.0))
"""Of forward and backward pass: computing and messages, relative to the forward pass."""

_STEEPNESS = math.log2(3.0)


def efficiency(tokens: Floats, half_tokens: float) -> Floats:
    """Return the share of the kernel's best speed that blocks of a length reach.

    Parameters
    ----------
    tokens : float64 array
        Above 0.
    half_tokens : float
        Where it is a half; 0: always 1.

    Examples
    --------
    >>> efficiency(np.array([512.0, 1024.0, 4096.0]), 1024.0)
    array([0.25, 0.5 , 0.9 ])
    """
    found: Floats = 1.0 / (1.0 + (half_tokens / tokens) ** _STEEPNESS)
    return found


def work(area: Floats, queries: Floats, keys: Floats, cluster: Cluster) -> Floats:
    """Return the forward work of blocks, as operations at the devices' peak.

    Parameters
    ----------
    area : float64 array
        Pairs of tokens that attend: a causal block on the diagonal has about half of its square.
    queries, keys : float64 array
        Sides of the block, tokens.
    cluster : Cluster
    """
    share = cluster.kernel_share * efficiency(np.sqrt(queries * keys), cluster.half_tokens)
    found: Floats = cluster.heads.flops_per_pair * area / share
    return found


def whole(lengths: Floats, cluster: Cluster) -> Floats:
    """Return the work of causal sequences that are not cut.

    Parameters
    ----------
    lengths : float64 array
    cluster : Cluster
    """
    return work(lengths * (lengths + 1) / 2, lengths, lengths, cluster)


def useful_flops(lengths: Ints, cluster: Cluster) -> float:
    """Return the operations of forward and backward pass that are asked for, however they are shared.

    Parameters
    ----------
    lengths : int64 array
    cluster : Cluster
    """
    area = float((lengths.astype(np.float64) * (lengths + 1) / 2).sum())
    return sum(compute for compute, _ in PASSES) * cluster.heads.flops_per_pair * area


def pair_bytes_per_s(cluster: Cluster, senders: Ints, receivers: Ints) -> Floats:
    """Return the bandwidth between ranks: their node's link inside of a node, else the slower network card.

    Parameters
    ----------
    cluster : Cluster
    senders, receivers : int64 array
    """
    inside = senders // cluster.node == receivers // cluster.node
    link, network = cluster.link_bytes_per_s, cluster.network_bytes_per_s
    found: Floats = np.where(
        inside, np.minimum(link[senders], link[receivers]), np.minimum(network[senders], network[receivers])
    )
    return found


def exchange_s(
    cluster: Cluster,
    ends: tuple[Ints, Ints, Floats, Floats],
    colours: Ints,
    local_work: Floats,
    factors: tuple[float, float],
    coalesced: int = 1,
) -> float:
    """Return how long rounds of messages take, each rank computing on what has arrived while the next one travels.

    A message begins when its sender and its receiver are done with those of earlier rounds.  A rank computes on its own
    blocks first; what arrives waits in memory.

    Parameters
    ----------
    cluster : Cluster
    ends : tuple of arrays (messages,)
        Sender, receiver, bytes, and the work that a message makes possible.
    colours : int64 array (messages,)
        Round of each message; no two of a round share a sender or a receiver.
    local_work : float64 array (ranks,)
    factors : tuple of float
        Computing and messages, relative to the forward pass.
    coalesced : int, default 1
        Rounds after each of which a rank computes on all that has arrived, in one kernel.
    """
    senders, receivers, sizes, works = ends
    compute, traffic = factors
    travel = cluster.latency_s + traffic * sizes / pair_bytes_per_s(cluster, senders, receivers)
    work_s = compute * works / cluster.flops_per_s[receivers]
    busy = compute * local_work / cluster.flops_per_s
    sending, receiving = np.zeros(cluster.ranks), np.zeros(cluster.ranks)
    waiting = np.zeros(cluster.ranks)
    order = np.argsort(colours, kind="stable")
    last = int(colours.max()) if colours.size else -1
    for one in np.split(order, np.flatnonzero(np.diff(colours[order])) + 1) if colours.size else ():
        source, target = senders[one], receivers[one]
        done = np.maximum(sending[source], receiving[target]) + travel[one]
        sending[source] = done
        receiving[target] = done
        waiting[target] += work_s[one]
        number = int(colours[one[0]])
        if (number + 1) % coalesced == 0 or number == last:
            fed = waiting > 0
            busy[fed] = np.maximum(busy, receiving)[fed] + waiting[fed]
            waiting[:] = 0.0
    return float(busy.max())


def per_rank(ranks: int, where: Ints, values: NDArray[np.float64]) -> Floats:
    """Return the sum of values by rank.

    Parameters
    ----------
    ranks : int
    where : int64 array
        Rank of each value.
    values : float64 array
    """
    return np.bincount(where, values, ranks).astype(np.float64)
