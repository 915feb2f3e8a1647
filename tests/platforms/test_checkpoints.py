"""Intervals between checkpoints: known answers, and the minimum itself."""

from __future__ import annotations

import math

import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.checkpoints import daly_interval_s, daly_time_ratio, young_interval_s


def test_young_and_the_expected_time_have_known_answers() -> None:
    assert young_interval_s(8.0, 100.0) == 40.0
    assert daly_time_ratio(10.0, 2.0, 0.0, 1e9) == pytest.approx(1.2)
    assert daly_time_ratio(100.0, 0.0, 100.0, 100.0) == pytest.approx(math.e * (math.e - 1))


@pytest.mark.parametrize(("checkpoint_s", "mtbf_s"), [(8.0, 1e4), (180.0, 86_400.0), (500.0, 1000.0), (3.0, 2.0)])
def test_the_interval_is_where_the_expected_time_is_least(checkpoint_s: float, mtbf_s: float) -> None:
    best = daly_interval_s(checkpoint_s, mtbf_s)
    least = daly_time_ratio(best, checkpoint_s, 30.0, mtbf_s)
    for factor in (0.8, 0.97, 1.03, 1.25):
        assert daly_time_ratio(best * factor, checkpoint_s, 30.0, mtbf_s) > least


def test_the_interval_is_dalys_series_where_that_holds() -> None:
    ratio = 60.0 / (2 * 43_200.0)
    series = math.sqrt(2 * 60.0 * 43_200.0) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - 60.0
    assert daly_interval_s(60.0, 43_200.0) == pytest.approx(series, rel=1e-4)


@pytest.mark.parametrize(
    ("checkpoint_s", "mtbf_s"), [(0.0, 5.0), (-1.0, 5.0), (1.0, math.nan), (1.0, math.inf), (math.inf, 1.0)]
)
def test_what_is_no_time_is_refused(checkpoint_s: float, mtbf_s: float) -> None:
    with pytest.raises(BadValueError):
        daly_interval_s(checkpoint_s, mtbf_s)
