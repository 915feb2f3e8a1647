"""Routers that look at prompts that are still to be computed: what a new request waits for.

* *Least prefill* joins the worker with the fewest prompt tokens in its queue: a queue of two long prompts is longer
  than one of ten short ones.
* Where prompts are computed by workers of their own, a *split* router does so among those, and joins the worker with
  the fewest KV tokens among those that decode.
* *LMetric* multiplies the tokens that the worker would have to compute for this request by the requests that it has,
  and takes the least product: a match counts the more, the more there is to do, and there is nothing to tune.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.routing.baselines import FewestKVTokens
from wavetank.serving.routing.interface import Arrival, NoParameters, NoState, WorkersView, choose_function, fits
from wavetank.settings import setting


@choose_function
def _least_prefill(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    workers = view.running.size
    start = int(state[0])
    best = start
    least, fewest = np.inf, np.inf
    for i in range(workers):
        worker = (start + i) % workers
        if not fits(view, worker):
            continue
        tokens = view.waiting_tokens[worker] + view.sent_tokens[worker]
        # Where no prompt waits anywhere the requests decide, and then the turn.
        requests = np.float64(view.running[worker] + view.waiting[worker] + view.sent_requests[worker])
        if tokens < least or (tokens == least and requests < fewest):
            best, least, fewest = worker, tokens, requests
    state[0] = (best + 1) % workers
    return best


@choose_function
def _product(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    best = 0
    least, fewest = np.inf, np.inf
    for worker in range(view.running.size):
        if not fits(view, worker):
            continue
        requests = np.float64(view.running[worker] + view.waiting[worker] + view.sent_requests[worker])
        score = (arrival.prompt_tokens - view.matched_tokens[worker]) * (requests + 1.0)
        if score < least or (score == least and requests < fewest):
            best, least, fewest = worker, score, requests
    return best


@dataclass(frozen=True, kw_only=True)
class LeastPrefill(NoParameters):
    """Router that joins the worker with the fewest prompt tokens in its queue."""

    choose = staticmethod(_least_prefill)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return one cell: the worker to begin with, so that equals take turns."""
        return np.zeros(1)


@dataclass(frozen=True, kw_only=True)
class LMetric(NoState, NoParameters):
    """Router that takes the least product of prompt tokens to compute and requests."""

    reads_prefix: ClassVar[bool] = True

    choose = staticmethod(_product)


@dataclass(frozen=True, kw_only=True)
class SplitByPhase(FewestKVTokens):
    """Router of a cluster split by phase: fewest prompt tokens on prefill, fewest KV tokens on decode."""

    @property
    def prefill_router(self) -> LeastPrefill:
        """The router of the workers that compute prompts."""
        return LeastPrefill()


@dataclass(frozen=True, kw_only=True)
class Aggregated(FewestKVTokens):
    """The same workers without a split: each computes prompts in chunks beside its answers; fewest KV tokens decide."""

    aggregates: ClassVar[bool] = True

    chunk_tokens: int = setting(
        0, unit="tokens", says="Token budget of a step, and so the largest chunk of a prompt; 0: the study's",
        low=0, high=10**6,
    )  # fmt: skip
