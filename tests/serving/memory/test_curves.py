"""Stack distances and curves against a list that is searched, and against caches of every size."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.serving.memory.curves import NEVER, miss_ratio_curve, stack_distances


def by_list(items):
    stack, found = [], []
    for item in items:
        found.append(len(stack) - stack.index(item) if item in stack else NEVER)
        if item in stack:
            stack.remove(item)
        stack.append(item)
    return found


def misses(items, size):
    cache, missed = OrderedDict(), 0
    for item in items:
        if item in cache:
            cache.move_to_end(item)
        else:
            missed += 1
            cache[item] = None
            if len(cache) > size:
                cache.popitem(last=False)
    return missed


@given(st.lists(st.integers(-5, 12), max_size=80))
@settings(max_examples=80, deadline=None)
def test_one_pass_gives_mattsons_distances_and_the_misses_of_every_size(items):
    assert stack_distances(np.array(items, dtype=int)).tolist() == by_list(items)
    if items:
        curve = miss_ratio_curve(np.array(items), np.arange(20))
        assert curve * len(items) == pytest.approx([misses(items, size) for size in range(20)])


def test_what_is_no_stream_is_refused_and_nothing_is_nothing():
    with pytest.raises(BadValueError):
        stack_distances(np.array([[1, 2]]))
    with pytest.raises(BadValueError):
        stack_distances(np.array([1.5]))
    for sizes in ([-1, 2], [1.5], [float("nan")]):
        with pytest.raises(BadValueError, match="whole numbers of items"):
            miss_ratio_curve(np.array([1, 2, 1]), sizes)
    assert len(stack_distances(np.array([], dtype=int))) == 0
    assert np.isnan(miss_ratio_curve(np.array([], dtype=int), [1, 2])).all()
