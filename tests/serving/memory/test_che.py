"""Che's approximation against known hit ratios and known best boundaries."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.memory.che import best_share, hit_ratio, mean_service_s, zipf, zipf_hit_ratio
from wavetank.serving.memory.costs import Node


@pytest.mark.parametrize(("capacity", "known"), [(100, 0.392), (400, 0.633), (1000, 0.831)])
def test_known_hit_ratios(capacity, known):
    assert hit_ratio(zipf(2000, 0.9), capacity) == pytest.approx(known, abs=5e-4)
    assert zipf_hit_ratio(2000, 0.9, capacity) == pytest.approx(known, abs=5e-4)


def test_of_equal_items_the_share_that_fits_is_hit():
    assert hit_ratio(np.full(1000, 1e-3), 250) == pytest.approx(0.25, abs=1e-9)
    assert (hit_ratio(zipf(10, 1.0), 0), hit_ratio(zipf(10, 1.0), 10)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("rows", "users", "history", "share", "ms", "lost"),
    [
        (0.9, 0.9, 8192, 0.68, 4.17, 0.003), (0.9, 0.9, 15_000, 0.58, 13.3, 0.0), (1.2, 0.9, 8192, 0.10, 2.56, 0.23),
        (0.9, 0.2, 8192, 0.98, 5.45, 0.23), (0.9, 1.3, 8192, 0.48, 1.55, 0.02), (0.7, 1.1, 3000, 0.90, 0.618, 0.19),
    ],
)  # fmt: skip
def test_known_best_boundaries_and_what_the_reference_loses(rows, users, history, share, ms, lost):
    found, least = best_share(Node(), rows, users, history)
    assert found == pytest.approx(share, abs=0.0201)
    assert least * 1e3 == pytest.approx(ms, rel=0.005)
    assert mean_service_s(Node(), 0.62, rows, users, history) / least - 1 == pytest.approx(lost, abs=0.006)


def test_groups_hold_the_popularity_of_their_members():
    assert zipf(1000, 0.9, 7) == pytest.approx(np.add.reduceat(zipf(1000, 0.9), np.arange(0, 1000, 7)), rel=2e-4)
    with pytest.raises(BadValueError):
        zipf(10, -1.0)
