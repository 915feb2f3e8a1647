"""The longest item first, to the bin where it ends soonest and has room."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.balanced_assignment import longest_first


def largest(costs, where, bins):
    return np.bincount(where, costs, bins).max()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(2, 3))
def test_the_largest_load_is_within_grahams_bound_of_the_best_one(costs, bins):
    costs = np.array(costs, float)
    best = min(largest(costs, np.array(each), bins) for each in product(range(bins), repeat=costs.size))
    assert largest(costs, longest_first(costs, costs, bins), bins) <= (4 / 3 - 1 / (3 * bins)) * best + 1e-9


def test_grahams_worst_case_is_met():
    # Two bins: 3, 3, 2, 2, 2 could be 6 and 6.
    costs = np.array([3.0, 3.0, 2.0, 2.0, 2.0])
    assert largest(costs, longest_first(costs, costs, 2), 2) == 7


def test_a_full_bin_is_passed_over_and_what_fits_nowhere_has_none():
    where = longest_first(np.array([9.0, 1.0, 1.0]), np.array([1.0, 3.0, 3.0]), 2, room=4)
    assert where.tolist() == [0, 1, 0]
    assert longest_first(np.array([2.0, 1.0]), np.array([1.0, 9.0]), 2, room=4).tolist() == [0, -1]


def test_a_bin_of_twice_the_speed_gets_twice_the_work():
    where = longest_first(np.ones(300), np.ones(300), 2, speeds=np.array([2.0, 1.0]))
    assert np.bincount(where).tolist() == [200, 100]


@pytest.mark.parametrize(
    "given",
    [
        {"bins": 0},
        {"costs": [np.nan]},
        {"sizes": [-1.0]},
        {"speeds": [0.0, 1.0]},
        {"costs": [1.0, 2.0]},
        {"costs": [np.inf]},
        {"sizes": [np.inf]},
        {"speeds": [np.inf, 1.0]},
        {"room": np.nan},
        {"room": -1.0},
    ],
)
def test_what_is_no_item_and_no_bin_is_refused(given):
    words = {"costs": [1.0], "sizes": [1.0], "bins": 2, "speeds": None, "room": np.inf} | given
    speeds = None if words["speeds"] is None else np.array(words["speeds"])
    with pytest.raises(BadValueError):
        longest_first(np.array(words["costs"]), np.array(words["sizes"]), words["bins"], words["room"], speeds)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(0, 9),
)
def test_the_rule_written_out_gives_the_same(items, speeds, room):
    expected = [-1] * len(items)
    bins = [[0, 0] for _ in speeds]
    for place in sorted(range(len(items)), key=lambda each: (-items[each][0], -items[each][1], each)):
        cost, size = items[place]
        ends = [
            ((load + cost) / speed, taken, number)
            for number, ((load, taken), speed) in enumerate(zip(bins, speeds, strict=True)) if taken + size <= room
        ]  # fmt: skip
        if ends:
            expected[place] = min(ends)[2]
            bins[expected[place]][0] += cost
            bins[expected[place]][1] += size
    costs, sizes = np.array(items, float).T
    assert longest_first(costs, sizes, len(speeds), room, np.array(speeds, float)).tolist() == expected
