"""Prices of devices: the dual of the least time for divisible work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.workflows.conftest import application, platform

from wavetank.serving.workflows.costs import Times
from wavetank.serving.workflows.prices import balance, work_left

seconds_of = st.one_of(st.floats(0.1, 50), st.just(np.inf))


@given(st.lists(st.lists(seconds_of, min_size=3, max_size=3), min_size=1, max_size=5))
@settings(deadline=None)
def test_the_balance_of_divisible_work_is_what_its_prices_say(rows):
    """Strong duality: at its prices, the cheapest device of each kind of work makes up the least time."""
    work = np.array([row if np.isfinite(row).any() else [1.0, 1.0, 1.0] for row in rows])
    least, prices = balance(work, np.zeros(3))
    assert prices.sum() == pytest.approx(1.0)
    assert prices.min() >= -1e-9
    with np.errstate(invalid="ignore"):
        cheapest = np.nanmin(np.where(np.isfinite(work), work * prices, np.nan), axis=1)
    assert cheapest.sum() == pytest.approx(least, rel=1e-6, abs=1e-9)


def test_work_left_counts_what_is_not_placed():
    made = application(((), (0,)), (2.0, 4.0))
    times = [Times(application=made, platform=platform((1.0, 2.0)))]
    assert work_left(times, {}).tolist() == [[6.0, 3.0]]
    assert work_left(times, {(0, 0): (1,)}).tolist() == [[4.0, 2.0]]
    assert work_left(times, {(0, 0): (1,), (0, 1): (1,)}).shape[0] == 0
