"""The alternating bit protocol as QUANTAS runs it: send, wait for the acknowledgement, send again when it is late.

Node 0 numbers its messages and goes on when its number is acknowledged; node 1 acknowledges what it hears, and repeats
its last acknowledgement when it hears nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.quantas.series import QuantasAlgorithm
from wavetank.settings import setting
from wavetank.sim.node import Message, Node
from wavetank.sim.simulation import Run


class Data(Message, frozen=True):
    """A message of that number."""

    number: int


class Ack(Message, frozen=True):
    """An acknowledgement of that number."""

    number: int


class AlternatingBitNode(Node):
    """The sender (node 0), the receiver (node 1), or a bystander.

    Attributes
    ----------
    number : int
        Of the message under way.
    heard : float
        Round since which the patience counts.
    satisfied, sent : int
        Messages acknowledged, messages sent.
    """

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout
        self.number = 1
        self.heard = 0.0
        self.satisfied = 0
        self.sent = 0
        self.armed = False

    def start(self) -> None:
        """Send the first message in round 1; become impatient after the timeout."""
        if self.context.id == 0:
            self.context.set_timer("first", 1)
        self._arm()

    def _arm(self) -> None:
        if self.timeout < math.inf and not self.armed:
            self.armed = True
            self.context.set_timer("late", max(self.heard + self.timeout + 1 - self.context.now, 1))

    def receive(self, sender: int, message: Any) -> None:
        """Acknowledge data; send the next message when this one is acknowledged."""
        if isinstance(message, Ack):
            if message.number == self.number:
                self.heard = self.context.now
                self.satisfied += 1
                self.context.decide(self.number, self.number)
                self.number += 1
                self._say(1, Data(self.number))
        elif isinstance(message, Data):
            self.heard = self.context.now
            self.number = message.number
            self._say(0, Ack(message.number))

    def timer(self, name: str) -> None:
        """Begin, or repeat what was said last."""
        if name == "first":
            self._say(1, Data(self.number))
            return
        self.armed = False
        # While the first message is being sent nobody is impatient.
        if self.heard + self.timeout < self.context.now and not (self.context.id == 0 and self.sent == 0):
            self.heard = self.context.now
            if self.context.id == 0:
                self._say(1, Data(self.number))
            else:
                self._say(0, Ack(self.number))
        self._arm()

    def _say(self, to: int, message: Message) -> None:
        self.sent += 1
        if to in self.context.peers:
            self.context.send(to, message)


@dataclass(frozen=True, kw_only=True)
class AlternatingBit(QuantasAlgorithm):
    """The alternating bit protocol between nodes 0 and 1."""

    timeout: int = setting(4, unit="rounds", says="Silence after which a node repeats its message; 0: never", low=0)
    where: ClassVar[str] = "alternating bit"
    messages: ClassVar[tuple[type[Message], ...]] = (Data, Ack)

    def node(self, index: int, size: int) -> Node:
        """Return a new node."""
        return AlternatingBitNode(self.timeout or math.inf)  # type: ignore[arg-type]

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return the figures QUANTAS writes in the last round."""
        nodes = [node for node in run.nodes if isinstance(node, AlternatingBitNode)]
        satisfied, sent = sum(node.satisfied for node in nodes), sum(node.sent for node in nodes)
        return {
            "utility": [100.0 * satisfied / sent if sent else 0.0],
            "messages": [float(sent)],
            "throughput": [float(satisfied)],
        }
