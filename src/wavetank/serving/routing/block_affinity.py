"""Least predicted time to first token where parts of a prompt may be at a worker, elsewhere, or nowhere.

What waits at a worker takes its time; what is kept elsewhere has to be fetched; what is kept nowhere, and a share of
what is kept, has to be computed behind everything before it.  With an infinite bandwidth all workers can have
everything, and the least loaded one is best; with equal loads the one that has most is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.routing.interface import Arrival, NoState, WorkersView, choose_function, fits
from wavetank.settings import check_ranges, setting


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    token_s, pair_s, fetch_s, again = parameters[0], parameters[1], parameters[2], parameters[3]
    locality, queue = parameters[4], parameters[5]
    prompt = arrival.prompt_tokens
    best = 0
    least, lightest = np.inf, np.inf
    for worker in range(view.running.size):
        if not fits(view, worker):
            continue
        here = min(max(view.matched_tokens[worker], 0.0), prompt)
        # What it could have without computing it; only what is here where nobody says.
        there = here
        if view.cached_tokens[worker] > here:
            there = min(view.cached_tokens[worker], prompt)
        new = prompt - there + again * there
        waits = (view.waiting_tokens[worker] + view.sent_tokens[worker]) * token_s
        takes = new * (token_s + pair_s * (prompt - 0.5 * new)) + (there - here) * fetch_s
        score = queue * waits + locality * takes
        load = waits + view.kv_tokens[worker] * token_s
        if score < least or (score == least and load < lightest):
            best, least, lightest = worker, score, load
    return best


@dataclass(frozen=True, kw_only=True)
class BlockAffinity(NoState):
    """Router to where the first token is predicted soonest: what waits there, what is fetched, what is computed."""

    reads_prefix: ClassVar[bool] = True

    token_s: float = setting(7.4e-5, unit="s", says="Time to compute a prompt token", low=0.0, high=1.0)
    pair_s: float = setting(2.4e-9, unit="s", says="Time for a pair of a token and one before it", low=0.0, high=1.0)
    fetch_s: float = setting(5.2e-6, unit="s", says="Time to fetch the rows of a token from another worker; 0: none",
                             low=0.0, high=1.0)  # fmt: skip
    again: float = setting(0.0, says="Share of kept tokens that are computed again", low=0.0, high=1.0)
    locality: float = setting(1.0, says="Weight of what is fetched and computed; 0: pure load", low=0.0, high=1e6)
    queue: float = setting(1.0, says="Weight of what waits; 0: pure locality", low=0.0, high=1e6)

    choose = staticmethod(_choose)

    def __post_init__(self) -> None:
        check_ranges(self)

    def parameters(self) -> NDArray[np.float64]:
        """Return the times, the share and the weights."""
        return np.array([self.token_s, self.pair_s, self.fetch_s, self.again, self.locality, self.queue])
