"""A device of torch's: a GPU, or whatever else torch computes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.solvers.devices import Device, Store, Vector, least_s
from wavetank.kernels.solvers.triangle import BlockTriangle, column_starts, pack_rows, triangle_blocks
from wavetank.machine.cuda import free_bytes, require_torch

# Of the free memory of a GPU, as in the source.
_USABLE_SHARE = 0.9


class _TorchRows(Store):
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

        return least_s(products) / (rows * turns)

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

    def stop(self) -> None:
        """Nothing can be taken back that torch was asked for."""


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

    def words(self) -> str:
        """Return what decides how fast the device is: its name, and the versions of torch and CUDA."""
        torch, device = self._found()
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
        return f"{name}, torch {torch.__version__}, cuda {torch.version.cuda or 'none'}"

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
            # torch reports an unknown word, a missing GPU and a build without one by three different errors.
            raise BadValueError(
                "torch cannot use this device for float64.",
                given=self.device,
                hint=f"torch says: {str(error).splitlines()[0]}",
                where="devices",
            ) from None
        return torch, device
