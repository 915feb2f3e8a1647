from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from wavetank.protocols.overlays.identifiers import (
    BITS,
    SPACE,
    digit,
    hashed,
    identifiers,
    key_of,
    ring_distance,
    shared_digits,
    to_wire,
)

IDENTIFIERS = st.integers(0, SPACE - 1)


def test_an_identifier_is_the_sha1_of_the_text() -> None:
    assert hashed("agent") == int(hashlib.sha1(b"agent").hexdigest(), 16)
    assert to_wire(hashed("agent")) == hashlib.sha1(b"agent").digest()


def test_another_salt_gives_other_identifiers_and_the_same_one_the_same() -> None:
    assert identifiers(1, 50) == identifiers(1, 50)
    assert not set(identifiers(1, 50)) & set(identifiers(2, 50))
    assert len(set(identifiers(1, 4096))) == 4096
    assert key_of("a") != key_of("b")


@given(IDENTIFIERS, IDENTIFIERS)
def test_the_ring_distance_is_symmetric_and_at_most_half_the_ring(one: int, other: int) -> None:
    assert ring_distance(one, other) == ring_distance(other, one) <= SPACE // 2
    assert ring_distance(one, (one + 5) % SPACE) == 5


@given(IDENTIFIERS, IDENTIFIERS)
def test_digits_are_those_of_the_hexadecimal_text(one: int, other: int) -> None:
    left, right = f"{one:040x}", f"{other:040x}"
    shared = next((place for place in range(40) if left[place] != right[place]), 40)
    assert shared_digits(one, other) == shared
    assert all(digit(one, place) == int(left[place], 16) for place in range(BITS // 4))
