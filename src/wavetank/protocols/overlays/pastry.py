"""Pastry: every step shares one more digit with the key, and the last one is made among neighbours.

A key belongs to the node whose identifier is numerically closest.  A node knows its nearest neighbours on either side,
the leaves, and a table with a row for every number of leading digits shared and a column for the next digit.  What lies
within the leaves is settled by them; anything else goes to the table's entry, one digit closer.

Pastry is by A. Rowstron, P. Druschel, Middleware 2001; that a newcomer is handed records is from their PAST.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wavetank.protocols.overlays.directory import (
    JOIN,
    LEAVES,
    LEFT,
    REFRESH,
    RIGHT,
    STABILIZE,
    Directory,
    DirectoryNode,
    Lookup,
)
from wavetank.protocols.overlays.identifiers import DIGITS, SPACE, digit, ring_distance, shared_digits


class PastryNode(DirectoryNode):
    """A node with leaves and a table.

    Attributes
    ----------
    right, left : list of int
        Leaves after and before it, nearest first, half of ``redundancy`` each.
    rows : dict
        Digits shared to next digit to a node.
    """

    def __init__(self, parameters: Pastry, index: int, size: int) -> None:
        super().__init__(parameters, index, size)
        self.side = max(parameters.redundancy // 2, 1)
        self.right: list[int] = []
        self.left: list[int] = []
        self.rows: dict[int, dict[int, int]] = {}
        self.turn = 0
        # While joining: those met on the way, and those next to one's place, of which the next is asked for its leaves.
        self.met: list[int] = []
        self.hosts: list[int] = []

    def after(self, node: int) -> int:
        """Return how far a node is, clockwise."""
        return (self.ids[node] - self.id) % SPACE

    def before(self, node: int) -> int:
        """Return how far a node is, the other way round."""
        return (self.id - self.ids[node]) % SPACE

    def answer(self, target: int) -> tuple[tuple[int, ...], bool]:
        """Return the leaves closest to a key, or nodes that share more of it."""
        if not self.right or not self.left:
            return ((self.own,), True) if self.joined else ((), False)
        way = (target - self.id) % SPACE
        back = SPACE - way
        ids = self.ids
        right_end, left_end = self.right[-1], self.left[-1]
        reach_right, reach_left = self.after(right_end), self.before(left_end)
        # Fewer nodes than leaves: the two sides overlap and are everybody.
        if way <= reach_right or back <= reach_left or reach_right + reach_left >= SPACE:
            near = {self.own, *self.right, *self.left}
            best = sorted(near, key=lambda node: ring_distance(ids[node], target))
            if self.hosts:
                # A newcomer settles nothing before it has heard what is around it.
                return tuple(node for node in best if node != self.own)[: self.parameters.replicas], False
            return tuple(best[: self.parameters.replicas]), True
        row = self.rows.get(shared_digits(self.id, target), {})
        column = digit(target, shared_digits(self.id, target))
        contacts = [row[column]] if column in row else []
        own = min(way, back)
        for node in (right_end if way <= back else left_end, row.get(column + 1, -1), row.get(column - 1, -1)):
            if node >= 0 and node not in contacts and ring_distance(ids[node], target) < own:
                contacts.append(node)
        return tuple(contacts), False

    def rank(self, node: int, target: int) -> int:
        """Return a number that grows with the digits that differ and, among equals, with the distance on the ring."""
        identifier = self.ids[node]
        return (DIGITS - shared_digits(identifier, target)) * SPACE + ring_distance(identifier, target)

    def learn(self, node: int) -> None:
        """Take a node in as a leaf, and into the table where that has none."""
        if node == self.own or node in self.suspected:
            return
        self._place(node)
        # Leaves follow one another without gaps; a node beyond the last cannot extend them.
        if node not in self.right and (self.after(node) < self.after(self.right[-1]) if self.right else self.joined):
            self.right = sorted([*self.right, node], key=self.after)[: self.side]
        if node not in self.left and (self.before(node) < self.before(self.left[-1]) if self.left else self.joined):
            self.left = sorted([*self.left, node], key=self.before)[: self.side]

    def _place(self, node: int) -> None:
        shared = shared_digits(self.id, self.ids[node])
        self.rows.setdefault(shared, {}).setdefault(digit(self.ids[node], shared), node)

    def forget(self, node: int) -> None:
        """Take a silent node out; a silent leaf is replaced by what the farthest one on its side knows."""
        shared = shared_digits(self.id, self.ids[node])
        row = self.rows.get(shared)
        if row is not None and row.get(digit(self.ids[node], shared)) == node:
            del row[digit(self.ids[node], shared)]
            if not row:
                del self.rows[shared]
        for leaves, part in ((self.right, RIGHT), (self.left, LEFT)):
            if node in leaves:
                leaves.remove(node)
                if leaves and self.joined:
                    self.ask(leaves[-1], part, STABILIZE)
        if node in self.hosts[:1]:
            del self.hosts[0]
            self._ask_host()
        if self.joined and not (self.right and self.left):
            # Entries of the table are no leaves: a node that has lost a side does not know its place any more.
            self.joined = False
            self._join()

    def known(self) -> set[int]:
        """Return the nodes in leaves and table."""
        return {*self.right, *self.left, *(node for row in self.rows.values() for node in row.values())}

    def stabilize(self) -> None:
        """Ask the nearest leaf of each side for its side."""
        if self.right:
            self.ask(self.right[0], RIGHT, STABILIZE)
        if self.left:
            self.ask(self.left[0], LEFT, STABILIZE)

    def part(self, part: int, node: int) -> tuple[int, ...]:
        """Return a side of the leaves, both, or a row of the table; who asks for a side is a neighbour."""
        if part == RIGHT:
            found = (*self.left[:1], *self.right)
        elif part == LEFT:
            found = (*self.right[:1], *self.left)
        elif part == LEAVES:
            found = (*self.left, *self.right)
        else:
            found = tuple(self.rows.get(part, {}).values())
        if part in (RIGHT, LEFT, LEAVES):
            self.learn(node)
        return found

    def part_received(self, node: int, part: int, nodes: tuple[int, ...]) -> None:
        """Take a neighbour's leaves over, or fill gaps of the table."""
        if part == RIGHT and self.right[:1] == [node]:
            self.right = self._side(self.right, nodes, self.after)
        elif part == LEFT and self.left[:1] == [node]:
            self.left = self._side(self.left, nodes, self.before)
        elif part == LEAVES:
            self._surround({node, *(other for other in nodes if 0 <= other < self.size)} - set(self.suspected))
        for other in nodes:
            if 0 <= other < self.size and other != self.own and other not in self.suspected:
                if part < 0:
                    self.learn(other)
                else:
                    # A row may name nodes long gone: they must not become leaves by hearsay.
                    self._place(other)
        if part == LEAVES and self.hosts:
            self.hosts = []
            if not self.joined:
                self.enter()
            # A newcomer is complete, and notifies the nodes that should know it.
            for other in sorted({*self.right, *self.left, *self.met}):
                if other not in self.suspected:
                    self.notify(other, JOIN)
            self.met = []

    def _surround(self, nodes: Iterable[int]) -> None:
        """Take nodes from around this one as its leaves; with all on one side, it is a small ring that they close."""
        around = {*nodes} - {self.own}
        after = {other for other in around if self.after(other) <= self.before(other)}
        self.right = sorted(after or around, key=self.after)[: self.side]
        self.left = sorted(around - after or around, key=self.before)[: self.side]

    def _side(self, leaves: list[int], nodes: tuple[int, ...], key: Callable[[int], int]) -> list[int]:
        """Return one side after its nearest leaf has sent its own: a node that is not on that one any more is gone."""
        nearest = leaves[0]
        kept = {nearest, *(node for node in nodes if 0 <= node < self.size)} - {self.own}
        # What the neighbour's side does not reach, it cannot know to be gone.
        end = max(key(node) for node in kept)
        kept |= {node for node in leaves if key(node) > end}
        kept -= set(self.suspected)
        return sorted(kept, key=key)[: self.side]

    def notified(self, node: int, purpose: int) -> None:
        """Take a newcomer in."""
        self.learn(node)

    def inherits(self, node: int, key: int) -> bool:
        """Return whether a newcomer is among the closest to a key, and no other of them is closer than this node."""
        return self.hands_over(node, {*self.right, *self.left}, lambda other: ring_distance(self.ids[other], key))

    def refresh(self) -> None:
        """Ask a node of the next row for its entries of that row."""
        if not self.rows:
            return
        rows = sorted(self.rows)
        self.turn = (self.turn + 1) % len(rows)
        row = rows[self.turn]
        node = self.context.rng.choice(sorted(self.rows[row].values()))
        self.ask(node, row, REFRESH)

    def enters(self, lookup: Lookup) -> bool:
        """Ask those met on the way for a row each and the last for its leaves; with these a newcomer is a member."""
        self.hosts = [node for node in lookup.owners or () if node != self.own]
        self.met = [node for _, node in lookup.order if node not in self.suspected]
        for node in self.met:
            self._place(node)
            self.ask(node, shared_digits(self.id, self.ids[node]), JOIN)
        around = [node for node in self.hosts if node not in self.suspected]
        self._surround(around)
        self._ask_host()
        # As on Chord's ring, those around it do until one of them has sent its own.
        return bool(self.right and self.left)

    def _ask_host(self) -> None:
        """Ask the closest of those around one's place for its leaves; without any, search again."""
        wait = self.parameters.timeout_rounds
        if self.hosts:
            self.ask(self.hosts[0], LEAVES, JOIN)
            wait *= 2
        self.context.set_timer("join", wait)


@dataclass(frozen=True, kw_only=True)
class Pastry(Directory):
    """A directory on Pastry's digits; parameters are those of all overlays.

    References
    ----------
    Rowstron and Druschel, Middleware 2001.
    """

    def node(self, index: int, size: int) -> PastryNode:
        """Return a new node."""
        return PastryNode(self, index, size)
