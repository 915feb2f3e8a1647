"""Threads of this machine as a device.

A CPU worker computes with scipy's BLAS and compiled loops on one thread or several; it can be slowed by doing every
block several times, so that two workers of one machine stand for a fast and a slow device.

Differs from the source:

1. BLAS, and a register tile where vectors are wide, instead of SYCL kernels.
2. Slowed workers are ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.solvers import blas_calls as blas
from wavetank.kernels.solvers import tiles
from wavetank.kernels.solvers.devices import Device, Store, Vector, least_s
from wavetank.kernels.solvers.triangle import BlockTriangle, column_starts, multiply_rows, pack_rows
from wavetank.machine.thread_pool import cuts
from wavetank.machine.threads import together
from wavetank.sim.compiled import compiled

# Multiply-adds of a trial: a tenth of a millisecond.
_TRIAL_PRODUCTS = 1 << 22
# Blocks' entries that one call of a product reads at most: an interrupt waits for its end.
_ENTRIES_OF_A_CALL = 1 << 27
# Parts that each thread packs rows in, for the same reason.
_PACKING_PARTS = 16


@compiled(nogil=True, fastmath=True)
def _advance(alpha: float, x: Vector, r: Vector, d: Vector, q: Vector) -> float:
    total = 0.0
    for i in range(x.size):
        x[i] += alpha * d[i]
        rest = r[i] - alpha * q[i]
        r[i] = rest
        total += rest * rest
    return total


@compiled(nogil=True, fastmath=True)
def _redirect(beta: float, d: Vector, r: Vector) -> None:
    for i in range(d.size):
        d[i] = r[i] + beta * d[i]


@compiled(nogil=True, fastmath=True)
def _dot(x: Vector, y: Vector) -> float:
    total = 0.0
    for i in range(x.size):
        total += x[i] * y[i]
    return total


class _CpuDevice(Store):
    """A CPU worker at work; see :class:`CpuWorker`."""

    def __init__(self, threads: int, repeats: int) -> None:
        self.threads = threads
        self.repeats = repeats
        self._stopped = False

    def _each(self, function: Callable[..., object], calls: Sequence[tuple[Any, ...]]) -> None:
        """Run all calls, on all threads of the device."""

        def unless_stopped(*call: Any) -> None:
            if not self._stopped:
                function(*call)

        together(unless_stopped, calls, self.threads)

    def allocate(self, blocks: int, block: int, first: int) -> None:
        # Pages that are never written are never taken, so the host may promise itself all rows.
        entries = self._place(blocks, block, first)
        self.data = tiles.aligned(entries + tiles.overhang(block))[:entries]
        self._waste = tiles.aligned(blocks * block * block + tiles.overhang(block) if self.repeats > 1 else 0)
        self._waste[:] = 0.0
        self._tiled = tiles.fits(block)
        self._rooms: SimpleQueue[Vector] = SimpleQueue()
        for _ in range(self.threads if self._tiled else 0):
            self._rooms.put(tiles.scratch(block))
        parts = self.threads if self.threads > 1 else 0
        self._sums = np.zeros((parts, blocks * block))
        self._wasted_sums = np.zeros(blocks * block)

    def load(self, matrix: Any, low: int, high: int) -> None:
        if isinstance(matrix, BlockTriangle):
            starts = column_starts(matrix.blocks)
            size = self.block * self.block
            for column in range(high):
                top, start = max(low, column), int(starts[column])
                source = matrix.data[(start + top) * size : (start + high) * size]
                np.copyto(self.column(column, top, high), source.reshape(-1, self.block))
            return
        self._each(
            lambda bottom, top: pack_rows(matrix, self.data, self.starts, self.block, bottom, top),
            [
                (low + one, low + other)
                for one, other in cuts(high - low, min(high - low, _PACKING_PARTS * self.threads))
            ]
            if high > low
            else [],
        )

    def vector(self) -> Vector:
        return np.zeros(self.blocks * self.block)

    def _scratch(self, like: Vector) -> Vector:
        scratch: Vector = self._waste[: like.size].reshape(like.shape)
        return scratch

    def factor_diagonal(self, k: int) -> tuple[int, float]:
        c = self.column(k, k, k + 1)
        for _ in range(self.repeats - 1):
            scratch = self._scratch(c)
            np.copyto(scratch, c)
            blas.factor(scratch)
        bad = blas.factor(c)
        return bad, float(c[bad - 1, bad - 1]) if bad > 0 else 0.0

    def solve_column(self, k: int, low: int, high: int) -> None:
        lower = self.column(k, k, k + 1)

        def solve(bottom: int, top: int) -> None:
            c = self.column(k, bottom, top)
            for _ in range(self.repeats - 1):
                scratch = self._scratch_rows(bottom, top)
                np.copyto(scratch, c)
                self._solve_right(scratch, lower)
            self._solve_right(c, lower)

        parts = cuts(high - low, min(self.threads, high - low)) if high > low else []
        self._each(solve, [(low + one, low + other) for one, other in parts])

    def _scratch_rows(self, low: int, high: int) -> Vector:
        size = self.block * self.block
        scratch: Vector = self._waste[low * size : high * size].reshape(-1, self.block)
        return scratch

    def _solve_right(self, c: Vector, lower: Vector) -> None:
        if not self._tiled:
            blas.solve_right(c, lower)
            return
        room = self._rooms.get()
        try:
            tiles.solve_right(c, lower, room)
        finally:
            self._rooms.put(room)

    def update(self, k: int, first: int, last: int, low: int, high: int) -> None:
        last = min(last, high)
        if not self._tiled:
            self._each(lambda j: self._update_column(k, j, low, high), [(j,) for j in range(first, last)])
            return

        def work(left: int, right: int) -> None:
            # Two threads may write the same waste: nobody reads it.
            room = self._rooms.get()
            try:
                tiles.update(
                    self.data.ctypes.data, self.starts, self.block, k, left, right, low, high, self.repeats,
                    self._waste.ctypes.data, room.ctypes.data,
                )  # fmt: skip
            finally:
                self._rooms.put(room)

        self._each(work, [(j, j + 1) for j in range(first, last)])

    def _update_column(self, k: int, j: int, low: int, high: int) -> None:
        b = self.column(k, j, j + 1)
        if low <= j:
            for _ in range(self.repeats - 1):
                blas.subtract_square(self._scratch_rows(j, j + 1), b)
            blas.subtract_square(self.column(j, j, j + 1), b)
        top = max(j + 1, low)
        if top < high:
            a = self.column(k, top, high)
            for _ in range(self.repeats - 1):
                blas.subtract_product(self._scratch_rows(top, high), a, b)
            blas.subtract_product(self.column(j, top, high), a, b)

    def substitute(self, x: Vector) -> None:
        for turn in range(self.repeats):
            y = x if turn == self.repeats - 1 else x.copy()
            self._substitute(y)

    def _substitute(self, x: Vector) -> None:
        n, b = self.blocks, self.block
        for k in range(n):
            part = x[k * b : (k + 1) * b]
            blas.solve_lower(self.column(k, k, k + 1), part)
            if k + 1 < n:
                blas.subtract_times(x[(k + 1) * b :], self.column(k, k + 1, n), part)
        for k in range(n - 1, -1, -1):
            part = x[k * b : (k + 1) * b]
            if k + 1 < n:
                blas.subtract_times(part, self.column(k, k + 1, n), x[(k + 1) * b :], transposed=True)
            blas.solve_lower(self.column(k, k, k + 1), part, transposed=True)

    def multiply(self, x: Vector, out: Vector, low: int, high: int, stop: int, across: int) -> None:
        # An interrupt waits for the end of a call, so that none reads a whole large matrix.
        height = max(1, _ENTRIES_OF_A_CALL // (self.blocks * self.block**2))

        def part(number: int, target: Vector) -> None:
            for bottom in range(low, high, height):
                if self._stopped:
                    return
                multiply_rows(
                    self.data, self.starts, self.block, bottom, min(bottom + height, high), stop, number, self.threads,
                    across, self.repeats, x, target, self._wasted_sums,
                )  # fmt: skip

        if self.threads == 1:
            part(0, out)
            return
        self._sums[:] = 0.0
        self._each(part, list(enumerate(self._sums)))
        out += self._sums.sum(axis=0)

    def block_product_s(self, block: int) -> float:
        def trial() -> _CpuDevice:
            device = _CpuDevice(1, self.repeats)
            device.allocate(3, block, 0)
            device.data[:] = 1.0
            return device

        # A single small product would be shorter than the call.
        turns = max(1, _TRIAL_PRODUCTS // block**3)

        def products(device: _CpuDevice) -> None:
            # In a matrix of three rows, column 0 takes one product from column 1 of row 2.
            for _ in range(turns):
                device.update(0, 1, 2, 2, 3)

        calls = [(trial(),) for _ in range(self.threads)]
        return least_s(lambda: self._each(products, calls)) / (self.threads * turns)

    def dot(self, x: Vector, y: Vector) -> float:
        return float(_dot(x, y))

    def advance(self, alpha: float, x: Vector, r: Vector, d: Vector, q: Vector) -> float:
        return float(_advance(alpha, x, r, d, q))

    def redirect(self, beta: float, d: Vector, r: Vector) -> None:
        _redirect(beta, d, r)

    def add(self, y: Vector, x: Vector) -> None:
        np.add(y, x, out=y)

    def receive(self, target: Vector, source: Vector) -> None:
        np.copyto(target, source)

    def mark(self) -> float:
        return time.perf_counter()

    def has_passed(self, mark: float) -> bool:
        return True

    def seconds_between(self, start: float, end: float) -> float:
        return end - start

    def finish(self) -> None:
        """Nothing is left to wait for: calls return when they are done."""

    def stop(self) -> None:
        self._stopped = True


@dataclass(frozen=True, kw_only=True)
class CpuWorker:
    """Threads of this machine as a device.

    Parameters
    ----------
    threads : int
        That work at once; each calls a single-threaded BLAS.
    repeats : int
        Times that every block is computed: above 1, a slow device made of a fast one.
    memory_bytes : float
        That the device has for the matrix.
    """

    threads: int = 1
    repeats: int = 1
    memory_bytes: float = float("inf")

    def __post_init__(self) -> None:
        if self.threads < 1 or self.repeats < 1 or not self.memory_bytes > 0:
            raise BadValueError(
                "A worker has threads, repeats and memory.",
                given=f"threads {self.threads}, repeats {self.repeats}, memory_bytes {self.memory_bytes}",
                allowed="1 or more; a positive number of bytes",
                where="devices",
            )

    def usable_bytes(self) -> float:
        """Return the memory for the matrix."""
        return self.memory_bytes

    def words(self) -> str:
        """Return what decides how fast the device is, beside the processor."""
        return f"{self.threads} thread(s), each block {self.repeats} time(s)"

    @contextmanager
    def open(self) -> Iterator[Device]:
        """Yield the device."""
        yield _CpuDevice(self.threads, self.repeats)
