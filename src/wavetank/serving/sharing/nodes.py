"""One node between two decisions: jobs arrive, share its GPU and CPU, end or are given up at their deadlines.

A job has GPU work and CPU work, which go on side by side; it ends when both are done.  Shares are divided anew at every
arrival, end and deadline, when the needs of radio functions change, and every 10 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.sharing.shares import divide
from wavetank.sim.compiled import compiled

RULES = ("closed-form", "equal", "proportional", "earliest-deadline")
"""How a node divides a resource.  Closed form: radio functions first, then deadlines
(:mod:`~wavetank.serving.sharing.shares`).  Equal: every radio function and every job the same share.  Proportional: by
what each asks for, work of jobs and needs of radio functions.  Earliest deadline: radio functions first, all else to
the job whose deadline is next."""
TICK_S = 0.01
_EPS = 1e-12


@dataclass
class Jobs:
    """The jobs on one node, as growing arrays of which the first ``count`` stand for jobs.

    Attributes
    ----------
    columns : float64, shape (5, n)
        Number of the request, deadline, GPU work and CPU work that are left, weight.
    count : int
    """

    columns: NDArray[np.float64] = field(default_factory=lambda: np.zeros((5, 64)))
    count: int = 0

    def room(self, more: int) -> None:
        """Make room for more jobs.

        Parameters
        ----------
        more : int
        """
        if self.count + more > self.columns.shape[1]:
            wider = np.zeros((5, 2 * (self.count + more)))
            wider[:, : self.count] = self.columns[:, : self.count]
            self.columns = wider


@compiled
def advance(columns: NDArray[np.float64], count: int, begin_s: float, end_s: float, arrivals: NDArray[np.float64],
            needs: NDArray[np.float64], whole: NDArray[np.float64], rule: int, finish_s: NDArray[np.float64],
            met_s: NDArray[np.float64]) -> int:  # fmt: skip
    """Run one node.

    Parameters
    ----------
    columns : float64, shape (5, n)
        Of :class:`Jobs`, with room for all arrivals.
    count : int
    begin_s, end_s : float
    arrivals : float64, shape (6, m)
        Time, number of the request, deadline, GPU work, CPU work and weight of jobs that come in this time, in order.
    needs : float64, shape (2, r)
        GPU and CPU shares that radio functions on this node need.
    whole : float64, shape (2,)
        The node's GPU and CPU.
    rule : int
        Place in :data:`RULES`.
    finish_s : float64, shape (requests,)
        Gets when each request ended.
    met_s : float64, shape (r,)
        Gets, added, how long each radio function had its shares.

    Returns
    -------
    int
        Jobs that are left.
    """
    now_s, come = begin_s, 0
    radios = needs.shape[1]
    share = np.zeros((2, columns.shape[1]))
    given = np.zeros((2, radios))
    until_s = np.zeros(columns.shape[1])
    while now_s < end_s:
        while come < arrivals.shape[1] and arrivals[0, come] <= now_s + _EPS:
            columns[0, count], columns[1, count] = arrivals[1, come], arrivals[2, come]
            columns[2, count], columns[3, count] = arrivals[3, come], arrivals[4, come]
            columns[4, count] = arrivals[5, come]
            count += 1
            come += 1
        # Ended and late jobs leave; the last one takes the free place.
        at = 0
        while at < count:
            done = columns[2, at] <= _EPS and columns[3, at] <= _EPS
            if done or columns[1, at] <= now_s + _EPS:
                if done:
                    finish_s[int(columns[0, at])] = now_s
                count -= 1
                for row in range(5):
                    columns[row, at] = columns[row, count]
            else:
                at += 1
        next_s = end_s
        if come < arrivals.shape[1]:
            next_s = min(next_s, arrivals[0, come])
        for i in range(count):
            next_s = min(next_s, columns[1, i])
            until_s[i] = columns[1, i] - now_s
        if count:
            # Shares follow deadlines that come nearer.
            next_s = min(next_s, now_s + TICK_S)
        for kind in range(2):
            _divide_by_rule(columns[2 + kind], until_s, columns[4], count, needs[kind], whole[kind], rule, share[kind],
                            given[kind])  # fmt: skip
            for i in range(count):
                if share[kind, i] > 0 and columns[2 + kind, i] > _EPS:
                    next_s = min(next_s, now_s + columns[2 + kind, i] / share[kind, i])
        step_s = max(next_s - now_s, 1e-9)
        for kind in range(2):
            for i in range(count):
                columns[2 + kind, i] = max(columns[2 + kind, i] - share[kind, i] * step_s, 0.0)
        for i in range(radios):
            if given[0, i] >= needs[0, i] - 1e-9 and given[1, i] >= needs[1, i] - 1e-9:
                met_s[i] += min(step_s, end_s - now_s)
        now_s += step_s
    return count


@compiled
def _divide_by_rule(work: NDArray[np.float64], until_s: NDArray[np.float64], weight: NDArray[np.float64], count: int,
                    needs: NDArray[np.float64], whole: float, rule: int, share: NDArray[np.float64],
                    given: NDArray[np.float64]) -> None:  # fmt: skip
    active = 0
    asked = 0.0
    for i in range(count):
        if work[i] > _EPS:
            active += 1
            asked += work[i] / until_s[i]
    for i in range(needs.size):
        asked += needs[i]
    left = whole
    parts = active + needs.size
    for i in range(needs.size):
        if rule == 1:
            # What a radio function does not need, it leaves.
            given[i] = min(needs[i], whole / parts)
        elif rule == 2:
            given[i] = min(needs[i], whole * needs[i] / max(asked, _EPS))
        else:
            # First come: a function that no longer fits is left without, those after it are not.
            given[i] = needs[i] if needs[i] <= left + 1e-9 else 0.0
        left = max(left - given[i], 0.0)
    if rule == 0:
        divide(work, until_s, weight, count, left, share)
        return
    first = -1
    for i in range(count):
        share[i] = 0.0
        if work[i] > _EPS:
            if rule == 1:
                share[i] = left / active
            elif rule == 2:
                share[i] = work[i] / until_s[i]
            elif first < 0 or until_s[i] < until_s[first]:
                first = i
    if rule == 3 and first >= 0:
        share[first] = left
    if rule == 2:
        total = 0.0
        for i in range(count):
            total += share[i]
        if total > 0:
            for i in range(count):
                share[i] *= left / total
