"""Threads for kernels, and how work is cut for them."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.kernels.crew import crew_of, cuts, parts_of


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_calls(threads):
    with crew_of(threads) as crew:
        assert crew(lambda a, b: a - b, [(5, 1), (7, 3), (9, 9)]) == [4, 4, 0]


def test_one_thread_is_the_caller():
    with crew_of(1) as crew:
        assert crew(threading.get_ident, [()]) == [threading.get_ident()]


def test_an_error_in_a_thread_reaches_the_caller():
    with pytest.raises(ZeroDivisionError), crew_of(2) as crew:
        crew(lambda x: 1 // x, [(1,), (0,)])


@given(st.integers(0, 1000), st.integers(1, 9))
def test_cuts_cover_everything_once_and_differ_by_one(n, parts):
    found = cuts(n, parts)
    assert [i for start, stop in found for i in range(start, stop)] == list(range(n))
    sizes = [stop - start for start, stop in found]
    assert max(sizes) - min(sizes) <= 1


def test_little_work_is_not_divided():
    assert parts_of(1000, 8) == [(0, 1000)]
    assert len(parts_of(1 << 20, 2)) == 2
    assert len(parts_of(1 << 33, 1)) == 4
