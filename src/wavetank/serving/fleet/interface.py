"""What a planner of fleets sees and decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import as_model
from wavetank.platforms.prices import Offer
from wavetank.settings import check_ranges, setting


@dataclass(frozen=True, kw_only=True)
class Service:
    """What the users of one model ask for, apart from how often.

    Raises
    ------
    UnknownNameError
        If there is no such model.
    BadValueError
        If a number is out of its range.
    """

    model: str = setting("Llama-3.1-8B", says="Model, by name")
    prompt_tokens: float = setting(1155.0, unit="tokens", says="Mean length of prompts", low=1, high=1e7)
    output_tokens: float = setting(211.0, unit="tokens", says="Mean length of answers", low=1, high=1e7)
    slo_ttft_s: float = setting(2.0, unit="s", says="Objective for the time to first token", low=1e-3, high=1e5)
    slo_tpot_s: float = setting(0.1, unit="s", says="Objective for the time per output token", low=1e-4, high=1e3)
    share: float = setting(0.99, says="Share of the requests that must be within both", low=0.01, high=0.9999)

    def __post_init__(self) -> None:
        as_model(self.model)
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Template:
    """One way to serve a model: a replica, and the rate that it keeps up.

    Attributes
    ----------
    service : Service
    nodes : tuple of (str, int)
        The groups of devices that it takes, each of which must be in one node: device and number, a power of two.
    how : str
        The strategy in words: ``tp4``, ``prefill tp2 on A10, decode tp1 on H100-SXM``.
    per_s : float
        Requests per second within the service's objectives.
    """

    service: Service
    nodes: tuple[tuple[str, int], ...]
    how: str
    per_s: float

    def needs(self, device: str, size: int) -> int:
        """Return how many devices it takes in nodes that must have ``size`` of them or more."""
        return sum(group for kind, group in self.nodes if kind == device and group >= size)

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return sum(group for _, group in self.nodes)


@dataclass(frozen=True, kw_only=True)
class FleetProblem:
    """One decision: what is asked, what can be rented, what runs already.

    Parameters
    ----------
    demand_per_s : mapping of Service to float
        Requests per second of each service.
    offers : tuple of Offer
        With how many of each can be had now.
    templates : tuple of Template
        The ways to serve; planners may make others of the same rules, see :mod:`wavetank.serving.fleet.templates`.
    running : mapping of Template to int
        Replicas of the plan before.
    start_hours : float
        A replica that starts loads its model this long, in hours, in which its devices are paid for.
    weights : mapping of Service to float
        What a request that is served counts where not all can be; 1 for services that are not named.
    """

    demand_per_s: Mapping[Service, float]
    offers: tuple[Offer, ...]
    templates: tuple[Template, ...]
    running: Mapping[Template, int] = field(default_factory=dict)
    start_hours: float = 0.05
    weights: Mapping[Service, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for service, rate in self.demand_per_s.items():
            if not 0 <= rate < math.inf:
                raise BadValueError(
                    f"The demand for {service.model} is out of range.", given=rate, allowed="requests/s, >= 0"
                )
        names = [offer.name for offer in self.offers]
        if len(set(names)) < len(names):
            twice = [name for name, times in Counter(names).items() if times > 1]
            raise BadValueError("Two offers have the same name.", given=", ".join(twice))
        if not self.offers:
            raise BadValueError("The price list is empty.", given="no offers", allowed="at least one")

    def of(self, service: Service) -> tuple[Template, ...]:
        """Return the templates of one service."""
        return tuple(template for template in self.templates if template.service == service)


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """What to rent and what to run on it.

    Attributes
    ----------
    instances : mapping of str to int
        How many of each offer, by its name.
    replicas : mapping of Template to int
    """

    instances: Mapping[str, int]
    replicas: Mapping[Template, int]

    def usd_per_hour(self, offers: tuple[Offer, ...]) -> float:
        """Return the price of the instances."""
        price = {offer.name: offer.usd_per_hour for offer in offers}
        return sum(price[name] * count for name, count in self.instances.items())

    def capacity_per_s(self, service: Service) -> float:
        """Return the requests per second that the replicas of a service keep up."""
        return sum(each.per_s * count for each, count in self.replicas.items() if each.service == service)

    def served_per_s(self, problem: FleetProblem) -> dict[Service, float]:
        """Return what is served of each service's demand."""
        return {service: min(rate, self.capacity_per_s(service)) for service, rate in problem.demand_per_s.items()}

    def check(self, problem: FleetProblem) -> None:
        """Raise unless the instances can be had and the replicas fit into them.

        Groups of one node are powers of two: they fit exactly where, for every size, the groups of that size and above
        need no more devices than the nodes have when each is cut into as many of that size as it holds.

        Raises
        ------
        BadValueError
            That names the offer or the device.
        """
        offers = {offer.name: offer for offer in problem.offers}
        for name, count in self.instances.items():
            offer = offers.get(name)
            if offer is None or count < 0 or (offer.available is not None and count > offer.available):
                raise BadValueError(
                    f"The plan takes {count} of {name!r}.", given=count,
                    allowed="an offer of the price list" if offer is None else f"0 to {offer.available}",
                )  # fmt: skip
        for device, size in sizes(problem):
            needed = sum(count * template.needs(device, size) for template, count in self.replicas.items())
            there = sum(count * room(offers[name], device, size) for name, count in self.instances.items())
            if needed > there:
                raise BadValueError(
                    f"The plan's replicas need more {device} in nodes of {size} and more than it rents.",
                    given=needed, allowed=str(there),
                )  # fmt: skip


class FleetPlanner(Protocol):
    """Chooses instances and replicas."""

    def plan(self, problem: FleetProblem) -> FleetPlan:
        """Return a plan that can be had (:meth:`FleetPlan.check`); it may serve less than the demand."""
        ...


def room(offer: Offer, device: str, size: int) -> int:
    """Return how many devices an instance has for groups of ``size``."""
    return offer.gpus // size * size if offer.device == device else 0


def sizes(problem: FleetProblem) -> list[tuple[str, int]]:
    """Return every device with every number of it that some template needs in one node, and with 1."""
    found = {(device, group) for template in problem.templates for device, group in template.nodes}
    return sorted(found | {(offer.device, 1) for offer in problem.offers})
