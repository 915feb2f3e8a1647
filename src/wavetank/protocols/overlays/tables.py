"""Tables given to nodes before they start: exact ones, or as little as one has after a start from scratch.

A stationary overlay need not be grown by thousands of joins: each table can be written down from the sorted identifiers
in O(log N).  A cold one knows its nearest nodes and log2 N random ones, the same for all overlays.

Source: the definitions of successor, finger, leaf and bucket in Stoica et al. 2001, Rowstron and Druschel 2001,
Maymounkov and Mazieres 2002.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence

from wavetank.protocols.overlays.chord import ChordNode
from wavetank.protocols.overlays.directory import DirectoryNode, inner_node
from wavetank.protocols.overlays.identifiers import BITS, DIGIT_BITS, DIGITS, SPACE, digit, key_of, ring_distance
from wavetank.protocols.overlays.kademlia import KademliaNode
from wavetank.protocols.overlays.pastry import PastryNode
from wavetank.protocols.overlays.registry import RegistryNode
from wavetank.sim.node import Node
from wavetank.sim.rng import Draws, stream_key


class Ring:
    """The nodes that are up, in the order of their identifiers."""

    def __init__(self, ids: Sequence[int], up: Collection[int]) -> None:
        pairs = sorted((ids[node], node) for node in up)
        self.ids = [identifier for identifier, _ in pairs]
        self.nodes = [node for _, node in pairs]

    def successors(self, identifier: int, count: int) -> list[int]:
        """Return the first nodes at or after an identifier."""
        first = bisect_left(self.ids, identifier % SPACE)
        total = len(self.nodes)
        return [self.nodes[(first + step) % total] for step in range(min(count, total))]

    def predecessors(self, identifier: int, count: int) -> list[int]:
        """Return the last nodes before an identifier, nearest first."""
        first = bisect_left(self.ids, identifier % SPACE)
        total = len(self.nodes)
        return [self.nodes[(first - 1 - step) % total] for step in range(min(count, total))]

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Return the places of the nodes with identifiers from ``low`` up to, not including, ``high``."""
        return bisect_left(self.ids, low), bisect_left(self.ids, high)


def give_exact(nodes: Sequence[Node], up: Collection[int], seed: int) -> None:
    """Give every node that is up the table it would have after all had long been there.

    Parameters
    ----------
    nodes : sequence of Node
        As :func:`wavetank.sim.events.simulate` hands them to ``setup``.
    up : collection of int
        Who is up; the others join when they come.
    seed : int
        Of the choice among equals.
    """
    inners = _members(nodes)
    ring = Ring(inners[0].ids, up)
    draws = Draws(stream_key(seed, "tables"))
    for index in up:
        node = inners[index]
        node.joined = True
        if isinstance(node, ChordNode):
            _exact_chord(node, ring)
        elif isinstance(node, PastryNode):
            _exact_pastry(node, ring, draws)
        elif isinstance(node, KademliaNode):
            _exact_kademlia(node, ring, draws)


def _members(nodes: Sequence[Node]) -> list[DirectoryNode]:
    # The overlay is there already: nobody who comes later, not even node 0, has to found it.
    for node in nodes:
        node.context.save("member", True)
    return [inner_node(node) for node in nodes]


def _others(nodes: list[int], own: int) -> list[int]:
    return [node for node in nodes if node != own]


def _exact_chord(node: ChordNode, ring: Ring) -> None:
    node.successors = _others(ring.successors(node.id + 1, node.parameters.redundancy), node.own)
    node.predecessor = next(iter(_others(ring.predecessors(node.id, 1), node.own)), -1)
    if node.successors:
        covered = node.distance(node.successors[-1])
        for exponent in range(covered.bit_length() - 1, BITS):
            if 1 << exponent > covered:
                finger = ring.successors(node.id + (1 << exponent), 1)[0]
                if finger != node.own:
                    node.fingers[exponent] = finger
    node._stale = True


def _exact_pastry(node: PastryNode, ring: Ring, draws: Draws) -> None:
    node.right = _others(ring.successors(node.id + 1, node.side), node.own)
    node.left = _others(ring.predecessors(node.id, node.side), node.own)
    for row in range(DIGITS):
        shift = BITS - DIGIT_BITS * row
        base = node.id >> shift << shift
        low, high = ring.within(base, base + (1 << shift))
        if high - low <= 1:
            break
        step = 1 << (shift - DIGIT_BITS)
        for column in range(1 << DIGIT_BITS):
            if column != digit(node.id, row):
                low, high = ring.within(base + column * step, base + (column + 1) * step)
                if high > low:
                    node.rows.setdefault(row, {})[column] = ring.nodes[low + draws.below(high - low)]


def _exact_kademlia(node: KademliaNode, ring: Ring, draws: Draws) -> None:
    for bit in range(BITS - 1, -1, -1):
        base = ((node.id >> bit) ^ 1) << bit
        low, high = ring.within(base, base + (1 << bit))
        wanted = node.parameters.redundancy
        if high - low <= wanted:
            chosen = ring.nodes[low:high]
        else:
            places: dict[int, None] = {}
            while len(places) < wanted:
                places[low + draws.below(high - low)] = None
            chosen = [ring.nodes[place] for place in places]
        for other in chosen:
            node.learn(other)
        own_low, own_high = ring.within(node.id >> bit << bit, (node.id >> bit << bit) + (1 << bit))
        if own_high - own_low <= 1:
            break


def give_cold(nodes: Sequence[Node], up: Collection[int], seed: int) -> None:
    """Give every node that is up the nearest on either side, half of ``redundancy`` each, and log2 N random nodes.

    That is what a join leaves behind.

    Parameters
    ----------
    nodes : sequence of Node
    up : collection of int
        Who is up; the others join when they come.
    seed : int
        Of the random nodes; equal seeds, equal acquaintances in all overlays.
    """
    inners = _members(nodes)
    ids = inners[0].ids
    ring = Ring(ids, up)
    listed = sorted(up)
    count = math.ceil(math.log2(max(len(listed), 2)))
    for index in listed:
        node = inners[index]
        node.joined = True
        draws = Draws(stream_key(seed, "acquaintances", index))
        side = max(node.parameters.redundancy // 2, 1)
        after = _others(ring.successors(ids[index] + 1, side), index)
        before = _others(ring.predecessors(ids[index], side), index)
        if isinstance(node, ChordNode):
            node.successors = after
            node.predecessor = next(iter(before), -1)
        elif isinstance(node, PastryNode):
            node.right, node.left = after, before
        for other in dict.fromkeys([*after, *before, *(draws.choice(listed) for _ in range(count))]):
            if other != index:
                node.learn(other)


def give_records(nodes: Sequence[Node], up: Collection[int], records: Sequence[tuple[int, str, str]]) -> None:
    """Put records where they belong, and have their publishers publish them again.

    Parameters
    ----------
    nodes : sequence of Node
    up : collection of int
        Who is up and may keep a record.
    records : sequence of tuple
        Node that publishes, key, endpoint.
    """
    inners = [inner_node(node) for node in nodes]
    ids = inners[0].ids
    ring = Ring(ids, up)
    agents: dict[int, list[tuple[str, str]]] = {}
    for publisher, key, endpoint in records:
        agents.setdefault(publisher, []).append((key, endpoint))
        for owner in owners_of(inners[publisher], ring, key_of(key)):
            inner = inners[owner]
            inner.store.setdefault(key_of(key), {})[endpoint] = inner.parameters.ttl_rounds
    for publisher, listed in agents.items():
        nodes[publisher].context.save("agents", tuple(sorted(listed)))


def owners_of(node: DirectoryNode, ring: Ring, key: int) -> list[int]:
    """Return the nodes that should keep a key, by the overlay's own metric over all nodes that are up."""
    replicas = node.parameters.replicas
    if isinstance(node, ChordNode):
        return ring.successors(key, replicas)
    if isinstance(node, RegistryNode):
        return [0]
    if isinstance(node, KademliaNode):
        # The closest share the longest prefix: an interval of the ring that is doubled until it holds enough.
        low, high, bit = 0, 0, 0
        while high - low < min(replicas, len(ring.nodes)):
            bit += 1
            low, high = ring.within(key >> bit << bit, (key >> bit << bit) + (1 << bit))
        return sorted(ring.nodes[low:high], key=lambda other: node.ids[other] ^ key)[:replicas]
    if isinstance(node, PastryNode):
        near = {*ring.successors(key, replicas), *ring.predecessors(key, replicas)}
        return sorted(near, key=lambda other: ring_distance(node.ids[other], key))[:replicas]
    return list(ring.nodes)
