"""Predictors of runs with many adapters: what each takes into account."""

import pytest

from wavetank.serving.adapters.lora_fidelity import METRICS, Configuration, cluster, predict
from wavetank.serving.adapters.lora_models import lora_model
from wavetank.serving.adapters.predictors import BlindToAdapters, FittedCosts, PublishedCosts, PublishedTwin

LLAMA = lora_model("llama-3.1-8b-instruct", 1.0, 1.0)


def configuration(**more):
    given = {
        "row": 1, "model": LLAMA, "subset": "test", "slots": 8, "served_adapters": 16, "max_rank": 32,
        "rates_per_s": (0.02,), "ranks": (8, 32), "kv_capacity_tokens": 280_000, "outcome": "ok",
        "measured": tuple((name, 1.0) for name in METRICS),
    }  # fmt: skip
    return Configuration(**{**given, **more})


def test_the_published_costs_double_a_step_and_add_a_share_for_every_adapter():
    # 8 requests with 8 adapters: (0.0438 * 8 + 10.54) ms * (200 + 1.93 * 8) %.
    step = cluster(configuration(), LLAMA.published).step_time
    factor = 1 + LLAMA.published.percent_per_adapter * 8 / 100
    assert step.seconds(8, 0) * factor == pytest.approx((0.0438 * 8 + 10.54) * 1e-3 * (2 + 0.0193 * 8))


def test_fitted_and_published_costs_are_what_the_simulator_is_given():
    case = configuration()
    assert FittedCosts().predict(case, 3) == predict(case, 3, LLAMA.costs)
    assert PublishedCosts().predict(case, 3) == predict(case, 3, LLAMA.published)


def test_a_predictor_that_is_blind_sees_no_difference_in_slots_and_the_others_do():
    few, many = (configuration(slots=slots, served_adapters=64, rates_per_s=(0.05,)) for slots in (1, 64))
    assert BlindToAdapters().predict(few, 0) == BlindToAdapters().predict(many, 0)
    assert FittedCosts().predict(few, 0)["ttft_mean_s"] > 2 * FittedCosts().predict(many, 0)["ttft_mean_s"]


def test_more_adapters_in_every_batch_make_its_steps_longer():
    case = configuration()
    short, long = (BlindToAdapters(adapters=n).predict(case, 0)["tpot_mean_s"] for n in (0, 64))
    assert long > 1.5 * short


def test_of_a_model_of_which_nothing_was_published_nothing_is_said():
    assert PublishedCosts().predict(configuration(model=lora_model("gemma-9", 200.0, 200.0)), 0) == {}


def test_the_published_twin_says_what_was_published_and_nothing_of_other_configurations():
    known = {"throughput_tokens_per_s": 400.0}
    said = PublishedTwin().predict(configuration(twin=tuple(known.items())), 0)
    assert said == known
    assert PublishedTwin().predict(configuration(), 0) == {}
