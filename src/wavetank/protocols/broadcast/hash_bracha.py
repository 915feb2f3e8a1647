"""Bracha's broadcast with hashes: only the sender sends the payload, echo and ready carry its digest.

A node that is sure of a digest but lacks the payload asks f+1 of those who echoed it: an echo says that its sender has
the payload, and one of them is correct.

Source: G. Bracha, "Asynchronous Byzantine agreement protocols", Information and Computation 75(2), 1987; with digests
in the way of C. Cachin, K. Kursawe, F. Petzold, V. Shoup, "Secure and Efficient Asynchronous Broadcast Protocols",
CRYPTO 2001.

Differs from the source:
1. A missing payload is fetched from f+1 nodes that echoed its digest, as their echoes come in.
2. Payloads that were delivered are kept, so that others can fetch them.
3. A node lets another one speak of 1024 undelivered broadcasts of a source; what it says of more is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    HASH_BYTES,
    BroadcastProtocol,
    Instance,
    InstanceNode,
    Sizes,
    Votes,
    digest_of,
    intersecting_quorum,
    members,
    most_faults,
)
from wavetank.protocols.interfaces import Message, Node


class Send(Message, frozen=True):
    """The sender's broadcast of that number."""

    number: int
    payload: bytes


class Echo(Message, frozen=True):
    """A node has the payload of this digest from the sender."""

    source: int
    number: int
    digest: bytes


class Ready(Message, frozen=True):
    """A node knows that no other digest can become ready."""

    source: int
    number: int
    digest: bytes


class Fetch(Message, frozen=True):
    """A node lacks the payload."""

    source: int
    number: int


class Payload(Message, frozen=True):
    """A payload that was asked for."""

    source: int
    number: int
    payload: bytes


@dataclass(slots=True)
class _Instance(Instance):
    # What the sender said; the digest is empty before it has.
    payload: bytes = b""
    digest: bytes = b""
    ready: bool = False
    # The digest that 2f+1 are ready for.
    sure: bytes = b""
    # Who was asked for the payload, as bits.
    asked: int = 0
    # Who was sent the payload, as bits: once each.
    served: int = 0
    echoes: Votes = field(default_factory=Votes)
    readies: Votes = field(default_factory=Votes)


class HashBrachaNode(InstanceNode[_Instance]):
    """A participant."""

    def __init__(self, parameters: HashBracha, size: int) -> None:
        super().__init__(Sizes(parameters.payload_bytes))
        self.faults = most_faults(size)
        self.enough_echoes = intersecting_quorum(size)

    def new_instance(self) -> _Instance:
        """Return what is known of a broadcast before anything is."""
        return _Instance()

    def send_payload(self, payload: bytes) -> None:
        """Send everyone the payload."""
        self.tell_all(Send(self.number, payload))
        self._on_payload(self.context.id, self.number, payload)

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        if isinstance(message, Send):
            self._on_payload(sender, message.number, message.payload)
            return
        kind = type(message)
        if (kind is Echo or kind is Ready) and len(message.digest) != HASH_BYTES:
            # The empty one, which stands for none, above all.
            self.context.record("rejected")
            return
        key = message.source, message.number
        instance = self.instance_of(sender, message.source, message.number)
        if instance is None:
            return
        if kind is Echo:
            if instance.delivered:
                return
            if instance.echoes.add(sender, message.digest) >= self.enough_echoes:
                self._ready(key, instance, message.digest)
            if instance.sure == message.digest:
                self._complete(key, instance)
        elif kind is Ready:
            if not instance.delivered:
                self._count_ready(key, instance, sender, message.digest)
        elif kind is Fetch:
            if instance.digest and not instance.served >> sender & 1:
                instance.served |= 1 << sender
                self.tell(sender, Payload(*key, instance.payload))
        elif instance.sure and not instance.delivered and digest_of(message.payload) == instance.sure:
            instance.payload, instance.digest = message.payload, instance.sure
            self._complete(key, instance)

    def _on_payload(self, source: int, number: int, payload: bytes) -> None:
        key = source, number
        instance = self.instance_of(source, *key)
        if instance is None or instance.digest:
            return
        instance.payload, instance.digest = payload, digest_of(payload)
        self.tell_all(Echo(source, number, instance.digest))
        if instance.echoes.add(self.context.id, instance.digest) >= self.enough_echoes:
            self._ready(key, instance, instance.digest)
        if instance.sure:
            self._complete(key, instance)

    def _ready(self, key: tuple[int, int], instance: _Instance, digest: bytes) -> None:
        if not instance.ready:
            instance.ready = True
            self.tell_all(Ready(*key, digest))
            self._count_ready(key, instance, self.context.id, digest)

    def _count_ready(self, key: tuple[int, int], instance: _Instance, voter: int, digest: bytes) -> None:
        if instance.readies.add(voter, digest) > self.faults:
            self._ready(key, instance, digest)
        if instance.readies.of(digest) > 2 * self.faults and not instance.sure:
            instance.sure = digest
            self._complete(key, instance)

    def _complete(self, key: tuple[int, int], instance: _Instance) -> None:
        """Deliver, or ask for what is missing."""
        if instance.delivered:
            return
        if instance.digest != instance.sure:
            # An equivocating sender told this node something else, or nothing yet.
            for peer in members(instance.echoes.by_value.get(instance.sure, 0) & ~instance.asked):
                if instance.asked.bit_count() > self.faults:
                    return
                if peer != self.context.id:
                    instance.asked |= 1 << peer
                    self.tell(peer, Fetch(*key))
            return
        instance.echoes, instance.readies = Votes(), Votes()
        self.close(key, instance, instance.payload)


@dataclass(frozen=True, kw_only=True)
class HashBracha(BroadcastProtocol):
    """Reliable broadcast in which the payload travels once and digests are voted on.

    Parameters
    ----------
    payload_bytes : int
        What a payload is counted as; 0 for its own size.

    References
    ----------
    Bracha, Information and Computation 75(2), 1987.
    """

    system: ClassVar[str] = "hash-bracha"
    messages: ClassVar[tuple[type[Message], ...]] = (Send, Echo, Ready, Fetch, Payload)

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return HashBrachaNode(self, size)
