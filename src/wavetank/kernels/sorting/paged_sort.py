"""Sorts keys of 16 to 64 bits through pages: one partition of memory, then every page in cache.

The first pass moves each key to the page of its leading bits; the second finishes each page while it fits the cache.
A page whose keys lie close together is counted like a 16-bit array; any other is sorted by its leading bits in two
radix passes and straightened by insertion, so that the work hardly depends on the key's width.

Source: M. Dang'ana, arXiv 2605.10390, 2026, for the sparse hierarchical histogram; the partition's write-combining
buffers are those of Satish et al., SIGMOD 2010.

Differs from the source:
1. Pages follow the range of the keys at hand, not fixed 16-bit prefixes; a page too large for the cache (skewed
   keys) is partitioned again by all threads, with its own range.
2. A page is a list when it is written and becomes a counter page when it is read, once its length and range are known;
   the source's (inferred) design converts while keys arrive.
3. Row ids can travel with the keys; every step is stable.
4. Ascending and descending input is recognised while it is copied.
5. Write-combining buffers are for thousands of pages; up to a thousand the cache combines better by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.sorting.key_codec import Codec, decode, decoded_bits, encode, identity
from wavetank.machine.stream_stores import LINE_BYTES, copy_line, fence, store_line
from wavetank.machine.thread_pool import ThreadPool, cuts, parts_of
from wavetank.sim.compiled import compiled

PAGE_BYTES = 1 << 17
# A page this large is partitioned again: with its scratch it would no longer fit a share of the last-level cache.
_LARGE_BYTES = 1 << 22
_DENSE = 1 << 16
_MAX_PREFIX_BITS, _MAX_PAGE_BITS = 16, 12
# Up to these many pages the cache holds a line of each, and lines of our own only cost time: measured at 2^7 to 2^11
# pages of 4-byte keys.  More pages are made only where fewer would be larger than what is sorted well in cache.
_FEW_PAGE_BITS, _FEW_PAGES = 9, 1 << 10
_LONG_PAGE_BYTES = 1 << 20
# A sample of keys is uneven when a prefix holds eight times its share, and more than chance explains.
_SAMPLE, _UNEVEN, _CHANCE = 4096, 8, 24
_INSERTION = 24
_TREND_BLOCK = 2048
_GOLDEN = (5**0.5 - 1) / 2
_MAX_DIGIT = 11
# Keys of one compiled call, a tenth of a second or so: an interrupt is noticed between calls.
_KEYS_OF_A_CALL = 1 << 24
_ONE = np.uint64(1)
WORD_COPIES = {
    1: np.uint64(0x0101_0101_0101_0101),
    2: np.uint64(0x0001_0001_0001_0001),
    4: np.uint64(0x0000_0001_0000_0001),
    8: _ONE,
}


@compiled(nogil=True)
def expand(
    out: NDArray[Any], values: NDArray[Any], ends: NDArray[np.uint64], start: int, stop: int, copies: np.uint64
) -> None:
    """Write ``out[start:stop]`` of the array in which ``values[k]`` fills positions ``ends[k - 1]`` to ``ends[k]``.

    Parameters
    ----------
    out, values : ndarray of one unsigned type
        The whole output, and the bits of each distinct key in ascending order of keys.
    ends : ndarray of uint64, shape of ``values``
        Running total of the counts.
    start, stop : int
        The range that this thread owns.
    copies : uint64
        What turns a key into a word filled with it.
    """
    item = np.uint64(out.itemsize)
    line = LINE_BYTES // out.itemsize
    address = np.uint64(out.ctypes.data)
    k = np.searchsorted(ends, np.uint64(start), side="right")
    at = start
    while at < stop:
        end: Any = min(np.int64(ends[k]), stop)
        value = values[k]
        if end - at >= 2 * line:
            while (address + np.uint64(at) * item) & np.uint64(LINE_BYTES - 1):
                out[at] = value
                at += 1
            word = np.uint64(value) * copies
            while at + line <= end:
                store_line(address + np.uint64(at) * item, word)
                at += line
        while at < end:
            out[at] = value
            at += 1
        k += 1
    fence()


@compiled(nogil=True)
def _span(keys: NDArray[Any], codec: Codec) -> tuple[np.uint64, np.uint64]:
    """Return the smallest and the largest code."""
    low = encode(np.uint64(keys[0]), codec)
    high = low
    for i in range(keys.size):
        code = encode(np.uint64(keys[i]), codec)
        low = min(low, code)
        high = max(high, code)
    return low, high


@compiled(nogil=True)
def _steps(keys: NDArray[Any], codec: Codec) -> tuple[int, int]:
    """Return how often a code is smaller than the one before, and how often larger."""
    # Sums without branches over neighbouring slices, which the compiler turns into vector compares.
    before, after = keys[:-1], keys[1:]
    falls, rises = 0, 0
    for i in range(after.size):
        last, code = encode(np.uint64(before[i]), codec), encode(np.uint64(after[i]), codec)
        falls += code < last
        rises += code > last
    return falls, rises


@compiled(nogil=True)
def _copy_if_rising(keys: NDArray[Any], first: int, out: NDArray[Any], codec: Codec) -> bool:
    """Copy ``keys[first:]`` to ``out`` while no code is smaller than the one before; False at the first that is."""
    for start in range(first, keys.size, _TREND_BLOCK):
        block = keys[start : start + _TREND_BLOCK]
        if _steps(keys[max(start - 1, 0) : start + block.size], codec)[0]:
            return False
        out[start - first : start - first + block.size] = block
    return True


@compiled(nogil=True)
def _copy_if_falling(keys: NDArray[Any], first: int, out: NDArray[Any], codec: Codec) -> bool:
    """Copy ``keys[first:]`` backwards while no code is larger than the one before; False at the first that is."""
    stop = out.size
    for start in range(first, keys.size, _TREND_BLOCK):
        block = keys[start : start + _TREND_BLOCK]
        if _steps(keys[max(start - 1, 0) : start + block.size], codec)[1]:
            return False
        target, last = out[stop - block.size : stop], np.uint64(block.size - 1)
        for i in range(block.size):
            target[last - np.uint64(i)] = block[i]
        stop -= block.size
    return True


@compiled(nogil=True)
def _turn(keys: NDArray[Any], ids: NDArray[np.int64], out: NDArray[Any], out_ids: NDArray[np.int64]) -> None:
    """Write a part that never rises backwards, and its ids run by run."""
    stop, at = keys.size, 0
    while stop > 0:
        start = stop - 1
        while start > 0 and keys[start - 1] == keys[stop - 1]:
            start -= 1
        for i in range(start, stop):
            out[at] = keys[i]
            out_ids[at] = ids[i]
            at += 1
        stop = start


@compiled(nogil=True)
def _count(keys: NDArray[Any], codec: Codec, low: np.uint64, shift: np.uint64, counts: NDArray[np.uint32]) -> None:
    """Add to ``counts``, shape (4, pages), the keys of each page; neighbouring keys go to different rows."""
    whole = keys.size - keys.size % 4
    for i in range(0, whole, 4):
        for row in range(4):
            counts[row, (encode(np.uint64(keys[i + row]), codec) - low) >> shift] += np.uint32(1)
    for i in range(whole, keys.size):
        counts[0, (encode(np.uint64(keys[i]), codec) - low) >> shift] += np.uint32(1)


class _Stream(NamedTuple):
    """Where one output array lies, and the line of it that each page is filling."""

    address: np.uint64
    lines_address: np.uint64
    phase: np.uint64
    """Place of the array's first item in its line."""
    last: np.uint64
    """Items of a line, less one."""
    item: np.uint64
    """Bytes of an item."""


@compiled(nogil=True)
def _stream(out: NDArray[Any], lines: NDArray[Any]) -> _Stream:
    item, address = np.uint64(out.itemsize), np.uint64(out.ctypes.data)
    last = np.uint64(LINE_BYTES) // item - _ONE
    return _Stream(address, np.uint64(lines.ctypes.data), (address // item) & last, last, item)


@compiled(nogil=True, forceinline=True)
def _put(
    value: Any, page: np.uint64, at: np.uint64, starts: NDArray[np.uint64],
    out: NDArray[Any], lines: NDArray[Any], stream: _Stream,
) -> None:  # fmt: skip
    """Append ``value`` to the page's line in cache; write the line out when it is full.

    ``at`` is the place it goes to in ``out``, ``starts[page]`` where this thread's share of the page begins.
    """
    first = page * (stream.last + _ONE)
    slot = (at + stream.phase) & stream.last
    lines[first + slot] = value
    if slot == stream.last:
        start = starts[page]
        if at >= start + slot:
            copy_line(stream.address + (at - slot) * stream.item, stream.lines_address + first * stream.item)
        else:
            for i in range(start, at + _ONE):
                out[i] = lines[first + ((np.uint64(i) + stream.phase) & stream.last)]


@compiled(nogil=True)
def _put_rest(
    page: np.uint64, stop: np.uint64, start: np.uint64, out: NDArray[Any], lines: NDArray[Any], stream: _Stream
) -> None:
    """Write what is left in the page's line."""
    first = page * (stream.last + _ONE)
    held = min((stop + stream.phase) & stream.last, stop - start)
    for i in range(stop - held, stop):
        out[i] = lines[first + ((np.uint64(i) + stream.phase) & stream.last)]


@compiled(nogil=True)
def _partition(
    keys: NDArray[Any], ids: Any, codec: Codec, low: np.uint64, shift: np.uint64,
    page_of: Any, starts: NDArray[np.uint64],
    out: NDArray[Any], out_ids: Any, lines: NDArray[Any], id_lines: Any,
) -> None:  # fmt: skip
    """Move the codes of ``keys`` (and ``ids`` unless None) to their pages, in the order they come in.

    ``page_of[prefix]`` is the page of a key (None: each prefix is a page), ``starts[page]`` where this thread's share
    of it begins in ``out``, and afterwards where the next key goes; ``lines`` holds a line a page.
    """
    # Addresses are taken once: in the loop they would touch the arrays' reference counts, which threads share.
    stream = _stream(out, lines)
    if out_ids is not None:
        id_stream = _stream(out_ids, id_lines)
    heads = starts.copy()
    for i in range(keys.size):
        code = encode(np.uint64(keys[i]), codec)
        page = (code - low) >> shift
        if page_of is not None:
            page = np.uint64(page_of[page])
        at = heads[page]
        heads[page] = at + _ONE
        _put(out.dtype.type(code), page, at, starts, out, lines, stream)
        if out_ids is not None:
            _put(ids[i], page, at, starts, out_ids, id_lines, id_stream)
    for b in range(starts.size):
        page = np.uint64(b)
        _put_rest(page, heads[b], starts[b], out, lines, stream)
        if out_ids is not None:
            _put_rest(page, heads[b], starts[b], out_ids, id_lines, id_stream)
    starts[:] = heads
    fence()


@compiled(nogil=True)
def _scatter(
    keys: NDArray[Any], ids: Any, codec: Codec, low: np.uint64, shift: np.uint64,
    page_of: Any, starts: NDArray[np.uint64], out: NDArray[Any], out_ids: Any,
) -> None:  # fmt: skip
    """Do what :func:`_partition` does without lines of its own: the cache collects those of a few hundred pages."""
    for i in range(keys.size):
        code = encode(np.uint64(keys[i]), codec)
        page = (code - low) >> shift
        if page_of is not None:
            page = np.uint64(page_of[page])
        at = starts[page]
        starts[page] = at + _ONE
        out[at] = out.dtype.type(code)
        if out_ids is not None:
            out_ids[at] = ids[i]


@compiled(nogil=True)
def _two_passes(
    page: NDArray[Any], ids: Any, low: Any, shift: np.uint64, digit: np.uint64,
    spare: NDArray[Any], spare_ids: Any, counts: NDArray[np.uint32],
) -> None:  # fmt: skip
    """Sort a page stably by bits ``shift`` to ``shift + 2 * digit`` of ``key - low``."""
    values = np.int64(_ONE << digit)
    mask = np.uint64(values - 1)
    counts[:, :values] = 0
    for i in range(page.size):
        code = np.uint64(page[i] - low) >> shift
        counts[0, code & mask] += np.uint32(1)
        counts[1, (code >> digit) & mask] += np.uint32(1)
    at0, at1 = np.uint32(0), np.uint32(0)
    for v in range(values):
        count0, count1 = counts[0, v], counts[1, v]
        counts[0, v], counts[1, v] = at0, at1
        at0 += count0
        at1 += count1
    for i in range(page.size):
        place = (np.uint64(page[i] - low) >> shift) & mask
        at = counts[0, place]
        counts[0, place] = at + np.uint32(1)
        spare[at] = page[i]
        if ids is not None:
            spare_ids[at] = ids[i]
    for i in range(page.size):
        place = (np.uint64(spare[i] - low) >> (shift + digit)) & mask
        at = counts[1, place]
        counts[1, place] = at + np.uint32(1)
        page[at] = spare[i]
        if ids is not None:
            ids[at] = spare_ids[i]


@compiled(nogil=True)
def _insert(page: NDArray[Any], ids: Any, budget: int) -> bool:
    """Sort a nearly sorted page by insertion; give up, with the page still whole, after ``budget`` moves."""
    for i in range(1, page.size):
        key = page[i]
        if page[i - 1] <= key:
            continue
        at = i
        if ids is not None:
            row = ids[i]
        while at > 0 and page[at - 1] > key:
            page[at] = page[at - 1]
            if ids is not None:
                ids[at] = ids[at - 1]
            at -= 1
        page[at] = key
        if ids is not None:
            ids[at] = row
        budget -= i - at
        if budget < 0:
            return False
    return True


@compiled(nogil=True)
def _count_page(page: NDArray[Any], low: Any, values: int, counts: NDArray[np.uint32]) -> None:
    """Sort a page whose keys are ``low`` to ``low + values - 1`` by counting."""
    counts[:values] = 0
    for i in range(page.size):
        counts[page[i] - low] += np.uint32(1)
    at = 0
    for v in range(values):
        key = page.dtype.type(low + page.dtype.type(v))
        for _ in range(counts[v]):
            page[at] = key
            at += 1


@compiled(nogil=True)
def _bit_length(value: np.uint64) -> int:
    length = 0
    while value:
        value >>= _ONE
        length += 1
    return length


@compiled(nogil=True)
def _sort_page(page: NDArray[Any], ids: Any, spare: NDArray[Any], spare_ids: Any, counts: NDArray[np.uint32]) -> None:
    """Sort one page of codes stably; ``counts`` has 2^16 entries."""
    if page.size <= _INSERTION:
        _insert(page, ids, _INSERTION * _INSERTION)
        return
    low, high = page[0], page[0]
    for i in range(page.size):
        low = min(low, page[i])
        high = max(high, page[i])
    if low == high:
        return
    span = np.uint64(high - low)
    if ids is None and span < np.uint64(_DENSE) and span < np.uint64(page.size):
        _count_page(page, low, np.int64(span) + 1, counts)
        return
    bits = _bit_length(span)
    digit = min(max(_bit_length(np.uint64(page.size)) - 2, 4), _MAX_DIGIT, (bits + 1) // 2)
    two = counts[: 2 << digit].reshape(2, 1 << digit)
    if bits > 2 * digit:
        # Keys that agree in their leading bits are few as a rule; if not, the whole width is sorted.
        _two_passes(page, ids, low, np.uint64(bits - 2 * digit), np.uint64(digit), spare, spare_ids, two)
        if _insert(page, ids, 8 * page.size):
            return
    for shift in range(0, bits, 2 * digit):
        # The last passes overlap the ones before: a shift by 64 and more bits is undefined.
        from_bit = min(shift, max(bits - 2 * digit, 0))
        _two_passes(page, ids, low, np.uint64(from_bit), np.uint64(digit), spare, spare_ids, two)


@compiled(nogil=True)
def _sort_pages(out: NDArray[Any], ids: Any, edges: NDArray[np.int64], large: int, codec: Codec) -> None:
    """Sort the pages between ``edges`` that hold fewer than ``large`` codes, and turn codes back into keys."""
    longest = 0
    for p in range(edges.size - 1):
        length = edges[p + 1] - edges[p]
        if length < large:
            longest = max(longest, length)
    spare = np.empty(longest, out.dtype)
    spare_ids = None if ids is None else np.empty(longest, np.int64)
    counts = np.empty(_DENSE, np.uint32)
    plain = codec.flip == 0 and codec.base == 0
    for p in range(edges.size - 1):
        if edges[p + 1] - edges[p] >= large:
            continue
        page = out[edges[p] : edges[p + 1]]
        page_ids = None if ids is None else ids[edges[p] : edges[p + 1]]
        _sort_page(page, page_ids, spare, spare_ids, counts)
        if not plain:
            for i in range(page.size):
                page[i] = out.dtype.type(decode(np.uint64(page[i]), codec))


def sample_of(keys: NDArray[Any], size: int) -> NDArray[Any]:
    """Return ``size`` of the keys from all over the array, or all keys if they are no more."""
    if keys.size <= size:
        return keys
    # Multiples of the golden ratio spread evenly and, unlike equal steps, meet no period of the keys.
    return keys[(np.arange(size) * _GOLDEN % 1.0 * keys.size).astype(np.intp)]


def copy_if_rising(keys: NDArray[Any], out: NDArray[Any], codec: Codec, pool: ThreadPool, threads: int) -> bool:
    """Copy ``keys``, as unsigned bits, to ``out`` if they never fall in order; else ``out`` is left in no known state.

    Keys in no order cost each thread one block.
    """
    # Neighbouring parts share a key, so that the step between them is seen too.
    # A few keys in no order end it before more is copied.
    if not _copy_if_rising(keys[:_TREND_BLOCK], 0, out[:_TREND_BLOCK], codec):
        return False
    parts = pieces_of(keys.size, threads)
    return all(pool(_copy_if_rising, [(keys[max(a - 1, 0) : b], min(a, 1), out[a:b], codec) for a, b in parts]))


def copy_if_falling(keys: NDArray[Any], out: NDArray[Any], codec: Codec, pool: ThreadPool, threads: int) -> bool:
    """Copy ``keys`` backwards to ``out`` if they never rise in order; else ``out`` is left in no known state."""
    n = keys.size
    if not _copy_if_falling(keys[:_TREND_BLOCK], 0, out[n - min(n, _TREND_BLOCK) :], codec):
        return False
    parts = pieces_of(n, threads)
    calls = [(keys[max(a - 1, 0) : b], min(a, 1), out[n - b : n - a], codec) for a, b in parts]
    return all(pool(_copy_if_falling, calls))


@compiled(nogil=True)
def _run_end(keys: NDArray[Any], at: int) -> int:
    """Return where the run of equal keys that ``keys[at - 1]`` belongs to ends."""
    while at < keys.size and keys[at] == keys[at - 1]:
        at += 1
    return at


def turn(
    keys: NDArray[Any],
    ids: NDArray[np.int64],
    out: NDArray[Any],
    out_ids: NDArray[np.int64],
    pool: ThreadPool,
    threads: int,
) -> None:
    """Write ``keys``, which never rise in order, in ascending order to ``out``; equal ones keep their ids' order."""
    n = keys.size
    # A part ends where a run ends, so that no run of equal keys is split.
    edges = [0, *(_run_end(keys, stop) for _, stop in pieces_of(n, threads))]
    pool(_turn, [(keys[a:b], ids[a:b], out[n - b : n - a], out_ids[n - b : n - a]) for a, b in pairwise(edges)])


def sort_wide(
    keys: NDArray[Any],
    out: NDArray[Any],
    codec: Codec,
    pool: ThreadPool,
    threads: int,
    ids: NDArray[np.int64] | None = None,
    out_ids: NDArray[np.int64] | None = None,
    spent: bool = False,
) -> None:
    """Write ``keys`` in ascending order to ``out``, and the ids that belong to them to ``out_ids``.

    Parameters
    ----------
    keys, out : ndarray of uint16, uint32 or uint64, shape (n,), n > 0
        Bits of the keys, and separate memory for the result.
    codec : Codec
        The order of the keys' type.
    pool, threads
        Who works, and how many they are; the result does not depend on it.
    ids, out_ids : ndarray of int64, shape (n,), optional
        Row ids; equal keys keep theirs in the order given.
    spent : bool
        Whether the memory of ``keys`` (without ids) may be overwritten.
    """
    _sort(keys, ids, out, out_ids, codec, codec, pool, threads, (keys, None) if spent else None)


def waves(parts: list[tuple[int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield pieces (part, start, stop) of all parts, one of each at a time, so short that Ctrl-C need not wait long.

    A part whose pieces must follow each other has one of them in every wave.
    """
    longest = max((stop - start for start, stop in parts), default=0)
    count = max(1, -(-longest // _KEYS_OF_A_CALL))
    for piece in range(count):
        yield [(i, a + (b - a) * piece // count, a + (b - a) * (piece + 1) // count) for i, (a, b) in enumerate(parts)]


def pieces_of(n: int, threads: int) -> list[tuple[int, int]]:
    """Split ``range(n)`` into neighbouring ranges, at least one per thread, so short that Ctrl-C need not wait long."""
    return cuts(n, max(len(parts_of(n, threads)), -(-n // _KEYS_OF_A_CALL)))


Spare = tuple[NDArray[Any], NDArray[np.int64] | None]


def _sort(
    keys: NDArray[Any], ids: NDArray[np.int64] | None, out: NDArray[Any], out_ids: NDArray[np.int64] | None,
    codec: Codec, final: Codec, pool: ThreadPool, threads: int, spare: Spare | None = None,
) -> None:  # fmt: skip
    """Sort ``keys`` of order ``codec`` into ``out``, whose codes become keys of order ``final``.

    ``spare`` has room for every page that must be partitioned again; ``keys`` and ``ids`` may lie in it.
    """
    n, item = keys.size, keys.itemsize
    parts = parts_of(n, threads)
    pieces = pieces_of(n, threads)
    spans = pool(_span, [(keys[start:stop], codec) for start, stop in pieces])
    low = np.uint64(min(low for low, _ in spans))
    span = int(max(high for _, high in spans)) - int(low)
    if span == 0:
        out.fill(int(decoded_bits(np.array([low]), final)[0]))
        if ids is not None and out_ids is not None:
            out_ids[:] = ids
        return
    if ids is None and span < _DENSE and n * item > PAGE_BYTES:
        counts = np.zeros((len(parts), 4, span + 1), np.uint32)
        for wave in waves(parts):
            pool(_count, [(keys[a:b], codec, low, np.uint64(0), counts[i]) for i, a, b in wave])
        ends = counts.sum(axis=(0, 1), dtype=np.uint64).cumsum(dtype=np.uint64)
        values = decoded_bits(low + np.arange(span + 1, dtype=np.uint64), final).astype(out.dtype)
        pool(expand, [(out, values, ends, start, stop, WORD_COPIES[item]) for start, stop in pieces])
        return
    if np.may_share_memory(keys, out):
        # A page of a caller, which lent the memory; what is in it is spent once the page is partitioned.
        page_keys, page_ids = spare or (np.empty_like(keys), None if ids is None else np.empty_like(ids))
        pool(np.copyto, [(page_keys[a:b], keys[a:b]) for a, b in pieces])
        if ids is not None and page_ids is not None:
            pool(np.copyto, [(page_ids[a:b], ids[a:b]) for a, b in pieces])
            ids = page_ids[:n]
        keys = page_keys[:n]

    shift, even = _prefix_shift(keys, codec, low, span)
    counts = np.zeros((len(parts), 4, (span >> int(shift)) + 1), np.uint32)
    for wave in waves(parts):
        pool(_count, [(keys[a:b], codec, low, shift, counts[i]) for i, a, b in wave])
    sizes = counts.sum(axis=1, dtype=np.int64)
    page_of = None
    if not even:
        first, page_of = _pages(sizes.sum(axis=0), PAGE_BYTES // item, _most_page_bits(n * item))
        sizes = np.add.reduceat(sizes, first, axis=1)
    edges = np.concatenate(([0], sizes.sum(axis=0).cumsum()))
    starts = (edges[:-1] + sizes.cumsum(axis=0) - sizes).astype(np.uint64)
    few = edges.size - 1 <= _FEW_PAGES
    lines: list[tuple[Any, ...]] = [()] * len(parts)
    if not few:
        id_type = None if out_ids is None else out_ids.dtype
        lines = [tuple(_line_per_page(edges.size - 1, kind) for kind in (out.dtype, id_type)) for _ in parts]
    for wave in waves(parts):
        pool(
            _scatter if few else _partition,
            [
                (keys[a:b], None if ids is None else ids[a:b], codec, low, shift, page_of, starts[i], out, out_ids)
                + lines[i]
                for i, a, b in wave
            ],
        )
    lines.clear()

    large = _LARGE_BYTES // item
    again = np.flatnonzero(np.diff(edges) >= large)
    if spare is None and again.size:
        most = int(np.diff(edges).max())
        spare = np.empty(most, out.dtype), None if out_ids is None else np.empty(most, np.int64)
    for page in again:
        part = slice(edges[page], edges[page + 1])
        part_ids = None if out_ids is None else out_ids[part]
        _sort(out[part], part_ids, out[part], part_ids, identity(codec), final, pool, threads, spare)
    # Several shares a thread: pages differ in cost, and a thread that is done takes the next share.
    wanted = np.linspace(0, n, 8 * max(len(parts), len(pieces)) + 1).astype(np.int64)
    share = np.unique(np.searchsorted(edges, wanted))
    pool(_sort_pages, [(out, out_ids, edges[a : b + 1], large, final) for a, b in pairwise(share)])


def _prefix_shift(keys: NDArray[Any], codec: Codec, low: np.uint64, span: int) -> tuple[np.uint64, bool]:
    """Choose how many low bits of a key its prefix leaves out, and whether each prefix is a page.

    It is if a sample of the keys is spread evenly over as many prefixes as pages are wanted; else there are prefixes
    enough to group them into even pages.
    """
    wanted = min((keys.nbytes // PAGE_BYTES).bit_length(), _most_page_bits(keys.nbytes))
    few = max(span.bit_length() - wanted, 0)
    many = max(span.bit_length() - _MAX_PREFIX_BITS, 0)
    if wanted > 0 and few > many:
        sample = sample_of(keys, _SAMPLE).astype(np.uint64)
        prefixes = (encode.py_func(sample, codec) - low) >> np.uint64(few)
        if np.bincount(prefixes.astype(np.intp)).max() > max(_UNEVEN * sample.size >> wanted, _CHANCE):
            return np.uint64(min(many, 63)), False
    return np.uint64(min(few, 63)), few > many or wanted == 0


def _most_page_bits(total_bytes: int) -> int:
    return _FEW_PAGE_BITS if total_bytes <= _LONG_PAGE_BYTES << _FEW_PAGE_BITS else _MAX_PAGE_BITS


def _pages(
    prefix_sizes: NDArray[np.int64], wanted: int, most_bits: int = _MAX_PAGE_BITS
) -> tuple[NDArray[np.intp], NDArray[np.uint16]]:
    """Group neighbouring prefixes into pages of about ``wanted`` keys, about ``2 ** most_bits`` at most.

    Returns the first prefix of each page, and the page of each prefix.
    """
    before = prefix_sizes.cumsum() - prefix_sizes
    # More lines than one per page of these do not stay in cache while pages are filled.
    goal = max(wanted, -(-int(prefix_sizes.sum()) >> most_bits))
    # A prefix that fills a page by itself begins one, so that a page sorted again is always smaller than its parent.
    first = np.flatnonzero((np.diff(before // goal, prepend=-1) > 0) | (prefix_sizes >= goal))
    page_of = np.repeat(np.arange(first.size, dtype=np.uint16), np.diff(first, append=prefix_sizes.size))
    return first, page_of


def _line_per_page(pages: int, dtype: np.dtype[Any] | None) -> NDArray[Any] | None:
    """Return memory for one line a page, each within one line of the cache; None for None."""
    if dtype is None:
        return None
    room = np.empty((pages + 1) * LINE_BYTES, np.uint8)
    skip = -room.ctypes.data % LINE_BYTES
    return room[skip : skip + pages * LINE_BYTES].view(dtype)


def wide_scratch_bytes(n: int, item_bytes: int, threads: int, id_bytes: int = 0) -> int:
    """Return the most memory :func:`sort_wide` takes beyond its arrays, in bytes.

    A second copy of the data is taken only when one page holds nearly all keys; it is counted all the same.  Pages
    within pages take their turns with it.
    """
    prefixes = threads * _DENSE * (4 * 4 + 8 + 8) + _DENSE * (8 + 8 + 8 + item_bytes)
    lines = threads * (8 + 2 * LINE_BYTES) << (_MAX_PAGE_BITS + 1)
    pages = threads * (_DENSE * 4 + min(_LARGE_BYTES // item_bytes, n) * (item_bytes + id_bytes))
    return n * (item_bytes + id_bytes) + prefixes + lines + pages
