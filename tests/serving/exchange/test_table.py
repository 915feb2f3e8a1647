"""Tables of experts that change in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.exchange.table import ExpertTable, contiguous


def test_contiguous_experts_are_spread_evenly_and_may_be_fewer_than_ranks() -> None:
    assert contiguous(5, 2).expert_of.tolist() == [0, 1, 2, 3, 4, -1]
    few = contiguous(2, 4)
    assert few.expert_of.tolist() == [0, 1, -1, -1]
    assert few.slots_of(np.array([[1, 0]]), 3).tolist() == [[1, 0]]
    assert (few.epoch, few.members, few.missing) == (1, (0, 1, 2, 3), ())


def test_a_change_is_seen_in_the_same_arrays_and_counted() -> None:
    table = ExpertTable(2, 2, 2, replicas=2)
    held = [table.active, table.expert_of, table.slots_with, table.replicas]
    places = [each.ctypes.data for each in held]
    table.change(expert_of=[0, 1, 1, -1])
    assert held[2].tolist() == [[0, -1], [1, 2]]
    table.change(active=[0, 1])
    assert held[2].tolist() == [[-1, -1], [2, -1]]
    assert (table.missing, table.members, table.epoch) == ((0,), (1,), 2)
    assert [each.ctypes.data for each in (table.active, table.expert_of, table.slots_with, table.replicas)] == places


def test_of_several_slots_the_own_one_is_taken_and_else_all_in_turn() -> None:
    table = ExpertTable(2, 3, 1, replicas=2)
    table.change(expert_of=[0, 1, 1])
    ones = np.ones((4, 1), np.int64)
    assert table.slots_of(ones, 2).ravel().tolist() == [2, 2, 2, 2]
    assert sorted(table.slots_of(ones, 0).ravel().tolist()) == [1, 1, 2, 2]
    # Ranks with one token each do not all ask the same slot.
    more = ExpertTable(1, 4, 1, replicas=2)
    more.change(expert_of=[0, 0, -1, -1])
    assert [more.slots_of(ones[:1] * 0, rank).item() for rank in (2, 3)] == [0, 1]
    table.change(active=[1, 1, 0])
    assert table.slots_of(ones, 2).ravel().tolist() == [1, 1, 1, 1]
    assert table.slots_of(ones[:0], 0).shape == (0, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"active": [1]}, "takes part"), ({"active": [0, 0]}, "takes part"), ({"active": [2, 1]}, "takes part"),
     ({"expert_of": [0, 1, 5, -1]}, "one of the experts"), ({"expert_of": [0]}, "one of the experts"),
     ({"expert_of": [0, 0, 0, 1]}, "more slots"), ({"active": [0.5, 1.0]}, "whole numbers"),
     ({"expert_of": [0.9, 1, 1, float("nan")]}, "whole numbers")],
)  # fmt: skip
def test_changes_that_cannot_be_leave_the_table_as_it_is(change: dict[str, Any], says: str) -> None:
    table = ExpertTable(2, 2, 2, replicas=2)
    table.change(expert_of=[0, 1, 1, -1])
    before = [each.tolist() for each in (table.active, table.expert_of, table.slots_with)]
    with pytest.raises(BadValueError, match=says):
        table.change(**change)
    assert [each.tolist() for each in (table.active, table.expert_of, table.slots_with)] == before
    assert table.epoch == 1


def test_tables_without_room_and_experts_that_nobody_has_are_refused() -> None:
    with pytest.raises(BadValueError, match="more experts than slots"):
        ExpertTable(5, 2, 2)
    with pytest.raises(BadValueError, match="other sizes"):
        ExpertTable(1, 0, 2)
    table = contiguous(4, 2)
    with pytest.raises(BadValueError, match="no such expert"):
        table.slots_of(np.array([[4]]), 0)
    table.change(active=[1, 0])
    with pytest.raises(WavetankError, match="expert 2"):
        table.slots_of(np.array([[0, 2]]), 0)
