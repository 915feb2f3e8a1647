"""Plans that stay."""

import numpy as np

from wavetank.serving.tiers.interface import ANY_TIER, check_plan
from wavetank.serving.tiers.planning import exact
from wavetank.serving.tiers.rivals import BestStatic, UniformDeadlines


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
