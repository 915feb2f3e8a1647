"""Preble's global scheduler (E2): exploit a prefix that is longer than the rest of the prompt, else explore.

Where more than half of the prompt was sent to some worker before, the request follows it: computing the rest is
cheaper than computing all of it elsewhere.  Otherwise any worker may have it, and the one with the least cost does:
the work that it was given in the last minutes, and this prompt without what it has of it.  Where the load of the
worker that has the prefix is above that of the idlest by more than a ratio, the request goes to the latter, which
then has the prefix as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.serving.routing.interface import Arrival, WorkersView, choose_function, fits
from wavetank.serving.routing.prefix_memory import empty_memory, forget, matched_blocks, remember
from wavetank.settings import setting

BINS = 18
"""Parts of the window over which work is counted; the oldest is dropped at a time."""


@njit
def _turn(state: NDArray[np.float64], workers: int, time_s: float, bin_s: float) -> int:
    """Empty the bins that have left the window and return the number of the present one."""
    now = np.int64(time_s / bin_s)
    last = np.int64(state[0])
    if now > last:
        for number in range(max(last + 1, now - BINS + 1), now + 1):
            part = number % BINS
            state[2 + part * workers : 2 + (part + 1) * workers] = 0.0
        state[0] = now
    return int(max(now, last) % BINS)


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    window_s, per_output, unknown_output, ratio, settled = (
        parameters[0], parameters[1], parameters[2], parameters[3], parameters[4],
    )  # fmt: skip
    workers = view.running.size
    part = _turn(state, workers, arrival.time_s, window_s / BINS)
    memory = state[2 + BINS * workers :]
    block_tokens = arrival.prompt_tokens / max(arrival.blocks.size, 1)
    match = 0
    idlest = cheapest = follows = -1
    least, cost, lightest = np.inf, np.inf, np.inf
    for worker in range(workers):
        if not fits(view, worker):
            continue
        load = 0.0
        for number in range(BINS):
            load += state[2 + number * workers + worker]
        if load < least:
            idlest, least = worker, load
        found = matched_blocks(memory, worker, arrival.blocks)
        total = load + arrival.prompt_tokens - found * block_tokens
        if total < cost:
            cheapest, cost = worker, total
        if found > match or (found == match and load < lightest):
            match, follows, lightest = found, worker, load
    if idlest < 0:
        return 0
    best = cheapest
    if 2 * match > arrival.blocks.size:
        best = follows
        if lightest > ratio * least and state[1] >= settled * workers:
            best = idlest
    found = matched_blocks(memory, best, arrival.blocks)
    output = arrival.expected_output_tokens
    if np.isnan(output):
        output = min(arrival.max_tokens, unknown_output) if not np.isnan(arrival.max_tokens) else unknown_output
    state[1] += 1.0
    state[2 + part * workers + best] += arrival.prompt_tokens - found * block_tokens + per_output * output
    remember(memory, best, arrival.blocks, block_tokens)
    forget(memory, best, view.kv_capacity_tokens[best])
    return best


@dataclass(frozen=True, kw_only=True)
class Preble:
    """Preble's E2: follow a prefix longer than the rest of the prompt, else go where work and prompt cost least."""

    reads_prefix: ClassVar[bool] = True

    window_s: float = setting(
        180.0, unit="s", says="Time over which a worker's past work counts as its load", low=1e-3, high=1e6
    )
    tokens_per_output: float = setting(
        200.0, unit="tokens", says="Prompt tokens that take as long as one output token", low=0.0, high=1e6
    )
    unknown_output_tokens: float = setting(
        45.0, unit="tokens", says="Output tokens of a request of which nobody predicts them", low=0.0, high=1e9
    )
    rebalance_ratio: float = setting(
        1.5, says="Ratio of a worker's load to the least one above which its prefixes move", low=1.0, high=1e6
    )
    settled_requests: float = setting(
        50.0, unit="requests", says="Requests per worker before any prefix moves", low=0.0, high=1e9
    )
    tree_blocks: int = setting(
        16_384, unit="blocks", says="Most prefix blocks that are remembered of a worker", low=1, high=10**7
    )

    choose = staticmethod(_choose)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return the present bin, the requests so far, the work in every bin, and an empty memory of prefixes."""
        return np.concatenate([np.zeros(2 + BINS * workers), empty_memory(workers, self.tree_blocks)])

    def parameters(self) -> NDArray[np.float64]:
        """Return the window, the cost and the number of output tokens, the ratio and the requests before it counts."""
        return np.array(
            [
                self.window_s, self.tokens_per_output, self.unknown_output_tokens, self.rebalance_ratio,
                self.settled_requests,
            ]
        )  # fmt: skip
