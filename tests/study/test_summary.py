from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.study.records import Record
from wavetank.study.summary import summarise

VALUES = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30)


def record(system: str, seed: int, value: float, at: dict[str, float | str] | None = None) -> Record:
    return Record("s", system, seed, "m", value, "s", "simulated", at or {})


def test_a_summary_has_a_row_for_every_system_metric_and_place_in_order_of_appearance() -> None:
    records = [record("b", 0, 3.0), record("a", 0, 1.0), record("b", 1, math.nan), record("b", 2, 5.0)]
    records += [record("a", 0, 7.0, {"load": 2})]
    first, second, third = summarise(records)
    assert (first.system, first.median, first.least, first.most, first.seeds) == ("b", 4.0, 3.0, 5.0, 2)
    assert (first.unit, first.kind, first.at) == ("s", "simulated", {})
    assert (second.system, second.median, second.low, second.high) == ("a", 1.0, 1.0, 1.0)
    assert (third.at, third.median) == ({"load": 2}, 7.0)


def test_a_system_without_a_figure_has_a_row_of_nothing() -> None:
    (row,) = summarise([record("a", 0, math.nan)])
    assert row.seeds == 0
    assert all(math.isnan(figure) for figure in (row.median, row.low, row.high, row.least, row.most))


@given(VALUES)
def test_a_row_shows_the_median_and_ends_among_the_values(values: list[float]) -> None:
    (row,) = summarise([record("a", seed, value) for seed, value in enumerate(values)])
    assert row.median == pytest.approx(statistics.median(values), rel=1e-15)
    assert row.least == min(values) <= row.low <= row.median <= row.high <= max(values) == row.most


def test_rounds_of_a_process_are_one_figure() -> None:
    (row,) = summarise(
        [record("a", number, value) for number, value in enumerate([1.0, 2.0, 9.0, 4.0, 4.0, 4.0])], rounds=3
    )
    assert (row.seeds, row.median, row.low, row.high) == (2, 3.0, 2.0, 4.0)


def test_infinite_figures_stay_what_they_are() -> None:
    (row,) = summarise([record("a", seed, value) for seed, value in enumerate([1.0, math.inf, math.inf])])
    assert (row.low, row.median, row.high) == (1.0, math.inf, math.inf)
