"""Join the least predicted work: the output tokens that a worker's requests are still expected to produce.

Queues count requests, KV tokens count what was done; what a new request must share a worker with is what is left.
The router writes down what it sent and how long each answer is expected to be, takes off what must have been produced
in the time since, and strikes out the entries nearest to their end where a worker reports fewer requests than are
written down. Prompts that wait are work, too.

Work that is left is not what a first token waits for: answers share the steps of a batch, prompts stand in line. True
lengths make the rule send more requests where answers are about to end, prompts and all, so that its tail of the time
to first token is longer than with predictions that are nearly equal for all; a weight of prompts far above their
work (``tokens_per_prompt_token``) turns it into the least queue of prompts.

Lengths are predicted by the mean of past answers to prompts of a similar length, or by what the request says.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.routing.interface import Arrival, WorkersView, choose_function, fits
from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

_BINS = 8
# Of an answer that is longer than was expected this share of it is taken to be left.
_LATE = 0.1


@njit
def _expected(arrival: Arrival, parameters: NDArray[np.float64]) -> float:
    """Return the output tokens to expect of a request."""
    if not np.isnan(arrival.expected_output_tokens):
        return max(arrival.expected_output_tokens, 1.0)
    edges, means = parameters[2 : 1 + _BINS], parameters[1 + _BINS : 1 + 2 * _BINS]
    place = 0
    while place < _BINS - 1 and arrival.prompt_tokens > edges[place]:
        place += 1
    expected = means[place]
    # An answer ends at the length that the request allows.
    return expected if np.isnan(arrival.max_tokens) else min(expected, arrival.max_tokens)


@njit
def _left(state: NDArray[np.float64], at: int, time_s: float, token_s: float) -> float:
    """Return the output tokens that are left of the entry at a place."""
    expected = state[at + 1]
    return max(expected - (time_s - state[at]) / token_s, _LATE * expected)


@njit
def _work(
    state: NDArray[np.float64], worker: int, workers: int, requests: int, time_s: float, token_s: float, mean: float
) -> float:
    """Return the output tokens left of a worker, with as many entries as it has requests."""
    room = (state.size - workers) // (2 * workers)
    base = workers + 2 * room * worker
    count = int(state[worker])
    work = 0.0
    for i in range(count):
        work += _left(state, base + 2 * i, time_s, token_s)
    while count > max(requests, 0):
        nearest = 0
        for i in range(1, count):
            one, other = base + 2 * i, base + 2 * nearest
            if _left(state, one, time_s, token_s) < _left(state, other, time_s, token_s):
                nearest = i
        work -= _left(state, base + 2 * nearest, time_s, token_s)
        count -= 1
        # The last entry takes its place.
        state[base + 2 * nearest] = state[base + 2 * count]
        state[base + 2 * nearest + 1] = state[base + 2 * count + 1]
    state[worker] = count
    # Requests that somebody else sent are as long as most.
    return work + max(requests - count, 0) * mean


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    token_s, per_prompt = parameters[0], parameters[1]
    workers = view.running.size
    mean = parameters[1 + _BINS : 1 + 2 * _BINS].mean()
    written = state[1:]
    start = int(state[0])
    best = -1
    least, fewest = np.inf, np.inf
    for i in range(workers):
        worker = (start + i) % workers
        if not fits(view, worker):
            continue
        requests = view.running[worker] + view.waiting[worker] + view.sent_requests[worker]
        work = _work(written, worker, workers, requests, arrival.time_s, token_s, mean)
        work += per_prompt * (view.waiting_tokens[worker] + view.sent_tokens[worker])
        work /= view.speed[worker]
        if work < least or (work == least and requests < fewest):
            best, least, fewest = worker, work, np.float64(requests)
    if best < 0:
        return 0
    state[0] = (best + 1) % workers
    room = (written.size - workers) // (2 * workers)
    count = int(written[best])
    if count < room:
        at = workers + 2 * room * best + 2 * count
        written[at], written[at + 1] = arrival.time_s, _expected(arrival, parameters)
        written[best] = count + 1
    return best


@dataclass(frozen=True, kw_only=True)
class PredictedWork:
    """Router that joins the worker with the fewest output tokens left by prediction."""

    learns_lengths: ClassVar[bool] = True

    token_s: float = setting(
        0.03, unit="s", says="Time that a worker takes for a request's next token", low=1e-6, high=1e3
    )
    tokens_per_prompt_token: float = setting(
        0.1, unit="tokens", says="Output tokens that cost as much as a prompt token", low=0.0, high=1e3
    )
    entries: int = setting(
        1024, unit="requests", says="Most requests that are written down of a worker", low=1, high=10**6
    )
    knows_lengths: bool = setting(False, says="Whether the true lengths are expected: an oracle")
    edges: tuple[float, ...] = setting(
        (), unit="tokens", says="Lengths of prompts between which answers are alike: seven; fitted_to learns them"
    )
    means: tuple[float, ...] = setting((), unit="tokens", says="Mean answers to prompts between those lengths: eight")

    choose = staticmethod(_choose)

    def __post_init__(self) -> None:
        sizes = (len(self.edges), len(self.means))
        if sizes not in ((0, 0), (_BINS - 1, _BINS)):
            raise BadValueError(
                "Lengths and means do not fit together.",
                given=f"{sizes[0]} and {sizes[1]}",
                allowed=f"{_BINS - 1} lengths and {_BINS} means, or none of both",
                where="edges, means",
            )

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return the worker to begin with, the entries of each worker, none, and room for their times and lengths."""
        return np.zeros(1 + workers * (1 + 2 * self.entries))

    def parameters(self) -> NDArray[np.float64]:
        """Return the time of a token, the cost of a prompt token, and the predictor's edges and means."""
        edges, means = self.edges or (0.0,) * (_BINS - 1), self.means or (1.0,) * _BINS
        return np.array([self.token_s, self.tokens_per_prompt_token, *edges, *means])

    def fitted_to(self, past: RequestTrace) -> PredictedWork:
        """Return the router with the mean answers of past requests, by eight classes of prompts of equal size."""
        edges = np.quantile(past.prompt_tokens, np.arange(1, _BINS) / _BINS)
        place = np.searchsorted(edges, past.prompt_tokens)
        overall = float(past.output_tokens.mean())
        means = [
            float(past.output_tokens[place == number].mean()) if (place == number).any() else overall
            for number in range(_BINS)
        ]
        return dataclasses.replace(self, edges=tuple(edges.tolist()), means=tuple(means))
