"""Leaves sum to one, level by level; noise around zero cancels before it is clipped."""

import numpy as np
import pytest
from tests.insight.kernels.test_interface import made, real

from wavetank.insight.kernels.compositions import LEAST_FLOPS_PER_BYTE, leaves, margins, mean_leaves, roofline


def test_each_level_is_scaled_to_its_parent():
    found = leaves(np.array([0.2, 0.1, 0.1, 0.1, 0.3, 0.1, 0.1, 0.0, 0.2, np.nan]))
    assert found.sum() == pytest.approx(1)
    assert found[:4] == pytest.approx(np.array([0.2, 0.1, 0.1, 0.1]) / 0.8)
    assert found[4:] == pytest.approx(np.array([0.25, 0.25, 0.0, 0.5]) * 0.3 / 0.8)


def test_core_and_memory_are_scaled_to_a_backend_that_was_counted():
    found = leaves(np.array([0.5, 0, 0, 0.1, 0.3, 0, 0, 0, 0.3, 0.5]))
    assert found.tolist() == pytest.approx([0.5, 0, 0, 0.125, 0, 0, 0, 0.375])
    assert leaves(np.array([0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0.5]))[3:].tolist() == pytest.approx([0.25] + [0.0625] * 4)


def test_negative_leaves_are_clipped_after_averaging():
    profiles = made({"A": [[0.5, 0, 0, 0, 0.5, -0.08, 0.2, 0, 0], [0.5, 0, 0, 0, 0.5, 0.12, 0.2, 0, 0]]})
    # The mean of the first level is 0.02; clipped before, it would be 0.06.
    assert mean_leaves(profiles)[0, 4] == pytest.approx(0.5 * 0.02 / 0.22)
    assert leaves(np.array([1.0, 0, 0, 0, 0.5, -0.3, 0.2, 0, 0, 0.5]))[4] == 0


def test_memory_without_levels_is_spread_and_gaps_of_the_top_stay():
    assert leaves(np.array([0.6, 0, 0, 0, 0.4, 0, 0, 0, 0, 0.4]))[4:] == pytest.approx([0.1] * 4)
    assert leaves(np.array([0.6, 0, 0, 0, 0.4] + [np.nan] * 5))[4:] == pytest.approx([0.1] * 4)
    assert np.isnan(leaves(np.array([0.6, np.nan, 0, 0, 0.4, 0, 0, 0, 0, 0.4]))).all()


def test_the_real_kernels_fall_into_the_known_categories():
    profiles = real()
    found = mean_leaves(profiles)
    margin = dict(zip(profiles.names, margins(found), strict=True))
    parts = dict(zip(profiles.names, found, strict=True))
    assert all(margin[name] > 0.5 for name in margin if name.startswith("Stream_") and name != "Stream_DOT")
    assert margin["Stream_DOT"] > 0
    assert margin["Apps_VOL3D"] < -0.5
    assert parts["Apps_VOL3D"][0] == pytest.approx(0.69, abs=0.02)
    # Of these the known figures are the shares as they were counted.
    counted = dict(zip(profiles.names, profiles.mean().shares[:, 0], strict=True))["Apps_LTIMES"]
    assert counted[[0, 4, 3]] == pytest.approx([0.42, 0.25, 0.15], abs=0.01)
    assert parts["Apps_LTIMES"].max() < 0.5
    stream = [parts[f"Stream_{name}"][4:].sum() for name in ("COPY", "ADD", "TRIAD")]
    assert max(stream) - min(stream) < 0.05


def test_near_duplicates_are_identical_to_a_hundredth():
    profiles = real()
    at = [profiles.names.index(name) for name in ("Apps_LTIMES", "Apps_LTIMES_NOVIEW")]
    one, other = mean_leaves(profiles)[at]
    assert np.abs(one - other).max() < 0.01


def test_the_plane_has_a_place_for_kernels_without_arithmetic():
    profiles = made({"A": [[1.0, 0, 0, 0, 0, 0, 0, 0, 0]], "B": [[1.0, 0, 0, 0, 0, 0, 0, 0, 0]]}, flops=[0.0, 2.0],
                    rates=[[8.0], [4.0]])  # fmt: skip
    plane = np.exp(roofline(profiles))
    assert plane[0] == pytest.approx([LEAST_FLOPS_PER_BYTE, 8 * LEAST_FLOPS_PER_BYTE])
    assert plane[1] == pytest.approx([2, 8])
    assert np.isnan(roofline(made({"A": [[1.0, 0, 0, 0, 0, 0, 0, 0, 0]]}, rates=[[np.nan]]))[0, 1])
