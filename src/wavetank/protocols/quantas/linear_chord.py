"""Chord as QUANTAS runs it: sorted ids in a ring, and links to the nodes 1, 2, 4, 8, ... places further on.

A lookup takes the longest link that does not jump over its target, so it needs as many hops as the distance has ones.
Nobody joins or leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.quantas.kademlia import LookupNode, LookupOverlay
from wavetank.protocols.quantas.series import lookup_series
from wavetank.sim.node import Message, Node
from wavetank.sim.simulation import Run


class RingLookup(Message, frozen=True):
    """Look for a node along the ring."""

    target: int
    hops: int
    started: float


class ChordNode(LookupNode):
    """A node of the ring; its place is its id."""

    def pass_on(self, target: int, hops: int, started: float) -> None:
        """Send a lookup over the longest link that does not jump over its target."""
        context = self.context
        size, peers = context.size, context.peers
        distance = (target - context.id) % size
        skip = 1 << (distance.bit_length() - 1)
        if len(peers) < size - 1:
            while skip and (context.id + skip) % size not in peers:
                skip >>= 1
            if not skip:
                # No link of the ring: the nearest neighbour before the target, or else the nearest of all.
                skips = [(peer - context.id) % size for peer in peers]
                skip = min((each for each in skips if each <= distance), default=min(skips, default=0))
                if not skip:
                    return
        context.send((context.id + skip) % size, RingLookup(target, hops + 1, started))


@dataclass(frozen=True, kw_only=True)
class QuantasChord(LookupOverlay):
    """Chord on sorted ids, a lookup a round."""

    messages: ClassVar[tuple[type[Message], ...]] = (RingLookup,)

    def node(self, index: int, size: int) -> Node:
        """Return a new node."""
        return ChordNode()

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return the figures QUANTAS writes after every round."""
        return lookup_series(run, rounds, "linearChord")
