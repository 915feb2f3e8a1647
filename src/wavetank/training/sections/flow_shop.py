"""Permutation flow shops: every job goes through all machines, in one order of jobs for all of them.

NEH inserts jobs, the longest first, each where the makespan of what is there grows least.  With heads (when a machine
is done with the jobs before) and tails (what is left after a machine's jobs behind) the makespan of an insertion is the
largest sum of both around the new job, so that all places of one job cost as much as one makespan.

Sources: S. M. Johnson, "Optimal two- and three-stage production schedules", 1954; M. Nawaz, E. E. Enscore, I. Ham, "A
heuristic algorithm for the m-machine, n-job flow-shop sequencing problem", 1983; E. Taillard, "Some efficient heuristic
methods for the flow shop sequencing problem", 1990, and "Benchmarks for basic scheduling problems", 1993.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled

Ints = NDArray[np.int64]

_MOST = 2**61
_MODULUS, _FACTOR, _QUOTIENT, _REST = 2**31 - 1, 16_807, 127_773, 2_836


def _checked(times: Ints) -> Ints:
    times = np.ascontiguousarray(times)
    whole = times.dtype.kind in "iu" and times.ndim == 2 and times.shape[1] > 0
    if not whole or (times.size and (times.min() < 0 or float(times.sum(dtype=np.float64)) > _MOST)):
        raise BadValueError(
            "A flow shop has a whole number from 0 for each job and machine.", given=f"{times.dtype}, {times.shape}"
        )
    return times.astype(np.int64)


def makespan(times: Ints, order: Ints) -> int:
    """Return when the last job leaves the last machine.

    Parameters
    ----------
    times : int64 array (jobs, machines)
    order : int64 array (jobs,)
        Numbers of jobs, each at most once.

    Raises
    ------
    BadValueError
        If times are negative or no whole numbers, or the order is none of these jobs.

    Examples
    --------
    >>> makespan(np.array([[3, 6], [5, 2], [1, 2], [6, 6], [7, 5]]), np.array([2, 0, 3, 4, 1]))
    24
    """
    times, order = _checked(times), np.ascontiguousarray(order, np.int64)
    if order.size and (order.min() < 0 or order.max() >= len(times) or np.unique(order).size != order.size):
        raise BadValueError("An order names jobs, each once.", given=str(order)[:80], allowed=f"0 to {len(times) - 1}")
    return int(_makespan(times, order))


@compiled
def _makespan(times, order):  # type: ignore[no-untyped-def]
    machines = times.shape[1]
    ends = np.zeros(machines, np.int64)
    for job in order:
        ends[0] += times[job, 0]
        for m in range(1, machines):
            ends[m] = max(ends[m], ends[m - 1]) + times[job, m]
    return ends[machines - 1]


def johnson(times: Ints) -> Ints:
    """Return the order with the least makespan on two machines.

    Jobs that are shorter on the first machine come first, by that time; the others after them, the longest on the
    second machine first.

    Parameters
    ----------
    times : int64 array (jobs, 2)

    Raises
    ------
    BadValueError
        If there are not two machines.

    Examples
    --------
    >>> johnson(np.array([[3, 6], [5, 2], [1, 2], [6, 6], [7, 5]])).tolist()
    [2, 0, 3, 4, 1]
    """
    times = _checked(times)
    if times.shape[1] != 2:
        raise BadValueError("Johnson's rule is for two machines.", given=times.shape[1], allowed="2")
    first, second = times.T
    early = first <= second
    found: Ints = np.lexsort((np.arange(len(times)), np.where(early, first, -second), ~early))
    return found


def longest_total_first(times: Ints) -> Ints:
    """Return jobs by the sum of their times, the longest first; of equal ones the earlier.

    Parameters
    ----------
    times : int64 array (jobs, machines)
    """
    found: Ints = np.lexsort((np.arange(len(times)), -times.sum(1)))
    return found


def neh(times: Ints) -> Ints:
    """Return NEH's order; of places that are as good the first.

    Parameters
    ----------
    times : int64 array (jobs, machines)

    Raises
    ------
    BadValueError
        If times are negative or no whole numbers.

    Examples
    --------
    >>> times = np.array([[3, 6], [5, 2], [1, 2], [6, 6], [7, 5]])
    >>> makespan(times, neh(times))
    24
    """
    times = _checked(times)
    found: Ints = _neh(times, longest_total_first(times))
    return found


@compiled
def _neh(times, start):  # type: ignore[no-untyped-def]
    jobs, machines = times.shape
    order = np.zeros(jobs, np.int64)
    heads = np.zeros((jobs + 1, machines + 1), np.int64)
    tails = np.zeros((jobs + 1, machines + 1), np.int64)
    for size in range(jobs):
        new = start[size]
        for i in range(size):
            for m in range(machines):
                heads[i + 1, m + 1] = max(heads[i, m + 1], heads[i + 1, m]) + times[order[i], m]
        for m in range(machines + 1):
            tails[size, m] = 0
        for i in range(size - 1, -1, -1):
            for m in range(machines - 1, -1, -1):
                tails[i, m] = max(tails[i + 1, m], tails[i, m + 1]) + times[order[i], m]
        best, least = 0, np.int64(0)
        for place in range(size + 1):
            inserted, longest = np.int64(0), np.int64(0)
            for m in range(machines):
                inserted = max(inserted, heads[place, m + 1]) + times[new, m]
                longest = max(longest, inserted + tails[place, m])
            if place == 0 or longest < least:
                best, least = place, longest
        for i in range(size, best, -1):
            order[i] = order[i - 1]
        order[best] = new
    return order


def taillard_times(seed: int, jobs: int, machines: int) -> Ints:
    """Return the times of one of Taillard's instances, 1 to 99, by the generator that he published.

    Parameters
    ----------
    seed : int
        The instance's time seed; that of ta001 is 873654221.
    jobs, machines : int

    Returns
    -------
    int64 array (jobs, machines)

    Raises
    ------
    BadValueError
        If the seed is not from 1 to 2**31 - 2, or there is no job or machine.

    Examples
    --------
    >>> taillard_times(873654221, 20, 5)[:3, 0].tolist()
    [54, 83, 15]
    """
    if not 0 < seed < _MODULUS or jobs < 1 or machines < 1:
        raise BadValueError("An instance has a seed, jobs and machines.", given=(seed, jobs, machines),
                            allowed=f"a seed from 1 to {_MODULUS - 1}, 1 job, 1 machine or more")  # fmt: skip
    found = np.zeros((jobs, machines), np.int64)
    for machine in range(machines):
        for job in range(jobs):
            seed = _FACTOR * (seed % _QUOTIENT) - seed // _QUOTIENT * _REST
            seed += _MODULUS if seed < 0 else 0
            # The draw is a share of the modulus; whole numbers give the same as his floating point.
            found[job, machine] = 1 + seed * 99 // _MODULUS
    return found
