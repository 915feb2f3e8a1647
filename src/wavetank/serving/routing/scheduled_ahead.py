"""Engines that decide the batch of a step while the step before it still runs (asynchronous scheduling).

The device never waits for the scheduler, but a request that arrives during step k finds step k + 1 decided and gets its
first tokens in step k + 2: at light load a whole step later than without.  The engine of a data-parallel group is
chosen when the request is first seen.

Source: vLLM 0.19, ``EngineCore.step_with_batch_queue`` with two batches in flight, and
``DPLBAsyncMPClient.get_core_engine_for_request``.

Differs from the source:

1. A slot that a finished request gives back is seen one step late, as in vLLM, but its KV cache at once.
2. The counts behind the choice of an engine are those of the decision, not up to 100 ms old.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.routing.interface import ActiveView, PoolView, WorkersView, place_function
from wavetank.settings import setting


@place_function
def _place(
    view: WorkersView,
    pool: PoolView,
    active: ActiveView,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    placed: NDArray[np.int64],
) -> int:
    ahead, weight = parameters[0] > 0.0, parameters[1]
    workers = view.running.size
    # The state: slots that were free after the last decision, then what this decision has given each worker.
    free, given = state[:workers], state[workers:]
    given[:] = 0.0
    busy = False
    for w in range(workers):
        busy = busy or view.running[w] + view.waiting[w] > 0
    late = busy and ahead
    count = 0
    for i in range(pool.prompt_tokens.size):
        if late and pool.waited_steps[i] == 0:
            # Those behind it came later.
            break
        best = -1
        least = np.inf
        for w in range(workers):
            room = np.float64(view.slots[w] - view.running[w] - view.waiting[w])
            if late:
                room = min(room, free[w])
            score = weight * view.waiting[w] + view.running[w] + given[w]
            if given[w] < room and score < least:
                best, least = w, score
        if best < 0:
            break
        placed[i] = best
        given[best] += 1.0
        count += 1
    for w in range(workers):
        free[w] = view.slots[w] - view.running[w] - view.waiting[w] - given[w]
    return count


@dataclass(frozen=True, kw_only=True)
class ScheduledAhead:
    """Pool router of a single lockstep domain that lets each request wait for the step already decided."""

    ahead: bool = setting(True, says="Whether a batch is decided while the step before it runs, or at its boundary")
    waiting_weight: float = setting(
        4.0, says="Weight of a waiting request relative to a running one", low=0.0, high=1e6
    )

    place = staticmethod(_place)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return two counts a worker."""
        return np.zeros(2 * workers)

    def parameters(self) -> NDArray[np.float64]:
        """Return whether batches are decided ahead, and the weight of a waiting request."""
        return np.array([float(self.ahead), self.waiting_weight])
