"""Byzantine nodes for broadcast protocols: twins that live two lives, and what can be made of simpler faults.

A twin is two copies of one node under one identity.  Each copy follows the protocol, hears everything, and speaks to
its own part of the others; from some broadcast on the second is given other payloads.  So a twin that sends equivocates
on a whole chain, and one that votes vouches for both, without a line about any protocol.

Source: S. Bano et al., "Twins: BFT Systems Made Robust", OPODIS 2021.

Differs from the source:
1. Both copies hear all messages; only what they say is split.
2. Some nodes hear both copies, and parts are drawn anew for each run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wavetank.protocols.broadcast.accounting import payload_of
from wavetank.sim.faults import Behaviour, Corruption, Fault, FaultyContext, FaultyNode, Replay
from wavetank.sim.faults import SelectiveRelay as Selective
from wavetank.sim.node import Context, Message, Node
from wavetank.sim.rng import Draws
from wavetank.sim.simulation import Scheduler

_SECOND = "second:"


@dataclass(frozen=True, kw_only=True)
class Twins(Fault):
    """Runs two copies of the node, each of which speaks to its own part of the others.

    Parameters
    ----------
    first, second : tuple of int
        Who hears the first copy, and the second; members hear both.
    fork : int
        From which of its broadcasts on the second copy sends other payloads; 0 for all.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    fork: int = 0

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Splitting(self)


@dataclass
class _Splitting(Behaviour):
    fault: Twins

    def start(self, node: FaultyNode) -> None:
        node.inner = _Pair(node, self.fault)


class _Pair(Node):
    """Two copies of a node."""

    def __init__(self, node: FaultyNode, fault: Twins) -> None:
        together = frozenset(fault.members)
        self.copies = [node.algorithm.node(node.index, node.size) for _ in range(2)]
        self.context = FaultyContext(node.context, node)
        self.copies[0].context = _Side(self.context, together | set(fault.first), "")
        self.copies[1].context = _Side(self.context, together | set(fault.second), _SECOND)
        self.fork = fault.fork
        self.asked = 0

    def start(self) -> None:
        for copy in self.copies:
            copy.start()

    def receive(self, sender: int, message: Any) -> None:
        for copy in self.copies:
            copy.receive(sender, message)

    def timer(self, name: str) -> None:
        self.copies[name.startswith(_SECOND)].timer(name.removeprefix(_SECOND))

    def request(self, number: int, command: Any) -> None:
        self.asked += 1
        self.copies[0].request(number, command)
        other = ("broadcast", b"another " + payload_of(command)) if self.asked >= self.fork else command
        self.copies[1].request(number, other)


class _Side:
    """The outside as one copy sees it."""

    def __init__(self, outside: Context, hearers: frozenset[int], mark: str) -> None:
        self._outside = outside
        self._hearers = hearers
        self._mark = mark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outside, name)

    def send(self, to: int, message: Message) -> None:
        if to in self._hearers:
            self._outside.send(to, message)

    def broadcast(self, message: Message) -> None:
        for to in self._outside.peers:
            self.send(to, message)

    def set_timer(self, name: str, after: float) -> None:
        self._outside.set_timer(self._mark + name, after)

    def cancel_timer(self, name: str) -> None:
        self._outside.cancel_timer(self._mark + name)

    def decide(self, value: Any, instance: Any = 0) -> None:
        # A faulty node's outputs mean nothing, least of all those of two copies.
        pass

    def reply(self, number: int, result: Any) -> None:
        pass


class Favour(Scheduler):
    """Delays what nodes of different parts say to each other, for long but not for ever.

    Parameters
    ----------
    parts : tuple of int
        The part of each node.
    delay_rounds : float
        Added to what crosses from part to part.
    """

    def __init__(self, parts: tuple[int, ...], delay_rounds: float) -> None:
        self.parts = parts
        self.delay_rounds = delay_rounds

    def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
        """Return the added delay in rounds."""
        return self.delay_rounds if self.parts[sender] != self.parts[to] else 0.0


def _silent(members: tuple[int, ...], size: int, draws: Draws) -> list[Fault]:
    return [Selective(members=members, to=())]


def _twins(members: tuple[int, ...], size: int, draws: Draws) -> list[Fault]:
    first, second = [], []
    for node in range(size):
        side = draws.below(8)
        # One in eight hears both, one in eight neither.
        if side < 4:
            first.append(node)
        if 3 <= side < 7:
            second.append(node)
    return [Twins(members=members, first=tuple(first), second=tuple(second), fork=draws.between(1, 3))]


def _selective(members: tuple[int, ...], size: int, draws: Draws) -> list[Fault]:
    return [
        Selective(members=(member,), to=tuple(node for node in range(size) if draws.chance(0.5))) for member in members
    ]


def _whisper(members: tuple[int, ...], size: int, draws: Draws) -> list[Fault]:
    """Everything said to a single node, so that it may deliver alone."""
    return [Selective(members=members, to=(draws.below(size), *members))]


def _corrupt(members: tuple[int, ...], size: int, draws: Draws) -> list[Fault]:
    return [Corruption(members=members, probability=0.5), Replay(members=members, probability=0.3)]


def _together(members: tuple[int, ...], size: int, draws: Draws) -> list[Fault]:
    kinds = (_twins, _whisper, _selective, _corrupt)
    return [*_twins(members, size, draws), *draws.choice(kinds[1:])(members, size, draws)]


ADVERSARIES: Mapping[str, Callable[[tuple[int, ...], int, Draws], list[Fault]]] = {
    "silent": _silent,
    "twins": _twins,
    "selective": _selective,
    "whisper": _whisper,
    "corrupt": _corrupt,
    "together": _together,
}
