"""The length predictor: known means and variances are found, shifts are followed, memory is bounded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wavetank.serving import Cluster, simulate
from wavetank.serving.proxy.length_predictor import LengthPredictor
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.workloads.requests import RequestTrace


def test_the_weighted_mean_and_variance_are_those_of_the_definition() -> None:
    draw = np.random.default_rng(3)
    values = draw.integers(1, 1000, 60)
    predictor = LengthPredictor(memory=20.0)
    for value in values.tolist():
        predictor.learn(100, value)
    weights = np.exp(-np.arange(59, -1, -1) / 20.0)
    mean = np.average(values, weights=weights)
    variance = (weights * (values - mean) ** 2).sum() / (weights.sum() - (weights**2).sum() / weights.sum())
    expected, spread = predictor.estimate(100)
    assert expected == pytest.approx(mean, rel=1e-12)
    assert spread == pytest.approx(math.sqrt(variance), rel=1e-12)


def test_a_known_stream_is_learned_and_a_shift_followed() -> None:
    draw = np.random.default_rng(7)
    predictor = LengthPredictor(memory=300.0)
    for value in draw.normal(200.0, 30.0, 4000):
        predictor.learn(64, value)
    expected, spread = predictor.estimate(64)
    # Of about 600 values that count: 3 standard errors.
    assert expected == pytest.approx(200.0, abs=3 * 30 / math.sqrt(600))
    assert spread == pytest.approx(30.0, rel=3 / math.sqrt(1200))
    for value in draw.normal(800.0, 30.0, 300):
        predictor.learn(64, value)
    # An old value counts a third by now, between the two.
    assert predictor.estimate(64)[0] == pytest.approx(800 - 600 / math.e, abs=10)
    for value in draw.normal(800.0, 30.0, 3000):
        predictor.learn(64, value)
    expected, spread = predictor.estimate(64)
    assert expected == pytest.approx(800.0, abs=4)
    assert spread == pytest.approx(30.0, rel=0.1)


def test_models_and_lengths_have_their_own_cells_and_fall_back() -> None:
    predictor = LengthPredictor(enough=5)
    assert all(math.isnan(each) for each in predictor.estimate(10))
    for _ in range(5):
        predictor.learn(1000, 7, "a")
        predictor.learn(20, 70, "a")
    predictor.learn(1000, 99, "b")
    assert predictor.estimate(1023, "a") == (pytest.approx(7.0), 0.0)
    assert predictor.estimate(31, "a") == (pytest.approx(70.0), 0.0)
    # Another length: all of the model.  Too little of a model, or none: all there are.
    of_model, of_all = predictor.estimate(5000, "a")[0], predictor.estimate(1000, "b")[0]
    assert 38 < of_model < 39
    assert 43 < of_all < 45
    assert predictor.estimate(1000, "never")[0] == of_all
    assert predictor.estimate(31, "a", 10.0)[0] == 10.0
    assert predictor.estimate(31, "a", 100.0)[0] == pytest.approx(70.0)
    assert math.isnan(LengthPredictor().estimate(1, "", 10.0)[0])


def test_memory_is_bounded_whatever_comes() -> None:
    predictor = LengthPredictor(most_cells=100)
    for number in range(5000):
        predictor.learn(number + 1, 10, f"model-{number}")
        predictor.learn(0, 10, "x" * 1_000_000)
    assert len(predictor) <= 100
    assert predictor.estimate(10, "x" * 1_000_000) == (pytest.approx(10.0), 0.0)


def test_a_past_trace_predicts_the_next_one_for_a_simulation() -> None:
    draw = np.random.default_rng(11)
    codes = draw.integers(0, 2, 400)

    def trace(outputs: np.ndarray) -> RequestTrace:
        return RequestTrace(
            arrival_s=np.arange(400) * 0.05, prompt_tokens=np.where(np.arange(400) % 2, 100, 3000),
            output_tokens=outputs, model=codes, model_names=("a", "b"),
            max_tokens=np.where(np.arange(400) < 100, 30, 0),
        )  # fmt: skip

    past = trace(np.where(codes == 0, 50, 10))
    predictor = LengthPredictor()
    predictor.fit(past)
    coming = trace(np.ones(400, np.int64))
    expected, spread = predictor.predict(coming)
    assert expected == pytest.approx(
        np.minimum(np.where(codes == 0, 50.0, 10.0), np.where(np.arange(400) < 100, 30, 99))
    )
    assert spread == pytest.approx(0.0)
    # Nothing was learned of what was predicted.
    assert (predictor.predict(coming)[0] == expected).all()
    seen = []

    class Watching(RoundRobin):
        def choose(self, view, arrival, state, parameters):  # type: ignore[no-untyped-def]
            seen.append(arrival.expected_output_tokens)
            return 0

    simulate(coming, Cluster(workers=2), Watching(), expected_output_tokens=expected, output_spread_tokens=spread)
    assert seen == expected.tolist()
