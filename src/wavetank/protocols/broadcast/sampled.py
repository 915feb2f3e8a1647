"""Sampled reliable broadcast: quorums are replaced by random samples of logarithmic size.

A payload spreads by gossip.  A node is ready when enough of its echo sample heard the payload, or enough of its ready
sample are ready, and delivers when enough of its delivery sample are.  Each message goes to few nodes; the price is a
small probability that two nodes deliver differently, or that one never does, and fewer faults than a third.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    HASH_BYTES,
    BroadcastProtocol,
    Echo,
    Instance,
    InstanceNode,
    Placed,
    Ready,
    Sizes,
    Votes,
    digest_of,
    members,
)
from wavetank.protocols.digraphs.signing import SCHEMES, scheme
from wavetank.settings import setting
from wavetank.sim.node import Message

_PLACE = struct.Struct(">IQ")
# Two payloads of one broadcast are enough to know that its source lies.
_MOST_READY = 2


class Subscribe(Message, frozen=True):
    """A node has the other in its samples and wants to hear its echoes, its readies."""

    echoes: bool
    readies: bool


class Gossip(Placed, frozen=True):
    """A payload, signed by its source."""

    payload: bytes
    signature: bytes


@dataclass(slots=True)
class _Instance(Instance):
    payload: bytes = b""
    digest: bytes = b""
    # The digests this node is ready for, in the order in which it became so.
    ready: list[bytes] = field(default_factory=list)
    echoes: Votes = field(default_factory=Votes)
    # Digest to who is ready for it, as bits: a node may be ready for several.
    readies: dict[bytes, int] = field(default_factory=dict)


def gossip_content(source: int, number: int, digest: bytes) -> bytes:
    """Return what a source signs."""
    return b"gossip" + _PLACE.pack(source, number) + digest


class SampledNode(InstanceNode[_Instance]):
    """A participant."""

    new_instance = _Instance

    def __init__(self, parameters: Sampled, size: int) -> None:
        super().__init__(Sizes(parameters.payload_bytes))
        self.parameters = parameters
        self.scheme = scheme(parameters.signatures, parameters.key_seed)
        self.sample_size = parameters.sample(size)
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
            self.send(peer, Subscribe(bool(self.echo_sample >> peer & 1), bool(wanted >> peer & 1)))

    def _drawn(self) -> list[int]:
        return sorted(self.context.rng.sample(self.context.peers, self.sample_size))

    def send_payload(self, payload: bytes) -> None:
        """Sign the payload and let it spread."""
        me = self.context.id
        signature = self.scheme.sign(me, gossip_content(me, self.number, digest_of(payload)))
        self._on_gossip(me, Gossip(me, self.number, payload, signature))

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        if isinstance(message, Gossip):
            self._on_gossip(sender, message)
        elif isinstance(message, Subscribe):
            self._on_subscribe(sender, message)
        elif self._listens(sender, message):
            instance = self.instance_of(sender, message.key)
            if instance is not None:
                count = self._on_echo if isinstance(message, Echo) else self._on_ready
                count(message.key, instance, sender, message.digest)

    def _listens(self, sender: int, message: Echo | Ready) -> bool:
        """Return whether the sender is in the sample that counts, and names what can be a payload."""
        sample = self.echo_sample if isinstance(message, Echo) else self.ready_sample | self.delivery_sample
        if len(message.digest) != HASH_BYTES:
            self.context.record("rejected")
            return False
        return bool(sample >> sender & 1)

    def _on_subscribe(self, sender: int, message: Subscribe) -> None:
        new_echo = message.echoes and not self.echo_to >> sender & 1
        new_ready = message.readies and not self.ready_to >> sender & 1
        self.echo_to |= new_echo << sender
        self.ready_to |= new_ready << sender
        for key, instance in self.instances.items():
            if new_echo and instance.digest:
                self.send(sender, Echo(*key, instance.digest))
            if new_ready:
                for digest in instance.ready:
                    self.send(sender, Ready(*key, digest))

    def _on_gossip(self, sender: int, gossip: Gossip) -> None:
        key = gossip.key
        instance = self.instance_of(sender, key)
        if instance is None or instance.digest:
            return
        digest = digest_of(gossip.payload)
        if not self.scheme.verify(gossip.source, gossip_content(*key, digest), gossip.signature):
            self.context.record("rejected")
            return
        instance.payload, instance.digest = gossip.payload, digest
        for peer in self.gossip_to:
            self.send(peer, gossip)
        for peer in members(self.echo_to):
            self.send(peer, Echo(*key, digest))
        self._complete(key, instance)

    def _on_echo(self, key: tuple[int, int], instance: _Instance, sender: int, digest: bytes) -> None:
        if instance.echoes.add(sender, digest) >= self._share(self.parameters.echo_share):
            self._ready(key, instance, digest)

    def _share(self, share: float) -> int:
        return math.ceil(share * self.sample_size)

    def _ready(self, key: tuple[int, int], instance: _Instance, digest: bytes) -> None:
        if digest not in instance.ready and len(instance.ready) < _MOST_READY:
            instance.ready.append(digest)
            for peer in members(self.ready_to):
                self.send(peer, Ready(*key, digest))

    def _on_ready(self, key: tuple[int, int], instance: _Instance, sender: int, digest: bytes) -> None:
        if sum(bits >> sender & 1 for bits in instance.readies.values()) >= _MOST_READY:
            return
        bits = instance.readies[digest] = instance.readies.get(digest, 0) | 1 << sender
        if (bits & self.ready_sample).bit_count() >= self._share(self.parameters.ready_share):
            self._ready(key, instance, digest)
        self._complete(key, instance)

    def _complete(self, key: tuple[int, int], instance: _Instance) -> None:
        bits = instance.readies.get(instance.digest, 0) & self.delivery_sample
        if instance.delivered or bits.bit_count() < self._share(self.parameters.delivery_share):
            return
        self.close(key, instance, instance.payload)


@dataclass(frozen=True, kw_only=True)
class Sampled(BroadcastProtocol):
    """Reliable broadcast with random samples in place of quorums.

    References
    ----------
    Guerraoui et al., DISC 2019.
    """

    system: ClassVar[str] = "sampled-broadcast"
    messages: ClassVar[tuple[type[Message], ...]] = (Subscribe, Gossip, Echo, Ready)
    participant: ClassVar[type[SampledNode]] = SampledNode

    factor: float = setting(4.0, low=0.1, high=100.0, says="Size of a sample divided by ln n")
    echo_share: float = setting(
        0.67, low=0.01, high=1.0, says="Share of a sample that must echo before a node is ready"
    )
    ready_share: float = setting(
        0.34, low=0.01, high=1.0, says="Share of ready nodes in a sample that makes a node ready"
    )
    delivery_share: float = setting(
        0.67, low=0.01, high=1.0, says="Share of ready nodes in a sample that a delivery requires"
    )
    signatures: str = setting("keyed-hash", choices=SCHEMES, says="Strength of signatures")
    key_seed: int = setting(0, low=0, says="Seed of the keys")

    def sample(self, size: int) -> int:
        """Return the size of a sample."""
        return min(max(math.ceil(self.factor * math.log(size)), 1), size - 1) if size > 1 else 0

    def max_faults(self, size: int) -> int:
        """Return how many nodes may be Byzantine with small odds of failure: a fifth, cautiously."""
        return (size - 1) // 5
