"""Prefix affinity with a load cap: go where the prompt's beginning already is, unless that worker is overloaded.

A worker that has served the same conversation holds its prefix in the KV cache and need not compute it again; but a
popular prefix must not drown one worker, so workers far above the mean load are out of the question.

Source: the score ``matched / prompt - beta * (load - mean) / mean`` of the vLLM production stack (pull request 1035);
the cap follows V. Mirrokni et al., "Consistent Hashing with Bounded Loads", SODA 2018.

Differs from the source:

1. Load is KV tokens held, waiting and sent; the production stack counts requests.
2. What a worker holds is the router's own record of what it sent there, as in a gateway without cache events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.interfaces import Arrival, WorkersView, choose_function
from wavetank.settings import setting


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    beta, cap = parameters[0], parameters[1]
    workers = view.running.size
    mean = 0.0
    for worker in range(workers):
        mean += view.kv_tokens[worker] + view.waiting_tokens[worker] + view.sent_tokens[worker]
    # The new request is part of the load that the cap is about: an empty cluster then has a mean, too.
    mean = (mean + arrival.prompt_tokens) / workers
    best = 0
    highest = -np.inf
    for worker in range(workers):
        load = view.kv_tokens[worker] + view.waiting_tokens[worker] + view.sent_tokens[worker]
        score = view.matched_tokens[worker] / arrival.prompt_tokens - beta * (load - mean) / mean
        if load > cap * mean:
            # Still comparable among themselves, should all be over the cap.
            score -= 1e9
        if score > highest:
            best, highest = worker, score
    return best


@dataclass(frozen=True, kw_only=True)
class PrefixAffinity:
    """Router that weighs the share of the prompt a worker already has against its load."""

    reads_prefix: ClassVar[bool] = True

    beta: float = setting(0.5, says="what a load of twice the mean costs, in shares of the prompt", low=0.0, high=1e3)
    load_cap: float = setting(1.5, says="workers with more than this multiple of the mean load are avoided", low=1.0)

    choose = staticmethod(_choose)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return no state."""
        return np.zeros(0)

    def parameters(self) -> NDArray[np.float64]:
        """Return beta and the cap."""
        return np.array([self.beta, self.load_cap])
