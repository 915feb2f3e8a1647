"""Scores: known answers, and what holds for every pair of compositions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.insight.kernels import scores

COMPOSITION = (
    st.lists(st.floats(0, 1), min_size=8, max_size=8)
    .filter(lambda each: sum(each) > 1e-6)
    .map(lambda each: np.array([each]) / sum(each))
)
OF_COMPOSITIONS = (scores.overlap, scores.cosine, scores.jensen_shannon)


@given(u=COMPOSITION, v=COMPOSITION)
def test_every_score_is_symmetric_from_0_to_1_and_1_for_the_same(u, v):
    for score in OF_COMPOSITIONS:
        found = score(u, v)[0, 0]
        assert 0 <= found <= 1
        assert found == score(v, u)[0, 0]
        assert score(u, u)[0, 0] == pytest.approx(1, abs=1e-7)


def test_jensen_shannon_of_a_whole_against_halves_is_known_by_hand():
    whole, halves = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])
    divergence = 0.5 * (math.log2(1 / 0.75)) + 0.5 * (0.5 * math.log2(0.5 / 0.75) + 0.5 * math.log2(0.5 / 0.25))
    assert divergence == pytest.approx(0.3113, abs=5e-5)
    assert scores.jensen_shannon(whole, halves)[0, 0] == pytest.approx(1 - math.sqrt(divergence), rel=1e-12)
    assert scores.jensen_shannon(whole, halves)[0, 0] == pytest.approx(0.4421, abs=5e-5)


def test_compositions_without_a_common_part_score_0():
    u, v = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert [float(score(u, v)[0, 0]) for score in OF_COMPOSITIONS] == [0, 0, 0]


def test_overlap_and_cosine_are_what_their_names_say():
    u, v = np.array([[0.6, 0.4, 0.0]]), np.array([[0.3, 0.4, 0.3]])
    assert scores.overlap(u, v)[0, 0] == pytest.approx(0.3 + 0.4)
    assert scores.cosine(u, v)[0, 0] == pytest.approx((0.18 + 0.16) / math.sqrt(0.52 * 0.34))
    assert scores.cosine(u, np.zeros((1, 3)))[0, 0] == 0


def test_the_plane_counts_factors_along_both_axes():
    u = np.log(np.array([[2.0, 8.0]]))
    v = np.log(np.array([[1.0, 4.0], [2.0, 8.0]]))
    assert scores.on_the_plane(u, v)[0] == pytest.approx([0.25, 1.0])


def test_pairs_across_the_border_fade_with_the_nearer_margin():
    found = scores.same_category(np.array([0.3, 0.001]), np.array([0.5, -0.2]), 0.1)
    assert found[0].tolist() == pytest.approx([1, math.exp(-2)])
    # No cliff at the border.
    assert found[1].tolist() == pytest.approx([1, math.exp(-0.01)])


def test_a_gap_makes_the_score_a_gap():
    gap = np.array([[math.nan, 1.0]])
    for score in OF_COMPOSITIONS:
        assert math.isnan(score(gap, np.array([[0.5, 0.5]]))[0, 0])
