"""BalanceRoute: let requests wait in one pool and place them so that the slowest worker wastes least decode time.

Workers that step in lockstep idle until the most loaded one is done.  A placement either fills a worker's margin below
that envelope, which is free, or raises the envelope, which every worker pays for; the score is sharply asymmetric
between the two.  With a horizon, margins are forecast some steps ahead from how likely running requests are to end.

With the exact decrement of the imbalance G * max L - sum L for a score, a request of size s on a worker with margin m
scores s when it fits and m - (G - 1) * (s - m) when it does not.  Where slots are left for all that wait, all will be
placed, and the longest last would overflow most.  Room is what is neither held nor promised: a worker's watermark and
the growth of running requests are its own business.  Classifiers are in :mod:`wavetank.serving.routing.termination`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.serving.routing.interface import ActiveView, NoState, PoolView, WorkersView, place_function
from wavetank.serving.routing.termination import fit_geometric, fit_logistic
from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

NONE, GEOMETRIC, LOGISTIC, ORACLE = range(4)
_KINDS = {"none": NONE, "geometric": GEOMETRIC, "logistic": LOGISTIC, "oracle": ORACLE}


@njit(forceinline=True)
def score(size: float, margin: float, alpha: float) -> float:
    """Return the F-score: by how much the imbalance falls when ``size`` is added to a worker with ``margin``.

    Exact for ``alpha = workers - 1``: a request that fits leaves ``size`` fewer idle tokens; one that does not fills
    the margin and makes all others wait for the rest.
    """
    return size if size <= margin else margin - alpha * (size - margin)


@njit
def forecast(
    view: WorkersView, active: ActiveView, kind: int, parameters: NDArray[np.float64], loads: NDArray[np.float64]
) -> None:
    """Fill ``loads[g, h]`` with the expected KV tokens of worker g, h steps ahead.

    Parameters
    ----------
    view, active
        What the router sees.
    kind : int
        NONE, GEOMETRIC, LOGISTIC or ORACLE.
    parameters : float64 array
        As :meth:`BalanceRoute.parameters` gives them.
    loads : float64 array (workers, horizon + 1)
        Overwritten.
    """
    workers, steps = loads.shape
    survives = 1.0 - 1.0 / max(parameters[4], 1.0)
    for g in range(workers):
        base = view.kv_tokens[g]
        count = np.float64(view.running[g])
        coming = view.waiting_tokens[g] + view.sent_tokens[g]
        coming_count = np.float64(view.waiting[g] + view.sent_requests[g])
        alive = 1.0
        for h in range(steps):
            loads[g, h] = alive * (base + h * count) + coming + h * coming_count
            if kind == GEOMETRIC:
                alive *= survives
    if kind < LOGISTIC:
        return
    for i in range(active.worker.size):
        g = active.worker[i]
        context = active.prompt_tokens[i] + active.generated_tokens[i] - 1.0
        if kind == ORACLE:
            for h in range(min(np.int64(active.remaining_tokens[i]), steps), steps):
                loads[g, h] -= context + h
        else:
            drift = parameters[5] + parameters[6] * np.log1p(active.generated_tokens[i])
            drift += parameters[7] * np.log(active.prompt_tokens[i])
            # P(survives the horizon) = 1 / (1 + exp(drift)), spread evenly over its steps.
            stays = np.exp(-np.log1p(np.exp(min(drift, 30.0))) / max(steps - 1, 1))
            alive = 1.0
            for h in range(1, steps):
                alive *= stays
                loads[g, h] -= (1.0 - alive) * (context + h)


@njit
def _best_size(margins: NDArray[np.float64], weights: NDArray[np.float64], alpha: float) -> float:
    """Return the size that maximises sum_h weights[h] * score(size + h, margins[h], alpha).

    The sum is concave and piecewise linear with breaks at margins[h] - h: the maximum is at the first break behind
    which it falls.
    """
    steps = margins.size
    breaks = np.empty(steps)
    order = np.empty(steps)
    rising = 0.0
    for h in range(steps):
        at = margins[h] - h
        rising += weights[h]
        place = h
        while place > 0 and breaks[place - 1] > at:
            breaks[place] = breaks[place - 1]
            order[place] = order[place - 1]
            place -= 1
        breaks[place] = at
        order[place] = weights[h]
    falling = 0.0
    for h in range(steps):
        rising -= order[h]
        falling += order[h]
        if rising <= alpha * falling:
            return breaks[h]
    return breaks[steps - 1]


@njit(forceinline=True)
def _add(
    tokens: float,
    g: int,
    loads: NDArray[np.float64],
    weighed: NDArray[np.float64],
    weights: NDArray[np.float64],
    envelope: NDArray[np.float64],
    room: NDArray[np.float64],
    free: NDArray[np.int64],
) -> None:
    """Count a request of ``tokens`` tokens as placed on worker ``g``."""
    room[g] -= tokens
    free[g] -= 1
    for h in range(weights.size):
        loads[g, h] += tokens + h
        weighed[g] += weights[h] * (tokens + h)
        envelope[h] = max(envelope[h], loads[g, h])


@place_function
def _place(
    view: WorkersView,
    pool: PoolView,
    active: ActiveView,
    state: NDArray[np.float64],
    parameters: NDArray[np.float64],
    placed: NDArray[np.int64],
) -> int:
    workers = view.running.size
    group = np.int64(parameters[9]) if 0.0 < parameters[9] < workers else workers
    groups = (workers + group - 1) // group
    alpha = parameters[0] if parameters[0] >= 0.0 else group - 1.0
    patience = parameters[1]
    steps = np.int64(parameters[2]) + 1
    gamma = parameters[3]
    kind = np.int64(parameters[8])
    # One allocation, many uses: they are a good part of a small decision's time.
    floats = np.empty(workers * (steps + 2) + (groups + 2) * steps)
    loads = floats[: workers * steps].reshape((workers, steps))
    rest = floats[workers * steps :]
    weighed, room = rest[:workers], rest[workers : 2 * workers]
    weights, margins = rest[2 * workers : 2 * workers + steps], rest[2 * workers + steps : 2 * workers + 2 * steps]
    envelopes = rest[2 * workers + 2 * steps :].reshape((groups, steps))
    forecast(view, active, kind, parameters, loads)
    weights[0] = 1.0
    for h in range(1, steps):
        weights[h] = weights[h - 1] * gamma
    envelopes[:] = loads[::group]
    for g in range(workers):
        envelope = envelopes[g // group]
        for h in range(steps):
            envelope[h] = max(envelope[h], loads[g, h])

    integers = np.empty(2 * workers, np.int64)
    heap, free = integers[:workers], integers[workers:]
    for g in range(workers):
        free[g] = (view.slots[g] - view.running[g] - view.waiting[g] - view.sent_requests[g]) * view.takes[g]
        held = view.kv_tokens[g] + view.waiting_tokens[g] + view.sent_tokens[g]
        room[g] = view.kv_capacity_tokens[g] - held
        weighed[g] = 0.0
        for h in range(steps):
            weighed[g] += weights[h] * loads[g, h]

    waiting = pool.prompt_tokens.size
    count = 0
    # Requests that were passed over too often, the oldest first.
    for r in range(waiting):
        if pool.waited_steps[r] <= patience:
            continue
        tokens = pool.prompt_tokens[r]
        best, widest = -1, -1
        for g in range(workers):
            if free[g] > 0 and pool.serves[r, g] != 0:
                if tokens <= room[g] and (best < 0 or weighed[g] < weighed[best]):
                    best = g
                if widest < 0 or room[g] > room[widest]:
                    widest = g
        g = best if best >= 0 else widest
        if g < 0:
            # No worker that has its model has a free slot.
            continue
        placed[r] = g
        count += 1
        _add(tokens, g, loads, weighed, weights, envelopes[g // group], room, free)

    # Workers with a free slot, in a heap with the least discounted load on top: in a group, the largest margin.
    size = 0
    for g in range(workers):
        if free[g] > 0:
            at = size
            while at > 0 and weighed[heap[(at - 1) >> 1]] > weighed[g]:
                heap[at] = heap[(at - 1) >> 1]
                at = (at - 1) >> 1
            heap[at] = g
            size += 1

    by_size = np.argsort(pool.prompt_tokens, kind="mergesort")
    left, slots = 0, 0
    for i in range(waiting):
        if placed[by_size[i]] < 0:
            by_size[left] = by_size[i]
            left += 1
    for g in range(workers):
        slots += max(free[g], 0)
    while size > 0 and left > 0:
        g = heap[0]
        envelope = envelopes[g // group]
        for h in range(steps):
            margins[h] = envelope[h] - loads[g, h]
        best_size = _best_size(margins, weights, alpha) if left > slots else np.inf
        low, high = 0, left
        while low < high:
            middle = (low + high) >> 1
            if pool.prompt_tokens[by_size[middle]] <= best_size:
                low = middle + 1
            else:
                high = middle
        # The largest size up to the best one, and the smallest beyond.
        chosen, below, above = -1, low - 1, low
        while above < left and pool.serves[by_size[above], g] == 0:
            above += 1
        if above < left and pool.prompt_tokens[by_size[above]] > room[g]:
            above = left
        while below >= 0 and (pool.prompt_tokens[by_size[below]] > room[g] or pool.serves[by_size[below], g] == 0):
            below -= 1
        if below >= 0:
            # The oldest among equal sizes.
            chosen = below
            while below > 0 and pool.prompt_tokens[by_size[below - 1]] == pool.prompt_tokens[by_size[chosen]]:
                below -= 1
                if pool.serves[by_size[below], g] != 0:
                    chosen = below
            below = chosen
        if above < left:
            gain = 0.0
            fits = -np.inf if below < 0 else 0.0
            for h in range(steps):
                gain += weights[h] * score(pool.prompt_tokens[by_size[above]] + h, margins[h], alpha)
                if below >= 0:
                    fits += weights[h] * score(pool.prompt_tokens[by_size[below]] + h, margins[h], alpha)
            if gain > fits:
                chosen = above
        if chosen >= 0:
            r = by_size[chosen]
            for i in range(chosen, left - 1):
                by_size[i] = by_size[i + 1]
            left -= 1
            placed[r] = g
            count += 1
            slots -= 1
            _add(pool.prompt_tokens[r], g, loads, weighed, weights, envelope, room, free)
        if chosen < 0 or free[g] == 0:
            # Nothing waiting fits into its cache, or its slots are taken: the worker is out of this decision.
            slots -= free[g]
            size -= 1
            heap[0] = heap[size]
        at = 0
        while 2 * at + 1 < size:
            below = 2 * at + 1
            if below + 1 < size and weighed[heap[below + 1]] < weighed[heap[below]]:
                below += 1
            if weighed[heap[below]] >= weighed[heap[at]]:
                break
            heap[below], heap[at] = heap[at], heap[below]
            at = below
    return count


@dataclass(frozen=True, kw_only=True)
class BalanceRoute(NoState):
    """Pool router that fills the margins below the most loaded worker; BR-0 at horizon 0, else BR-H."""

    horizon_steps: int = setting(
        16, unit="steps", says="Steps over which margins are forecast; 0 is BR-0", low=0, high=512
    )
    discount: float = setting(0.9, says="Weight of a step relative to the step before (gamma)", low=0.0, high=1.0)
    alpha: float | None = setting(
        None,
        says="Cost of an overflowing token relative to one that fits; workers of a group - 1 by default",
        low=0.0,
        high=1e6,
    )
    group_workers: int = setting(
        0, unit="workers", says="Neighbouring workers that share a step barrier; 0 for all", low=0, high=100_000
    )
    patience_steps: int = setting(
        200, unit="steps", says="Decisions after which a passed-over request goes next", low=0, high=10**9
    )
    termination: str = setting(
        "geometric",
        says="Classifier that predicts when running requests end",
        choices=("none", "geometric", "logistic", "oracle"),
    )
    mean_output_tokens: float = setting(
        211.0,
        unit="tokens",
        says="Mean output length of past requests: the geometric classifier (Azure 2023 chat)",
        low=1.0,
        high=1e7,
    )
    logistic: tuple[float, ...] = setting(
        (-2.0, 0.0, 0.0), says="Coefficients of the logistic classifier: intercept, log(1 + generated), log(prompt)"
    )

    place = staticmethod(_place)
    learns_lengths: ClassVar[bool] = True

    @property
    def reads_active(self) -> bool:
        """Whether the forecast looks at single requests."""
        return self.horizon_steps > 0 and self.termination in ("logistic", "oracle")

    @property
    def reads_remaining(self) -> bool:
        """Whether the forecast needs the truth that only a simulation has."""
        return self.horizon_steps > 0 and self.termination == "oracle"

    def parameters(self) -> NDArray[np.float64]:
        """Return alpha (-1: by the group), patience, horizon, discount, mean length, classifier, kind and group."""
        kind = _KINDS[self.termination] if self.horizon_steps > 0 else NONE
        return np.array(
            [
                -1.0 if self.alpha is None else self.alpha,
                self.patience_steps,
                self.horizon_steps,
                self.discount,
                self.mean_output_tokens,
                *self.logistic,
                kind,
                self.group_workers,
            ],
            np.float64,
        )

    def fitted_to(self, past: RequestTrace) -> BalanceRoute:
        """Return the router with its termination classifier fitted to past requests."""
        if self.horizon_steps == 0 or self.termination in ("none", "oracle"):
            return self
        if self.termination == "geometric":
            return dataclasses.replace(self, mean_output_tokens=fit_geometric(past.output_tokens))
        weights = fit_logistic(past.prompt_tokens, past.output_tokens, self.horizon_steps)
        return dataclasses.replace(self, logistic=weights)
