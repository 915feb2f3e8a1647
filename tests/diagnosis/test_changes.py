"""Change points: the least cost of all ways to cut, held against exhaustive search and against ruptures."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.diagnosis import changes
from wavetank.errors import BadValueError
from wavetank.sim.rng import stream


def _deviations(values):
    return sum(abs(each - sorted(values)[len(values) // 2]) for each in values)


def _least_of_all(values, penalty, least):
    best = None
    for cuts in range(len(values) // least):
        for places in itertools.combinations(range(1, len(values)), cuts):
            edges = (0, *places, len(values))
            if any(b - a < least for a, b in itertools.pairwise(edges)):
                continue
            parts = [list(values[a:b]) for a, b in itertools.pairwise(edges)]
            cost = sum(map(_deviations, parts)) + penalty * cuts
            best = cost if best is None else min(best, cost)
    return best


@given(
    values=st.lists(st.integers(-6, 6), min_size=4, max_size=11),
    penalty=st.sampled_from([0.5, 1.5, 4.0]),
    least=st.integers(1, 3),
)
def test_no_other_way_to_cut_costs_less(values, penalty, least):
    of = np.array(values, float)
    if len(of) < 2 * least:
        return
    cuts = changes.change_points(of, penalty=penalty, least=least)
    assert all(np.diff([0, *cuts, len(of)]) >= least)
    assert changes.cost_of(of, cuts, penalty) == pytest.approx(_least_of_all(values, penalty, least))


@pytest.mark.parametrize("seed", range(3))
def test_ruptures_finds_no_cheaper_way_to_cut(seed):
    ruptures = pytest.importorskip("ruptures")
    noise = stream(seed, "changes").standard_normal(160)
    of = noise + np.repeat([0.0, 4.0, 1.0, 1.5], 40)
    ours = changes.change_points(of, penalty=15.0, least=10)
    theirs = ruptures.Pelt(model="l1", min_size=10, jump=1).fit(of).predict(pen=15.0)[:-1]
    assert changes.cost_of(of, ours, 15.0) <= changes.cost_of(of, np.array(theirs, int), 15.0) + 1e-9
    assert abs(ours[0] - 40) <= 1


def test_a_long_series_is_cut_where_its_level_jumps():
    of = stream(1, "changes").standard_normal(9000)
    of[4321:] += 3.0
    assert changes.change_points(of, penalty=60.0) == pytest.approx([4321], abs=3)


def test_single_outliers_make_no_segment():
    of = stream(2, "changes").standard_normal(200)
    of[[30, 90, 150]] = 1000.0
    assert changes.change_points(of, penalty=25.0).size == 0


def test_noise_is_measured_beside_level_shifts():
    of = stream(3, "changes").standard_normal(4000) + np.repeat(np.arange(8) * 50.0, 500)
    assert changes.noise_of(of) == pytest.approx(1.0, abs=0.06)
    assert changes.noise_of(np.array([1.0])) == 0.0


def test_few_values_have_no_change():
    assert changes.change_points(np.arange(27.0), penalty=0.1, least=14).size == 0


@pytest.mark.parametrize(
    ("values", "more"),
    [([1.0, np.nan], {"penalty": 1.0}), ([1.0], {"penalty": 0.0}), ([1.0], {"penalty": np.inf}),
     ([1.0], {"penalty": 1.0, "least": 0}), ([[1.0]], {"penalty": 1.0})],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(values, more):
    with pytest.raises(BadValueError):
        changes.change_points(np.array(values), **more)
