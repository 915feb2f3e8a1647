"""When auxiliary sections and the critical one work on which sample, if samples come in an order.

The rules are:

1. The critical section takes samples in the order, each when the outputs of all auxiliary sections that it needs are
   there; it computes forward and backward at once.
2. An auxiliary section computes forward passes in the order, for the samples that need it.  It may be ahead by as many
   outputs as the queue between both holds: one that the critical section has not taken holds its place.
3. Its backward passes come in the order, each after the sample's time in the critical section; forward and backward
   passes share its GPUs.  Whatever can begin first begins, forward of those that could begin at once.

Nothing is interrupted.  Times are whole picoseconds, so that ties are ties everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

Ints = NDArray[np.int64]

UNBOUNDED = 0
"""A queue that holds any number of samples."""

_MOST_PS = 2**61


@dataclass(frozen=True, kw_only=True, eq=False)
class Flow:
    """Times of samples in each section.

    Parameters
    ----------
    forward_ps, backward_ps : int64 array (auxiliary sections, samples)
        0 where a sample does not need the section, or the section is frozen.
    critical_ps : int64 array (samples,)
        Forward and backward.
    queue : int
        Outputs of an auxiliary section that may wait; :data:`UNBOUNDED` for any number.
    shared : bool
        Whether forward and backward passes of a section share its GPUs; if not, it has as many again.

    Raises
    ------
    BadValueError
        If shapes differ, times are negative or no whole numbers, or add up to more than 64 bits hold.
    """

    forward_ps: Ints
    critical_ps: Ints
    backward_ps: Ints
    queue: int = UNBOUNDED
    shared: bool = True

    def __post_init__(self) -> None:
        count = self.critical_ps.shape
        arrays = (self.forward_ps, self.critical_ps, self.backward_ps)
        right = len(count) == 1 and self.forward_ps.ndim == 2 and self.forward_ps.shape == self.backward_ps.shape
        right = right and self.forward_ps.shape[1:] == count and all(each.dtype == np.int64 for each in arrays)
        if not right:
            raise BadValueError(
                "Times are whole picoseconds, for each section and sample.",
                given=str([(each.shape, str(each.dtype)) for each in arrays]),
            )
        least = min((int(each.min()) for each in arrays if each.size), default=0)
        if least < 0 or sum(float(each.sum(dtype=np.float64)) for each in arrays) > _MOST_PS:
            raise BadValueError("Times of sections are out of range.", given=least, allowed=f"0 to {_MOST_PS} in all")
        check_queue(self.queue)

    @property
    def bound_ps(self) -> int:
        """What no order can be faster than: the work of the busiest section, and the longest way of a sample."""
        count = self.critical_ps.size
        if not count:
            return 0
        work = int(self.critical_ps.sum())
        for forward, backward in zip(self.forward_ps, self.backward_ps, strict=True):
            both = int(forward.sum()), int(backward.sum())
            work = max(work, sum(both) if self.shared else max(both))
        longest = self.critical_ps.copy()
        if self.forward_ps.shape[0]:
            longest += self.forward_ps.max(0) + self.backward_ps.max(0)
        return max(work, int(longest.max()))


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How long it took.

    Parameters
    ----------
    makespan_ps : int
        Until the last section is done.
    critical_end_ps : int
        Until the critical section is done.
    """

    makespan_ps: int
    critical_end_ps: int


def check_queue(queue: int) -> None:
    """Refuse a queue that is no whole number from 0.

    Parameters
    ----------
    queue : int
    """
    if isinstance(queue, bool) or not isinstance(queue, int | np.integer) or queue < 0:
        raise BadValueError("A queue holds a whole number of samples; 0: any.", given=queue, allowed="0 or more")


def run(flow: Flow, order: Ints) -> Ran:
    """Return how long samples take in an order.

    Parameters
    ----------
    flow : Flow
    order : int64 array
        Numbers of samples, each once; some may be left out.

    Raises
    ------
    BadValueError
        If a number is none of a sample, or comes twice.

    Examples
    --------
    >>> times = Flow(forward_ps=np.array([[2, 0]]), critical_ps=np.array([3, 4]), backward_ps=np.array([[4, 0]]))
    >>> run(times, np.array([0, 1])).makespan_ps, run(times, np.array([1, 0])).makespan_ps
    (9, 11)
    """
    order = np.ascontiguousarray(order, np.int64)
    count = flow.critical_ps.size
    if order.size and (order.min() < 0 or order.max() >= count or np.unique(order).size != order.size):
        raise BadValueError("An order names samples, each once.", given=str(order)[:80], allowed=f"0 to {count - 1}")
    makespan, critical_end = run_compiled(
        np.ascontiguousarray(flow.forward_ps), np.ascontiguousarray(flow.critical_ps),
        np.ascontiguousarray(flow.backward_ps), order, order.size, flow.queue, flow.shared,
    )  # fmt: skip
    return Ran(makespan_ps=int(makespan), critical_end_ps=int(critical_end))


@compiled
def run_compiled(forward, critical, backward, order, count, queue, shared):  # type: ignore[no-untyped-def]
    """Return makespan and end of the critical section for the first ``count`` samples of an order."""
    sections = forward.shape[0]
    # The samples that take part in each section, as places in the order, and which of its forward passes each is.
    places = np.empty((sections, count), np.int64)
    parts = np.zeros(sections, np.int64)
    number = np.full((sections, count), -1, np.int64)
    for k in range(sections):
        for place in range(count):
            item = order[place]
            if forward[k, item] > 0 or backward[k, item] > 0:
                number[k, place] = parts[k]
                places[k, parts[k]] = place
                parts[k] += 1
    done = np.zeros((sections, count), np.int64)
    begun, ended = np.zeros(count, np.int64), np.zeros(count, np.int64)
    # When GPUs for forward and for backward passes are free; how many passes are done.
    free = np.zeros((sections, 2), np.int64)
    forwards, backwards = np.zeros(sections, np.int64), np.zeros(sections, np.int64)
    taken, critical_free = 0, 0
    while True:
        while taken < count:
            start, known = critical_free, True
            for k in range(sections):
                place = number[k, taken]
                if place >= 0:
                    if place >= forwards[k]:
                        known = False
                        break
                    start = max(start, done[k, taken])
            if not known:
                break
            begun[taken] = start
            critical_free = start + critical[order[taken]]
            ended[taken] = critical_free
            taken += 1
        best, best_start, best_back = -1, np.int64(0), False
        for k in range(sections):
            if forwards[k] < parts[k]:
                start, known = free[k, 0], True
                if queue > 0 and forwards[k] >= queue:
                    before = places[k, forwards[k] - queue]
                    known = before < taken
                    if known:
                        start = max(start, begun[before])
                if known and (best < 0 or start < best_start):
                    best, best_start, best_back = k, start, False
            if backwards[k] < forwards[k] and places[k, backwards[k]] < taken:
                start = max(free[k, 1], ended[places[k, backwards[k]]])
                if best < 0 or start < best_start:
                    best, best_start, best_back = k, start, True
        if best < 0:
            break
        if best_back:
            item = order[places[best, backwards[best]]]
            free[best, 1] = best_start + backward[best, item]
            backwards[best] += 1
            if shared:
                free[best, 0] = free[best, 1]
        else:
            place = places[best, forwards[best]]
            free[best, 0] = best_start + forward[best, order[place]]
            done[best, place] = free[best, 0]
            forwards[best] += 1
            if shared:
                free[best, 1] = free[best, 0]
    last = critical_free
    for k in range(sections):
        last = max(last, free[k, 0], free[k, 1])
    return last, critical_free
