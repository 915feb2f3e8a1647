from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wavetank.rng import stream, stream_key

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
