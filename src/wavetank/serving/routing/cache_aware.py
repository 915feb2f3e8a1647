"""SGLang's cache-aware router: the longest matching prefix while the load is even, the shortest queue while it is not.

It keeps a tree of what it sent to every worker and forgets the oldest ends of it, once in a while, where a worker's
part is too large.  The load is uneven when the difference of the longest and the shortest queue is large and their
ratio is, too; then the tree is not asked.  Otherwise the worker with the longest match has the request if the match
is a large enough share of the prompt; if not, the shortest queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.routing.interface import Arrival, WorkersView, choose_function, fits
from wavetank.serving.routing.prefix_memory import empty_memory, forget, matched_blocks, remember
from wavetank.settings import setting


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    threshold, absolute, relative, interval_s, most_tokens = (
        parameters[0], parameters[1], parameters[2], parameters[3], parameters[4],
    )  # fmt: skip
    workers = view.running.size
    tree = state[1:]
    if interval_s > 0.0 and arrival.time_s - state[0] >= interval_s:
        state[0] = arrival.time_s
        for worker in range(workers):
            forget(tree, worker, most_tokens)
    shortest = longest = -1
    least, most, match = np.inf, 0.0, 0
    for worker in range(workers):
        if not fits(view, worker):
            continue
        load = np.float64(view.running[worker] + view.waiting[worker] + view.sent_requests[worker])
        if load < least:
            shortest, least = worker, load
        most = max(most, load)
        found = matched_blocks(tree, worker, arrival.blocks)
        if found > match:
            longest, match = worker, found
    if shortest < 0:
        return 0
    best = shortest
    uneven = most - least > absolute and most > relative * least
    if not uneven and longest >= 0 and match > threshold * arrival.blocks.size:
        best = longest
    remember(tree, best, arrival.blocks, arrival.prompt_tokens / max(arrival.blocks.size, 1))
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
    eviction_interval_s: float = setting(
        60.0, unit="s", says="Time between two looks at the size of the tree; 0: never", low=0.0, high=1e6
    )
    max_tree_tokens: float = setting(
        2.0**24, unit="tokens", says="Size of a worker's part of the tree above which its oldest ends are forgotten",
        low=0.0, high=1e12,
    )  # fmt: skip
    tree_blocks: int = setting(
        16_384, unit="blocks", says="Most prefix blocks that are remembered of a worker at any time", low=1, high=10**7
    )

    choose = staticmethod(_choose)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return the time of the last look at the tree's size, and an empty tree."""
        return np.concatenate([[0.0], empty_memory(workers, self.tree_blocks)])

    def parameters(self) -> NDArray[np.float64]:
        """Return the three thresholds, the interval and the size."""
        return np.array(
            [
                self.cache_threshold, self.balance_abs_threshold, self.balance_rel_threshold,
                self.eviction_interval_s, self.max_tree_tokens,
            ]
        )  # fmt: skip
