"""Bracha's reliable broadcast: send, echo, ready, each carrying the whole payload.

A node echoes what the sender says, once.  A quorum of echoes, or f+1 readies, makes it ready; 2f+1 readies make it
deliver.  Two quorums share a correct node, so no two payloads can both become ready; f+1 readies make everyone ready,
so that all deliver when one does.

Source: G. Bracha, "Asynchronous Byzantine agreement protocols", Information and Computation 75(2), 1987.

Differs from the source:
1. A sender may broadcast any number of times; each broadcast is an instance of its own.
2. The sender's own echo and ready are counted like the others'.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    CountingNode,
    Sizes,
    Votes,
    broken_agreement,
    intersecting_quorum,
    most_faults,
    payload_of,
)
from wavetank.protocols.interfaces import Message, Node, Snapshot
from wavetank.settings import check_parameters, setting


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
class _Instance:
    echoed: bool = False
    ready: bool = False
    delivered: bool = False
    echoes: Votes = field(default_factory=Votes)
    readies: Votes = field(default_factory=Votes)


class BrachaNode(CountingNode):
    """A participant."""

    def __init__(self, parameters: Bracha, size: int) -> None:
        super().__init__(Sizes(parameters.payload_bytes))
        faults = most_faults(size)
        self.enough_echoes = parameters.quorum or intersecting_quorum(size)
        self.enough_to_follow = faults + 1
        self.enough_readies = parameters.quorum or 2 * faults + 1
        self.number = 0
        self.asked: dict[int, int] = {}
        self.instances: dict[tuple[int, int], _Instance] = {}

    def request(self, number: int, command: Any) -> None:
        """Broadcast a payload."""
        payload = payload_of(command)
        self.number += 1
        self.asked[self.number] = number
        self.tell_all(Send(self.number, payload))
        self._echo(self.context.id, self.number, payload)

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        if isinstance(message, Send):
            self._echo(sender, message.number, message.payload)
            return
        key = message.source, message.number
        instance = self.instances.get(key)
        if instance is None:
            instance = self.instances[key] = _Instance()
        if instance.delivered:
            return
        if isinstance(message, Echo):
            if instance.echoes.add(sender, message.payload) >= self.enough_echoes:
                self._ready(key, instance, message.payload)
        else:
            self._count_ready(key, instance, sender, message.payload)

    def _echo(self, source: int, number: int, payload: bytes) -> None:
        key = source, number
        instance = self.instances.setdefault(key, _Instance())
        if instance.echoed:
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
            instance.delivered = True
            instance.echoes, instance.readies = Votes(), Votes()
            self.context.decide(payload, key)
            if key[0] == self.context.id and key[1] in self.asked:
                self.context.reply(self.asked.pop(key[1]), key)


@dataclass(frozen=True, kw_only=True)
class Bracha:
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

    messages: ClassVar[tuple[type[Message], ...]] = (Send, Echo, Ready)

    quorum: int = setting(0, low=0, says="votes that are enough; 0 for the right numbers")
    payload_bytes: int = setting(0, unit="bytes", low=0, says="what a payload is counted as; 0 for its own size")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where="system bracha")

    def node(self, index: int, size: int) -> Node:
        """Return a new participant."""
        return BrachaNode(self, size)

    def bears(self, size: int) -> int:
        """Return how many nodes may be Byzantine."""
        return most_faults(size)

    def violation(self, snapshot: Snapshot) -> str:
        """Return two nodes that delivered different payloads, in words, or ""."""
        return broken_agreement(snapshot)

    def example_command(self, number: int) -> tuple[str, bytes]:
        """Return what a client may ask."""
        return ("broadcast", f"payload {number}".encode())
