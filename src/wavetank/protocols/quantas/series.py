"""What QUANTAS's algorithms have in common, and the series of figures that QUANTAS writes after every round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.settings import check_parameters
from wavetank.sim.node import Node, Snapshot
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Run


class QuantasAlgorithm:
    """Checks parameters; an algorithm that tolerates faults, or promises what a run can break, overrides the rest.

    Attributes
    ----------
    where : str
        For messages.
    """

    where: ClassVar[str]

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where=self.where)

    def max_faults(self, size: int) -> int:
        """Return how many nodes may fail; 0 where messages may be lost, but no node."""
        return 0

    def violation(self, snapshot: Snapshot) -> str:
        """Return "": there is nothing that a finite run can break."""
        return ""


class BoxNode(Node, ABC):
    """A node that reads all messages of a round at one go."""

    def receive(self, sender: int, message: Any) -> None:
        """React to one message."""
        self.receive_all([(sender, message)])

    @abstractmethod
    def receive_all(self, box: Sequence[tuple[int, Any]]) -> None:
        """React to all messages of a round."""


def algorithm_nodes(run: Run) -> list[Any]:
    """Return the nodes of a run without the faults around them."""
    return [getattr(node, "inner", node) for node in run.nodes]


def running_count(at: Sequence[float], rounds: int) -> NDArray[np.float64]:
    """Return how many events happened so far at the end of every round; see :func:`running_total`."""
    return running_total(at, [1.0] * len(at), rounds)


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
    return running_count([at for at, _, _ in run.recorded.get(metric, [])], rounds)


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
