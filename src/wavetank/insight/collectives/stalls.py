"""Which operations of a window hang, who is missing in them, and which of several hanging ones holds up the others.

All analysers of hangs share this, so that they differ in what they make of it alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.insight.collectives.interface import NEVER, Ints, Window


class Stall(NamedTuple):
    """An operation that nobody has moved for too long.

    Parameters
    ----------
    comm, seq : int
    rows : int64 array
        Frames of the operation, of ranks that have entered; those that are done, too.
    missing : int64 array
        Members that have not entered.
    still_ns : int
        How long nobody has moved.
    """

    comm: int
    seq: int
    rows: Ints
    missing: Ints
    still_ns: int


def stalls(window: Window, hang_s: float) -> list[Stall]:
    """Return the oldest unfinished operation of each communicator that stands still, the longest first.

    Parameters
    ----------
    window : Window
    hang_s : float
        An operation hangs when no rank in it has moved for this long, by its own clock.
    """
    frames, now_ns = window.frames, window.now_ns
    inside = frames.entered & ~frames.done & (now_ns[frames.rank] != NEVER)
    if not inside.any():
        return []
    many = len(window.members)
    oldest = np.full(many, np.iinfo(np.int64).max)
    np.minimum.at(oldest, frames.comm[inside], frames.seq[inside])
    at_oldest = inside & (frames.seq == oldest[frames.comm])
    still = np.full(many, np.iinfo(np.int64).max)
    waited = now_ns[frames.rank] - np.maximum(frames.moved_ns, frames.entered_ns)
    np.minimum.at(still, frames.comm[at_oldest], waited[at_oldest])
    hung = np.flatnonzero((oldest != np.iinfo(np.int64).max) & (still >= hang_s * 1e9))
    if not hung.size:
        return []
    reached = np.full(window.slots[1].size, np.iinfo(np.int64).min)
    entered = frames.entered
    np.maximum.at(reached, window.slot_of[entered], frames.seq[entered])
    begin = window.slots[2]
    of_op = np.flatnonzero(entered & (frames.seq == oldest[frames.comm]))
    of_op = of_op[np.argsort(frames.comm[of_op], kind="stable")]
    edges = np.searchsorted(frames.comm[of_op], np.arange(many + 1))
    found = [
        Stall(
            int(comm),
            int(oldest[comm]),
            of_op[edges[comm] : edges[comm + 1]],
            window.members[comm][reached[begin[comm] : begin[comm + 1]] < oldest[comm]],
            int(still[comm]),
        )
        for comm in hung
    ]
    return sorted(found, key=lambda each: (-each.still_ns, each.comm))


def roots(window: Window, hanging: list[Stall]) -> tuple[list[Stall], list[Stall]]:
    """Return the hanging operations that hold up others, and those of a circle that hold up each other.

    A rank that is missing in one operation because it hangs in another is a victim, and the operation waits for the
    other one.  What is left holds up the rest, unless all wait for each other.

    Parameters
    ----------
    window : Window
    hanging : list of Stall
    """
    frames = window.frames
    hangs_in = np.full(window.now_ns.size, -1)
    for number, each in enumerate(hanging):
        rows = each.rows[~frames.done[each.rows]]
        hangs_in[frames.rank[rows]] = number
    first, waits_for = list[tuple[int, Stall]](), dict[int, int]()
    for number, each in enumerate(hanging):
        elsewhere = hangs_in[each.missing]
        free = each.missing[(elsewhere < 0) | (elsewhere == number)]
        if not each.missing.size or free.size:
            first.append((each.missing.size - free.size, each._replace(missing=free)))
        else:
            waits_for[number] = int(elsewhere[0])
    if first or not waits_for:
        # The one with the fewest victims among the missing, then the one that has stood still for longest.
        return [each for _, each in sorted(first, key=lambda pair: pair[0])], []
    at, seen = next(iter(waits_for)), list[int]()
    while at not in seen:
        seen.append(at)
        at = waits_for[at]
    return [], [hanging[number] for number in seen[seen.index(at) :]]


def all_missing(first: list[Stall]) -> Ints:
    """Return who has not come where the first one lacks somebody: a machine may lack in several rings at once.

    Parameters
    ----------
    first : list of Stall
        As :func:`roots` returns them, at least one.
    """
    if not first[0].missing.size:
        return first[0].missing
    return np.unique(np.concatenate([each.missing for each in first]))
