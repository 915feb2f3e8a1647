"""Faults that are attached to nodes without touching the algorithm.

A faulty node is a node around a node: it stands between the algorithm and its context, so the same fault works in
rounds, as events, on sockets and in the explorer.  Faults compose: what one sends, the next one may change.

Source: the fault layer of QUANTAS 2 (J. Oglio, M. Nesterenko, arXiv 2605.08547, 2026) with its four hooks.

Differs from the source:
1. All faults of a node apply, in the order in which they are listed; there the first that acts replaces the others.
2. A broadcast passes through a fault as the unicasts it is made of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from wavetank.errors import BadValueError
from wavetank.sim.node import Algorithm, Context, Message, Node
from wavetank.sim.rng import Draws

# Timers of faults share the node's; no algorithm may begin a name with this.
_MARK = "fault:"

Sends = Iterable[tuple[int, Message]]


class Behaviour:
    """What one fault does to one node; its fields are plain values and part of the node's state."""

    def start(self, node: FaultyNode) -> None:
        """Called before the node starts."""

    def side(self, node: FaultyNode) -> FaultyContext | None:
        """Return what the algorithm sees in place of the usual :class:`FaultyContext`, or None; the last one counts."""
        return None

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        """Return what is sent in place of a message; by default the message."""
        return ((to, message),)

    def receives(self, node: FaultyNode, sender: int, message: Message) -> bool:
        """Return whether the node sees the message."""
        return True

    def timer(self, node: FaultyNode, name: str) -> None:
        """Called when a timer of this fault runs out (see :meth:`FaultyNode.set_fault_timer`)."""


@dataclass(frozen=True, kw_only=True)
class Fault(ABC):
    """Base of all faults.

    Parameters
    ----------
    members : tuple of int
        The nodes that have it.
    """

    members: tuple[int, ...]

    # Whether the members may do anything at all; a node that is only silent or slow is still honest.
    byzantine: ClassVar[bool] = True

    @abstractmethod
    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member.

        Parameters
        ----------
        index : int
            The member's id.
        pool : dict
            Shared by all members that run in one process: what colluding nodes know together.
        """


def byzantine_members(faults: Sequence[Fault]) -> frozenset[int]:
    """Return the nodes that have a Byzantine fault."""
    return frozenset(member for fault in faults if fault.byzantine for member in fault.members)


def attached(algorithm: Algorithm, size: int, faults: Sequence[Fault]) -> list[Node]:
    """Return all nodes, those with faults wrapped.

    Raises
    ------
    BadValueError
        For a member that does not exist.
    """
    pools: list[dict[str, Any]] = [{} for _ in faults]
    for fault in faults:
        for member in fault.members:
            if not 0 <= member < size:
                raise BadValueError("A fault must name existing nodes.", given=member, allowed=f"0 to {size - 1}")
    return [attach(algorithm, index, size, faults, pools=pools) for index in range(size)]


def attach(
    algorithm: Algorithm,
    index: int,
    size: int,
    faults: Sequence[Fault],
    *,
    pools: Sequence[dict[str, Any]] | None = None,
) -> Node:
    """Return one node, wrapped when it has faults.

    Parameters
    ----------
    algorithm : Algorithm
    index, size : int
    faults : sequence of Fault
        Of the whole system.
    pools : sequence of dict, optional
        One for each fault; what the members in this process share.
    """
    behaviours = [
        fault.behaviour(index, {} if pools is None else pools[place])
        for place, fault in enumerate(faults)
        if index in fault.members
    ]
    if not behaviours:
        return algorithm.node(index, size)
    return FaultyNode(algorithm, index, size, behaviours)


class FaultyNode(Node):
    """A node around a node.

    Attributes
    ----------
    inner : Node
        The algorithm's own.
    behaviours : list of Behaviour
    down : bool
        Whether it is crashed: it sees nothing and loses what it has not saved.
    """

    def __init__(self, algorithm: Algorithm, index: int, size: int, behaviours: list[Behaviour]) -> None:
        self.algorithm = algorithm
        self.index = index
        self.size = size
        self.behaviours = behaviours
        self.inner = algorithm.node(index, size)
        self.down = False
        # Timers the inner node may have set: they end with it.
        self.names: set[str] = set()
        self._outside: Context | None = None

    @property
    def context(self) -> Context:
        """The outside; setting it gives the inner node its own side."""
        if self._outside is None:
            raise AttributeError("context")
        return self._outside

    @context.setter
    def context(self, outside: Context) -> None:
        """Give the inner node its own side of the outside."""
        self._outside = outside
        self.inner.context = self._side()

    def start(self) -> None:
        """Start the faults, then the node."""
        for behaviour in self.behaviours:
            behaviour.start(self)
        if not self.down:
            self.inner.start()

    def receive(self, sender: int, message: Any) -> None:
        """Let a message through to the node if no fault minds."""
        if self.down:
            return
        for behaviour in self.behaviours:
            if not behaviour.receives(self, sender, message):
                return
        self.inner.receive(sender, message)

    def timer(self, name: str) -> None:
        """Wake the fault or the node that set the timer."""
        if name.startswith(_MARK):
            place, _, rest = name.removeprefix(_MARK).partition(":")
            self.behaviours[int(place)].timer(self, rest)
        elif not self.down:
            self.inner.timer(name)

    def request(self, number: int, command: Any) -> None:
        """Pass a request on."""
        if not self.down:
            self.inner.request(number, command)

    def crash(self) -> None:
        """Stop the node; what it has not saved is lost."""
        self.down = True
        for name in sorted(self.names):
            self.context.cancel_timer(name)
        self.names.clear()

    def recover(self) -> None:
        """Start a new node in the place of the crashed one."""
        self.down = False
        self.inner = self.algorithm.node(self.index, self.size)
        self.inner.context = self._side()
        self.inner.start()

    def _side(self) -> FaultyContext:
        sides = [side for behaviour in self.behaviours if (side := behaviour.side(self)) is not None]
        return sides[-1] if sides else FaultyContext(self.context, self)

    def set_fault_timer(self, behaviour: Behaviour, name: str, after: float) -> None:
        """Have ``behaviour.timer`` called, also while the node is down."""
        place = next(place for place, each in enumerate(self.behaviours) if each is behaviour)
        self.context.set_timer(f"{_MARK}{place}:{name}", after)

    def cancel_fault_timer(self, behaviour: Behaviour, name: str) -> None:
        """Forget a timer of :meth:`set_fault_timer`."""
        place = next(place for place, each in enumerate(self.behaviours) if each is behaviour)
        self.context.cancel_timer(f"{_MARK}{place}:{name}")

    def transmit(self, to: int, message: Message) -> None:
        """Send what the faults make of a message."""
        if self.down:
            return
        sends: Sends = ((to, message),)
        for behaviour in self.behaviours:
            sends = [each for one in sends for each in behaviour.sends(self, *one)]
        for each in sends:
            self.context.send(*each)


class FaultyContext:
    """The side of a faulty node that its algorithm sees."""

    def __init__(self, outside: Context, node: FaultyNode) -> None:
        self._outside = outside
        self._node = node

    @property
    def id(self) -> int:
        """See Context."""
        return self._outside.id

    @property
    def size(self) -> int:
        """See Context."""
        return self._outside.size

    @property
    def peers(self) -> Sequence[int]:
        """See Context."""
        return self._outside.peers

    @property
    def now(self) -> float:
        """See Context."""
        return self._outside.now

    @property
    def rng(self) -> Draws:
        """See Context."""
        return self._outside.rng

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        self._node.transmit(to, message)

    def broadcast(self, message: Message) -> None:
        """See Context."""
        for to in self._outside.peers:
            self._node.transmit(to, message)

    def set_timer(self, name: str, after: float) -> None:
        """See Context."""
        self._node.names.add(name)
        self._outside.set_timer(name, after)

    def cancel_timer(self, name: str) -> None:
        """See Context."""
        self._outside.cancel_timer(name)

    def save(self, key: str, value: Any) -> None:
        """See Context."""
        self._outside.save(key, value)

    def load(self, key: str, default: Any = None) -> Any:
        """See Context."""
        return self._outside.load(key, default)

    def decide(self, value: Any, instance: Any = 0) -> None:
        """See Context."""
        self._outside.decide(value, instance)

    def reply(self, number: int, result: Any) -> None:
        """See Context."""
        self._outside.reply(number, result)

    def record(self, metric: str, value: float = 1.0) -> None:
        """See Context."""
        self._outside.record(metric, value)


@dataclass(frozen=True, kw_only=True)
class Crash(Fault):
    """Down from ``at`` on, and back ``down_for`` rounds later with what was saved.

    Parameters
    ----------
    at : float
        Round of the crash; 0 for a node that never starts.
    down_for : float or None
        Rounds until it is started again; None for never.
    every : float or None
        Rounds from crash to crash; None for a single one.
    """

    at: float = 0.0
    down_for: float | None = None
    every: float | None = None
    byzantine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_times(at=self.at, down_for=self.down_for)
        if self.every is not None and (self.down_for is None or self.every <= self.down_for):
            raise BadValueError("A node recovers before it crashes again.", given=self.every, allowed="> down_for")

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Crashing(self.at, self.down_for, self.every)


@dataclass
class _Crashing(Behaviour):
    at: float
    down_for: float | None
    every: float | None

    def start(self, node: FaultyNode) -> None:
        if self.at <= 0:
            self.timer(node, "down")
        else:
            node.set_fault_timer(self, "down", self.at)

    def timer(self, node: FaultyNode, name: str) -> None:
        if name == "up":
            node.recover()
            return
        node.crash()
        if self.down_for is not None:
            node.set_fault_timer(self, "up", self.down_for)
        if self.every is not None:
            node.set_fault_timer(self, "down", self.every)


@dataclass(frozen=True, kw_only=True)
class RandomCrashes(Fault):
    """Crashes with the given odds in every round it is up, and recovers after a fixed time.

    Parameters
    ----------
    odds : float
        Probability of a crash in a round.
    down_for : float
        Rounds until it is started again.
    """

    odds: float = 0.01
    down_for: float = 10.0
    byzantine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.odds <= 1 or not self.down_for > 0:
            raise BadValueError("Odds lie in (0, 1], and a crash takes time.", given=(self.odds, self.down_for))

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _RandomlyCrashing(self.odds, self.down_for)


@dataclass
class _RandomlyCrashing(Behaviour):
    odds: float
    down_for: float

    def start(self, node: FaultyNode) -> None:
        self._arm(node)

    def _arm(self, node: FaultyNode) -> None:
        rounds = 1
        while not node.context.rng.chance(self.odds) and rounds < 1_000_000:
            rounds += 1
        node.set_fault_timer(self, "down", rounds)

    def timer(self, node: FaultyNode, name: str) -> None:
        if name == "up":
            node.recover()
            self._arm(node)
            return
        node.crash()
        node.set_fault_timer(self, "up", self.down_for)


@dataclass(frozen=True, kw_only=True)
class Omission(Fault):
    """Loses messages.

    Parameters
    ----------
    sending, receiving : float
        Probability that a message the node sends, or should see, is lost.
    """

    sending: float = 1.0
    receiving: float = 0.0
    byzantine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_probability(self.sending, "sending")
        _check_probability(self.receiving, "receiving")

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Omitting(self.sending, self.receiving)


@dataclass
class _Omitting(Behaviour):
    sending: float
    receiving: float

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        return () if _happens(node, self.sending) else ((to, message),)

    def receives(self, node: FaultyNode, sender: int, message: Message) -> bool:
        return not _happens(node, self.receiving)


def _check_probability(value: float, where: str) -> None:
    if not 0 <= value <= 1:
        raise BadValueError("A probability lies in [0, 1].", given=value, where=where)


def _check_times(*, at: float = 0.0, down_for: float | None = None, rounds: float | None = None) -> None:
    if not at >= 0:
        raise BadValueError("A crash happens after the start.", given=at, allowed="at >= 0")
    for name, value in (("down_for", down_for), ("rounds", rounds)):
        if value is not None and not value > 0:
            raise BadValueError(
                "The duration of a fault must be positive.", given=value, allowed="more than 0 rounds", where=name
            )


def _happens(node: FaultyNode, probability: float) -> bool:
    # Certain things need no draw, so that a silent node's stream is that of a live one.
    return probability > 0 and (probability >= 1 or node.context.rng.chance(probability))


@dataclass(frozen=True, kw_only=True)
class Delay(Fault):
    """Sends everything later.

    Parameters
    ----------
    rounds : float
        How much later.
    """

    rounds: float = 1.0
    byzantine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_times(rounds=self.rounds)

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Delaying(self.rounds)


@dataclass
class _Delaying(Behaviour):
    rounds: float
    held: dict[int, list[tuple[int, Message]]] = field(default_factory=dict)
    count: int = 0
    # The batch that is being filled, and since when.
    since: float = -1.0

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if self.since != node.context.now or self.count not in self.held:
            self.since = node.context.now
            self.count += 1
            self.held[self.count] = []
            node.set_fault_timer(self, str(self.count), self.rounds)
        self.held[self.count].append((to, message))
        return ()

    def timer(self, node: FaultyNode, name: str) -> None:
        for to, message in self.held.pop(int(name)):
            if not node.down:
                node.context.send(to, message)


@dataclass(frozen=True, kw_only=True)
class SelectiveRelay(Fault):
    """Sends to some nodes and keeps silent towards the others.

    Parameters
    ----------
    to : tuple of int
        Who hears from it.
    """

    to: tuple[int, ...]

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Relaying(self.to)


@dataclass
class _Relaying(Behaviour):
    to: Collection[int]

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        return ((to, message),) if to in self.to else ()


@dataclass(frozen=True, kw_only=True)
class Equivocation(Fault):
    """Sends some nodes one value and the others another.

    What the other thing is, the algorithm says with ``conflicting(message) -> Message``; without it, the first field of
    the message that can be altered is.

    Parameters
    ----------
    other : tuple of int or None
        The nodes that receive the other value; None for every second node.
    """

    other: tuple[int, ...] | None = None

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Equivocating(self.other)


@dataclass
class _Equivocating(Behaviour):
    other: Collection[int] | None

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if to % 2 == 0 if self.other is None else to not in self.other:
            return ((to, message),)
        conflicting = getattr(node.algorithm, "conflicting", None)
        return ((to, altered(message, 0) if conflicting is None else conflicting(message)),)


@dataclass(frozen=True, kw_only=True)
class Corruption(Fault):
    """Alters a field of the messages it sends.

    Parameters
    ----------
    probability : float
        That a message is altered.
    """

    probability: float = 1.0

    def __post_init__(self) -> None:
        _check_probability(self.probability, "probability")

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Corrupting(self.probability)


@dataclass
class _Corrupting(Behaviour):
    probability: float

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        if not _happens(node, self.probability):
            return ((to, message),)
        return ((to, altered(message, node.context.rng.below(max(len(message.__struct_fields__), 1)))),)


@dataclass(frozen=True, kw_only=True)
class Replay(Fault):
    """Sends messages of the past again.

    Parameters
    ----------
    probability : float
        That an old message follows a new one, to the same node.
    remembered : int
        Messages it remembers.
    """

    probability: float = 0.5
    remembered: int = 64

    def __post_init__(self) -> None:
        _check_probability(self.probability, "probability")
        if self.remembered < 1:
            raise BadValueError("A node replays what it remembers.", given=self.remembered, allowed="remembered >= 1")

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        return _Replaying(self.probability, self.remembered)


@dataclass
class _Replaying(Behaviour):
    probability: float
    remembered: int
    past: list[Message] = field(default_factory=list)

    def sends(self, node: FaultyNode, to: int, message: Message) -> Sends:
        again: list[tuple[int, Message]] = [(to, message)]
        if self.past and _happens(node, self.probability):
            again.append((to, node.context.rng.choice(self.past)))
        self.past.append(message)
        del self.past[: -self.remembered]
        return again


def altered(message: Message, first: int) -> Message:
    """Return the message with one field changed: the first that can be, looking from place ``first`` on.

    Numbers grow by one, truth values flip, bytes and text change their last character; tuples and messages are altered
    inside.  A message without such a field stays as it is.
    """
    fields = message.__struct_fields__
    for place in range(len(fields)):
        name = fields[(first + place) % len(fields)]
        value = getattr(message, name)
        other = _other(value)
        if other != value:
            return msgspec.structs.replace(message, **{name: other})
    return message


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1]) if value else value
    if isinstance(value, str):
        return value[:-1] + ("a" if value[-1] != "a" else "b") if value else value
    if isinstance(value, tuple) and value:
        changed = [_other(item) for item in value]
        place = next((place for place, item in enumerate(value) if changed[place] != item), None)
        return value if place is None else (*value[:place], changed[place], *value[place + 1 :])
    if isinstance(value, Message):
        return altered(value, 0)
    return value


FAULTS: Mapping[str, type[Fault]] = {
    "crash": Crash,
    "random-crashes": RandomCrashes,
    "omission": Omission,
    "delay": Delay,
    "selective-relay": SelectiveRelay,
    "equivocation": Equivocation,
    "corruption": Corruption,
    "replay": Replay,
}
