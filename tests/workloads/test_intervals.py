"""Unions, common times and differences, against sets of whole units of time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.workloads.intervals import Intervals, common, union, without

SPANS = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 8)), max_size=9)


def made(spans):
    return union([begin for begin, _ in spans], [begin + length for begin, length in spans])


def units(spans):
    return {at for begin, length in spans for at in range(begin, begin + length)}


def held(intervals):
    return {at for begin, end in zip(*intervals, strict=True) for at in range(begin, end)}


@given(SPANS)
def test_a_union_holds_what_any_interval_holds_in_the_fewest_pieces(spans):
    found = made(spans)
    assert held(found) == units(spans)
    assert found.length == len(units(spans))
    assert (found.starts[1:] > found.ends[:-1]).all()
    assert (found.ends > found.starts).all()


@given(SPANS, SPANS)
def test_common_times_and_differences_are_those_of_sets(one, other):
    assert held(common(made(one), made(other))) == units(one) & units(other)
    assert held(without(made(one), made(other))) == units(one) - units(other)


def test_times_of_this_century_in_nanoseconds_stay_exact():
    begin = 1_735_632_360_000_000_001
    assert union([begin], [begin + 3]).length == 3


def test_an_interval_that_ends_before_it_starts_is_refused():
    with pytest.raises(BadValueError, match="ends before it starts"):
        union([3], [2])
    with pytest.raises(BadValueError, match="a start and an end"):
        union([3, 4], [5])


def test_nothing_is_the_empty_set():
    nothing = union([], [])
    assert nothing.length == 0
    assert common(nothing, made([(0, 3)])).length == 0
    assert without(made([(0, 3)]), nothing) == Intervals(np.array([0]), np.array([3]))
