from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.broadcast import erasure
from wavetank.protocols.broadcast.erasure import committed, decode, encode, fragment_bytes, is_proved, merkle_tree


@given(st.binary(max_size=200), st.integers(1, 20), st.integers(0, 20), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_k_fragments_give_the_message_back(message: bytes, needed: int, spare: int, rng: random.Random) -> None:
    fragments = encode(message, needed + spare, needed)
    assert {len(fragment) for fragment in fragments} == {fragment_bytes(len(message), needed)}
    kept = rng.sample(range(needed + spare), needed)
    assert decode({place: fragments[place] for place in kept}, needed) == message


@pytest.mark.parametrize(("count", "needed", "length"), [(301, 101, 5_000), (31, 11, 40_000), (4, 2, 9_001)])
def test_long_and_short_rows_and_many_fragments_come_back(count: int, needed: int, length: int) -> None:
    rng = random.Random(3)
    message = rng.randbytes(length)
    fragments = encode(message, count, needed)
    assert decode({place: fragments[place] for place in range(count - needed, count)}, needed) == message


def test_long_rows_are_coded_as_their_pieces_are() -> None:
    message = random.Random(4).randbytes(4 * 1800 - 4)
    whole = encode(message, 6, 4)
    assert len(whole[0]) // 2 >= 512
    columns = slice(1000, 1800)
    rows = np.stack([np.frombuffer(fragment[columns], dtype="<u2") for fragment in whole[:4]])
    found = erasure._interpolated(np.arange(4), rows, np.arange(4, 6))
    assert [row.tobytes() for row in found] == [fragment[columns] for fragment in whole[4:]]


def test_too_few_or_uneven_fragments_give_nothing() -> None:
    fragments = encode(b"message", 5, 3)
    assert decode({0: fragments[0], 1: fragments[1]}, 3) is None
    assert decode({0: fragments[0], 1: fragments[1], 2: fragments[2] + b"xx"}, 3) is None
    assert decode({0: b"", 1: b"", 2: b""}, 3) is None


def test_a_length_beyond_the_fragments_is_no_message() -> None:
    assert decode({0: b"\xff\xff", 1: b"\xff\xff", 2: b"ab"}, 3) is None


@pytest.mark.parametrize(("count", "needed"), [(3, 4), (3, 0), (70_000, 2)])
def test_impossible_codes_are_refused(count: int, needed: int) -> None:
    with pytest.raises(BadValueError, match="no such erasure code"):
        encode(b"x", count, needed)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 31, 301])
def test_a_path_proves_its_fragment_in_its_place_alone(count: int) -> None:
    fragments = [bytes([place % 251, place // 251]) for place in range(count)]
    root, paths = merkle_tree(fragments)
    for place in range(count):
        assert is_proved(root, fragments[place], place, count, paths[place])
        assert not is_proved(root, fragments[place] + b"x", place, count, paths[place])
        assert not is_proved(root, fragments[place], place, count, (*paths[place], root))
        if count > 1:
            assert not is_proved(root, fragments[place], (place + 1) % count, count, paths[place])
            assert not is_proved(root, fragments[place], place, count, paths[place][:-1])


def test_a_commitment_is_fragments_with_their_tree() -> None:
    root, fragments, paths = committed(b"message", 7, 3)
    assert fragments == encode(b"message", 7, 3)
    assert (root, paths) == merkle_tree(fragments)
