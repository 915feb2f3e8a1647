"""Decayed means: their half-life, their cap, and their standard deviations."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.insight.cluster.averages import CAP, LEAST_DEVIATION, Averages, Standardised
from wavetank.insight.cluster.interface import View
from wavetank.sim.rng import stream


def view(scores: np.ndarray) -> View:
    return View(scores.astype(np.float32), scores.astype(np.float32))


def test_a_mean_falls_to_half_in_a_half_life_and_outlasts_chunks() -> None:
    averages = Averages(4.0)
    up = averages.of(view(np.full((1, 1, 400), 8.0)))
    assert up[0, 0, -1] == pytest.approx(8.0, rel=1e-5) and up[0, 0, 3] == pytest.approx(4.0, rel=1e-5)
    down = averages.of(view(np.zeros((1, 1, 8))))
    assert down[0, 0, [3, 7]] == pytest.approx([4.0, 2.0], rel=1e-4)


def test_a_wild_sample_counts_as_much_as_the_cap_on_either_side() -> None:
    wild = np.zeros((1, 2, 1))
    wild[0, :, 0] = 1e6, -1e6
    means = Averages(1.0).of(view(wild))
    assert means[0, :, 0].tolist() == [CAP / 2, -CAP / 2]


def test_sizes_are_in_standard_deviations_of_what_was_learned() -> None:
    scores = stream(1, "scores").normal(size=(2, 50, 2000))
    scores[1] *= 1e-6
    sizes = Standardised(5.0, 2)
    sizes.learn(view(scores))
    keep = 0.5 ** (1 / 5.0)
    expected = np.sqrt((1 - keep) / (1 + keep))
    assert sizes.deviations() == pytest.approx([expected, LEAST_DEVIATION], rel=0.05)
    found = sizes.of(view(np.full((2, 1, 300), -3.0)))
    assert found[:, 0, -1] == pytest.approx(3.0 / sizes.deviations(), rel=1e-4)
