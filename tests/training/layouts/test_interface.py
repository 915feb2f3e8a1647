"""Layouts know who holds what, and refuse what is none."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.layouts.interface import Footprint, Layout, Tensor, check_bucket, check_ranks, cut_blocks

TENSORS = (Tensor("a", (2, 3), 3), Tensor("b", (5,), 2))


def test_every_element_of_every_tensor_is_on_one_rank():
    layout = Layout(tensors=TENSORS, ranks=3, slice_elements=5, offsets=(0, 7))
    assert [layout.held(0, rank) for rank in range(3)] == [(0, 5), (5, 6), (6, 6)]
    assert [layout.held(1, rank) for rank in range(3)] == [(0, 0), (0, 3), (3, 5)]
    assert (layout.elements, layout.padding_elements) == (15, 4)
    # The cut of a is after 5 of blocks of 3, that of b after 3 of blocks of 2.
    assert layout.blocks_cut() == 2
    assert layout.footprint() == Footprint(5, 11, 2, copies=False)
    assert layout.footprint().padding(3) == pytest.approx(4 / 11)


def test_a_block_with_two_cuts_counts_once_and_ends_do_not_count():
    assert cut_blocks(Tensor("a", (20,), 10), np.array([-3, 0, 2, 5, 10, 20, 25])) == 1


@pytest.mark.parametrize("offsets", [(0, 5), (-1, 7), (0, 11)])
def test_tensors_that_overlap_or_leave_the_buffer_are_refused(offsets):
    with pytest.raises(BadValueError, match="overlap or leave"):
        Layout(tensors=TENSORS, ranks=3, slice_elements=5, offsets=offsets)


@pytest.mark.parametrize(("shape", "block"), [((0,), 1), ((2, -1), 1), ((3,), 0), ((), 1), ((2.5,), 1), ((True,), 1)])
def test_tensors_without_elements_or_blocks_are_refused(shape, block):
    with pytest.raises(BadValueError, match="no such"):
        Tensor("a", shape, block)


def test_a_tensor_counts_its_elements_and_blocks():
    assert (Tensor("a", (7, 3), 4).size, Tensor("a", (7, 3), 4).blocks) == (21, 6)


def test_buckets_of_nothing_and_numbers_that_are_none_of_ranks_are_refused():
    with pytest.raises(BadValueError, match="A bucket has tensors"):
        check_bucket([], 2)
    for ranks in (0, -1, 2.0, True, 1 << 21):
        with pytest.raises(BadValueError, match="number of ranks"):
            check_ranks(ranks)
