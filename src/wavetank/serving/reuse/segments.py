"""Cuts prompts into segments and gives each a key.

A cut that depends on the tokens around it comes back wherever these tokens come back: after a token was inserted,
cuts soon fall where they fell before, and only the segment around it is new.  Cuts at fixed lengths all move.

References
----------
W. Xia and others, "Ddelta: A deduplication-inspired fast delta compression approach", 2014, for the Gear hash;
Y. Collet, "xxHash fast digest algorithm", version 0.1.1, for the keys.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint32, uint64, void
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled
from wavetank.sim.streams import mix

Tokens = NDArray[np.uint32]
Ends = NDArray[np.int64]
Keys = NDArray[np.uint64]

MOST_BITS = 20
_SALT = np.uint64(0x9E3779B97F4A7C15)
_P1, _P2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P3, _P4, _P5 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def fixed_ends(count: int, size: int) -> Ends:
    """Return where segments of one length end; the last may be shorter.

    Parameters
    ----------
    count : int
        Tokens of the prompt.
    size : int
        Tokens of a segment.

    Raises
    ------
    BadValueError
        If a segment would have none.
    """
    if size < 1:
        raise BadValueError("A segment has tokens.", given=size, allowed=">= 1", where="size")
    ends = np.arange(size, count + size, size, dtype=np.int64)
    return np.minimum(ends, count)


def check_lengths(*, bits: int, least: int, most: int) -> None:
    """Refuse lengths at which no segment can be cut by its content.

    Parameters
    ----------
    bits, least, most : int
        As for :func:`content_ends`.

    Raises
    ------
    BadValueError
        If the numbers fit no cut.
    """
    if not 0 <= bits <= MOST_BITS:
        raise BadValueError("The rolling hash has another number of bits.", given=bits, allowed=f"0 to {MOST_BITS}",
                            where="bits")  # fmt: skip
    if not max(bits, 1) <= least <= most:
        raise BadValueError(
            "Segments have impossible lengths.", given=f"{least} to {most} tokens",
            allowed=f"{max(bits, 1)} <= least <= most", hint="the hash looks back as many tokens as it has bits",
        )  # fmt: skip


def content_ends(tokens: Tokens, *, bits: int = 7, least: int = 32, most: int = 512) -> Ends:
    """Return where segments end that the tokens themselves cut.

    A segment ends behind the first token from the ``least``-th on at which the lowest ``bits`` bits of a rolling hash
    are zero, and at the latest behind the ``most``-th.  These bits depend on the last ``bits`` tokens alone.

    Parameters
    ----------
    tokens : uint32 array (tokens,)
    bits : int
        A segment has about ``least + 2**bits`` tokens before it is clamped.
    least, most : int
        Fewest and most tokens of a segment; the last may be shorter.

    Raises
    ------
    BadValueError
        If the numbers fit no cut.
    """
    check_lengths(bits=bits, least=least, most=most)
    ends = np.empty(len(tokens) // least + 1, np.int64)
    return ends[: _content_ends(tokens, bits, least, most, ends)]


@compiled(int64(uint32[::1], int64, int64, int64, int64[::1]), nogil=True)
def _content_ends(tokens: Tokens, bits: int, least: int, most: int, ends: Ends) -> int:
    mask = np.uint64((1 << bits) - 1)
    count, found, start = len(tokens), 0, 0
    while start < count:
        stop = min(start + most, count)
        end = stop
        rolling = np.uint64(0)
        # What is older than ``bits`` tokens has left the bits that decide.
        for at in range(min(start + least - max(bits, 1), stop), stop):
            rolling = (rolling << np.uint64(1)) + mix(np.uint64(tokens[at]) + _SALT)
            if at + 1 >= start + least and rolling & mask == 0:
                end = at + 1
                break
        ends[found] = end
        found += 1
        start = end
    return found


def keys_of(tokens: Tokens, ends: Ends, *, chained: bool = False) -> Keys:
    """Return the key of each segment: xxHash64 of its ids, four bytes each, the lowest first.

    Parameters
    ----------
    tokens : uint32 array (tokens,)
    ends : int64 array (segments,)
        Where segments end.
    chained : bool
        Whether a key depends on all segments before, too: the seed of each hash is the key before it.
    """
    keys = np.empty(len(ends), np.uint64)
    _keys(tokens, ends, chained, keys)
    return keys


@compiled(uint64(uint64, uint64), inline="always")
def _turned(value: np.uint64, by: np.uint64) -> np.uint64:
    return (value << by) | (value >> (np.uint64(64) - by))


@compiled(uint64(uint64, uint64), inline="always")
def _round(sum_: np.uint64, lane: np.uint64) -> np.uint64:
    return _turned(sum_ + lane * _P2, np.uint64(31)) * _P1


@compiled(uint64(uint32[::1], int64, int64), inline="always")
def _pair(tokens: Tokens, start: int, lane: int) -> np.uint64:
    at = start + 2 * lane
    return np.uint64(tokens[at]) | (np.uint64(tokens[at + 1]) << np.uint64(32))


@compiled(uint64(uint32[::1], int64, int64, uint64))
def _xxh64(tokens: Tokens, start: int, end: int, seed: np.uint64) -> np.uint64:
    at = start
    if end - start >= 8:
        one, two, three, four = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + 8 <= end:
            one = _round(one, _pair(tokens, at, 0))
            two = _round(two, _pair(tokens, at, 1))
            three = _round(three, _pair(tokens, at, 2))
            four = _round(four, _pair(tokens, at, 3))
            at += 8
        found = (
            _turned(one, np.uint64(1)) + _turned(two, np.uint64(7)) + _turned(three, np.uint64(12))
            + _turned(four, np.uint64(18))
        )  # fmt: skip
        for lane in (one, two, three, four):
            found = (found ^ _round(np.uint64(0), lane)) * _P1 + _P4
    else:
        found = seed + _P5
    found += np.uint64(4 * (end - start))
    while at + 2 <= end:
        found = _turned(found ^ _round(np.uint64(0), _pair(tokens, at, 0)), np.uint64(27)) * _P1 + _P4
        at += 2
    if at < end:
        found = _turned(found ^ (np.uint64(tokens[at]) * _P1), np.uint64(23)) * _P2 + _P3
    found = (found ^ (found >> np.uint64(33))) * _P2
    found = (found ^ (found >> np.uint64(29))) * _P3
    return found ^ (found >> np.uint64(32))


@compiled(void(uint32[::1], int64[::1], int64, uint64[::1]), nogil=True)
def _keys(tokens: Tokens, ends: Ends, chained: bool, keys: Keys) -> None:
    start, seed = 0, np.uint64(0)
    for segment in range(len(ends)):
        keys[segment] = _xxh64(tokens, start, ends[segment], seed)
        if chained:
            seed = keys[segment]
        start = ends[segment]
