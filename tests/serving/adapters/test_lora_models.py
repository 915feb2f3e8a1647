"""What ships of models with adapters."""

import math
from dataclasses import astuple, replace

import pytest

from wavetank.serving.adapters.lora_models import (
    known_models,
    lora_model,
    models_with_lengths,
    shipped_costs,
    with_memory,
)


def test_every_model_that_ships_has_its_longest_context_and_loading_times():
    assert set(models_with_lengths()) <= set(known_models())
    for name in known_models():
        model = lora_model(name, 100.0, 50.0)
        assert model.longest_context_tokens > 1000
        assert 0 < model.load_s < 1
        assert model.published is not None
        assert (model.costs is not None) == (name in models_with_lengths())


def test_lengths_that_do_not_ship_are_those_that_are_given():
    known, other = (lora_model(name, 100.0, 50.0) for name in ("llama-3.1-8b-instruct", "qwen-2.5-7b-instruct"))
    assert (known.lengths.prompt_mean_tokens, known.lengths.output_mean_tokens) == (223.0, 195.0)
    assert (other.lengths.prompt_mean_tokens, other.lengths.output_mean_tokens) == (100.0, 50.0)
    assert other.lengths.longest_total_tokens == known.lengths.longest_total_tokens == 2048


def test_of_an_unknown_model_there_is_nothing_but_its_lengths_and_the_loading_of_another():
    model = lora_model("gemma-9", 100.0, 50.0)
    assert (model.costs, model.published, model.longest_context_tokens) == (None, None, None)
    assert model.load_s == lora_model(known_models()[0], 1.0, 1.0).load_s


def test_published_costs_are_a_factor_on_a_plain_step():
    costs = lora_model("qwen-2.5-7b-instruct", 1.0, 1.0).published
    assert costs.overhead_s == pytest.approx(1.777 * 10.62e-3)
    assert costs.overhead_s * costs.percent_per_adapter == pytest.approx(1.669 * 10.62e-3)


def test_costs_where_a_fit_starts_are_all_known():
    assert all(0 < value < math.inf for value in astuple(shipped_costs()))


def test_long_answers_make_up_for_short_ones():
    lengths = lora_model("gemma-9", 100.0, 50.0).lengths
    few = replace(lengths, shortest_tokens=4, short_longest_tokens=32, short_share=0.25)
    # A fourth of 28 / ln 8 tokens on average.
    assert few.long_mean_tokens == pytest.approx((50 - 0.25 * 28 / math.log(8)) / 0.75)
    assert replace(few, short_share=0.0).long_mean_tokens == 50.0
    assert replace(few, output_mean_tokens=1.0).long_mean_tokens == 4.0


def test_the_memory_of_the_runs_is_added():
    assert with_memory(lora_model("gemma-9", 1.0, 1.0), (3.0, 2.0, 1.0)).memory == (3.0, 2.0, 1.0)
