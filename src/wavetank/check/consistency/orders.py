"""Is there an order that obeys what is known, either-or, and if-then?

Every consistency model comes down to this question about a few orders of events.  Known precedences are edges; an
*alternative* says that one of two edges holds; an *implication* says that if one event comes before another by what is
known so far, then a further edge holds.  Saturation adds every edge that is forced, in rounds of one transitive closure
each (bit matrices, compiled); what then is still open is settled by branching, hardest alternatives first.

Source: C. Papadimitriou, "The Serializability of Concurrent Database Updates", JACM 26(4), 1979 (polygraphs).

Differs from the source:
1. Alternatives may join any two edges, and there are implications, so that weaker models than serializability fit.
2. Before any branch a guess is made, the order by a given rank among all that the edges allow; only alternatives that
   it breaks are branched on.
3. Alternatives that led into circles weigh more and are branched on first; the search begins anew now and then to make
   use of that.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wavetank.check.report import Outcome
from wavetank.sim.compiled import compiled

Edge = tuple[int, int]
_FOUND, _NONE, _FULL, _PAUSED = range(4)


@dataclass
class Constraints:
    """A question about one order of ``nodes`` events.

    Parameters
    ----------
    nodes : int
    edges : list of (int, int)
        The first comes before the second.
    alternatives : list of (edge, edge)
        At least one of the two holds; an edge from a node to itself never does.
    implications : list of (edge, edge)
        If the first follows from the edges, the second holds.
    rank : sequence of float
        Where each node would go if it were free to; for the guess.
    """

    nodes: int
    edges: list[Edge] = field(default_factory=list)
    alternatives: list[tuple[Edge, Edge]] = field(default_factory=list)
    implications: list[tuple[Edge, Edge]] = field(default_factory=list)
    rank: Sequence[float] = ()


@dataclass(frozen=True)
class Solution:
    """An order, or why there is none.

    Parameters
    ----------
    outcome : str
    order : tuple of int
        The nodes in that order, where it holds.
    cycle : tuple of int
        Nodes that would each have to come before the next, where it is violated and no branch was needed.
    says : str
    """

    outcome: Outcome
    order: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()
    says: str = ""


@compiled
def _sorted_by_rank(nodes: int, starts: NDArray[np.int64], heads: NDArray[np.int64], place: NDArray[np.int64],
                    at_place: NDArray[np.int64]) -> NDArray[np.int64]:  # fmt: skip
    """Return a topological order, always the allowed node of least place next; shorter if there is a cycle."""
    waiting = np.zeros(nodes, np.int64)
    for edge in range(heads.shape[0]):
        waiting[heads[edge]] += 1
    heap = [place[node] for node in range(nodes) if waiting[node] == 0]
    heapq.heapify(heap)
    order = np.empty(nodes, np.int64)
    done = 0
    while len(heap) > 0:
        node = at_place[heapq.heappop(heap)]
        order[done] = node
        done += 1
        for edge in range(starts[node], starts[node + 1]):
            waiting[heads[edge]] -= 1
            if waiting[heads[edge]] == 0:
                heapq.heappush(heap, place[heads[edge]])
    return order[:done]


def in_order(edges: NDArray[np.int64], rank: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the nodes in an order that keeps the edges, always the allowed node of least rank next.

    Parameters
    ----------
    edges : int64 array (edges, 2)
    rank : float64 array (nodes,)

    Returns
    -------
    int64 array (nodes,)
        Shorter where there is a cycle: without the nodes on it and those that come after one.
    """
    starts, heads = by_tail(edges, len(rank))
    place, at_place = _places(rank)
    return _sorted_by_rank(len(rank), starts, heads, place, at_place)


def _places(rank: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each node's place by rank, and the node at each place."""
    at_place = np.argsort(rank, kind="stable")
    return np.argsort(at_place), at_place


@compiled
def _closure(order: NDArray[np.int64], starts: NDArray[np.int64], heads: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return which nodes come after which: a bit matrix, from a topological order."""
    nodes = order.shape[0]
    words = (nodes + 63) // 64
    after = np.zeros((nodes, words), np.uint64)
    for position in range(nodes - 1, -1, -1):
        node = order[position]
        for edge in range(starts[node], starts[node + 1]):
            head = heads[edge]
            bit = np.uint64(1) << np.uint64(head & 63)
            if after[node, head >> 6] & bit == 0:
                for word in range(words):
                    after[node, word] |= after[head, word]
                after[node, head >> 6] |= bit
    return after


@compiled
def _follows(after: NDArray[np.uint64], one: int, two: int) -> bool:
    return (after[one, two >> 6] >> np.uint64(two & 63)) & np.uint64(1) == np.uint64(1)


@compiled
def _met(after: NDArray[np.uint64], alternative: NDArray[np.int64]) -> bool:
    a, b, c, d = alternative
    return bool((a != b and _follows(after, a, b)) or (c != d and _follows(after, c, d)))


@compiled
def _forced(after: NDArray[np.uint64], alternatives: NDArray[np.int64], implications: NDArray[np.int64],
            found: NDArray[np.int64]) -> tuple[int, bool]:  # fmt: skip
    """Write forced edges into ``found``; return how many, and whether an alternative is still open."""
    count, is_open = 0, False
    for at in range(alternatives.shape[0]):
        a, b, c, d = alternatives[at]
        if _met(after, alternatives[at]):
            continue
        first = a != b and not _follows(after, b, a)
        second = c != d and not _follows(after, d, c)
        if not first and not second:
            # Neither can hold; either edge shows it as a cycle.
            found[count, 0], found[count, 1] = c, d
            return count + 1, is_open
        if first and second:
            is_open = True
        else:
            found[count, 0], found[count, 1] = (a, b) if first else (c, d)
            count += 1
    for at in range(implications.shape[0]):
        a, b, c, d = implications[at]
        if _follows(after, a, b) and (c == d or not _follows(after, c, d)):
            found[count, 0], found[count, 1] = c, d
            count += 1
    return count, is_open


@compiled
def _has_unmet(position: NDArray[np.int64], alternatives: NDArray[np.int64]) -> bool:
    for at in range(alternatives.shape[0]):
        a, b, c, d = alternatives[at]
        if not (position[a] < position[b] or position[c] < position[d]):
            return True
    return False


@compiled
def _add(after: NDArray[np.uint64], one: int, two: int) -> bool:
    """Add an edge and all that follows; False if it closes a circle."""
    if one == two or _follows(after, two, one):
        return False
    if _follows(after, one, two):
        return True
    words = after.shape[1]
    for node in range(after.shape[0]):
        if node == one or _follows(after, node, one):
            for word in range(words):
                after[node, word] |= after[two, word]
            after[node, two >> 6] |= np.uint64(1) << np.uint64(two & 63)
    return True


@compiled
def _propagate(after: NDArray[np.uint64], alternatives: NDArray[np.int64], implications: NDArray[np.int64],
               weights: NDArray[np.float64]) -> bool:  # fmt: skip
    """Add every forced edge; False, and a heavier weight for the culprit, if that cannot be."""
    changed = True
    while changed:
        changed = False
        for at in range(alternatives.shape[0]):
            a, b, c, d = alternatives[at]
            if _met(after, alternatives[at]):
                continue
            impossible: bool = a == b or _follows(after, b, a)
            if impossible or c == d or _follows(after, d, c):
                if not (_add(after, c, d) if impossible else _add(after, a, b)):
                    weights[at] += 1.0
                    return False
                changed = True
        for at in range(implications.shape[0]):
            a, b, c, d = implications[at]
            if _follows(after, a, b) and (c == d or not _follows(after, c, d)):
                if not _add(after, c, d):
                    return False
                changed = True
    return True


@compiled
def _in_order(after: NDArray[np.uint64], at_place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each node's position in the order that takes, of all allowed next nodes, the one of least place."""
    nodes = after.shape[0]
    waiting = np.zeros(nodes, np.int64)
    for one in range(nodes):
        for two in range(nodes):
            if _follows(after, one, two):
                waiting[two] += 1
    position = np.full(nodes, -1, np.int64)
    for turn in range(nodes):
        for place in range(nodes):
            node = at_place[place]
            if position[node] < 0 and waiting[node] == 0:
                position[node] = turn
                for two in range(nodes):
                    if _follows(after, node, two):
                        waiting[two] -= 1
                break
    return position


@compiled
def _heaviest(after: NDArray[np.uint64], alternatives: NDArray[np.int64], weights: NDArray[np.float64],
              position: NDArray[np.int64], guess: bool) -> int:  # fmt: skip
    """Return the open alternative to branch on, -1 if none is: of those that the guess breaks the heaviest."""
    best, best_weight = -1, -1.0
    for at in range(alternatives.shape[0]):
        a, b, c, d = alternatives[at]
        if _met(after, alternatives[at]):
            continue
        if guess and ((a != b and position[a] < position[b]) or (c != d and position[c] < position[d])):
            continue
        if weights[at] > best_weight:
            best, best_weight = at, weights[at]
    return best


@compiled
def _branch(levels: NDArray[np.uint64], untried: NDArray[np.int64], depth: int, alternatives: NDArray[np.int64],
            implications: NDArray[np.int64], weights: NDArray[np.float64], at_place: NDArray[np.int64],
            position: NDArray[np.int64], place: NDArray[np.int64], most: int) -> tuple[int, int]:  # fmt: skip
    """Branch until an order, a proof that there is none, too many contradictions, or no room for another level.

    ``levels`` hold what follows from each level's choices; ``untried`` the alternative whose second side is still to
    be tried at each level, -1 where it was.
    """
    conflicts = 0
    while True:
        after = levels[depth]
        good = _propagate(after, alternatives, implications, weights)
        if good:
            guess = implications.shape[0] == 0
            if guess:
                position[:] = _in_order(after, at_place)
            chosen = _heaviest(after, alternatives, weights, position, guess)
            if chosen < 0:
                if not guess:
                    position[:] = _in_order(after, at_place)
                return _FOUND, depth
            if depth + 1 == levels.shape[0]:
                return _FULL, depth
            a, b, c, d = alternatives[chosen]
            levels[depth + 1] = after
            depth += 1
            untried[depth] = chosen
            # The side that fits the ranks goes first.
            if place[a] < place[b]:
                _add(levels[depth], a, b)
            else:
                _add(levels[depth], c, d)
            continue
        conflicts += 1
        while depth > 0 and untried[depth] < 0:
            depth -= 1
        if depth == 0:
            return _NONE, depth
        if conflicts > most:
            return _PAUSED, depth
        a, b, c, d = alternatives[untried[depth]]
        untried[depth] = -1
        levels[depth] = levels[depth - 1]
        if place[a] < place[b]:
            good = _add(levels[depth], c, d)
        else:
            good = _add(levels[depth], a, b)


def _search(
    after: NDArray[np.uint64],
    alternatives: NDArray[np.int64],
    implications: NDArray[np.int64],
    at_place: NDArray[np.int64],
    place: NDArray[np.int64],
    in_budget: Callable[[], bool],
    memory_bytes: int,
) -> Solution:
    """Branch, beginning anew now and then with what has been learnt of which alternatives are hard."""
    weights = np.zeros(len(alternatives))
    position = np.zeros(len(place), np.int64)
    room = max(2, min(16, memory_bytes // (2 * max(1, after.nbytes))))
    levels = np.zeros((room, *after.shape), np.uint64)
    untried = np.full(room, -1, np.int64)
    levels[0] = after
    depth, patience = 0, 64
    while True:
        status, depth = _branch(
            levels, untried, depth, alternatives, implications, weights, at_place, position, place, patience
        )
        if status == _FOUND:
            return Solution("holds", tuple(np.argsort(position).tolist()))
        if status == _NONE:
            return Solution("violated", says="every choice leads into a circle")
        if not in_budget():
            return Solution("undecided", says="time: the budget ran out while ordering events")
        if status == _FULL:
            if 3 * levels.nbytes > memory_bytes:
                return Solution("undecided", says=f"memory: {memory_bytes} bytes were not enough to order events")
            levels = np.concatenate([levels, np.zeros_like(levels)])
            untried = np.concatenate([untried, np.full(len(untried), -1, np.int64)])
        else:
            # Hard alternatives are now heavy and come first; patience grows, so that the search ends.
            depth, patience = 0, patience + patience // 2


def solve(question: Constraints, in_budget: Callable[[], bool] = lambda: True, memory_bytes: int = 2**30) -> Solution:
    """Find an order of all nodes, or say that there is none.

    Parameters
    ----------
    question : Constraints
    in_budget : callable
        Asked between rounds; False ends the search undecided.
    memory_bytes : int
        Size beyond which what the search remembers is not grown.

    Returns
    -------
    Solution
        With implications the order obeys the edges and what they imply; it may put more before more than is known.
    """
    nodes = question.nodes
    if nodes == 0:
        return Solution("holds")
    rank = np.asarray(question.rank if len(question.rank) else np.arange(nodes), np.float64)
    place, at_place = _places(rank)
    alternatives = _table([(*one, *two) for one, two in question.alternatives], 4)
    implications = _table([(*one, *two) for one, two in question.implications], 4)
    found = np.empty((len(alternatives) + len(implications) + 1, 2), np.int64)
    edges = _table(question.edges, 2)
    while True:
        if not in_budget():
            return Solution("undecided", says="time: the budget ran out while ordering events")
        starts, heads = by_tail(edges, nodes)
        order = _sorted_by_rank(nodes, starts, heads, place, at_place)
        if len(order) < nodes:
            return Solution("violated", cycle=_cycle(edges, nodes))
        if not len(implications) and not _has_unmet(np.argsort(order), alternatives):
            return Solution("holds", tuple(order.tolist()))
        # What follows from what takes a bit for each pair of nodes; a search keeps it for two levels at least.
        if 3 * nodes * 8 * -(-nodes // 64) > memory_bytes:
            return Solution("undecided", says=f"memory: {memory_bytes} bytes are not enough to order {nodes} events")
        after = _closure(order, starts, heads)
        count, is_open = _forced(after, alternatives, implications, found)
        if count:
            edges = np.concatenate([edges, found[:count]])
        elif is_open:
            return _search(after, alternatives, implications, at_place, place, in_budget, memory_bytes)
        else:
            return Solution("holds", tuple(order.tolist()))


def _table(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(len(rows), width)


def by_tail(edges: NDArray[np.int64], nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the edges of each node begin, and the heads of all edges by their tails.

    Parameters
    ----------
    edges : int64 array (edges, 2)
    nodes : int

    Returns
    -------
    int64 array (nodes + 1,), int64 array (edges,)
    """
    ordered = edges[np.argsort(edges[:, 0], kind="stable")]
    starts = np.searchsorted(ordered[:, 0], np.arange(nodes + 1)).astype(np.int64)
    return starts, np.ascontiguousarray(ordered[:, 1])


def strong_components(tails: NDArray[np.int64], heads: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    """Return the number of each node's strongly connected part.

    Parameters
    ----------
    tails, heads : int64 array (edges,)
    nodes : int

    Returns
    -------
    int64 array (nodes,)
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(tails), np.int32), (tails, heads)), shape=(nodes, nodes))
    label: NDArray[np.int64] = connected_components(graph, connection="strong")[1]
    return label


def _cycle(edges: NDArray[np.int64], nodes: int) -> tuple[int, ...]:
    """Return a shortest cycle through some node on one."""
    after: list[list[int]] = [[] for _ in range(nodes)]
    for tail, head in edges.tolist():
        if tail == head:
            return (tail,)
        after[tail].append(head)
    label = strong_components(edges[:, 0], edges[:, 1], nodes)
    sizes = np.bincount(label)
    smallest = min((int(sizes[one]), int(one)) for one in set(label.tolist()) if sizes[one] > 1)[1]
    begin = int(np.flatnonzero(label == smallest)[0])
    came_from: dict[int, int] = {}
    front = [begin]
    while front:
        following = []
        for node in front:
            for head in after[node]:
                if head == begin:
                    path = [node]
                    while path[-1] != begin:
                        path.append(came_from[path[-1]])
                    return tuple(reversed(path))
                if head not in came_from and label[head] == smallest:
                    came_from[head] = node
                    following.append(head)
        front = following
    return (begin,)
