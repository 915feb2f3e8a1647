"""No block is cut, ever; slices are the shortest; orders and numbers out of range are refused."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.platforms import model
from wavetank.training.layouts.exhaustive import shortest_slice
from wavetank.training.layouts.interface import Tensor
from wavetank.training.layouts.parameters import buckets
from wavetank.training.layouts.vescale import VescaleFsdp, plan_buffers, plan_layout, units_by_rank

SMALL = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 9)), min_size=1, max_size=4)
LARGE = st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 10**5)), min_size=1, max_size=12)


def tensors_of(drawn):
    return [Tensor(str(i), (size,), block) for i, (size, block) in enumerate(drawn)]


def pieces_of(layout):
    """Return which rank holds each block, by looking at its first and last element."""
    for begin, tensor in zip(layout.offsets, layout.tensors, strict=True):
        for first in range(0, tensor.size, tensor.block):
            last = min(first + tensor.block, tensor.size) - 1
            yield (begin + first) // layout.slice_elements, (begin + last) // layout.slice_elements


@given(drawn=LARGE, ranks=st.integers(1, 4096), unit=st.sampled_from([1, 2, 32, 100]))
@settings(max_examples=60, deadline=None)
def test_no_block_is_ever_cut_and_every_element_has_one_place(drawn, ranks, unit):
    tensors = tensors_of([(size, max(block, size // 2000)) for size, block in drawn])
    layout = plan_layout(tensors, ranks, unit=unit)
    assert all(first == last for first, last in pieces_of(layout))
    assert layout.blocks_cut() == 0
    assert layout.slice_elements % unit == 0
    assert layout.slice_elements >= math.ceil(sum(each.size for each in tensors) / ranks)
    held = sum(end - begin for t in range(len(tensors)) for begin, end in (layout.held(t, r) for r in range(ranks)))
    assert held + layout.padding_elements == ranks * layout.slice_elements


@given(drawn=SMALL, ranks=st.integers(1, 6), unit=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_slices_are_the_shortest_for_the_order(drawn, ranks, unit):
    tensors = tensors_of(drawn)
    assert plan_layout(tensors, ranks, unit=unit).slice_elements == shortest_slice(tensors, ranks, unit=unit)


@given(drawn=SMALL, ranks=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_the_best_order_is_between_the_given_one_and_the_best_of_all(drawn, ranks):
    tensors = tensors_of(drawn)
    best = plan_layout(tensors, ranks, order="best")
    assert best.slice_elements <= plan_layout(tensors, ranks).slice_elements
    assert best.slice_elements >= shortest_slice(tensors, ranks, any_order=True)
    assert [each.name for each in best.tensors] == [each.name for each in tensors]


def test_another_order_can_be_better():
    tensors = tensors_of([(4, 4), (6, 6), (2, 2)])
    assert plan_layout(tensors, 2).slice_elements == 8
    assert plan_layout(tensors, 2, order="best").slice_elements == 6
    assert shortest_slice(tensors, 2, any_order=True) == 6


def test_a_buffer_that_many_tensors_share_has_slices_of_all_their_blocks():
    tensors = [Tensor("a", (7 * 64,), 7), Tensor("b", (11 * 64,), 11)]
    assert plan_layout(tensors, 16).slice_elements % 77 == 0
    assert [each.slice_elements for each in plan_buffers(tensors, 16)] == [28, 44]
    alone = [Tensor("a", (7 * 64,), 7), Tensor("b", (14 * 64,), 14)]
    assert len(plan_buffers(alone, 16)) == 1


@given(drawn=LARGE, ranks=st.integers(1, 64))
@settings(max_examples=30, deadline=None)
def test_some_buffers_are_never_longer_than_one_for_each_block_and_hold_every_tensor_once(drawn, ranks):
    tensors = tensors_of(drawn)
    some = plan_buffers(tensors, ranks)
    apart = [[each for each in tensors if each.block == block] for block in {each.block for each in tensors}]
    assert sum(e.slice_elements for e in some) <= sum(plan_layout(each, ranks).slice_elements for each in apart)
    assert sorted(each.name for layout in some for each in layout.tensors) == sorted(each.name for each in tensors)
    assert all(layout.blocks_cut() == 0 for layout in some)


def test_large_blocks_are_no_long_search():
    for side in (10**9, 1 << 48):
        began = time.monotonic()
        whole = [Tensor(str(i), (side,), side) for i in range(3)]
        assert plan_layout(whole, 2).slice_elements == 2 * side
        assert plan_layout(whole[:1], 1 << 20).slice_elements == side
        assert time.monotonic() - began < 5


def test_a_search_that_would_not_end_is_refused():
    odd = [(9653994010, 894171327), (5011415729, 479332152), (10464181475, 951289225), (860236492, 518029237)]
    with pytest.raises(BadValueError, match="larger unit"):
        plan_layout(tensors_of([(1000 * size, 1000 * block + 1) for size, block in odd]), 256)
    assert plan_layout(tensors_of(odd), 256, unit=1024).blocks_cut() == 0


def test_ranks_without_elements_and_one_rank_are_no_trouble():
    layout = plan_layout([Tensor("a", (3,), 2)], 8)
    assert layout.slice_elements == 2
    assert [layout.held(0, rank) for rank in range(3)] == [(0, 2), (2, 3), (3, 3)]
    assert plan_layout([Tensor("a", (3,), 2)], 1).slice_elements == 3


def test_units_of_a_tensor_are_its_whole_blocks_by_rank():
    tensors = [Tensor("a", (5,), 2), Tensor("b", (9,), 4)]
    layout = plan_layout(tensors, 3)
    for t, tensor in enumerate(tensors):
        units = units_by_rank(layout, t)
        assert units.sum() == tensor.blocks
        ends = np.minimum(np.cumsum(units) * tensor.block, tensor.size)
        assert ends.tolist() == [layout.held(t, rank)[1] for rank in range(3)]


def test_layers_of_deepseek_v3_have_little_padding_on_256_ranks_and_in_some_buffers_on_1024():
    sharder, some = VescaleFsdp(), VescaleFsdp(buffers="some")
    layer = buckets(model("DeepSeek-V3"), block_rows=16)[2]
    assert sharder.shard(layer.tensors, 256).padding(256) == pytest.approx(0.0206, abs=0.0005)
    assert some.shard(layer.tensors, 1024).padding(1024) < 0.02 < sharder.shard(layer.tensors, 1024).padding(1024)
    assert some.shard(layer.tensors, 1024).buffers > 1


@pytest.mark.parametrize(
    "wrong", [{"unit": 0}, {"unit": 1.5}, {"unit": 1 << 31}, {"order": "random"}, {"ranks": 0}, {"tensors": []}]
)
def test_what_cannot_be_planned_is_refused(wrong):
    given = {"tensors": [Tensor("a", (3,))], "ranks": 2, **wrong}
    with pytest.raises(BadValueError):
        plan_layout(given.pop("tensors"), given.pop("ranks"), **given)


def test_a_cut_tensor_has_no_units():
    from wavetank.training.layouts.rivals import Fsdp1

    with pytest.raises(BadValueError, match="whole blocks"):
        units_by_rank(Fsdp1().layout([Tensor("a", (6,), 3)], 3), 0)
