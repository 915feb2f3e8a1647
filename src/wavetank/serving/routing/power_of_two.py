"""Power of two choices: look at two random workers, take the one with fewer KV tokens.

Two samples bring the longest queue from about log n / log log n down to log log n, at the price of two reads instead
of n: the rival every router must beat when signals are stale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.routing.baselines import one_that_fits, random_stream
from wavetank.serving.routing.interface import Arrival, NoParameters, WorkersView, choose_function
from wavetank.settings import setting


@choose_function
def _choose(view: WorkersView, arrival: Arrival, state: NDArray[np.float64], parameters: NDArray[np.float64]) -> int:
    first = one_that_fits(view, state)
    second = one_that_fits(view, state)
    first_load = view.kv_tokens[first] + view.waiting_tokens[first] + view.sent_tokens[first]
    second_load = view.kv_tokens[second] + view.waiting_tokens[second] + view.sent_tokens[second]
    return first if first_load <= second_load else second


@dataclass(frozen=True, kw_only=True)
class PowerOfTwo(NoParameters):
    """Router that samples two workers and takes the one with fewer KV tokens.

    References
    ----------
    Mitzenmacher 2001; the default of several inference gateways.
    """

    seed: int = setting(0, says="Seed of the router's own random stream", low=0, high=2**31)

    choose = staticmethod(_choose)

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return key and counter of the stream."""
        return random_stream(self.seed, "power-of-two")
