"""The sorts that people use today, and two textbook ones, behind the interface of a sorter.

Each library gets the keys in its own container, made outside the timed call without copying where the library can, and
is timed to its own result; turning that into a numpy array is outside, too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from wavetank.errors import BadValueError, missing_extra
from wavetank.sim.compiled import compiled


class _Peer:
    """What peers have in common."""

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return 0: it sorts its result in place."""
        return 0

    def bytes_moved(self, n: int, dtype: DTypeLike) -> int:
        """Return one read and one write of the keys, the least that any sort moves."""
        return 2 * n * np.dtype(dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class NumpySort(_Peer):
    """``numpy.sort``: an introsort, or x86-simd-sort where the processor has the instructions."""

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted keys."""
        return np.sort(keys)

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time."""
        return lambda: np.sort(keys)

    def prepare_pairs(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time that gives sorted keys and row ids: a stable argsort, then a gather."""

        def call() -> tuple[NDArray[Any], NDArray[np.intp]]:
            order = np.argsort(keys, kind="stable")
            return keys[order], order

        return call


@dataclass(frozen=True, kw_only=True)
class NumpyStableSort(NumpySort):
    """``numpy.sort(kind="stable")``: a radix sort for 8 and 16 bits, timsort for more."""

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted keys."""
        return np.sort(keys, kind="stable")

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time."""
        return lambda: np.sort(keys, kind="stable")

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return the second array that radix sort and merging need."""
        return n * np.dtype(dtype).itemsize


class _LibrarySort(NumpySort):
    """A library with a container of its own, which becomes an array when :meth:`sort` is called."""

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted keys."""
        return np.asarray(self.prepare(keys)())


def _module(name: str) -> Any:
    """Return a library's module, or the error that says which extra brings it."""
    library = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError:
        raise missing_extra(library, "kernels", needed_for=f"The system {library}-sort") from None


@dataclass(frozen=True, kw_only=True)
class PolarsSort(_LibrarySort):
    """``polars.Series.sort``, on all threads that polars takes."""

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: the series is made here."""
        call: Callable[[], object] = _module("polars").Series(keys).sort
        return call

    def prepare_pairs(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: a stable sort of a frame of keys and row ids, which is made here."""
        frame = _module("polars").DataFrame({"key": keys, "id": np.arange(keys.size)})

        def call() -> tuple[object, object]:
            found = frame.sort("key", maintain_order=True)
            return found["key"], found["id"]

        return call


@dataclass(frozen=True, kw_only=True)
class PyarrowSort(_LibrarySort):
    """Arrow's ``Array.sort``: sorted indices, then a gather."""

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: the Arrow array is made here, without a copy."""
        # Arrays sort by functions of the submodule.
        _module("pyarrow.compute")
        call: Callable[[], object] = _module("pyarrow").array(keys).sort
        return call

    def prepare_pairs(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: Arrow's stable indices, then a gather."""
        compute, array = _module("pyarrow.compute"), _module("pyarrow").array(keys)

        def call() -> tuple[object, object]:
            order = compute.array_sort_indices(array)
            return array.take(order), order

        return call

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return the indices."""
        return 8 * n


class _Sorted:
    """A column of a sorted DuckDB table that becomes an array when it is read."""

    def __init__(self, connection: Any, column: str) -> None:
        self.connection = connection
        self.column = column

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found = self.connection.table("ordered").fetchnumpy()[self.column]
        return np.asarray(found, dtype)


def _ordered(columns: dict[str, NDArray[Any]]) -> Callable[[], tuple[_Sorted, ...]]:
    """Return the call that sorts a table of DuckDB by its columns; the table is filled before."""
    import duckdb

    names, connection = ", ".join(columns), duckdb.connect()
    connection.register("given", columns)
    connection.execute(f"CREATE TABLE unsorted AS SELECT {names} FROM given")
    connection.unregister("given")

    def call() -> tuple[_Sorted, ...]:
        connection.execute(f"CREATE OR REPLACE TABLE ordered AS SELECT {names} FROM unsorted ORDER BY {names}")
        return tuple(_Sorted(connection, name) for name in columns)

    return call


@dataclass(frozen=True, kw_only=True)
class DuckDBSort(_LibrarySort):
    """DuckDB's ``ORDER BY`` over a table of one column in memory, on all threads that DuckDB takes."""

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: the table is filled here."""
        call = _ordered({"key": keys})
        return lambda: call()[0]

    def prepare_pairs(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: the table of keys and row ids is filled here; equal keys are ordered by id."""
        return _ordered({"key": keys, "id": np.arange(keys.size)})


@compiled(nogil=True)
def _count_and_expand(keys: Any, size: int) -> Any:
    counts = np.zeros(size, np.int64)
    for key in keys:
        counts[key] += 1
    out = np.empty_like(keys)
    at = 0
    for key in range(size):
        for _ in range(counts[key]):
            out[at] = key
            at += 1
    return out


@compiled(nogil=True)
def _radix_passes(keys: Any, digits: int) -> Any:
    source, target = keys.copy(), np.empty_like(keys)
    for digit in range(digits):
        shift = np.uint64(8 * digit)
        starts = np.zeros(257, np.int64)
        for key in source:
            starts[((np.uint64(key) >> shift) & np.uint64(255)) + np.uint64(1)] += 1
        for value in range(256):
            starts[value + 1] += starts[value]
        for key in source:
            place = (np.uint64(key) >> shift) & np.uint64(255)
            target[starts[place]] = key
            starts[place] += 1
        source, target = target, source
    return source


@dataclass(frozen=True, kw_only=True)
class CountingSort(_Peer):
    """Counting sort with one table and one thread; unsigned keys of up to 16 bits."""

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted keys.

        Raises
        ------
        BadValueError
            If the keys are not unsigned or wider than 16 bits.
        """
        sorted_keys: NDArray[Any] = _count_and_expand(_unsigned(keys, 2, "counting-sort"), 1 << 8 * keys.itemsize)
        return sorted_keys

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time."""
        return lambda: self.sort(keys)

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return the table."""
        return 8 << 8 * np.dtype(dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class RadixSort(_Peer):
    """Least-significant-digit radix sort, 8 bits per pass, one thread; unsigned keys."""

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted keys; raises BadValueError if they are not unsigned."""
        sorted_keys: NDArray[Any] = _radix_passes(_unsigned(keys, 8, "radix-sort"), keys.itemsize)
        return sorted_keys

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time."""
        return lambda: self.sort(keys)

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return the second array."""
        return n * np.dtype(dtype).itemsize

    def bytes_moved(self, n: int, dtype: DTypeLike) -> int:
        """Return a counting read, a scattering read and a write for every byte of the key, after one copy."""
        item = np.dtype(dtype).itemsize
        return (3 * item + 2) * n * item


def _unsigned(keys: NDArray[Any], most_bytes: int, system: str) -> NDArray[Any]:
    if keys.dtype.kind != "u" or keys.itemsize > most_bytes:
        raise BadValueError(
            f"{system} takes unsigned keys of up to {8 * most_bytes} bits.",
            given=str(keys.dtype),
            hint="leave it out with --systems, or let wavetank.kernels.sort choose",
        )
    return np.ascontiguousarray(keys)
