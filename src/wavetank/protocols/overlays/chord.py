"""Chord: nodes on a ring, each with its successors and with fingers at doubling distances.

A key belongs to the first node at or after it.  Every question goes to the closest node known before the key, which at
least halves the way that is left, and ends where the key lies between a node and one of its successors.  A node asks
its successor for that one's predecessor to learn of newcomers between them, and looks up one finger after the other.

Chord is by I. Stoica, R. Morris, D. Karger, M. F. Kaashoek, H. Balakrishnan, SIGCOMM 2001.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from wavetank.protocols.overlays.directory import (
    ALIVE,
    FINGERS,
    JOIN,
    REFRESH,
    RIGHT,
    STABILIZE,
    Directory,
    DirectoryNode,
    Lookup,
)
from wavetank.protocols.overlays.identifiers import BITS, SPACE

_CONTACTS = 4


class ChordNode(DirectoryNode):
    """A node on the ring.

    Attributes
    ----------
    predecessor : int
        -1 for none.
    successors : list of int
        Nearest first.
    fingers : dict
        Exponent to the first node at least 2**exponent further on.
    """

    def __init__(self, parameters: Chord, index: int, size: int) -> None:
        super().__init__(parameters, index, size)
        self.predecessor = -1
        self.successors: list[int] = []
        self.fingers: dict[int, int] = {}
        self.exponent = BITS
        # Whether this node has notified its successor that it came in.
        self.settled_in = True
        # Distances of the successors, and all nodes known in the order of their distances; made anew when stale.
        self._reach: list[int] = []
        self._distances: list[int] = []
        self._nodes: list[int] = []
        self._stale = False

    def distance(self, node: int) -> int:
        """Return how far a node is, clockwise."""
        return (self.ids[node] - self.id) % SPACE

    def _ordered(self) -> None:
        self._stale = False
        self._reach = [self.distance(node) for node in self.successors]
        pairs = sorted((self.distance(node), node) for node in {*self.successors, *self.fingers.values()})
        self._distances = [distance for distance, _ in pairs]
        self._nodes = [node for _, node in pairs]

    def answer(self, target: int) -> tuple[tuple[int, ...], bool]:
        """Return the successors of a key, or the closest nodes known before it."""
        if not self.successors:
            return ((self.own,), True) if self.joined else ((), False)
        if self._stale:
            self._ordered()
        replicas = self.parameters.replicas
        way = (target - self.id) % SPACE
        if way == 0 or (self.predecessor >= 0 and way > (self.ids[self.predecessor] - self.id) % SPACE):
            return (self.own, *self.successors[: replicas - 1]), True
        reach = self._reach
        if way <= reach[-1]:
            place = bisect_left(reach, way)
            # Further down the list ends before all who keep the record are named.
            if place == 0 or place + replicas <= len(reach):
                return tuple(self.successors[place : place + replicas]), True
        end = bisect_left(self._distances, way)
        before = self._nodes[max(end - _CONTACTS, 0) : end][::-1]
        if way <= reach[-1]:
            # If all before the key are silent, the one after it is left.
            before = [*before[: _CONTACTS - 1], self.successors[place]]
        return tuple(before), False

    def rank(self, node: int, target: int) -> int:
        """Return the way from a node to the key, clockwise."""
        return (target - self.ids[node]) % SPACE

    def learn(self, node: int) -> None:
        """Take a node in as a finger if it is closer than the present one, and as a successor if it is among them.

        Successors follow one another without gaps; a node beyond the last cannot extend them.
        """
        if node == self.own or node in self.suspected:
            return
        distance = self.distance(node)
        if distance < self.distance(self.successors[-1]) if self.successors else self.joined:
            self._succeed([*self.successors, node])
        exponent = distance.bit_length() - 1
        finger = self.fingers.get(exponent)
        if finger is None or distance < self.distance(finger):
            self.fingers[exponent] = node
        self._stale = True

    def _succeed(self, nodes: list[int]) -> None:
        found = {node for node in nodes if node not in (self.own, -1) and node not in self.suspected}
        self.successors = sorted(found, key=self.distance)[: self.parameters.redundancy]
        self._stale = True

    def forget(self, node: int) -> None:
        """Take a silent node out; a silent successor makes room for the next."""
        first = bool(self.successors) and self.successors[0] == node
        if node in self.successors:
            self.successors.remove(node)
        for exponent in [exponent for exponent, finger in self.fingers.items() if finger == node]:
            del self.fingers[exponent]
        self._stale = True
        if self.predecessor == node:
            self.predecessor = -1
        if not self.successors and self.joined:
            # Fingers are no successors: a node that has lost them all does not know its place any more.
            self.joined = False
            self._join()
            return
        if first and self.joined:
            self.stabilize()

    def known(self) -> set[int]:
        """Return the nodes in the table."""
        return {*self.successors, *self.fingers.values(), *([self.predecessor] if self.predecessor >= 0 else [])}

    def stabilize(self) -> None:
        """Ask the successor who is before it, and whether the predecessor is there."""
        if self.successors:
            self.ask(self.successors[0], RIGHT, STABILIZE)
        if self.predecessor >= 0 and self.predecessor not in self.successors[:1]:
            self.ask(self.predecessor, ALIVE, STABILIZE)

    def part(self, part: int, node: int) -> tuple[int, ...]:
        """Return predecessor and successors, or the fingers."""
        if part == FINGERS:
            return tuple(sorted({*self.fingers.values()} - {node}))
        return (self.predecessor, *self.successors) if part == RIGHT else ()

    def part_received(self, node: int, part: int, nodes: tuple[int, ...]) -> None:
        """Take the successor's list over, and a node that stands between."""
        if part == FINGERS:
            for other in nodes:
                if 0 <= other < self.size:
                    self.learn(other)
            return
        if part != RIGHT or not nodes or not self.successors:
            return
        if node not in self.successors and self.distance(node) > self.distance(self.successors[0]):
            return
        if min(nodes) < -1 or max(nodes) >= self.size:
            nodes = tuple(other if 0 <= other < self.size else -1 for other in nodes)
        between, after = nodes[0], nodes[1:]
        # In a ring that closes, what follows is behind this node.
        closed = self.own in after
        if closed:
            after = after[: after.index(self.own)]
        near = [between] if between >= 0 and 0 < self.distance(between) < self.distance(node) else []
        found = [*near, node, *after]
        if not closed and len(found) < self.parameters.redundancy:
            # What a short list does not reach, it cannot know to be gone.
            end = max(self.distance(other) for other in found if other >= 0)
            found += [other for other in self.successors if self.distance(other) > end]
        self._succeed(found)
        if self.successors:
            self.notify(self.successors[0], STABILIZE if self.settled_in else JOIN)
            self.settled_in = True
        if near and between in self.suspected:
            # It was silent, and has notified the successor: it may have come back.
            self.ask(between, RIGHT, STABILIZE)

    def notified(self, node: int, purpose: int) -> None:
        """Take a predecessor that is closer than the present one."""
        if self.predecessor < 0 or self.distance(node) > self.distance(self.predecessor):
            self.predecessor = node
        if self.joined and not self.successors:
            self._succeed([node])

    def inherits(self, node: int, key: int) -> bool:
        """Return whether a key comes before the new predecessor: all such keys are kept by both."""
        start = self.ids[node]
        return node == self.predecessor and (key - start - 1) % SPACE >= (self.id - start) % SPACE

    def refresh(self) -> None:
        """Look up the next finger that the successors do not cover, from far to near."""
        if not self.successors:
            return
        covered = self.distance(self.successors[-1])
        self.exponent -= 1
        if self.exponent < 0 or 1 << self.exponent <= covered:
            self.exponent = BITS - 1
        if 1 << self.exponent > covered:
            self.look(REFRESH, (self.id + (1 << self.exponent)) % SPACE, self.exponent)

    def settled(self, lookup: Lookup) -> None:
        """Take in a finger."""
        owners = lookup.owners or ()
        if owners and owners[0] != self.own and owners[0] not in self.suspected:
            self.fingers[lookup.detail] = owners[0]
        else:
            self.fingers.pop(lookup.detail, None)
        self._stale = True

    def enters(self, lookup: Lookup) -> bool:
        """Take the successors over that a newcomer was given; copy the list and the fingers of the first."""
        self._succeed(list(lookup.owners or ()))
        self.settled_in = False
        if self.successors:
            # Most of a short session would pass before its own period comes round.
            self.ask(self.successors[0], RIGHT, JOIN)
            self.ask(self.successors[0], FINGERS, JOIN)
        return bool(self.successors)


@dataclass(frozen=True, kw_only=True)
class Chord(Directory):
    """A directory on Chord's ring; parameters are those of all overlays.

    References
    ----------
    Stoica et al., SIGCOMM 2001.
    """

    def node(self, index: int, size: int) -> ChordNode:
        """Return a new node."""
        return ChordNode(self, index, size)
