"""Which service of many is the cause, when metrics of several depart from what is normal.

Ranks are by a graph of calls: who calls whom is known, and a service departs when something is wrong with it or with
what it calls.  :class:`BlanketCauses` asks a Bayesian network for each service's own fault, inside its Markov blanket.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.repair.networks import Floats, Network, blanket_posterior
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream

_MOST_CALLEES = 16


class ShopCase(NamedTuple):
    """One incident.

    Attributes
    ----------
    services : tuple of str
    calls : tuple of tuple of int
        The services that each service calls.
    departure : ndarray of float64, shape (services,)
        How far the worst metric of each is from normal, in robust standard deviations towards worse; NaN of a service
        that reports nothing.
    cause : str
        The true one; for learning and for judging alone.
    group : str
        The scenario: no system learns from the group that judges it.
    number : int
        Of the incident in its group, for systems that draw.
    """

    services: tuple[str, ...]
    calls: tuple[tuple[int, ...], ...]
    departure: Floats
    cause: str
    group: str
    number: int


class CauseRanker(Protocol):
    """Says how suspicious each service is."""

    def suspicion(self, case: ShopCase, others: Sequence[ShopCase], seed: int) -> Floats:
        """Return a score a service, shape (services,), higher for more suspicious."""
        ...


@dataclass(frozen=True, kw_only=True)
class BlanketCauses:
    """How likely each service has a fault of its own, from itself and what it calls: the blanket of a noisy-or."""

    departs: float = setting(3.0, says="Robust standard deviations from which a service departs", low=0.1, high=1e6)
    prior: float = setting(0.02, says="Probability that a service has a fault of its own", low=1e-9, high=0.5)
    shows: float = setting(0.9, says="Probability that its own fault makes it depart", low=0.01, high=0.999)
    passes: float = setting(0.5, says="Probability that a departing callee makes it depart", low=0.0, high=0.999)
    chance: float = setting(0.05, says="Probability that it departs without a cause", low=1e-9, high=0.5)

    def __post_init__(self) -> None:
        check_ranges(self)

    def suspicion(self, case: ShopCase, others: Sequence[ShopCase], seed: int) -> Floats:
        """Return each service's probability of a fault; equal ones are ordered by their departures.

        Parameters
        ----------
        case : ShopCase
        others : sequence of ShopCase
            Not looked at: nothing is learned.
        seed : int
            Not used.
        """
        count = len(case.services)
        network, departs = self.network(case), case.departure > self.departs
        evidence = {count + node: int(departs[node]) for node in range(count) if np.isfinite(case.departure[node])}
        likely = np.array([
            blanket_posterior(network, node, _near(network, node, evidence))[0][1] for node in range(count)
        ])  # fmt: skip
        departure = np.nan_to_num(np.clip(case.departure, 0.0, None), posinf=1e12)
        # Departures order what is equally likely, and nothing else.
        order = np.argsort(np.argsort(departure, kind="stable")) / (1e9 * count)
        found: Floats = likely + order
        return found

    def network(self, case: ShopCase) -> Network:
        """Return the network: first the services' own faults, then whether they depart.

        Parameters
        ----------
        case : ShopCase

        Raises
        ------
        BadValueError
            If a service calls more others than a table can hold, or calls go round in a circle.
        """
        return _network(self, case.services, case.calls)


@functools.lru_cache(maxsize=8)
def _network(causes: BlanketCauses, services: tuple[str, ...], places: tuple[tuple[int, ...], ...]) -> Network:
    count = len(services)
    parents: list[tuple[int, ...]] = [() for _ in range(count)]
    tables: list[Floats] = [np.array([1 - causes.prior, causes.prior]) for _ in range(count)]
    for node, calls in enumerate(places):
        if len(calls) > _MOST_CALLEES:
            raise BadValueError("A service calls too many others for an exact table.", given=len(calls),
                                allowed=f"{_MOST_CALLEES} at most")  # fmt: skip
        parents.append((node, *(count + each for each in calls)))
        table = np.empty((2,) * (len(calls) + 2))
        for state in itertools.product((0, 1), repeat=len(calls) + 1):
            well = (1 - causes.chance) * (1 - causes.shows) ** state[0] * (1 - causes.passes) ** sum(state[1:])
            table[state] = well, 1 - well
        tables.append(table)
    names = (*(f"fault of {each}" for each in services), *services)
    return Network(names, tuple(parents), tuple(tables))


def _near(network: Network, node: int, evidence: dict[int, int]) -> dict[int, int]:
    """Return what is known inside the blanket; whether the service departs only with what it calls."""
    near = network.blanket(node)
    return {each: level for each, level in evidence.items() if each in near}


@dataclass(frozen=True, kw_only=True)
class LargestDeparture:
    """The service that is farthest from normal."""

    def suspicion(self, case: ShopCase, others: Sequence[ShopCase], seed: int) -> Floats:
        """Return the departures.

        Parameters
        ----------
        case : ShopCase
        others : sequence of ShopCase
        seed : int
        """
        return np.nan_to_num(case.departure, nan=-1.0)


@dataclass(frozen=True, kw_only=True)
class DeepestDeparture:
    """The service that departs while nothing that it calls does: the rule of operators who walk a graph of calls."""

    departs: float = setting(3.0, says="Robust standard deviations from which a service departs", low=0.1, high=1e6)

    def __post_init__(self) -> None:
        check_ranges(self)

    def suspicion(self, case: ShopCase, others: Sequence[ShopCase], seed: int) -> Floats:
        """Return departures, of the deepest services before all others.

        Parameters
        ----------
        case : ShopCase
        others : sequence of ShopCase
        seed : int
        """
        departure = np.nan_to_num(case.departure, nan=-1.0, posinf=1e12)
        departs = departure > self.departs
        deepest = np.array([
            own and not departs[list(calls)].any() for own, calls in zip(departs, case.calls, strict=True)
        ])  # fmt: skip
        found: Floats = departure + np.where(deepest, departure.max() + 1.0, 0.0)
        return found


@dataclass(frozen=True, kw_only=True)
class CommonestCause:
    """The service that was the cause most often in other scenarios, whatever the metrics say."""

    def suspicion(self, case: ShopCase, others: Sequence[ShopCase], seed: int) -> Floats:
        """Return how often each service was the cause.

        Parameters
        ----------
        case : ShopCase
        others : sequence of ShopCase
            Of other scenarios.
        seed : int
        """
        causes = [each.cause for each in others]
        return np.array([float(causes.count(each)) for each in case.services])


@dataclass(frozen=True, kw_only=True)
class RandomCause:
    """A service by chance."""

    def suspicion(self, case: ShopCase, others: Sequence[ShopCase], seed: int) -> Floats:
        """Return draws.

        Parameters
        ----------
        case : ShopCase
        others : sequence of ShopCase
        seed : int
        """
        return stream(seed, "random cause", case.group, case.number).random(len(case.services))
