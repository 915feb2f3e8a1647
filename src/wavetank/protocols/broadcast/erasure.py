"""An erasure code and the Merkle tree over its fragments: any k of n fragments give the message back.

A message is k columns of symbols of GF(2^16), read as the values of polynomials at the points 0 to k - 1; a fragment is
the values at one point, so the first k fragments are the message itself.  Encoding and decoding are the same step:
from the values at k points to those at others.  The Merkle root binds all fragments; a path proves one of them.

Source: I. S. Reed, G. Solomon, "Polynomial Codes over Certain Finite Fields", SIAM 8(2), 1960; R. Merkle, "A Digital
Signature Based on a Conventional Encryption Function", CRYPTO 1987.

Differs from the source:
1. Symbols of 16 bits, so that there can be more than 255 fragments.
2. Leaves and inner nodes of the tree are hashed with different prefixes; an odd node moves up as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.protocols.broadcast.accounting import digest_of
from wavetank.sim.compiled import compiled

MOST_FRAGMENTS = 2**16
_POLYNOMIAL = 0x1100B
_ORDER = 2**16 - 1
_LENGTH_BYTES = 4


def _tables() -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    powers = np.zeros(2 * _ORDER, dtype=np.uint16)
    logs = np.zeros(_ORDER + 1, dtype=np.int32)
    value = 1
    for exponent in range(_ORDER):
        powers[exponent] = powers[exponent + _ORDER] = value
        logs[value] = exponent
        value <<= 1
        if value > _ORDER:
            value ^= _POLYNOMIAL
    return powers, logs


_POWERS, _LOGS = _tables()


def fragment_bytes(length: int, needed: int) -> int:
    """Return how long a fragment of a message of ``length`` bytes is, when ``needed`` of them give it back."""
    return 2 * max(-(-(length + _LENGTH_BYTES) // (2 * needed)), 1)


def encode(message: bytes, count: int, needed: int) -> tuple[bytes, ...]:
    """Return the fragments of a message.

    Parameters
    ----------
    message : bytes
    count : int
        Fragments.
    needed : int
        How many give the message back.

    Raises
    ------
    BadValueError
        For numbers that make no code.
    """
    if not 1 <= needed <= count <= MOST_FRAGMENTS:
        raise BadValueError(
            "There is no such erasure code.", given=(count, needed), allowed=f"1 <= needed <= count <= {MOST_FRAGMENTS}"
        )
    width = fragment_bytes(len(message), needed)
    padded = (len(message).to_bytes(_LENGTH_BYTES, "big") + message).ljust(width * needed, b"\0")
    # A copy may be written to; so all calls below are of one type, compiled once.
    data = np.frombuffer(padded, dtype="<u2").reshape(needed, width // 2).copy()
    parity = _interpolated(np.arange(needed), data, np.arange(needed, count))
    return (*(row.tobytes() for row in data), *(row.tobytes() for row in parity))


def decode(fragments: Mapping[int, bytes], needed: int) -> bytes | None:
    """Return the message, or None when the fragments are of none.

    Parameters
    ----------
    fragments : mapping of int to bytes
        Fragments by place; ``needed`` of them are used.
    needed : int
    """
    places = sorted(fragments)[:needed]
    widths = {len(fragments[place]) for place in places}
    if len(places) < needed or len(widths) != 1 or min(widths) % 2 or not min(widths):
        return None
    known = np.stack([np.frombuffer(fragments[place], dtype="<u2") for place in places])
    lacking = [place for place in range(needed) if place not in fragments]
    rows = {place: row for place, row in zip(places, known, strict=True) if place < needed}
    if lacking:
        found = _interpolated(np.array(places), known, np.array(lacking))
        rows.update(zip(lacking, found, strict=True))
    padded = b"".join(rows[place].tobytes() for place in range(needed))
    length = int.from_bytes(padded[:_LENGTH_BYTES], "big")
    message = padded[_LENGTH_BYTES : _LENGTH_BYTES + length]
    return message if len(message) == length else None


def _interpolated(
    points: NDArray[np.int64], rows: NDArray[np.uint16], targets: NDArray[np.int64]
) -> NDArray[np.uint16]:
    """Return the values at ``targets`` of the polynomials with the values ``rows`` at ``points``."""
    out = np.zeros((len(targets), rows.shape[1]), dtype=np.uint16)
    _interpolate(points, rows, targets, _POWERS, _LOGS, out)
    return out


@compiled
def _interpolate(
    points: NDArray[np.int64],
    rows: NDArray[np.uint16],
    targets: NDArray[np.int64],
    powers: NDArray[np.uint16],
    logs: NDArray[np.int32],
    out: NDArray[np.uint16],
) -> None:
    order = 65535
    count = len(points)
    # log of 1 / prod over others of (x_i - x_j), which all targets share; in this field minus is exclusive or.
    weights = np.zeros(count, dtype=np.int64)
    for i in range(count):
        for j in range(count):
            if i != j:
                weights[i] += logs[points[i] ^ points[j]]
        weights[i] = (order - weights[i] % order) % order
    low = np.empty(256, dtype=np.uint16)
    high = np.empty(256, dtype=np.uint16)
    for place in range(len(targets)):
        target = targets[place]
        whole = 0
        for j in range(count):
            whole += logs[target ^ points[j]]
        for i in range(count):
            log = (whole - logs[target ^ points[i]] + weights[i]) % order
            if rows.shape[1] < 512:
                for k in range(rows.shape[1]):
                    if rows[i, k]:
                        out[place, k] ^= powers[logs[rows[i, k]] + log]
                continue
            # Long rows: the product with one factor by two tables that stay in the first cache.
            low[0] = high[0] = 0
            for value in range(1, 256):
                low[value] = powers[logs[value] + log]
                high[value] = powers[logs[value << 8] + log]
            for k in range(rows.shape[1]):
                symbol = rows[i, k]
                out[place, k] ^= low[symbol & 255] ^ high[symbol >> 8]


def _leaf(fragment: bytes) -> bytes:
    return digest_of(b"\0" + fragment)


def _parent(left: bytes, right: bytes) -> bytes:
    return digest_of(b"\1" + left + right)


def merkle_tree(fragments: Sequence[bytes]) -> tuple[bytes, tuple[tuple[bytes, ...], ...]]:
    """Return the root over the fragments, and for each the path that proves it."""
    level = [_leaf(fragment) for fragment in fragments]
    paths: list[list[bytes]] = [[] for _ in fragments]
    places = list(range(len(fragments)))
    while len(level) > 1:
        for leaf, place in enumerate(places):
            if place ^ 1 < len(level):
                paths[leaf].append(level[place ^ 1])
        level = [
            _parent(level[place], level[place + 1]) if place + 1 < len(level) else level[place]
            for place in range(0, len(level), 2)
        ]
        places = [place >> 1 for place in places]
    return level[0], tuple(map(tuple, paths))


def is_proved(root: bytes, fragment: bytes, place: int, count: int, path: Sequence[bytes]) -> bool:
    """Return whether a path proves that the fragment is number ``place`` of ``count`` under the root."""
    found, width, steps = _leaf(fragment), count, iter(path)
    while width > 1:
        if place ^ 1 < width:
            other = next(steps, None)
            if other is None:
                return False
            found = _parent(other, found) if place & 1 else _parent(found, other)
        place, width = place >> 1, (width + 1) >> 1
    return found == root and next(steps, None) is None


@lru_cache(maxsize=64)
def committed(
    message: bytes, count: int, needed: int
) -> tuple[bytes, tuple[bytes, ...], tuple[tuple[bytes, ...], ...]]:
    """Return the Merkle root, the fragments and their paths; remembered, as the nodes of a process share it."""
    fragments = encode(message, count, needed)
    root, paths = merkle_tree(fragments)
    return root, fragments, paths
