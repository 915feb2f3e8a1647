"""QUANTAS's example: every node greets all its neighbours in every round and writes down what it hears.

A second kind of node greets five times a round.

Source: the ExamplePeer and ExamplePeer2 of QUANTAS 2 (J. Oglio, M. Nesterenko, arXiv 2605.08547, 2026).

Differs from the source:
1. The text of a greeting is made when the log is written; the message holds what it is made from.
2. As in its code, parameters have no effect: the call that should read them is never made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.protocols.quantas.series import QuantasAlgorithm, algorithm_nodes, running_total
from wavetank.settings import setting
from wavetank.sim.node import Message, Node
from wavetank.sim.simulation import Run

_OF_SECOND_KIND = 5


class Greeting(Message, frozen=True):
    """A greeting; ``repeat`` counts those of one round by the second kind, and is -1 for the first."""

    sequence: int
    sent: float
    repeat: int


class Greeter(Node):
    """A node that greets.

    Attributes
    ----------
    sent : int
        Messages sent so far.
    heard : list of (round, sender, greeting)
    rounds : list of (round, messages sent in it)
    """

    def __init__(self, *, second: bool) -> None:
        self.second = second
        self.sent = 0
        self.heard: list[tuple[float, int, Greeting]] = []
        self.rounds: list[tuple[float, int]] = []

    def start(self) -> None:
        """Greet from round 1 on."""
        self.context.set_timer("round", 1)

    def receive(self, sender: int, message: Any) -> None:
        """Write down a greeting."""
        self.heard.append((self.context.now, sender, message))

    def timer(self, name: str) -> None:
        """Greet everyone."""
        now = self.context.now
        neighbours = len(self.context.peers)
        for repeat in range(_OF_SECOND_KIND) if self.second else (-1,):
            self.context.broadcast(Greeting(self.sent + max(repeat, 0), now, repeat))
        said = neighbours * (_OF_SECOND_KIND if self.second else 1)
        self.sent += said
        self.rounds.append((now, said))
        self.context.set_timer("round", 1)


@dataclass(frozen=True, kw_only=True)
class Greetings(QuantasAlgorithm):
    """Everyone greets everyone, every round."""

    second: bool = setting(False, says="Whether all nodes greet five times per round")
    where: ClassVar[str] = "greetings"
    messages: ClassVar[tuple[type[Message], ...]] = (Greeting,)

    def node(self, index: int, size: int) -> Node:
        """Return a new node."""
        return Greeter(second=self.second)

    def max_faults(self, size: int) -> int:
        """Return ``size``: nothing can go wrong."""
        return size

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return what QUANTAS's example writes."""
        nodes = list(enumerate(algorithm_nodes(run)))
        said = [entry for _, node in nodes for entry in node.rounds]
        sent = running_total([at for at, _ in said], [count for _, count in said], rounds).astype(int).tolist()
        heard = sorted(
            ((at, to, place, sender, greeting) for to, node in nodes
             for place, (at, sender, greeting) in enumerate(node.heard)),
            key=lambda entry: entry[:3],
        )  # fmt: skip
        found: dict[str, list[Any]] = {
            "performs computation": np.tile(np.arange(run.size), rounds).tolist(),
            "sentMessages": sent,
        }
        if heard:
            found["receivedMessages"] = [_entry(at, to, sender, each) for at, to, _, sender, each in heard]
        if not self.second:
            found["finalMessageCount"] = sent[-1:]
        return found


def _entry(at: float, to: int, sender: int, greeting: Greeting) -> dict[str, Any]:
    contents: dict[str, Any] = {
        "type": "greeting",
        "from": sender,
        "roundSent": int(greeting.sent),
        "message": f"Message: Hello From {sender}. Sent on round: {greeting.sent:.0f}",
        "sequence": greeting.sequence,
    }
    if greeting.repeat >= 0:
        contents["repeatIndex"] = greeting.repeat
    return {"to": to, "from": sender, "receivedRound": int(at), "contents": contents}
