"""From what nodes recorded to the series of figures that QUANTAS writes after every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wavetank.protocols.simulation import Run
from wavetank.rng import Draws, stream_key


def running_total(at: Sequence[float], values: Sequence[float], rounds: int) -> NDArray[np.float64]:
    """Return the sum of the values so far at the end of every round.

    Parameters
    ----------
    at : sequence of float
        Round of each value, from 1.
    values : sequence of float
    rounds : int

    Returns
    -------
    ndarray of float64, shape (rounds,)
    """
    places = np.clip(np.ceil(np.asarray(at, float)).astype(np.int64) - 1, 0, None)
    kept = places < rounds
    found = np.bincount(places[kept], np.asarray(values, float)[kept], minlength=rounds).astype(np.float64)
    return np.cumsum(found)[:rounds]


def recorded_total(run: Run, metric: str, rounds: int) -> NDArray[np.float64]:
    """Return the running total of what nodes recorded under a metric."""
    entries = run.recorded.get(metric, [])
    return running_total([at for at, _, _ in entries], [value for _, _, value in entries], rounds)


def recorded_count(run: Run, metric: str, rounds: int) -> NDArray[np.float64]:
    """Return how often nodes recorded a metric so far."""
    entries = run.recorded.get(metric, [])
    return running_total([at for at, _, _ in entries], [1.0] * len(entries), rounds)


def lookup_series(run: Run, rounds: int, prefix: str) -> Mapping[str, list[float]]:
    """Return mean hops, mean latency and number of lookups that arrived, so far, for every round.

    The means begin with the first lookup that arrived.
    """
    satisfied = recorded_count(run, "lookup_hops", rounds)
    begun = satisfied > 0
    hops, latency = recorded_total(run, "lookup_hops", rounds), recorded_total(run, "lookup_rounds", rounds)
    return {
        f"{prefix}AverageHops": (hops[begun] / satisfied[begun]).tolist(),
        f"{prefix}AverageLatency": (latency[begun] / satisfied[begun]).tolist(),
        f"{prefix}RequestsSatisfied": satisfied.tolist(),
    }


def lookups(size: int, rounds: int, seed: int, *, elsewhere: bool) -> list[tuple[int, int]]:
    """Draw who looks up whom at the end of every round.

    Parameters
    ----------
    size, rounds : int
    seed : int
    elsewhere : bool
        Whether a node that would look up itself looks up the next one instead.

    Returns
    -------
    list of (origin, target), one a round
    """
    draws = Draws(stream_key(seed, "lookups"))
    found = []
    for _ in range(rounds):
        origin, target = draws.below(size), draws.below(size)
        if elsewhere and target == origin:
            target = (target + 1) % size
        found.append((origin, target))
    return found
