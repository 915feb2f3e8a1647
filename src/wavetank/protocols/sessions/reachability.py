"""Backward reachability over a graph of steps: which configurations can still reach a set of good ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

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
        shape = (starts.size - 1, configurations)
        by_target = csr_array((np.ones(targets.size, np.int8), targets, starts), shape=shape).tocsc()
        self._into, self._sources = by_target.indptr, by_target.indices

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
