"""Kademlia: distance is exclusive or, and every message teaches who is alive.

A key belongs to the k nodes whose identifiers differ from it least as numbers.  A node keeps up to k contacts for every
leading bit in which others may differ from it, the longest-known first.  A lookup asks the closest nodes it has heard
of, several at once, and ends when the k closest have all answered.

Kademlia is by P. Maymounkov, D. Mazieres, IPTPS 2002; the cache of a full bucket is in section 4.1 of the full version.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.protocols.overlays.directory import ALIVE, REFRESH, STABILIZE, Directory, DirectoryNode

_CACHE = 4


class KademliaNode(DirectoryNode):
    """A node with buckets.

    Attributes
    ----------
    buckets : dict
        Highest differing bit to contacts, longest-known first (a dict for its order).
    cache : dict
        Highest differing bit to those that wait, latest last.
    """

    def __init__(self, parameters: Kademlia, index: int, size: int) -> None:
        super().__init__(parameters, index, size)
        self.convergence = parameters.redundancy
        self.parallel = parameters.parallel
        self.buckets: dict[int, dict[int, None]] = {}
        self.cache: dict[int, dict[int, None]] = {}
        # Bits with contacts, highest first.
        self._bits: list[int] = []
        self.turn = 0
        self.pinged = 0

    def answer(self, target: int) -> tuple[tuple[int, ...], bool]:
        """Return the closest contacts; no node claims a key."""
        gap = self.id ^ target
        wanted = self.parameters.redundancy
        ids, buckets = self.ids, self.buckets
        found: list[int] = []
        # A bucket whose bit the target shares is closer than all below it, one whose bit it does not is farther: so
        # buckets can be taken one after the other, and only the contacts of one bucket compared.
        for bit in self._bits:
            if gap >> bit & 1:
                found += sorted(buckets[bit], key=lambda node: ids[node] ^ target)
                if len(found) >= wanted:
                    return tuple(found[:wanted]), False
        for bit in reversed(self._bits):
            if not gap >> bit & 1:
                found += sorted(buckets[bit], key=lambda node: ids[node] ^ target)
                if len(found) >= wanted:
                    break
        return tuple(found[:wanted]), False

    def rank(self, node: int, target: int) -> int:
        """Return the exclusive or."""
        return self.ids[node] ^ target

    def heard(self, node: int) -> None:
        """Take the sender of a message in, or move it to the end of its bucket."""
        bit = (self.ids[node] ^ self.id).bit_length()
        bucket = self.buckets.get(bit - 1)
        if bucket is not None and node in bucket:
            del bucket[node]
            bucket[node] = None
        else:
            self.learn(node)

    def learn(self, node: int) -> None:
        """Take a node into its bucket, or into the cache of a full one."""
        if node == self.own or node in self.suspected:
            return
        bit = (self.ids[node] ^ self.id).bit_length() - 1
        bucket = self.buckets.get(bit)
        if bucket is None:
            bucket = self.buckets[bit] = {}
            self._bits = sorted(self.buckets, reverse=True)
        if node in bucket:
            return
        if len(bucket) < self.parameters.redundancy:
            bucket[node] = None
            return
        cache = self.cache.setdefault(bit, {})
        cache.pop(node, None)
        cache[node] = None
        if len(cache) > _CACHE:
            del cache[next(iter(cache))]

    def forget(self, node: int) -> None:
        """Put the latest of the cache in the place of a silent contact."""
        bit = (self.ids[node] ^ self.id).bit_length() - 1
        cache = self.cache.get(bit, {})
        cache.pop(node, None)
        bucket = self.buckets.get(bit)
        if bucket is None or node not in bucket:
            return
        del bucket[node]
        if cache:
            bucket[cache.popitem()[0]] = None
        elif not bucket:
            del self.buckets[bit]
            self._bits = sorted(self.buckets, reverse=True)
            if not self.buckets and self.joined and self.size > 1:
                self.joined = False
                self._join()

    def known(self) -> set[int]:
        """Return the contacts."""
        return {node for bucket in self.buckets.values() for node in bucket}

    def welcomed(self) -> None:
        """Be a member from the first contact on; the search of one's own identifier goes on and finds the others."""
        self.enter()

    def stabilize(self) -> None:
        """Ping the longest-known contact of the next two buckets, as many questions as the other overlays ask."""
        for _ in range(min(2, len(self._bits))):
            self.pinged = (self.pinged + 1) % len(self._bits)
            bucket = self.buckets[self._bits[self.pinged]]
            self.ask(next(iter(bucket)), ALIVE, STABILIZE)

    def inherits(self, node: int, key: int) -> bool:
        """Return whether a newcomer is among the closest to a key, and no other of them is closer than this node."""
        return self.hands_over(node, self.answer(key)[0], lambda other: self.ids[other] ^ key)

    def refresh(self) -> None:
        """Look up a random identifier of the next bucket, from far to near; buckets below hold all there are."""
        bits = [bit for bit in self._bits if len(self.buckets[bit]) * 2 >= self.parameters.redundancy] or self._bits
        if not bits:
            return
        self.turn = (self.turn + 1) % len(bits)
        bit = bits[self.turn - 1]
        low = 0
        for _ in range(0, bit, 64):
            low = low << 64 | self.context.rng.bits()
        self.look(REFRESH, self.id ^ (1 << bit) ^ (low & ((1 << bit) - 1)))


@dataclass(frozen=True, kw_only=True)
class Kademlia(Directory):
    """A directory on Kademlia's buckets; parameters are those of all overlays.

    References
    ----------
    Maymounkov and Mazieres, IPTPS 2002.
    """

    def node(self, index: int, size: int) -> KademliaNode:
        """Return a new node."""
        return KademliaNode(self, index, size)
