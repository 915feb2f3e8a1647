"""Which operations hang, and which of them holds up the others."""

from __future__ import annotations

from tests.insight.collectives.windows import row, window

from wavetank.insight.collectives.stalls import all_missing, roots, stalls


def test_an_operation_hangs_when_nobody_in_it_has_moved_for_long():
    stuck = [row(rank, ended=None, entered=600.0 + rank) for rank in range(4)]
    assert stalls(window(stuck, now=900.0), 300.0) == []
    (found,) = stalls(window(stuck, now=904.0), 300.0)
    assert (found.comm, found.seq, found.missing.size, found.still_ns) == (0, 0, 0, 301 * 10**9)
    lively = [*stuck[:3], row(3, ended=None, entered=600.0, moved=903.0)]
    assert stalls(window(lively, now=904.0), 300.0) == []


def test_who_is_done_is_part_of_the_operation_and_not_missing():
    rows = [row(0), row(1, ended=None), row(2, ended=None)]
    (found,) = stalls(window(rows), 300.0)
    assert found.missing.tolist() == [3] and len(found.rows) == 3


def test_later_operations_of_the_others_do_not_hide_the_oldest():
    rows = [row(0, seq=4), row(0, seq=5, ended=None), row(1, seq=4, ended=None), row(2, seq=4), row(3, seq=4)]
    (found,) = stalls(window(rows), 300.0)
    assert found.seq == 4 and found.missing.size == 0


def test_a_rank_that_hangs_elsewhere_is_no_cause():
    members = ((0, 1), (2, 3), (0, 1, 2, 3))
    rows = [row(0, ended=None), row(2, comm=2, ended=None), row(3, comm=2, ended=None)]
    first, circle = roots(window(rows, members), stalls(window(rows, members), 300.0))
    # Rank 1 lacks in both; rank 0 lacks in the large one as a victim.
    assert [each.comm for each in first] == [0, 2] and not circle
    assert [each.missing.tolist() for each in first] == [[1], [1]] and all_missing(first).tolist() == [1]


def test_operations_that_wait_for_each_other_are_a_circle():
    members = ((0, 1), (0, 1))
    rows = [row(0, comm=0, ended=None), row(1, comm=1, ended=None)]
    first, circle = roots(window(rows, members), stalls(window(rows, members), 300.0))
    assert not first and {each.comm for each in circle} == {0, 1}


def test_nothing_hangs_where_nothing_is_open_or_nothing_was_read():
    assert stalls(window([row(0), row(1)]), 300.0) == []
    unread = window([row(0, ended=None)])
    unread.now_ns[0] = -(1 << 62)
    assert stalls(unread, 300.0) == []
