"""Solves dense symmetric positive definite systems on two devices at once.

The matrix is kept as the lower triangle in blocks; the host owns the upper block rows, the accelerator the lower ones,
and both compute at the same time, by a tiled Cholesky factorisation or by conjugate gradients.  Where the border
between them lies follows from what each has just achieved, so neither waits for long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError, unknown_name
from wavetank.kernels.as_array import array_of, is_tensor
from wavetank.kernels.solvers import cholesky, conjugate_gradient
from wavetank.kernels.solvers.balance import LAWS, SplitLaw, first_border, law_of
from wavetank.kernels.solvers.cholesky import NotPositiveDefiniteError
from wavetank.kernels.solvers.cpu_device import CpuWorker
from wavetank.kernels.solvers.link import LinkModel
from wavetank.kernels.solvers.pair import DeviceSpec, Pair, default_devices, opened
from wavetank.kernels.solvers.rates import chosen_border
from wavetank.kernels.solvers.torch_device import TorchDevice
from wavetank.kernels.solvers.triangle import BlockTriangle, blocks_of, readable, triangle_blocks
from wavetank.machine.cuda import found_gpu
from wavetank.machine.limits import require_memory
from wavetank.machine.threads import allowed_threads
from wavetank.settings import setting
from wavetank.units import show

METHODS = ("cholesky", "conjugate-gradient")
ACCELERATORS = ("auto", "worker", "cuda")

__all__ = [
    "HeteroSolver",
    "NotConvergedError",
    "NotPositiveDefiniteError",
    "Solution",
    "relative_residual",
    "solve_spd",
]


# A column of a factorisation is worth moving a single row for; an iteration is not.
_EVERY = {"cholesky": 1, "conjugate-gradient": 10}
_IGNORED = {"cholesky": 0, "conjugate-gradient": 1}


class NotConvergedError(WavetankError):
    """The iteration ended before the residual was small enough."""


@dataclass(frozen=True, eq=False)
class Solution:
    """A solution, and what it took.

    Attributes
    ----------
    x : float64 array, shape (N,) or (N, k)
    converged : bool
        Always True for Cholesky.
    iterations : int
        Of conjugate gradients, over all right-hand sides; else the columns of blocks.
    block, blocks : int
        b and n.
    borders : list of (step, border)
        The accelerator's first block row, from that step on.
    elapsed_s : float
        Seconds of wall time, all phases together.
    phases_s : dict
        Phase to seconds, of the device that was longer at it; phases of a factorisation overlap.
    busy_s : list of two floats
        Seconds that host and accelerator computed while both were at work.
    moved_bytes, copies : dict
        What crossed the link, by purpose.  Scalars are not counted.
    """

    x: NDArray[np.float64]
    converged: bool
    iterations: int
    block: int
    blocks: int
    borders: list[tuple[int, int]]
    elapsed_s: float
    phases_s: dict[str, float]
    busy_s: list[float]
    moved_bytes: dict[str, int]
    copies: dict[str, int]

    @property
    def shares(self) -> list[tuple[int, float]]:
        """Return the accelerator's share of the block rows, p, from each step on."""
        return [(step, 1.0 - border / self.blocks) for step, border in self.borders]


def default_block(size: int) -> int:
    """Return the block size for a matrix with ``size`` rows: large for the BLAS, small for an even split."""
    return 64 if size < 1024 else 128 if size < 4096 else 256


@dataclass(frozen=True, kw_only=True)
class HeteroSolver:
    """Cholesky or conjugate gradients over two devices with a moving border."""

    method: str = setting("cholesky", says="Method of solution", choices=METHODS)
    law: str = setting("runtime", says="Law that sets the border between the devices", choices=LAWS)
    share: float | None = setting(
        None, says="Initial share of the block rows for the accelerator; none measures it", low=0.0, high=1.0
    )
    block: int = setting(0, says="Rows per block; 0 chooses by the matrix", low=0, high=4096)
    every: int = setting(
        0, says="Steps between two decisions of the law (10 in the paper); 0 chooses", low=0, high=100_000
    )
    host_time_factor: float = setting(
        1.0, says="Factor by which the law multiplies the host's time (1.2 in the paper)", low=0.01
    )
    ownership: str = setting(
        "triangle", says="Blocks that a device keeps for products", choices=conjugate_gradient.OWNERSHIPS
    )
    tolerance: float = setting(
        1e-6, says="Largest residual of conjugate gradients relative to the right-hand side", low=0.0, high=1.0
    )
    iterations: int = setting(100_000, says="Most iterations of conjugate gradients", low=0)
    refresh: int = setting(50, says="Iterations between two recomputations of the residual", low=1)
    accelerator: str = setting(
        "auto", says="Kind of accelerator: a GPU, a worker, or a GPU if one is present", choices=ACCELERATORS
    )
    host_threads: int = setting(0, says="Threads of the host; 0 chooses", low=0, high=1024)
    accelerator_threads: int = setting(
        0, says="Threads of an accelerator that is a worker; 0 chooses", low=0, high=1024
    )
    host_repeats: int = setting(
        0,
        says="How often the host computes each block: above 1 it is a slower device; 0 is 1, or the value of the study",
        low=0,
    )
    link_bytes_per_s: float = setting(
        math.inf, unit="bytes/s", says="Bandwidth of a modelled link; inf uses this machine's own link", low=1.0
    )
    link_latency_s: float = setting(0.0, unit="s", says="Latency of a modelled link", low=0.0)

    def devices(self) -> tuple[DeviceSpec, DeviceSpec]:
        """Return host and accelerator."""
        usual_host, usual_accelerator = default_devices()
        gpu = self.accelerator == "cuda" or (self.accelerator == "auto" and found_gpu())
        host_threads = self.host_threads or (usual_host.threads if isinstance(usual_host, CpuWorker) else 1)
        host = CpuWorker(threads=allowed_threads(host_threads), repeats=max(1, self.host_repeats))
        if gpu:
            return host, TorchDevice(device="cuda")
        threads = self.accelerator_threads
        if not threads:
            threads = usual_accelerator.threads if isinstance(usual_accelerator, CpuWorker) else 1
        return host, CpuWorker(threads=allowed_threads(threads))

    def solve(
        self, a: Any, b: Any, *, devices: tuple[DeviceSpec, DeviceSpec] | None = None, law: SplitLaw | None = None
    ) -> Solution:
        """Solve ``a x = b``.

        Parameters
        ----------
        a : array, shape (N, N), or BlockTriangle
            Symmetric and positive definite; read, never written.
        b : array, shape (N,) or (N, k)
        devices : (host, accelerator), optional
            The host is a :class:`CpuWorker`.  By default what the parameters say.
        law : SplitLaw, optional
            Instead of the one that the parameters name.

        Raises
        ------
        BadValueError
            For wrong shapes, entries that are not finite, an asymmetric matrix, too little memory.
        NotPositiveDefiniteError
        """
        matrix = a if isinstance(a, BlockTriangle) else readable(a)
        size = matrix.size if isinstance(matrix, BlockTriangle) else matrix.shape[0]
        right = _right_side(b, size)
        block = matrix.block if isinstance(matrix, BlockTriangle) else (self.block or default_block(size))
        if self.method not in METHODS:
            raise unknown_name("method of solution", self.method, METHODS, where="method")
        chosen = devices or self.devices()
        rule = law or law_of(
            self.law, share=0.5 if self.share is None else self.share, every=self.every or _EVERY[self.method],
            host_time_factor=self.host_time_factor, ignore_rows=_IGNORED[self.method],
        )  # fmt: skip
        share = rule.share if law is not None else self.share
        if devices is None and law is None and share is None and allowed_threads() == 1 and not _has_gpu(chosen):
            # Both at once would be two threads.
            share = 1.0
        model = None
        if math.isfinite(self.link_bytes_per_s) or self.link_latency_s > 0:
            model = LinkModel(bytes_per_s=self.link_bytes_per_s, latency_s=self.link_latency_s)
        self._require(size, block, share)
        columns = right.reshape(size, -1)
        with np.errstate(all="ignore"):
            if self.method == "cholesky":
                solution = self._by_cholesky(matrix, columns, size, block, chosen, rule, share, model)
            else:
                solution = self._by_conjugate_gradient(matrix, columns, size, block, chosen, rule, share, model)
        return solution if right.ndim == 2 else _flat(solution)

    def _require(self, size: int, block: int, share: float | None) -> None:
        one = triangle_blocks(blocks_of(size, block)) * block * block * 8
        # As rows move, both devices come to hold pages of the same rows.
        kept = one if share in (0.0, 1.0) else 2 * one
        require_memory(kept + 8 * 8 * size, f"Solving a system with {size:,} unknowns")

    def _by_cholesky(
        self, matrix: Any, b: NDArray[np.float64], size: int, block: int, devices: tuple[DeviceSpec, DeviceSpec],
        law: SplitLaw, share: float | None, model: LinkModel | None,
    ) -> Solution:  # fmt: skip
        blocks = blocks_of(size, block)
        need = triangle_blocks(blocks) * block * block * 8
        if share != 0.0 and need > devices[1].usable_bytes():
            raise BadValueError(
                "The accelerator's memory does not hold the Cholesky factor.",
                given=show(need, "bytes"),
                allowed=show(devices[1].usable_bytes(), "bytes"),
                hint="method='conjugate-gradient' splits the matrix, share=0 leaves the accelerator out",
            )
        with opened(devices, model) as pair:
            with pair.phase("memory initialisation"):
                border = chosen_border(pair, size, block, blocks, law) if share is None else first_border(share, blocks)
            trace = cholesky.factor(pair, matrix, size, block, blocks, law, border)
            x = cholesky.substitute(pair, b, blocks, block, trace.borders[0][1])
            return _solution(
                pair, trace, pair.longest_s(), x=x, converged=True, iterations=blocks, block=block, blocks=blocks
            )

    def _by_conjugate_gradient(
        self, matrix: Any, b: NDArray[np.float64], size: int, block: int, devices: tuple[DeviceSpec, DeviceSpec],
        law: SplitLaw, share: float | None, model: LinkModel | None,
    ) -> Solution:  # fmt: skip
        blocks = blocks_of(size, block)
        first = _first_row_that_fits(blocks, block, devices[1].usable_bytes())
        with opened(devices, model) as pair:
            system = conjugate_gradient.System(
                pair, matrix, block, blocks, 0.5 if share is None else share, first, self.ownership
            )
            outcomes = [
                conjugate_gradient.solve(system, b[:, column], law, self.tolerance, self.iterations, self.refresh)
                for column in range(b.shape[1])
            ]
            return _solution(
                pair, system.trace, pair.phases_s, x=np.stack([outcome.x for outcome in outcomes], axis=1),
                converged=all(outcome.converged for outcome in outcomes),
                iterations=sum(outcome.iterations for outcome in outcomes), block=block, blocks=blocks,
            )  # fmt: skip


def _solution(pair: Pair, trace: cholesky.Trace, phases_s: dict[str, float], **found: Any) -> Solution:
    return Solution(
        borders=trace.borders, elapsed_s=pair.elapsed_s(), phases_s=phases_s, busy_s=trace.busy_s,
        moved_bytes=pair.link.moved_bytes, copies=pair.link.copies, **found,
    )  # fmt: skip


def _has_gpu(devices: tuple[DeviceSpec, DeviceSpec]) -> bool:
    return isinstance(devices[1], TorchDevice)


def _flat(solution: Solution) -> Solution:
    from dataclasses import replace

    return replace(solution, x=solution.x[:, 0])


def _right_side(b: Any, size: int) -> NDArray[np.float64]:
    right = array_of(b, "b")
    if right.dtype.kind not in "fiub":
        raise BadValueError("The right-hand side must hold real numbers.", given=f"dtype {right.dtype}", where="b")
    if right.ndim not in (1, 2) or right.shape[0] != size or not right.size:
        raise BadValueError(
            "The right-hand side does not fit the matrix.",
            given=f"shape {right.shape}",
            allowed=f"({size},) or ({size}, k)",
            where="b",
        )
    found = right.astype(np.float64)
    if not np.isfinite(found).all():
        place = tuple(int(each) for each in np.argwhere(~np.isfinite(found))[0])
        raise BadValueError(
            "The right-hand side holds an entry that is not finite.",
            given=float(found[place]),
            where=f"b[{', '.join(map(str, place))}]",
        )
    return found


def _first_row_that_fits(blocks: int, block: int, usable: float) -> int:
    """Return the first block row from which on all rows fit into ``usable`` bytes."""
    whole = triangle_blocks(blocks)
    return next(
        (first for first in range(blocks) if (whole - triangle_blocks(first)) * block * block * 8 <= usable), blocks
    )


def relative_residual(a: Any, x: Any, b: Any) -> float:
    """Return ``|a x - b| / |b|``, the largest of the right-hand sides; ``|a x|`` where ``b`` is zero.

    Parameters
    ----------
    a : array, shape (N, N), or BlockTriangle
    x, b : arrays, shape (N,) or (N, k)
    """
    matrix = a if isinstance(a, BlockTriangle) else np.asarray(a)
    size = matrix.size if isinstance(matrix, BlockTriangle) else len(matrix)
    found, right = (np.asarray(each, np.float64).reshape(size, -1) for each in (x, b))
    residuals = []
    for column in range(right.shape[1]):
        one = found[:, column]
        left = matrix.multiply(one) if isinstance(matrix, BlockTriangle) else matrix @ one
        norm = float(np.linalg.norm(right[:, column]))
        residuals.append(float(np.linalg.norm(left - right[:, column])) / (norm if norm > 0 else 1.0))
    # numpy's maximum of NaN and a number is NaN, Python's may be the number.
    return float(np.max(residuals))


def solve_spd(
    a: Any, b: Any, *, method: str = "cholesky", split: str | float | SplitLaw = "runtime",
    devices: tuple[DeviceSpec, DeviceSpec] | None = None, block: int | None = None, tolerance: float = 1e-6,
) -> Any:  # fmt: skip
    """Solve a symmetric positive definite system on two devices at once.

    Parameters
    ----------
    a : array or CPU tensor, shape (N, N), or BlockTriangle
        Symmetric and positive definite, computed with in float64; never modified.  Gradients do not flow: a tensor that
        requires its own is refused unless under ``torch.no_grad()``; so is ``b``.
    b : array or CPU tensor, shape (N,) or (N, k)
    method : str
        ``"cholesky"`` or ``"conjugate-gradient"``.
    split : str, float or SplitLaw
        ``"runtime"`` or ``"power"``, a fixed share of the block rows for the accelerator (0: host only, 1: accelerator
        only), or a law of your own.
    devices : (host, accelerator), optional
        By default the CPU and the GPU, or the cores in two halves where there is no GPU.
    block : int, optional
        Rows of a block; by default by the size of the matrix.
    tolerance : float
        Of conjugate gradients: the residual's norm over that of ``b``.

    Returns
    -------
    x : float64 array, or tensor where ``b`` was one, shape of ``b``

    Raises
    ------
    BadValueError
        For wrong shapes, entries that are not finite, an asymmetric matrix, too little memory.
    NotPositiveDefiniteError
        With the pivot that is not positive.
    NotConvergedError
        When conjugate gradients do not reach the tolerance within 10 N + 1000 iterations.

    Examples
    --------
    >>> solve_spd([[4.0, 2.0], [2.0, 3.0]], [2.0, 5.0])
    array([-0.5,  2. ])
    """
    matrix = a if isinstance(a, BlockTriangle) else readable(a)
    size = matrix.size if isinstance(matrix, BlockTriangle) else len(matrix)
    law: SplitLaw | None = None
    name, share = "runtime", None
    if isinstance(split, str):
        name = split
    elif isinstance(split, int | float):
        name, share = "static", float(split)
    else:
        law = split
    limit = 10 * size + 1000
    solver = HeteroSolver(method=method, law=name, share=share, block=block or 0, tolerance=tolerance, iterations=limit)
    solution = solver.solve(matrix, b, devices=devices, law=law)
    if not solution.converged:
        raise NotConvergedError(
            "Conjugate gradients did not converge.",
            given=f"residual {relative_residual(a, solution.x, b):.3g} |b| after {solution.iterations:,} iterations",
            allowed=f"{tolerance:g} |b|",
            hint="method='cholesky' does not depend on the condition of the matrix",
        )
    if is_tensor(b):
        import torch

        return torch.from_numpy(solution.x)
    return solution.x
