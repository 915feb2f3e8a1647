"""The sorts that people use today, and two textbook ones, behind the interface of a sorter.

Each library gets the keys in its own container, made outside the timed call without copying where the library can, and
is timed to its own result; turning that into a numpy array is outside, too.

Source: the libraries' own documentation; counting and radix sort as in Cormen, Leiserson, Rivest, Stein, "Introduction
to Algorithms", sections 8.2 and 8.3.

Differs from the source:

1. DuckDB sorts a column of a table in memory and materialises it as a table; it has no call that sorts an array.
2. The textbook sorts are compiled and single-threaded.
"""

from __future__ import annotations

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


@dataclass(frozen=True, kw_only=True)
class PolarsSort(NumpySort):
    """``polars.Series.sort``, on all threads that polars takes."""

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted keys."""
        return np.asarray(self.prepare(keys)())

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: the series is made here."""
        try:
            import polars
        except ImportError:
            raise missing_extra("polars", "kernels", needed_for="The contender polars-sort") from None
        series = polars.Series(keys)
        return series.sort

    def prepare_pairs(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: a stable sort of a frame of keys and row ids, which is made here."""
        try:
            import polars
        except ImportError:
            raise missing_extra("polars", "kernels", needed_for="The contender polars-sort") from None
        frame = polars.DataFrame({"key": keys, "id": np.arange(keys.size)})

        def call() -> tuple[object, object]:
            found = frame.sort("key", maintain_order=True)
            return found["key"], found["id"]

        return call


@dataclass(frozen=True, kw_only=True)
class PyarrowSort(NumpySort):
    """Arrow's ``Array.sort``: sorted indices, then a gather."""

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted keys."""
        return np.asarray(self.prepare(keys)())

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: the Arrow array is made here, without a copy."""
        try:
            import pyarrow
            import pyarrow.compute
        except ImportError:
            raise missing_extra("pyarrow", "kernels", needed_for="The contender pyarrow-sort") from None
        array = pyarrow.array(keys)
        return array.sort

    def prepare_pairs(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: Arrow's stable indices, then a gather."""
        try:
            import pyarrow
            import pyarrow.compute
        except ImportError:
            raise missing_extra("pyarrow", "kernels", needed_for="The contender pyarrow-sort") from None
        array = pyarrow.array(keys)

        def call() -> tuple[object, object]:
            order = pyarrow.compute.array_sort_indices(array)
            return array.take(order), order

        return call

    def scratch_bytes(self, n: int, dtype: DTypeLike) -> int:
        """Return the indices."""
        return 8 * n


class _Sorted:
    """A sorted DuckDB table that becomes an array when somebody looks."""

    def __init__(self, connection: Any, column: str = "key") -> None:
        self.connection = connection
        self.column = column

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found = self.connection.table("ordered").fetchnumpy()[self.column]
        return np.asarray(found, dtype)


@dataclass(frozen=True, kw_only=True)
class DuckDBSort(NumpySort):
    """DuckDB's ``ORDER BY`` over a table of one column in memory, on all threads that DuckDB takes."""

    def sort(self, keys: NDArray[Any]) -> NDArray[Any]:
        """Return the sorted keys."""
        return np.asarray(self.prepare(keys)())

    def prepare(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: the table is filled here."""
        import duckdb

        connection = duckdb.connect()
        connection.register("given", {"key": keys})
        connection.execute("CREATE TABLE keys AS SELECT key FROM given")
        connection.unregister("given")

        def call() -> _Sorted:
            connection.execute("CREATE OR REPLACE TABLE ordered AS SELECT key FROM keys ORDER BY key")
            return _Sorted(connection)

        return call

    def prepare_pairs(self, keys: NDArray[Any]) -> Callable[[], object]:
        """Return the call to time: the table of keys and row ids is filled here; equal keys are ordered by id."""
        import duckdb

        connection = duckdb.connect()
        connection.register("given", {"key": keys, "id": np.arange(keys.size)})
        connection.execute("CREATE TABLE pairs AS SELECT key, id FROM given")
        connection.unregister("given")

        def call() -> tuple[_Sorted, _Sorted]:
            connection.execute("CREATE OR REPLACE TABLE ordered AS SELECT key, id FROM pairs ORDER BY key, id")
            return _Sorted(connection), _Sorted(connection, "id")

        return call


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
    """Least-significant-digit radix sort, 8 bits a pass, one thread; unsigned keys."""

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


def _unsigned(keys: NDArray[Any], most_bytes: int, who: str) -> NDArray[Any]:
    if keys.dtype.kind != "u" or keys.itemsize > most_bytes:
        raise BadValueError(
            f"{who} takes unsigned keys of up to {8 * most_bytes} bits.",
            given=str(keys.dtype),
            hint="leave it out with --systems, or let wavetank.kernels.sort choose",
        )
    return np.ascontiguousarray(keys)
