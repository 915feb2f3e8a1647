"""Join the worker that answers fastest: a moving average of measured latencies that jumps to peaks, times what it has.

An average alone learns too late that a worker slows down.  This one takes a latency above it at once and comes
down from it over seconds, and it fades while nothing is measured, so that a worker that was slow is tried again.  The
cost of a worker is the average times the requests that it would have; of two workers drawn at random the cheaper one
has the request.

A router sees counts, not single answers: what a worker took over a stretch of time is read off by Little's law, the
requests that were there times the time that passed, over the requests that left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.serving.routing.baselines import random_stream
from wavetank.serving.routing.interface import Arrival, WorkersView, choose_function, fits
from wavetank.settings import setting
from wavetank.sim.streams import next_below

# Of a worker: average, when it was measured, last look, requests then, sent until then, sent in all, requests times
# time since somebody left.
_CELLS = 7
_AVERAGE, _MEASURED, _LOOKED, _HELD, _SENT_THEN, _SENT, _AREA = range(_CELLS)


@njit
def _measure(own: NDArray[np.float64], looked_s: float, held: float, sent: float, decay_s: float) -> None:
    """Take in what a worker reports: the requests that it holds, of those that were sent to it by then."""
    if own[_LOOKED] >= 0.0:
        left = (sent - own[_SENT_THEN]) - (held - own[_HELD])
        own[_AREA] += (looked_s - own[_LOOKED]) * (held + own[_HELD]) / 2.0
        if left > 0.0:
            latency_s = own[_AREA] / left
            kept = np.exp(-max(looked_s - own[_MEASURED], 0.0) / decay_s)
            if latency_s > own[_AVERAGE]:
                own[_AVERAGE] = latency_s
            else:
                own[_AVERAGE] = kept * own[_AVERAGE] + (1.0 - kept) * latency_s
            own[_MEASURED], own[_AREA] = looked_s, 0.0
        elif held == 0.0:
            own[_AREA] = 0.0
    else:
        own[_MEASURED] = looked_s
    own[_LOOKED], own[_HELD], own[_SENT_THEN] = looked_s, held, sent


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    decay_s, looks = parameters[0], int(parameters[1])
    workers = view.running.size
    stream, cells = state[:2], state[2:]
    fit = 0
    for worker in range(workers):
        own = cells[worker * _CELLS : (worker + 1) * _CELLS]
        looked_s = arrival.time_s - view.age_s[worker]
        if looked_s > own[_LOOKED] + 1e-9:
            held = np.float64(view.running[worker] + view.waiting[worker])
            _measure(own, looked_s, held, own[_SENT] - view.sent_requests[worker], decay_s)
        fit += fits(view, worker)
    if fit == 0:
        return 0
    first, second = 0, fit - 1
    if looks == 2 and fit > 2:
        first, second = next_below(stream, fit), next_below(stream, fit - 1)
        if second >= first:
            second += 1
    best, ties, number = 0, 0, -1
    least = np.inf
    for worker in range(workers):
        if not fits(view, worker):
            continue
        number += 1
        if looks == 2 and number != first and number != second:
            continue
        own = cells[worker * _CELLS : (worker + 1) * _CELLS]
        faded = np.exp(-max(arrival.time_s - own[_MEASURED], 0.0) / decay_s)
        cost = own[_AVERAGE] * faded * (view.running[worker] + view.waiting[worker] + view.sent_requests[worker] + 1.0)
        if cost < least:
            best, least, ties = worker, cost, 1
        elif cost == least:
            ties += 1
            if next_below(stream, ties) == 0:
                best = worker
    cells[best * _CELLS + _SENT] += 1.0
    return best


@dataclass(frozen=True, kw_only=True)
class LeastLatency:
    """Router that joins the worker with the least product of recent latency, by peaks, and requests."""

    decay_s: float = setting(
        10.0, unit="s", says="Time in which an old latency loses all but 37 % of its weight", low=1e-3, high=1e6
    )
    first_s: float = setting(1.0, unit="s", says="Latency that is taken until one is measured", low=1e-6, high=1e6)
    looks: str = setting("two", says="Workers that are compared: two drawn at random, or all", choices=("two", "all"))
    seed: int = setting(0, says="Seed of the router's own random stream", low=0, high=2**31)

    choose = staticmethod(_choose)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return key and counter of the stream, and for each worker the first latency and that nothing was seen."""
        cells = np.zeros((workers, _CELLS))
        cells[:, _AVERAGE], cells[:, _LOOKED] = self.first_s, -1.0
        return np.concatenate([random_stream(self.seed, "least-latency"), cells.ravel()])

    def parameters(self) -> NDArray[np.float64]:
        """Return the time of decay and how many workers are compared, 0 for all."""
        return np.array([self.decay_s, 2.0 if self.looks == "two" else 0.0])
