"""Small algorithms for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.sim.node import Message, Node, Snapshot, disagreement


class Value(Message, frozen=True):
    """A number that spreads."""

    value: int


class _FloodNode(Node):
    def __init__(self, value: int, rounds: int) -> None:
        self.best = value
        self.rounds = rounds

    def start(self) -> None:
        self.context.broadcast(Value(self.best))
        self.context.set_timer("end", self.rounds)

    def receive(self, sender: int, message: Value) -> None:
        self.context.record("received")
        if message.value > self.best:
            self.best = message.value
            self.context.broadcast(message)

    def timer(self, name: str) -> None:
        self.context.decide(self.best)


@dataclass(frozen=True, kw_only=True)
class Flood:
    """Everyone learns the greatest number."""

    messages: ClassVar[tuple[type[Message], ...]] = (Value,)
    rounds: int = 10

    def node(self, index: int, size: int) -> Node:
        return _FloodNode(index * 7 % size, self.rounds)

    def max_faults(self, size: int) -> int:
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        return disagreement(snapshot)


class _CounterNode(Node):
    def __init__(self) -> None:
        self.seen = 0

    def start(self) -> None:
        self.seen = self.context.load("seen", 0)
        self.context.set_timer("tick", 1)

    def timer(self, name: str) -> None:
        self.context.broadcast(Value(self.seen))
        self.context.set_timer("tick", 1)

    def receive(self, sender: int, message: Value) -> None:
        self.seen += 1
        self.context.save("seen", self.seen)

    def request(self, number: int, command: Any) -> None:
        self.context.reply(number, (command, self.seen))


@dataclass(frozen=True, kw_only=True)
class Counter:
    """Everyone sends in every round, and counts durably what it gets."""

    messages: ClassVar[tuple[type[Message], ...]] = (Value,)

    def node(self, index: int, size: int) -> Node:
        return _CounterNode()

    def max_faults(self, size: int) -> int:
        return size

    def violation(self, snapshot: Snapshot) -> str:
        return ""
