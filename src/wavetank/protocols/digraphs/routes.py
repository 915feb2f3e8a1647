"""Over which paths nodes hear each other when some of them lie, and what a node may believe of what it hears.

A value travels with the path it took.  A liar can invent paths, but only such that end at itself: the sender of a link
cannot be forged.  So a path without a liar carries what its first node said, and what came over paths that no f nodes
cover was said by a correct node.

Source: D. Sakavalas, L. Tseng, N. Vaidya, "Asynchronous Byzantine Approximate Consensus in Directed Networks", PODC
2020, for reach sets, covers, and one guess at the faulty nodes after the other.

Differs from the source:
1. It floods over all walks made of two simple paths.  Here a value takes a shortest path around each set of at most 2f
   nodes, which is all that the proofs in :mod:`~wavetank.protocols.digraphs.unsigned` and
   :mod:`~wavetank.protocols.digraphs.approximate` ask for.  In a complete network these are the links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from wavetank.errors import BadValueError
from wavetank.sim.network import Topology

Path = tuple[int, ...]

# Paths to each node are looked for around each set of 2f nodes; more steps than this would take minutes.
MOST_STEPS = 60_000_000


def links_of(graph: Topology) -> tuple[str, ...]:
    """Return a network as the ``links`` parameter of an algorithm: ``("0>1", "1>0")``; empty when it is complete."""
    if all(len(graph.peers(node)) == graph.size - 1 for node in range(graph.size)):
        return ()
    return tuple(f"{node}>{to}" for node in range(graph.size) for to in graph.peers(node)) or ("none",)


def graph_of(links: Sequence[str], size: int, *, where: str) -> Topology:
    """Return the network that a ``links`` parameter describes.

    Parameters
    ----------
    links : sequence of str
        ``0>1`` for a link from node 0 to node 1; nothing for a complete network, ``none`` for one without links.
    size : int
        Nodes.
    where : str
        For messages.

    Raises
    ------
    BadValueError
        For a word that is no link, or a link to a node that does not exist.
    """
    if not links:
        return Topology.complete(size)
    return Topology.from_edges((_link(word, where) for word in links if word != "none"), size=size)


def check_links(links: Sequence[str], *, where: str) -> None:
    """Refuse a word that is no link.

    Raises
    ------
    BadValueError
    """
    for word in links:
        if word != "none":
            _link(word, where)


def check_peers(links: tuple[str, ...], node: int, peers: Sequence[int], size: int) -> None:
    """Refuse to start a node in another network than the one that ``links`` describes.

    Raises
    ------
    BadValueError
    """
    described = list(graph_of(links, size, where="links").peers(node))
    if described != list(peers):
        raise BadValueError(
            "The network is not the one that the parameter links describes.",
            given=f"node {node} has links to {list(peers)}",
            allowed=f"links to {described}",
            hint="give the algorithm links=links_of(topology), or none for a complete network",
        )


def _link(word: str, where: str) -> tuple[int, int]:
    ends = [end.strip() for end in word.split(">")]
    if len(ends) != 2 or not all(end.isdecimal() for end in ends):
        raise BadValueError("A link is written as two node numbers.", given=word, allowed="like 0>1", where=where)
    return int(ends[0]), int(ends[1])


def small_sets(nodes: Iterable[int], most: int) -> list[int]:
    """Return all sets of at most ``most`` of the nodes as bits, smaller ones first."""
    members = list(nodes)
    return [bits_of(chosen) for count in range(min(most, len(members)) + 1) for chosen in combinations(members, count)]


def bits_of(nodes: Iterable[int]) -> int:
    """Return a set of nodes as bits."""
    found = 0
    for node in nodes:
        found |= 1 << node
    return found


def members_of(mask: int) -> list[int]:
    """Return the nodes of a set in rising order."""
    return [node for node in range(mask.bit_length()) if mask >> node & 1]


def check_size(size: int, faults: int) -> None:
    """Refuse a network in which looking for paths around all sets of 2f nodes takes too long.

    Raises
    ------
    BadValueError
    """
    sets = sum(math.comb(size, count) for count in range(min(2 * faults, size) + 1))
    steps = sets * size**3
    if steps > MOST_STEPS:
        raise BadValueError(
            f"Paths around all sets of {2 * faults} of {size} nodes are too many to look for.",
            given=f"{sets} sets, {steps} steps",
            allowed=f"<= {MOST_STEPS} steps",
            hint="take fewer nodes or fewer faults",
        )


class Reaches:
    """Shortest paths to a node around a set of nodes, each computed once."""

    def __init__(self, graph: Topology) -> None:
        self.size = graph.size
        self._sources = [tuple(graph.sources(node)) for node in range(graph.size)]
        self._known: dict[tuple[int, int], Mapping[int, Path]] = {}

    def paths(self, to: int, avoiding: int) -> Mapping[int, Path]:
        """Return for each node that reaches ``to`` without the nodes of ``avoiding`` a shortest such path.

        Parameters
        ----------
        to : int
        avoiding : int
            Nodes as bits; ``to`` is not among them.

        Returns
        -------
        mapping of int to tuple of int
            ``to`` itself among them.
        """
        key = (to, avoiding)
        if key not in self._known:
            found: dict[int, Path] = {to: (to,)}
            layer = [to]
            while layer:
                following = []
                for node in layer:
                    for source in self._sources[node]:
                        if source not in found and not avoiding >> source & 1:
                            found[source] = (source, *found[node])
                            following.append(source)
                layer = sorted(following)
            self._known[key] = found
        return self._known[key]

    def reach(self, to: int, avoiding: int) -> int:
        """Return as bits the nodes that reach ``to`` without the nodes of ``avoiding``."""
        return bits_of(self.paths(to, avoiding))


@lru_cache(maxsize=64)
def reaches(links: tuple[str, ...], size: int) -> Reaches:
    """Return the shortest paths of a network; the same object for the same network."""
    return Reaches(graph_of(links, size, where="links"))


def onward(paths: Iterable[Path]) -> dict[Path, tuple[int, ...]]:
    """Return whom a value goes to next, for each path it may have come, so that it takes all the given paths."""
    steps: dict[Path, set[int]] = {}
    for path in paths:
        for place in range(1, len(path)):
            steps.setdefault(path[:place], set()).add(path[place])
    return {path: tuple(sorted(nodes)) for path, nodes in steps.items()}


@dataclass(frozen=True)
class Listening:
    """What one node hears, and over which paths.

    Parameters
    ----------
    paths : tuple of tuple of int
        That end at the node; the first is the node alone.
    avoiding : tuple of tuple of int
        For each set of f other nodes the places of the paths that avoid it.
    """

    paths: tuple[Path, ...]
    avoiding: tuple[tuple[int, ...], ...]

    @classmethod
    def over(cls, node: int, paths: Iterable[Path], others: Iterable[int], faults: int) -> Listening:
        """Return how ``node`` listens when any ``faults`` of ``others`` may be faulty."""
        ordered = sorted({(node,), *paths}, key=lambda path: (len(path), path))
        masks = [bits_of(path) for path in ordered]
        candidates = [other for other in others if other != node]
        sets = [bits_of(chosen) for chosen in combinations(candidates, min(faults, len(candidates)))]
        return cls(
            tuple(ordered),
            tuple(tuple(place for place, mask in enumerate(masks) if not mask & chosen) for chosen in sets),
        )

    def certified(self, agrees: Sequence[bool]) -> bool:
        """Return whether no f nodes cover the paths that agree: then a correct node said so."""
        return all(any(agrees[place] for place in places) for places in self.avoiding)

    def certified_most(self, values: Sequence[float]) -> float:
        """Return the largest number such that no f nodes cover the paths with values at least as large.

        It is also the smallest number that no path around some f nodes exceeds.
        """
        return min(max(values[place] for place in places) for places in self.avoiding)

    heard_least = certified_most

    def certified_least(self, values: Sequence[float]) -> float:
        """Return the smallest number such that no f nodes cover the paths with values at most as large.

        It is also the largest number that all paths around some f nodes reach.
        """
        return max(min(values[place] for place in places) for places in self.avoiding)

    heard_most = certified_least
