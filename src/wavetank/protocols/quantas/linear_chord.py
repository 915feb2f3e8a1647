"""Chord as QUANTAS runs it: sorted ids in a ring, and links to the nodes 1, 2, 4, 8, ... places further on.

A lookup takes the longest link that does not jump over its target, so it needs as many hops as the distance has ones.
Nobody joins or leaves.

Source: the LinearChordPeer of QUANTAS 2 (J. Oglio, M. Nesterenko, arXiv 2605.08547, 2026), after I. Stoica et al.,
"Chord: A Scalable Peer-to-Peer Lookup Service for Internet Applications", SIGCOMM 2001.

Differs from the source:
1. Links are worked out from the distance where everyone is a neighbour; there is no table of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.interfaces import Message, Node, Snapshot
from wavetank.protocols.quantas.series import lookup_series
from wavetank.protocols.simulation import Run


class RingLookup(Message, frozen=True):
    """Look for a node along the ring."""

    target: int
    hops: int
    started: float


class ChordNode(Node):
    """A node of the ring; its place is its id."""

    def request(self, number: int, command: Any) -> None:
        """Look up the node of that id."""
        if command == self.context.id:
            self.context.record("lookup_hops", 0)
            self.context.record("lookup_rounds", 0)
        else:
            self._pass_on(command, 0, self.context.now)

    def receive(self, sender: int, message: Any) -> None:
        """Answer a lookup for this node, pass on the others."""
        if message.target == self.context.id:
            self.context.record("lookup_hops", message.hops)
            self.context.record("lookup_rounds", self.context.now - message.started)
        else:
            self._pass_on(message.target, message.hops, message.started)

    def _pass_on(self, target: int, hops: int, started: float) -> None:
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
class QuantasChord:
    """Chord on sorted ids, a lookup a round."""

    messages: ClassVar[tuple[type[Message], ...]] = (RingLookup,)

    def node(self, index: int, size: int) -> Node:
        """Return a new node."""
        return ChordNode()

    def bears(self, size: int) -> int:
        """Return 0: a lost lookup is not sent again."""
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        """Return "": every lookup that arrives has found its target."""
        return ""

    def series(self, run: Run, rounds: int) -> Mapping[str, list[Any]]:
        """Return the figures QUANTAS writes after every round."""
        return lookup_series(run, rounds, "linearChord")
