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

# Cells of the table of vertices and colours: 2 GiB.
_MOST_CELLS = 1 << 28


def largest_degree(senders: Ints, receivers: Ints) -> int:
    """Return how many edges the busiest sender or receiver has: no fewer colours are enough.

    Parameters
    ----------
    senders, receivers : int64 array (edges,)

    Raises
    ------
    BadValueError
        If the arrays differ in length or hold no whole numbers from 0.
    """
    senders, receivers = _checked(senders, receivers)
    return max(int(np.unique(side, return_counts=True)[1].max(initial=0)) for side in (senders, receivers))


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
        If the arrays differ in length or hold no whole numbers from 0, or if the busiest vertex has too many edges that
        the table of vertices and colours would take more than 2 GiB.

    Examples
    --------
    >>> colour_edges(np.array([0, 0, 1]), np.array([0, 1, 0])).tolist()
    [0, 1, 1]
    """
    senders, receivers = _checked(senders, receivers)
    if senders.size == 0:
        return np.empty(0, np.int64)
    # Numbers may be far apart: only those that occur take room.
    (first, senders), (second, receivers) = (np.unique(side, return_inverse=True) for side in (senders, receivers))
    vertices, degree = max(first.size, second.size), largest_degree(senders, receivers)
    if 2 * vertices * degree > _MOST_CELLS:
        raise BadValueError(
            "The table of vertices and colours would take too much memory.",
            given=f"{vertices} vertices, {degree} edges at the busiest",
            allowed=f"a product of {_MOST_CELLS // 2} at most", hint="colour parts of the edges one after another",
        )  # fmt: skip
    coloured: Ints = _coloured(senders, receivers, vertices, degree)
    return coloured


def _checked(senders: Ints, receivers: Ints) -> tuple[Ints, Ints]:
    senders, receivers = np.asarray(senders), np.asarray(receivers)
    if senders.shape != receivers.shape or senders.ndim != 1:
        raise BadValueError(
            "Every edge has a sender and a receiver.", given=(senders.shape, receivers.shape),
            allowed="two arrays of one length",
        )  # fmt: skip
    for side in (senders, receivers):
        # An empty list has no kind of its own.
        if side.size and (side.dtype.kind not in "iu" or side.min() < 0):
            raise BadValueError("Senders and receivers are whole numbers from 0.", given=str(side.min()))
    return np.ascontiguousarray(senders, np.int64), np.ascontiguousarray(receivers, np.int64)


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
