"""What the time of each device is worth to what is still to be done: the dual prices of a balance of work.

All work left could be done soonest if it were divisible and nothing waited for anything else.  That least time is a
small linear program, a lower bound of every schedule; its dual prices say how much sooner all would be done with a
second more of a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wavetank.errors import GaveUpError
from wavetank.serving.workflows.costs import Times
from wavetank.serving.workflows.interface import FloatArray, StageKey


class Balance(NamedTuple):
    """The least time for divisible work, and what device time is worth."""

    least_s: float
    prices: FloatArray
    """Shape (devices,); they sum to 1."""


def work_left(times: Sequence[Times], placed: Mapping[StageKey, tuple[int, ...]]) -> FloatArray:
    """Return the time that each kind of stage, all of it that is not placed, would take on each device.

    Parameters
    ----------
    times : sequence of Times
        Of all applications, by number.
    placed : mapping of StageKey to tuple of int
        Stages that are left out.

    Returns
    -------
    array of float64, shape (kinds, devices)
        Infinite where a kind may not be computed; empty if nothing is left.
    """
    gone: list[list[int]] = [[] for _ in times]
    for number, task in placed:
        gone[number].append(task)
    found: dict[tuple[str, bytes], FloatArray] = {}
    for each, tasks in zip(times, gone, strict=True):
        if len(tasks) == len(each.application.stages):
            continue
        left = np.ones(len(each.application.stages), bool)
        left[tasks] = False
        for kind, rows in each.kinds.items():
            some = rows[left[rows]]
            if some.size:
                found[kind] = found.get(kind, 0.0) + each.run_s[some].sum(axis=0)
    return np.array(list(found.values())) if found else np.empty((0, 0))


def balance(work_s: FloatArray, busy_s: FloatArray) -> Balance:
    """Return the least time in which all work could be done, and the prices of the devices.

    Parameters
    ----------
    work_s : array of float64, shape (kinds, devices)
        Time of all work of a kind on each device; infinite where it may not be done.
    busy_s : array of float64, shape (devices,)
        Time until each device is free.

    Raises
    ------
    GaveUpError
        If the program has no solution: some kind of work can be done nowhere.
    """
    from scipy.optimize import linprog

    count = busy_s.size
    if not work_s.size:
        return Balance(float(busy_s.max()), np.full(count, 1 / count))
    where, device = np.nonzero(np.isfinite(work_s))
    columns = np.arange(where.size)
    done, taken = np.zeros((work_s.shape[0], where.size + 1)), np.zeros((count, where.size + 1))
    done[where, columns] = 1.0
    taken[device, columns] = work_s[where, device]
    taken[:, -1] = -1.0
    objective = np.zeros(where.size + 1)
    objective[-1] = 1.0
    found = linprog(objective, A_ub=taken, b_ub=-busy_s, A_eq=done, b_eq=np.ones(work_s.shape[0]), method="highs")
    if found.x is None:
        raise GaveUpError("The work that is left cannot be balanced between the devices.", given=found.message)
    return Balance(float(found.fun), -np.asarray(found.ineqlin.marginals, float))
