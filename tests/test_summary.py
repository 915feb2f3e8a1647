from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from wavetank.records import Record
from wavetank.study import Metric
from wavetank.summary import Row, interval, leaders, paired_ratio, summarise

VALUES = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30)


def record(system: str, seed: int, value: float, at: dict[str, float | str] | None = None) -> Record:
    return Record("s", system, seed, "m", value, "s", "simulated", at or {})


@given(VALUES)
def test_the_interval_contains_the_median_and_lies_within_the_values(values: list[float]) -> None:
    median, low, high = interval(values)
    assert median == pytest.approx(statistics.median(values), rel=1e-15)
    assert min(values) <= low <= median <= high <= max(values)


@given(VALUES, st.randoms())
def test_equal_values_in_any_order_give_equal_intervals(values: list[float], random: object) -> None:
    shuffled = values.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert interval(shuffled) == interval(values)


@given(st.one_of(st.floats(-1e300, 1e300), st.just(math.inf)), st.integers(1, 20))
def test_equal_figures_have_no_width(value: float, count: int) -> None:
    assert interval([value] * count) == (value, value, value)


def test_no_figure_gives_no_interval() -> None:
    assert all(math.isnan(end) for end in interval([]))


def test_more_seeds_narrow_the_interval() -> None:
    few, many = ([float(number % 10) for number in range(count)] for count in (10, 1000))
    assert interval(many)[2] - interval(many)[1] < interval(few)[2] - interval(few)[1]


def test_infinite_figures_stay_what_they_are() -> None:
    assert interval([1.0, math.inf, math.inf]) == (math.inf, 1.0, math.inf)


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


def test_ratios_pair_seeds_and_leave_out_those_that_one_lacks() -> None:
    records = [record("a", 0, 1.0), record("a", 1, 9.0), record("a", 2, 6.0), record("b", 0, 2.0), record("b", 2, 3.0)]
    median, low, high, seeds = paired_ratio(records, "m", "a", "b", {})
    assert (median, low, high, seeds) == (1.25, 0.5, 2.0, 2)


def test_ratios_to_nothing_are_infinite_or_one() -> None:
    records = [record("a", 0, 1.0), record("b", 0, 0.0)]
    assert paired_ratio(records, "m", "a", "b", {})[0] == math.inf
    records = [record("a", 0, 0.0), record("b", 0, 0.0)]
    assert paired_ratio(records, "m", "a", "b", {})[0] == 1.0


def test_ratios_belong_to_one_place() -> None:
    records = [record("a", 0, 1.0, {"x": 1}), record("b", 0, 2.0, {"x": 1}), record("a", 0, 8.0), record("b", 0, 2.0)]
    assert paired_ratio(records, "m", "a", "b", {"x": 1})[0] == 0.5
    assert paired_ratio(records, "m", "a", "b", {})[0] == 4.0
    assert paired_ratio(records, "m", "a", "b", {"x": 2})[3] == 0


def row(system: str, low: float, median: float, high: float, seeds: int = 5) -> Row:
    return Row(system, "m", median, low, high, "s", "simulated", seeds, low, high, {})


LOWER, HIGHER, NEITHER = Metric("m", better="lower"), Metric("m", better="higher"), Metric("m")


def test_a_system_leads_alone_when_its_interval_is_clear_of_all_others() -> None:
    rows = [row("a", 1, 2, 3), row("b", 4, 5, 6), row("c", 7, 8, 9)]
    assert leaders(rows, LOWER, {}) == ("a",)
    assert leaders(rows, HIGHER, {}) == ("c",)


def test_overlapping_intervals_share_the_lead() -> None:
    rows = [row("a", 1, 2, 5), row("b", 4, 5, 6), row("c", 7, 8, 9)]
    assert leaders(rows, LOWER, {}) == ("a", "b")
    assert leaders([row("a", 1, 2, 5), row("b", 4, 5, 6)], HIGHER, {}) == ("a", "b")


def test_nobody_leads_without_rivals_intervals_or_a_better_side() -> None:
    rows = [row("a", 1, 2, 3), row("b", 4, 5, 6)]
    assert leaders(rows[:1], LOWER, {}) == ()
    assert leaders(rows, NEITHER, {}) == ()
    assert leaders([row("a", 1, 1, 1, seeds=1), row("b", 4, 4, 4, seeds=1)], LOWER, {}) == ()
    assert leaders(rows, LOWER, {"elsewhere": 1}) == ()


def test_the_interval_is_the_95_percent_one_of_the_bootstrap_distribution() -> None:
    """The bootstrap median of 21 ordered values is at most the k-th with the probability of a binomial tail."""
    below = [binom.sf(10, 21, k / 21) for k in range(1, 22)]
    low = next(value for value, share in enumerate(below) if share >= 0.025)
    high = next(value for value, share in enumerate(below) if share >= 0.975)
    assert interval([float(value) for value in range(21)]) == (10.0, low, high)
    # A narrower or a wider tail would end at another value.
    assert next(value for value, share in enumerate(below) if share >= 0.0125) < low
    assert next(value for value, share in enumerate(below) if share >= 0.05) > low or below[low] >= 0.05


def test_an_even_number_of_values_has_the_mean_of_the_middle_two_in_each_resample() -> None:
    assert interval([float(value) for value in range(6)]) == (2.5, 0.5, 4.5)


def test_intervals_that_touch_share_the_lead() -> None:
    assert leaders([row("a", 1, 2, 4), row("b", 4, 5, 6)], LOWER, {}) == ("a", "b")
    assert leaders([row("a", 1, 2, 4), row("b", 4, 5, 6)], HIGHER, {}) == ("a", "b")


def test_nobody_leads_where_one_of_several_has_a_single_seed() -> None:
    rows = [row("a", 1, 2, 3), row("b", 4, 5, 6), row("c", 7, 7, 7, seeds=1)]
    assert leaders(rows, LOWER, {}) == ()
    assert leaders(rows, HIGHER, {}) == ()


def test_the_best_is_the_best_median_not_the_best_end() -> None:
    rows = [row("a", 0, 5, 6), row("b", 1, 2, 3), row("c", 3.5, 4, 5)]
    assert leaders(rows, LOWER, {}) == ("a", "b")
    rows = [row("a", 0, 1, 6), row("b", 3, 4, 5), row("c", 1, 2, 2.5)]
    assert leaders(rows, HIGHER, {}) == ("a", "b")


def test_a_ratio_to_nothing_keeps_its_sign() -> None:
    records = [record("a", 0, -1.0), record("b", 0, 0.0)]
    assert paired_ratio(records, "m", "a", "b", {})[0] == -math.inf
