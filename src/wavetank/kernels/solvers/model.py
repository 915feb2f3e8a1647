"""What a solution on two devices should take, by a formula.

A product is bound by reading the matrix, a factorisation by arithmetic; devices work at once, copies come between.
With the rates of two devices and their link the model says when sharing pays, and the same laws that split real work
split the modelled one.

Source: T. Thuering, A. Strack, D. Pflueger, "Comparing the Performance of Heterogeneous Conjugate Gradient and
Cholesky Solvers on Various Hardware Using SYCL", 2026, arXiv 2605.13209, for the algorithm; the formulas are ours.

Differs from the source:

1. It is a model; the source measures.
2. A device's rate does not depend on the size of what it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.errors import BadValueError
from wavetank.kernels.solvers.balance import Load, SplitLaw, StaticSplit, first_border, host_rows
from wavetank.kernels.solvers.conjugate_gradient import exchanged_bytes
from wavetank.kernels.solvers.link import LinkModel
from wavetank.kernels.solvers.triangle import blocks_of, triangle_blocks

_FREE = LinkModel(bytes_per_s=float("inf"), latency_s=0.0)


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """The law with perfect knowledge: both devices' rates are given.

    Parameters
    ----------
    speed : float
        Of the accelerator, over that of the host.
    """

    speed: float

    @property
    def share(self) -> float:
        """Return the accelerator's share of the work."""
        return self.speed / (1.0 + self.speed)

    def due(self, step: int) -> bool:
        """Return True."""
        return True

    def border(self, load: Load) -> int:
        """Return the border that balances what is left."""
        return load.first + host_rows(self.share, load.blocks - load.first, load.triangle)


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Two devices and a link.

    Parameters
    ----------
    host_rate, accelerator_rate : float
        Operations per second in a factorisation, bytes per second in products.
    link : LinkModel
    serial_s : float
        Beside the work of each column or iteration: starting both and waiting for both.
    """

    host_rate: float
    accelerator_rate: float
    link: LinkModel = _FREE
    serial_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.host_rate > 0 and self.accelerator_rate > 0 and self.serial_s >= 0):
            raise BadValueError(
                "Devices have positive rates.", given=f"{self.host_rate}, {self.accelerator_rate}, {self.serial_s}"
            )

    @property
    def bound(self) -> float:
        """Return how many times faster than the accelerator alone both can be at best: 1 + s_c / s_g."""
        return 1.0 + self.host_rate / self.accelerator_rate

    def iteration_s(self, size: int, block: int, border: int, ownership: str = "triangle") -> float:
        """Return the seconds of an iteration of conjugate gradients.

        Parameters
        ----------
        size, block : int
            N and b.
        border : int
            First block row of the accelerator.
        ownership : str
            See :mod:`wavetank.kernels.solvers.conjugate_gradient`.
        """
        blocks = blocks_of(size, block)
        upper, whole = triangle_blocks(border), triangle_blocks(blocks)
        lower = whole - upper
        if ownership == "rows" and 0 < border < blocks:
            upper += border * (blocks - border)
        each = 8.0 * block * block
        work = max(upper * each / self.host_rate, lower * each / self.accelerator_rate)
        if not 0 < border < blocks:
            return work
        moved = exchanged_bytes(blocks, block, border, ownership)
        return work + self.serial_s + 2 * self.link.seconds(moved / 2)

    def cholesky_s(self, size: int, block: int, law: SplitLaw, border: int | None = None) -> float:
        """Return the seconds of a factorisation.

        Parameters
        ----------
        size, block : int
        law : SplitLaw
        border : int, optional
            The first one; by default what the law's share says.
        """
        blocks = blocks_of(size, block)
        border = first_border(law.share, blocks) if border is None else border
        shared = 0 < border < blocks
        cube = float(block) ** 3
        total = 0.0
        for k in range(blocks):
            rows_left = blocks - k - 1
            upper, load = max(0, border - k - 1), None
            host_s = 2 * cube * triangle_blocks(upper) / self.host_rate
            accelerator_s = 2 * cube * (triangle_blocks(rows_left) - triangle_blocks(upper)) / self.accelerator_rate
            owner = self.host_rate if k < border else self.accelerator_rate
            total += cube / 3 / owner + max(host_s, accelerator_s)
            total += max(cube * upper / self.host_rate, cube * (rows_left - upper) / self.accelerator_rate)
            if shared:
                total += self.serial_s
                if k < border:
                    total += self.link.seconds(8.0 * block * block)
                if upper:
                    total += self.link.seconds(8.0 * block * block * upper)
                    load = Load(
                        blocks=blocks,
                        first=k + 2,
                        border=border,
                        host_blocks=triangle_blocks(upper),
                        host_s=host_s,
                        accelerator_blocks=triangle_blocks(rows_left) - triangle_blocks(upper),
                        accelerator_s=accelerator_s,
                        least=min(3, max(0, rows_left - 1)),
                    )
            if load is not None and law.due(k + 1) and k + 2 < blocks:
                new = max(k + 2, min(law.border(load), blocks - load.least))
                if new != border:
                    total += self.link.seconds(8.0 * block * block * abs(new - border) * (blocks - k - 1))
                border = new
        return total

    def seconds(self, method: str, size: int, block: int, share: float | None) -> float:
        """Return the seconds of a factorisation, or of an iteration.

        Parameters
        ----------
        method : str
            ``"cholesky"`` or ``"conjugate-gradient"``.
        size, block : int
        share : float or None
            A fixed share of the block rows for the accelerator; None balances.
        """
        law: SplitLaw = Balanced(speed=self.accelerator_rate / self.host_rate)
        blocks = blocks_of(size, block)
        if share is not None:
            law, border = StaticSplit(share=share), first_border(share, blocks)
        else:
            # Rounding to whole rows may leave the host one too many.
            border = host_rows(law.share, blocks, True)
        if method == "cholesky":
            return self.cholesky_s(size, block, law, border)
        return self.iteration_s(size, block, border)

    def gain(self, method: str, size: int, block: int) -> float:
        """Return the accelerator's time alone over that of both in balance."""
        return self.seconds(method, size, block, 1.0) / self.seconds(method, size, block, None)
