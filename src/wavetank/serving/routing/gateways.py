"""The rules of gateways that people put in front of LLM servers, which weigh a match against the load.

These are NVIDIA Dynamo's KV router, the load-aware router of vLLM's production stack, and the weighted scorers of the
Gateway API Inference Extension, which llm-d uses.  All of them send a request where a part of its prompt has been
computed before, and differ in what holds against it:

* *Dynamo* adds up blocks: those that the worker has yet to compute of the prompts that wait there and of this one, each
  without what was matched when it was sent, and those that its requests hold while they decode.  The least sum has it.
* The *production stack* takes from the matched share of the prompt the load relative to the mean of all workers: twice
  the mean outweighs a whole prompt.
* *llm-d* adds up scores between 0 and 1: the rank of the queue between the shortest and the longest, the free share of
  the KV cache, the matched share of the prompt's beginning, and where asked for whether the request's adapter is there
  and whether its session was there last.  What was sent since the last look at the metrics is no part of them.

A match is what the router itself sent to a worker, or what the worker's events say that it holds (``kv_events``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.serving.routing.baselines import random_stream
from wavetank.serving.routing.interface import Arrival, NoState, WorkersView, choose_function, fits
from wavetank.serving.routing.prefix_memory import empty_memory, forget, matched_blocks, remember
from wavetank.settings import setting
from wavetank.sim.streams import next_below, next_uniform

# Most waiting prompts of a worker of which it is known what is to be computed; a page of the book.
_PROMPTS = 512
_PAGE_HEAD = 4
_PAGE = _PAGE_HEAD + 2 * _PROMPTS


@njit(forceinline=True)
def _found(view: WorkersView, worker: int, kv_events: bool) -> float:
    """Return the tokens of the prompt that a worker has by its events, or by what was sent to it."""
    if kv_events and not np.isnan(view.cached_tokens[worker]):
        return view.cached_tokens[worker]
    return view.matched_tokens[worker]


@njit(forceinline=True)
def _takes_over(state: NDArray[np.float64], ties: int) -> bool:
    """Say whether the last of ``ties`` equals takes the place: each is then as likely to have it as any other."""
    return next_below(state, ties) == 0


@njit
def _to_compute(book: NDArray[np.float64], worker: int, waiting_tokens: float) -> float:
    """Return the tokens that a worker has yet to compute of the prompts that wait there, the latest ones it was sent.

    The book has, for each worker, the place of the oldest entry, the entries, the sums of their prompts and of what
    was to be computed of them, and the entries themselves in a ring.  Prompts that stand in nobody's book, such as
    another router's, count in full.
    """
    own = book[worker * _PAGE : (worker + 1) * _PAGE]
    while own[1] > 0.0:
        at = _PAGE_HEAD + 2 * np.int64(own[0])
        if own[2] - own[at] < waiting_tokens - 1e-6:
            break
        # Queues are served in their order: what is no longer covered by the tokens that wait has left.
        own[2] -= own[at]
        own[3] -= own[at + 1]
        own[0] = (own[0] + 1.0) % _PROMPTS
        own[1] -= 1.0
    if own[1] == 0.0:
        own[2] = own[3] = 0.0
    return min(own[3] + max(waiting_tokens - own[2], 0.0), waiting_tokens)


@njit
def _write_down(book: NDArray[np.float64], worker: int, prompt_tokens: float, new_tokens: float) -> None:
    """Add a prompt that is sent to a worker; where its page is full the oldest entry goes."""
    own = book[worker * _PAGE : (worker + 1) * _PAGE]
    if own[1] == _PROMPTS:
        at = _PAGE_HEAD + 2 * np.int64(own[0])
        own[2] -= own[at]
        own[3] -= own[at + 1]
        own[0] = (own[0] + 1.0) % _PROMPTS
        own[1] -= 1.0
    at = _PAGE_HEAD + 2 * (np.int64(own[0] + own[1]) % _PROMPTS)
    own[at], own[at + 1] = prompt_tokens, new_tokens
    own[1] += 1.0
    own[2] += prompt_tokens
    own[3] += new_tokens


@choose_function
def _kv_cost(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    weight, credit, temperature, kv_events = parameters[0], parameters[1], parameters[2], parameters[3] > 0.0
    workers = view.running.size
    stream, costs, book = state[:2], state[2 : 2 + workers], state[2 + workers :]
    best, ties = 0, 0
    least, most = np.inf, -np.inf
    for worker in range(workers):
        if not fits(view, worker):
            continue
        ahead = view.waiting_tokens[worker] + view.sent_tokens[worker]
        # Counted in tokens: a block's size divides both terms.
        compute = _to_compute(book, worker, ahead) + arrival.prompt_tokens
        compute = max(compute - credit * _found(view, worker, kv_events), 0.0)
        cost = weight * compute + view.kv_tokens[worker] + ahead
        costs[worker] = cost
        most = max(most, cost)
        if cost < least:
            best, least, ties = worker, cost, 1
        elif cost == least:
            ties += 1
            if _takes_over(stream, ties):
                best = worker
    if ties == 0:
        return best
    if temperature > 0.0 and most > least:
        # The costs are spread over an interval of length 1 before they are exponents.
        total = 0.0
        for worker in range(workers):
            if fits(view, worker):
                costs[worker] = np.exp(-(costs[worker] - least) / ((most - least) * temperature))
                total += costs[worker]
        drawn = next_uniform(stream) * total
        for worker in range(workers):
            if fits(view, worker):
                best = worker
                drawn -= costs[worker]
                if drawn < 0.0:
                    break
    new_tokens = max(arrival.prompt_tokens - _found(view, best, kv_events), 0.0)
    _write_down(book, best, arrival.prompt_tokens, new_tokens)
    return best


@choose_function
def _load_aware(
    view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]
) -> int:
    beta = parameters[0]
    workers = view.running.size
    total, fit = 0.0, 0
    for worker in range(workers):
        if fits(view, worker):
            total += view.running[worker] + view.waiting[worker] + view.sent_requests[worker]
            fit += 1
    mean = total / max(fit, 1)
    best = 0
    highest = -np.inf
    for worker in range(workers):
        load = np.float64(view.running[worker] + view.waiting[worker] + view.sent_requests[worker])
        score = view.matched_tokens[worker] / max(arrival.prompt_tokens, 1.0) - beta * (load - mean) / max(1.0, mean)
        if score > highest and fits(view, worker):
            best, highest = worker, score
    return best


@choose_function
def _scored(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    queue, cache, prefix, lora, session = parameters[0], parameters[1], parameters[2], parameters[3], parameters[4]
    kv_events, most_tokens, sessions = parameters[5] > 0.0, parameters[6], int(parameters[7])
    workers = view.running.size
    stream, homes, memory = state[:2], state[2 : 2 + 2 * sessions], state[2 + 2 * sessions :]
    block_tokens = max(arrival.prompt_tokens, 1.0) / max(arrival.blocks.size, 1)
    # Of the prompt only the beginning counts.
    blocks = arrival.blocks[: max(int(most_tokens / block_tokens), 1)]
    # A session's worker stands in the cell of its number, until another session of that cell comes.
    cell = 2 * (arrival.session % sessions) if arrival.session >= 0 else 0
    home = homes[cell + 1] if arrival.session >= 0 and homes[cell] == arrival.session + 1 else -1.0
    shortest, longest = np.int64(2**62), np.int64(-1)
    for worker in range(workers):
        if fits(view, worker):
            shortest = min(shortest, view.waiting[worker])
            longest = max(longest, view.waiting[worker])
    best, ties = 0, 0
    highest = -np.inf
    for worker in range(workers):
        if not fits(view, worker):
            continue
        rank = 1.0
        if longest > shortest:
            rank = (longest - view.waiting[worker]) / (longest - shortest)
        matched = 0.0
        if kv_events:
            matched = _found(view, worker, kv_events) / max(arrival.prompt_tokens, 1.0)
        elif blocks.size > 0 and prefix > 0.0:
            matched = matched_blocks(memory, worker, blocks) / blocks.size
        # A worker without the adapter is taken to have room for it.
        loaded = 1.0 if arrival.adapter < 0 or view.adapter_loaded[worker] else 0.8
        score = (
            queue * rank
            + cache * (1.0 - view.kv_tokens[worker] / max(view.kv_capacity_tokens[worker], 1.0))
            + prefix * matched
            + lora * loaded
            + session * (1.0 if home == view.identity[worker] else 0.0)
        )
        if score > highest:
            best, highest, ties = worker, score, 1
        elif score == highest:
            ties += 1
            if _takes_over(stream, ties):
                best = worker
    if arrival.session >= 0:
        homes[cell], homes[cell + 1] = arrival.session + 1, view.identity[best]
    if not kv_events and prefix > 0.0:
        remember(memory, best, blocks, block_tokens)
        # As much as the worker's own cache can hold.
        forget(memory, best, view.kv_capacity_tokens[best])
    return best


@dataclass(frozen=True, kw_only=True)
class KVCost:
    """Dynamo's router: the least sum of prompt tokens to compute and of tokens held while decoding."""

    reads_prefix: ClassVar[bool] = True

    overlap_weight: float = setting(
        1.0, says="Weight of a prompt token to compute relative to one that is held", low=0.0, high=1e6
    )
    overlap_credit: float = setting(1.0, says="Share of a match that need not be computed", low=0.0, high=1.0)
    temperature: float = setting(
        0.0, says="Of the softmax by which a worker is drawn; 0: the least cost", low=0.0, high=1e6
    )
    kv_events: bool = setting(False, says="Whether matches are those of the workers' events, not of what was sent")
    seed: int = setting(0, says="Seed of the router's own random stream", low=0, high=2**31)

    choose = staticmethod(_kv_cost)

    @property
    def reads_events(self) -> bool:
        """Whether it reads what the workers' events say."""
        return self.kv_events

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return key and counter of the stream, a cell per worker for its cost, and an empty book of prompts sent."""
        return np.concatenate([random_stream(self.seed, "dynamo-kv"), np.zeros(workers * (1 + _PAGE))])

    def parameters(self) -> NDArray[np.float64]:
        """Return the weight, the credit, the temperature and whether events are read."""
        return np.array([self.overlap_weight, self.overlap_credit, self.temperature, float(self.kv_events)])


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
    """The end-point picker of the Gateway API Inference Extension: the highest weighted sum of its scores."""

    reads_prefix: ClassVar[bool] = True

    queue_weight: float = setting(2.0, says="Weight of a short queue", low=0.0, high=1e6)
    cache_weight: float = setting(2.0, says="Weight of the free share of the KV cache", low=0.0, high=1e6)
    prefix_weight: float = setting(3.0, says="Weight of the matched share of the prompt", low=0.0, high=1e6)
    lora_weight: float = setting(0.0, says="Weight of a worker that has the request's adapter", low=0.0, high=1e6)
    session_weight: float = setting(
        0.0, says="Weight of the worker that had the session's last request", low=0.0, high=1e6
    )
    kv_events: bool = setting(False, says="Whether matches are those of the workers' events, not of what was sent")
    max_prefix_tokens: float = setting(
        4096.0, unit="tokens", says="Beginning of the prompt of which matches are looked up without events",
        low=1.0, high=1e9,
    )  # fmt: skip
    prefix_blocks: int = setting(
        16_384, unit="blocks", says="Most prefix blocks that are remembered of a worker", low=1, high=10**7
    )
    sessions: int = setting(65_536, says="Sessions of which the last worker is remembered", low=1, high=10**7)
    seed: int = setting(0, says="Seed of the router's own random stream, for equal scores", low=0, high=2**31)

    choose = staticmethod(_scored)

    @property
    def reads_events(self) -> bool:
        """Whether it reads what the workers' events say."""
        return self.kv_events

    @property
    def reads_adapters(self) -> bool:
        """Whether it reads which worker has which adapter."""
        return self.lora_weight > 0.0

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return key and counter of the stream, the sessions and an empty memory of prefixes."""
        kept = self.prefix_blocks if self.prefix_weight > 0 and not self.kv_events else 1
        return np.concatenate(
            [
                random_stream(self.seed, "weighted-scorers"),
                np.zeros(2 * self._sessions_kept),
                empty_memory(workers, kept),
            ]
        )

    @property
    def _sessions_kept(self) -> int:
        return self.sessions if self.session_weight > 0 else 1

    def parameters(self) -> NDArray[np.float64]:
        """Return the weights, whether events are read, the beginning that counts and the sessions."""
        weights = (self.queue_weight, self.cache_weight, self.prefix_weight, self.lora_weight, self.session_weight)
        return np.array([*weights, float(self.kv_events), self.max_prefix_tokens, float(self._sessions_kept)])
