"""A range coder in 64 bits without carries, and adaptive counts: what turns probabilities into bytes and back.

Encoder and decoder narrow one interval in the same whole-number steps.  Where the interval straddles two leading
bytes and is too short to go on, it is cut at the border (as in Subbotin's coder), so that no carry ever runs into
bytes that are out.  The last interval is left by the shortest bytes that lie in it; the decoder reads zeros behind
the end.
"""

from __future__ import annotations

import numpy as np

from wavetank.sim.compiled import compiled

# Counts add up to at most this.
TOTAL_BITS = 24
TOTAL = 1 << TOTAL_BITS

_TOP = np.uint64(1 << 56)
_BOTTOM = np.uint64(1 << 48)
_EIGHT = np.uint64(8)
_LEADING = np.uint64(56)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)

# What a coder keeps: low, range, code (decoder), bytes written or read.
LOW, RANGE, CODE, PLACE = 0, 1, 2, 3


@compiled
def new_state():  # type: ignore[no-untyped-def]
    """Return the state of an encoder before its first symbol."""
    state = np.zeros(4, np.uint64)
    state[RANGE] = _ALL
    return state


@compiled
def reading_state(data):  # type: ignore[no-untyped-def]
    """Return the state of a decoder at the first byte of ``data`` (uint8 array)."""
    state = new_state()
    for _ in range(8):
        place = state[PLACE]
        byte = np.uint64(data[place]) if place < np.uint64(data.size) else _ZERO
        state[CODE] = (state[CODE] << _EIGHT) | byte
        state[PLACE] = place + _ONE
    return state


@compiled
def encode_interval(state, out, low, count, total):  # type: ignore[no-untyped-def]
    """Narrow the interval to ``[low, low + count)`` of ``total``; settled bytes go to ``out``, which must have room."""
    step = state[RANGE] // np.uint64(total)
    state[LOW] += step * np.uint64(low)
    state[RANGE] = step * np.uint64(count)
    while True:
        begin, length = state[LOW], state[RANGE]
        if (begin ^ (begin + length)) >= _TOP:
            if length >= _BOTTOM:
                return
            state[RANGE] = (_ZERO - begin) & (_BOTTOM - _ONE)
        out[state[PLACE]] = np.uint8(begin >> _LEADING)
        state[PLACE] += _ONE
        state[LOW] <<= _EIGHT
        state[RANGE] <<= _EIGHT


@compiled
def decode_target(state, total):  # type: ignore[no-untyped-def]
    """Return the number below ``total`` in whose interval the code lies."""
    step = state[RANGE] // np.uint64(total)
    found = (state[CODE] - state[LOW]) // step
    return min(np.int64(found), np.int64(total) - 1)


@compiled
def decode_interval(state, data, low, count, total):  # type: ignore[no-untyped-def]
    """Narrow the interval as the encoder did, and read what that needs of ``data``."""
    step = state[RANGE] // np.uint64(total)
    state[LOW] += step * np.uint64(low)
    state[RANGE] = step * np.uint64(count)
    while True:
        begin, length = state[LOW], state[RANGE]
        if (begin ^ (begin + length)) >= _TOP:
            if length >= _BOTTOM:
                return
            state[RANGE] = (_ZERO - begin) & (_BOTTOM - _ONE)
        place = state[PLACE]
        byte = np.uint64(data[place]) if place < np.uint64(data.size) else _ZERO
        state[CODE] = (state[CODE] << _EIGHT) | byte
        state[PLACE] = place + _ONE
        state[LOW] <<= _EIGHT
        state[RANGE] <<= _EIGHT


@compiled
def finish(state, out):  # type: ignore[no-untyped-def]
    """Write the fewest bytes that lie in the last interval; return how many ``out`` holds, zeros behind left out."""
    begin = state[LOW]
    last = begin + (state[RANGE] - _ONE)
    chosen = begin
    for kept in range(8):
        # The smallest number at or above the beginning with `kept` bytes that may be other than zero.
        if kept == 0:
            rounded = _ZERO
            fits = begin == _ZERO
        else:
            unit = np.uint64(64 - 8 * kept)
            mask = (_ONE << unit) - _ONE
            rounded = (begin + mask) & ~mask
            fits = begin <= rounded and rounded <= last
        if fits:
            chosen = rounded
            break
    size = np.int64(state[PLACE])
    for _ in range(8):
        out[size] = np.uint8(chosen >> _LEADING)
        chosen <<= _EIGHT
        size += 1
    while size > 0 and out[size - 1] == 0:
        size -= 1
    return size


@compiled
def encode_counted(symbols, alphabet):  # type: ignore[no-untyped-def]
    """Return the bytes of symbols (int64, below ``alphabet``) under counts that begin small and follow the data."""
    state = new_state()
    out = np.zeros(symbols.size * 4 + 64, np.uint8)
    counts = np.ones(alphabet, np.int64)
    total = np.int64(alphabet)
    for symbol in symbols:
        low = np.int64(0)
        for each in range(symbol):
            low += counts[each]
        encode_interval(state, out, low, counts[symbol], total)
        total = _counted(counts, symbol, total)
    return out[: finish(state, out)].copy()


@compiled
def decode_counted(data, size, alphabet):  # type: ignore[no-untyped-def]
    """Return ``size`` symbols of what :func:`encode_counted` made."""
    state = reading_state(data)
    found = np.zeros(size, np.int64)
    counts = np.ones(alphabet, np.int64)
    total = np.int64(alphabet)
    for place in range(size):
        target = decode_target(state, total)
        symbol, low = 0, np.int64(0)
        while low + counts[symbol] <= target:
            low += counts[symbol]
            symbol += 1
        decode_interval(state, data, low, counts[symbol], total)
        found[place] = symbol
        total = _counted(counts, symbol, total)
    return found


@compiled
def _counted(counts, symbol, total):  # type: ignore[no-untyped-def]
    """Count a symbol; return the new total, which stays below the coder's limit."""
    # New symbols count for more than the one each began with: most of an alphabet never comes.
    counts[symbol] += 24
    total += 24
    if total > TOTAL // 4:
        total = np.int64(0)
        for each in range(counts.size):
            counts[each] = (counts[each] + 1) // 2
            total += counts[each]
    return total
