"""The compiled part of a step: scores of blocks, the best of them, attention over their tokens.

Heads are ragged: each has its own number of blocks, so that all summaries lie in one array and a head's begin at an
offset of its own.  A tile holds the summaries of ``TILE`` neighbouring blocks, number by number: one number of all
blocks of a tile lies together, in 4 bits or as float32.  A score is a sum of these numbers, weighted by the query, so
that vector registers run along blocks and a number whose weight is 0 is never read.

References
----------
M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wavetank.sim.compiled import compiled

TILE = 128
"""Blocks whose summaries lie together, and share one scale a number."""
_HALF = TILE // 2
_CHUNK = 256
_LOG2_E = np.float32(1.4426950408889634)
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_ONE = np.float32(1)
# Numbers are finite, or minus infinity where they start; sums may be ordered as the processor likes.
_FAST = {"reassoc", "contract", "nsz"}


@compiled(nogil=True, fastmath=_FAST)
def _exponentials(weights: Any, count: int, top: Any, powers: Any, bits: Any) -> Any:
    """Put the exponentials of what weights are below ``top`` in their place, and return their sum."""
    for i in range(count):
        x = max(weights[i] - top, np.float32(-87.0))
        # Rounds to the nearest whole number of at most 0.
        n = np.int32(x * _LOG2_E - np.float32(0.5))
        whole = np.float32(n)
        r = (x - whole * _LN_2_HIGH) - whole * _LN_2_LOW
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        weights[i] = p * r * r + r + _ONE
        bits[i] = (n + np.int32(127)) << np.int32(23)
    total = np.float32(0)
    for i in range(count):
        weights[i] *= powers[i]
        total += weights[i]
    return total


@compiled(nogil=True, fastmath=_FAST)
def _attend(query: Any, keys: Any, values: Any, starts: Any, stops: Any, ranges: int, out: Any) -> None:
    """Write attention of the queries of a group over ranges of tokens.

    Parameters
    ----------
    query : float32 array (group, dim)
        Multiplied by 1 / sqrt(dim) already.
    keys, values : float32 array (tokens, dim)
    starts, stops : int64 array
    ranges : int
        How many of them count.
    out : float32 array (group, dim)
    """
    group, dim = query.shape
    weights = np.empty((group, _CHUNK), np.float32)
    bits = np.empty(_CHUNK, np.int32)
    powers = bits.view(np.float32)
    top = np.full(group, -np.inf, np.float32)
    total = np.zeros(group, np.float32)
    out[:] = np.float32(0)
    for each in range(ranges):
        for first in range(starts[each], stops[each], _CHUNK):
            count = min(stops[each] - first, _CHUNK)
            for t in range(count):
                for g in range(group):
                    product = np.float32(0)
                    for c in range(dim):
                        product += query[g, c] * keys[first + t, c]
                    weights[g, t] = product
            for g in range(group):
                highest = top[g]
                for t in range(count):
                    highest = max(highest, weights[g, t])
                if highest > top[g]:
                    if total[g] > 0:
                        shrink = np.float32(np.exp(top[g] - highest))
                        total[g] *= shrink
                        for c in range(dim):
                            out[g, c] *= shrink
                    top[g] = highest
                total[g] += _exponentials(weights[g], count, highest, powers, bits)
            for t in range(count):
                for g in range(group):
                    weight = weights[g, t]
                    for c in range(dim):
                        out[g, c] += weight * values[first + t, c]
    for g in range(group):
        for c in range(dim):
            out[g, c] /= total[g]


@compiled(nogil=True, fastmath=_FAST)
def attend_all(heads: Any, query: Any, keys: Any, values: Any, tokens: int, out: Any) -> None:
    """Write dense attention of some heads.

    Parameters
    ----------
    heads : int64 array
        Heads of keys to compute.
    query : float32 array (key heads, group, dim)
        Multiplied by 1 / sqrt(dim) already.
    keys, values : float32 array (key heads, room, dim)
    tokens : int
        How many of them are there.
    out : float32 array (key heads, group, dim)
    """
    starts, stops = np.zeros(1, np.int64), np.full(1, tokens, np.int64)
    for head in heads:
        _attend(query[head], keys[head], values[head], starts, stops, 1, out[head])


@compiled(nogil=True)
def pick(scores: Any, count: int, wanted: int, picked: Any) -> None:
    """Write the numbers of the highest scores in ascending order; of equal scores the first count.

    Parameters
    ----------
    scores : float32 array
        None of them nan.
    count : int
        How many scores there are.
    wanted : int
        From 0 to ``count``.
    picked : int64 array
        At least ``wanted`` long.
    """
    if wanted == 0:
        return
    raw = scores.view(np.uint32)
    ordered = np.empty(count, np.uint32)
    for i in range(count):
        # Numbers whose order is that of the scores: digits of negative ones run the other way.
        ordered[i] = ~raw[i] if raw[i] >> np.uint32(31) else raw[i] | np.uint32(1 << 31)
    left = wanted
    prefix = mask = np.uint32(0)
    histogram = np.empty(2048, np.int64)
    for level in range(3):
        shift = np.uint32(21 - 11 * level if level < 2 else 0)
        digits = np.uint32(2047 if level < 2 else 1023)
        histogram[:] = 0
        for i in range(count):
            if ordered[i] & mask == prefix:
                histogram[(ordered[i] >> shift) & digits] += 1
        digit = np.int64(digits)
        while histogram[digit] < left:
            left -= histogram[digit]
            digit -= 1
        prefix |= np.uint32(digit) << shift
        mask |= digits << shift
    at = 0
    for i in range(count):
        if ordered[i] > prefix:
            picked[at] = i
            at += 1
        elif ordered[i] == prefix and left > 0:
            picked[at] = i
            at += 1
            left -= 1


@compiled(nogil=True, fastmath=_FAST)
def _score_tile(weights: Any, numbers: Any, scores: Any) -> None:
    """Add to scores (group, TILE) what weights (group, numbers) give of numbers (numbers, TILE) in float32."""
    for r in range(weights.shape[1]):
        for g in range(weights.shape[0]):
            weight = weights[g, r]
            if weight != 0:
                for b in range(TILE):
                    scores[g, b] += weight * numbers[r, b]


@compiled(nogil=True, fastmath=_FAST)
def _score_packed_tile(weights: Any, packed: Any, scales: Any, zeros: Any, scores: Any) -> None:
    """Add the same for numbers in 4 bits: packed (numbers, TILE / 2), and a scale and a zero a number."""
    unpacked = np.empty(TILE, np.float32)
    for r in range(weights.shape[1]):
        wanted = False
        for g in range(weights.shape[0]):
            wanted |= weights[g, r] != 0
        if not wanted:
            continue
        for b in range(_HALF):
            unpacked[b] = np.float32(np.int32(packed[r, b] & 15))
            unpacked[b + _HALF] = np.float32(np.int32(packed[r, b] >> 4))
        for b in range(TILE):
            unpacked[b] = unpacked[b] * scales[r] + zeros[r]
        for g in range(weights.shape[0]):
            weight = weights[g, r]
            if weight != 0:
                for b in range(TILE):
                    scores[g, b] += weight * unpacked[b]


@compiled(nogil=True, fastmath=_FAST)
def score_blocks(
    weights: Any, tiles: int, first: int, numbers: Any, packed: Any, scales: Any, zeros: Any, add: bool, scores: Any
) -> None:
    """Write one score a block: over the queries of a group the highest, or the sum.

    Parameters
    ----------
    weights : float32 array (group, numbers)
        Of each number of a summary.
    tiles, first : int
        How many tiles, and the number of the first.
    numbers : float32 array (all tiles, numbers, TILE)
        Without tiles where summaries have 4 bits.
    packed : uint8 array (all tiles, numbers, TILE / 2)
        The first half of a tile in the low bits.  Without tiles where summaries are float32.
    scales, zeros : float32 array (all tiles, numbers)
    add : bool
    scores : float32 array (at least tiles x TILE)
    """
    group = weights.shape[0]
    each = np.empty((group, TILE), np.float32)
    for tile in range(tiles):
        each[:] = np.float32(0)
        if packed.shape[0] > 0:
            at = first + tile
            _score_packed_tile(weights, packed[at], scales[at], zeros[at], each)
        else:
            _score_tile(weights, numbers[first + tile], each)
        for b in range(TILE):
            best = each[0, b]
            for g in range(1, group):
                best = best + each[g, b] if add else max(best, each[g, b])
            scores[tile * TILE + b] = best


@compiled(nogil=True, fastmath=_FAST)
def sparse_step(
    heads: Any, query: Any, weights: Any, keys: Any, values: Any, tokens: int, blocks: Any, wanted: Any,
    first_tiles: Any, numbers: Any, packed: Any, scales: Any, zeros: Any, add: bool, picked: Any, out: Any,
) -> None:  # fmt: skip
    """Write attention of some heads over their best blocks, and which blocks these are.

    The first block, the last whole one where no tokens stand behind it, and the tokens behind the last whole block are
    always among them.

    Parameters
    ----------
    heads : int64 array
        Heads of keys to compute.
    query : float32 array (key heads, group, dim)
        Multiplied by 1 / sqrt(dim) already.
    weights : float32 array (key heads, group, numbers)
    keys, values : float32 array (key heads, room, dim)
    tokens : int
    blocks, wanted, first_tiles : int64 array (key heads,)
        Tokens of a block, whole blocks to take, and where the tiles of a head begin.
    numbers, packed, scales, zeros, add
        As for :func:`score_blocks`.
    picked : int64 array (key heads, most blocks)
    out : float32 array (key heads, group, dim)
    """
    for head in heads:
        block = blocks[head]
        whole = tokens // block
        tail = tokens - whole * block
        tiles = (whole + TILE - 1) // TILE
        count = wanted[head]
        if count < whole:
            scores = np.empty(max(tiles, 1) * TILE, np.float32)
            score_blocks(weights[head], tiles, first_tiles[head], numbers, packed, scales, zeros, add, scores)
            scores[0] = np.inf
            if tail == 0:
                scores[whole - 1] = np.inf
            pick(scores, whole, count, picked[head])
        else:
            for i in range(whole):
                picked[head, i] = i
        starts, stops = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
        ranges = 0
        for i in range(count):
            start = picked[head, i] * block
            if ranges > 0 and stops[ranges - 1] == start:
                stops[ranges - 1] = start + block
            else:
                starts[ranges], stops[ranges] = start, start + block
                ranges += 1
        if tail > 0:
            starts[ranges], stops[ranges] = whole * block, tokens
            ranges += 1
        _attend(query[head], keys[head], values[head], starts, stops, ranges, out[head])
