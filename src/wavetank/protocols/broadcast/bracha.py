"""Bracha's reliable broadcast: send, echo, ready, each carrying the whole payload.

A node echoes what the sender says, once.  A quorum of echoes, or f+1 readies, makes it ready; 2f+1 readies make it
deliver.  Two quorums share a correct node, so no two payloads can both become ready; f+1 readies make everyone ready,
so that all deliver when one does.

Source: G. Bracha, "Asynchronous Byzantine agreement protocols", Information and Computation 75(2), 1987.

Differs from the source:
1. A sender may broadcast any number of times; each broadcast is an instance of its own.
2. The sender's own echo and ready are counted like the others'.
3. A node lets another one speak of 1024 undelivered broadcasts of a source; what it says of more is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    BroadcastProtocol,
    Instance,
    InstanceNode,
    Sizes,
    Votes,
    intersecting_quorum,
    most_faults,
)
from wavetank.protocols.interfaces import Message, Node
from wavetank.settings import setting


class Send(Message, frozen=True):
    """The sender's broadcast of that number."""

    number: int
    payload: bytes


class Echo(Message, frozen=True):
    """What a node heard from the sender."""

    source: int
    number: int
    payload: bytes


class Ready(Message, frozen=True):
    """A node knows that no other payload can become ready."""

    source: int
    number: int
    payload: bytes


@dataclass(slots=True)
class _Instance(Instance):
    echoed: bool = False
    ready: bool = False
    echoes: Votes = field(default_factory=Votes)
    readies: Votes = field(default_factory=Votes)


class BrachaNode(InstanceNode[_Instance]):
    """A participant."""

    def __init__(self, parameters: Bracha, size: int) -> None:
        super().__init__(Sizes(parameters.payload_bytes))
        faults = most_faults(size)
        self.enough_echoes = parameters.quorum or intersecting_quorum(size)
        self.enough_to_follow = faults + 1
        self.enough_readies = parameters.quorum or 2 * faults + 1

    def new_instance(self) -> _Instance:
        """Return what is known of a broadcast before anything is."""
        return _Instance()

    def send_payload(self, payload: bytes) -> None:
        """Send everyone the payload."""
        self.tell_all(Send(self.number, payload))
        self._echo(self.context.id, self.number, payload)

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        if isinstance(message, Send):
            self._echo(sender, message.number, message.payload)
            return
        key = message.source, message.number
        instance = self.instance_of(sender, message.source, message.number)
        if instance is None or instance.delivered:
            return
        if isinstance(message, Echo):
            if instance.echoes.add(sender, message.payload) >= self.enough_echoes:
                self._ready(key, instance, message.payload)
        else:
            self._count_ready(key, instance, sender, message.payload)

    def _echo(self, source: int, number: int, payload: bytes) -> None:
        key = source, number
        instance = self.instance_of(source, *key)
        if instance is None or instance.echoed:
            return
        instance.echoed = True
        self.tell_all(Echo(source, number, payload))
        if not instance.delivered and instance.echoes.add(self.context.id, payload) >= self.enough_echoes:
            self._ready(key, instance, payload)

    def _ready(self, key: tuple[int, int], instance: _Instance, payload: bytes) -> None:
        if not instance.ready:
            instance.ready = True
            self.tell_all(Ready(*key, payload))
            self._count_ready(key, instance, self.context.id, payload)

    def _count_ready(self, key: tuple[int, int], instance: _Instance, voter: int, payload: bytes) -> None:
        count = instance.readies.add(voter, payload)
        if count >= self.enough_to_follow:
            self._ready(key, instance, payload)
        if instance.readies.of(payload) >= self.enough_readies and not instance.delivered:
            instance.echoes, instance.readies = Votes(), Votes()
            self.close(key, instance, payload)


@dataclass(frozen=True, kw_only=True)
class Bracha(BroadcastProtocol):
    """Reliable broadcast in which every message carries the payload.

    Parameters
    ----------
    quorum : int
        Votes that are enough; 0 for the right numbers.  Less is unsafe, and there to show that.
    payload_bytes : int
        What a payload is counted as; 0 for its own size.

    References
    ----------
    Bracha, Information and Computation 75(2), 1987.
    """

    system: ClassVar[str] = "bracha"
    messages: ClassVar[tuple[type[Message], ...]] = (Send, Echo, Ready)

    quorum: int = setting(0, low=0, says="votes that are enough; 0 for the right numbers")

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return BrachaNode(self, size)
