"""Coral's two stages against every joint assignment, and what must hold of every plan."""

import dataclasses

import numpy as np
import pytest
from tests.serving.fleet.conftest import CHAT, LARGE, least_cost, random_problem, template

from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.coral import Coral, Program, Unpruned
from wavetank.serving.fleet.interface import FleetProblem
from wavetank.serving.fleet.rivals import FractionalBound, ModelByModel

EXACT = Coral(gap=0.0)


def serves_everything(plan, problem):
    return all(plan.capacity_per_s(each) >= rate * (1 - 1e-9) for each, rate in problem.demand_per_s.items())


@pytest.mark.parametrize("seed", range(12))
def test_two_stages_cost_what_the_best_of_all_joint_assignments_costs(seed):
    problem = random_problem(np.random.default_rng(seed))
    plan = EXACT.plan(problem)
    plan.check(problem)
    assert serves_everything(plan, problem)
    assert plan.usd_per_hour(problem.offers) == pytest.approx(least_cost(problem), rel=1e-6)


@pytest.mark.parametrize("demand", [0.5, 4.0, 4.1, 8.0, 39.9])
def test_one_model_on_one_kind_takes_demand_over_rate_rounded_up(demand):
    problem = FleetProblem(
        demand_per_s={CHAT: demand}, offers=(Offer(name="h", device="H100-SXM", gpus=1, usd_per_hour=4.0),),
        templates=(template(CHAT, 4.0, ("H100-SXM", 1)),),
    )  # fmt: skip
    assert EXACT.plan(problem).instances == {"h": int(np.ceil(demand / 4.0))}


def test_the_cheaper_kind_fills_what_the_larger_one_leaves(two_kinds):
    # Nine requests/s: L4s alone cost 7.2 USD/h, two H100 and an L4 8.8.
    assert EXACT.plan(two_kinds).instances == {"l4": 9}
    dear = dataclasses.replace(
        two_kinds, offers=(two_kinds.offers[0], dataclasses.replace(two_kinds.offers[1], usd_per_hour=1.1))
    )
    assert EXACT.plan(dear).instances == {"h100": 2, "l4": 1}


@pytest.mark.parametrize("seed", range(8))
def test_more_to_rent_or_a_lower_price_never_costs_more(seed):
    rng = np.random.default_rng(100 + seed)
    problem = random_problem(rng, available=3)
    cost = EXACT.plan(problem).usd_per_hour(problem.offers)
    if not serves_everything(EXACT.plan(problem), problem):
        return
    cheaper = list(problem.offers)
    which = int(rng.integers(len(cheaper)))
    cheaper[which] = dataclasses.replace(cheaper[which], usd_per_hour=cheaper[which].usd_per_hour * 0.7)
    more = [dataclasses.replace(offer, available=4) for offer in problem.offers]
    another = [*problem.offers, Offer(name="new", device="L4", gpus=4, usd_per_hour=2.5)]
    for offers in (cheaper, more, another):
        other = dataclasses.replace(problem, offers=tuple(offers))
        assert EXACT.plan(other).usd_per_hour(other.offers) <= cost + 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_pruning_changes_no_optimum_and_the_bounds_enclose_it(seed):
    problem = random_problem(np.random.default_rng(200 + seed))
    cost = EXACT.plan(problem).usd_per_hour(problem.offers)
    assert Unpruned(gap=0.0).plan(problem).usd_per_hour(problem.offers) == pytest.approx(cost, rel=1e-6)
    assert FractionalBound().least_usd_per_hour(problem) <= cost + 1e-6
    greedy = ModelByModel().plan(problem)
    if serves_everything(greedy, problem):
        assert cost <= greedy.usd_per_hour(problem.offers) + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_where_not_everything_can_be_served_most_is_and_nothing_beyond_what_can_be_had_is_taken(seed):
    problem = random_problem(np.random.default_rng(300 + seed), available=1)
    problem = dataclasses.replace(problem, demand_per_s={CHAT: 50.0, LARGE: 50.0})
    plan = EXACT.plan(problem)
    plan.check(problem)
    served = sum(plan.served_per_s(problem).values())
    program = Program(offers=problem.offers, templates=problem.templates, gap=0.0)
    everything = {offer.name: 1 for offer in problem.offers}
    assert served == pytest.approx(
        sum(program.solve(problem, fixed=everything)[0].served_per_s(problem).values()), rel=1e-4
    )


def test_weights_decide_who_is_served_first():
    problem = FleetProblem(
        demand_per_s={CHAT: 4.0, LARGE: 2.0},
        offers=(Offer(name="h", device="H100-SXM", gpus=1, usd_per_hour=4.0, available=1),),
        templates=(template(CHAT, 4.0, ("H100-SXM", 1)), template(LARGE, 2.0, ("H100-SXM", 1))),
    )
    assert EXACT.plan(problem).served_per_s(problem) == {CHAT: 4.0, LARGE: 0.0}
    urgent = dataclasses.replace(problem, weights={LARGE: 3.0})
    assert EXACT.plan(urgent).served_per_s(urgent) == {CHAT: 0.0, LARGE: 2.0}


def test_starts_are_paid_for_so_that_a_fleet_that_runs_stays():
    first, second = template(CHAT, 4.0, ("H100-SXM", 1)), template(CHAT, 4.0, ("L4", 1))
    problem = FleetProblem(
        demand_per_s={CHAT: 4.0},
        offers=(
            Offer(name="h", device="H100-SXM", gpus=1, usd_per_hour=1.05),
            Offer(name="l", device="L4", gpus=1, usd_per_hour=1.0),
        ),
        templates=(first, second), running={first: 1}, start_hours=0.1,
    )  # fmt: skip
    assert EXACT.plan(problem).replicas == {first: 1}
    assert EXACT.plan(dataclasses.replace(problem, start_hours=0.01)).replicas == {second: 1}


def test_no_demand_rents_nothing_and_a_model_that_fits_nowhere_is_not_served(two_kinds):
    nothing = dataclasses.replace(two_kinds, demand_per_s={CHAT: 0.0})
    assert EXACT.plan(nothing).instances == {}
    both = dataclasses.replace(two_kinds, demand_per_s={CHAT: 9.0, LARGE: 1.0})
    plan = EXACT.plan(both)
    assert plan.served_per_s(both) == {CHAT: 9.0, LARGE: 0.0}
    assert plan.instances == {"l4": 9}
