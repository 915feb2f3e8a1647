"""Plans that stay, groups that change hands, and hindsight."""

import numpy as np

from wavetank.serving.tiers.interface import ANY_TIER, PREFILL, Group, WindowView, check_plan
from wavetank.serving.tiers.nitsum import Nitsum
from wavetank.serving.tiers.planning import exact
from wavetank.serving.tiers.rivals import (
    BestStatic,
    Clairvoyant,
    FixedPlan,
    Following,
    QueueThreshold,
    RolesApart,
    TiersApart,
    UniformDeadlines,
)


def test_the_candidates_of_the_best_static_plan_fit_and_begin_with_the_best_for_constant_arrivals(problem):
    arrived = np.full((10, 2), 1e3)
    found = BestStatic().candidates(problem, arrived)
    assert 1 < len(found) == len({each.plan for each in found})
    for each in found:
        check_plan(each.plan, problem.gpus, 8)
        assert not each.rules.full_copy and each.rules.checked
    served = sum(unit.per_s for unit in exact(problem.sliced, (1e3, 1e3), problem.gpus))
    by_group = {}
    for unit in problem.sliced:
        by_group.setdefault((unit.tier, unit.tp), unit.per_s)
    assert sum(by_group[group.tier, group.tp] for group in found[0].plan) <= served + 1e-9


def test_a_fixed_plan_stays(problem):
    first = BestStatic().candidates(problem, np.full((10, 2), 5.0))[0]
    plan, state = first.begin(problem)

    class View:
        pass

    View.plan = plan
    assert first.decide(View, state) is plan


def test_uniform_degrees_use_all_gpus_for_all_tiers_by_deadline(problem):
    found = UniformDeadlines().candidates(problem, np.zeros((1, 2)))
    assert [each.plan[0].tp for each in found] == [1, 2, 4]
    for each in found:
        assert sum(group.tp for group in each.plan) == 4
        assert {group.tier for group in each.plan} == {ANY_TIER}
        assert each.rules.by_deadline and not each.rules.checked


def test_tiers_apart_give_every_tier_whole_groups_of_one_degree_and_keep_its_requests_there(problem):
    found = TiersApart().candidates(problem, np.full((10, 2), 10.0))
    for each in found:
        check_plan(each.plan, problem.gpus, 8)
        assert {group.tier for group in each.plan} == {0, 1}
        assert not each.rules.spills and not each.rules.checked
        for tier in (0, 1):
            assert len({group.tp for group in each.plan if group.tier == tier}) == 1


def test_roles_apart_try_every_ratio_of_every_degree(problem):
    found = RolesApart().candidates(problem, np.zeros((1, 2)))
    ratios = [(plan[0].tp, sum(group.role == PREFILL for group in plan)) for plan in (each.plan for each in found)]
    assert ratios == [(1, 1), (1, 2), (1, 3), (2, 1)]
    for each in found:
        check_plan(each.plan, problem.gpus, 8)


def test_a_long_queue_gets_a_group_of_the_tier_that_waits_least_and_then_rests(problem):
    policy = QueueThreshold(longest=2.0, rest=3)
    plan, state = policy.begin(problem)
    plan = (Group(0, 1), Group(0, 1), Group(1, 1), Group(1, 1))

    def view(waiting):
        return WindowView(1, np.zeros(2, np.int64), np.array(waiting), 0.0, plan)

    assert policy.decide(view((1, 1)), state) == plan
    assert policy.decide(view((0, 9)), state) == (Group(0, 1), Group(1, 1), Group(1, 1), Group(1, 1))
    assert [policy.decide(view((0, 9)), state) == plan for _ in range(4)] == [True, True, True, False]
    state["rested"] = 99
    assert policy.decide(view((9, 9)), state) == plan


def test_following_runs_its_plans_one_a_window_and_keeps_the_last(problem):
    plans = ((Group(0, 4),), (Group(1, 4),))
    policy = Following(plans=plans)
    assert policy.begin(problem)[0] == plans[0]
    for window, plan in ((1, plans[1]), (2, plans[1]), (50, plans[1])):
        assert policy.decide(WindowView(window, np.zeros(2), np.zeros(2), 0.0, plans[0]), None) == plan


def test_the_clairvoyant_has_every_plan_that_stays_nitsum_and_plans_that_follow_what_comes(problem):
    arrived = np.zeros((20, 2))
    arrived[:10, 0], arrived[10:, 1] = 30.0, 30.0
    found = Clairvoyant(seconds=(3,)).hindsight(problem, arrived)
    stays = [each.plan for each in BestStatic().candidates(problem, arrived)]
    assert [each.plan for each in found if isinstance(each, FixedPlan)] == stays
    assert Nitsum() in found
    for each in found:
        if isinstance(each, Following):
            begins, ends = (
                [sum(group.tp for group in plan if group.tier == tier) for tier in (0, 1)]
                for plan in (each.plans[0], each.plans[-1])
            )
            assert begins[0] > ends[0] and begins[1] < ends[1]
