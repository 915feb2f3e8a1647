"""Nitsum: when it switches."""

import numpy as np
import pytest
from tests.serving.tiers.conftest import mixed_requests

from wavetank.serving.tiers.fleet import serve
from wavetank.serving.tiers.interface import Problem, Unit, WindowView
from wavetank.serving.tiers.nitsum import Nitsum

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


def test_one_tier_under_constant_load_settles(hardware, problem):
    requests = mixed_requests((14.0, 0.0), 60.0)
    alone = problem._replace(expected_per_s=(14.0, 0.01))
    served = serve(requests, Nitsum(), alone, hardware)
    assert served.good_per_s(10, 60) > 0.9 * (requests.arrival_s >= 10).sum() / 50
    assert not [at for at, _ in served.plans if at > 30]
