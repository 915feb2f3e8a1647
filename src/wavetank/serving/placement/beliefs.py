"""What planners believe that a GPU with some adapters keeps up.

The twin would say, but it simulates an hour each time.  A model distilled from it is a random forest on nine figures of
the adapters; the formula solves for the batch at which a GPU gives just what is asked; two rules know less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.placement.interface import Adapter, PlacementProblem, kv_tokens, model_named, width_of
from wavetank.serving.placement.twin import HOUR_S, capacity_per_s
from wavetank.study.forest import Forest

FEATURES = (
    "adapters", "slots", "slots_per_adapter", "width", "mean_rank", "kv_tokens", "effective_adapters", "largest_share",
    "resident_share",
)  # fmt: skip
"""What the distilled model sees of a GPU: numbers of adapters and slots and their ratio (at most 1), the rank of the
slots, the mean rank of requests, the KV cache in tokens, the inverse of the sum of squared shares of requests, the
largest of these shares, and the share of requests that the busiest adapters, one per slot, get."""


def features(problem: PlacementProblem, adapters: Sequence[Adapter], slots: Sequence[int]) -> NDArray[np.float64]:
    """Return what the distilled model sees of a GPU, for several numbers of slots.

    Parameters
    ----------
    problem : PlacementProblem
    adapters : sequence of Adapter
    slots : sequence of int, length m

    Returns
    -------
    float64, shape (m, 9)
        In the order of :data:`FEATURES`.
    """
    rates = np.sort([each.rate_per_s for each in adapters])[::-1]
    shares = rates / rates.sum()
    ranks = np.array([each.rank for each in adapters])
    mean_rank = float((ranks * [each.rate_per_s for each in adapters]).sum() / rates.sum())
    width = width_of(int(ranks.max())) or int(ranks.max())
    summed = np.cumsum(shares)
    return np.array([
        [
            len(adapters), each, min(each / len(adapters), 1.0), width, mean_rank,
            kv_tokens(problem.model, each, int(ranks.max())), 1.0 / float((shares**2).sum()), shares[0],
            summed[min(each, len(adapters)) - 1],
        ]
        for each in slots
    ])  # fmt: skip


@cache
def shipped_forest(model: str) -> Forest:
    """Return the distilled model of a base model.

    Parameters
    ----------
    model : str
    """
    with (resources.files("wavetank.serving.placement") / f"distilled_{model}.npz").open("rb") as file:
        return Forest(np.load(file, allow_pickle=False))


class Belief(Protocol):
    """What a planner takes a GPU to keep up."""

    def capacity_per_s(
        self, problem: PlacementProblem, adapters: Sequence[Adapter], slots: Sequence[int]
    ) -> NDArray[np.float64]:
        """Return the largest rate without starving for each number of slots, in requests/s.

        Parameters
        ----------
        problem : PlacementProblem
        adapters : sequence of Adapter
            Their rates count in proportion to each other.
        slots : sequence of int, length m
            With which the engine starts.

        Returns
        -------
        float64, shape (m,)
        """
        ...


class Distilled:
    """The random forest that was trained on the twin."""

    def capacity_per_s(
        self, problem: PlacementProblem, adapters: Sequence[Adapter], slots: Sequence[int]
    ) -> NDArray[np.float64]:
        """See :class:`Belief`."""
        return np.exp(shipped_forest(problem.model).predict(features(problem, adapters, slots)))


class Formula:
    """A fixed point of the step's costs, without any simulation or learning.

    A GPU at its limit has as many requests in the batch as its KV cache holds.  With B requests, of which each belongs
    to adapter i with probability p_i, adapter i is in the batch with probability 1 - (1 - p_i)^B.  Where that makes
    more adapters than slots, there are as many as slots: too hopeful, since some requests then wait for a slot.
    """

    def capacity_per_s(
        self, problem: PlacementProblem, adapters: Sequence[Adapter], slots: Sequence[int]
    ) -> NDArray[np.float64]:
        """See :class:`Belief`."""
        model, costs = model_named(problem.model)
        prompt, output = model.lengths.prompt_mean_tokens, model.lengths.output_mean_tokens
        rates = np.array([each.rate_per_s for each in adapters])
        shares = rates / rates.sum()
        rank = max(each.rank for each in adapters)
        found = []
        for each in slots:
            kv = kv_tokens(problem.model, each, rank)
            # Requests that hold the KV cache: each its prompt and, on average, half of its answer.
            batch = kv / (prompt + output / 2)
            mixed = min(_distinct(shares, batch), float(each))
            step_s = costs.overhead_s + costs.per_request_s * batch
            step_s += costs.per_context_token_s * batch * (prompt + output / 2)
            step_s += costs.per_prefill_token_s * batch * prompt / output
            step_s *= 1 + costs.percent_per_adapter / 100 * mixed
            step_s += mixed * (costs.per_adapter_s + costs.per_adapter_s_per_rank * (width_of(rank) or rank))
            # Every request occupies its place for as many steps as its answer has tokens.
            found.append(1.0 / (output * step_s / batch + costs.per_arrival_s) / problem.share)
        return np.array(found)


def _distinct(shares: NDArray[np.float64], batch: float) -> float:
    return float((1 - (1 - np.minimum(shares, 1 - 1e-12)) ** batch).sum())


class WithoutAdapters:
    """What the base model alone keeps up: adapters are taken to cost nothing."""

    def capacity_per_s(
        self, problem: PlacementProblem, adapters: Sequence[Adapter], slots: Sequence[int]
    ) -> NDArray[np.float64]:
        """See :class:`Belief`."""
        return np.full(len(slots), plain_capacity_per_s(problem.model))


class MemoryOnly:
    """Anything is kept up of which every adapter has a slot; with less headroom, that share of the slots is used."""

    def capacity_per_s(
        self, problem: PlacementProblem, adapters: Sequence[Adapter], slots: Sequence[int]
    ) -> NDArray[np.float64]:
        """See :class:`Belief`."""
        most = problem.choices(max(each.rank for each in adapters))[-1]
        fits = len(adapters) <= max(min(problem.headroom, 1.0) * most, 1)
        return np.full(len(slots), math.inf if fits else 0.0)


@cache
def plain_capacity_per_s(model: str) -> float:
    """Return what a GPU keeps up with one adapter of the lowest rank: more than with any others.

    Parameters
    ----------
    model : str
    """
    one = (Adapter(name="one", rank=8, rate_per_s=1.0),)
    return capacity_per_s(PlacementProblem(adapters=one, model=model), one, 1, search_s=HOUR_S)
