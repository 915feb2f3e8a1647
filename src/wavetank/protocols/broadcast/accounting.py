"""What all broadcast protocols here share: quorums, one way of counting bytes, and what an algorithm must keep.

A message counts as many bytes as its MessagePack encoding has, with Ed25519 signatures, whatever scheme signs in a
simulation.  A payload may be declared larger than it is: a study of megabytes then carries a few bytes and counts
megabytes.  Frames, checksums and the layers below are left out, for all protocols alike.

Source: G. Bracha, "Asynchronous Byzantine agreement protocols", Information and Computation 75(2), 1987, for the
quorums and properties.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import msgspec

from wavetank.errors import BadValueError
from wavetank.protocols.interfaces import Message, Node, Snapshot, disagreement

HASH_BYTES = 32
SIGNATURE_BYTES = 64

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
    raise BadValueError(
        "This is nothing that could be broadcast.", given=command, allowed='("broadcast", bytes or text)'
    )


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


class CountingNode(Node):
    """A node that records the bytes it sends, under ``bytes``."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def tell(self, to: int, message: Message) -> None:
        """Send a message and count it."""
        self.context.record("bytes", encoded_bytes(message, self.sizes))
        self.context.send(to, message)

    def tell_all(self, message: Message) -> None:
        """Send a message to everyone else and count it."""
        peers = self.context.peers
        self.context.record("bytes", encoded_bytes(message, self.sizes) * len(peers))
        self.context.broadcast(message)


def broken_agreement(snapshot: Snapshot) -> str:
    """Return two correct nodes that delivered different things, in words, or ""."""
    return disagreement(snapshot)


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
