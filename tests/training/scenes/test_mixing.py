"""The mixture: what goes in comes out under any prior, known rates, and streams that are the same everywhere."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.training.scenes.mixing import (
    decode_grid,
    decode_mask,
    encode_grid,
    encode_mask,
    median_of_jpegls,
    mixture,
)


def both_ways(whole, clear, planes, made):
    shown = whole[clear]
    low, alphabet = (int(shown.min()), int(np.ptp(shown)) + 1) if shown.size else (0, 1)
    data = encode_grid(whole, clear, low, alphabet, planes, made)
    values, mask = decode_grid(data, whole.shape, not clear.all(), low, alphabet, planes, made)
    assert (mask == clear).all()
    assert (values[clear] == whole[clear]).all()
    assert np.isnan(values[~clear]).all()
    return data


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), st.sampled_from([1, 5, 60_000]), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_any_grid_with_any_mask_and_planes_comes_back(rows, columns, planes, spread, seed):
    rng = np.random.default_rng(seed)
    whole = rng.integers(-spread // 2, spread // 2 + 1, (rows, columns))
    clear = rng.random((rows, columns)) < rng.random() * 1.5
    given_planes = rng.normal(0, 10.0 ** rng.integers(-3, 7), (planes, rows, columns))
    both_ways(whole, clear, given_planes, mixture(planes, own=planes // 2, radius=3))


def test_what_a_plane_says_exactly_costs_nearly_nothing_and_noise_costs_its_entropy():
    rng = np.random.default_rng(1)
    whole = rng.integers(0, 16, (48, 48))
    clear = np.ones(whole.shape, np.bool_)
    known = both_ways(whole, clear, whole[None].astype(np.float64), mixture(1))
    unknown = both_ways(whole, clear, np.zeros((0, 48, 48)), mixture(0))
    assert len(known) < 0.1 * len(unknown)
    assert 4.0 <= 8 * len(unknown) / whole.size < 4.4


def test_a_slope_is_predicted_by_neighbours():
    rows, columns = np.mgrid[:40, :40]
    whole = 3 * rows - 2 * columns
    data = both_ways(whole, np.ones(whole.shape, np.bool_), np.zeros((0, 40, 40)), mixture(0))
    assert 8 * len(data) / whole.size < 0.3


@pytest.mark.parametrize(
    ("west", "north", "north_west", "wanted"), [(3, 5, 6, 3), (3, 5, 2, 5), (3, 5, 4, 4), (7, 2, 4, 5), (1, 1, 1, 1)]
)
def test_the_median_predictor_is_that_of_jpegls(west, north, north_west, wanted):
    assert median_of_jpegls(west, north, north_west) == wanted
    assert sorted((west, north, west + north - north_west))[1] == wanted


def test_experts_without_a_prior_see_no_plane_and_the_largest_sees_all():
    assert mixture(0).experts.max() == 7
    made = mixture(5, own=2)
    assert made.experts.shape[0] == 5
    assert [int(each.max()) for each in made.experts] == [-1, 7, 7, 10, 12]


def test_a_stream_is_the_same_on_every_processor():
    rng = np.random.default_rng(7)
    base = np.cumsum(rng.integers(-2, 3, (24, 24)), 1)
    whole = base + rng.integers(-1, 2, base.shape)
    clear = np.ones(base.shape, np.bool_)
    clear[3:7, 4:9] = False
    planes = np.stack([base, base[::-1]]).astype(np.float64) / 3
    data = both_ways(whole, clear, planes, mixture(2, own=1))
    assert hashlib.sha256(data).hexdigest()[:16] == "dcac86adc9ffca02"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_mask_comes_back_and_smooth_ones_are_small(share):
    rng = np.random.default_rng(3)
    clear = rng.random((50, 60)) < share
    assert (decode_mask(encode_mask(clear), clear.shape) == clear).all()
    disc = np.hypot(*np.mgrid[-25:25, -30:30]) < 20
    assert len(encode_mask(disc)) < 60
