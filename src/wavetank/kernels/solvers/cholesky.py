"""A tiled Cholesky factorisation on two devices at once, and the solution with it.

Column by column from the left: factor the diagonal block, solve the blocks below it, subtract their products from
everything to the right.  The host owns the upper block rows, the accelerator the lower ones; both solve and both
update their own rows at the same time.  The accelerator needs the host's part of the column for its updates, never the
other way round.  As the matrix left shrinks, the border between them moves.

Source: T. Thuering, A. Strack, D. Pflueger, "Comparing the Performance of Heterogeneous Conjugate Gradient and
Cholesky Solvers on Various Hardware Using SYCL", 2026, arXiv 2605.13209.

Differs from the source:

1. What the accelerator is sent of a column it keeps, so it ends with the whole factor and solves alone: no result is
   copied but the solution, and rows change hands without the columns that are done.
2. The first border comes from a timed block product on each device where no share is given.
3. Each time a law is asked, what it was told before counts half; the source forgets it.
4. The host does not wait for the accelerator at every step of a column: the accelerator takes its work from a queue,
   the host goes on to the next column, and both meet where the border moves.
5. A diagonal block is updated together with the rest of its column.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.kernels.solvers.balance import Load, SplitLaw, first_border, host_rows
from wavetank.kernels.solvers.devices import Pair

PHASES = (
    "memory initialisation", "shift of the border", "diagonal factor", "column solve", "column copy",
    "trailing update", "substitution", "result copy",
)  # fmt: skip

# Block rows that the accelerator keeps to the end, as in the source.
_LEAST_ROWS = 3


class NotPositiveDefiniteError(WavetankError):
    """The matrix is symmetric, but not positive definite."""


@dataclass
class Trace:
    """What a run decided and left behind.

    Attributes
    ----------
    borders : list of (step, border)
        The first block row of the accelerator, from that step on.
    busy_s : list of two floats
        Seconds that host and accelerator computed, or copied, for the columns that both share.
    """

    borders: list[tuple[int, int]] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=lambda: [0.0, 0.0])


@dataclass
class Seen:
    """Blocks and seconds of both devices."""

    host_blocks: float = 0.0
    host_s: float = 0.0
    accelerator_blocks: float = 0.0
    accelerator_s: float = 0.0

    def add(self, host_blocks: float, host_s: float, accelerator_blocks: float, accelerator_s: float) -> None:
        """Count a step in."""
        self.host_blocks += host_blocks
        self.host_s += host_s
        self.accelerator_blocks += accelerator_blocks
        self.accelerator_s += accelerator_s

    def fade(self) -> None:
        """Let all that was seen so far count half."""
        self.host_blocks, self.host_s = self.host_blocks / 2, self.host_s / 2
        self.accelerator_blocks, self.accelerator_s = self.accelerator_blocks / 2, self.accelerator_s / 2


def probed_border(pair: Pair, blocks: int, block: int) -> int:
    """Return the border that balances the first column's updates, by a timed block product on each device."""
    (host, _), (accelerator, _) = pair.at_once(
        lambda: pair.host.block_product_s(block), lambda: pair.accelerator.block_product_s(block)
    )
    return 1 + host_rows(host / (host + accelerator), blocks - 1, True) if blocks > 1 else 0


def factor(pair: Pair, matrix: Any, size: int, block: int, blocks: int, law: SplitLaw, share: float | None) -> Trace:
    """Factor a matrix; the accelerator ends with the whole factor, or the host where it works alone.

    Parameters
    ----------
    pair : Pair
    matrix : float64 array, shape (N, N), row-major, or BlockTriangle
    size, block, blocks : int
        N, b, n.
    law : SplitLaw
    share : float or None
        Of the block rows, for the accelerator; None finds out.

    Raises
    ------
    NotPositiveDefiniteError
        With the number of the pivot and its value.
    """
    host, accelerator = pair.host, pair.accelerator
    trace = Trace()
    with pair.phase("memory initialisation"):
        if share is None:
            border = probed_border(pair, blocks, block)
        else:
            border = first_border(share, blocks)
        for device, used in ((host, border > 0), (accelerator, border < blocks)):
            if used:
                device.allocate(blocks, block, 0)
        pair.at_once(
            (lambda: host.load(matrix, 0, border)) if border > 0 else None,
            (lambda: accelerator.load(matrix, border, blocks)) if border < blocks else None,
        )
    trace.borders.append((0, border))
    run = _Factorisation(pair, size, block, blocks, trace)
    try:
        if 0 < border < blocks:
            run.shared(law, border)
        else:
            device = pair.host if border else pair.accelerator
            for k in range(blocks):
                run.alone(device, k)
    finally:
        # Whatever went wrong, nobody may be left at work on memory that is going away.
        run.wait(0)
    return trace


class _Open(NamedTuple):
    """A column that the accelerator has not ended, or not told."""

    calls: int
    host_blocks: float
    host_s: float
    accelerator_blocks: float


class _Factorisation:
    """The columns, one after the other.

    The host needs nothing of the accelerator, so it goes on to the next column while the accelerator, which takes its
    calls from a queue, still works on this one.  It waits where rows change hands and where its columns end.
    """

    def __init__(self, pair: Pair, size: int, block: int, blocks: int, trace: Trace) -> None:
        self._pair = pair
        self._size = size
        self._block = block
        self._blocks = blocks
        self._trace = trace
        self._seen = Seen()
        self._open: deque[_Open] = deque()
        self._parts: deque[float] = deque()

    def alone(self, device: Any, k: int) -> None:
        """Do column k, all of it, on one device."""
        blocks = self._blocks
        self._pair.now("diagonal factor", lambda: self._factor(device, k), device)
        if k + 1 < blocks:
            self._pair.now("column solve", lambda: device.solve_column(k, k + 1, blocks), device)
            self._pair.now("trailing update", lambda: device.update(k, k + 1, blocks, k + 1, blocks), device)

    def shared(self, law: SplitLaw, border: int) -> None:
        """Do all columns: those of the host's rows on both devices, the last ones on the accelerator."""
        for k in range(self._blocks):
            if k < border and law.due(k):
                # A law that is asked at every column need not know the last one, and nobody waits for it.
                self.wait(self._open[-1].calls if self._open and k > 2 else 0)
                new = self._asked(law, k, border)
                self._seen.fade()
                if new != border:
                    self.wait(0)
                    with self._pair.phase("shift of the border"):
                        _shift(self._pair, k, border, new)
                    border = new
                    self._trace.borders.append((k, border))
            if k < border:
                self._together(k, border)
            else:
                self.wait(0)
                self.alone(self._pair.accelerator, k)

    def _together(self, k: int, border: int) -> None:
        pair, blocks = self._pair, self._blocks
        host, accelerator = pair.host, pair.accelerator
        spent = pair.now("diagonal factor", lambda: self._factor(host, k), host)
        calls = pair.waiting
        pair.later("column copy", partial(self._send, k, k, k + 1, "diagonal"))
        pair.later("column solve", lambda: accelerator.solve_column(k, border, blocks))
        # Its own columns need nothing of the host's part, which is solved meanwhile.
        pair.later("trailing update", lambda: accelerator.update(k, border, blocks, border, blocks))
        if k + 1 < border:
            spent += pair.now("column solve", lambda: host.solve_column(k, k + 1, border), host)
            pair.later("column copy", partial(self._send, k, k + 1, border, "column"))
            pair.later("trailing update", lambda: accelerator.update(k, k + 1, border, border, blocks))
            spent += pair.now("trailing update", lambda: host.update(k, k + 1, border, k + 1, border), host)
        calls = pair.waiting - calls
        upper = (border - k - 1) * (border - k) / 2
        self._open.append(_Open(calls, upper, spent, (blocks - k - 1) * (blocks - k) / 2 - upper))

    def _send(self, k: int, low: int, high: int, purpose: str) -> None:
        pair = self._pair
        pair.link.copy(pair.accelerator.column(k, low, high), pair.host.column(k, low, high), purpose)

    def _factor(self, device: Any, k: int) -> None:
        bad, pivot = device.factor_diagonal(k)
        if bad:
            number = k * self._block + bad - 1
            raise NotPositiveDefiniteError(
                "The matrix is not positive definite.",
                given=f"pivot {number} (counted from 0) is {pivot:.17g}",
                allowed="pivots above 0",
                where=f"row {number} of {self._size}",
                hint="add a small multiple of the identity, or remove rows that repeat others",
            )

    def wait(self, calls: int) -> None:
        """Wait until the accelerator has at most so many calls left; take note of the columns that it has ended."""
        self._parts.extend(self._pair.ended(calls))
        while self._open and len(self._parts) >= self._open[0].calls:
            column = self._open.popleft()
            accelerator_s = sum(self._parts.popleft() for _ in range(column.calls))
            if column.host_blocks:
                self._seen.add(column.host_blocks, column.host_s, column.accelerator_blocks, accelerator_s)
                self._trace.busy_s[0] += column.host_s
                self._trace.busy_s[1] += accelerator_s

    def _asked(self, law: SplitLaw, k: int, border: int) -> int:
        pair, blocks, block, seen = self._pair, self._blocks, self._block, self._seen
        rows = pair.link.moved_bytes.get("rows", 0)
        spent = pair.phases_s.get("shift of the border", 0.0)
        load = Load(
            blocks=blocks, first=k + 1, border=border, host_blocks=seen.host_blocks, host_s=seen.host_s,
            accelerator_blocks=seen.accelerator_blocks, accelerator_s=seen.accelerator_s,
            least=min(_LEAST_ROWS, blocks - k - 1),
            copy_s_per_row=spent * (blocks - k) * block * block * 8 / rows if rows else 0.0,
        )  # fmt: skip
        return max(k + 1, min(law.border(load), blocks - load.least))


def _shift(pair: Pair, k: int, old: int, new: int) -> None:
    """Hand the block rows between two borders over, from column k on: what is left of it is done."""
    giver, taker = (pair.accelerator, pair.host) if new > old else (pair.host, pair.accelerator)
    low, high = min(old, new), max(old, new)
    for column in range(k, high):
        top = max(low, column)
        pair.link.copy(taker.column(column, top, high), giver.column(column, top, high), "rows")


def substitute(pair: Pair, b: NDArray[np.float64], blocks: int, block: int, first: int) -> NDArray[np.float64]:
    """Return the solution for each column of ``b``, shape (N, k), after :func:`factor`.

    Parameters
    ----------
    first : int
        The first border: at ``blocks`` the host holds the factor, else the accelerator does.
    """
    solver = pair.host if first == blocks else pair.accelerator
    found = np.empty_like(b)
    padded = np.zeros(blocks * block)
    x = solver.vector()
    for column in range(b.shape[1]):
        padded[: b.shape[0]] = b[:, column]
        with pair.phase("result copy"):
            _cross(pair, x, padded, solver)
        with pair.phase("substitution"):
            solver.substitute(x)
            solver.finish()
        with pair.phase("result copy"):
            back = np.empty_like(padded)
            _cross(pair, back, x, solver)
        found[:, column] = back[: b.shape[0]]
    return found


def _cross(pair: Pair, target: Any, source: Any, solver: Any) -> None:
    # What the host does for itself crosses no link.
    if solver is pair.host:
        np.copyto(target, source)
    else:
        pair.link.copy(target, source, "vectors")


def column_bytes(blocks: int, block: int, border: int, k: int) -> int:
    """Return the bytes that cross the link for column k: the host's blocks of it and its diagonal block.

    Zero where a device works alone or the border has been passed.
    """
    if not 0 < border < blocks or k >= border:
        return 0
    return (border - k) * block * block * 8


def flops(size: int) -> float:
    """Return the operations of a factorisation, N^3 / 3, and of one solution with it, 2 N^2."""
    return math.pow(size, 3) / 3 + 2.0 * size * size
