"""What people solve such systems with today, and the split that is found by trying all.

scipy's Cholesky uses LAPACK on all cores; conjugate gradients come from scipy, with a dense product by the BLAS.  The
oracle is the strongest cheap rival of every law: it tries a fixed split after another and keeps the best.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.kernels.solvers.solve import HeteroSolver, Solution
from wavetank.kernels.sparse import mkl
from wavetank.machine.cuda import require_torch
from wavetank.machine.threads import allowed_threads
from wavetank.settings import setting


class Found(NamedTuple):
    """A peer's solution."""

    x: NDArray[np.float64]
    iterations: int


@dataclass(frozen=True, kw_only=True)
class ScipyCholesky:
    """``scipy.linalg.cho_factor`` and ``cho_solve``, on all threads of the BLAS.

    The matrix is handed over column-major, which is the same symmetric matrix: of a row-major one scipy would make a
    transposed copy first.
    """

    method = "cholesky"

    def prepare(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Callable[[], Found]:
        """Return the call to time."""
        from scipy.linalg import cho_factor, cho_solve

        return lambda: Found(cho_solve(cho_factor(a.T, lower=True, check_finite=False), b, check_finite=False), 1)


@dataclass(frozen=True, kw_only=True)
class NumpyCholesky:
    """``numpy.linalg.cholesky`` and two triangular solves, on all threads of the BLAS."""

    method = "cholesky"

    def prepare(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Callable[[], Found]:
        """Return the call to time."""
        from scipy.linalg import solve_triangular

        def call() -> Found:
            lower = np.linalg.cholesky(a)
            y = solve_triangular(lower, b, lower=True, check_finite=False)
            return Found(solve_triangular(lower.T, y, lower=False, check_finite=False), 1)

        return call


@dataclass(frozen=True, kw_only=True)
class TorchCholesky:
    """``torch.linalg.cholesky`` and ``cholesky_solve``: MKL on a processor, cuSOLVER on a GPU.

    On a GPU the matrix goes there, and the solution comes back, within the call.
    """

    device: str = setting("cpu", says="Device on which torch computes: cpu or cuda", choices=("cpu", "cuda"))

    method = "cholesky"

    def prepare(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Callable[[], Found]:
        """Return the call to time."""
        torch = require_torch("torch's Cholesky")
        # torch has no read-only tensors.
        matrix, right = (torch.from_numpy(np.require(each, requirements="W")) for each in (a, b.reshape(-1, 1)))

        def call() -> Found:
            there, given = matrix.to(self.device), right.to(self.device)
            x = torch.cholesky_solve(given, torch.linalg.cholesky(there))
            return Found(x.cpu().numpy()[:, 0], 1)

        return call


@dataclass(frozen=True, kw_only=True)
class MklCholesky:
    """MKL's ``dpotrf`` and ``dpotrs``, where the package ``mkl`` is installed."""

    method = "cholesky"

    def prepare(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Callable[[], Found]:
        """Return the call to time."""
        library = mkl.require("The system mkl-cholesky")
        size, threads = ctypes.c_int(len(b)), allowed_threads()
        # Column-major, and so the transpose: what is the lower triangle of rows is the upper one of columns.
        layout, triangle = ctypes.c_int(102), ctypes.c_char(b"U")

        def call() -> Found:
            factor, x = a.copy(), b.copy()
            at, to = ctypes.c_void_p(factor.ctypes.data), ctypes.c_void_p(x.ctypes.data)
            before = library.MKL_Set_Num_Threads_Local(threads)
            try:
                failed = library.LAPACKE_dpotrf(layout, triangle, size, at, size)
                failed = failed or library.LAPACKE_dpotrs(layout, triangle, size, ctypes.c_int(1), at, size, to, size)
            finally:
                library.MKL_Set_Num_Threads_Local(before)
            if failed:
                raise WavetankError("MKL's Cholesky failed.", given=f"status {failed}")
            return Found(x, 1)

        return call


@dataclass(frozen=True, kw_only=True)
class ScipyConjugateGradient:
    """``scipy.sparse.linalg.cg`` with a dense matrix."""

    tolerance: float = setting(1e-6, says="Largest residual relative to the right-hand side", low=0.0, high=1.0)

    method = "conjugate-gradient"

    def prepare(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Callable[[], Found]:
        """Return the call to time."""
        from scipy.sparse.linalg import cg

        def call() -> Found:
            steps: list[None] = []
            x, failed = cg(a, b, rtol=self.tolerance, atol=0.0, maxiter=100_000, callback=lambda _: steps.append(None))
            if failed:
                raise WavetankError("scipy's conjugate gradients did not converge.", given=f"{len(steps)} iterations")
            return Found(x, len(steps))

        return call


@dataclass(frozen=True, kw_only=True)
class NumpyConjugateGradient:
    """The textbook iteration in numpy, one dense product each."""

    tolerance: float = setting(1e-6, says="Largest residual relative to the right-hand side", low=0.0, high=1.0)

    method = "conjugate-gradient"

    def prepare(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Callable[[], Found]:
        """Return the call to time."""
        return lambda: self.solve(a, b)

    def solve(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> Found:
        """Return the solution of ``a x = b``, shapes (N, N) and (N,)."""
        x, r, d = np.zeros_like(b), b.copy(), b.copy()
        delta = float(r @ r)
        goal, steps = self.tolerance**2 * delta, 0
        while delta > goal:
            q = a @ d
            alpha = delta / float(d @ q)
            x += alpha * d
            r -= alpha * q
            new = float(r @ r)
            d *= new / delta
            d += r
            delta, steps = new, steps + 1
        return Found(x, steps)


@dataclass(frozen=True, kw_only=True)
class OracleSplit(HeteroSolver):
    """The best fixed split, found by trying; only the last run counts."""

    law: str = setting("static", says="Law that sets the border between the devices", choices=("static",))
    shares: tuple[float, ...] = setting(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), says="Shares of the block rows that are tried", low=0.0, high=1.0
    )

    def prepare(self, a: Any, b: Any) -> Callable[[], Solution]:
        """Return the call to time, with the share that was fastest."""
        taken = {}
        for share in self.shares:
            trial = replace(self, share=share)
            start = time.perf_counter()
            trial.solve(a, b)
            taken[share] = time.perf_counter() - start
        best = replace(self, share=min(taken, key=taken.__getitem__))
        return lambda: best.solve(a, b)
