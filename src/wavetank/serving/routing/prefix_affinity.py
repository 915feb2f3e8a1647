"""Prefix affinity with a load cap: go where the prompt's beginning already is, unless that worker is overloaded.

A worker that has served the same conversation holds its prefix in the KV cache and need not compute it again; but a
popular prefix must not drown one worker, so workers far above the mean load are out of the question.

The score is ``matched / prompt - beta * (load - mean) / mean``; the cap follows V. Mirrokni et al., "Consistent
Hashing with Bounded Loads", SODA 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.routing.interface import Arrival, NoState, WorkersView, choose_function, fits
from wavetank.settings import setting


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    beta, cap = parameters[0], parameters[1]
    workers = view.running.size
    total, fit = 0.0, 0
    for worker in range(workers):
        if fits(view, worker):
            total += view.kv_tokens[worker] + view.waiting_tokens[worker] + view.sent_tokens[worker]
            fit += 1
    # The new request is part of the load that the cap is about: an empty cluster then has a mean, too.
    prompt = max(arrival.prompt_tokens, 1.0)
    mean = (total + prompt) / max(fit, 1)
    best = 0
    highest = -np.inf
    for worker in range(workers):
        load = view.kv_tokens[worker] + view.waiting_tokens[worker] + view.sent_tokens[worker]
        score = view.matched_tokens[worker] / prompt - beta * (load - mean) / mean
        if load > cap * mean:
            # Still comparable among themselves, should all be over the cap.
            score -= 1e9
        if score > highest and fits(view, worker):
            best, highest = worker, score
    return best


@dataclass(frozen=True, kw_only=True)
class PrefixAffinity(NoState):
    """Router that weighs the share of the prompt a worker already has against its load."""

    reads_prefix: ClassVar[bool] = True

    beta: float = setting(0.5, says="Cost of a load of twice the mean, in shares of the prompt", low=0.0, high=1e3)
    load_cap: float = setting(1.5, says="Multiple of the mean load above which workers are avoided", low=1.0)

    choose = staticmethod(_choose)

    def parameters(self) -> NDArray[np.float64]:
        """Return beta and the cap."""
        return np.array([self.beta, self.load_cap])
