"""The study: users first, equal work for all, and settings that cannot be run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.training.rollouts.small import PS, load, rates

import wavetank.training.rollouts.study as study_module
from wavetank.errors import BadValueError, GaveUpError
from wavetank.training.rollouts.interface import Arrangement
from wavetank.training.rollouts.rivals import FixedPool, PackedUsers, SpotGpus
from wavetank.training.rollouts.rose import Rose
from wavetank.training.rollouts.simulate import simulate
from wavetank.training.rollouts.study import RLRollouts, noticed
from wavetank.workloads.generate import generate_requests

STUDY = RLRollouts(steps=2, trajectories=60, serving=2, turn_tokens=60)
MANY = replace(STUDY, trajectories=400)


@pytest.fixture(autouse=True)
def made_users(monkeypatch):
    made = generate_requests(n_requests=1500, rate_per_s=4.0, arrivals="poisson", lengths="conv", seed=1)
    monkeypatch.setattr("wavetank.training.rollouts.study.users", lambda name: made)


def figures(system, study=STUDY, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


def test_equal_seeds_give_equal_figures_and_others_others():
    assert figures(Rose()) == figures(Rose()) != figures(Rose(), seed=1)


def test_dedicated_gpus_alone_add_no_misses_and_are_the_measure_of_gains():
    found = figures(FixedPool())
    assert found["added_misses",] == 0
    assert found["ttft_p99_ratio",] == found["tpot_p99_ratio",] == 1
    assert found["added_gpus",] == 0 and ("gain_per_gpu",) not in found
    rose = figures(Rose())
    gain = rose["steps_per_h",] / found["steps_per_h",] - 1
    assert rose["gain_per_gpu",] == pytest.approx(gain / rose["added_gpus",])
    assert 0 < rose["added_gpus",] <= 2
    assert rose["of_longest",] >= 1


def test_what_is_matched_has_the_gpu_time_that_rose_takes_rounded_up():
    taken = figures(Rose())["added_gpus",]
    assert figures(FixedPool(matched=True))["added_gpus",] == int(np.ceil(taken))
    assert figures(SpotGpus())["added_gpus",] == int(np.ceil(taken))


def test_old_weights_are_counted():
    found = figures(FixedPool(staleness=1))
    assert found["stale_share",] == 0.5
    assert ("rollout_s",) not in found
    assert figures(FixedPool())["stale_share",] == 0


def test_users_are_those_who_came_until_the_end_and_miss_by_either_time():
    users, given_rates = load(3, last_s=5.0), rates(ttft_s=0.05, tpot_s=0.0062)
    run = simulate(Arrangement(), given_rates, users)
    found = noticed(run, users, given_rates, 2 * PS)
    rows = users.arrival_ps <= 2 * PS
    assert found.missed.size == rows.sum()
    for k, r in enumerate(np.flatnonzero(rows)[np.argsort(users.arrival_ps[rows])]):
        ttft_s = (run.first_ps[r] - users.arrival_ps[r]) / PS
        more = users.output_tokens[r] - 1
        tpot_s = (run.last_ps[r] - run.first_ps[r]) / PS / more if more else 0.0
        assert found.missed[k] == (ttft_s > 0.05 or tpot_s > 0.0062)
    assert 0 < found.missed.sum() < found.missed.size
    with pytest.raises(GaveUpError):
        noticed(run._replace(last_ps=np.full_like(run.last_ps, 2**62)), users, given_rates, 2 * PS)


@pytest.mark.parametrize(
    ("several", "field", "values"),
    [
        ("loads", "load", (0.1, 0.6)), ("bursts", "burst", (1.0, 8.0)), ("variations", "variation", (5.0,)),
        ("links_gbit_s", "link_gbit_s", (0.02,)), ("servings", "serving", (1, 3)),
    ],
)  # fmt: skip
def test_further_settings_are_runs_of_their_own(several, field, values):
    base = figures(Rose(), MANY)
    found = figures(Rose(), replace(MANY, **{several: values}))
    assert found["steps_per_h",] == base["steps_per_h",]
    for value in values:
        alone = figures(Rose(), replace(MANY, **{field: value}))
        assert found[f"steps_by_{field}_per_h", value] == alone["steps_per_h",]
        assert found[f"added_misses_by_{field}", value] == alone["added_misses",]
        assert alone["rollout_s",] != base["rollout_s",]


def test_serving_gpus_that_are_taken_serve_nobody_and_the_others_all():
    study = replace(MANY, load=0.5)
    fixed, found = figures(FixedPool(), study), figures(PackedUsers(share=1.0), study)
    assert found["added_gpus",] == 1
    assert found["steps_per_h",] > fixed["steps_per_h",]
    # Half of saturation on two GPUs is saturation on the one that is left.
    assert found["added_misses",] > 0.5 * 100
    assert found["ttft_p99_ratio",] > 2
    # Nobody notices where there is nothing to hand over.
    none = figures(PackedUsers(share=0.5), replace(study, load=0.51))
    assert (none["added_gpus",], none["added_misses",], none["ttft_p99_ratio",]) == (0, 0, 1)


def test_somebody_serves_users():
    class Greedy:
        def arrange(self, view):
            return Arrangement(taken_gpus=view.serving_gpus)

    with pytest.raises(BadValueError, match="serve users"):
        STUDY.measure(Greedy(), 0)


@pytest.mark.parametrize("governor", ["slack", "interleave"])
def test_users_come_until_the_last_step_however_long_it_takes(governor, monkeypatch):
    class Slow:
        def arrange(self, view):
            return Arrangement(governor=governor)

    # Drawn for a twentieth of the time first, they would have been gone long before the end.
    plain = figures(Slow())
    for cached in (study_module._run, study_module._users, study_module._alone):
        cached.cache_clear()
    monkeypatch.setattr(study_module, "_TIMES", 0.05)
    assert figures(Slow()) == plain
    monkeypatch.setattr(study_module, "_MOST_TIMES", 0.2)
    study_module._run.cache_clear()
    with pytest.raises(GaveUpError, match="as long as"):
        STUDY.measure(Slow(), 0)
    for cached in (study_module._run, study_module._users, study_module._alone):
        cached.cache_clear()


def test_rates_are_those_of_models_and_devices():
    found = STUDY.rates()
    assert found.weight_elements == 8_030_261_248
    assert found.own_pool_bytes == 452_033 * 131_072
    assert found.shared_pool_bytes == found.own_pool_bytes - 2 * 8_030_261_248
    assert found.link_bytes_per_s == 2.5e9
    assert "6.4 s" in STUDY.notes()[1]


def test_settings_that_cannot_be_run_are_refused(monkeypatch):
    monkeypatch.setattr("wavetank.training.rollouts.study.datasets.find", lambda *names: None)
    STUDY.check()
    with pytest.raises(BadValueError, match="do not fit"):
        RLRollouts(rollout_model="Qwen3-32B", serving_model="Qwen3-32B", tensor=2, device="L40S").check()
    with pytest.raises(BadValueError, match="least start"):
        RLRollouts(spot_start_s=(300.0, 60.0)).check()
    assert len(STUDY.data()["azure-conv-2023"]) == 64
