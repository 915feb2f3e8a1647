"""The scoreboard: figures by hand, brute force for thresholds, and systems that are held out whole."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.diagnosis.scoreboard import (
    Counts,
    Event,
    alarm_score,
    area_of_risk,
    held_out,
    interval,
    label_counts,
    macro_f1,
    merged,
    micro,
    risk_at,
    risk_coverage,
    threshold_for,
)  # fmt: skip
from wavetank.errors import BadValueError


def test_three_true_two_said_one_right():
    counts = label_counts([{"a", "b", "c"}], [{"a", "d"}])
    all_of_them = micro(counts)
    assert all_of_them == Counts(right=1, wrong=1, missed=2)
    assert (all_of_them.precision, all_of_them.recall, all_of_them.f1) == (0.5, pytest.approx(1 / 3), 0.4)
    assert counts["d"] == Counts(wrong=1) and macro_f1(counts) == 0.25


def test_labels_are_counted_over_cases_and_only_those_that_count():
    counts = label_counts([{"a"}, {"a", "b"}, set()], [{"a"}, {"b"}, {"b"}], labels=["a", "x"])
    assert counts == {"a": Counts(right=1, missed=1), "x": Counts()}
    assert math.isnan(counts["x"].f1) and macro_f1(counts) == counts["a"].f1


def test_a_score_over_nothing_is_none():
    nothing = Counts()
    assert all(math.isnan(each) for each in (nothing.precision, nothing.recall, nothing.f1, macro_f1({})))
    with pytest.raises(BadValueError):
        label_counts([{"a"}], [])


def test_a_bootstrap_covers_the_mean_and_shrinks_with_cases():
    values = np.random.default_rng(1).normal(5, 1, 400)
    low, high = interval(400, lambda at: float(values[at].mean()))
    few = interval(25, lambda at: float(values[:25][at].mean()))
    assert low < values.mean() < high and high - low < 0.25 < few[1] - few[0]
    assert all(math.isnan(each) for each in interval(3, lambda at: math.nan))
    with pytest.raises(BadValueError):
        interval(0, lambda at: 0.0)


def test_repeated_alarms_are_one_and_only_those_that_find_nothing_are_false():
    events = [Event(subject="n1", begin_s=100, end_s=200, since_s=120), Event(subject="n2", begin_s=100, end_s=200)]
    alarms = {"n1": [150, 160, 205, 900, 930], "n3": [150], "n2": [201]}
    score = alarm_score(alarms, events, days=2.0, within_s=60)
    assert (score.events, score.found, score.recall) == (2, 1, 0.5)
    assert score.missed == (events[1],)
    # The merged one at 900, that of n3, and that of n2, which came too late.
    assert score.false_alarms == 3 and score.false_per_day == 1.5
    assert score.delays_s == (30.0,) and score.time_to_locate_s == 30.0
    assert math.isnan(alarm_score({}, [], days=1.0).recall)
    assert math.isnan(alarm_score({}, events, days=1.0).time_to_locate_s)


def test_a_group_of_alarms_between_two_that_find_an_event_still_counts_by_its_own_times():
    events = [Event(subject="n", begin_s=0, end_s=10)]
    assert alarm_score({"n": [5, 20]}, events, days=1, within_s=5).false_alarms == 1
    assert alarm_score({"n": [5, 20]}, events, days=1, within_s=15).false_alarms == 0


def test_times_that_are_none_and_events_that_end_before_they_begin_are_refused():
    with pytest.raises(BadValueError):
        alarm_score({"n": [math.nan]}, [], days=1)
    with pytest.raises(BadValueError):
        alarm_score({}, [Event(subject="n", begin_s=2, end_s=1)], days=1)
    with pytest.raises(BadValueError):
        alarm_score({}, [], days=0)
    assert merged([], 1.0) == [] and merged([3, 1, 2, 9], 1.0) == [(1.0, 3.0), (9.0, 9.0)]


SCORES = st.dictionaries(
    st.sampled_from("abc"),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([math.nan, 0.0, 1.0, 2.0, 3.0, 4.0])), max_size=12),
    max_size=3,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(SCORES, st.integers(0, 6), st.integers(0, 5))
def test_no_higher_threshold_has_more_alarms_than_are_allowed_and_the_next_lower_one_has(scores, allowed, within):
    split = {name: tuple(zip(*rows, strict=True)) or ((), ()) for name, rows in scores.items()}

    def alarms(threshold):
        return sum(len(merged([time for time, value in rows if value > threshold], within)) for rows in scores.values())

    found = threshold_for(split, per_day=allowed, days=1.0, within_s=within)
    values = sorted({value for rows in scores.values() for _, value in rows if not math.isnan(value)})
    assert all(alarms(each) <= allowed for each in [found, *values] if each >= found)
    lower = [each for each in [-math.inf, *values] if each < found]
    assert not lower or alarms(lower[-1]) > allowed


def test_risk_against_coverage_by_hand():
    coverage, risk = risk_coverage([0.9, 0.8, 0.8, 0.1], [False, True, False, True])
    assert coverage.tolist() == [0.25, 0.75, 1.0] and risk.tolist() == [0.0, pytest.approx(1 / 3), 0.5]
    assert area_of_risk([0.9, 0.8, 0.8, 0.1], [False, True, False, True]) == pytest.approx(0.5 / 3 + 0.125)
    # At one half: the surest case, and half of the next two, of which one is wrong.
    assert risk_at([0.9, 0.8, 0.8, 0.1], [False, True, False, True], 0.5) == pytest.approx(0.25)
    assert risk_at([1.0, 0.5], [True, True], 1.0) == 1.0
    for bad in (([], []), ([0.5], [True, False]), ([math.nan], [True])):
        with pytest.raises(BadValueError):
            risk_coverage(*bad)
    with pytest.raises(BadValueError):
        risk_at([0.5], [True], 0.0)


def test_systems_are_held_out_whole():
    systems = [f"s{number % 7}" for number in range(70)]
    out = held_out(systems, 0.3, seed=4)
    names = {name for name, each in zip(systems, out, strict=True) if each}
    assert len(names) == 2 and out.sum() == 20
    assert (held_out(systems, 0.3, seed=4) == out).all()
    assert 0 < held_out(["a", "b"], 0.01).sum() < 2 and 0 < held_out(["a", "b"], 0.99).sum() < 2
    with pytest.raises(BadValueError):
        held_out(["a", "a"], 0.5)
