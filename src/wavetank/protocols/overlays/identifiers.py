"""Identifiers of nodes and keys: 160 bits, on a ring, and in the metric space of exclusive or.

Nodes and keys share one space, so a key belongs to the nodes that are close to it; what close means is the overlay's
affair.

Source: I. Stoica et al., "Chord", SIGCOMM 2001 (SHA-1 as the hash of nodes and keys).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from wavetank.errors import BadValueError

BITS = 160
BYTES = BITS // 8
SPACE = 1 << BITS
DIGIT_BITS = 4
DIGITS = BITS // DIGIT_BITS


def hashed(text: str) -> int:
    """Return the identifier of a text."""
    return int.from_bytes(hashlib.sha1(text.encode(), usedforsecurity=False).digest(), "big")


@lru_cache(maxsize=65_536)
def key_of(text: str) -> int:
    """Return the identifier of a capability, as a number below 2**160."""
    return hashed(f"key {text}")


@lru_cache(maxsize=16)
def identifiers(salt: int, size: int) -> tuple[int, ...]:
    """Return the identifiers of the nodes 0 to ``size - 1``.

    Parameters
    ----------
    salt : int
        Names the network: another one, other identifiers.
    size : int
        Nodes.

    Raises
    ------
    BadValueError
        If two nodes share one.
    """
    found = tuple(hashed(f"node {salt} {index}") for index in range(size))
    if len(set(found)) != size:
        raise BadValueError("Two nodes have the same identifier.", given=salt, hint="take another salt")
    return found


def to_wire(identifier: int) -> bytes:
    """Return an identifier as the 20 bytes that a message carries."""
    return identifier.to_bytes(BYTES, "big")


def ring_distance(one: int, other: int) -> int:
    """Return how far apart two identifiers are on the ring, the shorter way."""
    clockwise = (other - one) % SPACE
    return min(clockwise, SPACE - clockwise)


def shared_digits(one: int, other: int) -> int:
    """Return how many leading digits of four bits two identifiers share."""
    return (BITS - (one ^ other).bit_length()) // DIGIT_BITS


def digit(identifier: int, place: int) -> int:
    """Return a digit, counted from the most significant one."""
    return (identifier >> (BITS - DIGIT_BITS * (place + 1))) & (2**DIGIT_BITS - 1)
