"""Plans: what they cost, what they serve, and which of them cannot be had."""

import pytest
from tests.serving.fleet.conftest import CHAT, template

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.interface import FleetPlan, FleetProblem, Service


def problem(*offers, templates=()):
    return FleetProblem(demand_per_s={CHAT: 3.0}, offers=offers, templates=templates)


def offer(name, gpus, available=None):
    return Offer(name=name, device="A10", gpus=gpus, usd_per_hour=1.5 * gpus, available=available)


def test_a_plan_costs_its_instances_and_serves_no_more_than_is_asked():
    two = template(CHAT, 2.0, ("A10", 1))
    given = problem(offer("one", 1), offer("four", 4), templates=(two,))
    plan = FleetPlan(instances={"one": 2, "four": 1}, replicas={two: 2})
    assert plan.usd_per_hour(given.offers) == 9.0
    assert plan.capacity_per_s(CHAT) == 4.0
    assert plan.served_per_s(given) == {CHAT: 3.0}


@pytest.mark.parametrize(
    ("instances", "replicas", "fits"),
    [
        # Groups of two need nodes of two: four nodes of one do not help, a node of three holds one of them.
        ({"one": 4}, {2: 1}, False),
        ({"three": 1}, {2: 1}, True),
        ({"three": 1}, {2: 1, 1: 1}, True),
        ({"three": 2}, {2: 3}, False),
        ({"four": 1}, {4: 1}, True),
        ({"four": 1}, {2: 2}, True),
        ({"four": 1}, {2: 2, 1: 1}, False),
        ({"four": 1, "one": 1}, {2: 2, 1: 1}, True),
        ({"four": 1, "three": 1}, {4: 1, 2: 1, 1: 1}, True),
        ({"four": 1, "three": 1}, {4: 1, 2: 2}, False),
        ({"four": 3}, {1: 1}, False),
        ({"absent": 1}, {}, False),
    ],
)
def test_replicas_must_fit_into_nodes_that_can_be_had(instances, replicas, fits):
    ways = {group: template(CHAT, 1.0, ("A10", group)) for group in (1, 2, 4)}
    given = problem(offer("one", 1), offer("three", 3), offer("four", 4, available=2), templates=tuple(ways.values()))
    plan = FleetPlan(instances=instances, replicas={ways[group]: count for group, count in replicas.items()})
    if fits:
        plan.check(given)
    else:
        with pytest.raises(BadValueError):
            plan.check(given)


def test_impossible_services_and_problems_are_refused():
    with pytest.raises(UnknownNameError, match=r"Llama-3\.1-8B"):
        Service(model="Llama-3-8B")
    with pytest.raises(BadValueError, match="slo_tpot_s"):
        Service(slo_tpot_s=0.0)
    with pytest.raises(BadValueError, match="empty"):
        problem()
    with pytest.raises(BadValueError, match="same name"):
        problem(offer("one", 1), offer("one", 2))
    with pytest.raises(BadValueError, match="demand"):
        FleetProblem(demand_per_s={CHAT: float("nan")}, offers=(offer("one", 1),), templates=())
