"""Backward reachability over a graph of steps: which configurations can still reach a set of good ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled


class Steps:
    """The steps between configurations, indexed by where they lead to.

    Parameters
    ----------
    starts : ndarray of int64, shape (expanded + 1,)
        Where the steps of each configuration begin in ``targets``.
    targets : ndarray of int32, shape (steps,)
    configurations : int
        At least as many as were expanded; the others have no steps.
    """

    def __init__(self, starts: NDArray[np.int64], targets: NDArray[np.int32], configurations: int) -> None:
        self._into, self._sources = _reversed(starts, targets, configurations)

    def can_reach(self, good: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return, for every configuration, whether a good one can be reached from it (in no step or more).

        Parameters
        ----------
        good : ndarray of bool, shape (configurations,)
        """
        found = good.copy()
        _spread(self._into, self._sources, found)
        return found


@compiled
def _reversed(starts, targets, configurations):  # type: ignore[no-untyped-def]
    """Return the steps sorted by target: where each target's begin, and their sources."""
    into = np.zeros(configurations + 1, np.int64)
    for target in targets:
        into[target + 1] += 1
    for number in range(configurations):
        into[number + 1] += into[number]
    free = into[:-1].copy()
    sources = np.empty(targets.size, np.int32)
    for source in range(starts.size - 1):
        for step in range(starts[source], starts[source + 1]):
            target = targets[step]
            sources[free[target]] = source
            free[target] += 1
    return into, sources


@compiled
def _spread(into, sources, found):  # type: ignore[no-untyped-def]
    waiting = np.empty(found.size, np.int64)
    count = 0
    for number in range(found.size):
        if found[number]:
            waiting[count] = number
            count += 1
    while count:
        count -= 1
        number = waiting[count]
        for position in range(into[number], into[number + 1]):
            source = sources[position]
            if not found[source]:
                found[source] = True
                waiting[count] = source
                count += 1
