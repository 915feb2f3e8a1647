from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.protocols.digraphs.conditions import (
    CONDITIONS,
    _disjoint,
    bit_count,
    broken_by,
    holds,
    in_masks,
    reach,
    reach_1_witness,
    reach_3_witness,
    signed_witness,
    sources,
    subsets,
)
from wavetank.sim.compiled import compiled
from wavetank.sim.network import Topology

# Two cliques {a, y} and {b, x} that hear each other through x and y alone: a 0, y 1, b 2, x 3.
CLIQUES = Topology.from_edges([(0, 1), (1, 0), (2, 3), (3, 2), (3, 0), (3, 1), (1, 2), (1, 3)], size=4)


@st.composite
def digraphs(draw: st.DrawFn, largest: int = 7) -> Topology:
    size = draw(st.integers(2, largest))
    edges = draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda e: e[0] != e[1])))
    return Topology.from_edges(edges, size=size)


def partition_holds(condition: str, graph: Topology, faults: int) -> bool:
    """Return whether a graph meets the partition form of a reach condition: slower, and an independent check.

    For every partition of the nodes into F (faulty), L, C, R with L and R not empty, enough of what lies outside R has
    an edge into R, or enough of what lies outside L has one into L: one node (``reach-1``), f+1 nodes with F empty
    (``reach-2``), f+1 nodes (``reach-3``).
    """
    needed = {"reach-1": 1, "reach-2": faults + 1, "reach-3": faults + 1}[condition]
    inward = [int(mask) for mask in in_masks(graph)]
    everyone = (1 << graph.size) - 1
    for removed in [0] if condition == "reach-2" else map(int, subsets(graph.size, faults)):
        rest = everyone & ~removed
        for left in _parts(rest):
            for right in _parts(rest & ~left):
                if (
                    left
                    and right
                    and not (
                        _entering(inward, right, rest & ~right) >= needed
                        or _entering(inward, left, rest & ~left) >= needed
                    )
                ):
                    return False
    return True


def _parts(mask: int) -> Iterable[int]:
    part = mask
    while part:
        yield part
        part = (part - 1) & mask


def _entering(inward: Sequence[int], target: int, origins: int) -> int:
    found = 0
    for node in range(len(inward)):
        if target >> node & 1:
            found |= inward[node] & origins
    return found.bit_count()


@compiled
def count_compiled(size: int, faults: int, sets: NDArray[np.int64]) -> NDArray[np.int64]:
    edges = size * (size - 1)
    totals = np.zeros(4, dtype=np.int64)
    inward = np.zeros(size, dtype=np.int64)
    for code in range(np.int64(1) << edges):
        for node in range(size):
            bits = (code >> (node * (size - 1))) & ((np.int64(1) << (size - 1)) - 1)
            low = bits & ((np.int64(1) << node) - 1)
            inward[node] = low | ((bits >> node) << (node + 1))
        if reach_1_witness(inward, sets) >= 0:
            continue
        totals[1] += 1
        totals[0] += signed_witness(inward, faults, sets) < 0
        totals[2] += _disjoint(inward, 0, sets) == 0
        totals[3] += reach_3_witness(inward, sets) < 0
    return totals


def count_all(size: int, faults: int) -> dict[str, int]:
    """Return how many of all labelled digraphs of ``size`` nodes meet each condition."""
    totals = count_compiled(size, faults, subsets(size, faults))
    return {condition: int(total) for condition, total in zip(CONDITIONS, totals, strict=True)}


@given(digraphs(), st.integers(0, 127))
def test_sources_are_the_components_that_no_edge_enters(graph: Topology, removed: int) -> None:
    removed &= 2**graph.size - 1
    if removed == 2**graph.size - 1:
        removed = 0
    inward = in_masks(graph)
    whole = nx.DiGraph([(node, to) for node in range(graph.size) for to in graph.peers(node)])
    whole.add_nodes_from(range(graph.size))
    whole.remove_nodes_from([node for node in range(graph.size) if removed >> node & 1])
    condensed = nx.condensation(whole)
    expected = {frozenset(condensed.nodes[each]["members"]) for each, degree in condensed.in_degree() if degree == 0}
    out = np.empty(graph.size, dtype=np.int64)
    count = sources(inward, removed, out)
    found = {frozenset(node for node in range(graph.size) if int(mask) >> node & 1) for mask in out[:count]}
    assert found == expected
    assert count == len(expected)
    for node in whole:
        above = {other for other in range(graph.size) if reach(inward, node, removed) >> other & 1}
        assert above == nx.ancestors(whole, node) | {node}


def test_subsets_are_all_small_sets() -> None:
    assert subsets(4, 2).tolist() == [0, 1, 2, 4, 8, 3, 5, 9, 6, 10, 12]
    assert [bit_count(mask) for mask in (0, 5, 255)] == [0, 2, 8]


@given(digraphs(5), st.integers(1, 2))
@settings(max_examples=150)
def test_reach_conditions_equal_their_partition_forms(graph: Topology, faults: int) -> None:
    if faults >= graph.size:
        faults = 1
    for condition in ("reach-1", "reach-2", "reach-3"):
        assert holds(condition, graph, faults) == partition_holds(condition, graph, faults)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("faults", [1, 2])
def test_the_conditions_imply_each_other_on_all_small_digraphs(size: int, faults: int) -> None:
    if faults >= size:
        return
    pairs = list(permutations(range(size), 2))
    counts = dict.fromkeys(CONDITIONS, 0)
    for code in range(2 ** len(pairs)):
        graph = Topology.from_edges([pair for place, pair in enumerate(pairs) if code >> place & 1], size=size)
        met = {condition: holds(condition, graph, faults) for condition in CONDITIONS}
        assert met["signed"] >= met["reach-3"]
        assert met["reach-1"] >= met["signed"]
        assert met["reach-1"] >= met["reach-2"] >= met["reach-3"]
        for condition, value in met.items():
            counts[condition] += value
    assert counts == count_all(size, faults)


@given(digraphs(9), st.integers(1, 2))
@settings(max_examples=80)
def test_the_chain_holds_on_random_digraphs_up_to_nine_nodes(graph: Topology, faults: int) -> None:
    if faults >= graph.size:
        return
    assert holds("reach-1", graph, faults) >= holds("signed", graph, faults) >= holds("reach-3", graph, faults)


def test_all_digraphs_of_five_nodes_are_counted() -> None:
    assert count_all(5, 1) == {"signed": 160886, "reach-1": 677370, "reach-2": 157106, "reach-3": 2885}


@pytest.mark.parametrize("faults", [1, 2, 3])
@pytest.mark.parametrize("size", range(2, 11))
def test_complete_networks_need_the_numbers_everyone_knows(size: int, faults: int) -> None:
    if faults < size:
        graph = Topology.complete(size)
        assert holds("signed", graph, faults) == (size >= 2 * faults + 1)
        assert holds("reach-3", graph, faults) == (size >= 3 * faults + 1)
        assert holds("reach-2", graph, faults) == (size >= 2 * faults + 1)
        assert holds("reach-1", graph, faults)


def test_two_cliques_are_solvable_with_signatures_though_not_by_two_reach() -> None:
    assert [holds(condition, CLIQUES, 1) for condition in CONDITIONS] == [True, True, False, False]
    assert broken_by(CLIQUES, 1) is None


def test_what_breaks_a_chain_of_nodes_is_named() -> None:
    chain = Topology.named("chain", 4)
    removed, left = broken_by(chain, 1)  # type: ignore[misc]
    assert removed == {1}
    assert set(left) == {frozenset({0}), frozenset({2, 3})}


def test_larger_networks_than_can_be_decided_are_refused() -> None:
    with pytest.raises(BadValueError):
        holds("signed", Topology.complete(21), 1)
    with pytest.raises(BadValueError):
        holds("signed", Topology.complete(4), 4)
    with pytest.raises(BadValueError):
        holds("reach-4", Topology.complete(4), 1)
