"""Small problems whose best plans are known."""

import itertools
import math
from functools import lru_cache

import numpy as np
import pytest

from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.interface import FleetProblem, Service, Template, room, sizes

CHAT = Service(model="Llama-3.1-8B")
LARGE = Service(model="Llama-3.1-70B")


def template(service, per_s, *nodes):
    return Template(
        service=service, nodes=nodes, how=" + ".join(f"{group} {device}" for device, group in nodes), per_s=per_s
    )


def random_problem(rng, *, available=None, start_hours=0.0):
    """Return two services, three kinds of devices and up to eight ways to serve, at most six GPUs of each kind."""
    devices = ("A10", "L4", "H100-SXM")
    offers = tuple(
        Offer(
            name=f"{device}-{gpus}", device=device, gpus=gpus, usd_per_hour=float(rng.uniform(0.5, 2.0) * gpus),
            available=available,
        )
        for device in devices
        for gpus in (1, 2)
    )  # fmt: skip
    made = []
    for service in (CHAT, LARGE):
        for _ in range(int(rng.integers(2, 4))):
            nodes = [(str(rng.choice(devices)), int(rng.choice([1, 2])))]
            if rng.random() < 0.3:
                nodes.append((str(rng.choice(devices)), 1))
            made.append(template(service, float(rng.uniform(0.6, 4.0)), *sorted(nodes)))
    demand = {CHAT: float(rng.uniform(0.5, 3.0)), LARGE: float(rng.uniform(0.5, 2.0))}
    return FleetProblem(demand_per_s=demand, offers=offers, templates=tuple(made), start_hours=start_hours)


def least_cost(problem, most=5):
    """Return the least price of a fleet that serves everything, over every joint assignment of replicas."""
    needs = {(0,) * len(sizes(problem))}
    for service, rate in problem.demand_per_s.items():
        ways = problem.of(service)
        per_way = np.array([[way.needs(device, size) for device, size in sizes(problem)] for way in ways])
        counts = np.array(list(itertools.product(range(most + 1), repeat=len(ways))))
        enough = counts[counts @ np.array([way.per_s for way in ways]) >= rate]
        # What is needed of each device in nodes of each size decides the price; equal needs are priced once.
        alone = np.unique(enough @ per_way, axis=0)
        needs = {tuple(np.array(before) + after) for before in needs for after in alone}
    return min((price(problem, need) for need in needs), default=math.inf)


def price(problem, need, most=5):
    """Return the least price of instances that have what is needed; each device by itself."""
    total = 0.0
    for device in {offer.device for offer in problem.offers}:
        offers = tuple(offer for offer in problem.offers if offer.device == device)
        limits = [(size, int(n)) for (kind, size), n in zip(sizes(problem), need, strict=True) if kind == device]
        total += _price(offers, device, tuple(limits), most)
    return total


@lru_cache(maxsize=100_000)
def _price(offers, device, limits, most):
    bounds = [range((2 * most if offer.available is None else offer.available) + 1) for offer in offers]
    return min(
        (
            sum(c * o.usd_per_hour for c, o in zip(counts, offers, strict=True))
            for counts in itertools.product(*bounds)
            if all(
                sum(c * room(o, device, size) for c, o in zip(counts, offers, strict=True)) >= n for size, n in limits
            )
        ),
        default=math.inf,
    )


@pytest.fixture
def two_kinds():
    """One model: an H100 keeps up 4 requests/s for 4 USD/h, an L4 keeps up 1 for 0.8."""
    return FleetProblem(
        demand_per_s={CHAT: 9.0},
        offers=(
            Offer(name="h100", device="H100-SXM", gpus=1, usd_per_hour=4.0),
            Offer(name="l4", device="L4", gpus=1, usd_per_hour=0.8),
        ),
        templates=(template(CHAT, 4.0, ("H100-SXM", 1)), template(CHAT, 1.0, ("L4", 1))),
        start_hours=0.0,
    )
