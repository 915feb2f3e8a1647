"""The study that trains for real: on-policy tasks learn exactly what they learn alone."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError
from wavetank.training.tenants.marlaas import Marlaas
from wavetank.training.tenants.rivals import LockStep, OneByOne, OutOfPhase
from wavetank.training.tenants.study_learning import TenantLearning

STUDY = TenantLearning(tasks=3, updates=4, groups=2, group=4, delay_s=0.0005, episodes=16)


def figures(system, study=STUDY, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


def test_on_policy_all_ways_to_serve_give_the_same_rewards():
    found = [
        figures(system) for system in (OneByOne(), OutOfPhase(), OutOfPhase(adapters=1), LockStep(), Marlaas(s_max=0))
    ]
    for name in ("final_reward", "worst_task_reward"):
        assert len({each[name,] for each in found}) == 1
    for each in found:
        assert (each["too_old",], each["foreign_changes",], each["base_changes",], each["stale_updates",]) == (
            0,
            0,
            0,
            0,
        )


def test_old_answers_are_counted_and_stay_young_enough():
    found = figures(Marlaas(s_max=2))
    assert 0 < found["stale_updates",] <= 2
    assert found["too_old",] == 0
    kinds = [found["reward_by_kind", kind] for kind in ("bandit", "arithmetic", "grid")]
    assert sum(kinds) / 3 == pytest.approx(found["final_reward",])


def test_more_updates_learn_more():
    longer = TenantLearning(tasks=3, updates=20, delay_s=0.0, episodes=32)
    assert figures(Marlaas(), longer)["final_reward",] > figures(Marlaas())["final_reward",] + 0.1


def test_a_run_without_end_is_refused():
    with pytest.raises(BadValueError, match="very long"):
        TenantLearning(tasks=256, updates=1000).check()
    STUDY.check()
    assert "rank 4" in STUDY.notes()[0]
