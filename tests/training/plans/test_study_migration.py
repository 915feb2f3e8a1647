"""The study of moving experts: even loads need nothing, drift is drawn as asked, and time is counted on both sides."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.plans.migration import Reshuffle, Stay, Swaps
from wavetank.training.plans.study_migration import ExpertBalance

SMALL = {"experts": 32, "ranks": 4, "steps": 200, "half_lives": (5.0,)}


def figures(system, seed=0, **words):
    return {
        (name, *at.values()): value for name, value, at in ExpertBalance(**(SMALL | words)).measure(system, seed).rows
    }


def test_time_is_that_of_the_busiest_rank_and_of_moving():
    found = figures(Reshuffle())
    assert found["time_of_even",] == pytest.approx((1 + found["imbalance",]) / (1 - found["moving_share",]))
    assert found["moved",] > 0
    step_s = 65_536 / 4 * 0.5e-6
    moving_s = found["moved",] / 2 * 3e-3
    assert found["moving_share",] == pytest.approx(moving_s / (found["time_of_even",] * 200 * step_s))
    still = figures(Stay())
    assert still["moving_share",] == still["moved",] == 0
    assert still["time_of_even",] == pytest.approx(1 + still["imbalance",])


def test_without_preferences_nothing_moves_and_with_lasting_ones_moving_pays():
    assert figures(Swaps(), zipf=0.0)["moved",] == 0
    lasting = {"half_life_steps": 1e9, "zipf": 1.0}
    assert figures(Swaps(), **lasting)["time_of_even",] < 0.9 * figures(Stay(), **lasting)["time_of_even",]


def test_half_of_the_experts_have_another_popularity_after_a_half_life():
    study = ExpertBalance(experts=512, ranks=4, steps=101, zipf=1.0, tokens=1 << 28)
    kept = []
    for seed in range(4):
        loads = study.loads(seed, 100.0)
        order = [np.argsort(np.argsort(-loads[step])) for step in (0, 100)]
        # Neighbours far down in popularity change by chance: the first ones are looked at.
        first = order[0] < 64
        kept.append(np.mean(order[0][first] == order[1][first]))
    assert np.mean(kept) == pytest.approx(0.5, abs=0.12)


def test_seeds_are_paired_and_steps_have_all_tokens():
    loads = ExpertBalance(**SMALL).loads(3, 50.0)
    assert set(loads.sum(1)) == {65_536}
    assert np.array_equal(loads, ExpertBalance(**SMALL).loads(3, 50.0))
    assert figures(Stay(), 1) == figures(Stay(), 1) != figures(Stay(), 2)


def test_experts_that_ranks_do_not_divide_are_refused():
    with pytest.raises(BadValueError, match="as many experts"):
        ExpertBalance(experts=10, ranks=4).check()
    assert "drawn" in ExpertBalance().notes()[0]
