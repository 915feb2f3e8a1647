"""What states and steps of an explored instance are made of: events, actions, states of one node, a node's context."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from wavetank.check.explore.clock import NEVER_DUE, Clock, ClockWasRead
from wavetank.check.explore.environment import CHOICE, COUNTED
from wavetank.check.explore.values import copied
from wavetank.errors import BadValueError
from wavetank.sim.node import Message, Node, Opaque, no_link, not_later
from wavetank.sim.rng import Draws

DROPS, DUPLICATES, CRASHES, RECOVERIES, TIMEOUTS = range(len(COUNTED))


class Kind(IntEnum):
    """What an event does to its node."""

    RECEIVE = 0
    TIMER = 1
    REQUEST = 2
    CRASH = 3
    RECOVER = 4
    # A step that a Byzantine node may take and need not.
    CHOOSE = 5
    # One round passes, everywhere.
    TICK = 6


COST = {Kind.CRASH: CRASHES, Kind.RECOVER: RECOVERIES, Kind.TIMER: TIMEOUTS}

# What must happen sooner or later if it stays possible: no fault, no choice.
OBLIGED = (Kind.RECEIVE, Kind.TIMER, Kind.REQUEST, Kind.TICK)

# How an event takes place: it acts, or its message is lost or doubled.
ACT, DROP, DUPLICATE = range(3)


class Event(NamedTuple):
    """Something that can happen to one node.

    Parameters
    ----------
    kind : Kind
    node : int
    sender : int
        Of a message; -1 otherwise.
    what : object
        The message, the timer's name, or the number of the request.
    age : int
        Rounds since a message was sent, as far as they make a difference; 0 without a clock.
    """

    kind: Kind
    node: int
    sender: int = -1
    what: Any = None
    age: int = 0


class Action(NamedTuple):
    """One step of a run, in terms of the algorithm; lists of them are replayed.

    Parameters
    ----------
    kind : str
        ``deliver``, ``drop``, ``duplicate``, ``timer``, ``request``, ``crash``, ``recover``, ``choose`` or, with a
        clock, ``tick``: one round passes.
    node : int
        To whom it happens; the receiver of a message; -1 for all.
    sender, what, age
        Those of an :class:`Event`.
    """

    kind: str
    node: int
    sender: int = -1
    what: Any = None
    age: int = 0

    def __str__(self) -> str:
        if self.kind == "tick":
            return "a round passes"
        if self.kind in ("deliver", "drop", "duplicate"):
            aged = f", sent {self.age} rounds ago" if self.age else ""
            return f"{self.kind} {self.sender} -> {self.node}: {self.what!r}{aged}"
        return f"{self.kind} at {self.node}" + ("" if self.what is None else f": {self.what}")


NAMES = {kind: kind.name.lower() for kind in Kind} | {Kind.RECEIVE: "deliver"}
"""The kinds of events as kinds of actions."""


@dataclass(slots=True)
class Local:
    """One state of one node, with everything that belongs to it alone.

    Parameters
    ----------
    index : int
    node : Node
    timers : tuple of str
        Names, in order.
    saved : mapping
    up : bool
    given : int
        Requests it was given.
    draws : int
        Random numbers it drew.
    decisions : mapping
    broken : str
        What it did that no node may do.
    waits : tuple of (int, int)
        With a clock, rounds until each timer may and must run out.
    pending : tuple of int
        With a clock, rounds until each request that was not given may come.
    now : int
        The time, where it is a part of the states.
    """

    index: int
    node: Node
    timers: tuple[str, ...] = ()
    saved: Mapping[str, Any] = field(default_factory=dict)
    up: bool = True
    given: int = 0
    draws: int = 0
    decisions: Mapping[Any, Any] = field(default_factory=dict)
    broken: str = ""
    waits: tuple[tuple[int, int], ...] = ()
    pending: tuple[int, ...] = ()
    now: int = 0

    def but(self, **changes: Any) -> Local:
        """Return this state with other values."""
        return dataclasses.replace(self, **changes)


class Transition(NamedTuple):
    """What one event does to one local state.

    Parameters
    ----------
    local : int
        The new local state.
    sends : tuple of int
        Events: the messages sent, in order.
    replies : int
        Number of the replies given; 0 for none.
    """

    local: int
    sends: tuple[int, ...]
    replies: int


class NodeContext(Opaque):
    """A node's side of the explorer."""

    def __init__(self, index: int, size: int, peers: Sequence[int], key: int, clock: Clock | None = None) -> None:
        self.id = index
        self.size = size
        self.peers = peers
        self.rng = Draws(key)
        self.clock = clock
        # Whether the time is a part of the states, and what it is.
        self.absolute = False
        self.time = 0
        # Whether a handler is at work, whether one read the time, and whether anyone else ever did.
        self.at_work = False
        self.read = False
        self.read_outside = False
        self.timers: dict[str, tuple[int, int]] = {}
        self.saved: dict[str, Any] = {}
        self.decisions: dict[Any, Any] = {}
        self.sent: list[tuple[int, Message]] = []
        self.replies: dict[int, Any] = {}
        self.contradiction = ""

    def begin(self, local: Local) -> None:
        """Take on what belongs to a local state."""
        self.rng.count = local.draws
        waits = local.waits or ((0, 0),) * len(local.timers)
        self.timers = dict(zip(local.timers, waits, strict=True))
        self.time = local.now
        self.read = False
        self.saved = dict(local.saved)
        self.decisions = dict(local.decisions)
        self.sent = []
        self.replies = {}
        self.contradiction = ""

    @property
    def now(self) -> float:
        """See Context; without a clock time stands still, and who reads it is noted."""
        if self.clock is None:
            self.read = self.read or self.at_work
            self.read_outside = self.read_outside or not self.at_work
            return 0.0
        if not self.at_work:
            raise BadValueError(
                "A predicate sees the state of the nodes, and the time is not in it.",
                given="context.now",
                where=f"node {self.id}",
                hint="keep what the predicate needs in a field of the node, and let a timer change it",
            )
        if not self.absolute:
            raise ClockWasRead
        return float(self.time + self.clock.offset(self.id))

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        if to not in self.peers:
            raise no_link(self.id, to)
        self.sent.append((to, message))

    def broadcast(self, message: Message) -> None:
        """See Context."""
        self.sent.extend([(to, message) for to in self.peers])

    def set_timer(self, name: str, after: float) -> None:
        """See Context."""
        if not after > 0:
            raise not_later(self.id, name, after)
        if self.clock is None:
            self.timers[name] = (0, 0)
        elif f":{CHOICE}" in name:
            self.timers[name] = (0, NEVER_DUE)
        elif math.isinf(after):
            self.timers.pop(name, None)
        else:
            self.timers[name] = self.clock.window(after)

    def cancel_timer(self, name: str) -> None:
        """See Context."""
        self.timers.pop(name, None)

    def save(self, key: str, value: Any) -> None:
        """See Context."""
        self.saved[key] = copied(value)

    def load(self, key: str, default: Any = None) -> Any:
        """See Context."""
        return copied(self.saved[key]) if key in self.saved else default

    def decide(self, value: Any, instance: Any = 0) -> None:
        """See Context."""
        known = self.decisions.setdefault(instance, value)
        if known != value:
            self.contradiction = f"node {self.id} decided {known!r}, then {value!r} in instance {instance!r}"

    def reply(self, number: int, result: Any) -> None:
        """See Context."""
        self.replies.setdefault(number, result)

    def record(self, metric: str, value: float = 1.0) -> None:
        """See Context; figures are no part of a state."""
