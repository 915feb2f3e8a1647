"""The stabilizing data link as QUANTAS runs it: the sender alone repeats, the receiver answers every message it hears.

An acknowledgement counts once, for the message under way, so duplicates and old messages do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.protocols.quantas.series import QuantasAlgorithm, recorded_count
from wavetank.settings import setting
from wavetank.sim.node import Message, Node
from wavetank.sim.simulation import Run


class Frame(Message, frozen=True):
    """A message of that number."""

    number: int


class FrameAck(Message, frozen=True):
    """An acknowledgement of that number."""

    number: int


class StableDataLinkNode(Node):
    """The sender (node 0) or a receiver.

    Attributes
    ----------
    number : int
        Of the message under way; of the greatest one heard at a receiver.
    """

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout
        self.number = 0
        self.acted = 0.0
        self.armed = False

    def start(self) -> None:
        """Send the first message in round 1."""
        if self.context.id == 0:
            self.context.set_timer("first", 1)

    def receive(self, sender: int, message: Any) -> None:
        """Answer a message; go on when this one is acknowledged."""
        if isinstance(message, Frame):
            self.number = max(self.number, message.number)
            self._say(FrameAck(message.number))
        elif self.context.id == 0 and message.number == self.number:
            self.context.record("satisfied")
            self.context.decide(self.number, self.number)
            self._next()

    def timer(self, name: str) -> None:
        """Begin, or repeat the message under way when nothing was done for too long."""
        if name == "first":
            self._next()
            return
        self.armed = False
        if self.acted + self.timeout < self.context.now:
            self._say(Frame(self.number))
        self._arm()

    def _next(self) -> None:
        self.number += 1
        self._say(Frame(self.number))
        self._arm()

    def _arm(self) -> None:
        if not self.armed:
            self.armed = True
            self.context.set_timer("late", max(self.acted + self.timeout + 1 - self.context.now, 1))

    def _say(self, message: Message) -> None:
        self.acted = self.context.now
        self.context.record("said")
        if self.context.peers:
            self.context.send(self.context.peers[0], message)


@dataclass(frozen=True, kw_only=True)
class StableDataLink(QuantasAlgorithm):
    """The stabilizing data link between node 0 and its first neighbour."""

    timeout: int = setting(4, unit="rounds", says="Idle time after which the sender repeats its message", low=1)
    where: ClassVar[str] = "stabilizing data link"
    messages: ClassVar[tuple[type[Message], ...]] = (Frame, FrameAck)

    def node(self, index: int, size: int) -> Node:
        """Return a new node."""
        return StableDataLinkNode(self.timeout)

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return the figures QUANTAS writes after every round."""
        satisfied, said = recorded_count(run, "satisfied", rounds), recorded_count(run, "said", rounds)
        return {
            "utility": (100.0 * satisfied / np.maximum(said, 1)).tolist(),
            "messages": said.tolist(),
            "throughput": (satisfied / run.size).tolist(),
        }
