"""Thread pools return results in the order of the calls, and parts cover everything once."""

import os
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.machine import thread_pool as module
from wavetank.machine.thread_pool import cuts, parts_of, thread_pool


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_come_in_the_order_of_the_calls(threads):
    pool = thread_pool(threads)
    assert pool(pow, [(base, 2) for base in range(50)]) == [base**2 for base in range(50)]
    assert pool(pow, []) == []


def test_a_crew_of_one_works_in_the_caller():
    pool = thread_pool(1)
    assert pool(threading.get_ident, [()]) == [threading.get_ident()]


def test_a_crew_of_three_works_at_once():
    meeting = threading.Barrier(3)
    pool = thread_pool(3)
    places = pool(meeting.wait, [(30,)] * 3)
    assert sorted(places) == [0, 1, 2]


def test_crews_share_their_threads():
    pool = thread_pool(4)
    pool(len, [("ab",)] * 8)
    before = threading.active_count()
    for _ in range(20):
        thread_pool(4)(len, [("ab",)] * 8)
    assert threading.active_count() < before + 20


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_call_reaches_the_caller(threads):
    with pytest.raises(ZeroDivisionError):
        thread_pool(threads)(divmod, [(1, 1), (1, 0), (2, 1)])


@given(st.integers(0, 1 << 40), st.integers(1, 64))
def test_cuts_are_neighbours_that_cover_all_and_differ_by_one_at_most(n, parts):
    found = cuts(n, parts)
    assert len(found) == parts
    assert (found[0][0], found[-1][1]) == (0, n)
    assert all(left[1] == right[0] for left, right in pairwise(found))
    lengths = {stop - start for start, stop in found}
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 1 << 36), st.integers(1, 64))
def test_parts_are_short_enough_for_32_bit_counters(n, threads):
    found = parts_of(n, threads)
    assert (found[0][0], found[-1][1]) == (0, n)
    assert max(stop - start for start, stop in found) <= module._ITEMS_OF_A_PART
    assert len(found) <= max(threads, -(-n // module._ITEMS_OF_A_PART))


def test_short_arrays_are_not_divided():
    assert parts_of(1000, 8) == [(0, 1000)]
    assert parts_of(0, 8) == [(0, 0)]


def test_long_arrays_are_divided_among_all_threads():
    assert len(parts_of(1 << 24, 8)) == 8
    assert len(parts_of(1 << 20, 2)) == 2


def test_one_thread_takes_a_huge_array_in_several_parts():
    assert len(parts_of(1 << 33, 1)) == 4


def test_idle_threads_sleep_unless_the_user_asked_for_something(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    module.let_idle_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    module.let_idle_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
