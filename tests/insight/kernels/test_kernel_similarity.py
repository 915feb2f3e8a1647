"""Kernel similarity: from 0 to 1, symmetric, its parts as they are weighed."""

import numpy as np
import pytest
from tests.insight.kernels.test_interface import made, real

from wavetank.errors import BadValueError
from wavetank.insight.kernels.kernel_similarity import KernelSimilarity

RETIRING, MEMORY, BOTH = [1.0] + [0.0] * 8, [0, 0, 0, 0, 1.0, 0, 0, 0, 1.0], [0.5, 0, 0, 0, 0.5, 0, 0, 0, 0.5]


def test_it_is_symmetric_from_0_to_1_and_1_for_the_same():
    every = real().mean()
    found = KernelSimilarity().compare(every, every)
    assert found == pytest.approx(found.T, abs=1e-12)
    assert np.diag(found) == pytest.approx(1)
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-12


def test_composition_and_plane_are_weighed():
    profiles = made({"A": [BOTH], "B": [BOTH]}, flops=[1.0, 2.0], rates=[[1.0], [1.0]])
    # The same composition; on the plane a factor of two along both axes.
    assert KernelSimilarity().compare(profiles, profiles)[0, 1] == pytest.approx(0.5 + 0.5 * 0.25)
    assert KernelSimilarity(weight=1.0).compare(profiles, profiles)[0, 1] == pytest.approx(1)
    assert KernelSimilarity(weight=0.0).compare(profiles, profiles)[0, 1] == pytest.approx(0.25)


def test_pairs_across_the_categories_are_worth_less():
    profiles = made({"A": [RETIRING], "B": [MEMORY]})
    apart = KernelSimilarity().compare(profiles, profiles)[0, 1]
    alike = KernelSimilarity(border=0.0).compare(profiles, profiles)[0, 1]
    assert alike == pytest.approx(0.5)
    assert apart == pytest.approx(0.5 * np.exp(-10))


def test_without_a_place_on_the_plane_the_composition_decides():
    profiles = made({"A": [BOTH], "B": [BOTH]}, rates=[[np.nan], [1.0]])
    assert KernelSimilarity().compare(profiles, profiles)[0] == pytest.approx([1, 1])


def test_scores_can_be_exchanged_and_settings_are_checked():
    profiles = made({"A": [RETIRING], "B": [BOTH]})
    found = [KernelSimilarity(score=name, weight=1.0, border=0.0).fitted(profiles, 0)(profiles, profiles)[0, 1]
             for name in ("overlap", "cosine", "jensen-shannon")]  # fmt: skip
    assert found == pytest.approx([0.5, 0.5 / np.sqrt(0.25 + 0.25), 0.4421], abs=1e-4)
    for wrong in ({"weight": 1.5}, {"border": -0.1}, {"weight": float("nan")}):
        with pytest.raises(BadValueError):
            KernelSimilarity(**wrong)


def test_near_duplicates_of_the_suite_find_each_other_but_for_streams():
    every = real().mean()
    found = KernelSimilarity().compare(every, every)
    np.fill_diagonal(found, -1)
    best = {name: every.names[found[at].argmax()] for at, name in enumerate(every.names)}
    assert best["Apps_LTIMES"] == "Apps_LTIMES_NOVIEW"
    assert best["Apps_LTIMES_NOVIEW"] == "Apps_LTIMES"
    assert best["Basic_DAXPY"] == "Basic_DAXPY_ATOMIC"
    assert best["Basic_DAXPY_ATOMIC"] == "Basic_DAXPY"
    # A copy has no arithmetic, a triad two operations: on the plane the three streams are far apart.
    assert best["Stream_COPY"] not in ("Stream_ADD", "Stream_TRIAD")
