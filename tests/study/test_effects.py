from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from wavetank.study.effects import (
    NOTHING,
    effect,
    order_interval,
    paired,
    per_replicate,
    ratio,
    shown_interval,
    strongest,
)

POSITIVE = st.lists(st.floats(0.01, 100), min_size=3, max_size=30).filter(lambda values: len(set(values)) > 1)


@given(POSITIVE)
def test_positive_values_have_students_interval_of_their_logarithms(values: list[float]) -> None:
    logs = [math.log(value) for value in values]
    known = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    found = effect(values)
    assert (found.low, found.high) == pytest.approx((math.exp(known.low), math.exp(known.high)), rel=1e-9)
    assert found.centre == pytest.approx(stats.gmean(values))
    assert (found.least, found.most, found.count) == (min(values), max(values), len(values))


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=30).filter(lambda v: min(v) < 0 and len(set(v)) > 1))
def test_values_that_may_be_negative_have_students_interval_as_they_are(values: list[float]) -> None:
    known = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = effect(values)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), rel=1e-6, abs=1e-9)


@given(POSITIVE, st.integers(2, 50))
def test_more_comparisons_widen_the_interval_and_leave_the_centre(values: list[float], comparisons: int) -> None:
    # Values that differ in their last digits have an interval of no width.
    assume(max(values) > min(values) * (1 + 1e-9))
    one, many = effect(values), effect(values, comparisons=comparisons)
    assert many.low < one.low <= one.centre <= one.high < many.high
    assert many.centre == one.centre


@pytest.mark.parametrize("values", [[], [math.nan, math.nan]])
def test_nothing_is_known_of_no_values(values: list[float]) -> None:
    assert effect(values) == NOTHING or math.isnan(effect(values).centre)
    assert not effect(values).decided


@pytest.mark.parametrize(
    "values", [[1.5], [1.5, 1.5], [1.4, 1.5], [0.0], [0.0, 0.0], [0.0, 1.0, 2.0], [math.inf, 1.0, 2.0]]
)
def test_too_few_values_decide_nothing(values: list[float]) -> None:
    found = effect(values)
    assert not found.decided
    assert (found.least, found.most) == (min(values), max(values))


def test_an_exact_figure_needs_one_run() -> None:
    assert effect([3.0], exact=True).decided
    assert (effect([3.0], exact=True).low, effect([3.0], exact=True).high) == (3.0, 3.0)
    assert not effect([3.0, 4.0], exact=True).decided, "figures that differ are not exact, whatever they are called"


@pytest.mark.parametrize("value", [0.0, 1.0, math.inf, -2.0])
def test_values_that_do_not_differ_have_no_width_from_three_on(value: float) -> None:
    found = effect([value] * 3)
    assert (found.low, found.centre, found.high) == (value, value, value)
    assert found.decided


def test_zeros_and_infinities_among_others_need_order_statistics() -> None:
    found = effect([0.0, 0.1, 0.2, 0.3, 0.4, math.inf])
    assert (found.low, found.high) == (0.0, math.inf)
    assert effect([0.0] + [0.1] * 9).high == 0.1
    assert effect([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], comparisons=10).decided is False


def test_a_missing_value_is_no_value() -> None:
    assert effect([1.0, math.nan, 2.0, 4.0]) == effect([1.0, 2.0, 4.0])


@pytest.mark.parametrize("count", range(6, 40))
def test_order_statistics_cover_the_median_as_often_as_they_say(count: int) -> None:
    low, high = order_interval(range(count))
    position = int(low)
    assert high == count - 1 - position
    assert stats.binom.cdf(position, count, 0.5) * 2 <= 0.05
    assert stats.binom.cdf(position + 1, count, 0.5) * 2 > 0.05, "it is the narrowest"


def test_a_table_shows_least_and_most_below_six_values() -> None:
    assert shown_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert shown_interval([1.0]) == (1.0, 1.0)
    assert shown_interval([float(value) for value in range(9)]) == (1.0, 7.0)


def test_rounds_of_one_process_are_one_replicate() -> None:
    times = {0: 1.0, 1: 9.0, 2: 2.0, 3: 5.0, 4: 4.0, 5: math.nan}
    assert per_replicate(times, 3) == {0: 2.0, 1: 4.5}
    assert per_replicate({1: 2.0, 0: 1.0}) == {0: 1.0, 1: 2.0}


def test_what_a_replicate_does_to_both_cancels() -> None:
    shared = [1.0, 10.0, 100.0]
    ours = {seed: 0.9 * value * (1 + seed / 1000) for seed, value in enumerate(shared)}
    found = paired(ours, dict(enumerate(shared)))
    assert found.high < 1
    assert found.centre == pytest.approx(0.9, rel=0.01)


def test_only_what_both_have_is_paired() -> None:
    assert paired({0: 1.0, 1: 1.0, 5: 1.0}, {0: 2.0, 1: 2.0, 7: 2.0}).count == 2
    assert paired({0: 1.0}, {1: 1.0}) == NOTHING


def test_pairs_are_made_in_each_round_before_a_process_is_summed_up() -> None:
    ours, theirs = {0: 1.0, 1: 100.0, 2: 3.0}, {0: 2.0, 1: 100.0, 2: 6.0}
    assert paired(ours, theirs, rounds=3).centre == 0.5


@pytest.mark.parametrize(("value", "base", "known"), [
    (0.0, 0.0, 1.0), (2.0, 0.0, math.inf), (-2.0, 0.0, -math.inf), (0.0, 2.0, 0.0), (3.0, 2.0, 1.5),
])  # fmt: skip
def test_ratios_of_zeros(value: float, base: float, known: float) -> None:
    assert ratio(value, base) == known


def test_the_strongest_is_one_system_and_not_the_luckiest_of_each_round() -> None:
    values = {"steady": {0: 2.0, 1: 2.0, 2: 2.0}, "wild": {0: 1.0, 1: 3.0, 2: 3.0}, "absent": {}}
    assert strongest(values, "lower") == "steady"
    assert strongest(values, "higher") == "wild"
    assert strongest({}, "lower") is None


@pytest.mark.parametrize(("values", "exact", "words"), [
    ([2.0], True, "exact"), ([2.0], False, "1 run"), ([2.0, 2.0], False, "the same in 2 runs"),
    ([1.0, 2.0, 3.0], False, "1 to 3 in 3 runs"), ([], False, ""),
])  # fmt: skip
def test_how_far_a_figure_is_known_in_words(values: Sequence[float], exact: bool, words: str) -> None:
    assert effect(values, exact=exact).within("{:g}".format) == words


def test_ninety_five_percent_stands_only_where_it_is_true() -> None:
    assert "95 %" not in effect([1.0, 2.0, 3.0, 4.0, 5.0]).within(str)
    assert "at 95 %, 6 runs" in effect([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).within(str)


def test_a_confidence_that_is_just_reached_is_reached() -> None:
    # Least and most of six contain the median in 1 - 2 / 64 of all samples.
    assert order_interval([1, 2, 3, 4, 5, 6], 1 - 2 / 64) == (1, 6)
    assert order_interval([1, 2, 3, 4, 5, 6], 1 - 1 / 64) == (-math.inf, math.inf)


def test_the_strongest_is_found_on_what_all_have() -> None:
    values = {"late": {0: 1.0, 1: 100.0, 2: 100.0}, "steady": {0: 2.0}}
    assert strongest(values, "lower") == "late"
    # Without anything in common each has what it has.
    assert strongest({"late": {1: 100.0}, "steady": {0: 2.0}}, "lower") == "steady"
