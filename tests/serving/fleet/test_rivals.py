"""The other planners: what each does on problems with known answers, and the queueing formula."""

import dataclasses
import math

import numpy as np
import pytest
from tests.serving.fleet.conftest import CHAT, LARGE, random_problem, template

from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.interface import FleetProblem
from wavetank.serving.fleet.rivals import (
    DevicesFirst,
    ModelByModel,
    OneKind,
    OneModelPerInstance,
    QueueingFormula,
    erlang_c,
)

ALL = (OneKind(gap=0.0), ModelByModel(), DevicesFirst(gap=0.0), OneModelPerInstance(gap=0.0))


@pytest.mark.parametrize("planner", ALL, ids=lambda planner: type(planner).__name__)
@pytest.mark.parametrize("available", [None, 2])
def test_plans_can_be_had(planner, available):
    for seed in range(6):
        problem = random_problem(np.random.default_rng(seed), available=available)
        planner.plan(problem).check(problem)


def test_one_kind_takes_the_cheaper_of_the_pure_fleets(two_kinds):
    dear = dataclasses.replace(
        two_kinds, offers=(two_kinds.offers[0], dataclasses.replace(two_kinds.offers[1], usd_per_hour=1.4))
    )
    assert OneKind().plan(dear).instances == {"h100": 3}
    assert OneKind().plan(two_kinds).instances == {"l4": 9}


def test_model_by_model_takes_the_last_instance_by_what_is_missing(two_kinds):
    dear = dataclasses.replace(
        two_kinds, offers=(two_kinds.offers[0], dataclasses.replace(two_kinds.offers[1], usd_per_hour=1.1))
    )
    assert ModelByModel().plan(dear).instances == {"h100": 2, "l4": 1}


def test_devices_first_buys_the_cheapest_arithmetic_that_a_model_fits_into(two_kinds):
    # 989 TFLOP/s for 4 USD against 121 for 0.8: the H100, and an L4 where less than its operations is missing.
    wanted = {CHAT: 1.1e15}
    assert DevicesFirst._bought(two_kinds, wanted) == {"h100": 1, "l4": 1}
    without = dataclasses.replace(two_kinds, templates=two_kinds.templates[1:])
    assert set(DevicesFirst().plan(without).instances) == {"l4"}


def test_one_model_per_instance_shares_no_instance_between_models():
    # Half an instance is enough for either model; Coral's program would rent one.
    problem = FleetProblem(
        demand_per_s={CHAT: 1.0, LARGE: 1.0},
        offers=(Offer(name="pair", device="A10", gpus=2, usd_per_hour=3.0),),
        templates=(template(CHAT, 1.0, ("A10", 1)), template(LARGE, 1.0, ("A10", 1))),
    )
    assert OneModelPerInstance().plan(problem).instances == {"pair": 2}


def test_erlang_c_equals_the_sum_of_its_definition():
    for servers, busy in ((1, 0.5), (4, 3.0), (20, 15.0), (100, 95.0)):
        terms = [busy**k / math.factorial(k) for k in range(servers)]
        last = busy**servers / math.factorial(servers) * servers / (servers - busy)
        assert erlang_c(servers, busy) == pytest.approx(last / (sum(terms) + last), rel=1e-9)
    assert erlang_c(100_000, 10.0) == 0.0


def test_the_formula_asks_for_more_replicas_as_the_rate_rises_and_for_none_where_a_step_is_too_slow():
    formula = QueueingFormula()
    needed = [formula.replicas_needed(CHAT, "H100-SXM", 1, rate) for rate in (1.0, 20.0, 40.0, 80.0)]
    assert needed == sorted(needed) and needed[0] == 1 and needed[-1] > needed[1]
    fast = dataclasses.replace(CHAT, slo_tpot_s=1e-3)
    assert formula.replicas_needed(fast, "H100-SXM", 1, 1.0) is None
    assert formula.replicas_needed(dataclasses.replace(CHAT, slo_ttft_s=1e-3), "H100-SXM", 1, 1.0) is None
