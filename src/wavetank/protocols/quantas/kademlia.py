"""Kademlia as QUANTAS runs it: one contact for every place of the first bit in which two ids differ.

A lookup goes to the contact that shares one more bit with the target at least, so it takes at most log2(N) hops, and
about half of that on average.  Nobody joins or leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.quantas.series import QuantasAlgorithm, lookup_series
from wavetank.sim.node import Message, Node
from wavetank.sim.simulation import Run


class Lookup(Message, frozen=True):
    """Look for a node."""

    target: int
    hops: int
    started: float


class LookupNode(Node):
    """A node that passes lookups on and writes down those that arrive; the way it chooses is the overlay's."""

    def request(self, number: int, command: Any) -> None:
        """Look up the node of that id."""
        context = self.context
        if command == context.id:
            context.record("lookup_hops", 0)
            context.record("lookup_rounds", 0)
        else:
            self.pass_on(command, 0, context.now)

    def receive(self, sender: int, message: Any) -> None:
        """Answer a lookup for this node, pass on the others."""
        context = self.context
        if message.target == context.id:
            context.record("lookup_hops", message.hops)
            context.record("lookup_rounds", context.now - message.started)
        else:
            self.pass_on(message.target, message.hops, message.started)

    def pass_on(self, target: int, hops: int, started: float) -> None:
        """Send a lookup one hop further; one that knows no way ends here."""


class KademliaNode(LookupNode):
    """A node with one contact for each group of ids.

    Attributes
    ----------
    contacts : dict
        Place of the highest differing bit to the contact.
    """

    def __init__(self) -> None:
        self.contacts: dict[int, int] = {}

    def pass_on(self, target: int, hops: int, started: float) -> None:
        """Send a lookup to the contact of the target's group."""
        group = (target ^ self.context.id).bit_length() - 1
        contact = self.contacts.get(group)
        if contact is None:
            contact = self._drawn(group, target)
            if contact < 0:
                return
        self.context.send(contact, Lookup(target, hops + 1, started))

    def _drawn(self, group: int, target: int) -> int:
        """Draw the contact of a group; -1 when no neighbour is nearer to the target than this node."""
        context = self.context
        if len(context.peers) == context.size - 1:
            low = ((context.id >> group) ^ 1) << group
            contact = context.rng.between(low, min(low + (1 << group), context.size) - 1)
        else:
            group_of = [peer for peer in context.peers if (peer ^ context.id).bit_length() - 1 == group]
            if not group_of:
                nearest = min(context.peers, key=lambda peer: peer ^ target, default=context.id)
                return nearest if nearest ^ target < context.id ^ target else -1
            contact = context.rng.choice(group_of)
        self.contacts[group] = contact
        return contact


class LookupOverlay(QuantasAlgorithm):
    """What the overlays of QUANTAS have in common: only lookups are lost, and only the right node answers one."""

    where = "overlay"

    def example_command(self, number: int) -> int:
        """Return what a client may ask: the node that is looked up."""
        return 0


@dataclass(frozen=True, kw_only=True)
class QuantasKademlia(LookupOverlay):
    """Kademlia with one contact a group, a lookup a round."""

    messages: ClassVar[tuple[type[Message], ...]] = (Lookup,)

    def node(self, index: int, size: int) -> Node:
        """Return a new node."""
        return KademliaNode()

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return the figures QUANTAS writes after every round."""
        return lookup_series(run, rounds, "kademlia")
