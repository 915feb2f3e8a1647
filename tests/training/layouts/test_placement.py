"""Placements share out every element once, and redistribution on real processes gives what slicing gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.layouts.placement import (
    EvenShard,
    Partial,
    RaggedShard,
    Replicate,
    local_interval,
    redistribute,
    unit_beside_shard,
    unit_of,
)

SIZE = 30
PLACEMENTS = {
    "ragged": RaggedShard((1, 2, 0), 10), "one": RaggedShard((0, 0, 1), 30), "even": EvenShard(3), "all": Replicate(),
    "summands": Partial(),
}  # fmt: skip


def test_shares_are_those_of_the_paper():
    assert np.diff(RaggedShard((1, 2, 1, 1), 4).bounds(40, 4)).tolist() == [8, 16, 8, 8]
    assert RaggedShard((2, 1), 4).bounds(10, 2).tolist() == [0, 8, 10]
    assert RaggedShard((0, 1, 0), 7).bounds(7, 3).tolist() == [0, 0, 7, 7]


@given(
    units=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(sum),
    unit=st.integers(1, 9),
    less=st.integers(0, 8),
)
def test_every_element_is_on_one_rank_and_units_are_whole(units, unit, less):
    size = sum(units) * unit - min(less, unit - 1)
    bounds = RaggedShard(tuple(units), unit).bounds(size, len(units))
    assert (bounds[0], bounds[-1]) == (0, size)
    assert all(end % unit == 0 or end == size for end in bounds)
    assert (np.diff(bounds) >= 0).all()


def test_equal_rows_leave_the_last_ranks_with_less():
    assert EvenShard(3).bounds(15, 4).tolist() == [0, 6, 12, 15, 15]


def test_units_are_rows_of_leading_dimensions_and_whole_strides():
    assert unit_of((4, 5, 6)) == 30
    assert unit_of((4, 5, 6), dims=2, rows=3) == 18
    assert unit_of((4, 5, 6), dims=3) == 1
    assert unit_beside_shard(6, 4) == 12
    with pytest.raises(BadValueError, match="leading dimensions"):
        unit_of((4, 5), dims=3)


@pytest.mark.parametrize("wrong", [((), 1), ((0, 0), 1), ((-1, 2), 1), ((1.5,), 1), ((1,), 0)])
def test_shares_and_units_of_nothing_are_refused(wrong):
    with pytest.raises(BadValueError):
        RaggedShard(*wrong)


def test_a_placement_of_other_ranks_or_units_is_refused():
    with pytest.raises(BadValueError, match="one number of ranks"):
        RaggedShard((1, 1)).bounds(4, 3)
    with pytest.raises(BadValueError, match="cannot be shared"):
        RaggedShard((1, 2)).bounds(4, 2)


def move_all(rank):
    """Return the largest error of all redistributions in a rank."""
    import torch

    whole = np.arange(SIZE) + 0.5
    worst = 0.0
    for source in PLACEMENTS.values():
        for target in PLACEMENTS.values():
            if isinstance(target, Partial):
                continue
            start, end = local_interval(source, SIZE, rank.number, 3)
            local = torch.from_numpy(whole[start:end] * (rank.number + 1 if isinstance(source, Partial) else 1))
            found = redistribute(rank.group, rank.number, 3, local, SIZE, source, target).numpy()
            low, high = local_interval(target, SIZE, rank.number, 3)
            wanted = whole[low:high] * (6 if isinstance(source, Partial) else 1)
            if found.shape != wanted.shape:
                return float("inf")
            worst = max(worst, float(np.abs(found - wanted).max(initial=0.0)))
    return worst


def test_three_processes_move_tensors_between_all_placements():
    pytest.importorskip("torch", reason="needs the library torch")
    from wavetank.live.ranks import run_ranks

    assert run_ranks(move_all, 3) == [0.0, 0.0, 0.0]


def test_alone_nothing_is_sent_and_wrong_parts_are_refused():
    torch = pytest.importorskip("torch", reason="needs the library torch")
    local = torch.arange(6.0)
    found = redistribute(None, 0, 1, local, 6, RaggedShard((1,), 6), Replicate())
    assert found.tolist() == local.tolist()
    with pytest.raises(BadValueError, match="holds something else"):
        redistribute(None, 0, 1, local[:5], 6, RaggedShard((1,), 6), Replicate())
    with pytest.raises(BadValueError, match="summands"):
        redistribute(None, 0, 1, local, 6, Replicate(), Partial())
