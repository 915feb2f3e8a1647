"""Swaps: loads never rise, swaps that do not pay are not made, and they end near the best places by brute force."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.training.plans.migration import Reshuffle, Stay, Swaps, View, check_places, rank_loads


def view_of(load, ranks, *, swap_s=0.0, token_s=1.0):
    load = np.array(load, float)
    return View(load, np.arange(load.size) % ranks, ranks, token_s, swap_s)


@given(load=st.lists(st.integers(0, 1000), min_size=12, max_size=12), ranks=st.sampled_from([2, 3, 4, 6]))
def test_the_busiest_rank_and_the_variance_never_rise_and_ranks_keep_their_numbers(load, ranks):
    view = view_of(load, ranks)
    before = rank_loads(view.load, view.owner, ranks)
    places = Swaps(threshold=1.0).place(view)
    check_places(view, places)
    after = rank_loads(view.load, places, ranks)
    assert after.max() <= before.max()
    assert after.var() <= before.var() + 1e-6
    assert after.sum() == before.sum()


def test_two_ranks_of_three_experts_end_within_the_bound_of_the_best_places():
    draws = np.random.default_rng(0)
    for _ in range(60):
        load = draws.integers(1, 100, 6)
        view = view_of(load, 2)
        best = min(max(sum(load[list(p[:3])]), sum(load[list(p[3:])])) for p in permutations(range(6)))
        found = rank_loads(view.load, Swaps(threshold=1.0).place(view), 2).max()
        again = rank_loads(view.load, Reshuffle().place(view), 2).max()
        assert best <= min(found, again)
        assert found <= 7 / 6 * best


def test_a_swap_by_hand_and_what_it_must_earn():
    # Ranks have 10 + 4 and 2 + 1; the first of the two best swaps is 10 for 2.
    view = view_of([10, 2, 4, 1], 2)
    assert rank_loads(view.load, view.owner, 2).tolist() == [14, 3]
    assert Swaps().place(view).tolist() == [1, 0, 0, 1]
    # The busiest falls from 14 to 11.
    for swap_s, moved in ((299.0, 2), (300.0, 0)):
        dear = view_of([10, 2, 4, 1], 2, swap_s=swap_s)
        assert check_places(dear, Swaps(horizon=100.0).place(dear)) == moved


def test_what_is_earned_is_what_the_busiest_of_all_ranks_falls():
    # Ranks have 9 + 9, 17 + 1 and 1 + 1: the second cannot be relieved, and a swap for the first saves no step a thing.
    view = view_of([9, 17, 1, 9, 1, 1], 3, swap_s=1.0)
    assert rank_loads(view.load, view.owner, 3).tolist() == [18, 18, 2]
    assert check_places(view, Swaps(threshold=1.0).place(view)) == 0
    # Two equal ranks that both can be: what two swaps save together is held against what both cost.
    for swap_s, moved in ((399.0, 4), (401.0, 0)):
        both = view_of([9, 9, 1, 1, 9, 9, 1, 1], 4, swap_s=swap_s)
        assert check_places(both, Swaps(threshold=1.0).place(both)) == moved


def test_all_are_placed_anew_only_where_that_pays_if_asked():
    # Largest first: 10 and 1 against 4 and 2; two experts move, and the busiest falls from 14 to 11.
    for swap_s, moved in ((299.0, 2), (300.0, 0)):
        view = view_of([10, 2, 4, 1], 2, swap_s=swap_s)
        assert check_places(view, Reshuffle(pays=True).place(view)) == moved
        assert check_places(view, Reshuffle().place(view)) == 2


def test_below_the_threshold_nothing_moves():
    view = view_of([6, 5, 6, 5], 2)
    assert check_places(view, Swaps(threshold=1.1).place(view)) == 0
    assert check_places(view, Swaps(threshold=1.0).place(view)) == 2
    assert check_places(view, Stay().place(view)) == 0


def test_equal_ranks_that_are_the_busiest_are_all_relieved():
    view = view_of([9, 9, 1, 9, 9, 1], 3)
    assert rank_loads(view.load, view.owner, 3).tolist() == [18, 18, 2]
    found = rank_loads(view.load, Swaps(threshold=1.0).place(view), 3)
    assert found.max() == 18
    view = view_of([9, 9, 1, 5, 5, 1], 3)
    assert rank_loads(view.load, Swaps(threshold=1.0).place(view), 3).max() == 10


def test_places_that_are_not_even_are_refused():
    view = view_of([1, 2, 3, 4], 2)
    for owner in ([0, 0, 0, 1], [0, 1]):
        with pytest.raises(BadValueError, match="as many experts"):
            check_places(view, np.array(owner))
