"""Plans."""

import itertools
import math

import pytest

from wavetank.serving.placement.beliefs import plain_capacity_per_s
from wavetank.serving.placement.interface import NO_DEVICE, NO_GPU, TOO_MUCH, Gpu
from wavetank.serving.placement.packing import Dealt, Fewest, Packing, starving
from wavetank.serving.placement.twin import judge

PLANNERS = {
    "distilled": Packing(),
    "verified": Packing(verify=True),
    "formula": Packing(believes="formula"),
    "rate": Packing(believes="without-adapters", slots="resident"),
    "most": Packing(believes="without-adapters", slots="most"),
    "memory": Packing(believes="memory", slots="resident", order="given"),
    "rank": Packing(order="rank"),
    "twin": Fewest(),
    "dealt": Dealt(),
    "random": Dealt(shuffled=True, seed=3),
}


@pytest.mark.parametrize("name", PLANNERS)
class TestEveryPlanner:
    def test_places_every_adapter_once(self, problem, name):
        some = problem(*[0.05 * (1 + i % 7) for i in range(40)], ranks=(8, 16, 32))
        plan = PLANNERS[name].plan(some)
        plan.check(some)
        assert plan.feasible

    def test_is_deterministic(self, problem, name):
        some = problem(*[0.1 * (1 + i % 5) for i in range(20)])
        assert PLANNERS[name].plan(some) == PLANNERS[name].plan(some)

    def test_says_which_adapters_fit_nowhere(self, problem, name):
        some = problem(0.1, 0.2, 0.3, ranks=(8, 999, 8))
        plan = PLANNERS[name].plan(some)
        plan.check(some)
        assert plan.unplaced == {"a1": NO_DEVICE} and not plan.feasible

    def test_keeps_to_the_gpus_there_are(self, problem, name):
        some = problem(*[1.0] * 60, gpus=2)
        plan = PLANNERS[name].plan(some)
        plan.check(some)
        assert len(plan.gpus) <= 2


@pytest.mark.parametrize("name", ["distilled", "verified", "formula", "rate", "twin"])
def test_an_adapter_that_is_too_much_for_one_gpu_is_named(problem, name):
    plan = PLANNERS[name].plan(problem(0.1, 500.0))
    assert plan.unplaced == {"a1": TOO_MUCH}


def test_adapters_beyond_the_gpus_there_are_get_none(problem):
    for name in ("distilled", "twin"):
        some = problem(*[1.0] * 60, gpus=1)
        plan = PLANNERS[name].plan(some)
        plan.check(some)
        assert set(plan.unplaced.values()) == {NO_GPU} and len(plan.gpus) == 1
        assert 10 < len(plan.gpus[0].adapters) < 50


def test_no_gpu_starves_in_a_plan_that_was_tried(problem):
    for seed in range(3):
        rates = [0.05 * (1 + (i * 7 + seed * 3) % 11) for i in range(50)]
        plan = Packing(verify=True).plan(problem(*rates, ranks=(8, 32)))
        assert not starving(problem(*rates, ranks=(8, 32)), plan, 1_000)


def test_what_ignores_adapters_starves(problem):
    some = problem(*[0.1] * 200)
    assert starving(some, Packing(believes="without-adapters", slots="resident").plan(some), 5)
    assert not starving(some, Packing(verify=True).plan(some), 1_000)


def test_no_plan_without_starving_is_below_the_bound(problem):
    some = problem(*[0.2] * 100)
    plan = Fewest().plan(some)
    assert len(plan.gpus) >= math.ceil(20.0 / plain_capacity_per_s(some.model))


def test_less_headroom_takes_more_gpus(problem):
    for planner in (Packing(), Packing(believes="formula"), Dealt(), Fewest(),
                    Packing(believes="memory", slots="resident")):  # fmt: skip
        rates = [0.2] * 60
        assert len(planner.plan(problem(*rates, headroom=0.15)).gpus) > len(planner.plan(problem(*rates)).gpus)


def test_a_target_for_the_time_between_tokens_spreads_adapters(problem):
    rates = [0.15] * 48
    free = Packing(verify=True).plan(problem(*rates))
    target_s = 0.7 * max(judge(problem(*rates), gpu, 1_000).itl_mean_s for gpu in free.gpus)
    bound = problem(*rates, itl_target_s=target_s)
    plan = Packing(verify=True).plan(bound)
    assert len(plan.gpus) > len(free.gpus)
    assert all(judge(bound, gpu, 1_000).itl_mean_s <= target_s for gpu in plan.gpus)


@pytest.mark.slow
def test_beside_exact_packing_on_small_sets(problem):
    """Every partition of five heavy adapters is tried with the twin: packing needs at most one GPU more."""
    for rates in ((3.0, 2.5, 2.0, 1.5, 1.0), (4.0, 1.0, 1.0, 1.0, 1.0), (2.0, 2.0, 2.0, 2.0, 2.0)):
        some = problem(*rates, ranks=(8, 16))
        names = [each.name for each in some.adapters]

        def keeps_up(group, some=some):
            return any(
                some.fed(judge(some, Gpu(adapters=tuple(group), slots=slots), 1_000)) for slots in some.choices(16)[:4]
            )

        best = min(
            count
            for count in range(1, 6)
            for dealt in itertools.product(range(count), repeat=5)
            if all(
                keeps_up(group)
                for i in range(count)
                if (group := [name for name, at in zip(names, dealt, strict=True) if at == i])
            )
        )
        for planner in (Packing(verify=True), Fewest()):
            plan = planner.plan(some)
            assert not starving(some, plan, 1_000)
            assert best <= len(plan.gpus) <= best + 1
