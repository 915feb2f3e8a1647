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
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wavetank.sim.compiled import compiled

TILE = 128
"""Blocks whose summaries lie together, and share one scale a number."""
_HALF = TILE // 2
_CHUNK = 256
_ROWS = 32
_LOG2_E = np.float32(1.4426950408889634)
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_ONE = np.float32(1)
# Numbers are finite, or minus infinity where they start; sums may be ordered as the processor likes.
_FAST = {"reassoc", "contract", "nsz"}


@intrinsic  # type: ignore[misc, unused-ignore]
def _fetch_line(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address (uintp), without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # To read, into the first-level cache, as data.
        flags = [ir.Constant(number, flag) for flag in (0, 3, 1)]
        builder.call(call, [builder.inttoptr(arguments[0], byte), *flags])
        return context.get_dummy_value()

    return types.void(types.uintp), generate


@compiled(nogil=True)
def _fetch_row(rows: Any, row: int) -> None:
    """Ask for a row of a contiguous array of float32."""
    width = rows.shape[1] * 4
    start = rows.ctypes.data + row * width
    for offset in range(0, width, 64):
        _fetch_line(types.uintp(start + offset))


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
def _multiply(query: Any, keys: Any, first: int, count: int, after: int, products: Any) -> None:
    """Write the products (group, count) of the queries with ``count`` keys from the ``first`` on.

    Meanwhile as many keys from ``after`` on are asked for, where that is no negative number.
    """
    group, dim = query.shape
    fours = group - group % 4
    for t in range(count):
        if after >= 0 and after + t < keys.shape[0]:
            _fetch_row(keys, after + t)
        # A key is loaded once for four queries, whose sums stay in registers.
        for g in range(0, fours, 4):
            p0 = p1 = p2 = p3 = np.float32(0)
            for c in range(dim):
                x = keys[first + t, c]
                p0 += query[g, c] * x
                p1 += query[g + 1, c] * x
                p2 += query[g + 2, c] * x
                p3 += query[g + 3, c] * x
            products[g, t], products[g + 1, t], products[g + 2, t], products[g + 3, t] = p0, p1, p2, p3
        for g in range(fours, group):
            p0 = np.float32(0)
            for c in range(dim):
                p0 += query[g, c] * keys[first + t, c]
            products[g, t] = p0


@compiled(nogil=True, fastmath=_FAST)
def _add_values(weights: Any, values: Any, first: int, count: int, after: int, out: Any) -> None:
    """Add to out (group, dim) ``count`` values from the ``first`` on, times their weights (group, count).

    Meanwhile as many values from ``after`` on are asked for, where that is no negative number.
    """
    group, dim = out.shape
    fours = count - count % 4
    for at in range(0, fours, 4):
        t = first + at
        if after >= 0 and after + at + 3 < values.shape[0]:
            for row in range(after + at, after + at + 4):
                _fetch_row(values, row)
        for g in range(group):
            w0, w1, w2, w3 = weights[g, at], weights[g, at + 1], weights[g, at + 2], weights[g, at + 3]
            for c in range(dim):
                out[g, c] += (w0 * values[t, c] + w1 * values[t + 1, c]) + (
                    w2 * values[t + 2, c] + w3 * values[t + 3, c]
                )
    for at in range(fours, count):
        for g in range(group):
            for c in range(dim):
                out[g, c] += weights[g, at] * values[first + at, c]


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
            # Within a range the processor sees by itself what comes next.
            after = starts[each + 1] if first + count == stops[each] and each + 1 < ranges else -1
            _multiply(query, keys, first, count, after, weights)
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
            _add_values(weights, values, first, count, after, out)
    for g in range(group):
        for c in range(dim):
            out[g, c] /= total[g]


@compiled(nogil=True, fastmath=_FAST)
def attend_ranges(
    heads: Any, query: Any, keys: Any, values: Any, starts: Any, stops: Any, counts: Any, out: Any
) -> None:
    """Write attention of some heads over ranges of tokens.

    Parameters
    ----------
    heads : int64 array
        Heads of keys to compute.
    query : float32 array (key heads, group, dim)
        Multiplied by 1 / sqrt(dim) already.
    keys, values : float32 array (key heads, tokens, dim)
    starts, stops : int64 array (key heads, most ranges)
    counts : int64 array (key heads,)
        Ranges of a head, 1 or more, none of them empty.
    out : float32 array (key heads, group, dim)
    """
    for head in heads:
        _attend(query[head], keys[head], values[head], starts[head], stops[head], counts[head], out[head])


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
def _add_rows(weights: Any, rows: Any, used: int, numbers: Any, scores: Any) -> None:
    """Add to scores (TILE,) the ``used`` first rows of numbers that ``rows`` names, times their weights."""
    eights = used - used % 8
    for at in range(0, eights, 8):
        r0, r1, r2, r3 = rows[at], rows[at + 1], rows[at + 2], rows[at + 3]
        r4, r5, r6, r7 = rows[at + 4], rows[at + 5], rows[at + 6], rows[at + 7]
        w0, w1, w2, w3 = weights[at], weights[at + 1], weights[at + 2], weights[at + 3]
        w4, w5, w6, w7 = weights[at + 4], weights[at + 5], weights[at + 6], weights[at + 7]
        for b in range(TILE):
            one = (w0 * numbers[r0, b] + w1 * numbers[r1, b]) + (w2 * numbers[r2, b] + w3 * numbers[r3, b])
            two = (w4 * numbers[r4, b] + w5 * numbers[r5, b]) + (w6 * numbers[r6, b] + w7 * numbers[r7, b])
            scores[b] += one + two
    for at in range(eights, used):
        for b in range(TILE):
            scores[b] += weights[at] * numbers[rows[at], b]


@compiled(nogil=True, fastmath=_FAST)
def _score_tile(weights: Any, numbers: Any, packed: Any, scales: Any, zeros: Any, scores: Any) -> None:
    """Write to scores (group, TILE) the sums of a tile's numbers, times weights (group, numbers).

    Numbers lie in ``numbers`` (numbers, TILE) or, where this has no rows, in ``packed`` (numbers, TILE / 2).
    """
    group, width = weights.shape
    is_packed = numbers.shape[0] == 0
    unpacked = np.empty((_ROWS, TILE), np.float32)
    rows, shares = np.empty(_ROWS + 1, np.int64), np.empty(_ROWS + 1, np.float32)
    scores[:] = np.float32(0)
    for first in range(0, width, _ROWS):
        count = min(width - first, _ROWS)
        before = first if is_packed else 0
        if is_packed:
            for r in range(count):
                for b in range(_HALF):
                    unpacked[r, b] = np.float32(np.int32(packed[first + r, b] & 15))
                    unpacked[r, b + _HALF] = np.float32(np.int32(packed[first + r, b] >> 4))
        for g in range(group):
            used, base = 0, np.float32(0)
            for r in range(first, first + count):
                # Signs of a query are as good as random: a branch would be guessed wrong.
                weight = weights[g, r]
                rows[used] = r - before
                shares[used] = weight * scales[r] if is_packed else weight
                base += weight * zeros[r] if is_packed else np.float32(0)
                used += weight != 0
            _add_rows(shares, rows, used, unpacked if is_packed else numbers, scores[g])
            for b in range(TILE):
                scores[g, b] += base


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
    no_bytes, no_numbers = np.empty((0, _HALF), np.uint8), np.empty(0, np.float32)
    for tile in range(tiles):
        at = first + tile
        if packed.shape[0] > 0:
            _score_tile(weights, numbers[:0].reshape((0, TILE)), packed[at], scales[at], zeros[at], each)
        else:
            _score_tile(weights, numbers[at], no_bytes, no_numbers, no_numbers, each)
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
