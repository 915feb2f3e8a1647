"""Erasure-coded reliable broadcast: everyone echoes its own fragment, so that echoes carry 1/(n-2f) of the payload.

The sender codes the payload into n fragments under a Merkle root and sends each node its own.  A node that has n-2f
fragments of a root decodes, codes again, and goes on only if the root comes out: then every node that decodes from
any other fragments finds the same payload.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    HASH_BYTES,
    BroadcastProtocol,
    Placed,
    Ready,
    Sizes,
    VotedInstance,
    VotingNode,
    most_faults,
)
from wavetank.protocols.broadcast.erasure import committed, decode, fragment_bytes, is_proved
from wavetank.sim.node import Message


class Send(Message, frozen=True):
    """A node's own fragment, from the sender."""

    number: int
    root: bytes
    fragment: bytes
    path: tuple[bytes, ...]


class Echo(Placed, frozen=True):
    """A node's own fragment, for everyone."""

    root: bytes
    fragment: bytes
    path: tuple[bytes, ...]


@dataclass(slots=True)
class _Instance(VotedInstance):
    # Root to place to fragment.
    fragments: dict[bytes, dict[int, bytes]] = field(default_factory=dict)


class CodedNode(VotingNode[_Instance]):
    """A participant."""

    new_instance = _Instance

    def __init__(self, parameters: Coded, size: int) -> None:
        self.needed = size - 2 * most_faults(size)
        declared = parameters.payload_bytes
        super().__init__(Sizes(declared, fragment_bytes(declared, self.needed) if declared else 0), size)
        self.enough_echoes = size - self.faults
        # The first call loads the compiled code; others need not wait for that later.
        committed(b"", size, self.needed)

    def send_payload(self, payload: bytes) -> None:
        """Send everyone a fragment."""
        root, fragments, paths = committed(payload, self.context.size, self.needed)
        for peer in self.context.peers:
            self.send(peer, Send(self.number, root, fragments[peer], paths[peer]))
        me = self.context.id
        self._on_send(me, Send(self.number, root, fragments[me], paths[me]))

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        if isinstance(message, Send):
            self._on_send(sender, message)
            return
        root = message.root if isinstance(message, Echo) else message.digest
        if len(root) != HASH_BYTES:
            self.context.record("rejected")
            return
        instance = self.instance_of(sender, message.key)
        if instance is None:
            return
        if isinstance(message, Echo):
            self._on_echo(instance, sender, message)
        else:
            self.count_ready(message.key, instance, sender, root)

    def _on_send(self, source: int, message: Send) -> None:
        key = source, message.number
        instance = self.instance_of(source, key)
        me = self.context.id
        if instance is None or instance.echoed:
            return
        if not is_proved(message.root, message.fragment, me, self.context.size, message.path):
            self.context.record("rejected")
            return
        instance.echoed = True
        echo = Echo(*key, message.root, message.fragment, message.path)
        self.send_all(echo)
        self._on_echo(instance, me, echo)

    def _on_echo(self, instance: _Instance, sender: int, echo: Echo) -> None:
        if instance.delivered:
            return
        if not is_proved(echo.root, echo.fragment, sender, self.context.size, echo.path):
            self.context.record("rejected")
            return
        count = instance.echoes.add(sender, echo.root)
        if not count:
            return
        instance.fragments.setdefault(echo.root, {})[sender] = echo.fragment
        if count >= self.enough_echoes and not instance.ready and self._payload(instance, echo.root) is not None:
            self.become_ready(echo.key, instance, echo.root)
        self.complete(echo.key, instance, echo.root)

    def _payload(self, instance: _Instance, root: bytes) -> bytes | None:
        """Return the payload of a root, None when there is none, or not yet."""
        payload = decode(instance.fragments.get(root, {}), self.needed)
        if payload is None or committed(payload, self.context.size, self.needed)[0] != root:
            return None
        return payload

    def complete(self, key: tuple[int, int], instance: _Instance, value: bytes) -> None:
        """Deliver, once the fragments make a payload of that root."""
        if instance.delivered or instance.readies.of(value) < self.enough_readies:
            return
        payload = self._payload(instance, value)
        if payload is not None:
            instance.fragments.clear()
            self.close(key, instance, payload)


@dataclass(frozen=True, kw_only=True)
class Coded(BroadcastProtocol):
    """Reliable broadcast in which echoes carry fragments of an erasure code.

    References
    ----------
    Cachin and Tessaro, SRDS 2005.
    """

    system: ClassVar[str] = "coded-broadcast"
    messages: ClassVar[tuple[type[Message], ...]] = (Send, Echo, Ready)
    participant: ClassVar[type[CodedNode]] = CodedNode
