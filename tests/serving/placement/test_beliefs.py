"""What planners believe."""

import numpy as np
import pytest

from wavetank.serving.placement.beliefs import (
    FEATURES,
    Distilled,
    Formula,
    MemoryOnly,
    WithoutAdapters,
    features,
    plain_capacity_per_s,
)
from wavetank.serving.placement.twin import capacity_per_s


def test_the_features_of_a_known_set(problem):
    some = problem(3.0, 1.0, ranks=(8, 32))
    row = dict(zip(FEATURES, features(some, some.adapters, [1])[0], strict=True))
    assert row["adapters"] == 2 and row["slots"] == 1 and row["slots_per_adapter"] == 0.5
    assert row["width"] == 32 and row["mean_rank"] == 14.0
    assert row["effective_adapters"] == pytest.approx(1 / (0.75**2 + 0.25**2))
    assert row["largest_share"] == row["resident_share"] == 0.75


@pytest.mark.parametrize("belief", [Distilled(), Formula()])
@pytest.mark.parametrize("count", [1, 8, 64])
def test_beliefs_are_near_the_twin_on_plain_sets(problem, belief, count):
    some = problem(*[1.0] * count)
    said = belief.capacity_per_s(some, some.adapters, [count])[0]
    assert said == pytest.approx(capacity_per_s(some, some.adapters, count), rel=0.35)


@pytest.mark.parametrize("belief", [Distilled(), Formula()])
def test_more_adapters_and_fewer_slots_are_believed_to_cost(problem, belief):
    few, many = problem(*[1.0] * 4), problem(*[1.0] * 128)
    assert belief.capacity_per_s(few, few.adapters, [4])[0] > 1.2 * belief.capacity_per_s(many, many.adapters, [128])[0]


def test_fewer_slots_than_adapters_are_known_to_cost(problem):
    many = problem(*[1.0] * 128)
    one, all_ = Distilled().capacity_per_s(many, many.adapters, [1, 128])
    assert one < all_


def test_rates_count_in_proportion(problem):
    for belief in (Distilled(), Formula()):
        a = belief.capacity_per_s(problem(1.0, 2.0), problem(1.0, 2.0).adapters, [2])
        b = belief.capacity_per_s(problem(0.1, 0.2), problem(0.1, 0.2).adapters, [2])
        assert a == pytest.approx(b)


def test_what_knows_less_believes_more(problem):
    many = problem(*[0.01] * 64)
    assert WithoutAdapters().capacity_per_s(many, many.adapters, [64])[0] == plain_capacity_per_s(many.model)
    assert plain_capacity_per_s(many.model) > capacity_per_s(many, many.adapters, 64)
    assert np.isinf(MemoryOnly().capacity_per_s(many, many.adapters, [64])[0])
    tight = problem(*[0.01] * 64, headroom=0.1)
    assert MemoryOnly().capacity_per_s(tight, tight.adapters, [64])[0] == 0
