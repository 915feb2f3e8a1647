"""vLLM's rule for data-parallel engines: the least of four times the waiting plus the running requests.

It counts requests, not tokens, and its counts are refreshed every 100 ms; in between it adds what it sent itself to
the waiting ones, so that a burst does not pile up on one engine.

Source: vLLM 0.19, ``DPLBAsyncMPClient.get_core_engine_for_request`` and the DP coordinator's 100 ms statistics.

Differs from the source:

1. One API server, so that the search always starts at engine 0; with several, vLLM starts each at another engine.
2. The age of the counts is the cluster's ``refresh_s``, 0.1 s by default as in vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.interfaces import Arrival, WorkersView, choose_function
from wavetank.settings import setting


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    weight = parameters[0]
    best = 0
    least = np.inf
    for worker in range(view.running.size):
        score = weight * (view.waiting[worker] + view.sent_requests[worker]) + view.running[worker]
        if score < least:
            best, least = worker, score
    return best


@dataclass(frozen=True, kw_only=True)
class VLLMDefault:
    """Router that joins the engine with the least ``waiting_weight * waiting + running``, first among equals."""

    waiting_weight: float = setting(4.0, says="what a waiting request counts against a running one", low=0.0, high=1e6)

    choose = staticmethod(_choose)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return no state."""
        return np.zeros(0)

    def parameters(self) -> NDArray[np.float64]:
        """Return the weight of a waiting request."""
        return np.array([self.waiting_weight])
