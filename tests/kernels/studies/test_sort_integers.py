"""The study of sorts."""

import math

import numpy as np
import pytest

from wavetank.comparison import compare
from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.studies.sort_integers import DISTRIBUTIONS, Column, SortIntegers, keys_of
from wavetank.study import Case

SYSTEMS = ["fractal-sort", "numpy-sort", "polars-sort"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare("sort-integers", size_mb=1, rounds=2, systems=SYSTEMS, out=tmp_path_factory.mktemp("runs"))


def figures(result, metric):
    return {(r.system, r.at.get("keys"), r.seed): r.value for r in result.records if r.metric == metric}


def test_every_contender_has_every_figure_on_every_distribution(result):
    for metric in ("time_s", "time_ratio", "share_of_copy", "copies"):
        found = figures(result, metric)
        assert set(found) == {(s, keys, seed) for s in SYSTEMS for keys in DISTRIBUTIONS for seed in (0, 1)}
        assert all(value > 0 and math.isfinite(value) for value in found.values())


def test_derived_figures_follow_from_the_times_of_their_round(result):
    times, ratios = figures(result, "time_s"), figures(result, "time_ratio")
    for (system, keys, seed), took in times.items():
        assert ratios[system, keys, seed] == took / times["numpy-sort", keys, seed]
    ahead = figures(result, "ahead_of_best_peer")
    for (system, keys, seed), value in ahead.items():
        assert system == "fractal-sort"
        best = min(times[peer, keys, seed] for peer in ("numpy-sort", "polars-sort"))
        assert value == best / times[system, keys, seed]
    for (system, _, seed), value in figures(result, "worst_over_best").items():
        of_round = [times[system, keys, seed] for keys in DISTRIBUTIONS]
        assert value == max(of_round) / min(of_round)


def test_copies_and_share_of_copy_are_each_others_inverse(result):
    copies, share = figures(result, "copies"), figures(result, "share_of_copy")
    assert all(math.isclose(copies[place] * share[place], 1.0) for place in copies)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_distributions_are_what_they_are_called(bits):
    made = {name: keys_of(name, 20_000, bits, seed=1) for name in DISTRIBUTIONS}
    assert all(keys.dtype == np.dtype(f"uint{bits}") and keys.size == 20_000 for keys in made.values())
    assert (made["sorted"][:-1] <= made["sorted"][1:]).all()
    assert (made["reversed"][:-1] >= made["reversed"][1:]).all()
    assert np.unique(made["constant"]).size == 1
    assert np.unique(made["two-valued"]).size == 2
    share = np.unique(made["zipf"], return_counts=True)[1].max() / 20_000
    assert 0.2 < share < 0.35
    assert np.unique(made["uniform"]).size > min(200, 10_000)
    np.testing.assert_array_equal(made["uniform"], keys_of("uniform", 20_000, bits, seed=1))


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(BadValueError, match="no such keys"):
        SortIntegers(bits=12).check()
    with pytest.raises(BadValueError, match="nearest: uniform"):
        compare("sort-integers", distributions="unifrom")


def test_a_contender_that_sorts_wrongly_is_refused():
    keys = np.array([2, 1], np.uint16)
    case = Case("uniform", Column(keys, np.sort(keys)))
    SortIntegers().verify(case, "good-sort", np.sort(keys))
    with pytest.raises(WavetankError, match="did not sort"):
        SortIntegers().verify(case, "bad-sort", keys)
