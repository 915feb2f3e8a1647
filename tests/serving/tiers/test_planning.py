"""Planners: picks by hand, the optimum of full enumeration, and what looser objectives may not do."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.tiers.conftest import TIERS

from wavetank.serving.tiers.interface import Unit
from wavetank.serving.tiers.planning import best_by_gpus, capacities, every_plan, exact, greedy, served_per_s
from wavetank.serving.tiers.profile import units_of

X1, X2 = Unit(0, 1, 0, 0, 2.0), Unit(0, 2, 0, 0, 6.0)
Y1, Y2 = Unit(1, 1, 0, 0, 2.0), Unit(1, 2, 0, 0, 3.0)


def test_greedy_picks_are_those_computed_by_hand_and_as_good_as_the_best():
    picked = greedy((X1, X2, Y1, Y2), (10.0, 3.0), 4)
    assert picked == [X2, Y1, X1]
    assert served_per_s(picked, (10.0, 3.0)) == 10.0
    assert max(served_per_s(plan, (10.0, 3.0)) for plan in every_plan((X1, X2, Y1, Y2), 4)) == 10.0
    assert served_per_s(exact((X1, X2, Y1, Y2), (10.0, 3.0), 4), (10.0, 3.0)) == 10.0


def test_gpus_that_nothing_needs_go_where_capacity_is_scarcest():
    picked = greedy((X2, Y1), (6.0, 0.5), 8)
    assert sum(unit.gpus for unit in picked) == 8
    assert capacities(picked, 2)[0] >= 12.0


UNITS = st.lists(
    st.builds(Unit, st.integers(0, 1), st.sampled_from([1, 2, 4]), st.just(0), st.just(0), st.floats(0.0, 20.0)),
    min_size=1, max_size=5,
)  # fmt: skip


@given(units=UNITS, arrivals=st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 30.0)), gpus=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_the_exact_planner_serves_what_full_enumeration_serves_and_greedy_no_more(units, arrivals, gpus):
    best = max(served_per_s(plan, arrivals) for plan in every_plan(units, gpus))
    found = exact(units, arrivals, gpus)
    assert sum(unit.gpus for unit in found) <= gpus
    assert served_per_s(found, arrivals) == pytest.approx(best, abs=1e-6)
    picked = greedy(units, arrivals, gpus)
    assert sum(unit.gpus for unit in picked) <= gpus
    assert served_per_s(picked, arrivals) <= best + 1e-9


def test_a_tiers_best_use_never_falls_with_more_gpus():
    found = [capacity for capacity, _ in best_by_gpus((X1, X2), 5)]
    assert found == [0.0, 2.0, 6.0, 8.0, 12.0, 14.0]


@pytest.mark.parametrize("loosened", ["ttft_s", "tpot_s"])
@pytest.mark.parametrize("tier", [0, 1])
def test_loosening_an_objective_never_lowers_planned_goodput(hardware, tier, loosened):
    arrivals, before = (40.0, 40.0), 0.0
    for factor in (1.0, 1.3, 2.0, 5.0):
        loose = list(TIERS)
        loose[tier] = replace(TIERS[tier], **{loosened: getattr(TIERS[tier], loosened) * factor})
        units = units_of(hardware.rates(loose, full_copy=True), hardware.gpus)
        served = served_per_s(exact(units, arrivals, hardware.gpus), arrivals)
        assert served >= before - 1e-9
        before = served
    assert before > 0
