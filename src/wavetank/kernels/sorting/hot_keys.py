"""Takes the keys that recur most out of a column before it is sorted: they are counted, only the others are moved.

A partition moves every key, however often it occurs.  Where a sample shows that few keys make up most of the column, a
small hash table of them, one comparison per key, separates hot from cold; the cold ones are sorted, and runs of the hot
ones are woven in between.

Source: counting frequent keys apart is that of CAFS, arXiv 2605.25040, 2026, and of the equality buckets of IPS4o
(Axtmann, Witt, Ferizovic, Sanders, "In-place Parallel Super Scalar Samplesort", ESA 2017).

Differs from the source:
1. The table is direct-mapped: of two hot keys that meet in a slot the more frequent one is kept, the other is cold.
2. A slot without a key holds one that belongs elsewhere, so that a lookup is a single compare.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.sorting.key_codec import Codec, encode
from wavetank.kernels.sorting.paged_sort import pieces_of, sample_of, sort_wide
from wavetank.machine.thread_pool import ThreadPool
from wavetank.sim.compiled import compiled

_SLOT_BITS = 10
_SAMPLE, _RECURS = 4096, 3
# Share of the sample that the hot keys make up, from which on taking them out pays.
_PAYS = 0.4
_WORTH = 1 << 17
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - _SLOT_BITS)


class HotKeys(NamedTuple):
    """The keys that recur most."""

    slots: NDArray[Any]
    """Shape (1024,): the key of each slot."""
    taken: NDArray[np.intp]
    """The slots whose key belongs there, in ascending order of the keys."""


def _slot_of(keys: NDArray[Any]) -> NDArray[np.intp]:
    return ((keys.astype(np.uint64) * _MULTIPLIER) >> _SHIFT).astype(np.intp)


def hot_keys(keys: NDArray[Any], codec: Codec) -> HotKeys | None:
    """Return the keys that recur in a sample, None where they make up too little of it.

    Parameters
    ----------
    keys : ndarray of uint32 or uint64, shape (n,)
        Bits of the keys.
    codec : Codec
        Their order.
    """
    if keys.size < _WORTH:
        return None
    sample = sample_of(keys, _SAMPLE)
    found, times = np.unique(sample, return_counts=True)
    recur = np.flatnonzero(times >= _RECURS)
    # The most frequent come last and overwrite.
    recur = recur[np.argsort(times[recur], kind="stable")]
    places = _slot_of(found[recur])
    holder = np.full(1 << _SLOT_BITS, -1)
    holder[places] = recur
    taken = np.flatnonzero(holder >= 0)
    if times[holder[taken]].sum() < _PAYS * _SAMPLE:
        return None
    # The key of a taken slot is strange to all others, so it marks them as empty.
    stranger = found[holder[taken[0]]]
    slots = np.full(1 << _SLOT_BITS, stranger)
    slots[taken] = found[holder[taken]]
    order = np.argsort(encode.py_func(slots[taken].astype(np.uint64), codec))
    return HotKeys(slots, taken[order])


@compiled(nogil=True)
def _part(keys: NDArray[Any], slots: NDArray[Any], cold: NDArray[Any], counts: NDArray[np.int64]) -> int:
    """Count the hot keys in ``counts``, shape (4, slots), and write the others to ``cold``; return their number."""
    kept = np.uint64(0)
    whole = keys.size - keys.size % 4
    # Neighbours are counted in different rows, so that equal ones do not wait for each other.
    for i in range(0, whole, 4):
        for row in range(4):
            key = keys[i + row]
            slot = (np.uint64(key) * _MULTIPLIER) >> _SHIFT
            hot = np.uint64(slots[slot] == key)
            counts[row, slot] += np.int64(hot)
            cold[kept] = key
            kept += np.uint64(1) - hot
    for i in range(whole, keys.size):
        key = keys[i]
        slot = (np.uint64(key) * _MULTIPLIER) >> _SHIFT
        hot = np.uint64(slots[slot] == key)
        counts[0, slot] += np.int64(hot)
        cold[kept] = key
        kept += np.uint64(1) - hot
    return int(kept)


@compiled(nogil=True)
def _place(keys: NDArray[Any], code: np.uint64, codec: Codec) -> int:
    """Return how many of the sorted ``keys`` have a smaller code."""
    low, high = 0, keys.size
    while low < high:
        middle = (low + high) // 2
        if encode(np.uint64(keys[middle]), codec) < code:
            low = middle + 1
        else:
            high = middle
    return low


@compiled(nogil=True)
def _weave(
    out: NDArray[Any], cold: NDArray[Any], hot: NDArray[Any], counts: NDArray[np.int64], codec: Codec,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Write ``out[start:stop]`` of the merge of sorted ``cold`` keys with ``counts[j]`` copies of each ``hot[j]``."""
    done, at = 0, 0
    for j in range(hot.size + 1):
        place = cold.size if j == hot.size else _place(cold, encode(np.uint64(hot[j]), codec), codec)
        first, last = max(at, start), min(at + place - done, stop)
        if first < last:
            out[first:last] = cold[done + first - at : done + last - at]
        at += place - done
        done = place
        if j < hot.size:
            first, last = max(at, start), min(at + counts[j], stop)
            if first < last:
                out[first:last] = hot[j]
            at += counts[j]


def sort_with_hot_keys(
    keys: NDArray[Any], out: NDArray[Any], hot: HotKeys, codec: Codec, pool: ThreadPool, threads: int
) -> None:
    """Write ``keys`` in ascending order to ``out``.

    Parameters
    ----------
    keys, out : ndarray of uint32 or uint64, shape (n,)
        Bits of the keys, and separate memory for the result.
    hot : HotKeys
        What :func:`hot_keys` found in ``keys``.
    codec, pool, threads
        As for :func:`wavetank.kernels.sorting.paged_sort.sort_wide`.
    """
    parts = pieces_of(keys.size, threads)
    counts = np.zeros((len(parts), 4, hot.slots.size), np.int64)
    kept = pool(_part, [(keys[a:b], hot.slots, out[a:b], counts[i]) for i, (a, b) in enumerate(parts)])
    rest = np.concatenate([out[a : a + count] for (a, _), count in zip(parts, kept, strict=True)])
    if rest.size:
        sort_wide(rest, out[: rest.size], codec, pool, threads, spent=True)
        pool(np.copyto, [(rest[a:b], out[a:b]) for a, b in pieces_of(rest.size, threads)])
    values, times = hot.slots[hot.taken], counts.sum(axis=(0, 1))[hot.taken]
    pool(_weave, [(out, rest, values, times, codec, a, b) for a, b in parts])
