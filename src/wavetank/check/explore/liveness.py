"""What must happen sooner or later, judged on the complete graph of states.

A run that never does what it must either ends, or goes round in a cycle for ever.  A cycle counts only when it is fair:
a step that must happen (a delivery, a timer, a request) and stays possible all the time is taken.  Faults and choices
of Byzantine nodes may stay away for ever.

Source: O. Lichtenstein, A. Pnueli, "Checking That Finite State Concurrent Programs Satisfy Their Linear Specification",
POPL 1985 (fair cycles are found in strongly connected components).

Differs from the source:
1. Only weak fairness, and only properties of the form "sooner or later P": a component is fair as a whole or none of
   its cycles is, so no component has to be split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components


@dataclass(frozen=True)
class Lasso:
    """A run that never does what it must.

    Parameters
    ----------
    steps : tuple of int
        Causes of the steps from the first state on.
    cycle : tuple of int
        Causes of the steps that repeat for ever afterwards; empty when the run ends.
    """

    steps: tuple[int, ...]
    cycle: tuple[int, ...]


def never(
    edges: NDArray[np.int32], holds: NDArray[np.bool_], ends: NDArray[np.bool_], obliged: NDArray[np.bool_]
) -> Lasso | None:
    """Return a shortest run that ends without P, else one that goes round fairly without P, else None.

    Parameters
    ----------
    edges : int32 array (edges, 3)
        From, to, cause; the first state is 0.
    holds : bool array (states,)
        Where P holds.
    ends : bool array (states,)
        Where nothing has to happen any more.
    obliged : bool array (causes,)
        Which causes must happen if they stay possible.
    """
    if holds[0]:
        return None
    # The part of the graph that can be reached without P.
    graph = _Graph(edges[~holds[edges[:, 0]] & ~holds[edges[:, 1]]], holds.size)
    order, parents = graph.reached(0)
    for state in order.tolist():
        if ends[state]:
            return Lasso(tuple(graph.path(parents, 0, state)), ())
    reached = np.zeros(holds.size, np.bool_)
    reached[order] = True
    edges_of_part = graph.edges[reached[graph.edges[:, 0]]]
    component = connected_components(_matrix(edges_of_part, holds.size), connection="strong")[1]
    within = edges_of_part[component[edges_of_part[:, 0]] == component[edges_of_part[:, 1]]]
    # In the order in which a search meets them, so that the way to the cycle is short.
    rank = np.full(holds.size, holds.size)
    rank[order] = np.arange(order.size)
    entries: dict[int, int] = {}
    for state in within[np.argsort(rank[within[:, 0]], kind="stable"), 0].tolist():
        entries.setdefault(int(component[state]), state)
    by_component = np.argsort(component[within[:, 0]], kind="stable")
    bounds = np.searchsorted(component[within[by_component, 0]], [[number, number + 1] for number in entries])
    sources = np.argsort(edges[:, 0], kind="stable")
    for (start, end), entry in zip(bounds.reshape(-1, 2), entries.values(), strict=True):
        own = within[by_component[start:end]]
        states = np.unique(own[:, 0])
        firsts = np.searchsorted(edges[sources, 0], states)
        lasts = np.searchsorted(edges[sources, 0], states, side="right")
        possible = edges[sources[np.concatenate([np.arange(a, b) for a, b in zip(firsts, lasts, strict=True)])]]
        tour = _fair_tour(own, possible, states, entry, obliged)
        if tour is not None:
            return Lasso(tuple(graph.path(parents, 0, entry)), tuple(tour))
    return None


def _fair_tour(
    own: NDArray[np.int32],
    possible: NDArray[np.int32],
    states: NDArray[np.int32],
    entry: int,
    obliged: NDArray[np.bool_],
) -> list[int] | None:
    """Return a closed walk through a component that starves no step that must happen, or None when all do.

    Parameters
    ----------
    own, possible : int32 array (edges, 3)
        Edges inside the component, and all that leave its states.
    states : int32 array
        Of the component.
    entry : int
        Where the walk begins and ends.
    obliged : bool array (causes,)
    """
    place = {state: at for at, state in enumerate(states.tolist())}
    pairs = np.unique(possible[obliged[possible[:, 2]]][:, [2, 0]], axis=0)
    targets: list[tuple[int, int]] = []
    for cause in np.unique(pairs[:, 0]).tolist():
        where = pairs[pairs[:, 0] == cause, 1]
        taken = own[own[:, 2] == cause]
        if taken.size:
            targets.append((int(taken[0, 0]), int(cause)))
        elif where.size == states.size:
            return None
        else:
            # It is fair not to take a step that is not always possible: the walk passes where it is not.
            targets.append((int(np.setdiff1d(states, where)[0]), -1))
    local = own.copy()
    local[:, 0] = [place[state] for state in own[:, 0].tolist()]
    local[:, 1] = [place[state] for state in own[:, 1].tolist()]
    graph = _Graph(local, states.size)
    walk: list[int] = []
    here = place[entry]
    visited, taken_causes = {here}, set()
    for state, cause in targets:
        if (cause < 0 and place[state] in visited) or cause in taken_causes:
            continue
        path = graph.path(graph.reached(here)[1], here, place[state])
        if cause >= 0:
            path.append(cause)
        for step in path:
            here = graph.follow(here, step)
            visited.add(here)
            taken_causes.add(step)
        walk += path
    if here != place[entry] or not walk:
        first = local[local[:, 0] == here][0]
        if not walk:
            walk.append(int(first[2]))
            here = int(first[1])
        walk += graph.path(graph.reached(here)[1], here, place[entry])
    return walk


def _matrix(edges: NDArray[np.int32], states: int) -> csr_array:
    ones = np.ones(edges.shape[0], np.int8)
    return coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(states, states)).tocsr()


class _Graph:
    """Edges, and shortest ways along them."""

    def __init__(self, edges: NDArray[np.int32], states: int) -> None:
        self.edges = edges
        self._order = np.argsort(edges[:, 0], kind="stable")
        self._sources = edges[self._order, 0]
        self._matrix = _matrix(edges, states)

    def reached(self, start: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the states that can be reached, nearest first, and the state before each."""
        order, parents = breadth_first_order(self._matrix, start)
        return order, parents

    def path(self, parents: NDArray[np.int32], start: int, state: int) -> list[int]:
        """Return the causes of the steps from ``start`` to a state."""
        found = []
        while state != start:
            before = int(parents[state])
            found.append(self._cause(before, state))
            state = before
        return found[::-1]

    def follow(self, state: int, cause: int) -> int:
        """Return where a step leads."""
        rows = self._leaving(state)
        return int(rows[rows[:, 2] == cause][0, 1])

    def _cause(self, state: int, to: int) -> int:
        rows = self._leaving(state)
        return int(rows[rows[:, 1] == to][0, 2])

    def _leaving(self, state: int) -> NDArray[np.int32]:
        first, last = np.searchsorted(self._sources, [state, state + 1])
        return self.edges[self._order[first:last]]


def obliged_causes(obliged: Sequence[bool]) -> NDArray[np.bool_]:
    """Return for each cause (``event * 3 + how``) whether it must happen; losses and doublings never must."""
    found = np.zeros(3 * len(obliged), np.bool_)
    found[::3] = obliged
    return found
