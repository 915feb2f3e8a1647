"""Rivals cut as they say: held against walks over every element."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wavetank.training.layouts.interface import Tensor
from wavetank.training.layouts.rivals import Fsdp1, Fsdp2, GridPadding
from wavetank.training.layouts.vescale import plan_layout


def cut_by_walking(shape, block, dimension, ranks):
    """Count blocks with elements of several ranks, element by element."""
    part = -(-shape[dimension] // ranks)
    inner = 1
    for extent in shape[dimension + 1 :]:
        inner *= extent
    owners = {}
    size = inner
    for extent in shape[: dimension + 1]:
        size *= extent
    for i in range(size):
        owners.setdefault(i // block, set()).add(i // inner % shape[dimension] // part)
    return sum(len(each) > 1 for each in owners.values())


@given(shape=st.lists(st.integers(1, 12), min_size=1, max_size=3), block=st.integers(1, 30), ranks=st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_cut_blocks_of_equal_parts_are_those_of_a_walk(shape, block, ranks):
    found = Fsdp2(dimensions="first").shard([Tensor("a", tuple(shape), block)], ranks)
    assert found.blocks_cut == cut_by_walking(shape, block, 0, ranks)
    assert found.slice_elements == -(-shape[0] // ranks) * (found.elements // shape[0])


@pytest.mark.parametrize("block", [1, 4, 6, 7, 20, 100])
def test_another_dimension_is_cut_where_that_pads_less(block):
    shape = (3, 4, 5)
    best = Fsdp2().shard([Tensor("a", shape, block)], 4)
    assert best.slice_elements == 15
    assert best.blocks_cut == cut_by_walking(shape, block, 1, 4)
    assert Fsdp2(dimensions="first").shard([Tensor("a", shape, block)], 4).slice_elements == 20
    # Five does not divide the others evenly.
    assert Fsdp2().shard([Tensor("a", (3, 4, 4), block)], 5).slice_elements == 16


def test_more_ranks_than_experts_double_the_buffer_unless_experts_are_one_matrix():
    experts = [Tensor("a", (128, 30, 10), 10)]
    assert Fsdp2().shard(experts, 256).padding(256) == pytest.approx(1.0)
    flat = Fsdp2(experts="flat").shard(experts, 256)
    assert flat.padding(256) == pytest.approx(0.0)
    assert flat.copies


def test_equal_slices_by_element_pad_less_than_a_rank_has_and_cut_blocks():
    tensors = [Tensor("a", (7,), 7), Tensor("b", (6,), 2)]
    found = Fsdp1().shard(tensors, 4)
    assert (found.slice_elements, found.blocks_cut, found.copies) == (4, 3, False)
    assert Fsdp1(unit=8).shard(tensors, 4).slice_elements == 8


def test_a_grid_has_whole_cells_and_small_tensors_in_the_rests():
    # Cells of 4: the first takes two and leaves 3, where 2 and 1 find room.
    tensors = [Tensor("a", (5,), 4), Tensor("b", (2,), 4), Tensor("c", (1,), 4)]
    assert GridPadding().shard(tensors, 2) == (4, 8, 0, False, 1)
    assert GridPadding().shard([*tensors, Tensor("d", (1,), 4)], 2).slice_elements == 8


@given(st.lists(st.tuples(st.integers(1, 500), st.sampled_from([1, 6, 10])), min_size=1, max_size=6), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
@example([(1, 1), (13, 1)], 3)
@example([(22, 1), (3, 1), (2, 1), (11, 1), (5, 1), (26, 1)], 6)
def test_where_all_blocks_are_equal_the_best_order_is_never_longer_than_a_grid(drawn, ranks):
    tensors = [Tensor(str(i), (size,), 6) for i, (size, _) in enumerate(drawn)]
    planned = plan_layout(tensors, ranks, order="best")
    assert planned.slice_elements <= GridPadding().shard(tensors, ranks).slice_elements
    mixed = [Tensor(str(i), (size,), block) for i, (size, block) in enumerate(drawn)]
    assert GridPadding().shard(mixed, ranks).slice_elements * ranks >= sum(each.size for each in mixed)
