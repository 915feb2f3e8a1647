"""The rule takes the cheapest size that is fast enough, else the fastest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.insight.series.scaling import sizes_for

MEMORY = np.array([256.0, 128.0, 512.0])


@given(st.lists(st.tuples(*[st.integers(1, 40)] * 3), min_size=1, max_size=8), st.integers(1, 40))
def test_no_size_that_is_fast_enough_costs_less(predicted, target):
    table = np.array(predicted, float).T
    for day, chosen in enumerate(sizes_for(table, MEMORY, target)):
        fast = [size for size in range(3) if table[size, day] <= target]
        if fast:
            assert chosen in fast
            assert MEMORY[chosen] * table[chosen, day] == min(MEMORY[size] * table[size, day] for size in fast)
        else:
            assert table[chosen, day] == table[:, day].min()


def test_of_equals_the_smaller_memory_is_taken():
    assert sizes_for(np.array([[10.0], [20.0], [5.0]]), MEMORY, 30.0).tolist() == [1]
    assert sizes_for(np.array([[10.0], [10.0], [10.0]]), MEMORY, 5.0).tolist() == [1]


@pytest.mark.parametrize("predicted", [np.ones((2, 3)), np.ones(3), np.full((3, 1), np.nan), np.zeros((3, 1))])
def test_predictions_without_sense_are_refused(predicted):
    with pytest.raises(BadValueError):
        sizes_for(predicted, MEMORY, 1.0)
