"""What a distributed algorithm is here, and all it may know.

An algorithm is a frozen dataclass of parameters that makes nodes.  A node reacts: it is started, receives messages,
timers that ran out and requests; everything it does goes through its context.  So the same class runs in four
places: in **rounds**, as **events** with delays and loss (both :mod:`wavetank.sim.events`), on **sockets**
(:mod:`wavetank.live`), and in the explorer of all interleavings (:mod:`wavetank.check.explore`).

One unit of time is one round.  A life on sockets says how many seconds that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import msgspec

from wavetank.errors import BadValueError
from wavetank.sim.rng import Draws


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all messages: typed, immutable, small on the wire.

    The name of the class is its tag.  Fields hold numbers, text, bytes and tuples of them, or other messages; what
    comes from a socket is checked against these types before a node sees it.
    """


@runtime_checkable
class Context(Protocol):
    """What a node may see and do.  Nothing else of the outside reaches a node."""

    @property
    def id(self) -> int:
        """This node's number, from 0."""

    @property
    def size(self) -> int:
        """How many nodes there are."""

    @property
    def peers(self) -> Sequence[int]:
        """The nodes this one has a link to, in rising order; itself is not among them."""

    @property
    def now(self) -> float:
        """Time in rounds: the number of the round, or the time of the event."""

    @property
    def rng(self) -> Draws:
        """This node's own random stream; it depends on run and node alone."""

    def send(self, to: int, message: Message) -> None:
        """Send a message to one of ``peers``."""

    def broadcast(self, message: Message) -> None:
        """Send a message to each of ``peers``."""

    def set_timer(self, name: str, after: float) -> None:
        """Have ``timer(name)`` called ``after`` rounds from now; replaces a timer of the same name."""

    def cancel_timer(self, name: str) -> None:
        """Forget the timer; nothing happens when there is none."""

    def save(self, key: str, value: Any) -> None:
        """Keep an immutable value where a crash does not reach it."""

    def load(self, key: str, default: Any = None) -> Any:
        """Return what was saved under ``key``, also before a crash."""

    def decide(self, value: Any, instance: Any = 0) -> None:
        """Give an irrevocable output, one for each instance (a slot of a log, a broadcast)."""

    def reply(self, number: int, result: Any) -> None:
        """Answer the request of that number."""

    def record(self, metric: str, value: float = 1.0) -> None:
        """Note a figure about this node at this time."""


class Opaque:
    """Base of what belongs to a runtime and is no part of any node's state: contexts."""

    __slots__ = ()


class Node:
    """A participant.  Its fields are its whole volatile state.

    Subclasses keep only plain values in their fields (numbers, text, tuples, lists, dicts, sets, messages,
    dataclasses), so that the explorer can copy and compare them.  The runtime sets ``context`` before it calls
    :meth:`start`.

    A node that comes back after a crash is a new one: it is started again, and has what it ``save``d.
    """

    context: Context

    def start(self) -> None:
        """Called once, first."""

    def receive(self, sender: int, message: Any) -> None:
        """Called for each message that arrives.

        Parameters
        ----------
        sender : int
            The neighbour at the other end of the link; it cannot be forged.
        message : Message
        """

    def timer(self, name: str) -> None:
        """Called when a timer runs out."""

    def request(self, number: int, command: Any) -> None:
        """Called when a client asks this node for something; answered with ``context.reply(number, result)``."""


class Snapshot(NamedTuple):
    """All nodes at one instant, for invariants.

    Parameters
    ----------
    nodes : sequence of Node
        By id; a node that is down is the state it had.
    correct : frozenset of int
        The nodes without a Byzantine fault.
    decisions : mapping
        ``(node, instance)`` to the value decided.
    replies : mapping
        Request number to result.
    """

    nodes: Sequence[Node]
    correct: frozenset[int]
    decisions: Mapping[tuple[int, Any], Any]
    replies: Mapping[int, Any]


class Algorithm(Protocol):
    """Makes the nodes; a frozen dataclass of parameters, registered in the catalog with the shape ``node``.

    Attributes
    ----------
    messages : tuple of types
        Every kind of message its nodes send.
    """

    messages: ClassVar[tuple[type[Message], ...]]

    def node(self, index: int, size: int) -> Node:
        """Return a new node.

        Parameters
        ----------
        index : int
            Its id.
        size : int
            How many nodes there are.
        """

    def max_faults(self, size: int) -> int:
        """Return how many faulty nodes of ``size`` the algorithm tolerates."""

    def violation(self, snapshot: Snapshot) -> str:
        """Return which invariant is broken and how, or "" when all hold.

        It is asked after every step of a simulation, in every explored state, and at the end of a life on sockets; so
        it sees nodes at any moment, also when they are down, and depends on the snapshot alone.
        """


def unlisted(message: object, algorithm: Algorithm) -> BadValueError:
    """Return the error of sending a message whose kind is not in ``algorithm.messages``: no wire would carry it.

    Parameters
    ----------
    message : object
    algorithm : Algorithm
    """
    kinds = [kind.__name__ for kind in algorithm.messages]
    return BadValueError(
        "A node sends only the kinds of message that its algorithm lists.",
        given=type(message).__name__,
        allowed=kinds,
        where=f"{type(algorithm).__name__}.messages",
        hint="add the class to messages",
    )


def no_link(node: int, to: int) -> BadValueError:
    """Return the error of sending to a node that is not among ``peers``.

    Parameters
    ----------
    node : int
        Who sends.
    to : int
    """
    return BadValueError(f"Node {node} has no link to node {to}.", given=to, allowed="the nodes in context.peers")


def not_later(node: int, name: str, after: float) -> BadValueError:
    """Return the error of setting a timer that would run out now or earlier.

    Parameters
    ----------
    node : int
    name : str
        Of the timer.
    after : float
        Rounds.
    """
    return BadValueError("A timer runs out later than now.", given=after, where=f"node {node}, timer {name!r}")


def disagreement(snapshot: Snapshot) -> str:
    """Return a pair of correct nodes that decided differently in one instance, in words, or "" when there is none."""
    correct = snapshot.correct
    seen: dict[Any, Any] = {}
    for (node, instance), value in snapshot.decisions.items():
        if node in correct and seen.setdefault(instance, value) != value:
            break
    else:
        # It is asked after every step of every run; only a disagreement is worth an order of all decisions.
        return ""
    first: dict[Any, tuple[int, Any]] = {}
    for (node, instance), value in sorted(snapshot.decisions.items(), key=repr):
        if node not in snapshot.correct:
            continue
        who, what = first.setdefault(instance, (node, value))
        if what != value:
            return f"nodes {who} and {node} decided {what!r} and {value!r} in instance {instance!r}"
    return ""
