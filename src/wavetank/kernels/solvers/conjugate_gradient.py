"""Conjugate gradients on two devices at once.

The product with the matrix is nearly all of the work, and it is bound by reading the matrix.  Each device keeps its
block rows of the lower triangle in its own memory and multiplies with them, their transposes included, at the same
time as the other; between iterations only vectors cross the link.

Source: T. Thuering, A. Strack, D. Pflueger, "Comparing the Performance of Heterogeneous Conjugate Gradient and
Cholesky Solvers on Various Hardware Using SYCL", 2026, arXiv 2605.13209.  The iteration is that of M. R. Hestenes,
E. Stiefel, "Methods of conjugate gradients for solving linear systems", 1952.

Differs from the source:

1. The accelerator owns the lower rows, not the upper ones, as in the factorisation.
2. With ``ownership="triangle"`` each block of the triangle is kept and read by one device only.  The host sends its
   part of the direction and gets back what the accelerator's blocks add to its part of the product: twice the host's
   rows cross, against all rows once with ``ownership="rows"``, the source's way, in which both devices keep and read
   the blocks that couple them.
3. The residual is computed afresh before the iteration ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.solvers.balance import Load, SplitLaw, first_border
from wavetank.kernels.solvers.cholesky import NotPositiveDefiniteError, Seen, Trace
from wavetank.kernels.solvers.pair import Pair

PHASES = (
    "memory initialisation", "shift of the border", "direction exchange", "product", "product exchange",
    "scalar products", "vector updates", "result copy",
)  # fmt: skip
OWNERSHIPS = ("triangle", "rows")

_VECTORS = ("x", "r", "d", "q")


class Outcome(NamedTuple):
    """What the iteration came to."""

    x: NDArray[np.float64]
    """Shape (N,)."""
    iterations: int
    converged: bool


class System:
    """A matrix laid out on a pair of devices, ready for products."""

    def __init__(
        self, pair: Pair, matrix: Any, block: int, blocks: int, share: float, first: int, ownership: str
    ) -> None:
        self.pair, self.block, self.blocks, self.ownership = pair, block, blocks, ownership
        # Below ``first`` the accelerator has no memory.
        self.first = first
        self.border = max(first_border(share, blocks), first)
        self.shared = 0 < self.border < blocks
        self.trace = Trace(borders=[(0, self.border)])
        host, accelerator = pair.host, pair.accelerator
        with pair.phase("memory initialisation"):
            # Rows change hands only between two devices in use.
            host_high = blocks if self.shared and ownership == "rows" else self.border
            if self.border > 0:
                host.allocate(blocks, block, 0)
            if self.border < blocks:
                accelerator.allocate(blocks, block, first)
            pair.at_once(
                (lambda: host.load(matrix, 0, host_high)) if self.border > 0 else None,
                (lambda: accelerator.load(matrix, self.border, blocks)) if self.border < blocks else None,
            )
            self.devices = [
                device for device, used in ((host, self.border > 0), (accelerator, self.border < blocks)) if used
            ]
            self.vectors = {id(device): {name: device.vector() for name in _VECTORS} for device in self.devices}
            self.came = np.empty(blocks * block)
        self.seen = Seen()

    def of(self, device: Any, name: str, own: bool = True) -> Any:
        """Return a device's vector, or only its own rows."""
        vector = self.vectors[id(device)][name]
        if not own:
            return vector
        cut = self.border * self.block
        return vector[:cut] if device is self.pair.host else vector[cut:]

    def on_each(self, call: Callable[[Any], float]) -> float:
        """Return the sum of ``call(device)`` over the devices in use.

        One after the other: a vector operation is shorter than waking another thread.
        """
        return sum(call(device) for device in self.devices)

    def multiply(self, name: str) -> None:
        """Set each device's own rows of ``q`` to the product of the matrix with the vector ``name``."""
        pair, border, blocks = self.pair, self.border, self.blocks
        host, accelerator = pair.host, pair.accelerator
        cut = border * self.block
        if self.shared:
            with pair.phase("direction exchange"):
                to = self.vectors[id(accelerator)][name]
                of = self.vectors[id(host)][name]
                pair.link.copy(to[:cut], of[:cut], "direction")
                if self.ownership == "rows":
                    pair.link.copy(of[cut:], to[cut:], "direction")

        def on_host() -> None:
            x, out = self.of(host, name, own=False), self.of(host, "q", own=False)
            out[:] = 0.0
            host.multiply(x, out, 0, border, border, 3)
            if self.shared and self.ownership == "rows":
                host.multiply(x, out, border, blocks, border, 2)

        def on_accelerator() -> None:
            x, out = self.of(accelerator, name, own=False), self.of(accelerator, "q", own=False)
            out[:] = 0.0
            accelerator.multiply(x, out, border, blocks, blocks, 1 if self.ownership == "rows" else 3)

        with pair.phase("product"):
            (_, host_s), (_, accelerator_s) = pair.at_once(
                on_host if host in self.devices else None, on_accelerator if accelerator in self.devices else None
            )
        if not self.shared:
            return
        if self.ownership == "triangle":
            with pair.phase("product exchange"):
                came = self.came[:cut]
                pair.link.copy(came, self.of(accelerator, "q", own=False)[:cut], "product")
                host.add(self.of(host, "q"), came)
            done = (border * (border + 1) / 2, blocks * (blocks + 1) / 2 - border * (border + 1) / 2)
        else:
            done = (float(border), float(blocks - border))
        self.seen.add(done[0], host_s, done[1], accelerator_s)
        self.trace.busy_s[0] += host_s
        self.trace.busy_s[1] += accelerator_s

    def rebalance(self, law: SplitLaw, step: int) -> None:
        """Ask the law, and hand rows over when it says so."""
        if not self.shared or not law.due(step):
            return
        pair = self.pair
        with pair.phase("shift of the border"):
            seen = self.seen
            load = Load(
                blocks=self.blocks, first=0, border=self.border, host_blocks=seen.host_blocks, host_s=seen.host_s,
                accelerator_blocks=seen.accelerator_blocks, accelerator_s=seen.accelerator_s,
                triangle=self.ownership == "triangle",
            )  # fmt: skip
            # Both stay in use: a device without rows could not be measured any more.
            new = max(1, self.first, min(law.border(load), self.blocks - 1))
            seen.fade()
            if new != self.border:
                self._shift(new)
                self.trace.borders.append((step, new))

    def _shift(self, new: int) -> None:
        pair, old = self.pair, self.border
        giver, taker = (pair.accelerator, pair.host) if new > old else (pair.host, pair.accelerator)
        low, high = min(old, new), max(old, new)
        # The source's host keeps all rows.
        if not (self.ownership == "rows" and taker is pair.host):
            for column in range(high):
                top = max(low, column)
                pair.link.copy(taker.column(column, top, high), giver.column(column, top, high), "rows")
        rows = slice(low * self.block, high * self.block)
        for name in ("x", "r", "d"):
            to, of = self.vectors[id(taker)][name], self.vectors[id(giver)][name]
            pair.link.copy(to[rows], of[rows], "vectors")
        self.border = new

    def send(self, name: str, values: NDArray[np.float64]) -> None:
        """Give each device its own rows of a vector of the host's memory."""
        self._cross(name, values, back=False)

    def fetch(self, name: str, out: NDArray[np.float64]) -> None:
        """Collect a vector from both devices into the host's memory."""
        self._cross(name, out, back=True)

    def _cross(self, name: str, array: NDArray[np.float64], back: bool) -> None:
        cut = self.border * self.block
        for device in self.devices:
            there = self.of(device, name)
            here = array[:cut] if device is self.pair.host else array[cut:]
            target, source = (here, there) if back else (there, here)
            if device is self.pair.host:
                np.copyto(target, source)
            else:
                self.pair.link.copy(target, source, "vectors")


def solve(system: System, b: NDArray[np.float64], law: SplitLaw, tolerance: float, limit: int, refresh: int) -> Outcome:
    """Solve for one right-hand side, from zero.

    Parameters
    ----------
    system : System
    b : float64 array, shape (N,)
    law : SplitLaw
    tolerance : float
        The iteration ends when the residual's norm is at most this share of that of ``b``.
    limit : int
        Iterations at most.
    refresh : int
        The residual is computed afresh after this number of iterations; 50 in the source.

    Raises
    ------
    NotPositiveDefiniteError
        When a direction d with d^T A d <= 0 turns up.
    """
    pair = system.pair
    padded = np.zeros(system.blocks * system.block)
    padded[: b.size] = b
    system.send("r", padded)
    system.send("d", padded)
    system.send("x", np.zeros_like(padded))
    of = system.of
    delta = _sum(pair, system, lambda device: device.dot(of(device, "r"), of(device, "r")))
    goal = tolerance * tolerance * delta
    step, converged = 0, delta == 0.0
    while not converged and step < limit:
        system.rebalance(law, step)
        system.multiply("d")
        curvature = _sum(pair, system, lambda device: device.dot(of(device, "d"), of(device, "q")))
        if not curvature > 0.0:
            raise NotPositiveDefiniteError(
                "The matrix is not positive definite.",
                given=f"d^T A d is {curvature:.6g} for the direction d of iteration {step}",
                allowed="above 0",
                hint="method='cholesky' names the pivot",
            )
        alpha = delta / curvature
        with pair.phase("vector updates"):
            new = sum(
                device.advance(alpha, of(device, "x"), of(device, "r"), of(device, "d"), of(device, "q"))
                for device in system.devices
            )
        step += 1
        if step % refresh == 0 or new <= goal:
            system.multiply("x")
            new = _residual(pair, system, padded)
        converged = new <= goal
        beta, delta = new / delta, new
        with pair.phase("vector updates"):
            for device in system.devices:
                device.redirect(beta, of(device, "d"), of(device, "r"))
    with pair.phase("result copy"):
        system.fetch("x", padded)
    return Outcome(padded[: b.size].copy(), step, converged)


def _sum(pair: Pair, system: System, call: Callable[[Any], float]) -> float:
    with pair.phase("scalar products"):
        return system.on_each(call)


def _residual(pair: Pair, system: System, b: NDArray[np.float64]) -> float:
    """Set ``r`` to ``b`` minus ``q``; return the square of its norm."""
    with pair.phase("vector updates"):
        system.send("r", b)

        def subtract(device: Any) -> float:
            r = system.of(device, "r")
            r -= system.of(device, "q")
            return float(device.dot(r, r))

        return system.on_each(subtract)


def exchanged_bytes(blocks: int, block: int, border: int, ownership: str) -> int:
    """Return the bytes that cross the link in one iteration, both directions together.

    ``"rows"``: every entry of the direction once.  ``"triangle"``: the host's entries of direction and product.
    """
    if not 0 < border < blocks:
        return 0
    return 8 * block * (blocks if ownership == "rows" else 2 * border)


def product_bytes(size: int) -> float:
    """Return the least bytes of a product with a symmetric matrix: its lower triangle, once."""
    return 8.0 * size * (size + 1) / 2
