"""Edges of a bipartite multigraph in as few matchings as there can be: as many as the largest degree.

A message from a sender to a receiver is an edge.  Edges of one colour share no sender and no receiver, so that all of
them travel at once without waiting for each other.  Koenig's theorem says that the largest degree is enough colours:
where no colour is free at both ends, a path of two alternating colours is turned around, and one becomes free.

Source: D. Koenig, "Ueber Graphen und ihre Anwendung auf Determinantentheorie und Mengenlehre", 1916.  An edge takes as
many steps as there are vertices at worst, in practice a few.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

Ints = NDArray[np.int64]


def largest_degree(senders: Ints, receivers: Ints) -> int:
    """Return how many edges the busiest sender or receiver has: no fewer colours are enough.

    Parameters
    ----------
    senders, receivers : int64 array (edges,)
    """
    if senders.size == 0:
        return 0
    return int(max(np.bincount(senders).max(), np.bincount(receivers).max()))


def colour_edges(senders: Ints, receivers: Ints) -> Ints:
    """Return a colour for each edge so that edges of one colour share no end; there are as many as the largest degree.

    Equal edges give equal colours on every machine.

    Parameters
    ----------
    senders, receivers : int64 array (edges,)
        From 0; a sender and a receiver of the same number are two vertices.

    Returns
    -------
    int64 array (edges,)
        0 to the largest degree - 1.

    Raises
    ------
    BadValueError
        If the arrays differ in length or a number is below 0.

    Examples
    --------
    >>> colour_edges(np.array([0, 0, 1]), np.array([0, 1, 0])).tolist()
    [0, 1, 1]
    """
    senders, receivers = np.ascontiguousarray(senders, np.int64), np.ascontiguousarray(receivers, np.int64)
    if senders.shape != receivers.shape or senders.ndim != 1:
        raise BadValueError(
            "Every edge has a sender and a receiver.", given=(senders.shape, receivers.shape),
            allowed="two arrays of one length",
        )  # fmt: skip
    if senders.size == 0:
        return np.empty(0, np.int64)
    if min(int(senders.min()), int(receivers.min())) < 0:
        raise BadValueError(
            "Senders and receivers are numbered from 0.", given=int(min(senders.min(), receivers.min()))
        )
    vertices = int(max(senders.max(), receivers.max())) + 1
    coloured: Ints = _coloured(senders, receivers, vertices, largest_degree(senders, receivers))
    return coloured


@compiled
def _coloured(senders, receivers, vertices, degree):  # type: ignore[no-untyped-def]
    # at[side, vertex, colour] is the edge there, -1 for none; no colour below free[side, vertex] is free.
    at = np.full((2, vertices, degree), -1, np.int64)
    free = np.zeros((2, vertices), np.int64)
    ends = np.empty((2, senders.size), np.int64)
    ends[0], ends[1] = senders, receivers
    colours = np.empty(senders.size, np.int64)
    for edge in range(senders.size):
        u, v = senders[edge], receivers[edge]
        while at[0, u, free[0, u]] >= 0:
            free[0, u] += 1
        while at[1, v, free[1, v]] >= 0:
            free[1, v] += 1
        a, b = free[0, u], free[1, v]
        if at[1, v, a] >= 0:
            # Turn the path from v that begins with colour a: it never reaches u, where a is free.
            side, vertex, colour, other = 1, v, a, b
            carried = at[1, v, a]
            at[1, v, a] = -1
            while carried >= 0:
                far = 1 - side
                vertex = ends[far, carried]
                following = at[far, vertex, other]
                if at[far, vertex, colour] == carried:
                    at[far, vertex, colour] = -1
                    free[far, vertex] = min(free[far, vertex], colour)
                at[far, vertex, other] = carried
                at[side, ends[side, carried], other] = carried
                colours[carried] = other
                carried = following
                side = far
                colour, other = other, colour
        at[0, u, a] = edge
        at[1, v, a] = edge
        colours[edge] = a
    return colours
