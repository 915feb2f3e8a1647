"""Nitsum: when it switches."""

import numpy as np
import pytest
from tests.serving.tiers.conftest import mixed_requests, requests_at

from wavetank.serving.tiers.fleet import serve
from wavetank.serving.tiers.interface import Problem, Unit, WindowView
from wavetank.serving.tiers.nitsum import Nitsum
from wavetank.serving.tiers.rivals import BestStatic

X1, X2 = Unit(0, 1, 0, 0, 2.0), Unit(0, 2, 0, 0, 6.0)
Y1, Y2 = Unit(1, 1, 0, 0, 2.0), Unit(1, 2, 0, 0, 3.0)


def small(problem, pause_s=0.1):
    units = (X1, X2, Y1, Y2)
    return Problem(problem.tiers, units, units, 4, 1.0, pause_s, (12.0, 0.5))


def views(arrived, plan, n=40):
    return [WindowView(k + 1, np.array(arrived), np.zeros(2, np.int64), 5.0, plan) for k in range(n)]


@pytest.mark.parametrize("planner", ["greedy", "exact"])
def test_a_lasting_change_of_arrivals_changes_the_plan_and_an_unchanged_mix_does_not(problem, planner):
    policy = Nitsum(planner=planner)
    plan, state = policy.begin(small(problem))
    assert all(policy.decide(view, state) == plan for view in views((12, 0), plan, 10))
    assert any(policy.decide(view, state) != plan for view in views((1, 12), plan))


def test_a_pause_that_costs_more_than_the_gain_is_never_taken(problem):
    policy = Nitsum()
    plan, state = policy.begin(small(problem, pause_s=1e4))
    before = [policy.decide(view, state) for view in views((1, 12), plan)]
    assert set(before) == {plan}
    assert not policy.pays(small(problem, pause_s=1e4), [X2, X2], [X2, Y1, Y1], (6.0, 4.0))
    assert policy.pays(small(problem, pause_s=0.0), [X2, X2], [X2, Y1, Y1], (6.0, 4.0))


def test_patience_waits_for_the_gain_to_last(problem):
    hasty, patient = Nitsum(patience=1), Nitsum(patience=5)
    changed = []
    for policy in (hasty, patient):
        plan, state = policy.begin(small(problem))
        found = [policy.decide(view, state) != plan for view in views((1, 12), plan, 60)]
        changed.append(found.index(True))
    assert changed[1] == changed[0] + 4


@pytest.mark.parametrize("expected", [(35.0, 0.01), (0.01, 35.0)])
def test_one_tier_under_constant_load_settles_on_the_best_plan_that_stays(hardware, problem, expected):
    # Also where it begins with all GPUs at the tier of which nothing arrives.
    requests = mixed_requests((35.0, 0.0), 60.0)
    alone = problem._replace(expected_per_s=expected)
    served = serve(requests, Nitsum(), alone, hardware)
    stays = [
        (serve(requests, each, alone, hardware).good_per_s(20, 60), each.plan)
        for each in BestStatic().candidates(alone, np.full((60, 2), (35.0, 0.0)))
    ]
    assert served.good_per_s(20, 60) == max(stays)[0]
    assert served.plans[-1][1] == max(stays)[1] and served.plans[-1][0] < 20
    assert (len(served.plans) == 1) == (expected[0] > 1)


def test_a_switch_that_costs_very_much_is_never_made_and_one_that_costs_little_pays(hardware, problem):
    first, second = mixed_requests((16.0, 1.0), 30.0), mixed_requests((1.0, 16.0), 30.0, 1)
    requests = requests_at(
        *zip(
            [*first.arrival_s, *(second.arrival_s + 30.0)], [*first.tier, *second.tier],
            [*first.prompt_tokens, *second.prompt_tokens], [*first.output_tokens, *second.output_tokens], strict=True,
        )
    )  # fmt: skip
    begins = problem._replace(expected_per_s=(16.0, 1.0))
    for_nothing, costly = (serve(requests, Nitsum(), begins._replace(switch_s=each), hardware) for each in (0.0, 1e4))
    assert len(costly.plans) == 1 < len(for_nothing.plans)
    assert for_nothing.good_per_s(30, 60) > 1.05 * costly.good_per_s(30, 60)
