"""Frames and windows: what contradicts itself is refused, and clocks can be moved."""

from __future__ import annotations

import numpy as np
import pytest
from tests.insight.collectives.windows import S, row, window

from wavetank.errors import BadValueError
from wavetank.insight.collectives.interface import NEVER, Frames, Window, by_rank, joined


def test_other_clocks_move_all_times_of_a_rank_but_none_that_is_never():
    seen = window([row(0), row(1, ended=None, polled=5.0)], members=((0, 1),))
    moved = seen.shifted(np.array([0, 7 * S]))
    assert (moved.frames.entered_ns - seen.frames.entered_ns).tolist() == [0, 7 * S]
    assert (moved.now_ns - seen.now_ns).tolist() == [0, 7 * S]
    assert moved.frames.ended_ns.tolist() == [2 * S, NEVER] and moved.frames.polled_ns.tolist() == [NEVER, 12 * S]
    assert not moved.frames.done[1] and moved.frames.entered.all()


@pytest.mark.parametrize(
    ("rows", "members"),
    [
        ([row(4)], ((0, 1, 2, 3),)),
        ([row(0, comm=1)], ((0, 1),)),
        ([row(-1)], ((0, 1),)),
        ([row(2)], ((0, 1), (2, 3))),
        ([row(0)], ((0, 0, 1),)),
    ],
)
def test_frames_that_contradict_the_communicators_are_refused(rows, members):
    with pytest.raises(BadValueError):
        window(rows, members).check()


def test_columns_of_unequal_length_are_refused():
    good = window([row(0)], ((0, 1),))
    with pytest.raises(BadValueError, match="one length"):
        Window(good.frames._replace(seq=np.zeros(2, np.int64)), good.members, good.now_ns).check()


def test_slots_are_the_places_of_members():
    seen = window([row(3, comm=1), row(1), row(2, comm=1)], members=((1, 0), (2, 3)))
    assert seen.frames.rank.tolist() == [1, 2, 3] and seen.slot_of.tolist() == [0, 2, 3]
    seen.check()


def test_frames_in_order_of_ranks_keep_the_order_of_each_rank():
    parts = [window([row(1, seq=5), row(1, seq=6)]).frames, window([row(0, seq=7)]).frames]
    together = by_rank(joined(parts))
    assert together.rank.tolist() == [0, 1, 1] and together.seq.tolist() == [7, 5, 6]
    assert joined([]).rank.size == 0 and isinstance(joined([]), Frames)
    assert together.chosen(np.array([2])).seq.tolist() == [6]
