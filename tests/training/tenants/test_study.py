"""The study: equal work for all, figures of all sweeps, and a gain that is none where there is nothing to gain."""

from __future__ import annotations

import dataclasses

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.training.tenants.marlaas import Marlaas
from wavetank.training.tenants.rivals import Divided, LockStep, OneByOne, OutOfPhase
from wavetank.training.tenants.study import RLTenants

STUDY = RLTenants(tasks=4, updates=3, sweep_updates=2, groups=4, group=4, numbers=(1, 2), delays_s=(0.0, 3.0),
                  ratios=(1.0, 4.0), spreads=(1.0, 8.0), permilles=(0, 50), kvs_ns=(40, 400),
                  most_adapters=(1, 4))  # fmt: skip


def figures(system, study=STUDY, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


def test_equal_seeds_give_equal_figures():
    one, same, other = (figures(Marlaas(), seed=seed) for seed in (1, 1, 2))
    assert one == same != other


def test_every_sweep_has_its_figures():
    found = figures(Marlaas())
    assert {key for key in found if key[0] == "time_by_delay_h"} == {("time_by_delay_h", 0.0), ("time_by_delay_h", 3.0)}
    for metric, places in (("time_by_tasks_h", (1, 2)), ("time_by_ratio_h", (1.0, 4.0)),
                           ("utilisation_by_delay", (0.0, 3.0)), ("time_by_heterogeneity_h", (1.0, 8.0)),
                           ("time_by_adapter_cost_h", (0, 50)), ("time_alone_by_delay_h", (0.0, 3.0)),
                           ("time_by_kv_h", (40, 400)),
                           ("utilisation_by_kv", (40, 400)), ("utilisation_by_ratio", (1.0, 4.0)),
                           ("time_by_most_adapters_h", (1, 4))):  # fmt: skip
        assert all(found[metric, place] > 0 for place in places), metric
    assert found["time_by_adapter_cost_h", 0] < found["time_by_adapter_cost_h", 50]
    assert found["time_by_delay_h", 0.0] < found["time_by_delay_h", 3.0]


def test_marlaas_is_sooner_done_than_tasks_one_by_one_and_its_answers_are_young():
    ours, one = figures(Marlaas()), figures(OneByOne())
    assert ours["time_h",] < one["time_h",] / 1.5
    assert ours["utilisation",] > one["utilisation",]
    assert ours["busy_h",] < one["busy_h",]
    assert (ours["too_old",], one["too_old",]) == (0.0, 0.0)
    assert 0 < ours["stale_updates",] <= 1
    assert one["stale_updates",] == 0
    assert ours["adapters",] > one["adapters",] == 1


def test_without_delays_one_task_on_policy_gains_nothing():
    alone = {
        figures(each)["time_alone_by_delay_h", 0.0] for each in (OneByOne(), OutOfPhase(), LockStep(), Marlaas(s_max=0))
    }
    assert len(alone) == 1
    assert figures(Marlaas())["time_alone_by_delay_h", 0.0] == figures(OneByOne(s_max=1))["time_alone_by_delay_h", 0.0]
    assert figures(Divided())["time_alone_by_delay_h", 0.0] in alone


def test_all_systems_get_the_same_answers():
    one, same = STUDY.workload(3), STUDY.workload(3)
    assert (one.delay_ps == same.delay_ps).all()
    assert sum(figures(Marlaas(), seed=3)["too_old",] for _ in range(1)) == 0


def test_the_constants_are_those_of_the_model_and_the_device():
    machine = STUDY.machine()
    assert machine.train_token_ps == pytest.approx(18 * 8_030_261_248 / (0.35 * 989e12) * 1e12, rel=0.01)
    assert machine.load_ps == 4_194_304_000
    assert machine.read_token_ps == 0
    anew = dataclasses.replace(STUDY, prefixes="read").machine()
    assert anew.read_token_ps == pytest.approx(2 * 8_030_261_248 / (0.35 * 989e12) * 1e12, rel=0.01)
    free = 0.9 * 80 * 2**30 - 2 * 8_030_261_248 - 4 * 83_886_080
    assert machine.kv_tokens == int(free / (32 * 2 * 8 * 128 * 2))


def test_what_cannot_be_run_is_refused():
    for words in ({"shortest_delay_s": 2.0, "longest_delay_s": 1.0}, {"shortest_delay_s": 0.0}):
        with pytest.raises(BadValueError, match="no delays"):
            dataclasses.replace(STUDY, **words).check()
    with pytest.raises(BadValueError, match="does not fit"):
        RLTenants(model="Llama-3.1-70B").check()
    with pytest.raises(UnknownNameError):
        RLTenants(model="Lama").check()
    STUDY.check()
    assert "assumed" in STUDY.notes()[0]
