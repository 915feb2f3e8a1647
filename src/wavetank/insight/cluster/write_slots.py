"""Writes that wait for a slot: why checkpoints of many nodes queue at the client while the server is not busy.

A client has a limited number of requests on their way (slots); each takes a service time from being sent to being
answered, which grows with the nodes that write.  A client therefore writes at most slots x request / service time.  A
burst that comes faster waits at the client, and of the latency of its requests the share 1 - service time / latency is
waiting.

A burst that comes evenly is a fluid: its backlog grows linearly, and the mean wait has a closed form
(:func:`predicted_share`); :func:`burst` follows each request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import check_ranges, setting
from wavetank.sim.compiled import compiled


@dataclass(frozen=True, kw_only=True)
class SlotLimit:
    """A client that has a limited number of requests on their way."""

    slots: int = setting(128, says="Requests on their way at most", low=1, high=1_000_000)

    def __post_init__(self) -> None:
        check_ranges(self)


class Load(NamedTuple):
    """What a node writes, and what a request takes.

    Attributes
    ----------
    burst_bytes : float
        Of one checkpoint of a node.
    over_s : float
        Time over which it comes, evenly; 0 for at once.
    request_bytes : float
    alone_s : float
        Service time of a request of one node alone, s.
    per_node_s : float
        What each further node that writes adds to it, s.
    """

    burst_bytes: float
    over_s: float
    request_bytes: float
    alone_s: float
    per_node_s: float

    def service_s(self, nodes: int) -> float:
        """Return the service time of a request when several nodes write, s."""
        return self.alone_s + self.per_node_s * (nodes - 1)

    @property
    def requests(self) -> int:
        """Requests of a burst."""
        return math.ceil(self.burst_bytes / self.request_bytes)


class Burst(NamedTuple):
    """What became of a burst.

    Attributes
    ----------
    queue_share : float
        Time that requests waited for a slot / their latency, over all requests.
    service_s, latency_s : float
        Means.
    lasts_s : float
        From the first request to the last answer.
    """

    queue_share: float
    service_s: float
    latency_s: float
    lasts_s: float


def checked(load: Load, nodes: int) -> Load:
    """Return a load that there can be.

    Parameters
    ----------
    load : Load
    nodes : int

    Raises
    ------
    BadValueError
        If sizes or times are not above 0 and finite, or there are more than ten million requests.
    """
    positive = (load.burst_bytes, load.request_bytes, load.alone_s)
    good = all(0 < each < math.inf for each in positive) and all(0 <= each < math.inf for each in load[1::3])
    if not good or nodes < 1 or not load.burst_bytes / load.request_bytes <= 1e7:
        raise BadValueError("This is no burst of writes.", given=f"{load}, {nodes} nodes",
                            allowed="sizes and times above 0, ten million requests at most")  # fmt: skip
    return load


def burst(load: Load, slots: int, nodes: int) -> Burst:
    """Return what becomes of the burst of one of several equal nodes, request by request.

    Parameters
    ----------
    load : Load
    slots : int
    nodes : int
        That write at the same time.
    """
    checked(load, nodes)
    limit = SlotLimit(slots=slots)
    service_s = load.service_s(nodes)
    arrives = np.arange(load.requests) * (load.over_s / load.requests)
    starts = np.empty(load.requests)
    _starts(arrives, service_s, limit.slots, starts)
    latency = starts + service_s - arrives
    return Burst(
        float((starts - arrives).sum() / latency.sum()), service_s, float(latency.mean()), float(starts[-1] + service_s)
    )


@compiled
def _starts(arrives, service_s, slots, out):  # type: ignore[no-untyped-def]
    for request in range(arrives.size):
        free = out[request - slots] + service_s if request >= slots else 0.0
        out[request] = max(arrives[request], free)


def predicted_share(load: Load, slots: int, nodes: int) -> float:
    """Return the share of waiting in the latency of a burst, by the closed form: 1 - service time / latency.

    Parameters
    ----------
    load : Load
    slots : int
    nodes : int
    """
    checked(load, nodes)
    service_s = load.service_s(nodes)
    # At the rate of the slots a burst takes this long; what it takes longer than it comes is the last one's wait.
    drained_s = load.requests / slots * service_s
    # The first ones find slots free.
    waited_s = max(0.0, drained_s - service_s - load.over_s) / 2
    return 1 - service_s / (service_s + waited_s)


def knee_nodes(load: Load, slots: int) -> float:
    """Return the number of nodes from which bursts wait: where slots x request / service time is what comes.

    Parameters
    ----------
    load : Load
    slots : int

    Returns
    -------
    float
        Below 1 where a single node waits; infinite where nodes do not disturb each other, and one does not wait.
    """
    checked(load, 1)
    most_s = load.over_s * slots / load.requests
    if load.per_node_s == 0:
        return math.inf if most_s >= load.alone_s else 0.0
    return 1 + (most_s - load.alone_s) / load.per_node_s
