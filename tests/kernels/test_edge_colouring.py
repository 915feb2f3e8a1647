"""As many matchings as the largest degree, whatever the graph."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.edge_colouring import colour_edges, largest_degree


def is_proper(senders, receivers, colours):
    ends = [set(zip(side.tolist(), colours.tolist(), strict=True)) for side in (senders, receivers)]
    return all(len(each) == senders.size for each in ends)


def test_thousands_of_random_multigraphs_take_exactly_their_largest_degree():
    draws = np.random.default_rng(7)
    for _ in range(3000):
        n, edges = draws.integers(1, 9), draws.integers(1, 60)
        senders, receivers = draws.integers(0, n, edges), draws.integers(0, n, edges)
        colours = colour_edges(senders, receivers)
        assert is_proper(senders, receivers, colours)
        assert np.unique(colours).tolist() == list(range(largest_degree(senders, receivers)))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=150))
def test_few_receivers_of_many_senders_take_their_degree(pairs):
    senders, receivers = np.array(pairs).T
    colours = colour_edges(senders, receivers)
    assert is_proper(senders, receivers, colours)
    assert colours.max() + 1 == np.bincount(receivers).max() or colours.max() + 1 == np.bincount(senders).max()


def test_all_to_all_among_hundreds_takes_one_round_per_peer():
    n = 200
    senders, receivers = np.divmod(np.arange(n * n), n)
    others = senders != receivers
    # In an order that no round robin has.
    order = np.random.default_rng(1).permutation(int(others.sum()))
    senders, receivers = senders[others][order], receivers[others][order]
    colours = colour_edges(senders, receivers)
    assert is_proper(senders, receivers, colours)
    assert np.bincount(colours).tolist() == [n] * (n - 1)


def test_equal_edges_give_equal_colours_and_none_give_none():
    senders, receivers = np.array([3, 1, 1, 3]), np.array([0, 0, 2, 2])
    assert colour_edges(senders, receivers).tolist() == colour_edges(senders.copy(), receivers.copy()).tolist()
    assert colour_edges(np.array([], int), np.array([], int)).size == 0
    assert largest_degree(np.array([], int), np.array([], int)) == 0


@pytest.mark.parametrize(
    ("senders", "receivers"), [([0, 1], [0]), ([-1], [0]), ([[0]], [[1]]), ([0.5], [0]), ([0], [np.nan])]
)
def test_edges_without_two_ends_are_refused(senders, receivers):
    for each in (colour_edges, largest_degree):
        with pytest.raises(BadValueError):
            each(np.array(senders), np.array(receivers))


def test_numbers_that_are_far_apart_take_no_room():
    senders, receivers = np.array([0, 1 << 60, 0]), np.array([1 << 61, 1 << 61, 5])
    assert largest_degree(senders, receivers) == 2
    assert colour_edges(senders, receivers).tolist() == colour_edges(np.array([0, 1, 0]), np.array([1, 1, 0])).tolist()


def test_a_message_to_oneself_and_one_sent_twice_are_edges_like_others():
    colours = colour_edges(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 0]))
    assert is_proper(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 0]), colours)
    assert np.unique(colours).tolist() == [0, 1, 2]


def test_a_table_that_no_memory_holds_is_refused():
    many = np.arange(40_000)
    assert largest_degree(many, 0 * many) == 40_000
    with pytest.raises(BadValueError, match="too much memory"):
        colour_edges(many, 0 * many)
