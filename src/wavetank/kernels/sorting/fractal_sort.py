"""FractalSort: sort by counting keys in a compressed histogram and writing the array back from the counts.

Equal keys are indistinguishable, so a sort is a count followed by an expansion: the input is read once, the output
written once, whatever the distribution.  Keys of up to 16 bits are counted in one dense table; wider ones go through
adaptive pages (:mod:`wavetank.kernels.sorting.paged_sort`).

A wrap of a 16-bit counter is found by the total of its block: noting it key by key would cost a branch per key.  Tables
start at different offsets within a page, since at equal ones equal keys stall.  Short inputs go to numpy: clearing
65,536 counters would cost more than the sort.  The stable sort scatters twice to a few hundred places, which is faster
than once to 65,536.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.as_array import array_of, is_tensor, target_of
from wavetank.kernels.sorting.hot_keys import hot_keys, sort_with_hot_keys
from wavetank.kernels.sorting.key_codec import UNSIGNED, codec_for, decoded, encoded
from wavetank.kernels.sorting.paged_sort import (
    WORD_COPIES,
    copy_if_falling,
    copy_if_rising,
    expand,
    pieces_of,
    sample_of,
    sort_wide,
    turn,
    waves,
    wide_scratch_bytes,
)
from wavetank.machine.limits import require_memory
from wavetank.machine.thread_pool import ThreadPool, parts_of, thread_pool
from wavetank.machine.threads import allowed_threads
from wavetank.settings import setting
from wavetank.sim.compiled import compiled

STREAMS = 4
_MOST_TABLES = 8
_SAMPLE = 1024
_TABLE_GAP_BYTES = 192
# The sample, and what sorting a short input takes.
_SMALL_BYTES = 1 << 16
_COUNTERS: dict[int, type[np.unsignedinteger[Any]]] = {16: np.uint16, 32: np.uint32}
_KEYS_WORTH_A_TABLE = {1: 1 << 10, 2: 1 << 15}
# Distinct keys up to which comparing with each of them is faster than counting or paging.
_FEW = {1: 4, 2: 6, 4: 16, 8: 16}
_COMPARE_BLOCK = 4096
# What to do where memory is too short.
_SMALLER_SORTS = "sort smaller parts and merge them, or free memory first"
# Of the sampled keys, how many must be distinct for one table to serve, and how few for equal keys to follow each
# other so often that four tables do not keep them apart.
_MOSTLY, _HARDLY = 0.75, 64
# Clearing and adding up as many tables must not show.
_KEYS_WORTH_MANY_TABLES = 1 << 23

_LOW_BYTE = np.uint64(0xFF)
_LOW_HALF = np.uint64(0xFFFF)
_BYTE, _HALF = np.uint64(8), np.uint64(16)
_ONE = np.uint64(1)


@compiled(nogil=True)
def _add_bytes(words: NDArray[np.uint64], first: int, stop: int, tables: NDArray[Any]) -> None:
    """Count the keys of words ``first`` to ``stop`` of each quarter of ``words``, eight in a word."""
    quarter, last = words.size // STREAMS, tables.shape[0] - 1
    one = tables.dtype.type(1)
    # Slices, for indices that the compiler knows to be no negative ones.
    ours, second = words[first:stop], words[quarter + first : quarter + stop]
    third, fourth = words[2 * quarter + first : 2 * quarter + stop], words[3 * quarter + first : 3 * quarter + stop]
    for i in range(ours.size):
        a, b, c, d = ours[i], second[i], third[i], fourth[i]
        for _ in range(8):
            tables[0, a & _LOW_BYTE] += one
            tables[1 & last, b & _LOW_BYTE] += one
            tables[2 & last, c & _LOW_BYTE] += one
            tables[3 & last, d & _LOW_BYTE] += one
            a, b, c, d = a >> _BYTE, b >> _BYTE, c >> _BYTE, d >> _BYTE


@compiled(nogil=True)
def _add_halves(words: NDArray[np.uint64], first: int, stop: int, tables: NDArray[Any]) -> None:
    """Count the keys of words ``first`` to ``stop`` of each quarter of ``words``, four in a word."""
    quarter, last = words.size // STREAMS, tables.shape[0] - 1
    one = tables.dtype.type(1)
    # Slices, for indices that the compiler knows to be no negative ones.
    ours, second = words[first:stop], words[quarter + first : quarter + stop]
    third, fourth = words[2 * quarter + first : 2 * quarter + stop], words[3 * quarter + first : 3 * quarter + stop]
    for i in range(ours.size):
        a, b, c, d = ours[i], second[i], third[i], fourth[i]
        for _ in range(4):
            tables[0, a & _LOW_HALF] += one
            tables[1 & last, b & _LOW_HALF] += one
            tables[2 & last, c & _LOW_HALF] += one
            tables[3 & last, d & _LOW_HALF] += one
            a, b, c, d = a >> _HALF, b >> _HALF, c >> _HALF, d >> _HALF


@compiled(nogil=True, forceinline=True)
def _add_in_turns(words: NDArray[np.uint64], first: int, stop: int, tables: NDArray[Any], width: np.uint64) -> None:
    """Count like the two above, keys of ``width`` bits, where each quarter has two of eight tables by turns."""
    quarter, mask = words.size // STREAMS, (np.uint64(1) << width) - np.uint64(1)
    one = tables.dtype.type(1)
    ours, second = words[first:stop], words[quarter + first : quarter + stop]
    third, fourth = words[2 * quarter + first : 2 * quarter + stop], words[3 * quarter + first : 3 * quarter + stop]
    for i in range(ours.size):
        a, b, c, d = ours[i], second[i], third[i], fourth[i]
        for _ in range(32 // width):
            tables[0, a & mask] += one
            tables[1, b & mask] += one
            tables[2, c & mask] += one
            tables[3, d & mask] += one
            a, b, c, d = a >> width, b >> width, c >> width, d >> width
            tables[4, a & mask] += one
            tables[5, b & mask] += one
            tables[6, c & mask] += one
            tables[7, d & mask] += one
            a, b, c, d = a >> width, b >> width, c >> width, d >> width


@compiled(nogil=True)
def _held(tables: NDArray[Any], size: int) -> int:
    """Return the sum of all counters."""
    total = np.uint64(0)
    for row in range(tables.shape[0]):
        for key in range(size):
            total += np.uint64(tables[row, key])
    return int(total)


@compiled(nogil=True)
def _drain(tables: NDArray[Any], totals: NDArray[np.uint32]) -> None:
    """Add the counters to ``totals`` and clear them."""
    for row in range(tables.shape[0]):
        for key in range(totals.size):
            totals[key] += np.uint32(tables[row, key])
            tables[row, key] = 0


@compiled(nogil=True)
def _count_part(words: NDArray[np.uint64], tables: NDArray[Any], full: int, totals: NDArray[np.uint32]) -> int:
    """Add to ``totals``, shape (256,) or (65536,), how often each key occurs in ``words``.

    Returns how many blocks were counted twice.

    Parameters
    ----------
    words : ndarray of uint64
        Eight or four keys each, fewer than 2^32 keys in all.
    tables : ndarray, shape (1 or 2 or 4 or 8, more than the keys' values)
        Hot counters, all zero.
    full : int
        The most that a hot counter holds.
    """
    keys_in_word = 8 if totals.size == 256 else 4
    # One step counts a word of each quarter; all its keys may be equal.
    keys_in_step = STREAMS * keys_in_word
    safe = full * tables.shape[0] // keys_in_step
    quarter = words.size // STREAMS
    length, longest = safe, quarter
    first, again = 0, 0
    while first < quarter:
        stop = min(first + length, quarter)
        if tables.shape[0] == _MOST_TABLES and keys_in_word == 8:
            _add_in_turns(words, first, stop, tables, _BYTE)
        elif tables.shape[0] == _MOST_TABLES:
            _add_in_turns(words, first, stop, tables, _HALF)
        elif keys_in_word == 8:
            _add_bytes(words, first, stop, tables)
        else:
            _add_halves(words, first, stop, tables)
        # A counter that wrapped has lost a power of two, so the sum of all is short if and only if one did.
        if stop - first > safe and _held(tables, totals.size) != (stop - first) * keys_in_step:
            tables[:] = 0
            longest = max(3 * (stop - first) // 4, safe)
            length = safe
            again += 1
            continue
        _drain(tables, totals)
        first = stop
        length = min(2 * length, longest)
    for i in range(STREAMS * quarter, words.size):
        word = words[i]
        for _ in range(keys_in_word):
            totals[word & np.uint64(totals.size - 1)] += np.uint32(1)
            word >>= np.uint64(64 // keys_in_word)
    return again


@compiled(nogil=True)
def _count_matches(keys: NDArray[Any], values: NDArray[Any], counts: NDArray[np.int64]) -> bool:
    """Count each of ``values``; stop and return False at the first block that holds another key."""
    for start in range(0, keys.size, _COMPARE_BLOCK):
        block = keys[start : min(start + _COMPARE_BLOCK, keys.size)]
        found = 0
        for v in range(values.size):
            matches = 0
            for i in range(block.size):
                matches += block[i] == values[v]
            counts[v] += matches
            found += matches
        if found != block.size:
            return False
    return True


@compiled(nogil=True)
def _count_pair(words: NDArray[np.uint64], first: np.uint64, second: np.uint64, copies: np.uint64, bits: int) -> int:
    """Count ``second`` in words full of two keys of ``bits`` bits; -1 at the first block that holds another key.

    The keys may be the same.  ``copies`` turns a key into a word filled with it.
    """
    differ = first ^ second
    place = np.uint64(0)
    while differ >> place > _ONE and not (differ >> place) & _ONE:
        place += _ONE
    ours, others = first * copies, differ * copies
    most = np.uint64(bits - 1)
    lane = (_ONE << most) + ((_ONE << most) - _ONE)
    # A lane of the sum must not run over.
    length = 255 if bits == 8 else _COMPARE_BLOCK
    total: Any = 0
    for start in range(0, words.size, length):
        block = words[start : min(start + length, words.size)]
        found, wrong = np.uint64(0), np.uint64(0)
        for i in range(block.size):
            apart = block[i] ^ ours
            # In each lane: one where the bit in which the two differ is that of the second, then all bits or none.
            flags = (apart >> place) & copies
            wrong |= apart ^ ((((flags << most) << _ONE) - flags) & others)
            found += flags
        if wrong:
            return -1
        while found:
            total += np.int64(found & lane)
            found = (found >> most) >> _ONE
    return total


def _count_two(raw: NDArray[Any], distinct: NDArray[Any], pool: ThreadPool, threads: int) -> NDArray[np.int64] | None:
    """Return how often each of one or two ``distinct`` keys occurs in ``raw``, None if others occur, too.

    Whole words are compared, so memory decides.
    """
    bits, in_word = 8 * raw.itemsize, 8 // raw.itemsize
    head = min(-raw.ctypes.data % 8 // raw.itemsize, raw.size)
    tail = raw.size - (raw.size - head) % in_word
    words, strays = raw[head:tail].view(np.uint64), np.concatenate((raw[:head], raw[tail:]))
    first, second = np.uint64(distinct[0]), np.uint64(distinct[-1])
    copies = WORD_COPIES[raw.itemsize]
    # A first look ends it for keys that the sample has missed.
    found = [_count_pair(words[:_COMPARE_BLOCK], first, second, copies, bits)]
    if found[0] >= 0:
        pieces = pieces_of(words.size, threads)
        found = pool(_count_pair, [(words[a:b], first, second, copies, bits) for a, b in pieces])
    if min(found) < 0 or not np.isin(strays, distinct).all():
        return None
    if distinct.size == 1:
        return np.array([raw.size])
    seconds = sum(found) + int((strays == distinct[-1]).sum())
    return np.array([raw.size - seconds, seconds])


def _count_few(raw: NDArray[Any], distinct: NDArray[Any], pool: ThreadPool, threads: int) -> NDArray[np.int64] | None:
    """Return how often each of the few ``distinct`` keys occurs in ``raw``, None if others occur, too."""
    if distinct.size <= 2:
        return _count_two(raw, distinct, pool, threads)
    parts = pieces_of(raw.size, threads)
    counts = np.zeros((len(parts), distinct.size), np.int64)
    complete = pool(_count_matches, [(raw[a:b], distinct, counts[i]) for i, (a, b) in enumerate(parts)])
    return counts.sum(axis=0) if all(complete) else None


def _count_all(
    raw: NDArray[Any], sampled: int, distinct: int, counter_bits: int | None, pool: ThreadPool, threads: int
) -> NDArray[np.uint64]:
    """Return how often each bit pattern occurs in ``raw``, uint8 or uint16; shape (256,) or (65536,).

    Of ``sampled`` keys ``distinct`` ones differed.
    """
    rows = 1 if distinct > _MOSTLY * sampled else STREAMS
    if distinct <= _HARDLY and raw.size >= _KEYS_WORTH_MANY_TABLES:
        rows = _MOST_TABLES
    if counter_bits is None:
        counter_bits = 16 if rows == 1 else 32
    size, in_word = 1 << 8 * raw.itemsize, 8 // raw.itemsize
    head = min(-raw.ctypes.data % 8 // raw.itemsize, raw.size)
    tail = raw.size - (raw.size - head) % in_word
    words = raw[head:tail].view(np.uint64)
    strays = np.concatenate((raw[:head], raw[tail:]))
    parts = [(a // in_word, b // in_word) for a, b in parts_of(tail - head, threads)]
    counter = _COUNTERS[counter_bits]
    full = (1 << counter_bits) - 1
    tables = np.zeros((len(parts), rows, size + 8 * _TABLE_GAP_BYTES // counter_bits), counter)
    totals = np.zeros((len(parts), size), np.uint32)
    for wave in waves(parts):
        pool(_count_part, [(words[a:b], tables[i], full, totals[i]) for i, a, b in wave])
    counts: NDArray[np.uint64] = totals.sum(axis=0, dtype=np.uint64)
    counts += np.bincount(strays, minlength=size).astype(np.uint64)
    return counts


@dataclass(frozen=True, kw_only=True)
class FractalSort:
    """Sorts vectors of integers and floats of 1 to 8 bytes by counting.

    Parameters
    ----------
    counter_bits : {16, 32}, optional
        Width of the hot counters for keys of up to 16 bits; by default 16 where a sample of the keys hardly repeats
        itself, else 32.

    References
    ----------
    M. Dang'ana, arXiv 2605.10390, 2026.

    Examples
    --------
    >>> FractalSort(threads=1).sort(np.array([3, -1, 2], np.int16))
    array([-1,  2,  3], dtype=int16)
    """

    threads: int | None = setting(None, says="Most threads; all allowed threads by default", low=1)
    counter_bits: int | None = setting(
        None,
        says="Width of the hot counters for keys of up to 16 bits; chosen by the keys by default",
        choices=tuple(_COUNTERS),
    )
    fast_paths: bool = setting(
        True, says="Whether shortcuts for few distinct keys, ordered input and recurring keys are used"
    )

    def __post_init__(self) -> None:
        if self.threads is not None and not (isinstance(self.threads, (int, np.integer)) and self.threads >= 1):
            raise BadValueError(
                "Sorting needs a number of threads, at least one.",
                given=self.threads,
                allowed="1 or more, or None for all usable cores",
                where="FractalSort.threads",
            )
        if self.counter_bits is not None and self.counter_bits not in _COUNTERS:
            raise BadValueError(
                "There are no counters of this width.",
                given=self.counter_bits,
                allowed="16, 32, or None to choose by the keys",
                where="FractalSort.counter_bits",
            )

    def sort(self, keys: Any, *, out: Any = None) -> Any:
        """Return ``keys`` in ascending order; minus zero comes before zero and NaNs come last, bits kept.

        Parameters
        ----------
        keys : array_like or torch tensor, shape (n,)
            Booleans, integers or floats of native byte order, at most 8 bytes each, none of them masked; a tensor is
            on the CPU, and one that requires its gradient is refused unless under ``torch.no_grad()``.  Never modified,
            unless it is also given as ``out``.
        out : ndarray or torch tensor, shape (n,), optional
            Where to write, of the kind and type of ``keys``; new memory by default.  A tensor must not require
            its gradient.

        Returns
        -------
        ndarray or torch tensor, shape (n,)
            A tensor for a tensor.

        Raises
        ------
        BadValueError
            If ``keys`` or ``out`` is of the wrong type or shape, or memory is too short.
        """
        if is_tensor(keys):
            written = self.sort(array_of(keys, "keys"), out=target_of(out, "out") if is_tensor(out) else out)
            return out if is_tensor(out) else _tensor_of(written)
        array = _checked_keys(keys)
        if out is not None:
            _check_out(out, array)
        overwritten = out is not None and array.itemsize > 2 and np.may_share_memory(array, out)
        copied = overwritten or not (array.flags.c_contiguous and array.flags.aligned)
        copies = array.nbytes * (int(copied) + int(out is None))
        require_memory(
            copies + self.scratch_bytes(array.size, array.dtype), f"Sorting {array.size:,} keys", _SMALLER_SORTS
        )
        if out is None:
            out = np.empty(array.shape, array.dtype)
        if array.size:
            raw = (array.copy() if overwritten else _in_line(array)).view(UNSIGNED[array.itemsize])
            self._sort(raw, out.view(raw.dtype), array.dtype, thread_pool(self._threads()))
        return out

    def sort_pairs(self, keys: Any, row_ids: Any = None) -> tuple[Any, Any]:
        """Return the sorted keys and the row id that came with each; equal keys keep their order.

        Without ``row_ids`` the second result is the stable argsort of ``keys``.

        Parameters
        ----------
        keys : array_like or torch tensor, shape (n,)
            As for :meth:`sort`.
        row_ids : array_like or torch tensor of integers, shape (n,), optional
            Each below 2^63; ``0 ... n - 1`` by default.

        Returns
        -------
        keys : ndarray or torch tensor, shape (n,)
        row_ids : the same of int64, shape (n,)
            Tensors if ``keys`` is one.

        Raises
        ------
        BadValueError
            If an array is of the wrong type or shape, or memory is too short.
        """
        if is_tensor(keys):
            sorted_keys, moved = self.sort_pairs(array_of(keys, "keys"), row_ids)
            return _tensor_of(sorted_keys), _tensor_of(moved)
        array = _in_line(_checked_keys(keys))
        n = array.size
        require_memory(
            n * (2 * array.itemsize + 24) + wide_scratch_bytes(n, max(array.itemsize, 2), self._threads(), 8),
            f"Sorting {n:,} keys with their row ids",
            _SMALLER_SORTS,
        )
        ids = np.arange(n) if row_ids is None else _checked_ids(row_ids, n)
        if n == 0:
            return array.copy(), ids.copy()
        if array.dtype.kind == "f":
            zero, nan = array == 0, np.isnan(array)
            if np.signbit(array[zero]).any() or nan.any():
                # Equal to the comparison, unlike in bits: zeros of either sign, NaNs of any payload.
                plain = array.copy()
                plain[zero], plain[nan] = 0, np.nan
                found, out_ids = self._sort_pairs(plain, ids, row_ids is None)
                # Equal keys keep their order, so their own bits can be put back without knowing where each went.
                first, zeros, nans = (int(np.count_nonzero(which)) for which in (array < 0, zero, nan))
                found[first : first + zeros], found[n - nans :] = array[zero], array[nan]
                return found, out_ids
        if array.itemsize == 1:
            values = _values(array.dtype)
            codes = np.empty(values.size, np.uint16)
            codes[values] = np.arange(values.size)
            found, out_ids = self._sort_pairs(codes[array.view(np.uint8)], ids, row_ids is None)
            return values.astype(np.uint8)[found].view(array.dtype), out_ids
        return self._sort_pairs(array, ids, row_ids is None)

    def histogram(self, keys: Any) -> NDArray[np.uint64]:
        """Return how often each value of a type of up to 16 bits occurs, from the smallest value to the largest.

        Parameters
        ----------
        keys : array_like or torch tensor, shape (n,)
            Keys of 1 or 2 bytes.

        Raises
        ------
        BadValueError
            If the keys are wider, or of the wrong type or shape.
        """
        array = _in_line(_checked_keys(keys))
        if array.itemsize > 2:
            raise BadValueError(
                "A dense histogram is kept for keys of up to 16 bits only.",
                given=str(array.dtype),
                allowed="int8, uint8, int16, uint16, float16, bool",
                hint="numpy.unique(keys, return_counts=True) counts wider ones",
            )
        raw = array.view(UNSIGNED[array.itemsize])
        sample = sample_of(raw, _SAMPLE)
        distinct = np.unique(sample).size
        threads = self._threads()
        counts = _count_all(raw, sample.size, distinct, self.counter_bits, thread_pool(threads), threads)
        return counts[_values(array.dtype)]

    def prepare(self, keys: NDArray[Any]) -> Callable[[], NDArray[Any]]:
        """Return the call to time: :meth:`sort` into a new array."""
        return lambda: self.sort(keys)

    def prepare_pairs(self, keys: NDArray[Any]) -> Callable[[], tuple[NDArray[Any], NDArray[np.int64]]]:
        """Return the call to time: :meth:`sort_pairs` into new arrays."""
        return lambda: self.sort_pairs(keys)

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return the most memory used beyond input and output, in bytes; for up to 16 bits independent of ``n``."""
        item = np.dtype(dtype).itemsize
        if item > 2:
            return wide_scratch_bytes(n, item, self._threads())
        size = 1 << 8 * item
        tables = _MOST_TABLES * (size * (self.counter_bits or 32) // 8 + _TABLE_GAP_BYTES)
        # Beside the tables, each thread's totals and, in words, the values and their counts in two orders and summed.
        return self._threads() * (tables + 4 * size) + 4 * 8 * size + _SMALL_BYTES

    def bytes_moved(self, n: int, dtype: DTypeLike) -> int:
        """Return the bytes that cross between memory and caches without shortcuts.

        Up to 16 bits: one read and one write of the keys.  Wider: read for the range, read for the page sizes, read
        and write for the partition, read and write for the pages.
        """
        item = np.dtype(dtype).itemsize
        return (2 if item <= 2 else 6) * n * item

    def _threads(self) -> int:
        return allowed_threads(self.threads)

    def _sort(self, raw: NDArray[Any], out: NDArray[Any], dtype: np.dtype[Any], pool: ThreadPool) -> None:
        """Sort the bits ``raw`` of keys of type ``dtype`` into ``out``."""
        n, threads, narrow = raw.size, self._threads(), raw.itemsize <= 2
        if narrow and n < _KEYS_WORTH_A_TABLE[raw.itemsize]:
            out[:] = decoded(np.sort(encoded(raw.view(dtype))), dtype).view(out.dtype)
            return
        sample = sample_of(raw, _SAMPLE)
        distinct = np.unique(sample)
        if self.fast_paths and distinct.size <= _FEW[raw.itemsize]:
            found = _count_few(raw, distinct, pool, threads)
            if found is not None:
                order = np.argsort(encoded(distinct.view(dtype)))
                self._expand(out, distinct[order], found[order], pool)
                return
        if narrow:
            values = _values(dtype)
            counts = _count_all(raw, sample.size, distinct.size, self.counter_bits, pool, threads)
            self._expand(out, values.astype(raw.dtype), counts[values], pool)
            return
        codec = codec_for(dtype)
        if self.fast_paths:
            if copy_if_rising(raw, out, codec, pool, threads) or copy_if_falling(raw, out, codec, pool, threads):
                return
            hot = hot_keys(raw, codec)
            if hot is not None:
                sort_with_hot_keys(raw, out, hot, codec, pool, threads)
                return
        sort_wide(raw, out, codec, pool, threads)

    def _sort_pairs(
        self, array: NDArray[Any], ids: NDArray[np.int64], ours: bool
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Sort keys of at least two bytes, equal ones of which have equal bits; ``ids`` are returned if ``ours``."""
        raw, threads = array.view(UNSIGNED[array.itemsize]), self._threads()
        out, out_ids = np.empty_like(raw), np.empty_like(ids)
        codec, pool = codec_for(array.dtype), thread_pool(threads)
        if self.fast_paths and copy_if_rising(raw, out, codec, pool, threads):
            if ours:
                return out.view(array.dtype), ids
            pool(np.copyto, [(out_ids[a:b], ids[a:b]) for a, b in pieces_of(ids.size, threads)])
        elif self.fast_paths and copy_if_falling(raw, out, codec, pool, threads):
            turn(raw, ids, out, out_ids, pool, threads)
        else:
            sort_wide(raw, out, codec, pool, threads, ids, out_ids)
        return out.view(array.dtype), out_ids

    def _expand(self, out: NDArray[Any], values: NDArray[Any], counts: NDArray[Any], pool: ThreadPool) -> None:
        ends = counts.cumsum(dtype=np.uint64)
        copies = WORD_COPIES[out.itemsize]
        pool(expand, [(out, values, ends, a, b, copies) for a, b in pieces_of(out.size, self._threads())])


@cache
def _values(dtype: np.dtype[Any]) -> NDArray[np.intp]:
    """Return the bit patterns of a type of up to 16 bits, in ascending order of the keys they stand for."""
    codes = np.arange(1 << 8 * dtype.itemsize).astype(UNSIGNED[dtype.itemsize])
    values = decoded(codes, dtype).view(codes.dtype).astype(np.intp)
    values.flags.writeable = False
    return values


def _tensor_of(array: NDArray[Any]) -> Any:
    from torch import from_numpy

    return from_numpy(array)


def _checked_keys(keys: ArrayLike) -> NDArray[Any]:
    array = array_of(keys, "keys")
    if array.ndim != 1:
        raise BadValueError(
            "Keys are sorted as a vector.",
            given=f"an array of shape {array.shape}",
            allowed="one dimension",
            hint="keys.ravel(), or one row at a time",
        )
    if array.dtype.kind not in "biuf" or array.itemsize > 8:
        raise BadValueError(
            "Keys of this type cannot be sorted by counting.",
            given=str(array.dtype),
            allowed="bool, int8 to int64, uint8 to uint64, float16, float32, float64",
            hint="dates and times sort as keys.view('int64'); anything else with numpy.sort",
        )
    if not array.dtype.isnative:
        raise BadValueError(
            "Keys are of foreign byte order.",
            given=array.dtype.str,
            allowed="native byte order",
            hint="keys.astype(keys.dtype.newbyteorder('='))",
        )
    return array


def _in_line(keys: NDArray[Any]) -> NDArray[Any]:
    """Return ``keys``, or a copy of them if they are scattered or off the boundaries of their type."""
    return np.require(keys, requirements=("C_CONTIGUOUS", "ALIGNED"))


def _checked_ids(row_ids: ArrayLike, n: int) -> NDArray[np.int64]:
    ids = array_of(row_ids, "row_ids")
    if n == ids.size == 0:
        return np.empty(0, np.int64)
    beyond = ids.dtype.kind == "u" and ids.itemsize == 8 and bool((ids > np.iinfo(np.int64).max).any())
    if ids.shape != (n,) or ids.dtype.kind not in "iu" or beyond:
        raise BadValueError(
            "Row ids do not go with the keys.",
            given=f"{ids.dtype} of shape {ids.shape}" + (", values of 2^63 and more" if beyond else ""),
            allowed=f"integers of shape ({n},), each below 2^63",
        )
    return np.ascontiguousarray(ids, np.int64)


def _check_out(out: NDArray[Any], keys: NDArray[Any]) -> None:
    if (
        not isinstance(out, np.ndarray)
        or out.shape != keys.shape
        or out.dtype != keys.dtype
        or not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable)
    ):
        raise BadValueError(
            "The output array does not fit.",
            given=f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__,
            allowed=f"a writable, contiguous, aligned array of {keys.dtype} and shape {keys.shape}",
        )


def sort(keys: Any, *, threads: int | None = None, out: Any = None) -> Any:
    """Return ``keys`` in ascending order; see :meth:`FractalSort.sort`.

    Parameters
    ----------
    keys : array or torch tensor, shape (n,)
        Booleans, integers or floating-point numbers of 1 to 8 bytes; never modified.
    threads : int, optional
        The most to use; by default all that the program may use.
    out : array or torch tensor, shape (n,), optional
        Receives the result: writable, contiguous, and of the type of the keys.
    """
    return FractalSort(threads=threads).sort(keys, out=out)


def sort_pairs(keys: Any, row_ids: Any = None, *, threads: int | None = None) -> tuple[Any, Any]:
    """Return the sorted keys and their row ids, stably; see :meth:`FractalSort.sort_pairs`.

    Parameters
    ----------
    keys : array or torch tensor, shape (n,)
        As of :func:`sort`.
    row_ids : array of integers, shape (n,), optional
        Each below 2^63; by default 0 to n - 1.
    threads : int, optional
        As of :func:`sort`.
    """
    return FractalSort(threads=threads).sort_pairs(keys, row_ids)


def reference_sort(keys: NDArray[Any]) -> NDArray[Any]:
    """Sort by the same idea without any of the engineering: a table for 16 bits, pages of suffixes for more.

    Examples
    --------
    >>> reference_sort(np.array([0.5, -np.inf, np.nan, -0.5]))
    array([-inf, -0.5,  0.5,  nan])
    """
    return decoded(_reference_codes(encoded(keys), 8 * keys.itemsize), keys.dtype)


def _reference_codes(codes: NDArray[Any], bits: int) -> NDArray[Any]:
    if bits <= 16:
        counts = np.bincount(codes.astype(np.intp), minlength=1 << bits)
        return np.repeat(np.arange(1 << bits).astype(codes.dtype), counts)
    below = codes.dtype.type(bits - 16)
    prefixes = codes >> below
    pages = []
    for prefix in np.flatnonzero(np.bincount(prefixes.astype(np.intp))):
        suffixes = codes[prefixes == prefix] & codes.dtype.type((1 << int(below)) - 1)
        page = np.array(sorted(suffixes)) if suffixes.size <= 4096 else _reference_codes(suffixes, int(below))
        pages.append(page.astype(codes.dtype) | (codes.dtype.type(prefix) << below))
    return np.concatenate([codes[:0], *pages])
