"""Integers in as few bits as their histogram allows, or all in the same number of bits.

Range asymmetric numeral systems (rANS) with four interleaved 64-bit states that give off 32-bit words.  An integer is
first made a natural number (0, -1, 1, -2, ... become 0, 1, 2, 3, ...).  What is too large for the alphabet is an escape
and stands whole in a list of its own; of widely spread integers the lowest bits, which are as good as random, are
packed as they are.

Source: J. Duda, "Asymmetric numeral systems: entropy coding combining speed of Huffman coding with compression rate of
arithmetic coding", arXiv 1311.2540, 2013; interleaving: F. Giesen, "Interleaved entropy coders", arXiv 1402.3392, 2014.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled

LARGEST_ALPHABET = 2048
ESCAPE = LARGEST_ALPHABET - 1
LANES = 4
# Of packed blocks, as in cuSZp: one word for every bit of their width.
BLOCK = 32
_LOW = np.uint64(1 << 31)
_WORD = np.uint64(32)
# A group of lanes takes a word each at most, so that the end of the words is looked for once a group.
PADDING = LANES

Ints = NDArray[np.int32]
Words = NDArray[np.uint32]


@compiled(nogil=True, forceinline=True)
def _natural(value: Any) -> Any:
    return np.uint32((value << np.int32(1)) ^ (value >> np.int32(31)))


@compiled(nogil=True, forceinline=True)
def _integer(natural: Any) -> Any:
    return np.int32(natural >> np.uint32(1)) ^ -np.int32(natural & np.uint32(1))


@compiled(nogil=True)
def histogram(values: Any, shift: Any, codes: Any, escapes: Any) -> Any:
    """Write the codes of integers, and those that escape; return how often each code occurs and how many escape.

    Parameters
    ----------
    values : int32 array (n,)
    shift : int
        Lowest bits that are left out.
    codes : uint16 array (n,)
        Is filled.
    escapes : uint32 array (n,)
        Is filled from its begin.
    """
    # Two of them: neighbours are often equal, and an addition would wait for the one before it.
    counts = np.zeros((2, LARGEST_ALPHABET), np.int64)
    many = 0
    low = np.uint32(shift)
    for i in range(values.size):
        natural = _natural(values[i]) >> low
        code = np.int64(natural)
        if code >= ESCAPE:
            escapes[many] = natural
            many += 1
            code = np.int64(ESCAPE)
        codes[i] = code
        counts[i & 1, code] += 1
    return counts[0] + counts[1], many


@compiled(nogil=True)
def frequencies(counts: Any, bits: Any) -> Any:
    """Return whole shares of 2^bits by a histogram: at least 1 for what occurs, 0 for what does not.

    Parameters
    ----------
    counts : int64 array (symbols,)
    bits : int
    """
    total = counts.sum()
    target = np.int64(1) << bits
    shares = np.zeros(counts.size, np.int64)
    given = np.int64(0)
    largest = 0
    for i in range(counts.size):
        if counts[i] > 0:
            shares[i] = max(1, (counts[i] * target + total // 2) // total)
            given += shares[i]
            if counts[i] > counts[largest]:
                largest = i
    if given < target:
        shares[largest] += target - given
    while given > target:
        excess = given - target
        for i in range(counts.size):
            if shares[i] > 1 and given > target:
                less = min(shares[i] - 1, max(1, excess * shares[i] // target), given - target)
                shares[i] -= less
                given -= less
    return shares


@compiled(nogil=True, error_model="numpy")
def encode(codes: Any, shares: Any, bits: Any, words: Any) -> Any:
    """Write the words of codes, from the end of ``words``; return where they begin, and the states.

    Parameters
    ----------
    codes : uint16 array (n,)
    shares : int64 array (symbols,)
        Of 2^bits; more than 0 for every code that occurs.
    bits : int
        14 at most.
    words : uint32 array
        With room: a word for every code, and :data:`LANES` more.
    """
    shift = np.uint64(bits)
    starts = np.zeros(shares.size, np.uint64)
    sizes = np.zeros(shares.size, np.uint64)
    limits = np.zeros(shares.size, np.uint64)
    start = np.uint64(0)
    for i in range(shares.size):
        sizes[i] = np.uint64(shares[i])
        starts[i] = start
        limits[i] = ((_LOW >> shift) << _WORD) * sizes[i]
        start += sizes[i]
    states = np.full(LANES, _LOW, np.uint64)
    at = words.size
    whole = codes.size - codes.size % LANES
    for i in range(codes.size - 1, whole - 1, -1):
        code, lane = codes[i], i - whole
        x = states[lane]
        if x >= limits[code]:
            at -= 1
            words[at] = np.uint32(x)
            x >>= _WORD
        states[lane] = ((x // sizes[code]) << shift) + x % sizes[code] + starts[code]
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    for i in range(whole - LANES, -1, -LANES):
        c3, c2, c1, c0 = codes[i + 3], codes[i + 2], codes[i + 1], codes[i]
        if x3 >= limits[c3]:
            at -= 1
            words[at] = np.uint32(x3)
            x3 >>= _WORD
        if x2 >= limits[c2]:
            at -= 1
            words[at] = np.uint32(x2)
            x2 >>= _WORD
        if x1 >= limits[c1]:
            at -= 1
            words[at] = np.uint32(x1)
            x1 >>= _WORD
        if x0 >= limits[c0]:
            at -= 1
            words[at] = np.uint32(x0)
            x0 >>= _WORD
        q3, q2, q1, q0 = x3 // sizes[c3], x2 // sizes[c2], x1 // sizes[c1], x0 // sizes[c0]
        x3 += starts[c3] + q3 * ((np.uint64(1) << shift) - sizes[c3])
        x2 += starts[c2] + q2 * ((np.uint64(1) << shift) - sizes[c2])
        x1 += starts[c1] + q1 * ((np.uint64(1) << shift) - sizes[c1])
        x0 += starts[c0] + q0 * ((np.uint64(1) << shift) - sizes[c0])
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    return at, states


@compiled(nogil=True)
def decoding_table(shares: Any, bits: Any, plain: Any) -> Any:
    """Return what each of 2^bits slots means: value, share and place within it, in one number.

    Parameters
    ----------
    shares : int64 array (symbols,)
        Of 2^bits in all.
    bits : int
    plain : bool
        Whether the value is the integer itself; otherwise it is the code.
    """
    table = np.zeros(np.int64(1) << bits, np.uint64)
    slot = 0
    for code in range(shares.size):
        value = np.uint64(code)
        if plain:
            value = np.uint64(_integer(np.uint32(code))) & np.uint64(0xFFFF)
        for place in range(shares[code]):
            table[slot] = value | (np.uint64(shares[code]) << np.uint64(16)) | (np.uint64(place) << np.uint64(32))
            slot += 1
    return table


@compiled(nogil=True)
def decode(words: Any, states: Any, table: Any, bits: Any, out: Any) -> Any:
    """Fill ``out`` with the values of words; return how many words were taken, -1 where there are too few.

    Parameters
    ----------
    words : uint32 array
        The last :data:`PADDING` are not the encoder's.
    states : uint64 array (LANES,)
        The encoder's; afterwards they are as they were before it began, if nothing is damaged.
    table : uint64 array (2^bits,)
    bits : int
    out : int32 array (n,)
    """
    shift = np.uint64(bits)
    mask = np.uint64(table.size - 1)
    share, low = np.uint64(0xFFFF), np.uint64(16)
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    end = words.size - PADDING
    at = 0
    whole = out.size - out.size % LANES
    for i in range(0, whole, LANES):
        e0, e1, e2, e3 = table[x0 & mask], table[x1 & mask], table[x2 & mask], table[x3 & mask]
        x0 = ((e0 >> low) & share) * (x0 >> shift) + (e0 >> _WORD)
        x1 = ((e1 >> low) & share) * (x1 >> shift) + (e1 >> _WORD)
        x2 = ((e2 >> low) & share) * (x2 >> shift) + (e2 >> _WORD)
        x3 = ((e3 >> low) & share) * (x3 >> shift) + (e3 >> _WORD)
        out[i] = np.int32(np.int16(e0 & share))
        out[i + 1] = np.int32(np.int16(e1 & share))
        out[i + 2] = np.int32(np.int16(e2 & share))
        out[i + 3] = np.int32(np.int16(e3 & share))
        if x0 < _LOW:
            x0 = (x0 << _WORD) | np.uint64(words[at])
            at += 1
        if x1 < _LOW:
            x1 = (x1 << _WORD) | np.uint64(words[at])
            at += 1
        if x2 < _LOW:
            x2 = (x2 << _WORD) | np.uint64(words[at])
            at += 1
        if x3 < _LOW:
            x3 = (x3 << _WORD) | np.uint64(words[at])
            at += 1
        if at > end:
            return -1
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    for i in range(whole, out.size):
        x = states[i - whole]
        e = table[x & mask]
        x = ((e >> low) & share) * (x >> shift) + (e >> _WORD)
        out[i] = np.int32(np.int16(e & share))
        if x < _LOW:
            if at >= end:
                return -1
            x = (x << _WORD) | np.uint64(words[at])
            at += 1
        states[i - whole] = x
    return at


@compiled(nogil=True)
def completed(codes: Any, shift: Any, packed: Any, escapes: Any) -> Any:
    """Replace codes by their integers, in place; return how many escapes were taken, -1 where there are too few.

    Parameters
    ----------
    codes : int32 array (n,)
    shift : int
        Lowest bits of each that stand in ``packed``.
    packed : uint32 array
    escapes : uint32 array
    """
    taken = 0
    low = np.uint32(shift)
    mask = np.uint64((np.uint64(1) << np.uint64(shift)) - np.uint64(1))
    for i in range(codes.size):
        natural = np.uint32(codes[i])
        if natural == np.uint32(ESCAPE):
            if taken >= escapes.size:
                return -1
            natural = escapes[taken]
            taken += 1
        if shift > 0:
            place = i * shift
            word = place >> 5
            pair = np.uint64(packed[word]) | (np.uint64(packed[word + 1]) << _WORD)
            natural = np.uint32(natural << low) | np.uint32((pair >> np.uint64(place & 31)) & mask)
        codes[i] = _integer(np.uint32(natural))
    return taken


@compiled(nogil=True)
def pack(values: Any, base: Any, width: Any, natural: Any, packed: Any) -> None:
    """Write the lowest ``width`` bits of each value, one after another.

    Parameters
    ----------
    values : int32 array (n,)
    base : int
        Is subtracted first, unless they are made natural numbers.
    width : int
        1 to 32.
    natural : bool
        Whether integers are made natural numbers.
    packed : uint32 array
        Is filled; :func:`packed_words` says how long.
    """
    held = np.uint64(0)
    fill = np.uint64(0)
    step = np.uint64(width)
    mask = np.uint64((np.uint64(1) << np.uint64(width)) - np.uint64(1))
    word = 0
    for i in range(values.size):
        number = np.uint64(_natural(values[i])) if natural else np.uint64(np.int64(values[i]) - base)
        held |= (number & mask) << fill
        fill += step
        if fill >= _WORD:
            packed[word] = np.uint32(held & np.uint64(0xFFFFFFFF))
            word += 1
            held >>= _WORD
            fill -= _WORD
    while word < packed.size:
        packed[word] = np.uint32(held & np.uint64(0xFFFFFFFF))
        held = np.uint64(0)
        word += 1


@compiled(nogil=True)
def unpack(packed: Any, base: Any, width: Any, out: Any) -> None:
    """Fill ``out`` with packed numbers, ``base`` added.

    Parameters
    ----------
    packed : uint32 array
    base : int
    width : int
        1 to 32.
    out : int32 array (n,)
    """
    held = np.uint64(0)
    fill = np.uint64(0)
    step = np.uint64(width)
    mask = np.uint64((np.uint64(1) << np.uint64(width)) - np.uint64(1))
    word = 0
    for i in range(out.size):
        if fill < step:
            held |= np.uint64(packed[word]) << fill
            word += 1
            fill += _WORD
        out[i] = np.int32(np.int64(held & mask) + base)
        held >>= step
        fill -= step


@compiled(nogil=True)
def block_widths(values: Any, widths: Any) -> Any:
    """Write how many bits the natural numbers of each block take at most; return how many words all blocks take.

    Parameters
    ----------
    values : int32 array (n,)
    widths : uint8 array (blocks,)
        Is filled: one for :data:`BLOCK` values each.
    """
    words = 0
    for block in range(widths.size):
        every = np.uint32(0)
        for i in range(block * BLOCK, min((block + 1) * BLOCK, values.size)):
            every |= _natural(values[i])
        width = 0
        while every > np.uint32(0):
            every >>= np.uint32(1)
            width += 1
        widths[block] = width
        words += width
    return words


@compiled(nogil=True)
def pack_blocks(values: Any, widths: Any, packed: Any) -> None:
    """Write natural numbers in as many bits as their block has; a block of a width of w takes w words.

    Parameters
    ----------
    values : int32 array (n,)
    widths : uint8 array (blocks,)
    packed : uint32 array
        Is filled.
    """
    word = 0
    for block in range(widths.size):
        step = np.uint64(widths[block])
        if step == np.uint64(0):
            continue
        held, fill, end = np.uint64(0), np.uint64(0), word + np.int64(step)
        for i in range(block * BLOCK, min((block + 1) * BLOCK, values.size)):
            held |= np.uint64(_natural(values[i])) << fill
            fill += step
            if fill >= _WORD:
                packed[word] = np.uint32(held & np.uint64(0xFFFFFFFF))
                word += 1
                held >>= _WORD
                fill -= _WORD
        while word < end:
            packed[word] = np.uint32(held & np.uint64(0xFFFFFFFF))
            held = np.uint64(0)
            word += 1


@compiled(nogil=True)
def unpack_blocks(packed: Any, widths: Any, out: Any) -> None:
    """Fill ``out`` with the integers of blocks.

    Parameters
    ----------
    packed : uint32 array
        As many words as the widths add up to.
    widths : uint8 array (blocks,)
        32 at most.
    out : int32 array (n,)
    """
    begin = 0
    for block in range(widths.size):
        step = np.uint64(widths[block])
        first, last = block * BLOCK, min((block + 1) * BLOCK, out.size)
        if step == np.uint64(0):
            for i in range(first, last):
                out[i] = 0
            continue
        mask = (np.uint64(1) << step) - np.uint64(1)
        held, fill, word = np.uint64(0), np.uint64(0), begin
        for i in range(first, last):
            if fill < step:
                held |= np.uint64(packed[word]) << fill
                word += 1
                fill += _WORD
            out[i] = _integer(np.uint32(held & mask))
            held >>= step
            fill -= step
        begin += np.int64(step)  # type: ignore[assignment]


def packed_words(count: int, width: int) -> int:
    """Return how many words hold ``count`` numbers of ``width`` bits, with one to read beyond the end.

    Parameters
    ----------
    count, width : int
    """
    return -(-count * width // 32) + 1
