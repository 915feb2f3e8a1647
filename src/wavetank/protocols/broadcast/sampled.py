"""Sampled reliable broadcast: quorums are replaced by random samples of logarithmic size.

A payload spreads by gossip.  A node is ready when enough of its echo sample heard the payload, or enough of its ready
sample are ready, and delivers when enough of its delivery sample are.  Each message goes to few nodes; the price is a
small probability that two nodes deliver differently, or that one never does, and fewer faults than a third.

Source: R. Guerraoui et al., "Scalable Byzantine Reliable Broadcast", DISC 2019 (Murmur, Sieve and Contagion).

Differs from the source:
1. Samples are drawn without replacement, and serve all broadcasts.
2. Sizes of samples are one multiple of the logarithm of n; the paper optimises each for a given probability.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    CountingNode,
    Sizes,
    Votes,
    broken_agreement,
    digest_of,
    members,
    payload_of,
)
from wavetank.protocols.digraphs.signing import SCHEMES, scheme
from wavetank.protocols.interfaces import Message, Node, Snapshot
from wavetank.settings import check_parameters, setting

_PLACE = struct.Struct(">IQ")


class Subscribe(Message, frozen=True):
    """A node has the other in its samples and wants to hear its echoes, its readies."""

    echoes: bool
    readies: bool


class Gossip(Message, frozen=True):
    """A payload, signed by its source."""

    source: int
    number: int
    payload: bytes
    signature: bytes


class Echo(Message, frozen=True):
    """The first payload a node heard of."""

    source: int
    number: int
    digest: bytes


class Ready(Message, frozen=True):
    """A node is ready for a payload."""

    source: int
    number: int
    digest: bytes


@dataclass(slots=True)
class _Instance:
    payload: bytes = b""
    digest: bytes = b""
    # The digests this node is ready for, in the order in which it became so.
    ready: list[bytes] = field(default_factory=list)
    delivered: bool = False
    echoes: Votes = field(default_factory=Votes)
    # Digest to who is ready for it, as bits: a node may be ready for several.
    readies: dict[bytes, int] = field(default_factory=dict)


def gossip_content(source: int, number: int, digest: bytes) -> bytes:
    """Return what a source signs."""
    return b"gossip" + _PLACE.pack(source, number) + digest


class SampledNode(CountingNode):
    """A participant."""

    def __init__(self, parameters: Sampled, size: int) -> None:
        super().__init__(Sizes(parameters.payload_bytes))
        self.parameters = parameters
        self.scheme = scheme(parameters.signatures, parameters.key_seed)
        self.sample_size = parameters.sample(size)
        self.number = 0
        self.asked: dict[int, int] = {}
        self.instances: dict[tuple[int, int], _Instance] = {}
        # Sets of nodes as bits.
        self.gossip_to: list[int] = []
        self.echo_sample = self.ready_sample = self.delivery_sample = 0
        self.echo_to = self.ready_to = 0

    def start(self) -> None:
        """Draw the samples and subscribe."""
        self.gossip_to = self._drawn()
        samples = [sum(1 << node for node in self._drawn()) for _ in range(3)]
        self.echo_sample, self.ready_sample, self.delivery_sample = samples
        wanted = self.ready_sample | self.delivery_sample
        for peer in members(self.echo_sample | wanted):
            self.tell(peer, Subscribe(bool(self.echo_sample >> peer & 1), bool(wanted >> peer & 1)))

    def _drawn(self) -> list[int]:
        return sorted(self.context.rng.sample(self.context.peers, self.sample_size))

    def request(self, number: int, command: Any) -> None:
        """Broadcast a payload."""
        payload = payload_of(command)
        self.number += 1
        self.asked[self.number] = number
        me = self.context.id
        signature = self.scheme.sign(me, gossip_content(me, self.number, digest_of(payload)))
        self._on_gossip(Gossip(me, self.number, payload, signature))

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        if isinstance(message, Gossip):
            self._on_gossip(message)
        elif isinstance(message, Subscribe):
            self._on_subscribe(sender, message)
        else:
            key = message.source, message.number
            instance = self.instances.setdefault(key, _Instance())
            if isinstance(message, Echo):
                self._on_echo(key, instance, sender, message.digest)
            else:
                self._on_ready(key, instance, sender, message.digest)

    def _on_subscribe(self, sender: int, message: Subscribe) -> None:
        new_echo = message.echoes and not self.echo_to >> sender & 1
        new_ready = message.readies and not self.ready_to >> sender & 1
        self.echo_to |= new_echo << sender
        self.ready_to |= new_ready << sender
        for key, instance in self.instances.items():
            if new_echo and instance.digest:
                self.tell(sender, Echo(*key, instance.digest))
            if new_ready:
                for digest in instance.ready:
                    self.tell(sender, Ready(*key, digest))

    def _on_gossip(self, gossip: Gossip) -> None:
        key = gossip.source, gossip.number
        instance = self.instances.setdefault(key, _Instance())
        if instance.digest or not 0 <= gossip.source < self.context.size:
            return
        digest = digest_of(gossip.payload)
        if not self.scheme.verify(gossip.source, gossip_content(*key, digest), gossip.signature):
            self.context.record("rejected")
            return
        instance.payload, instance.digest = gossip.payload, digest
        for peer in self.gossip_to:
            self.tell(peer, gossip)
        for peer in members(self.echo_to):
            self.tell(peer, Echo(*key, digest))
        self._complete(key, instance)

    def _on_echo(self, key: tuple[int, int], instance: _Instance, sender: int, digest: bytes) -> None:
        if self.echo_sample >> sender & 1 and instance.echoes.add(sender, digest) >= self._share(
            self.parameters.echo_share
        ):
            self._ready(key, instance, digest)

    def _share(self, share: float) -> int:
        return math.ceil(share * self.sample_size)

    def _ready(self, key: tuple[int, int], instance: _Instance, digest: bytes) -> None:
        if digest not in instance.ready:
            instance.ready.append(digest)
            for peer in members(self.ready_to):
                self.tell(peer, Ready(*key, digest))

    def _on_ready(self, key: tuple[int, int], instance: _Instance, sender: int, digest: bytes) -> None:
        if not (self.ready_sample | self.delivery_sample) >> sender & 1:
            return
        # Two digests are enough to know; a liar's third is not kept.
        if digest not in instance.readies and len(instance.readies) >= 2 * self.context.size:
            return
        bits = instance.readies[digest] = instance.readies.get(digest, 0) | 1 << sender
        if (bits & self.ready_sample).bit_count() >= self._share(self.parameters.ready_share):
            self._ready(key, instance, digest)
        self._complete(key, instance)

    def _complete(self, key: tuple[int, int], instance: _Instance) -> None:
        bits = instance.readies.get(instance.digest, 0) & self.delivery_sample
        if instance.delivered or bits.bit_count() < self._share(self.parameters.delivery_share):
            return
        instance.delivered = True
        self.context.decide(instance.payload, key)
        if key[0] == self.context.id and key[1] in self.asked:
            self.context.reply(self.asked.pop(key[1]), key)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Reliable broadcast with random samples in place of quorums.

    Parameters
    ----------
    factor : float
        A sample has ``factor`` times the natural logarithm of n nodes, at most all.
    echo_share, ready_share, delivery_share : float
        Of a sample that must echo, be ready, be ready for delivery.
    signatures : str
        ``keyed-hash``, or ``ed25519``.
    key_seed : int
        Of the keys.
    payload_bytes : int
        What a payload is counted as; 0 for its own size.

    References
    ----------
    Guerraoui et al., DISC 2019.
    """

    messages: ClassVar[tuple[type[Message], ...]] = (Subscribe, Gossip, Echo, Ready)

    factor: float = setting(4.0, low=0.1, high=100.0, says="size of a sample over ln n")
    echo_share: float = setting(0.67, low=0.01, high=1.0, says="share of a sample that must echo")
    ready_share: float = setting(0.34, low=0.01, high=1.0, says="share that makes others ready")
    delivery_share: float = setting(0.67, low=0.01, high=1.0, says="share that must be ready for delivery")
    signatures: str = setting("keyed-hash", choices=SCHEMES, says="strength of signatures")
    key_seed: int = setting(0, low=0, says="seed of the keys")
    payload_bytes: int = setting(0, unit="bytes", low=0, says="what a payload is counted as; 0 for its own size")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where="system sampled-broadcast")

    def sample(self, size: int) -> int:
        """Return the size of a sample."""
        return min(max(math.ceil(self.factor * math.log(size)), 1), size - 1) if size > 1 else 0

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return SampledNode(self, size)

    def bears(self, size: int) -> int:
        """Return how many nodes may be Byzantine with small odds of failure: a fifth, cautiously."""
        return (size - 1) // 5

    def violation(self, snapshot: Snapshot) -> str:
        """Return two nodes that delivered different payloads, in words, or ""."""
        return broken_agreement(snapshot)

    def example_command(self, number: int) -> tuple[str, bytes]:
        """Return what a client may ask."""
        return ("broadcast", f"payload {number}".encode())
