from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wavetank.sim.rng import Draws, stream, stream_key

PATHS = st.lists(st.one_of(st.integers(0, 9), st.text("abc", max_size=3)), max_size=4)


def test_a_key_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert stream_key(0, "arrivals") == 3363976757694483099
    assert stream(1, "router", 3).integers(0, 1000, 4).tolist() == [81, 46, 906, 126]


@given(st.integers(0, 2**31), PATHS)
def test_equal_names_give_equal_streams(seed: int, path: list[str | int]) -> None:
    assert np.array_equal(stream(seed, *path).random(8), stream(seed, *path).random(8))


@given(st.tuples(st.integers(0, 9), PATHS), st.tuples(st.integers(0, 9), PATHS))
def test_different_names_give_different_streams(
    one: tuple[int, list[str | int]], other: tuple[int, list[str | int]]
) -> None:
    # True for ints and texts that look alike, and wherever the path is divided.
    same = [(type(part), part) for part in (one[0], *one[1])] == [(type(part), part) for part in (other[0], *other[1])]
    assert (stream_key(one[0], *one[1]) == stream_key(other[0], *other[1])) == same


def test_a_new_consumer_does_not_shift_the_draws_of_another() -> None:
    alone = stream(5, "arrivals").random(4)
    stream(5, "faults").random(100)
    assert np.array_equal(stream(5, "arrivals").random(4), alone)


def test_single_draws_are_the_same_on_every_machine_and_in_every_version() -> None:
    draws = Draws(stream_key(1, "node", 2))
    assert [draws.below(1000) for _ in range(4)] == [767, 938, 405, 229]
    assert draws.count == 4


@given(st.integers(0, 2**64 - 1), st.integers(1, 50))
def test_single_draws_stay_in_their_range(key: int, bound: int) -> None:
    draws = Draws(key)
    for _ in range(5):
        assert 0 <= draws.below(bound) < bound
        assert 0.0 <= draws.random() < 1.0
        assert 3 <= draws.between(3, 3 + bound) <= 3 + bound
        assert draws.exponential(2.0) >= 0.0
    assert sorted(draws.shuffled(range(bound))) == list(range(bound))
    assert len(set(draws.sample(range(bound), min(3, bound)))) == min(3, bound)
    assert draws.choice([7]) == 7


def test_single_draws_are_spread_evenly() -> None:
    draws = Draws(stream_key(0, "spread"))
    found = np.bincount([draws.below(10) for _ in range(20000)])
    assert found.min() > 1800
    assert found.max() < 2200
    assert 0.27 < sum(draws.chance(0.3) for _ in range(10000)) / 10000 < 0.33
    assert 1.9 < sum(draws.exponential(2.0) for _ in range(10000)) / 10000 < 2.1


def test_a_copy_of_a_stream_goes_on_from_the_same_place() -> None:
    draws = Draws(5)
    draws.bits()
    other = draws.copy()
    assert other == draws
    assert hash(other) == hash(draws)
    assert other.bits() == draws.bits()
    other.bits()
    assert other != draws
    assert repr(other) == "Draws(5, 3)"
