"""Faulty nodes for algorithms whose unsigned messages say which path they took.

They lie about values, about paths as far as a path can be lied about, or not at all to some.

Source: D. Sakavalas, L. Tseng, N. Vaidya, "Asynchronous Byzantine Approximate Consensus in Directed Networks", PODC
2020, for what a faulty node can do: anything but send in another's name.

Differs from the source:
1. The library is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.adversaries import Adversary, Liar, Pretending, selective
from wavetank.protocols.digraphs.approximate import ApproximateConsensus, Choice, Interval, ways
from wavetank.protocols.digraphs.routes import Path
from wavetank.protocols.digraphs.unsigned import Report, UnsignedConsensus, timetable
from wavetank.sim.faults import Behaviour, Fault, FaultyNode, SelectiveRelay, Sends
from wavetank.sim.node import Message

# Far from every input, yet small enough to be passed on.
EXTREME = 2**50


def with_value(message: Message, value: int) -> Message:
    """Return the message with another value; an interval becomes this point."""
    if isinstance(message, Interval):
        return msgspec.structs.replace(message, low=value, high=value)
    return msgspec.structs.replace(message, value=value)


def _drawn(node: FaultyNode, message: Message) -> int:
    """Draw a value that might do harm: of the range of inputs, its ends above all, or far outside."""
    rng = node.context.rng
    if isinstance(message, Report):
        return rng.below(2)
    inputs = _approximate(node).inputs or (0,)
    scale = 2**message.round if isinstance(message, Interval | Choice) else 1
    low, high = min(inputs) * scale, max(inputs) * scale
    return rng.choice((low, high, rng.between(low, high), low - 1, high + 1, EXTREME, -EXTREME))


@dataclass
class _TwoFaced(Behaviour):
    faces: dict[int, bool] = field(default_factory=dict)

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if to not in self.faces:
            self.faces[to] = node.context.rng.chance(0.5)
        if isinstance(message, Report):
            return ((to, with_value(message, int(self.faces[to]))),)
        inputs = _approximate(node).inputs or (0,)
        end = (max if self.faces[to] else min)(inputs)
        scale = 2**message.round if isinstance(message, Interval | Choice) else 1
        return ((to, with_value(message, end * scale)),)


class TwoFacedPaths(Liar):
    """Sends one end of the range to some nodes and the other to the rest, as its own value and in all it passes on."""

    acts = _TwoFaced


class _RandomLies(Behaviour):
    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if node.context.rng.chance(0.5):
            return ((to, message),)
        return ((to, with_value(message, _drawn(node, message))),)


class RandomLies(Liar):
    """Changes every second value, its own and those it passes on, to each neighbour in another way."""

    acts = _RandomLies


class _ExtremeValues(Behaviour):
    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if isinstance(message, Report):
            return ((to, with_value(message, to % 2)),)
        if isinstance(message, Interval):
            return ((to, msgspec.structs.replace(message, low=-EXTREME, high=EXTREME)),)
        return ((to, with_value(message, EXTREME if to % 2 else -EXTREME)),)


class ExtremeValues(Liar):
    """Says that everything is far too large, or far too small, and the opposite to every second neighbour."""

    acts = _ExtremeValues


@dataclass(frozen=True, kw_only=True)
class InventedPaths(Fault):
    """Sends values that nobody said, over paths that lead through it at the end, before the true ones can come.

    Parameters
    ----------
    count : int
        Invented messages for each one it should send.
    """

    count: int = 2

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _InventedPaths(self.count)


@dataclass
class _InventedPaths(Behaviour):
    count: int

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        found = []
        for _ in range(self.count):
            invented = self._invented(node, to, message)
            if invented is not None:
                found.append((to, with_value(invented, _drawn(node, invented))))
        return (*found, (to, message))

    def _invented(self, node: FaultyNode, to: int, message: Message) -> Message | None:
        rng = node.context.rng
        if isinstance(message, Report):
            algorithm = node.algorithm
            if not isinstance(algorithm, UnsignedConsensus):
                raise _unknown(node)
            steps = timetable(algorithm.links, node.size, algorithm.faults)
            number = rng.between(message.step, len(steps) - 1)
            path = self._path(node, to, steps[number].onward)
            return None if path is None else Report(number, path, message.value)
        approximate = _approximate(node)
        path = self._path(node, to, ways(approximate.links, node.size, approximate.faults).onward)
        return None if path is None else msgspec.structs.replace(message, path=path)

    def _path(self, node: FaultyNode, to: int, onward: Mapping[Path, tuple[int, ...]]) -> Path | None:
        # Only paths that the receiver waits for can do harm.
        paths = [path for path, following in onward.items() if path[-1] == node.index and to in following]
        return node.context.rng.choice(paths) if paths else None


def _approximate(node: FaultyNode) -> ApproximateConsensus:
    if not isinstance(node.algorithm, ApproximateConsensus):
        raise _unknown(node)
    return node.algorithm


def _unknown(node: FaultyNode) -> BadValueError:
    return BadValueError(
        "This adversary knows the unsigned algorithms of directed networks alone.", given=type(node.algorithm).__name__
    )


PATH_ADVERSARIES: Mapping[str, Adversary] = {
    "silent": lambda members, graph, draws: [SelectiveRelay(members=members, to=())],
    "selective-relay": selective,
    "pretending": lambda members, graph, draws: [Pretending(members=members)],
    "two-faced": lambda members, graph, draws: [TwoFacedPaths(members=members)],
    "random-lies": lambda members, graph, draws: [RandomLies(members=members)],
    "extreme-values": lambda members, graph, draws: [ExtremeValues(members=members)],
    "invented-paths": lambda members, graph, draws: [InventedPaths(members=members)],
    "all-together": lambda members, graph, draws: [
        TwoFacedPaths(members=members),
        InventedPaths(members=members),
        *selective(members, graph, draws),
    ],
}
