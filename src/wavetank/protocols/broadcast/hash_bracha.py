"""Bracha's broadcast with hashes: only the sender sends the payload, echo and ready carry its digest.

A node that is sure of a digest but lacks the payload asks f+1 of those who echoed it: an echo says that its sender has
the payload, and one of them is correct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    HASH_BYTES,
    BroadcastProtocol,
    Echo,
    Placed,
    Ready,
    Send,
    Sizes,
    VotedInstance,
    VotingNode,
    digest_of,
    members,
)
from wavetank.sim.node import Message


class Fetch(Placed, frozen=True):
    """A node lacks the payload."""


class Payload(Placed, frozen=True):
    """A payload that was asked for."""

    payload: bytes


@dataclass(slots=True)
class _Instance(VotedInstance):
    # What the sender said; the digest is empty before it has.
    payload: bytes = b""
    digest: bytes = b""
    # The digest that 2f+1 are ready for.
    sure: bytes = b""
    # Who was asked for the payload, as bits.
    asked: int = 0
    # Who was sent the payload, as bits: once each.
    served: int = 0


class HashBrachaNode(VotingNode[_Instance]):
    """A participant."""

    new_instance = _Instance

    def __init__(self, parameters: HashBracha, size: int) -> None:
        super().__init__(Sizes(parameters.payload_bytes), size)

    def send_payload(self, payload: bytes) -> None:
        """Send everyone the payload."""
        self.send_all(Send(self.number, payload))
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
        key: tuple[int, int] = message.key
        instance = self.instance_of(sender, key)
        if instance is None:
            return
        if kind is Echo:
            self.count_echo(key, instance, sender, message.digest)
            if instance.sure == message.digest:
                self.complete(key, instance, instance.sure)
        elif kind is Ready:
            self.count_ready(key, instance, sender, message.digest)
        elif kind is Fetch:
            if instance.digest and not instance.served >> sender & 1:
                instance.served |= 1 << sender
                self.send(sender, Payload(*key, instance.payload))
        elif instance.sure and not instance.delivered and digest_of(message.payload) == instance.sure:
            instance.payload, instance.digest = message.payload, instance.sure
            self.complete(key, instance, instance.sure)

    def _on_payload(self, source: int, number: int, payload: bytes) -> None:
        key = source, number
        instance = self.instance_of(source, key)
        if instance is None or instance.digest:
            return
        instance.payload, instance.digest = payload, digest_of(payload)
        self.send_all(Echo(*key, instance.digest))
        self.count_echo(key, instance, self.context.id, instance.digest)
        if instance.sure:
            self.complete(key, instance, instance.sure)

    def complete(self, key: tuple[int, int], instance: _Instance, value: bytes) -> None:
        """Deliver, or ask for what is missing."""
        instance.sure = instance.sure or value
        if instance.delivered:
            return
        if instance.digest != instance.sure:
            # An equivocating sender sent this node something else, or nothing yet.
            for peer in members(instance.echoes.by_value.get(instance.sure, 0) & ~instance.asked):
                if instance.asked.bit_count() > self.faults:
                    return
                if peer != self.context.id:
                    instance.asked |= 1 << peer
                    self.send(peer, Fetch(*key))
            return
        self.close(key, instance, instance.payload)


@dataclass(frozen=True, kw_only=True)
class HashBracha(BroadcastProtocol):
    """Reliable broadcast in which the payload travels once and digests are voted on.

    References
    ----------
    Bracha, Information and Computation 75(2), 1987.
    """

    system: ClassVar[str] = "hash-bracha"
    messages: ClassVar[tuple[type[Message], ...]] = (Send, Echo, Ready, Fetch, Payload)
    participant: ClassVar[type[HashBrachaNode]] = HashBrachaNode
