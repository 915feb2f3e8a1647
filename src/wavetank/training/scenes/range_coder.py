"""A range coder in 64 bits with carries, and adaptive counts: what turns probabilities into bytes and back.

Encoder and decoder narrow one interval in the same whole-number steps.  The interval is never shorter than 2^56 of
2^64 between two symbols, so that rounding costs nothing that shows; where its beginning runs over 2^64, the encoder
carries one into the bytes that are out.  The last interval is left by the shortest bytes that lie in it; the decoder
reads zeros behind the end.
"""

from __future__ import annotations

import numpy as np

from wavetank.sim.compiled import compiled

# Counts add up to at most this.
TOTAL_BITS = 24
TOTAL = 1 << TOTAL_BITS

# An interval that is shorter gets eight more bits.
_SHORTEST = np.uint64(1 << 56)
_EIGHT = np.uint64(8)
_LEADING = np.uint64(56)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)

# What a coder keeps: the interval's beginning (encoder) and length, how far behind the beginning the code lies
# (decoder), bytes written or read.
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
def _carry(state, out):  # type: ignore[no-untyped-def]
    """Add one to the bytes that are out; what they say is below one, so that the carry always ends in them."""
    place = np.int64(state[PLACE]) - 1
    while out[place] == 255:
        out[place] = 0
        place -= 1
    out[place] += 1


@compiled
def encode_interval(state, out, low, count, total):  # type: ignore[no-untyped-def]
    """Narrow the interval to ``[low, low + count)`` of ``total``; settled bytes go to ``out``, which must have room."""
    step = state[RANGE] // np.uint64(total)
    begin = state[LOW] + step * np.uint64(low)
    if begin < state[LOW]:
        _carry(state, out)
    length = step * np.uint64(count)
    while length < _SHORTEST:
        out[state[PLACE]] = np.uint8(begin >> _LEADING)
        state[PLACE] += _ONE
        begin <<= _EIGHT
        length <<= _EIGHT
    state[LOW], state[RANGE] = begin, length


@compiled
def decode_target(state, total):  # type: ignore[no-untyped-def]
    """Return the number below ``total`` in whose interval the code lies."""
    step = state[RANGE] // np.uint64(total)
    found = state[CODE] // step
    return min(np.int64(found), np.int64(total) - 1)


@compiled
def decode_interval(state, data, low, count, total):  # type: ignore[no-untyped-def]
    """Narrow the interval as the encoder did, and read what that needs of ``data``."""
    step = state[RANGE] // np.uint64(total)
    code = state[CODE] - step * np.uint64(low)
    length = step * np.uint64(count)
    while length < _SHORTEST:
        place = state[PLACE]
        byte = np.uint64(data[place]) if place < np.uint64(data.size) else _ZERO
        code = (code << _EIGHT) | byte
        state[PLACE] = place + _ONE
        length <<= _EIGHT
    state[CODE], state[RANGE] = code, length


@compiled
def finish(state, out):  # type: ignore[no-untyped-def]
    """Write the fewest bytes that lie in the last interval; return how many ``out`` holds, zeros behind left out."""
    begin, further = state[LOW], state[RANGE] - _ONE
    chosen = begin
    for kept in range(9):
        # The next number at or behind the beginning of which only the first `kept` bytes may be other than zero.
        mask = _ALL if kept == 0 else (_ONE << np.uint64(64 - 8 * kept)) - _ONE
        missing = (_ZERO - begin) & mask
        if missing <= further:
            chosen = begin + missing
            break
    if chosen < begin:
        _carry(state, out)
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
