"""What all broadcast protocols here share: votes and quorums, requests, one way of counting bytes, what must hold.

A message counts as many bytes as its MessagePack encoding has, with Ed25519 signatures, whatever scheme signs in a
simulation.  A payload may be declared larger than it is: a study of megabytes then carries a few bytes and counts
megabytes.  Frames, checksums and the layers below are left out, for all protocols alike.

What a liar may make a node remember is bounded: it can speak of at most :data:`MOST_OPEN` undelivered broadcasts of
each source, and of none that cannot be.

Source: G. Bracha, "Asynchronous Byzantine agreement protocols", Information and Computation 75(2), 1987, for the
quorums and properties.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from wavetank.errors import BadValueError
from wavetank.settings import check_parameters, setting
from wavetank.sim.node import Message, Node, Snapshot, disagreement

HASH_BYTES = 32
SIGNATURE_BYTES = 64

MOST_OPEN = 1024
"""Undelivered broadcasts of one source of which a node lets another one speak."""

LAST_NUMBER = 2**63 - 1
"""Numbers of broadcasts run from 1 to this; what is signed holds them in eight bytes."""

_encode = msgspec.msgpack.Encoder().encode


class Sizes(NamedTuple):
    """What fields are counted as.

    Parameters
    ----------
    payload : int
        Bytes of every payload; 0 for what it has.
    fragment : int
        Bytes of every coded fragment; 0 for what it has.
    """

    payload: int = 0
    fragment: int = 0


def binary_bytes(length: int) -> int:
    """Return how many bytes a string of ``length`` bytes takes in MessagePack."""
    return length + (2 if length < 2**8 else 3 if length < 2**16 else 5)


AS_THEY_ARE = Sizes()


def encoded_bytes(message: Message, sizes: Sizes = AS_THEY_ARE) -> int:
    """Return how many bytes a message counts as.

    Parameters
    ----------
    message : Message
        Fields named ``payload``, ``fragment`` and ``signature`` count as declared, also inside tuples of messages.
    sizes : Sizes
    """
    return len(_encode(message)) + _surplus(message, sizes)


def _surplus(message: Message, sizes: Sizes) -> int:
    """Return by how much the declared sizes exceed the real ones."""
    extra = 0
    for name in _adjusted_fields(type(message)):
        value = getattr(message, name)
        if isinstance(value, tuple):
            extra += sum(_surplus(each, sizes) for each in value if isinstance(each, Message))
        elif isinstance(value, bytes):
            declared = (
                SIGNATURE_BYTES if name == "signature" else sizes.payload if name == "payload" else sizes.fragment
            )
            if declared:
                extra += binary_bytes(declared) - binary_bytes(len(value))
    return extra


@cache
def _adjusted_fields(kind: type[Message]) -> tuple[str, ...]:
    hints = kind.__annotations__
    return tuple(
        name
        for name in kind.__struct_fields__
        if name in ("payload", "fragment", "signature") or str(hints.get(name, "")).startswith("tuple")
    )


class Placed(Message, frozen=True):
    """A message about one broadcast."""

    source: int
    number: int

    @property
    def key(self) -> tuple[int, int]:
        """Return the broadcast: its source and number."""
        return self.source, self.number


class Send(Message, frozen=True):
    """The sender's broadcast of that number."""

    number: int
    payload: bytes


class Echo(Placed, frozen=True):
    """A node heard what has this digest from the sender."""

    digest: bytes


class Ready(Placed, frozen=True):
    """A node is ready to deliver what has this digest."""

    digest: bytes


def digest_of(payload: bytes) -> bytes:
    """Return the digest of a payload, 32 bytes."""
    return hashlib.blake2b(payload, digest_size=HASH_BYTES).digest()


def most_faults(size: int) -> int:
    """Return the largest f with size > 3f."""
    return (size - 1) // 3


def intersecting_quorum(size: int) -> int:
    """Return the least number of nodes any two sets of which share a correct one."""
    return (size + most_faults(size)) // 2 + 1


def payload_of(command: Any) -> bytes:
    """Return the payload of a request ``("broadcast", payload)``.

    Raises
    ------
    BadValueError
        If the command is anything else.
    """
    if isinstance(command, tuple | list) and len(command) == 2 and command[0] == "broadcast":
        if isinstance(command[1], bytes):
            return command[1]
        if isinstance(command[1], str):
            return command[1].encode()
    raise BadValueError("This value cannot be broadcast.", given=command, allowed='("broadcast", bytes or text)')


@dataclass(slots=True)
class Votes:
    """Who voted for what; a voter has one vote.

    Attributes
    ----------
    voters : int
        The nodes that voted, as bits.
    by_value : dict
        Value to the nodes that voted for it, as bits.
    """

    voters: int = 0
    by_value: dict[bytes, int] = field(default_factory=dict)

    def add(self, voter: int, value: bytes) -> int:
        """Count a vote; return how many the value has now, 0 when the voter had voted before."""
        bit = 1 << voter
        if self.voters & bit:
            return 0
        self.voters |= bit
        bits = self.by_value.get(value, 0) | bit
        self.by_value[value] = bits
        return bits.bit_count()

    def of(self, value: bytes) -> int:
        """Return how many voted for a value."""
        return self.by_value.get(value, 0).bit_count()


def members(bits: int) -> Iterator[int]:
    """Yield the nodes of a set of bits, in rising order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


class SourceNode(Node, ABC):
    """A participant that numbers what its clients broadcast, and sends it while there is room.

    It records the bytes that it sends, under ``bytes``.

    Attributes
    ----------
    number : int
        Broadcasts sent.
    waiting : list of (int, bytes)
        Requests that wait for room, and their payloads.
    requests : dict of int to int
        Number of an own undelivered broadcast to that of its request.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.number = 0
        self.waiting: list[tuple[int, bytes]] = []
        self.requests: dict[int, int] = {}

    def send(self, to: int, message: Message) -> None:
        """Send a message and count it."""
        self.context.record("bytes", encoded_bytes(message, self.sizes))
        self.context.send(to, message)

    def send_all(self, message: Message) -> None:
        """Send a message to everyone else and count it."""
        self.context.record("bytes", encoded_bytes(message, self.sizes) * len(self.context.peers))
        self.context.broadcast(message)

    def request(self, number: int, command: Any) -> None:
        """Broadcast a payload."""
        self.waiting.append((number, payload_of(command)))
        self.send_waiting()

    def send_waiting(self) -> None:
        """Send what waits, as far as there is room."""
        while self.waiting and self.has_room():
            request, payload = self.waiting.pop(0)
            self.number += 1
            self.requests[self.number] = request
            self.send_payload(payload)

    @abstractmethod
    def has_room(self) -> bool:
        """Return whether another broadcast of this node may be under way."""

    @abstractmethod
    def send_payload(self, payload: bytes) -> None:
        """Begin this node's broadcast of the present ``number``."""

    def deliver(self, key: tuple[int, int], payload: bytes) -> None:
        """Give out a broadcast, and answer the request behind it when it was this node's.

        Parameters
        ----------
        key : tuple of int
            Source and number.
        payload : bytes
        """
        self.context.decide(payload, key)
        if key[0] == self.context.id and key[1] in self.requests:
            self.context.reply(self.requests.pop(key[1]), key)


@dataclass(slots=True)
class Instance:
    """What a node knows of one broadcast; protocols add to it.

    Attributes
    ----------
    delivered : bool
    spoken : int
        Who spoke of it before it was delivered, as bits.
    """

    delivered: bool = False
    spoken: int = 0


InstanceT = TypeVar("InstanceT", bound=Instance)


class InstanceNode(SourceNode, Generic[InstanceT]):
    """A participant for which every broadcast is an instance of its own.

    Attributes
    ----------
    instances : dict
        (source, number) to what is known of that broadcast.
    open : dict of int to list of int
        Source to the number of its undelivered broadcasts of which each node spoke, :data:`MOST_OPEN` at most; a source
        of whose none anybody spoke is left out.
    """

    new_instance: type[InstanceT]

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.instances: dict[tuple[int, int], InstanceT] = {}
        self.open: dict[int, list[int]] = {}

    def has_room(self) -> bool:
        """Return whether others, who may hear of deliveries late, still let this node speak of another broadcast."""
        me = self.context.id
        return me not in self.open or self.open[me][me] < MOST_OPEN // 2

    def instance_of(self, speaker: int, key: tuple[int, int]) -> InstanceT | None:
        """Return what is known of the broadcast that a node speaks of; None for one that it may not speak of.

        Parameters
        ----------
        speaker : int
            The neighbour whose message it is, or this node.
        key : tuple of int
            Source and number, as the message says.
        """
        source, number = key
        instance = self.instances.get(key)
        if instance is not None and (instance.delivered or instance.spoken >> speaker & 1):
            return instance
        if instance is None and not (0 <= source < self.context.size and 0 < number <= LAST_NUMBER):
            self.context.record("rejected")
            return None
        spoken = self.open.get(source)
        if spoken is None:
            spoken = self.open[source] = [0] * self.context.size
        if spoken[speaker] == MOST_OPEN:
            self.context.record("refused")
            return None
        spoken[speaker] += 1
        if instance is None:
            instance = self.instances[key] = self.new_instance()
        instance.spoken |= 1 << speaker
        return instance

    def close(self, key: tuple[int, int], instance: InstanceT, payload: bytes) -> None:
        """Deliver a broadcast; its speakers may speak of another one."""
        instance.delivered = True
        spoken = self.open[key[0]]
        for speaker in members(instance.spoken):
            spoken[speaker] -= 1
        if not any(spoken):
            del self.open[key[0]]
        instance.spoken = 0
        self.deliver(key, payload)
        self.send_waiting()


@dataclass(slots=True)
class VotedInstance(Instance):
    """What a node knows of one broadcast on whose payload, or digest, nodes vote.

    Attributes
    ----------
    echoed, ready : bool
        Whether this node has sent its echo, and its ready.
    echoes, readies : Votes
        Empty again once delivered.
    """

    echoed: bool = False
    ready: bool = False
    echoes: Votes = field(default_factory=Votes)
    readies: Votes = field(default_factory=Votes)


VotedT = TypeVar("VotedT", bound=VotedInstance)


class VotingNode(InstanceNode[VotedT]):
    """A participant that becomes ready by a quorum of echoes or f+1 readies, and sure by 2f+1 readies.

    Parameters
    ----------
    sizes : Sizes
    size : int
        Nodes.
    quorum : int
        Echoes that make ready, and readies that make sure; 0 for the right numbers.
    """

    ready_message: type[Any] = Ready

    def __init__(self, sizes: Sizes, size: int, *, quorum: int = 0) -> None:
        super().__init__(sizes)
        self.faults = most_faults(size)
        self.enough_echoes = quorum or intersecting_quorum(size)
        self.enough_readies = quorum or 2 * self.faults + 1

    def count_echo(self, key: tuple[int, int], instance: VotedT, voter: int, value: bytes) -> None:
        """Count an echo of a payload or digest."""
        if not instance.delivered and instance.echoes.add(voter, value) >= self.enough_echoes:
            self.become_ready(key, instance, value)

    def become_ready(self, key: tuple[int, int], instance: VotedT, value: bytes) -> None:
        """Announce to everyone that this node is ready, once."""
        if not instance.ready:
            instance.ready = True
            self.send_all(self.ready_message(*key, value))
            self.count_ready(key, instance, self.context.id, value)

    def count_ready(self, key: tuple[int, int], instance: VotedT, voter: int, value: bytes) -> None:
        """Count a ready."""
        if instance.delivered:
            return
        if instance.readies.add(voter, value) > self.faults:
            self.become_ready(key, instance, value)
        if instance.readies.of(value) >= self.enough_readies:
            self.complete(key, instance, value)

    @abstractmethod
    def complete(self, key: tuple[int, int], instance: VotedT, value: bytes) -> None:
        """Deliver what enough nodes are ready for, if the payload is here."""

    def close(self, key: tuple[int, int], instance: VotedT, payload: bytes) -> None:
        """Deliver a broadcast and forget the votes."""
        instance.echoes, instance.readies = Votes(), Votes()
        super().close(key, instance, payload)


@dataclass(frozen=True, kw_only=True)
class BroadcastProtocol:
    """What is the same for all reliable broadcasts: a declared payload, n > 3f, and agreement."""

    system: ClassVar[str]
    participant: ClassVar[type[Any]]

    payload_bytes: int = setting(0, unit="bytes", low=0, says="Size that is counted for a payload; 0 for its own size")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where=f"system {self.system}")

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        made: Node = self.participant(self, size)
        return made

    def max_faults(self, size: int) -> int:
        """Return how many nodes may be Byzantine."""
        return most_faults(size)

    def violation(self, snapshot: Snapshot) -> str:
        """Return two nodes that delivered different payloads, in words, or ""."""
        return disagreement(snapshot)

    def example_command(self, number: int) -> tuple[str, bytes]:
        """Return what a client may ask."""
        return ("broadcast", f"payload {number}".encode())


def broken_totality(snapshot: Snapshot) -> str:
    """Return a correct node that lacks what another has delivered, in words, or ""; asked when all is quiet."""
    delivered = {instance for node, instance in snapshot.decisions if node in snapshot.correct}
    for instance in sorted(delivered):
        for node in sorted(snapshot.correct):
            if (node, instance) not in snapshot.decisions:
                return f"node {node} never delivered {instance}, which others did"
    return ""


def broken_order(snapshot: Snapshot) -> str:
    """Return a correct node that delivered a broadcast without those before it, in words, or ""."""
    for node, (source, number) in sorted(snapshot.decisions):
        if number > 1 and node in snapshot.correct and (node, (source, number - 1)) not in snapshot.decisions:
            return f"node {node} delivered {(source, number)} without the broadcast before it"
    return ""
