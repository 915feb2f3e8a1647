"""Algorithms that the tests of the sockets run; a module of its own, so that other processes can import it."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.sim.node import Message, Node, Snapshot, disagreement


class Ball(Message, frozen=True):
    """Goes back and forth."""

    hops: int
    load: Any = None


class Inner(Message, frozen=True):
    """A message inside another."""

    what: Any


class Parcel(Message, frozen=True):
    """Holds messages."""

    inside: tuple[Inner, ...]
    best: int = 0


class _PingNode(Node):
    def __init__(self, index: int, balls: int, hops: int) -> None:
        self.index = index
        self.balls = balls
        self.hops = hops
        self.seen: list[int] = []

    def start(self) -> None:
        if self.index % 2 == 0:
            for _ in range(self.balls):
                self.context.send(self.index + 1, Ball(0, ("a", (1, None))))

    def receive(self, sender: int, message: Ball) -> None:
        self.seen.append(message.hops)
        if message.hops == self.hops:
            self.context.decide(message.load)
        else:
            self.context.send(sender, Ball(message.hops + 1, message.load))


@dataclass(frozen=True, kw_only=True)
class PingPong:
    """Neighbours 2k and 2k + 1 play with some balls."""

    messages: ClassVar[tuple[type[Message], ...]] = (Ball,)
    balls: int = 1
    hops: int = 9

    def node(self, index: int, size: int) -> Node:
        return _PingNode(index, self.balls, self.hops)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return ""


class _CounterNode(Node):
    def start(self) -> None:
        self.count = self.context.load("count", 0)
        self.context.record("started at", self.count)

    def request(self, number: int, command: Any) -> None:
        if command == "fail":
            raise RuntimeError("this node was asked to fail")
        if command == "large":
            self.context.broadcast(Ball(0, "x" * 2_000_000))
            return
        if command == "function":
            self.context.save("function", print)
            return
        if command != "read":
            self.count += 1
            self.context.save("count", self.count)
        self.context.reply(number, (self.context.id, self.count))

    def receive(self, sender: int, message: Ball) -> None:
        self.context.record("received")


@dataclass(frozen=True, kw_only=True)
class DurableCounter:
    """Every node counts what it is asked to, and keeps the count."""

    messages: ClassVar[tuple[type[Message], ...]] = (Ball,)

    def node(self, index: int, size: int) -> Node:
        return _CounterNode()

    def max_faults(self, size: int) -> int:
        return size - 1

    def violation(self, snapshot: Snapshot) -> str:
        return disagreement(snapshot)


class _TalkerNode(Node):
    def __init__(self, size: int) -> None:
        self.heard: dict[int, list[int]] = {}
        self.said = 0
        self.size = size

    def start(self) -> None:
        self.context.set_timer("talk", 0.2)

    def timer(self, name: str) -> None:
        self.context.broadcast(Ball(self.said))
        self.said += 1
        self.context.set_timer("talk", 0.2)

    def receive(self, sender: int, message: Ball) -> None:
        self.heard.setdefault(sender, []).append(message.hops)
        if message.hops >= 50:
            self.context.decide(50, sender)


@dataclass(frozen=True, kw_only=True)
class Talkers:
    """Everyone says 0, 1, 2, ... to everyone."""

    messages: ClassVar[tuple[type[Message], ...]] = (Ball, Parcel)

    def node(self, index: int, size: int) -> Node:
        return _TalkerNode(size)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        for node in snapshot.nodes:
            for sender, numbers in getattr(node, "heard", {}).items():
                if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
                    return f"what node {sender} said came out of order"
        return ""


class _QuitterNode(Node):
    def __init__(self, index: int) -> None:
        self.index = index

    def start(self) -> None:
        self.context.decide("here", self.index)
        if self.index == 1:
            self.context.set_timer("quit", 20)

    def timer(self, name: str) -> None:
        os._exit(7)


@dataclass(frozen=True, kw_only=True)
class Quitters:
    """Everybody decides; then the process of node 1 ends by itself, as no node does."""

    messages: ClassVar[tuple[type[Message], ...]] = (Ball,)

    def node(self, index: int, size: int) -> Node:
        return _QuitterNode(index)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return ""
