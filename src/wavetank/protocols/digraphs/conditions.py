"""Which directed networks allow consensus, as predicates on graphs.

A set X of nodes is taken out of the graph; what remains has source components: strongly connected components that no
edge enters.  A node's knowledge comes from source components at last, so every condition is a statement about them.

Source: L. Tseng, N. Vaidya, "Byzantine Consensus in Directed Graphs with Message Authentication", arXiv 2605.11309,
2026; the reach conditions: D. Sakavalas, L. Tseng, N. Vaidya, "Asynchronous Byzantine Approximate Consensus in Directed
Networks", PODC 2020; their partition forms: L. Tseng, N. Vaidya, "Fault-Tolerant Consensus in Directed Graphs", PODC
2015.

Differs from the source:
1. The text of the 2026 conditions was not at hand: the signed condition was derived, with a proof of both directions.
2. The reach conditions are computed on source components alone: two nodes' reach sets are disjoint exactly when some
   two source components that reach them are.
"""

from __future__ import annotations

import numpy as np
from numba import int64
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.routes import small_sets
from wavetank.sim.compiled import compiled
from wavetank.sim.network import Topology

LARGEST = 20
CONDITIONS = ("signed", "reach-1", "reach-2", "reach-3")


def in_masks(graph: Topology) -> NDArray[np.int64]:
    """Return for each node the set of nodes that have an edge to it, as bits.

    Raises
    ------
    BadValueError
        For more than 20 nodes: the number of fault sets grows too fast.
    """
    if graph.size > LARGEST:
        raise BadValueError("The conditions are decided for small graphs.", given=graph.size, allowed=f"<= {LARGEST}")
    masks = np.zeros(graph.size, dtype=np.int64)
    for node in range(graph.size):
        for to in graph.peers(node):
            masks[to] |= 1 << node
    return masks


def subsets(size: int, most: int) -> NDArray[np.int64]:
    """Return all sets of at most ``most`` of ``size`` nodes as bits, smaller ones first."""
    return np.array(small_sets(range(size), most), dtype=np.int64)


@compiled(int64(int64))
def bit_count(bits: int) -> int:
    """Count the nodes of a set."""
    count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


@compiled(int64(int64))
def _number(bit: int) -> int:
    """Return the node of a set of one."""
    node = 0
    while bit > 1:
        bit >>= 1
        node += 1
    return node


@compiled(int64(int64[::1], int64, int64))
def reach(inward: NDArray[np.int64], node: int, removed: int) -> int:
    """Return the nodes that have a path to ``node`` once ``removed`` is gone; itself is among them."""
    found = np.int64(1) << node
    fresh = found
    while fresh:
        low = fresh & -fresh
        fresh ^= low
        more = inward[_number(low)] & ~removed & ~found
        found |= more
        fresh |= more
    return int(found)


@compiled(int64(int64[::1], int64, int64[::1]))
def sources(inward: NDArray[np.int64], removed: int, out: NDArray[np.int64]) -> int:
    """Write the source components of the graph without ``removed`` to ``out``; return how many there are."""
    size = inward.size
    left = ((np.int64(1) << size) - 1) & ~removed
    count = 0
    while left:
        node = _number(left & -left)
        # Walk up until nothing above reaches less: that is a source component.
        below = reach(inward, node, removed)
        smallest = below
        rest = below
        while rest:
            bit = rest & -rest
            rest ^= bit
            above = reach(inward, _number(bit), removed)
            if bit_count(above) < bit_count(smallest):
                smallest = above
                rest = above
        if not (out[:count] == smallest).any():
            out[count] = smallest
            count += 1
        # What the source reaches has no other source unless another node says so.
        left &= ~smallest & ~(np.int64(1) << node)
    return count


@compiled(int64(int64[::1], int64, int64[::1]))
def signed_witness(inward: NDArray[np.int64], faults: int, sets: NDArray[np.int64]) -> int:
    """Return a fault set that breaks the signed condition, or -1."""
    out = np.empty(inward.size, dtype=np.int64)
    for removed in sets:
        count = sources(inward, removed, out)
        if count != 1 or bit_count(out[0]) <= faults:
            return removed
    return -1


@compiled(int64(int64[::1], int64[::1]))
def reach_1_witness(inward: NDArray[np.int64], sets: NDArray[np.int64]) -> int:
    """Return a fault set that leaves two sources, or -1."""
    out = np.empty(inward.size, dtype=np.int64)
    for removed in sets:
        if sources(inward, removed, out) > 1:
            return removed
    return -1


@compiled(int64(int64[::1], int64, int64[::1]))
def _disjoint(inward: NDArray[np.int64], common: int, sets: NDArray[np.int64]) -> int:
    """Return whether two sources are disjoint, each left by ``common`` and a set of its own."""
    out = np.empty(inward.size, dtype=np.int64)
    known = np.empty(sets.size * inward.size, dtype=np.int64)
    count = 0
    for own in sets:
        for place in range(sources(inward, common | own, out)):
            found = out[place]
            new = True
            for other in range(count):
                if not known[other] & found:
                    return 1
                if known[other] == found:
                    new = False
            if new:
                known[count] = found
                count += 1
    return 0


@compiled(int64(int64[::1], int64[::1]))
def reach_3_witness(inward: NDArray[np.int64], sets: NDArray[np.int64]) -> int:
    """Return a fault set that, with slow nodes of two observers' own, leaves disjoint sources; -1 for none."""
    for common in sets:
        if _disjoint(inward, common, sets):
            return common
    return -1


def holds(condition: str, graph: Topology, faults: int) -> bool:
    """Return whether a graph meets one of :data:`CONDITIONS` for up to ``faults`` faulty nodes.

    Parameters
    ----------
    condition : str
        ``signed``: synchronous exact consensus with Byzantine nodes and signatures.  ``reach-1``: synchronous,
        crashes.  ``reach-2``: asynchronous and approximate, crashes.  ``reach-3``: asynchronous and approximate with
        Byzantine nodes, signed or not, and synchronous exact consensus with Byzantine nodes without signatures.
    graph : Topology
    faults : int

    Raises
    ------
    BadValueError
    """
    if condition not in CONDITIONS:
        raise BadValueError("There is no such condition.", given=condition, allowed=CONDITIONS)
    inward = in_masks(graph)
    sets = _fault_sets(graph.size, faults)
    if condition == "signed":
        return signed_witness(inward, faults, sets) < 0
    if condition == "reach-1":
        return reach_1_witness(inward, sets) < 0
    if condition == "reach-2":
        return not _disjoint(inward, 0, sets)
    return reach_3_witness(inward, sets) < 0


def _fault_sets(size: int, faults: int) -> NDArray[np.int64]:
    if not 0 <= faults < size:
        raise BadValueError("Some nodes may be faulty, not all.", given=faults, allowed=f"0 to {size - 1}")
    return subsets(size, faults)


def broken_by(graph: Topology, faults: int) -> tuple[frozenset[int], tuple[frozenset[int], ...]] | None:
    """Return a fault set that breaks the signed condition and the source components it leaves; None when it holds."""
    inward = in_masks(graph)
    removed = signed_witness(inward, faults, _fault_sets(graph.size, faults))
    if removed < 0:
        return None
    out = np.empty(graph.size, dtype=np.int64)
    count = sources(inward, removed, out)
    return _nodes(removed), tuple(_nodes(int(mask)) for mask in out[:count])


def _nodes(mask: int) -> frozenset[int]:
    return frozenset(node for node in range(LARGEST) if mask >> node & 1)
