"""Trying everything finds known answers, and refuses to take for ever."""

import pytest

from wavetank.errors import BadValueError
from wavetank.training.layouts.exhaustive import shortest_slice
from wavetank.training.layouts.interface import Tensor


def tensors(*drawn):
    return [Tensor(str(i), (size,), block) for i, (size, block) in enumerate(drawn)]


def test_known_answers():
    assert shortest_slice(tensors((10, 1)), 2) == 5
    assert shortest_slice(tensors((10, 10)), 2) == 10
    assert shortest_slice(tensors((9, 3), (1, 1)), 2) == 6
    assert shortest_slice(tensors((4, 4), (6, 6), (2, 2)), 2) == 8
    assert shortest_slice(tensors((4, 4), (6, 6), (2, 2)), 2, any_order=True) == 6
    assert shortest_slice(tensors((10, 1)), 2, unit=4) == 8


def test_a_longer_slice_may_be_worse():
    # Slices of 4 hold two blocks of 2 each; slices of 5 would cut one.
    assert shortest_slice(tensors((12, 2)), 3) == 4
    assert shortest_slice(tensors((12, 2)), 3, unit=5) == 10


def test_large_buckets_are_refused():
    with pytest.raises(BadValueError, match="small buckets"):
        shortest_slice(tensors((500, 1)), 2)
    with pytest.raises(BadValueError, match="small buckets"):
        shortest_slice(tensors(*[(1, 1)] * 8), 2)
