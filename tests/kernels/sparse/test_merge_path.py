"""The merge path: where it crosses a diagonal, and how evenly it is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.kernels.sparse.merge_path import crossing, partition, row_of

lengths = st.lists(st.integers(0, 9), max_size=40)


def starts_of(row_lengths):
    return np.concatenate(([0], np.cumsum(np.array(row_lengths, np.int64)))).astype(np.int64)


def walked(starts):
    """Return the coordinates after every step, walking: a row ends as soon as its nonzeros are consumed."""
    row, nonzero, path = 0, 0, [(0, 0)]
    while row < starts.size - 1 or nonzero < starts[-1]:
        if row < starts.size - 1 and starts[row + 1] <= nonzero:
            row += 1
        else:
            nonzero += 1
        path.append((row, nonzero))
    return path


@given(lengths)
def test_the_crossings_are_those_of_a_walk(row_lengths):
    starts = starts_of(row_lengths)
    assert [crossing(starts, diagonal) for diagonal in range(len(row_lengths) + int(starts[-1]) + 1)] == walked(starts)


@given(lengths, st.integers(1, 20))
def test_every_piece_has_as_many_steps_and_the_last_fewer(row_lengths, steps):
    starts = starts_of(row_lengths)
    points = partition(starts, steps)
    assert (np.diff(points, axis=0) >= 0).all()
    assert tuple(points[0]) == (0, 0)
    assert tuple(points[-1]) == (len(row_lengths), starts[-1])
    lengths_of_pieces = np.diff(points.sum(axis=1))
    assert (lengths_of_pieces[:-1] == steps).all()
    assert (lengths_of_pieces[-1:] <= steps).all()


def test_a_row_with_nearly_everything_is_cut_like_any_other():
    starts = starts_of([1] * 50 + [900] + [1] * 50)
    assert np.ptp(np.diff(partition(starts, 1101 // 3 + 1).sum(axis=1))) <= 3


@pytest.mark.parametrize(("nonzero", "row"), [(0, 1), (1, 1), (2, 4), (4, 4)])
def test_the_row_of_a_nonzero_is_never_an_empty_one(nonzero, row):
    assert row_of(starts_of([0, 2, 0, 0, 3, 0]), nonzero, 0, 5) == row
