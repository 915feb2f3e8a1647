"""vLLM's rule for data-parallel engines: the least of four times the waiting plus the running requests.

It counts requests, not tokens, and its counts are refreshed every 100 ms; in between it adds what it sent itself to
the waiting ones, so that a burst does not pile up on one engine.

In vLLM 0.19 it is ``DPLBAsyncMPClient.get_core_engine_for_request``, with the DP coordinator's 100 ms statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.routing.interface import Arrival, NoState, WorkersView, choose_function, fits
from wavetank.settings import setting


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    weight = parameters[0]
    best = 0
    least = np.inf
    for worker in range(view.running.size):
        score = weight * (view.waiting[worker] + view.sent_requests[worker]) + view.running[worker]
        if score < least and fits(view, worker):
            best, least = worker, score
    return best


@dataclass(frozen=True, kw_only=True)
class VLLMDefault(NoState):
    """Router that joins the engine with the least ``waiting_weight * waiting + running``, first among equals."""

    waiting_weight: float = setting(
        4.0, says="Weight of a waiting request relative to a running one", low=0.0, high=1e6
    )

    choose = staticmethod(_choose)

    def parameters(self) -> NDArray[np.float64]:
        """Return the weight of a waiting request."""
        return np.array([self.waiting_weight])
