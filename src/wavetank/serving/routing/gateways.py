"""The rules of gateways that people put in front of LLM servers.

These are SGLang's cache-aware router, NVIDIA Dynamo's KV router, the load-aware router of vLLM's production stack, and
the weighted scorers of the Gateway API Inference Extension, which llm-d uses.

All of them send a request where a part of its prompt has been computed before, and differ in what holds against it:

* *SGLang* looks at the load only when it is uneven, by an absolute and by a relative measure at once; then the
  shortest queue has it.  Otherwise the longest match decides where it is long enough, and else the worker that was
  sent the least distinct text.
* *Dynamo* adds up blocks: those of prompts that the worker has yet to compute, this one's part without a match among
  them, and those that its requests hold while they decode.  The least sum has it.
* The *production stack* takes from the matched share of the prompt the load relative to the mean of all workers: twice
  the mean outweighs a whole prompt.
* *llm-d* adds up scores between 0 and 1: the rank of the queue between the shortest and the longest, the free share of
  the KV cache, the matched share of the prompt.  What was sent since the last look at the metrics is no part of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.routing.baselines import next_that_fits, random_stream
from wavetank.serving.routing.interface import Arrival, NoState, WorkersView, choose_function, fits
from wavetank.settings import setting
from wavetank.sim.streams import next_below


@choose_function
def _cache_aware(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    threshold, absolute, relative = parameters[0], parameters[1], parameters[2]
    shortest = longest = smallest = next_that_fits(view, 0)
    least, most = np.inf, 0.0
    for worker in range(view.running.size):
        if not fits(view, worker):
            continue
        load = np.float64(view.running[worker] + view.waiting[worker] + view.sent_requests[worker])
        if load < least:
            shortest, least = worker, load
        most = max(most, load)
        if view.matched_tokens[worker] > view.matched_tokens[longest]:
            longest = worker
        if state[worker] < state[smallest]:
            smallest = worker
    if most - least > absolute and most > relative * least:
        best = shortest
    elif view.matched_tokens[longest] > threshold * arrival.prompt_tokens:
        best = longest
    else:
        best = smallest
    state[best] += arrival.prompt_tokens - view.matched_tokens[best]
    return best


@choose_function
def _kv_cost(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    weight = parameters[0]
    start = int(state[0])
    workers = view.running.size
    best = start
    least = np.inf
    for i in range(workers):
        worker = (start + i) % workers
        ahead = view.waiting_tokens[worker] + view.sent_tokens[worker]
        # Counted in tokens: a block's size divides both terms.
        cost = weight * (ahead + arrival.prompt_tokens - view.matched_tokens[worker]) + view.kv_tokens[worker] + ahead
        if cost < least and fits(view, worker):
            best, least = worker, cost
    state[0] = (best + 1) % workers
    return best


@choose_function
def _load_aware(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    beta = parameters[0]
    workers = view.running.size
    mean = (view.running.sum() + view.waiting.sum() + view.sent_requests.sum()) / workers
    best = 0
    highest = -np.inf
    for worker in range(workers):
        load = np.float64(view.running[worker] + view.waiting[worker] + view.sent_requests[worker])
        score = view.matched_tokens[worker] / arrival.prompt_tokens - beta * (load - mean) / max(1.0, mean)
        if score > highest and fits(view, worker):
            best, highest = worker, score
    return best


@choose_function
def _scored(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    queue, cache, prefix = parameters[0], parameters[1], parameters[2]
    workers = view.running.size
    shortest, longest = view.waiting.min(), view.waiting.max()
    best = 0
    highest = -np.inf
    ties = 0
    for worker in range(workers):
        if not fits(view, worker):
            continue
        rank = 1.0
        if longest > shortest:
            rank = (longest - view.waiting[worker]) / (longest - shortest)
        score = (
            queue * rank
            + cache * (1.0 - view.kv_tokens[worker] / view.kv_capacity_tokens[worker])
            + prefix * view.matched_tokens[worker] / arrival.prompt_tokens
        )
        if score > highest:
            best, highest, ties = worker, score, 1
        elif score == highest:
            # The k-th of equals takes the place with probability 1/k, which makes each as likely as any other.
            ties += 1
            if next_below(state, ties) == 0:
                best = worker
    return best


@dataclass(frozen=True, kw_only=True)
class CacheAware:
    """SGLang's router: the longest matching prefix while the load is even, the shortest queue while it is not."""

    reads_prefix: ClassVar[bool] = True

    cache_threshold: float = setting(
        0.3, says="Matched share of the prompt from which the longest match decides", low=0.0, high=1.0
    )
    balance_abs_threshold: float = setting(
        64.0, unit="requests", says="Difference of longest and shortest queue above which load may be uneven", low=0.0
    )
    balance_rel_threshold: float = setting(
        1.5, says="Ratio of longest to shortest queue above which it is, if the difference is large as well", low=1.0
    )

    choose = staticmethod(_cache_aware)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return one cell per worker: the tokens that it was sent and that it had not been sent before."""
        return np.zeros(workers)

    def parameters(self) -> NDArray[np.float64]:
        """Return the three thresholds."""
        return np.array([self.cache_threshold, self.balance_abs_threshold, self.balance_rel_threshold])


@dataclass(frozen=True, kw_only=True)
class KVCost:
    """Dynamo's router: the least sum of prompt tokens to compute and of tokens held while decoding."""

    reads_prefix: ClassVar[bool] = True

    overlap_weight: float = setting(
        1.0, says="Weight of a prompt token to compute relative to one that is held", low=0.0, high=1e6
    )

    choose = staticmethod(_kv_cost)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return one cell: the worker to begin with, so that equals take turns."""
        return np.zeros(1)

    def parameters(self) -> NDArray[np.float64]:
        """Return the weight of a prompt token to compute."""
        return np.array([self.overlap_weight])


@dataclass(frozen=True, kw_only=True)
class LoadAware(NoState):
    """The load-aware router of vLLM's production stack: the matched share of the prompt less the relative load."""

    reads_prefix: ClassVar[bool] = True

    beta: float = setting(
        1.0, says="Matched share of a prompt that outweighs a load above the mean by the mean", low=0.0, high=1e6
    )

    choose = staticmethod(_load_aware)

    def parameters(self) -> NDArray[np.float64]:
        """Return the weight of the relative load."""
        return np.array([self.beta])


@dataclass(frozen=True, kw_only=True)
class WeightedScorers:
    """The end-point picker of the Gateway API Inference Extension: the highest weighted sum of three scores."""

    reads_prefix: ClassVar[bool] = True

    queue_weight: float = setting(2.0, says="Weight of a short queue", low=0.0, high=1e6)
    cache_weight: float = setting(2.0, says="Weight of the free share of the KV cache", low=0.0, high=1e6)
    prefix_weight: float = setting(3.0, says="Weight of the matched share of the prompt", low=0.0, high=1e6)
    seed: int = setting(0, says="Seed of the router's own random stream, for equal scores", low=0, high=2**31)

    choose = staticmethod(_scored)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return key and counter of the stream."""
        return random_stream(self.seed, "weighted-scorers")

    def parameters(self) -> NDArray[np.float64]:
        """Return the weights of queue, cache and prefix."""
        return np.array([self.queue_weight, self.cache_weight, self.prefix_weight])
