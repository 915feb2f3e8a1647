"""The compute continuum between the nodes: cloud, edge, and sites that are reachable only at times.

Cloud nodes reach each other in 1 to 5 ms, an edge node's way to and from the cloud takes 20 to 60 ms, and two edge
nodes meet through the cloud.  Intermittent nodes are edge nodes whose link is off at times: what they send or should
receive then is lost, but they keep running.

Source: P. Dazzi et al., arXiv 2605.11839, 2026 (cloud, edge and intermittently connected sites).

Differs from the source:
1. Delays, shares and on and off times are ours; the source's figures are not given in what we read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.sim.faults import Behaviour, Fault, FaultyNode, Sends
from wavetank.sim.node import Message
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Scheduler

CLOUD, EDGE, INTERMITTENT = range(3)

_CLOUD_MS = (1.0, 5.0)
_EDGE_MS = (20.0, 60.0)


@dataclass(frozen=True, kw_only=True)
class Sites:
    """Which node is where.

    Parameters
    ----------
    size : int
        Nodes.
    cloud, intermittent : float
        Shares of nodes; the rest is at the edge.
    seed : int
        Of the draw.
    """

    size: int
    cloud: float = 0.3
    intermittent: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.cloud, self.intermittent) < 0 or self.cloud + self.intermittent > 1:
            raise BadValueError("Shares add up to 1 at most.", given=(self.cloud, self.intermittent))

    def classes(self) -> tuple[int, ...]:
        """Return the class of every node; node 0 is in the cloud."""
        draws = Draws(stream_key(self.seed, "sites"))
        found = [CLOUD]
        for _ in range(1, self.size):
            at = draws.random()
            found.append(CLOUD if at < self.cloud else INTERMITTENT if at < self.cloud + self.intermittent else EDGE)
        return tuple(found[: self.size])


class LinkClasses(Scheduler):
    """Draws the delay of every message from the classes of its two ends.

    Parameters
    ----------
    classes : sequence of int
        Of every node.
    round_ms : float
        Milliseconds per round.
    seed : int
        Of the delays.
    """

    def __init__(self, classes: tuple[int, ...], *, round_ms: float, seed: int) -> None:
        if not round_ms > 0:
            raise BadValueError("A round takes time.", given=round_ms, allowed="> 0 ms")
        self.classes = classes
        self.round_ms = round_ms
        self._draws = Draws(stream_key(seed, "delays"))

    def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
        """Return the delay in rounds."""
        ends = (self.classes[sender] != CLOUD) + (self.classes[to] != CLOUD)
        low, high = _EDGE_MS if ends else _CLOUD_MS
        delay_ms = sum(low + self._draws.random() * (high - low) for _ in range(max(ends, 1)))
        return delay_ms / self.round_ms


@dataclass(frozen=True, kw_only=True)
class Intermittent(Fault):
    """A link that is off at times, with exponential on and off periods; the node itself runs on.

    Parameters
    ----------
    mean_on, mean_off : float
        Rounds.
    """

    mean_on: float = 60.0
    mean_off: float = 10.0
    byzantine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.mean_on > 0 or not self.mean_off > 0:
            raise BadValueError("On and off periods take time.", given=(self.mean_on, self.mean_off), allowed="> 0")

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Flickering(self.mean_on, self.mean_off, Draws(stream_key(0, "intermittent", index)))


@dataclass
class _Flickering(Behaviour):
    mean_on: float
    mean_off: float
    # Of its own, so that all systems compared find the link off at the same times.
    draws: Draws
    on: bool = True

    def start(self, node: FaultyNode) -> None:
        node.set_fault_timer(self, "flip", max(self.draws.exponential(self.mean_on), 1e-3))

    def timer(self, node: FaultyNode, name: str) -> None:
        self.on = not self.on
        node.set_fault_timer(
            self, "flip", max(self.draws.exponential(self.mean_on if self.on else self.mean_off), 1e-3)
        )

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        return ((to, message),) if self.on else ()

    def receives(self, node: FaultyNode, sender: int, message: Message) -> bool:
        return self.on
