"""Bracha's reliable broadcast: send, echo, ready, each carrying the whole payload.

A node echoes what the sender says, once.  A quorum of echoes, or f+1 readies, makes it ready; 2f+1 readies make it
deliver.  Two quorums share a correct node, so no two payloads can both become ready; f+1 readies make everyone ready,
so that all deliver when one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.broadcast.accounting import (
    BroadcastProtocol,
    Placed,
    Send,
    Sizes,
    VotedInstance,
    VotingNode,
)
from wavetank.settings import setting
from wavetank.sim.node import Message


class Echo(Placed, frozen=True):
    """What a node heard from the sender."""

    payload: bytes


class Ready(Placed, frozen=True):
    """A node knows that no other payload can become ready."""

    payload: bytes


class BrachaNode(VotingNode[VotedInstance]):
    """A participant."""

    new_instance = VotedInstance
    ready_message = Ready

    def __init__(self, parameters: Bracha, size: int) -> None:
        super().__init__(Sizes(parameters.payload_bytes), size, quorum=parameters.quorum)

    def send_payload(self, payload: bytes) -> None:
        """Send everyone the payload."""
        self.send_all(Send(self.number, payload))
        self._echo(self.context.id, self.number, payload)

    def receive(self, sender: int, message: Any) -> None:
        """React to a message."""
        if isinstance(message, Send):
            self._echo(sender, message.number, message.payload)
            return
        instance = self.instance_of(sender, message.key)
        if instance is not None:
            count = self.count_echo if isinstance(message, Echo) else self.count_ready
            count(message.key, instance, sender, message.payload)

    def _echo(self, source: int, number: int, payload: bytes) -> None:
        key = source, number
        instance = self.instance_of(source, key)
        if instance is not None and not instance.echoed:
            instance.echoed = True
            self.send_all(Echo(*key, payload))
            self.count_echo(key, instance, self.context.id, payload)

    def complete(self, key: tuple[int, int], instance: VotedInstance, value: bytes) -> None:
        """Deliver the payload."""
        self.close(key, instance, value)


@dataclass(frozen=True, kw_only=True)
class Bracha(BroadcastProtocol):
    """Reliable broadcast in which every message carries the payload.

    Parameters
    ----------
    quorum : int
        Votes that are enough; 0 for the right numbers.  Less is unsafe, and there to show that.

    References
    ----------
    Bracha, Information and Computation 75(2), 1987.
    """

    system: ClassVar[str] = "bracha"
    messages: ClassVar[tuple[type[Message], ...]] = (Send, Echo, Ready)
    participant: ClassVar[type[BrachaNode]] = BrachaNode

    quorum: int = setting(0, low=0, says="Votes that suffice; 0 for the right numbers")
