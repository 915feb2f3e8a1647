"""The compiled segments: counts of pieces, ranges of columns, moving and spreading vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.kernels.sparse import lanes


def starts_of(lengths):
    return np.concatenate(([0], np.cumsum(np.array(lengths, np.int64)))).astype(np.int64)


def test_a_register_holds_eight_doubles_or_sixteen_singles():
    assert (lanes.lanes_of(np.float64), lanes.lanes_of(np.float32)) == (8, 16)


@pytest.mark.parametrize(("nonzeros", "steps"), [(1, 2), (8, 2), (17, 4), (24, 4), (512, 64), (5000, 64)])
def test_the_last_segment_is_as_short_as_it_may(nonzeros, steps):
    assert lanes.steps_of(0, nonzeros, 8) == steps


@given(st.lists(st.integers(0, 700), min_size=1, max_size=30).filter(sum))
def test_pieces_are_the_ends_of_rows_and_of_lanes(lengths):
    starts = starts_of(lengths)
    nonzeros, size = int(starts[-1]), lanes.STEPS * 8
    segments = -(-nonzeros // size)
    first_row, pieces = np.zeros(segments + 1, np.int64), np.zeros(segments + 1, np.int64)
    lanes.count_pieces(starts, 8, 0, segments, first_row, pieces)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    for segment in range(segments):
        low, high = segment * size, min(nonzeros, (segment + 1) * size)
        steps = lanes.steps_of(segment, nonzeros, 8)
        ends = set(starts[1:]) | set(range(low + steps, high, steps)) | {high}
        assert pieces[segment] == sum(low < end <= high for end in ends)
        assert first_row[segment] == rows[low]


def test_the_range_of_columns_is_that_of_each_segment():
    columns = np.concatenate((np.full(512, 7), np.arange(100_000, 100_300)))
    lowest = np.zeros(3, np.uint32)
    assert lanes.column_ranges(columns, 8, 0, 2, lowest) == 299
    assert lowest.tolist() == [7, 100_000, 0]


def test_taking_scales_and_orders():
    x, out = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    lanes.take(x, np.array([2, 0, 1], np.uint32), 2.0, out, 0, 3)
    assert out.tolist() == [6, 2, 4]
    lanes.take(x, None, 3.0, out, 1, 3)
    assert out.tolist() == [6, 6, 9]


def test_spreading_leaves_zero_elsewhere():
    y = np.full(4, 9.0)
    lanes.spread(np.array([1.0, 2.0]), np.array([1, 3]), y)
    assert y.tolist() == [0, 1, 0, 2]
