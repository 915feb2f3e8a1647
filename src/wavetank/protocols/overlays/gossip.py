"""Gossip: every node sends news to a few random nodes, until all know everything.

Lookups are answered on the spot, a node that crashes is not missed, and every record goes to every node: the most that
a directory can cost.  A node spreads rumours for a few rounds and compares notes with a random node once per period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.protocols.overlays.directory import PUBLISH, STABILIZE, Directory, DirectoryNode, Outcome
from wavetank.protocols.overlays.identifiers import key_of, ring_distance, to_wire
from wavetank.settings import setting
from wavetank.sim.node import Message

_HEADER_BYTES = 28 + 4
_RECORD_BYTES = 20 + 4


class Rumour(Message, frozen=True):
    """Records on their way to everybody: keys, endpoints and the rounds they still last."""

    keys: tuple[bytes, ...]
    endpoints: tuple[str, ...]
    ttls: tuple[float, ...]


class Compare(Message, frozen=True):
    """All the sender knows about a part of the key space; the other node answers with what the sender lacks."""

    part: int
    keys: tuple[bytes, ...]
    endpoints: tuple[str, ...]
    ttls: tuple[float, ...]


class GossipNode(DirectoryNode):
    """A node that spreads rumours and takes them in.

    Attributes
    ----------
    hot : dict
        Rumours to the rounds for which they are still spread.
    """

    is_always_joined = True
    parameters: Gossip

    def __init__(self, parameters: Gossip, index: int, size: int) -> None:
        super().__init__(parameters, index, size)
        self.convergence = parameters.redundancy
        self.parallel = parameters.parallel
        self.hot: dict[tuple[int, str], int] = {}
        self.spreading = False

    def _some(self, count: int) -> tuple[int, ...]:
        """Draw nodes, all different, none of them this one."""
        found: dict[int, None] = {}
        for _ in range(4 * count):
            node = self.context.rng.below(self.size)
            if node != self.own and node not in self.suspected:
                found[node] = None
            if len(found) == count:
                break
        return tuple(found)

    def answer(self, target: int) -> tuple[tuple[int, ...], bool]:
        """Return random nodes; one is as good as another."""
        return self._some(self.parameters.redundancy), False

    def rank(self, node: int, target: int) -> int:
        """Return the distance on the ring, as random as anything."""
        return ring_distance(self.ids[node], target)

    def learn(self, node: int) -> None:
        """Everybody is known."""

    def forget(self, node: int) -> None:
        """Nobody is missed."""

    def known(self) -> set[int]:
        """Return everybody else."""
        return set(range(self.size)) - {self.own}

    def publish(self, key: str, endpoint: str, number: int = -1) -> None:
        """Keep a record here and begin to spread it."""
        ttl = self.parameters.ttl_rounds
        refused = self.keep(key_of(key), endpoint, ttl)
        if not refused:
            self._heat(key_of(key), endpoint)
        if number >= 0:
            status = "failed" if refused else "published"
            self.context.reply(number, Outcome(status, refused, owners=() if refused else (self.own,)))

    def _heat(self, key: int, endpoint: str) -> None:
        self.hot[key, endpoint] = self.parameters.told_rounds
        if not self.spreading:
            self.spreading = True
            self.context.set_timer("spread", 1.0)

    def timer(self, name: str) -> None:
        """Spread what is new, or do what all nodes do."""
        if name != "spread":
            super().timer(name)
            return
        self.spreading = False
        self._spread_rumours()
        self.hot = {rumour: left - 1 for rumour, left in self.hot.items() if left > 1}
        if self.hot:
            self.spreading = True
            self.context.set_timer("spread", 1.0)

    def _spread_rumours(self) -> None:
        keys, endpoints, ttls = self._records(list(self.hot))
        size = _HEADER_BYTES + _RECORD_BYTES * len(keys) + sum(map(len, endpoints))
        for node in self._some(self.parameters.fanout):
            self._send(node, Rumour(keys, endpoints, ttls), PUBLISH, size)

    def _records(self, rumours: list[tuple[int, str]]) -> tuple[tuple[bytes, ...], tuple[str, ...], tuple[float, ...]]:
        now = self.context.now
        live = [
            (to_wire(key), endpoint, self.store[key][endpoint] - now)
            for key, endpoint in rumours
            if self.store.get(key, {}).get(endpoint, now) > now
        ]
        if not live:
            return (), (), ()
        keys, endpoints, ttls = zip(*live, strict=True)
        return keys, endpoints, ttls

    def _part(self, part: int) -> list[tuple[int, str]]:
        return [(key, endpoint) for key, kept in self.store.items() if key >> 156 == part for endpoint in kept]

    def stabilize(self) -> None:
        """Compare one part of what is known with a random node."""
        part = self.context.rng.below(16)
        keys, endpoints, ttls = self._records(self._part(part))
        size = _HEADER_BYTES + _RECORD_BYTES * len(keys) + sum(map(len, endpoints))
        for node in self._some(1):
            self._send(node, Compare(part, keys, endpoints, ttls), STABILIZE, size)

    def receive(self, sender: int, message: Any) -> None:
        """Listen to rumours; answer what all nodes answer."""
        kind = type(message)
        if kind is Rumour:
            self._listen(message)
        elif kind is Compare:
            known = {
                (int.from_bytes(key, "big"), end) for key, end in zip(message.keys, message.endpoints, strict=False)
            }
            lacking = self._records([rumour for rumour in self._part(message.part) if rumour not in known])
            self._listen(message)
            if lacking[0]:
                size = _HEADER_BYTES + _RECORD_BYTES * len(lacking[0]) + sum(map(len, lacking[1]))
                self._send(sender, Rumour(*lacking), STABILIZE, size)
        else:
            super().receive(sender, message)

    def _listen(self, message: Rumour | Compare) -> None:
        now, store = self.context.now, self.store
        for wire, endpoint, ttl in zip(message.keys, message.endpoints, message.ttls, strict=False):
            key = int.from_bytes(wire, "big")
            known = store.get(key, {}).get(endpoint, 0.0)
            # A record that is spread again lasts longer by a period; the same one comes around a few rounds older.
            if now + ttl > known + self.parameters.republish_rounds / 2 and not self.keep(key, endpoint, ttl):
                self._heat(key, endpoint)


@dataclass(frozen=True, kw_only=True)
class Gossip(Directory):
    """A directory that everybody has."""

    messages: ClassVar[tuple[type[Message], ...]] = (*Directory.messages, Rumour, Compare)

    fanout: int = setting(2, low=1, high=64, says="Nodes that receive a rumour from a node per round")
    told_rounds: int = setting(2, unit="rounds", low=1, high=64, says="Rounds for which a rumour is spread")

    def node(self, index: int, size: int) -> GossipNode:
        """Return a new node."""
        return GossipNode(self, index, size)

    def max_faults(self, size: int) -> int:
        """Return all but one: every node knows everything."""
        return size - 1
