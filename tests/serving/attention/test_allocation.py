"""Lengths of blocks within a number of summaries: against every choice there is, and the best by another program."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.serving.attention.allocation import exact, greedy, total

LENGTHS = (16, 32, 64, 128)


def recalls_of(seed: int, heads: int, falling: bool) -> np.ndarray:
    """Return recalls that fall with the length, by steps of any size, or any recalls."""
    rng = np.random.default_rng(seed)
    drawn = rng.random((heads, 4)) ** rng.choice([0.2, 1.0, 4.0])
    return np.sort(drawn, 1)[:, ::-1].copy() if falling else drawn


def spent(chosen: np.ndarray) -> float:
    """Return how many summaries a token has, all heads together."""
    return float(sum(1 / LENGTHS[each] for each in chosen))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.booleans())
def test_the_exact_choice_is_the_best_of_all(seed: int, heads: int, falling: bool) -> None:
    recalls = recalls_of(seed, heads, falling)
    best = max(
        sum(round(recalls[head, each] * 1e6) for head, each in enumerate(choice))
        for choice in product(range(4), repeat=heads)
        if spent(np.array(choice)) <= heads / 32 + 1e-12
    )
    found = exact(recalls, LENGTHS, 32)
    assert spent(found) <= heads / 32 + 1e-12
    assert total(recalls, found) == best


@pytest.mark.parametrize(("heads", "share"), [(8, 0.97), (64, 0.99)])
def test_steps_are_near_the_best_and_never_below_one_length_for_all(heads: int, share: float) -> None:
    for seed in range(12):
        recalls = recalls_of(seed, heads, True)
        found = greedy(recalls, LENGTHS, 32)
        assert spent(found) <= heads / 32 + 1e-12
        ours, best = total(recalls, found), total(recalls, exact(recalls, LENGTHS, 32))
        assert share * best <= ours <= best
        assert ours >= total(recalls, np.full(heads, LENGTHS.index(32)))


def test_where_steps_end_below_one_length_for_all_every_head_has_that_length() -> None:
    # The first shortening of the first head takes what the others would need.
    recalls = np.array([[1.0, 0.6, 0.4, 0.2], [0.7, 0.6, 0.4, 0.2], [0.5, 0.5, 0.2, 0.2]])
    assert greedy(recalls, LENGTHS, 32).tolist() == [1, 1, 1]
    assert total(recalls, exact(recalls, LENGTHS, 32)) >= 1_700_000


def test_heads_that_need_short_blocks_get_them() -> None:
    needs, does_not = [1.0, 0.8, 0.5, 0.2], [0.9, 0.9, 0.9, 0.89]
    for choose in (greedy, exact):
        assert choose(np.array([needs, does_not, does_not, needs]), LENGTHS, 32).tolist()[1:3] != [0, 0]
        found = choose(np.array([needs, does_not]), LENGTHS, 32)
        assert LENGTHS[found[0]] < LENGTHS[found[1]]


def test_a_gain_that_takes_two_steps_is_seen() -> None:
    # A single step gains nothing, two gain everything.
    assert greedy(np.array([[0.9, 0.9, 0.1, 0.1], [0.5, 0.5, 0.5, 0.5]]), LENGTHS, 32).tolist() == [1, 3]


def test_equal_heads_of_one_length_keep_it() -> None:
    same = np.array([[0.95, 0.9, 0.2, 0.1]] * 6)
    assert greedy(same, LENGTHS, 32).tolist() == [1] * 6
    assert exact(same, LENGTHS, 32).tolist() == [1] * 6


@pytest.mark.parametrize(
    ("recalls", "lengths", "average", "says"),
    [
        (np.ones((2, 3)), LENGTHS, 32, "one recall"),
        (np.full((2, 4), np.nan), LENGTHS, 32, "one recall"),
        (np.full((2, 4), 1.1), LENGTHS, 32, "one recall"),
        (np.ones((0, 4)), LENGTHS, 32, "one recall"),
        (np.ones((2, 2)), (32, 16), 32, "ascend"),
        (np.ones((2, 2)), (24, 64), 32, "divide"),
        (np.ones((2, 2)), (16, 64), 48, "divide"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(recalls: np.ndarray, lengths: tuple, average: int, says: str) -> None:
    for choose in (greedy, exact):
        with pytest.raises(BadValueError, match=says):
            choose(recalls, lengths, average)
