"""A miner's view of the tree of blocks, and what all views together say about forks and foreign chains.

Every block has one parent.  Blocks whose ancestors have not all arrived wait; the others have a height, and one of them
is the tip to mine on.

Source: the PoW ledgers of QUANTAS 2 (J. Oglio, M. Nesterenko, arXiv 2605.08547, 2026), after S. Nakamoto, "Bitcoin",
2008, and Y. Sompolinsky, A. Zohar, "Secure High-Rate Transaction Processing in Bitcoin", 2015 (GHOST).

Differs from the source:
1. Heights are kept for connected blocks only; the source gives the others a height of 0 that nothing reads.
2. As there, the heaviest-subtree rule is asked only when a block arrives, against the tip, and names break ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GENESIS = "GENESIS"


@dataclass
class Block:
    """A block as a view knows it.

    Attributes
    ----------
    parent : str
    height : int
        Distance from the first block; -1 while an ancestor is missing.
    parasite : bool
        Whether it was mined in secret.
    """

    parent: str
    height: int
    parasite: bool


class Ledger:
    """The tree of blocks that one miner knows.

    Parameters
    ----------
    heaviest : bool
        Whether the heaviest subtree decides (GHOST) and not the longest chain.
    """

    def __init__(self, heaviest: bool) -> None:
        self.heaviest = heaviest
        self.blocks: dict[str, Block] = {GENESIS: Block("", 0, False)}
        self.children: dict[str, list[str]] = {}
        self.tip = GENESIS

    def add(self, name: str, parent: str, parasite: bool) -> Block:
        """Take note of a block; one that is known may turn out to be a parasite's."""
        known = self.blocks.get(name)
        if known is not None:
            known.parasite = known.parasite or parasite
            return known
        block = self.blocks[name] = Block(parent, -1, parasite)
        self.children.setdefault(parent, []).append(name)
        above = self.blocks.get(parent)
        if above is not None and above.height >= 0:
            self._connect(name)
        return block

    def _connect(self, root: str) -> None:
        """Give heights to a block and all that waited for it, and see whether one is the new tip."""
        waiting = [root]
        for name in waiting:
            block = self.blocks[name]
            block.height = self.blocks[block.parent].height + 1
            waiting += self.children.get(name, ())
        for name in waiting:
            if self._better(name, self.tip):
                self.tip = name

    def _better(self, name: str, tip: str) -> bool:
        height, best = self.blocks[name].height, self.blocks[tip].height
        if self.heaviest:
            if self._above(tip, name):
                return True
            if self._above(name, tip):
                return False
            weight, other = self._weight(name), self._weight(tip)
            if weight != other:
                return weight > other
        return height > best if height != best else name < tip

    def _above(self, ancestor: str, name: str) -> bool:
        height = self.blocks[ancestor].height
        block = self.blocks[name]
        while block.height > height + 1:
            block = self.blocks[block.parent]
        return block.height == height + 1 and block.parent == ancestor

    def _weight(self, root: str) -> int:
        found = [root]
        for name in found:
            found += self.children.get(name, ())
        return len(found)


def forks(ledgers: Iterable[Ledger], *, heaviest: bool) -> Mapping[str, Any]:
    """Return what QUANTAS writes about the union of all views, under its names.

    Parameters
    ----------
    ledgers : iterable of Ledger
    heaviest : bool
        Whether the main chain is the one of heaviest subtrees from the first block on, and a branch loses by weight;
        otherwise it ends in the highest block that every view knows, and a branch loses by length.

    Returns
    -------
    mapping
        ``dagCommonRootParasites`` counts the parasites' blocks on the main chain.
    """
    parents: dict[str, str] = {}
    parasites: set[str] = set()
    seen: dict[str, int] = {}
    views = list(ledgers)
    for ledger in views:
        for name, block in ledger.blocks.items():
            parents[name] = block.parent
            seen[name] = seen.get(name, 0) + 1
            if block.parasite:
                parasites.add(name)
    children: dict[str, list[str]] = {}
    for name, parent in parents.items():
        if name != GENESIS:
            children.setdefault(parent, []).append(name)
    heights = {GENESIS: 0}
    order = [GENESIS]
    for name in order:
        for child in children.get(name, ()):
            heights[child] = heights[name] + 1
            order.append(child)
    weight, depth = dict.fromkeys(order, 1), dict.fromkeys(order, 0)
    for name in reversed(order[1:]):
        parent = parents[name]
        weight[parent] += weight[name]
        depth[parent] = max(depth[parent], depth[name] + 1)
    root = min((name for name in order if seen[name] == len(views)), key=lambda name: (-heights[name], name))
    if heaviest:
        path, cursor = [], GENESIS
        while children.get(cursor):
            cursor = min(children[cursor], key=lambda name: (-weight[name], -heights[name], name))
            path.append(cursor)
        longest = len(path)
    else:
        path, cursor = [], root
        while cursor != GENESIS:
            path.append(cursor)
            cursor = parents[cursor]
        longest = max(heights.values())
    measure = weight if heaviest else depth
    points = 0
    lengths: dict[str, int] = {}
    places: list[dict[str, int]] = []
    for name in order:
        branches = children.get(name, ())
        if len(branches) < 2:
            continue
        points += 1
        best = max(measure[each] for each in branches)
        for each in branches:
            if measure[each] < best:
                length = depth[each] + 1
                lengths[str(length)] = lengths.get(str(length), 0) + 1
                places.append({"height": heights[name], "length": length})
    found: dict[str, Any] = {
        "minedBlocks": float(len(parents) - 1),
        "dagLongestChainLength": float(longest),
        "dagCommonRootHeight": float(heights[root]),
        "dagCommonRootParasites": float(sum(name in parasites for name in path)),
        "dagTotalForkPoints": float(points),
        "dagForks": dict(sorted(lengths.items(), key=lambda item: int(item[0]))),
    }
    if places:
        found["dagForkLocations"] = places
    return found
