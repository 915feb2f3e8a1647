"""Scores of nodes against their peers: numpy's medians, shifts that all share, dead nodes and odd values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from wavetank.diagnosis.peers import NORMAL, peer_scores
from wavetank.errors import BadValueError


def by_numpy(row, floor, least):
    live = np.isfinite(row)
    out = np.full(row.shape, np.nan)
    if live.sum() > least:
        middle = np.median(row[live])
        out[live] = (row[live] - middle) / (NORMAL * np.median(np.abs(row[live] - middle)) + floor)
    return out


ROWS = arrays.arrays(
    np.float64, st.tuples(st.integers(0, 4), st.integers(1, 13)),
    elements=st.sampled_from([np.nan, np.inf, -np.inf]) | st.integers(-3, 3) | st.floats(-1e6, 1e6),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(ROWS, st.integers(1, 5))
def test_scores_are_those_of_numpys_medians(values, least):
    floors = np.linspace(0.5, 2.0, len(values))
    wanted = np.array([by_numpy(row, floor, least) for row, floor in zip(values, floors, strict=True)])
    found = peer_scores(values, floors, least=least)
    assert found.shape == values.shape
    np.testing.assert_allclose(found, wanted.reshape(values.shape), rtol=1e-9, atol=1e-9)


def test_what_all_nodes_do_together_moves_no_score():
    values = np.random.default_rng(3).normal(size=(50, 63))
    values[10, 7] += 9
    scores = peer_scores(values, 0.1)
    np.testing.assert_allclose(peer_scores(values + 1e3 * np.arange(50)[:, None], 0.1), scores, atol=1e-8)
    assert np.unravel_index(np.nanargmax(np.abs(scores)), scores.shape) == (10, 7)


def test_a_node_needs_three_live_peers_and_dead_ones_have_no_score():
    assert np.isnan(peer_scores([1.0, 1.0, 9.0, np.nan], 1.0)).all()
    assert peer_scores([1.0, 1.0, 1.0, 9.0], 1.0).tolist() == [0.0, 0.0, 0.0, 8.0]
    one_dead = peer_scores([[1.0, 1.0, 1.0, 9.0, np.nan]], [1.0])
    assert one_dead[0, :4].tolist() == [0.0, 0.0, 0.0, 8.0] and np.isnan(one_dead[0, 4])


def test_floors_are_above_nothing_and_fit_the_rows():
    for floor in (0.0, -1.0, np.nan, np.inf, [1.0, 2.0, 3.0]):
        with pytest.raises(BadValueError):
            peer_scores(np.ones((2, 5)), floor)
    with pytest.raises(BadValueError):
        peer_scores(3.0, 1.0)


def test_what_was_given_is_left_as_it_was():
    values = np.array([[3.0, 1.0, 2.0, 7.0]])
    peer_scores(values, 1.0)
    assert values.tolist() == [[3.0, 1.0, 2.0, 7.0]]


def test_the_mean_of_two_middle_values_may_be_near_the_largest_number():
    largest = np.finfo(np.float64).max
    assert peer_scores([largest, largest, largest, largest], 1.0).tolist() == [0.0] * 4
