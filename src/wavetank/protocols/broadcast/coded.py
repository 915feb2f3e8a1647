"""Erasure-coded reliable broadcast: everyone echoes its own fragment, so that echoes carry 1/(n-2f) of the payload.

The sender codes the payload into n fragments under a Merkle root and sends each node its own.  A node that has n-2f
fragments of a root decodes, codes again, and goes on only if the root comes out: then whoever decodes from any other
fragments finds the same payload.

Source: C. Cachin, S. Tessaro, "Asynchronous Verifiable Information Dispersal", SRDS 2005; in the form of A. Miller et
al., "The Honey Badger of BFT Protocols", CCS 2016.

Differs from the source:
1. Symbols of 16 bits (see :mod:`wavetank.protocols.broadcast.erasure`).
2. A sender may broadcast any number of times, each an instance of its own.
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
    most_faults,
)
from wavetank.protocols.broadcast.erasure import committed, decode, fragment_bytes, is_proved
from wavetank.protocols.interfaces import Message, Node


class Send(Message, frozen=True):
    """A node's own fragment, from the sender."""

    number: int
    root: bytes
    fragment: bytes
    path: tuple[bytes, ...]


class Echo(Message, frozen=True):
    """A node's own fragment, for everyone."""

    source: int
    number: int
    root: bytes
    fragment: bytes
    path: tuple[bytes, ...]


class Ready(Message, frozen=True):
    """A node knows that the root is of a payload and that no other can become ready."""

    source: int
    number: int
    root: bytes


@dataclass(slots=True)
class _Instance(Instance):
    echoed: bool = False
    ready: bool = False
    echoes: Votes = field(default_factory=Votes)
    readies: Votes = field(default_factory=Votes)
    # Root to place to fragment.
    fragments: dict[bytes, dict[int, bytes]] = field(default_factory=dict)


class CodedNode(InstanceNode[_Instance]):
    """A participant."""

    def __init__(self, parameters: Coded, size: int) -> None:
        faults = most_faults(size)
        self.needed = size - 2 * faults
        declared = parameters.payload_bytes
        super().__init__(Sizes(declared, fragment_bytes(declared, self.needed) if declared else 0))
        self.faults = faults
        self.enough_echoes = size - faults
        # The first call loads the compiled code; others need not wait for that later.
        committed(b"", size, self.needed)

    def new_instance(self) -> _Instance:
        """Return what is known of a broadcast before anything is."""
        return _Instance()

    def send_payload(self, payload: bytes) -> None:
        """Send everyone a fragment."""
        root, fragments, paths = committed(payload, self.context.size, self.needed)
        for peer in self.context.peers:
            self.tell(peer, Send(self.number, root, fragments[peer], paths[peer]))
        me = self.context.id
        self._on_send(me, Send(self.number, root, fragments[me], paths[me]))

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        if isinstance(message, Send):
            self._on_send(sender, message)
            return
        if len(message.root) != HASH_BYTES:
            self.context.record("rejected")
            return
        key = message.source, message.number
        instance = self.instance_of(sender, message.source, message.number)
        if instance is None or instance.delivered:
            return
        if isinstance(message, Echo):
            self._on_echo(key, instance, sender, message)
        else:
            self._count_ready(key, instance, sender, message.root)

    def _on_send(self, source: int, message: Send) -> None:
        key = source, message.number
        instance = self.instance_of(source, *key)
        me = self.context.id
        if instance is None or instance.echoed:
            return
        if not is_proved(message.root, message.fragment, me, self.context.size, message.path):
            self.context.record("rejected")
            return
        instance.echoed = True
        echo = Echo(*key, message.root, message.fragment, message.path)
        self.tell_all(echo)
        if not instance.delivered:
            self._on_echo(key, instance, me, echo)

    def _on_echo(self, key: tuple[int, int], instance: _Instance, sender: int, echo: Echo) -> None:
        if not is_proved(echo.root, echo.fragment, sender, self.context.size, echo.path):
            self.context.record("rejected")
            return
        count = instance.echoes.add(sender, echo.root)
        if not count:
            return
        instance.fragments.setdefault(echo.root, {})[sender] = echo.fragment
        if count >= self.enough_echoes and not instance.ready and self._payload(instance, echo.root) is not None:
            self._ready(key, instance, echo.root)
        self._complete(key, instance, echo.root)

    def _payload(self, instance: _Instance, root: bytes) -> bytes | None:
        """Return the payload of a root, None when there is none, or not yet."""
        payload = decode(instance.fragments.get(root, {}), self.needed)
        if payload is None or committed(payload, self.context.size, self.needed)[0] != root:
            return None
        return payload

    def _ready(self, key: tuple[int, int], instance: _Instance, root: bytes) -> None:
        if not instance.ready:
            instance.ready = True
            self.tell_all(Ready(*key, root))
            self._count_ready(key, instance, self.context.id, root)

    def _count_ready(self, key: tuple[int, int], instance: _Instance, voter: int, root: bytes) -> None:
        if instance.readies.add(voter, root) > self.faults:
            self._ready(key, instance, root)
        self._complete(key, instance, root)

    def _complete(self, key: tuple[int, int], instance: _Instance, root: bytes) -> None:
        if instance.delivered or instance.readies.of(root) <= 2 * self.faults:
            return
        payload = self._payload(instance, root)
        if payload is None:
            return
        instance.echoes, instance.readies, instance.fragments = Votes(), Votes(), {}
        self.close(key, instance, payload)


@dataclass(frozen=True, kw_only=True)
class Coded(BroadcastProtocol):
    """Reliable broadcast in which echoes carry fragments of an erasure code.

    Parameters
    ----------
    payload_bytes : int
        What a payload is counted as; 0 for its own size.

    References
    ----------
    Cachin and Tessaro, SRDS 2005.
    """

    system: ClassVar[str] = "coded-broadcast"
    messages: ClassVar[tuple[type[Message], ...]] = (Send, Echo, Ready)

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return CodedNode(self, size)
