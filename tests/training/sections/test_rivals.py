"""Each rule by hand, the re-planned first stage against all of its choices, and the solver against all orders."""

from itertools import permutations

import numpy as np
import pytest
from tests.training.sections.by_the_clock import walked
from tests.training.sections.test_simulate import random_flow
from tests.training.sections.test_workload import batch

from wavetank.errors import BadValueError
from wavetank.training.sections.interface import step
from wavetank.training.sections.maestro import Maestro
from wavetank.training.sections.rivals import (
    ORDERS,
    OneConfiguration,
    Optimum,
    Ordered,
    as_given,
    best_schedule,
    johnson_order,
    longest_first_order,
    neh_order,
    round_robin,
    static_rule,
)
from wavetank.training.sections.simulate import UNBOUNDED, Flow

FIVE = Flow(
    forward_ps=np.array([[9, 0, 3, 0, 5]]), critical_ps=np.array([2, 4, 6, 8, 1]),
    backward_ps=np.array([[18, 0, 6, 0, 10]]),
)  # fmt: skip


def test_rules_order_samples_as_they_say():
    assert as_given(FIVE).tolist() == [0, 1, 2, 3, 4]
    assert static_rule(FIVE).tolist() == [1, 2, 4, 0, 3]
    assert round_robin(FIVE).tolist() == [1, 0, 3, 2, 4]
    assert longest_first_order(FIVE).tolist() == [0, 4, 2, 3, 1]
    assert johnson_order(FIVE).tolist() == [1, 3, 2, 0, 4]
    assert sorted(neh_order(FIVE).tolist()) == [0, 1, 2, 3, 4]


def test_rules_have_the_sections_of_ours_and_the_same_queue_unless_it_is_deep():
    given = batch(images=0.5, work=0.9)
    for rule in ORDERS:
        plan = Ordered(rule=rule).plan(given)
        assert (plan.layout, plan.queue) == ("sections", 4)
        assert step(given, plan).gpus == step(given, Maestro().plan(given)).gpus
    assert Ordered(deep=True).plan(given).queue == UNBOUNDED


def test_a_first_stage_that_gives_layers_away_is_as_good_as_its_best_choice():
    given = batch(images=0.5, work=1.0)
    fixed, replanned, reordered = (
        step(given, each.plan(given)).time_ps
        for each in (
            OneConfiguration(), OneConfiguration(replanned=True), OneConfiguration(replanned=True, reordered=True)
        )
    )  # fmt: skip
    assert reordered <= replanned < 0.8 * fixed
    # Stage and encoder one after another are the whole work of that stage.
    assert fixed >= (given.critical_ps.sum() + 3 * given.forward_ps.sum()) / given.ranks
    texts = batch(images=0.0)
    took = step(texts, OneConfiguration(replanned=True).plan(texts)).time_ps
    assert 1.0 <= took * texts.ranks / texts.critical_ps.sum() < 1.06


def test_a_solver_is_as_good_as_the_best_order_or_better():
    pytest.importorskip("ortools", reason="needs the library ortools")
    for seed in range(4):
        flow = random_flow(seed, 5, images=0.6)
        parts = [each.tolist() for each in (flow.forward_ps, flow.critical_ps, flow.backward_ps)]
        best = min(walked(*parts, list(order), 0) for order in permutations(range(5)))
        order, bound = best_schedule(flow)
        assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
        assert flow.bound_ps <= bound <= best


def test_a_solver_plans_few_samples_and_refuses_many():
    pytest.importorskip("ortools", reason="needs the library ortools")
    few = batch(images=0.5, work=0.9, per_rank=6)
    ours, best = (step(few, each.plan(few)).time_ps for each in (Maestro(), Optimum()))
    assert best <= 1.1 * ours
    with pytest.raises(BadValueError, match="few samples"):
        Optimum().plan(batch())
