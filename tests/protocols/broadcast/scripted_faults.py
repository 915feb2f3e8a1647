"""Faults and schedulers of which only tests have use: given messages, and messages that never arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wavetank.sim.faults import Behaviour, Fault, FaultyNode
from wavetank.sim.node import Message
from wavetank.sim.simulation import Scheduler


@dataclass(frozen=True, kw_only=True)
class Scripted(Fault):
    """Says given messages to everyone when it starts, and nothing else ever.

    Parameters
    ----------
    script : tuple of Message
    """

    script: tuple[Message, ...]

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Scripted(self.script)


@dataclass
class _Scripted(Behaviour):
    script: tuple[Message, ...]

    def start(self, node: FaultyNode) -> None:
        node.down = True
        for message in self.script:
            node.context.broadcast(message)


class HoldBack(Scheduler):
    """Full control over some messages: those from some nodes to others are held to the end of the run.

    Parameters
    ----------
    senders, receivers : frozenset of int
        Between whom, in this direction, nothing arrives.
    """

    def __init__(self, senders: frozenset[int], receivers: frozenset[int]) -> None:
        self.senders = senders
        self.receivers = receivers

    def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
        """Return infinity for the held messages."""
        return float("inf") if sender in self.senders and to in self.receivers else 0.0


@dataclass(frozen=True, kw_only=True)
class SlowNodes(Scheduler):
    """Holds all messages between some nodes and the rest for a long time, though the nodes are correct.

    Parameters
    ----------
    members : tuple of int
        Whose messages are held.
    extra_rounds : float
        For how long.
    receiving : bool
        Whether messages to them are held as well.
    """

    members: tuple[int, ...]
    extra_rounds: float = 1000.0
    receiving: bool = False

    def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
        """Return how long a message is held."""
        held = sender in self.members or (self.receiving and to in self.members)
        return self.extra_rounds if held else 0.0
