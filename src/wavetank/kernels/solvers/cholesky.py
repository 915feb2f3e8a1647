"""A tiled Cholesky factorisation on two devices at once, and the solution with it.

Column by column from the left: factor the diagonal block, solve the blocks below it, subtract their products from
everything to the right.  The host owns the upper block rows, the accelerator the lower ones; both solve and both
update their own rows at the same time.  The accelerator needs the host's part of the column for its updates, never the
other way round.  As the matrix left shrinks, the border between them moves.

Differs from the source:

1. What the accelerator is sent of a column it keeps, so it ends with the whole factor and solves alone: no result is
   copied but the solution, and rows change hands without the columns that are done.
2. Each time a law is asked, its earlier input counts half; the source forgets it.
3. The host does not wait for the accelerator at every step of a column: the accelerator takes its work from a queue,
   and the host brings the next column up to date, and its diagonal block over, before it ends this one.
4. Rows change hands between other work; the host waits for those that it gets, and does the others first.
5. A diagonal block is updated together with the rest of its column.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.kernels.solvers.balance import Load, SplitLaw
from wavetank.kernels.solvers.pair import Pair
from wavetank.kernels.solvers.triangle import triangle_blocks

PHASES = (
    "memory initialisation", "shift of the border", "diagonal factor", "column solve", "column copy",
    "trailing update", "waiting", "substitution", "result copy",
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


def factor(pair: Pair, matrix: Any, size: int, block: int, blocks: int, law: SplitLaw, border: int) -> Trace:
    """Factor a matrix; the accelerator ends with the whole factor, or the host where it works alone.

    Parameters
    ----------
    pair : Pair
    matrix : float64 array, shape (N, N), row-major, or BlockTriangle
    size, block, blocks : int
        N, b, n.
    law : SplitLaw
    border : int
        First block row of the accelerator in column 0; it works alone at 0, the host at n.

    Raises
    ------
    NotPositiveDefiniteError
        With the number of the pivot and its value.
    """
    host, accelerator = pair.host, pair.accelerator
    trace = Trace()
    with pair.phase("memory initialisation"):
        for device, used in ((host, border > 0), (accelerator, border < blocks)):
            if used:
                device.allocate(blocks, block, 0)
        _lay_out(pair, matrix, border, blocks)
    trace.borders.append((0, border))
    run = _Factorisation(pair, size, block, blocks, trace)
    try:
        if 0 < border < blocks:
            run.shared(law, border)
        else:
            device = pair.host if border else pair.accelerator
            for k in range(blocks):
                run.alone(device, k)
    except KeyboardInterrupt:
        pair.drop()
        raise
    finally:
        # Whatever went wrong, nobody may be left at work on memory that is going away.
        run.wait()
    return trace


def _lay_out(pair: Pair, matrix: Any, border: int, blocks: int) -> None:
    """Store the rows of both devices, half of the blocks by either thread: cutting a matrix up is work for a CPU."""
    host, accelerator = pair.host, pair.accelerator
    if not 0 < border < blocks:
        (host if border else accelerator).load(matrix, 0, blocks)
        return
    middle = next(row for row in range(blocks + 1) if 2 * triangle_blocks(row) >= triangle_blocks(blocks))

    def first() -> None:
        host.load(matrix, 0, min(border, middle))
        accelerator.load(matrix, border, max(border, middle))

    def second() -> None:
        host.load(matrix, min(border, middle), border)
        accelerator.load(matrix, max(border, middle), blocks)

    pair.at_once(first, second)


class _Factorisation:
    """The columns, one after the other.

    The accelerator takes its calls from a queue.  In column k the host first brings column k + 1 up to date, factors
    its diagonal block and solves its part of it; only then it does what is left of column k.  So the accelerator has
    work for a column ahead, and neither a diagonal block nor a border that moves leaves it without.
    """

    def __init__(self, pair: Pair, size: int, block: int, blocks: int, trace: Trace) -> None:
        self._pair = pair
        self._size = size
        self._block = block
        self._blocks = blocks
        self._trace = trace
        self._seen = Seen()
        # Blocks of the calls that the accelerator has not ended, or not reported.
        self._open: deque[int] = deque()

    def alone(self, device: Any, k: int) -> None:
        """Do column k, all of it, on one device."""
        blocks = self._blocks
        self._pair.now("diagonal factor", lambda: self._factor(device, k), device)
        if k + 1 < blocks:
            self._pair.now("column solve", lambda: device.solve_column(k, k + 1, blocks), device)
            self._pair.now("trailing update", lambda: device.update(k, k + 1, blocks, k + 1, blocks), device)

    def shared(self, law: SplitLaw, border: int) -> None:
        """Do all columns: those of the host's rows on both devices, the last ones on the accelerator."""
        k = 0
        self._begin(0, border)
        self._solve(0, 1, border, border)
        while k + 1 < border:
            new = self._asked(law, k + 1, border) if law.due(k + 1) else border
            kept, came = min(border, new), 0
            if new < border:
                self._update(k, k + 1, border, new, border)
            if new != border:
                self._move(k + 1, border, new)
                came = self._pair.given
            self._update(k, k + 1, k + 2, k + 1, kept)
            self._begin(k + 1, new)
            self._solve(k + 1, k + 2, kept, new)
            self._update(k, k + 2, kept, k + 2, kept)
            if new > border:
                self._wait(came)
                self._solve(k + 1, border, new, new)
            k, border = k + 1, new
        self.wait()
        for column in range(k + 1, self._blocks):
            self.alone(self._pair.accelerator, column)

    def _begin(self, k: int, border: int) -> None:
        """Factor a diagonal block; let the accelerator do what needs no more of the column than that."""
        blocks, accelerator = self._blocks, self._pair.accelerator
        self._on_host("diagonal factor", lambda: self._factor(self._pair.host, k))
        self._later("column copy", partial(self._send, k, k, k + 1, "diagonal"))
        self._later("column solve", lambda: accelerator.solve_column(k, border, blocks))
        own = blocks - border
        self._later(
            "trailing update", lambda: accelerator.update(k, border, blocks, border, blocks), own * (own + 1) // 2
        )

    def _solve(self, k: int, low: int, high: int, border: int) -> None:
        """Solve the host's rows from ``low`` to ``high`` of column k; let the accelerator do what needs them."""
        if low >= high:
            return
        blocks, accelerator = self._blocks, self._pair.accelerator
        self._on_host("column solve", lambda: self._pair.host.solve_column(k, low, high))
        self._later("column copy", partial(self._send, k, low, high, "column"))
        self._later(
            "trailing update",
            lambda: accelerator.update(k, low, high, border, blocks),
            (high - low) * (blocks - border),
        )

    def _update(self, k: int, first: int, last: int, low: int, high: int) -> None:
        """Update these columns of the host's rows."""
        # Row i of a triangle has a block in each column up to its own.
        updated = sum(min(last, row + 1) - first for row in range(max(low, first), high))
        if updated > 0:
            self._on_host("trailing update", lambda: self._pair.host.update(k, first, last, low, high))
            self._seen.host_blocks += updated

    def _on_host(self, phase: str, call: Callable[[], object]) -> None:
        spent = self._pair.now(phase, call, self._pair.host)
        self._seen.host_s += spent
        self._trace.busy_s[0] += spent

    def _later(self, phase: str, call: Callable[[], object], updated: int = 0) -> None:
        self._pair.later(phase, call)
        self._open.append(updated)

    def _send(self, k: int, low: int, high: int, purpose: str) -> None:
        pair = self._pair
        accelerator = pair.accelerator
        pair.link.copy(accelerator.column(k, low, high), pair.host.column(k, low, high), purpose, accelerator.receive)

    def _move(self, k: int, old: int, new: int) -> None:
        """Hand the block rows between two borders over, from column k on: what is left of it is done."""
        pair = self._pair
        giver, taker = (pair.accelerator, pair.host) if new > old else (pair.host, pair.accelerator)
        low, high = min(old, new), max(old, new)
        receive = pair.accelerator.receive if taker is pair.accelerator else None

        def move() -> None:
            for column in range(k, high):
                top = max(low, column)
                pair.link.copy(taker.column(column, top, high), giver.column(column, top, high), "rows", receive)

        self._later("shift of the border", move)
        self._trace.borders.append((k, new))

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

    def wait(self) -> None:
        """Wait until the accelerator has ended all its calls."""
        self._wait(self._pair.given)

    def _wait(self, calls: int) -> None:
        """Wait until the accelerator has ended its first ``calls`` calls; take note of all that it has ended."""
        for spent in self._pair.ended(calls):
            self._seen.accelerator_s += spent
            self._seen.accelerator_blocks += self._open.popleft()
            self._trace.busy_s[1] += spent

    def _asked(self, law: SplitLaw, k: int, border: int) -> int:
        """Return the border that the law wants in column k."""
        pair, blocks, block, seen = self._pair, self._blocks, self._block, self._seen
        # What has ended: nothing waits for later reports.
        self._wait(0)
        rows = pair.link.moved_bytes.get("rows", 0)
        spent = pair.behind_s.get("shift of the border", 0.0)
        load = Load(
            blocks=blocks, first=k + 1, border=border, host_blocks=seen.host_blocks, host_s=seen.host_s,
            accelerator_blocks=seen.accelerator_blocks, accelerator_s=seen.accelerator_s,
            least=min(_LEAST_ROWS, blocks - k - 1),
            copy_s_per_row=spent * (blocks - k) * block * block * 8 / rows if rows else 0.0,
        )  # fmt: skip
        seen.fade()
        return max(k + 1, min(law.border(load), blocks - load.least))


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


def flops(size: int) -> float:
    """Return the operations of a factorisation, N^3 / 3, and of one solution with it, 2 N^2."""
    return math.pow(size, 3) / 3 + 2.0 * size * size
