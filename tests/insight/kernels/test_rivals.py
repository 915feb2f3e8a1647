"""Rivals: each is what its name says, and they are given what kernel similarity is given."""

import sys

import numpy as np
import pytest
from tests.insight.kernels.test_interface import made

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.insight.kernels.rivals import (
    CosineOfLeaves,
    NearestTime,
    OverlapOfLeaves,
    RandomMatch,
    RooflineDistance,
    RunDiscriminant,
    StandardScores,
)
from wavetank.sim.rng import stream

RETIRING, CORE = [1.0] + [0.0] * 8, [0, 0, 0, 1.0, 0, 0, 0, 0, 0]


def similarity(system, profiles):
    return system.fitted(profiles, 0)(profiles.mean(), profiles.mean())


def test_cosine_and_overlap_compare_leaves():
    half = [0.5, 0, 0, 0.5, 0, 0, 0, 0, 0]
    profiles = made({"A": [RETIRING], "B": [half], "C": [CORE]})
    assert similarity(CosineOfLeaves(), profiles)[0] == pytest.approx([1, np.sqrt(0.5), 0])
    assert similarity(OverlapOfLeaves(), profiles)[0] == pytest.approx([1, 0.5, 0])


def test_the_cosine_of_counters_sees_shares_that_were_not_scaled():
    whole, part = [0.5, 0, 0, 0, 0.4, 0.4, 0, 0, 0], [0.5, 0, 0, 0, 0.4, 0.1, 0, 0, -0.2]
    profiles = made({"A": [whole], "B": [part]})
    assert similarity(CosineOfLeaves(), profiles)[0, 1] == pytest.approx(1)
    expected = (0.25 + 0.16 + 0.04) / np.sqrt((0.25 + 0.32) * (0.25 + 0.16 + 0.01))
    assert similarity(CosineOfLeaves(counted=True), profiles)[0, 1] == pytest.approx(expected)


def test_the_roofline_distance_sees_rates_alone():
    profiles = made({"A": [RETIRING], "B": [CORE], "C": [CORE]}, flops=[1.0, 1.0, 2.0],
                    rates=[[1.0], [1.0], [np.nan]])  # fmt: skip
    assert similarity(RooflineDistance(), profiles)[0].tolist() == [1, 1, 0]


def test_standard_scores_count_a_feature_by_how_much_it_varies():
    # B differs from A by the whole spread of a narrow feature, C by the whole spread of a wide one.
    profiles = made({"A": [[0.5, 0.02, 0, 0.48, 0, 0, 0, 0, 0]], "B": [[0.5, 0.04, 0, 0.46, 0, 0, 0, 0, 0]],
                     "C": [[0.9, 0.02, 0, 0.08, 0, 0, 0, 0, 0]]})  # fmt: skip
    standard = similarity(StandardScores(), profiles)[0]
    overlap = similarity(OverlapOfLeaves(), profiles)[0]
    assert overlap[1] > overlap[2]
    assert abs(standard[1] - standard[2]) < 0.1
    faster = made({"A": [CORE], "B": [CORE], "C": [CORE]}, rates=[[1.0], [2.0], [9.0]])
    assert np.diff(similarity(StandardScores(), faster)[0]).max() < 0


def test_the_discriminant_learns_which_features_noise_leaves_alone():
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    draw = stream(0, "planted")
    base = {"A": (0.30, 0.20), "B": (0.30, 0.24), "C": (0.50, 0.20)}

    def runs(name):
        first, second = base[name]
        # The split of retiring and core is loud, the frontend is quiet.
        loud, quiet = 0.2 * draw.uniform(-1, 1, 12), 0.001 * draw.uniform(-1, 1, 12)
        return [[first + a, second + b, 0, 1 - first - second - a - b, 0, 0, 0, 0, 0]
                for a, b in zip(loud, quiet, strict=True)]  # fmt: skip

    profiles = made({name: runs(name) for name in base})
    assert similarity(OverlapOfLeaves(), profiles)[0].argsort()[::-1].tolist() == [0, 1, 2]
    assert similarity(RunDiscriminant(), profiles)[0].argsort()[::-1].tolist() == [0, 2, 1]


def test_the_discriminant_falls_back_on_leaves_with_single_runs_and_says_what_is_missing(monkeypatch):
    profiles = made({"A": [RETIRING], "B": [CORE]})
    assert similarity(RunDiscriminant(), profiles)[0] == pytest.approx([1, 1 / (1 + np.sqrt(2))])
    monkeypatch.setitem(sys.modules, "sklearn.discriminant_analysis", None)
    with pytest.raises(MissingExtraError, match="scikit-learn"):
        RunDiscriminant().fitted(made({name: [CORE, CORE] for name in "ABC"}), 0)


def test_chance_depends_on_its_seed_alone():
    profiles = made({"A": [RETIRING], "B": [CORE]})
    one, same, other = (RandomMatch().fitted(profiles, seed)(profiles, profiles) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_the_oracle_knows_the_times_and_nothing_without_them():
    found = NearestTime().knowing(np.array([0.0, 0.1, 2.0]))
    assert found(None, None)[0].argsort()[::-1].tolist() == [0, 1, 2]
    profiles = made({"A": [RETIRING]})
    assert np.isnan(similarity(NearestTime(), profiles)).all()
    with pytest.raises(BadValueError):
        NearestTime(spread=0.0)
