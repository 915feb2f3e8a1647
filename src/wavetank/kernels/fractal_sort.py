"""FractalSort: sort by counting keys in a compressed histogram and writing the array back from the counts.

Equal keys are indistinguishable, so a sort is a count followed by an expansion: the input is read once, the output
written once, whatever the distribution.  Keys of up to 16 bits are counted in one dense table; wider ones go through
adaptive pages (:mod:`wavetank.kernels.paged_sort`).

Source: M. Dang'ana, "FractalSortCPU: Bandwidth-Efficient Compressed Radix Sort on CPU", arXiv 2605.10390, 2026.

Differs from the source:
1. The paper's data layout is not public in full; this design keeps its stated properties: a compressed histogram,
   keys counted in parallel without bucketing the input, and an output that may take the input's place.
2. Hot counters hold 8 bits, not 16, and a wrap adds one to a 32-bit carry table, not an entry to a list.  Four tables
   of 64 KB a thread fit any second-level cache; measured, uniform keys are as fast as with wider counters and the
   slowest distribution is nearest to the fastest.  16 and 32 bits can be asked for.
3. The four tables start at different offsets within a page of memory; at equal ones neighbouring equal keys stall.
4. Keys are counted by their raw bits; sign and float order are applied when the counts are expanded, at no cost a key.
5. A sample of 1,024 keys chooses shortcuts: few distinct keys are counted by vector compares, and long runs (sorted
   input) 16 keys at a time.  A shortcut that turns out wrong falls back to the full count.
6. Short inputs are sorted by numpy: clearing a table of 65,536 counters would cost more than the sort.
7. The stable sort with row ids partitions and then sorts in cache, at any width: one scatter to 65,536 places at once
   is slower than two to a few hundred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, DTypeLike, NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.crew import Crew, crew_of, parts_of
from wavetank.kernels.key_codec import UNSIGNED, codec_for, decoded, encoded
from wavetank.kernels.machine import require_memory, usable_cores
from wavetank.kernels.paged_sort import WORD_COPIES, expand, sort_wide, trend, wide_scratch_bytes

TABLES = 4
_SAMPLE = 1024
_TABLE_GAP_BYTES = 192
# The sample, and what sorting a short input takes.
_SMALL_BYTES = 1 << 16
_COUNTERS: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32}
_KEYS_WORTH_A_TABLE = {1: 1 << 10, 2: 1 << 15}
# Distinct keys up to which comparing with each of them is faster than counting or paging.
_FEW = {1: 4, 2: 6, 4: 16, 8: 16}
_COMPARE_BLOCK = 4096
_RUN = 16

_LOW_BYTE = np.uint64(0xFF)
_LOW_HALF = np.uint64(0xFFFF)


@njit(cache=True, nogil=True)
def _add(tables: NDArray[Any], row: int, key: np.uint64, amount: Any, carries: NDArray[np.uint32]) -> None:
    tables[row, key] += amount
    if tables[row, key] < amount:
        carries[key] += np.uint32(1)


@njit(cache=True, nogil=True)
def _count_bytes(words: NDArray[np.uint64], tables: NDArray[Any], one: Any, carries: NDArray[np.uint32]) -> None:
    """Count the eight keys of each word, neighbours in different tables; ``carries[key]`` counts wraps."""
    for i in range(words.size):
        word = words[i]
        for row in range(4):
            _add(tables, row, (word >> np.uint64(8 * row)) & _LOW_BYTE, one, carries)
            _add(tables, row, (word >> np.uint64(8 * row + 32)) & _LOW_BYTE, one, carries)


@njit(cache=True, nogil=True)
def _count_word(word: np.uint64, tables: NDArray[Any], one: Any, carries: NDArray[np.uint32]) -> None:
    _add(tables, 0, word & _LOW_HALF, one, carries)
    _add(tables, 1, (word >> np.uint64(16)) & _LOW_HALF, one, carries)
    _add(tables, 2, (word >> np.uint64(32)) & _LOW_HALF, one, carries)
    _add(tables, 3, word >> np.uint64(48), one, carries)


@njit(cache=True, nogil=True)
def _count_halves(words: NDArray[np.uint64], tables: NDArray[Any], one: Any, carries: NDArray[np.uint32]) -> None:
    """Count the four keys of each word, each in a table of its own; ``carries[key]`` counts wraps."""
    for i in range(words.size):
        _count_word(words[i], tables, one, carries)


@njit(cache=True, nogil=True)
def _count_half_runs(words: NDArray[np.uint64], tables: NDArray[Any], one: Any, carries: NDArray[np.uint32]) -> None:
    """As :func:`_count_halves`, with one addition for 16 equal keys in four words."""
    whole = words.size - words.size % 4
    for i in range(0, whole, 4):
        word = words[i]
        # A word equal to itself turned by one key holds four equal keys.
        turned = (word << np.uint64(16)) | (word >> np.uint64(48))
        if word == turned and word == words[i + 1] and word == words[i + 2] and word == words[i + 3]:
            _add(tables, 0, word & _LOW_HALF, one << 4, carries)
        else:
            for j in range(4):
                _count_word(words[i + j], tables, one, carries)
    for i in range(whole, words.size):
        _count_word(words[i], tables, one, carries)


@njit(cache=True, nogil=True)
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


def _count_few(raw: NDArray[Any], sample: NDArray[Any], crew: Crew, threads: int) -> tuple[NDArray[Any], Any] | None:
    """Return the distinct keys of ``raw`` and their counts if all occur in a sample of few distinct ones, else None."""
    distinct = np.unique(sample)
    if distinct.size > _FEW[raw.itemsize]:
        return None
    parts = parts_of(raw.size, threads)
    counts = np.zeros((len(parts), distinct.size), np.int64)
    complete = crew(_count_matches, [(raw[a:b], distinct, counts[i]) for i, (a, b) in enumerate(parts)])
    return (distinct, counts.sum(axis=0)) if all(complete) else None


def _count_all(raw: NDArray[Any], counter_bits: int, kernel: Any, crew: Crew, threads: int) -> NDArray[np.uint64]:
    """Return how often each bit pattern occurs in ``raw``, uint8 or uint16; shape (256,) or (65536,)."""
    size = 1 << 8 * raw.itemsize
    head = min(-raw.ctypes.data % 8 // raw.itemsize, raw.size)
    tail = raw.size - (raw.size - head) % (8 // raw.itemsize)
    words = raw[head:tail].view(np.uint64)
    strays = np.concatenate((raw[:head], raw[tail:]))
    parts = parts_of(words.size, threads)
    counter = _COUNTERS[counter_bits]
    tables = np.zeros((len(parts), TABLES, size + 8 * _TABLE_GAP_BYTES // counter_bits), counter)
    carries = np.zeros((len(parts), size), np.uint32)
    crew(kernel, [(words[a:b], tables[i], counter(1), carries[i]) for i, (a, b) in enumerate(parts)])
    counts: NDArray[np.uint64] = tables[:, :, :size].sum(axis=(0, 1), dtype=np.uint64)
    counts += carries.sum(axis=0, dtype=np.uint64) << np.uint64(counter_bits)
    counts += np.bincount(strays, minlength=size).astype(np.uint64)
    return counts


@dataclass(frozen=True, kw_only=True)
class FractalSort:
    """Sorts vectors of integers and floats of 1 to 8 bytes by counting.

    Parameters
    ----------
    threads : int, optional
        Threads to use; all usable cores by default.  The result does not depend on it.
    counter_bits : {8, 16, 32}
        Width of the hot counters for keys of up to 16 bits (the paper's reading: 16).
    fast_paths : bool
        Use the shortcuts for few distinct keys, long runs and ordered input.

    References
    ----------
    M. Dang'ana, arXiv 2605.10390, 2026.

    Examples
    --------
    >>> FractalSort(threads=1).sort(np.array([3, -1, 2], np.int16))
    array([-1,  2,  3], dtype=int16)
    """

    threads: int | None = None
    counter_bits: int = 8
    fast_paths: bool = True

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise BadValueError(
                "Sorting needs at least one thread.",
                given=self.threads,
                allowed="1 or more, or None for all usable cores",
                where="FractalSort.threads",
            )
        if self.counter_bits not in _COUNTERS:
            raise BadValueError(
                "There are no counters of this width.",
                given=self.counter_bits,
                allowed="8, 16, 32",
                where="FractalSort.counter_bits",
            )

    def sort(self, keys: ArrayLike, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return ``keys`` in ascending order; minus zero comes before zero and NaNs come last, bits kept.

        Parameters
        ----------
        keys : array_like, shape (n,)
            Booleans, integers or floats of native byte order, at most 8 bytes each.  Never modified, unless it is
            also given as ``out``.
        out : ndarray, shape (n,), optional
            Where to write, of the type of ``keys``; a new array by default.

        Raises
        ------
        BadValueError
            If ``keys`` or ``out`` is of the wrong type or shape, or memory is too short.
        """
        array = _checked_keys(keys)
        if out is not None:
            _check_out(out, array)
        overwritten = out is not None and array.itemsize > 2 and np.may_share_memory(array, out)
        copied = overwritten or not (array.flags.c_contiguous and array.flags.aligned)
        copies = array.nbytes * (int(copied) + int(out is None))
        require_memory(copies + self.scratch_bytes(array.size, array.dtype), f"Sorting {array.size:,} keys")
        if out is None:
            out = np.empty(array.shape, array.dtype)
        if array.size:
            raw = (array.copy() if overwritten else _in_line(array)).view(UNSIGNED[array.itemsize])
            with crew_of(self._threads()) as crew:
                self._sort(raw, out.view(raw.dtype), array.dtype, crew)
        return out

    def sort_pairs(self, keys: ArrayLike, row_ids: ArrayLike | None = None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the sorted keys and the row id that came with each; equal keys keep their order.

        Without ``row_ids`` the second result is the stable argsort of ``keys``.

        Parameters
        ----------
        keys : array_like, shape (n,)
            As for :meth:`sort`.
        row_ids : array_like of integers, shape (n,), optional
            ``0 ... n - 1`` by default.

        Raises
        ------
        BadValueError
            If an array is of the wrong type or shape, or memory is too short.
        """
        array = _in_line(_checked_keys(keys))
        n = array.size
        require_memory(
            n * (2 * array.itemsize + 24) + wide_scratch_bytes(n, max(array.itemsize, 2), self._threads(), 8),
            f"Sorting {n:,} keys with their row ids",
        )
        ids = np.arange(n) if row_ids is None else _checked_ids(row_ids, n)
        if n == 0:
            return array.copy(), ids
        if array.dtype.kind == "f":
            # Equal to the comparison, unlike in bits: zeros of either sign, NaNs of any payload.
            plain = array.copy()
            plain[array == 0] = 0
            plain[np.isnan(array)] = np.nan
            unsigned = UNSIGNED[array.itemsize]
            if not np.array_equal(plain.view(unsigned), array.view(unsigned)):
                _, order = self.sort_pairs(plain)
                return array[order], ids[order]
        if array.itemsize == 1:
            codes, out_ids = self.sort_pairs(encoded(array).astype(np.uint16), ids)
            return decoded(codes.astype(np.uint8), array.dtype), out_ids
        raw = array.view(UNSIGNED[array.itemsize])
        out, out_ids = np.empty_like(raw), np.empty_like(ids)
        codec = codec_for(array.dtype)
        with crew_of(self._threads()) as crew:
            if self.fast_paths and trend(raw, codec, crew, self._threads())[0]:
                return array.copy(), ids.copy()
            sort_wide(raw, out, codec, crew, self._threads(), ids, out_ids)
        return out.view(array.dtype), out_ids

    def histogram(self, keys: ArrayLike) -> NDArray[np.uint64]:
        """Return how often each value of a type of up to 16 bits occurs, from the smallest value to the largest.

        Parameters
        ----------
        keys : array_like, shape (n,)
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
        with crew_of(self._threads()) as crew:
            kernel = _count_bytes if array.itemsize == 1 else _count_halves
            return _count_all(raw, self.counter_bits, kernel, crew, self._threads())[_values(array.dtype)]

    def prepare(self, keys: NDArray[Any]) -> Callable[[], NDArray[Any]]:
        """Return the call to time: :meth:`sort` into a new array."""
        return lambda: self.sort(keys)

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return the most memory used beyond input and output, in bytes; for up to 16 bits independent of ``n``."""
        item = np.dtype(dtype).itemsize
        if item > 2:
            return wide_scratch_bytes(n, item, self._threads())
        size = 1 << 8 * item
        tables = TABLES * (size * self.counter_bits // 8 + _TABLE_GAP_BYTES)
        # Beside the tables four arrays of words: the values, the counts, the carries and the carries shifted.
        return self._threads() * (tables + 4 * size) + 4 * 8 * size + _SMALL_BYTES

    def bytes_moved(self, n: int, dtype: DTypeLike) -> int:
        """Return the bytes that cross between memory and caches without shortcuts.

        Up to 16 bits: one read and one write of the keys.  Wider: read for the range, read for the page sizes, read
        and write for the partition, read and write for the pages.
        """
        item = np.dtype(dtype).itemsize
        return (2 if item <= 2 else 6) * n * item

    def _threads(self) -> int:
        return usable_cores() if self.threads is None else self.threads

    def _sort(self, raw: NDArray[Any], out: NDArray[Any], dtype: np.dtype[Any], crew: Crew) -> None:
        """Sort the bits ``raw`` of keys of type ``dtype`` into ``out``."""
        n, threads, narrow = raw.size, self._threads(), raw.itemsize <= 2
        if narrow and n < _KEYS_WORTH_A_TABLE[raw.itemsize]:
            out[:] = decoded(np.sort(encoded(raw.view(dtype))), dtype).view(out.dtype)
            return
        kernel = _count_bytes if raw.itemsize == 1 else _count_halves
        if self.fast_paths:
            places = np.arange(min(n, _SAMPLE)) * n // _SAMPLE if n > _SAMPLE else np.arange(n)
            sample = raw[places]
            few = _count_few(raw, sample, crew, threads)
            if few is not None:
                distinct, counts = few
                order = np.argsort(encoded(distinct.view(dtype)))
                self._expand(out, distinct[order], counts[order], crew)
                return
            if raw.itemsize == 2:
                repeats = sample == raw[np.minimum(places + _RUN - 1, n - 1)]
                kernel = _count_half_runs if repeats.mean() > 0.5 else kernel
        if narrow:
            values = _values(dtype)
            counts = _count_all(raw, self.counter_bits, kernel, crew, threads)
            self._expand(out, values.astype(raw.dtype), counts[values], crew)
            return
        codec = codec_for(dtype)
        if self.fast_paths:
            ascending, descending = trend(raw, codec, crew, threads)
            if ascending or descending:
                source = raw if ascending else raw[::-1]
                crew(np.copyto, [(out[a:b], source[a:b]) for a, b in parts_of(n, threads)])
                return
        sort_wide(raw, out, codec, crew, threads)

    def _expand(self, out: NDArray[Any], values: NDArray[Any], counts: NDArray[Any], crew: Crew) -> None:
        ends = counts.cumsum(dtype=np.uint64)
        copies = WORD_COPIES[out.itemsize]
        crew(expand, [(out, values, ends, a, b, copies) for a, b in parts_of(out.size, self._threads())])


def _values(dtype: np.dtype[Any]) -> NDArray[np.intp]:
    """Return the bit patterns of a type of up to 16 bits, in ascending order of the keys they stand for."""
    codes = np.arange(1 << 8 * dtype.itemsize).astype(UNSIGNED[dtype.itemsize])
    return decoded(codes, dtype).view(codes.dtype).astype(np.intp)


def _checked_keys(keys: ArrayLike) -> NDArray[Any]:
    array = np.asarray(keys)
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
    ids = np.asarray(row_ids)
    if ids.shape != (n,) or ids.dtype.kind not in "iu":
        raise BadValueError(
            "Row ids do not go with the keys.",
            given=f"{ids.dtype} of shape {ids.shape}",
            allowed=f"integers of shape ({n},)",
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


def sort(keys: ArrayLike, *, threads: int | None = None, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return ``keys`` in ascending order; see :meth:`FractalSort.sort`."""
    return FractalSort(threads=threads).sort(keys, out=out)


def sort_pairs(
    keys: ArrayLike, row_ids: ArrayLike | None = None, *, threads: int | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the sorted keys and their row ids, stably; see :meth:`FractalSort.sort_pairs`."""
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
