"""Two devices, each with its own copy of its rows, and the link between them.

A device stores blocks of the triangle and does on them what a solver asks: factor, solve, update, multiply.  A CPU
worker computes with scipy's BLAS and compiled loops on one thread or several; it can be slowed by doing every block
several times, so that two workers of one machine stand for a fast and a slow device.  A torch device computes with
torch, on a GPU as on a CPU.  What one device needs of the other crosses the link, which counts every byte and can take
the time of a slower one.

This module is the border to the outside: it starts the second thread and reads the clock, which the solvers themselves
never do.

Source: T. Thuering, A. Strack, D. Pflueger, "Comparing the Performance of Heterogeneous Conjugate Gradient and
Cholesky Solvers on Various Hardware Using SYCL", 2026, arXiv 2605.13209.

Differs from the source:

1. BLAS, and a register tile where vectors are wide, instead of SYCL kernels.
2. Slowed workers and modelled links are ours.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.crew import cuts
from wavetank.kernels.cuda import found_gpu, free_bytes, require_torch
from wavetank.kernels.machine import usable_cores
from wavetank.kernels.solvers import blas_calls as blas
from wavetank.kernels.solvers import tiles
from wavetank.kernels.solvers.triangle import (
    BlockTriangle,
    column_starts,
    multiply_rows,
    pack_rows,
    triangle_blocks,
)
from wavetank.sim.compiled import compiled

Vector = NDArray[np.float64]

# Of the free memory of a GPU, as in the source.
_USABLE_SHARE = 0.9
# Multiply-adds of a trial: a tenth of a millisecond.
_TRIAL_PRODUCTS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """A link slower than this machine's memory: every copy takes at least ``latency_s + bytes / bytes_per_s``.

    Parameters
    ----------
    bytes_per_s : float
    latency_s : float
    """

    bytes_per_s: float = 16e9
    latency_s: float = 10e-6

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or not self.latency_s >= 0:
            raise BadValueError(
                "A link has a positive bandwidth and no negative latency.",
                given=f"{self.bytes_per_s} bytes/s, {self.latency_s} s",
                where="link",
            )

    def seconds(self, moved_bytes: float) -> float:
        """Return the least time of one copy."""
        return self.latency_s + moved_bytes / self.bytes_per_s


@dataclass
class Link:
    """Copies between the devices' memories, and counts.

    Attributes
    ----------
    moved_bytes, copies : dict
        By purpose: ``rows`` (the border moves), ``diagonal``, ``column``, ``direction``, ``product``, ``vectors``.
    """

    model: LinkModel | None = None
    moved_bytes: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)

    def copy(self, target: Any, source: Any, purpose: str, receive: Callable[[Any, Any], None] | None = None) -> None:
        """Copy one array into another of the same shape; either may be numpy's or torch's.

        Parameters
        ----------
        target, source : arrays
        purpose : str
        receive : callable, optional
            Does the copy instead: that of the device that ``target`` belongs to, :meth:`Device.receive`.
        """
        start = time.perf_counter()
        if receive is not None:
            receive(target, source)
        elif isinstance(target, np.ndarray) and isinstance(source, np.ndarray):
            np.copyto(target, source)
        else:
            import torch

            to, of = (torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in (target, source))
            to.copy_(of)
        moved = int(source.nbytes)
        self.moved_bytes[purpose] = self.moved_bytes.get(purpose, 0) + moved
        self.copies[purpose] = self.copies.get(purpose, 0) + 1
        if self.model is not None:
            left = self.model.seconds(moved) - (time.perf_counter() - start)
            if left > 0:
                time.sleep(left)


class Device(Protocol):
    """What a solver asks of a device.

    Rows and columns are those of blocks; ranges are half-open.  Arrays are the device's own (numpy's or torch's), in
    its own memory; vectors have ``blocks * block`` entries.
    """

    def allocate(self, blocks: int, block: int, first: int) -> None:
        """Make room for the block rows from ``first`` on."""
        ...

    def load(self, matrix: Any, low: int, high: int) -> None:
        """Store these rows of a dense matrix (row-major float64) or of a :class:`BlockTriangle`."""
        ...

    def column(self, column: int, low: int, high: int) -> Any:
        """Return these rows of a column, shape ((high - low) * block, block), as a view."""
        ...

    def vector(self) -> Any:
        """Return a vector of zeros."""
        ...

    def factor_diagonal(self, k: int) -> tuple[int, float]:
        """Factor block (k, k) in place; return (0, -) or the number, from 1, and the value of the bad pivot."""
        ...

    def solve_column(self, k: int, low: int, high: int) -> None:
        """Multiply these rows of column k from the right by the inverse of the transposed factor of block (k, k)."""
        ...

    def update(self, k: int, first: int, last: int, low: int, high: int) -> None:
        """Subtract L_ik L_jk^T from the blocks (i, j), first <= j < last and j <= i, of the rows from low to high."""
        ...

    def substitute(self, x: Any) -> None:
        """Replace ``x`` by the solution of L L^T x = b; needs all rows."""
        ...

    def multiply(self, x: Any, out: Any, low: int, high: int, stop: int, across: int) -> None:
        """Add to ``out`` what these rows, columns before ``stop``, contribute to the product with ``x``.

        ``across`` is that of :func:`~wavetank.kernels.solvers.triangle.multiply_rows`.
        """
        ...

    def block_product_s(self, block: int) -> float:
        """Return the seconds that the product of two blocks takes, measured."""
        ...

    def dot(self, x: Any, y: Any) -> float:
        """Return the scalar product of two vectors or parts."""
        ...

    def advance(self, alpha: float, x: Any, r: Any, d: Any, q: Any) -> float:
        """Set ``x += alpha d`` and ``r -= alpha q``; return the square of the norm of ``r``."""
        ...

    def redirect(self, beta: float, d: Any, r: Any) -> None:
        """Set ``d = r + beta d``."""
        ...

    def add(self, y: Any, x: Any) -> None:
        """Set ``y += x``."""
        ...

    def receive(self, target: Any, source: Any) -> None:
        """Copy an array of the host's memory, which nobody writes any more, into one of the device's own.

        What the device computes meanwhile must not touch ``target``; what it is asked for later waits for the copy.
        """
        ...

    def mark(self) -> Any:
        """Return a mark after everything asked for so far."""
        ...

    def has_passed(self, mark: Any) -> bool:
        """Return whether everything before a mark is done."""
        ...

    def seconds_between(self, start: Any, end: Any) -> float:
        """Wait for the second of two marks; return the seconds between them."""
        ...

    def finish(self) -> None:
        """Wait until everything asked for is done."""
        ...


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


class _Store:
    """Blocks in one array; numpy's and torch's slices work alike."""

    data: Any
    starts: NDArray[np.int64]
    blocks: int
    block: int

    def column(self, column: int, low: int, high: int) -> Any:
        size = self.block * self.block
        start = int(self.starts[column])
        return self.data[(start + low) * size : (start + high) * size].reshape(-1, self.block)

    def _place(self, blocks: int, block: int, first: int) -> int:
        """Lay the columns out; return the number of entries."""
        self.blocks, self.block = blocks, block
        self.starts = column_starts(blocks, first)
        return (triangle_blocks(blocks) - triangle_blocks(first)) * block * block


class _CpuDevice(_Store):
    """A CPU worker at work; see :class:`CpuWorker`."""

    def __init__(self, threads: int, repeats: int, pool: ThreadPoolExecutor | None) -> None:
        self.threads = threads
        self.repeats = repeats
        self._pool = pool

    def _each(self, function: Callable[..., object], calls: Sequence[tuple[Any, ...]]) -> None:
        """Run all calls, on all threads of the device."""
        if self._pool is None:
            for call in calls:
                function(*call)
        else:
            for done in [self._pool.submit(function, *call) for call in calls]:
                done.result()

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
            [(low + one, low + other) for one, other in cuts(high - low, min(high - low, 4 * self.threads))]
            if self.threads > 1 and high > low
            else [(low, high)],
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

        self._each(work, [(first, last)] if self.threads == 1 else [(j, j + 1) for j in range(first, last)])

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
        def part(number: int, target: Vector) -> None:
            multiply_rows(
                self.data, self.starts, self.block, low, high, stop, number, self.threads, across, self.repeats, x,
                target, self._wasted_sums,
            )  # fmt: skip

        if self.threads == 1:
            part(0, out)
            return
        self._sums[:] = 0.0
        self._each(part, list(enumerate(self._sums)))
        out += self._sums.sum(axis=0)

    def block_product_s(self, block: int) -> float:
        def trial() -> _CpuDevice:
            device = _CpuDevice(1, self.repeats, None)
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
        return _least_s(lambda: self._each(products, calls)) / (self.threads * turns)

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


class _TorchRows(_Store):
    """A torch device at work; see :class:`TorchDevice`.

    A GPU's calls return before they are done, whatever thread makes them, and are done in order.  Columns come in on a
    stream of their own, beside what the GPU computes; times are those between two events.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._cuda = torch.cuda if device.type == "cuda" else None
        self._incoming = self._cuda.Stream(device=device) if self._cuda else None

    def _empty(self, entries: int) -> Any:
        return self._torch.empty(entries, dtype=self._torch.float64, device=self._device)

    def allocate(self, blocks: int, block: int, first: int) -> None:
        self.data = self._empty(self._place(blocks, block, first))

    def load(self, matrix: Any, low: int, high: int) -> None:
        if isinstance(matrix, BlockTriangle):
            source, starts = matrix.data, column_starts(matrix.blocks)
        else:
            starts = column_starts(self.blocks, low)
            source = np.empty((triangle_blocks(self.blocks) - triangle_blocks(low)) * self.block**2)
            pack_rows(matrix, source, starts, self.block, low, high)
        size = self.block * self.block
        for column in range(high):
            top, start = max(low, column), int(starts[column])
            part = source[(start + top) * size : (start + high) * size].reshape(-1, self.block)
            self.column(column, top, high).copy_(self._torch.from_numpy(part))

    def vector(self) -> Any:
        return self._empty(self.blocks * self.block).zero_()

    def factor_diagonal(self, k: int) -> tuple[int, float]:
        c = self.column(k, k, k + 1)
        lower, info = self._torch.linalg.cholesky_ex(c)
        bad = int(info)
        if bad > 0:
            # The pivot is what is left of the diagonal entry when the rows before it are taken away.
            head = self._torch.linalg.cholesky(c[: bad - 1, : bad - 1])
            row = c[bad - 1, : bad - 1].reshape(-1, 1)
            solved = self._torch.linalg.solve_triangular(head, row, upper=False)
            return bad, float(c[bad - 1, bad - 1] - (solved * solved).sum())
        c.copy_(lower)
        return 0, 0.0

    def solve_column(self, k: int, low: int, high: int) -> None:
        if high <= low:
            return
        lower, c = self.column(k, k, k + 1), self.column(k, low, high)
        c.copy_(self._torch.linalg.solve_triangular(lower.T, c, upper=True, left=False))

    def update(self, k: int, first: int, last: int, low: int, high: int) -> None:
        for j in range(first, min(last, high)):
            top = max(j, low)
            self.column(j, top, high).addmm_(self.column(k, top, high), self.column(k, j, j + 1).T, alpha=-1.0)

    def substitute(self, x: Any) -> None:
        n, b = self.blocks, self.block
        solve = self._torch.linalg.solve_triangular
        for k in range(n):
            part = x[k * b : (k + 1) * b]
            part.copy_(solve(self.column(k, k, k + 1), part.reshape(-1, 1), upper=False).reshape(-1))
            if k + 1 < n:
                x[(k + 1) * b :].addmv_(self.column(k, k + 1, n), part, alpha=-1.0)
        for k in range(n - 1, -1, -1):
            part = x[k * b : (k + 1) * b]
            if k + 1 < n:
                part.addmv_(self.column(k, k + 1, n).T, x[(k + 1) * b :], alpha=-1.0)
            part.copy_(solve(self.column(k, k, k + 1).T, part.reshape(-1, 1), upper=True).reshape(-1))

    def block_product_s(self, block: int) -> float:
        # As in an update: a column of blocks times one of them, and again before anybody asks for the end.
        rows, turns = 16, 8
        one = self._empty(block * block).zero_().reshape(block, block)
        left, target = (self._empty(rows * block * block).zero_().reshape(-1, block) for _ in range(2))

        def products() -> None:
            for _ in range(turns):
                target.addmm_(left, one.T, alpha=-1.0)
            self.finish()

        return _least_s(products) / (rows * turns)

    def multiply(self, x: Any, out: Any, low: int, high: int, stop: int, across: int) -> None:
        b = self.block
        for column in range(min(high, stop)):
            right, left = x[column * b : (column + 1) * b], x[: high * b]
            own = out[column * b : (column + 1) * b]
            if column < low:
                a = self.column(column, low, high)
                if across & 1:
                    out[low * b : high * b].addmv_(a, right)
                if across & 2:
                    own.addmv_(a.T, left[low * b :])
                continue
            out[column * b : high * b].addmv_(self.column(column, column, high), right)
            if column + 1 < high:
                own.addmv_(self.column(column, column + 1, high).T, left[(column + 1) * b :])

    def dot(self, x: Any, y: Any) -> float:
        return float(self._torch.dot(x, y)) if len(x) else 0.0

    def advance(self, alpha: float, x: Any, r: Any, d: Any, q: Any) -> float:
        x.add_(d, alpha=alpha)
        r.sub_(q, alpha=alpha)
        return self.dot(r, r)

    def redirect(self, beta: float, d: Any, r: Any) -> None:
        d.mul_(beta).add_(r)

    def add(self, y: Any, x: Any) -> None:
        y.add_(x)

    def receive(self, target: Any, source: Vector) -> None:
        given = self._torch.from_numpy(source)
        if self._cuda is None:
            target.copy_(given)
            return
        # torch takes the pinned copy back when the stream has passed it.
        pinned = given.pin_memory()
        with self._cuda.stream(self._incoming):
            target.copy_(pinned, non_blocking=True)
        self._cuda.current_stream(self._device).wait_stream(self._incoming)

    def mark(self) -> Any:
        if self._cuda is None:
            return time.perf_counter()
        event = self._cuda.Event(enable_timing=True)
        # The stream is named: a thread's current device need not be this one.
        event.record(self._cuda.current_stream(self._device))
        return event

    def has_passed(self, mark: Any) -> bool:
        return True if self._cuda is None else bool(mark.query())

    def seconds_between(self, start: Any, end: Any) -> float:
        if self._cuda is None:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0

    def finish(self) -> None:
        """Wait for the GPU's queue."""
        if self._cuda is not None:
            self._cuda.synchronize(self._device)


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

    @contextmanager
    def open(self) -> Iterator[Device]:
        """Yield the device; its threads end with the block."""
        if self.threads == 1:
            yield _CpuDevice(1, self.repeats, None)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            yield _CpuDevice(self.threads, self.repeats, pool)


@dataclass(frozen=True, kw_only=True)
class TorchDevice:
    """A device of torch's.

    Parameters
    ----------
    device : str
        ``"cuda"``, ``"cuda:1"``, ``"cpu"``: whatever torch takes.
    """

    device: str = "cuda"

    def usable_bytes(self) -> float:
        """Return 90 % of a GPU's free memory, as the source has it."""
        return _USABLE_SHARE * free_bytes(self._found()[1])

    @contextmanager
    def open(self) -> Iterator[Device]:
        """Yield the device."""
        yield _TorchRows(*self._found())

    def _found(self) -> tuple[Any, Any]:
        torch = require_torch(f"The device {self.device!r}")
        try:
            device = torch.device(self.device)
            torch.empty(1, dtype=torch.float64, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            # torch tells an unknown word, a missing GPU and a build without one by three different errors.
            raise BadValueError(
                "torch cannot use this device for float64.",
                given=self.device,
                hint=f"torch says: {str(error).splitlines()[0]}",
                where="devices",
            ) from None
        return torch, device


DeviceSpec = CpuWorker | TorchDevice


def default_devices() -> tuple[DeviceSpec, DeviceSpec]:
    """Return this machine's host and accelerator: its cores and its GPU, or else its cores in two halves."""
    cores = usable_cores()
    if found_gpu():
        # One core feeds the GPU.
        return CpuWorker(threads=max(1, cores - 1)), TorchDevice()
    return CpuWorker(threads=max(1, cores // 2)), CpuWorker(threads=max(1, cores - cores // 2))


@cache
def _blas_pools() -> Any:
    from threadpoolctl import ThreadpoolController

    blas.load()
    return ThreadpoolController()


@intrinsic
def _loaded(context: Any, flag: Any) -> Any:
    """Return the first entry of an int64 array as it is in memory now, whoever wrote it last."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(array.data, "acquire", 8)

    return types.int64(flag), generate


@compiled(nogil=True)
def _wait_while(flag: NDArray[np.int64], value: int, turns: int) -> None:
    """Return when ``flag[0]`` is no longer ``value``, or after so many turns."""
    for _ in range(turns):
        if _loaded(flag) != value:
            return


# About a millisecond: what follows a phase comes sooner, and what waits longer may as well sleep.
_TURNS = 1_000_000


@contextmanager
def _kept_on(cores: frozenset[int]) -> Iterator[None]:
    """Keep this thread, and those that it starts, on some cores; on none means wherever the system puts them."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _own_cores(host: CpuWorker, accelerator: DeviceSpec) -> tuple[frozenset[int], frozenset[int]]:
    """Return cores for the threads of each device; none where the system cannot say or there are too few.

    Two threads that wait for each other on one core take turns of milliseconds, and a system may leave them there.
    """
    if not hasattr(os, "sched_setaffinity"):
        return frozenset(), frozenset()
    cores = sorted(os.sched_getaffinity(0))
    # A GPU is fed by one thread.
    threads = accelerator.threads if isinstance(accelerator, CpuWorker) else 1
    if host.threads + threads > len(cores):
        return frozenset(), frozenset()
    return frozenset(cores[: host.threads]), frozenset(cores[host.threads : host.threads + threads])


class _Hand:
    """A second thread that does calls in the order in which it was given them.

    Whoever waits looks at a counter for a while before it sleeps: to wake a sleeping core takes longer than many of
    the phases that a solver consists of.
    """

    def __init__(self, cores: frozenset[int]) -> None:
        self._cores = cores
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._found: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._given = np.zeros(1, np.int64)
        self._done = np.zeros(1, np.int64)
        self._taken = 0
        self._thread = Thread(target=self._work, daemon=True, name="accelerator")

    def _work(self) -> None:
        with _kept_on(self._cores):
            self._do_calls()

    def _do_calls(self) -> None:
        taken = 0
        while True:
            _wait_while(self._given, taken, _TURNS)
            call = self._calls.get()
            taken += 1
            if call is None:
                return
            found: tuple[Any, BaseException | None]
            try:
                found = (call(), None)
            except BaseException as error:
                # Whatever it is belongs to the thread that asked.
                found = (None, error)
            self._found.put(found)
            self._done[0] = taken

    def __enter__(self) -> _Hand:
        self._thread.start()
        return self

    def __exit__(self, *of: object) -> None:
        self._put(None)
        self._thread.join()

    def _put(self, call: Callable[[], Any] | None) -> None:
        self._calls.put(call)
        self._given[0] += 1

    def give(self, call: Callable[[], Any]) -> None:
        """Start a call."""
        self._put(call)

    def take(self) -> tuple[Any, BaseException | None]:
        """Wait for the end of the first call that was not taken yet."""
        _wait_while(self._done, self._taken, _TURNS)
        self._taken += 1
        return self._found.get()

    def done(self) -> int:
        """Return how many calls have ended that were not taken yet."""
        return int(self._done[0]) - self._taken


class Pair:
    """Host and accelerator at work on one matrix.

    Attributes
    ----------
    specs : tuple of two
        What the devices were opened from.
    host, accelerator : Device
    link : Link
    phases_s : dict
        Phase to seconds of wall time of the thread that called.
    behind_s : dict
        Phase to seconds of what :meth:`later` gave to the accelerator's thread.
    given : int
        Calls of :meth:`later` so far.
    """

    def __init__(
        self, specs: tuple[DeviceSpec, DeviceSpec], host: Any, accelerator: Any, link: Link, hand: _Hand
    ) -> None:
        self.specs = specs
        self.host = host
        self.accelerator = accelerator
        self.link = link
        self.phases_s: dict[str, float] = {}
        self.behind_s: dict[str, float] = {}
        self.given = 0
        self._seen = 0
        # Calls that the accelerator's thread has made, but the device may not have ended.
        self._begun: deque[tuple[Any, BaseException | None]] = deque()
        self._start = time.perf_counter()
        self._hand = hand

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + time.perf_counter() - start

    def at_once(
        self, host: Callable[[], object] | None, accelerator: Callable[[], object] | None
    ) -> tuple[tuple[Any, float], tuple[Any, float]]:
        """Run a call for each device, both at the same time; return what each gave and the seconds it took.

        A device without a call gives (None, 0).
        """
        nothing: tuple[Any, float] = (None, 0.0)
        if host is None or accelerator is None:
            own = _timed(host, self.host) if host else nothing
            return own, _timed(accelerator, self.accelerator) if accelerator else nothing
        self._hand.give(lambda: _timed(accelerator, self.accelerator))
        try:
            own = _timed(host, self.host)
        finally:
            # A failure of one must not leave the other at work on memory that is going away.
            other, error = self._hand.take()
        if error is not None:
            raise error
        return own, other

    def now(self, phase: str, call: Callable[[], object], device: Any) -> float:
        """Do a call of a device here, as part of a phase; return the seconds it took."""
        start = time.perf_counter()
        call()
        device.finish()
        spent = time.perf_counter() - start
        self.phases_s[phase] = self.phases_s.get(phase, 0.0) + spent
        return spent

    def later(self, phase: str, call: Callable[[], object]) -> None:
        """Let the accelerator's thread do a call, as part of a phase, after those it was given before."""

        def work() -> tuple[str, Any, Any]:
            start = self.accelerator.mark()
            call()
            return phase, start, self.accelerator.mark()

        self._hand.give(work)
        self.given += 1

    def copy_s(self, block: int) -> float:
        """Return the seconds that a block takes from the host to the accelerator, measured, without a modelled link."""
        link = Link()
        for device in (self.host, self.accelerator):
            device.allocate(1, block, 0)
        target, source = (device.column(0, 0, 1) for device in (self.accelerator, self.host))
        source[:] = 0.0

        def copy() -> None:
            link.copy(target, source, "trial", self.accelerator.receive)
            self.accelerator.finish()

        return _least_s(copy)

    def call_s(self) -> float:
        """Return the seconds of a call for later that does nothing, from the asking to the end, measured."""

        self.accelerator.allocate(1, 1, 0)

        def call() -> None:
            self.later("trial", lambda: self.accelerator.update(0, 0, 0, 0, 0))
            self.ended(self.given)

        taken = _least_s(call)
        for seconds in (self.phases_s, self.behind_s):
            for phase in ("trial", "waiting"):
                seconds.pop(phase, None)
        return taken

    def longest_s(self) -> dict[str, float]:
        """Return for every phase the seconds of whoever was longer at it: the caller's thread or the accelerator's."""
        phases = [*self.phases_s, *(phase for phase in self.behind_s if phase not in self.phases_s)]
        return {phase: max(self.phases_s.get(phase, 0.0), self.behind_s.get(phase, 0.0)) for phase in phases}

    def elapsed_s(self) -> float:
        """Return the seconds since the devices were opened."""
        return time.perf_counter() - self._start

    def ended(self, calls: int) -> list[float]:
        """Wait until the first ``calls`` calls of :meth:`later` are done.

        Returns
        -------
        list of float
            The seconds of every call that ended since this was asked last, in order.

        Raises
        ------
        BaseException
            The first that such a call raised.
        """
        taken: list[float] = []
        first = None
        with self.phase("waiting") if self._seen + len(self._begun) + self._hand.done() < calls else nullcontext():
            while True:
                if not self._begun and (self._seen < calls or (self._seen < self.given and self._hand.done())):
                    self._begun.append(self._hand.take())
                if not self._begun:
                    break
                found, error = self._begun[0]
                if error is None and self._seen >= calls and not self.accelerator.has_passed(found[2]):
                    break
                self._begun.popleft()
                self._seen += 1
                if error is not None:
                    first = first or error
                    continue
                phase, start, end = found
                taken.append(self.accelerator.seconds_between(start, end))
                self.behind_s[phase] = self.behind_s.get(phase, 0.0) + taken[-1]
        if first is not None:
            raise first
        return taken


def _least_s(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _timed(call: Callable[[], object], device: Any) -> tuple[Any, float]:
    # What a GPU was asked for before is no part of this call.
    device.finish()
    start = time.perf_counter()
    found = call()
    device.finish()
    return found, time.perf_counter() - start


@contextmanager
def opened(devices: tuple[DeviceSpec, DeviceSpec], model: LinkModel | None = None) -> Iterator[Pair]:
    """Yield the pair of these devices; meanwhile every BLAS call takes one thread.

    Parameters
    ----------
    devices : (host, accelerator)
        The host is a CPU worker.
    model : LinkModel, optional
    """
    host, accelerator = devices
    if not isinstance(host, CpuWorker):
        raise BadValueError("The first device must be a CPU worker.", given=repr(host), where="devices")
    with ExitStack() as stack:
        stack.enter_context(_blas_pools().limit(limits=1, user_api="blas"))
        own, other = _own_cores(host, accelerator)
        stack.enter_context(_kept_on(own))
        hand = stack.enter_context(_Hand(other))
        opened_host, opened_accelerator = stack.enter_context(host.open()), stack.enter_context(accelerator.open())
        yield Pair(devices, opened_host, opened_accelerator, Link(model=model), hand)
