"""Predictors of runs with many adapters: what each takes into account."""

import math

import pytest

from wavetank.serving.adapters import predictors as lora_predictors
from wavetank.serving.adapters.lora_fidelity import FITTED, METRICS, Configuration, predict
from wavetank.serving.adapters.predictors import (
    PUBLISHED,
    BlindToAdapters,
    FittedCosts,
    PublishedCosts,
    PublishedTwin,
)


def configuration(**more):
    given = {
        "row": 1, "subset": "test", "slots": 8, "served_adapters": 16, "max_rank": 32, "rates_per_s": (0.02,),
        "ranks": (8, 32), "kv_capacity_tokens": 280_000, "outcome": "ok",
        "measured": tuple((name, 1.0) for name in METRICS),
    }  # fmt: skip
    return Configuration(**{**given, **more})


def test_the_published_costs_double_a_step_and_add_a_share_for_every_adapter():
    # 8 requests with 8 adapters: (0.0438 * 8 + 10.54) ms * (200 + 1.93 * 8) %.
    step = PUBLISHED.cluster(configuration()).step_time
    factor = 1 + PUBLISHED.percent_per_adapter * 8 / 100
    assert step.seconds(8, 0) * factor == pytest.approx((0.0438 * 8 + 10.54) * 1e-3 * (2 + 0.0193 * 8))


def test_fitted_and_published_costs_are_what_the_simulator_is_given():
    case = configuration()
    assert FittedCosts().predict(case, 3) == predict(case, 3, costs=FITTED)
    assert PublishedCosts().predict(case, 3) == predict(case, 3, costs=PUBLISHED)


def test_a_predictor_that_is_blind_sees_no_difference_in_slots_and_the_others_do():
    few, many = (configuration(slots=slots, served_adapters=64, rates_per_s=(0.05,)) for slots in (1, 64))
    assert BlindToAdapters().predict(few, 0) == BlindToAdapters().predict(many, 0)
    assert FittedCosts().predict(few, 0)["ttft_mean_s"] > 2 * FittedCosts().predict(many, 0)["ttft_mean_s"]


def test_more_adapters_in_every_batch_make_its_steps_longer():
    case = configuration()
    short, long = (BlindToAdapters(adapters=n).predict(case, 0)["tpot_mean_s"] for n in (0, 64))
    assert long > 1.5 * short


def test_the_published_twin_says_what_was_published_and_nothing_of_other_configurations(monkeypatch):
    known = {"throughput_tokens_per_s": 400.0}
    monkeypatch.setattr(lora_predictors, "twin_figures", lambda case: known if case.slots == 8 else {})
    said = PublishedTwin().predict(configuration(), 0)
    assert said == known
    said["throughput_tokens_per_s"] = math.nan
    assert PublishedTwin().predict(configuration(), 0) == {"throughput_tokens_per_s": 400.0}
    assert PublishedTwin().predict(configuration(slots=16), 0) == {}
