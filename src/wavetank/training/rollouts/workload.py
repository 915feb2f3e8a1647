"""Requests of users on their instances, trajectories in batches, and spot instances that come and go."""

from __future__ import annotations

import heapq
import math
from functools import lru_cache

import numpy as np

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream
from wavetank.training.rollouts.core import FAR
from wavetank.training.rollouts.interface import PS, Arrangement, Ints, Rates
from wavetank.training.rollouts.simulate import Batches, Load, Spot, simulate
from wavetank.workloads.load import read_trace
from wavetank.workloads.requests import RequestTrace
from wavetank.workloads.trajectories import DELAY_S, LogNormal, Trajectories, generate

BLOCK_S = 60.0
_BACKLOG = 2000


@lru_cache(maxsize=4)
def users(name: str) -> RequestTrace:
    """Return a trace of requests by name.

    Parameters
    ----------
    name : str
        Of a data set's trace.
    """
    return read_trace(name)


def saturation_per_s(trace: RequestTrace, rates: Rates) -> float:
    """Return how many requests per second one instance serves while a backlog lasts.

    Parameters
    ----------
    trace : RequestTrace
        Its lengths count, in their order.
    rates : Rates
    """
    count = min(len(trace), _BACKLOG)
    zeros = np.zeros(count, dtype=np.int64)
    load = Load(np.array([0, count]), zeros, trace.prompt_tokens[:count].copy(), trace.output_tokens[:count].copy())
    run = simulate(Arrangement(), rates, load)
    # The last requests run with few others: the rate is that until nine tenths are done.
    return float(0.9 * count * PS / np.sort(run.last_ps)[math.ceil(0.9 * count) - 1])


def bursts(
    trace: RequestTrace, factor: float, seed: int, *, every_s: float = 300.0, last_s: float = 15.0
) -> RequestTrace:
    """Return a trace some seconds of which have more requests than the others, at the same mean rate.

    Parameters
    ----------
    trace : RequestTrace
    factor : float
        Rate within a burst / rate outside; 1 leaves the trace as it is.
    seed : int
        Of the places of the bursts.
    every_s, last_s : float
        Mean time from one burst to the next, and how long one lasts, s.

    Raises
    ------
    BadValueError
        If the factor is below 1.
    """
    if not 1 <= factor < math.inf:
        raise BadValueError("A burst has at least the rate of the rest.", given=factor, allowed="1 or more")
    if factor == 1:
        return trace
    first_s, last_arrival_s = float(trace.arrival_s[0]), float(trace.arrival_s[-1])
    count = max(1, round((last_arrival_s - first_s) / every_s))
    starts = np.sort(stream(seed, "bursts").uniform(first_s, last_arrival_s, count))
    edges = np.unique(np.concatenate(([first_s, last_arrival_s], starts, np.minimum(starts + last_s, last_arrival_s))))
    middle = (edges[1:] + edges[:-1]) / 2
    # All bursts are as long, so that the one that began last says whether there is any.
    latest = np.searchsorted(starts, middle, side="right") - 1
    dense = (latest >= 0) & (middle < starts[latest] + last_s)
    # Arrivals before an edge, as a share of all, follow from the rates; first and last arrival stay where they are.
    before = np.concatenate(([0.0], np.cumsum(np.diff(edges) * np.where(dense, factor, 1.0))))
    even = first_s + before * ((last_arrival_s - first_s) / max(before[-1], 1e-300))
    return trace.chosen(np.arange(len(trace)), np.interp(trace.arrival_s, even, edges))


def assigned(trace: RequestTrace, instances: int, token_s: float) -> Load:
    """Return requests on instances: each goes where the fewest tokens are on their way, alike for all systems.

    Parameters
    ----------
    trace : RequestTrace
    instances : int
    token_s : float
        What a token is expected to take until it is written, s.
    """
    expected = trace.prompt_tokens + trace.output_tokens
    ends_s = trace.arrival_s + trace.output_tokens * token_s
    held = [0] * instances
    leaving: list[tuple[float, int, int]] = []
    place = np.zeros(len(trace), dtype=np.int64)
    for row in range(len(trace)):
        while leaving and leaving[0][0] <= trace.arrival_s[row]:
            _, instance, tokens = heapq.heappop(leaving)
            held[instance] -= tokens
        instance = min(range(instances), key=held.__getitem__)
        place[row] = instance
        held[instance] += int(expected[row])
        heapq.heappush(leaving, (float(ends_s[row]), instance, int(expected[row])))
    rows = np.argsort(place, kind="stable")
    return Load(
        first=np.searchsorted(place[rows], np.arange(instances + 1)).astype(np.int64),
        arrival_ps=np.rint(trace.arrival_s[rows] * PS).astype(np.int64),
        prompt_tokens=trace.prompt_tokens[rows].copy(), output_tokens=trace.output_tokens[rows].copy(),
    )  # fmt: skip


def drawn_batches(steps: int, trajectories: int, variation: float, turn_tokens: int, seed: int) -> Batches:
    """Return the trajectories of all steps.

    Parameters
    ----------
    steps, trajectories : int
        Batches, and the mean number of trajectories of one.
    variation : float
        Most trajectories of a batch / fewest; sizes are spread evenly between.
    turn_tokens : int
        Median of what a turn writes.
    seed : int
    """
    low = 2 * trajectories / (1 + variation)
    sizes = np.maximum(np.rint(stream(seed, "batches").uniform(low, low * variation, steps)), 1).astype(np.int64)
    ends = np.cumsum(sizes)
    work: Trajectories = generate(
        int(ends[-1]), seed=seed, turn_tokens=LogNormal(median=float(turn_tokens), sigma=0.6, low=1.0, high=4096.0),
        delay_s=DELAY_S, name="rollouts",
    )  # fmt: skip
    return Batches(work, ends)


def drawn_spot(instances: int, start_s: tuple[float, float], life_s: float, horizon_s: float, seed: int) -> Spot:
    """Return when spot instances are there: each starts, lives, and is replaced at once by another one that starts.

    Parameters
    ----------
    instances : int
    start_s : (float, float)
        Least and most time from asking to being there, s.
    life_s : float
        Mean time until it is taken away, exponential, s.
    horizon_s : float
        Until when, s.
    seed : int
    """
    ups, downs = [], []
    for each in range(instances):
        draws = stream(seed, "spot", each)
        now_s, up, down = 0.0, [], []
        while now_s < horizon_s:
            up.append(now_s + float(draws.uniform(*start_s)))
            now_s = up[-1] + float(draws.exponential(life_s))
            down.append(now_s)
        ups.append(up)
        downs.append(down)
    # One time that never comes ends each row.
    most = max((len(each) for each in ups), default=0) + 1
    found: list[Ints] = []
    for rows in (ups, downs):
        array = np.full((instances, most), FAR, dtype=np.int64)
        for place, row in enumerate(rows):
            array[place, : len(row)] = np.rint(np.array(row) * PS).astype(np.int64)
        found.append(array)
    return Spot(found[0], found[1])


def kept_spot(instances: int) -> Spot:
    """Return instances that are there from the beginning, and stay.

    Parameters
    ----------
    instances : int
    """
    up = np.full((instances, 2), FAR, dtype=np.int64)
    up[:, 0] = 0
    return Spot(up, np.full((instances, 2), FAR, dtype=np.int64))
