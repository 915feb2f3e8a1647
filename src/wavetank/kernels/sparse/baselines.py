"""The usual forms of a sparse product, compiled: rows split among threads, merge path, sliced ELLPACK, coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.sparse.compressed import compressed_rows
from wavetank.kernels.sparse.merge_path import crossing
from wavetank.machine.thread_pool import cuts
from wavetank.machine.threads import allowed_threads, together
from wavetank.settings import setting
from wavetank.sim.compiled import compiled

Product = Callable[[], NDArray[Any]]
# Below these many nonzeros waking another thread through the operating system takes longer than it saves.
NONZEROS_WORTH_A_THREAD = 1 << 17


def _threads_for(threads: int | None, nonzeros: int) -> int:
    return allowed_threads(threads) if threads else min(allowed_threads(), max(1, nonzeros // NONZEROS_WORTH_A_THREAD))


def _together(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Callable[..., None]:
    """Return a function of more arguments that makes all calls at once."""

    def run(*rest: Any) -> None:
        together(function, [(*call, *rest) for call in calls], len(calls))

    return run


@compiled(nogil=True)
def _dot(columns: Any, values: Any, begin: int, end: int, x: Any) -> Any:
    # Four sums, so that an addition need not wait for the one before.
    a = b = c = d = x.dtype.type(0)
    at = begin
    while at + 4 <= end:
        a += values[at] * x[columns[at]]
        b += values[at + 1] * x[columns[at + 1]]
        c += values[at + 2] * x[columns[at + 2]]
        d += values[at + 3] * x[columns[at + 3]]
        at += 4
    while at < end:
        a += values[at] * x[columns[at]]
        at += 1
    return (a + b) + (c + d)


@compiled(nogil=True)
def _rows(begin: int, end: int, starts: Any, columns: Any, values: Any, x: Any, y: Any) -> None:
    for row in range(begin, end):
        y[row] = _dot(columns, values, np.int64(starts[row]), np.int64(starts[row + 1]), x)


@dataclass(frozen=True, kw_only=True)
class RowSplit:
    """Compressed rows, as many rows to each thread: what a first version with threads looks like."""

    threads: int | None = setting(None, says="Threads to use; None chooses by the matrix", low=1)

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Product:
        """Return the product with x as a call without arguments."""
        given = compressed_rows(matrix)
        run = _together(_rows, cuts(given.shape[0], _threads_for(self.threads, given.nonzeros)))
        columns = given.columns.view(f"u{given.columns.itemsize}")

        def product() -> NDArray[Any]:
            y = np.empty(given.shape[0], given.values.dtype)
            run(given.starts, columns, given.values, x, y)
            return y

        return product


@compiled(nogil=True)
def _merged(
    worker: int, workers: int, starts: Any, columns: Any, values: Any, x: Any, y: Any, carries: Any, rows: Any
) -> None:
    total = starts.size - 1 + np.int64(starts[-1])
    row, nonzero = crossing(starts, total * worker // workers)
    last, end = crossing(starts, total * (worker + 1) // workers)
    while row < last:
        stop = np.int64(starts[row + 1])
        y[row] = _dot(columns, values, nonzero, stop, x)
        nonzero = stop
        row += 1
    rows[worker] = last
    carries[worker] = _dot(columns, values, nonzero, end, x)


@dataclass(frozen=True, kw_only=True)
class MergeCsr:
    """Compressed rows cut along the merge path, one piece per thread, without descriptors."""

    threads: int | None = setting(None, says="Threads to use; None chooses by the matrix", low=1)

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Product:
        """Return the product with x as a call without arguments."""
        given = compressed_rows(matrix)
        workers = _threads_for(self.threads, given.nonzeros)
        run = _together(_merged, [(worker, workers) for worker in range(workers)])
        columns = given.columns.view(f"u{given.columns.itemsize}")
        carries, rows = np.zeros(workers, given.values.dtype), np.zeros(workers, np.int64)

        def product() -> NDArray[Any]:
            y = np.empty(given.shape[0], given.values.dtype)
            run(given.starts, columns, given.values, x, y, carries, rows)
            for row, carry in zip(rows[:-1], carries[:-1], strict=True):
                if row < y.size:
                    y[row] += carry
            return y

        return product


@compiled(nogil=True)
def _sell_fill(
    starts: Any, columns: Any, values: Any, order: Any, slices: Any, height: int, out_c: Any, out_v: Any
) -> None:
    for place in range(order.size):
        at = slices[place // height] + place % height
        for nonzero in range(starts[order[place]], starts[order[place] + 1]):
            out_c[at], out_v[at] = columns[nonzero], values[nonzero]
            at += height


@compiled(nogil=True)
def _sell(
    begin: int, end: int, order: Any, slices: Any, lengths: Any, height: int, columns: Any, values: Any, x: Any, y: Any
) -> None:
    sums = np.empty(height, x.dtype)
    for each in range(begin, end):
        sums[:] = 0
        for at in range(slices[each], slices[each + 1], height):
            for lane in range(height):
                sums[lane] += values[at + lane] * x[columns[at + lane]]
        for lane in range(min(height, order.size - each * height)):
            row = order[each * height + lane]
            y[row] = sums[lane] if lengths[row] else x.dtype.type(0)


@dataclass(frozen=True, kw_only=True)
class SellCSigma:
    """Rows sorted by length within windows, stored in slices as deep as their longest row, one lane per row."""

    height: int = setting(8, says="Rows per slice", low=1)
    window: int = setting(4096, says="Rows per sorting window", low=1)
    threads: int | None = setting(None, says="Threads to use; None chooses by the matrix", low=1)

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Product:
        """Return the product with x, which must be finite: padding reads its first item."""
        given = compressed_rows(matrix)
        lengths = np.diff(given.starts)
        rows = given.shape[0]
        order = np.lexsort((-lengths, np.arange(rows) // self.window))
        sorted_lengths = np.zeros(-(-rows // self.height) * self.height, np.int64)
        sorted_lengths[:rows] = lengths[order]
        depths = sorted_lengths.reshape(-1, self.height).max(axis=1) if rows else np.zeros(0, np.int64)
        slices = np.concatenate(([0], np.cumsum(depths) * self.height))
        columns, values = np.zeros(slices[-1], np.uint32), np.zeros(slices[-1], given.values.dtype)
        _sell_fill(given.starts, given.columns, given.values, order, slices, self.height, columns, values)
        # As many stored entries to each thread.
        workers = _threads_for(self.threads, given.nonzeros)
        edges = np.searchsorted(slices, np.linspace(0, slices[-1], workers + 1)).tolist()
        edges[0], edges[-1] = 0, depths.size
        run = _together(_sell, list(pairwise(edges)))

        def product() -> NDArray[Any]:
            y = np.empty(rows, given.values.dtype)
            run(order, slices, lengths, self.height, columns, values, x, y)
            return y

        return product


@compiled(nogil=True)
def _coordinates(rows: Any, columns: Any, values: Any, x: Any, y: Any) -> None:
    for at in range(rows.size):
        y[rows[at]] += values[at] * x[columns[at]]


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """One row and one column number per entry, added one after the other by one thread."""

    def prepare(self, matrix: Any, x: NDArray[Any]) -> Product:
        """Return the product with x as a call without arguments."""
        given = compressed_rows(matrix)
        rows = np.repeat(np.arange(given.shape[0], dtype=np.uint32), np.diff(given.starts))
        columns = given.columns.view(f"u{given.columns.itemsize}")

        def product() -> NDArray[Any]:
            y = np.zeros(given.shape[0], given.values.dtype)
            _coordinates(rows, columns, given.values, x, y)
            return y

        return product
