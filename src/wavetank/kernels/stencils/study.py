"""Study ``stencil``: sweeping a stencil over a grid in memory, once or many times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.kernels.stencils.pattern import STENCILS, Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.row_blocks import form_of
from wavetank.machine.limits import cached, require_memory
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric
from wavetank.study.timing import Case, Gain, Seconds, TimingStudy

COPIES = {"grid-copy": 1.0, "grid-stream": 1.0, "grid-triad": 2 / 3}
"""What reads and writes memory and does nothing else, and the part of its time that one read and one write take."""
OWN = ("stencil-sweep", "plain-sweep")
LIBRARIES = (
    "numpy-slices", "scipy-correlate", "opencv", "numba-rows", "im2row-blas", "convstencil-blas", "torch-conv2d",
    "devito",
)  # fmt: skip
WEIGHTS = ("random", "separable", "equal")
NAMED = tuple(name for name in STENCILS if name != "identity")
"""The stencils that can be swept in the studies."""

# Cells along a side of the squares on which a result is compared with the reference.
_CHECKED = 48


class Sweeps(NamedTuple):
    """What a case asks for."""

    grid: NDArray[Any]
    pattern: Stencil
    steps: int


def pattern_of(name: str, weights: str, seed: int) -> Stencil:
    """Return a stencil by name, with its own weights or with random ones of sum 1.

    ``random`` weights allow no shortcut: nothing repeats, and no box is a column times a row.  ``separable`` ones are
    such a product for boxes, and random for the others.

    Parameters
    ----------
    name : str
        One of :data:`~wavetank.kernels.stencils.pattern.STENCILS`.
    weights : str
        One of :data:`WEIGHTS`.
    seed : int
    """
    pattern = Stencil.named(name)
    if weights == "equal":
        return pattern
    rng = stream(seed, "stencil-weights", name)
    drawn = rng.random(pattern.points) + 0.5
    if weights == "separable" and pattern.shape == "box":
        column, row = (rng.random(2 * pattern.radius + 1) + 0.5 for _ in range(2))
        drawn = np.outer(column / column.sum(), row / row.sum()).ravel()
        return Stencil(pattern.offsets, tuple(float(weight) for weight in drawn))
    return Stencil(pattern.offsets, tuple(float(weight) for weight in drawn / drawn.sum()))


@dataclass(frozen=True, kw_only=True)
class StencilStudy(TimingStudy):
    """All systems sweep the same grid with a fixed rim and the same type of numbers.  What they return is compared
    with the plain sum of slices on squares in the corners, on the edges and in the middle before anything is timed.
    """

    name = "stencil"
    baseline = "numpy-slices"
    cases_by = "stencil"
    copies: ClassVar[Mapping[str, float]] = COPIES
    roofline: ClassVar[bool] = True
    """Whether the least operations of a pattern are known, for the share of the roofline."""
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("share_of_bound", "", "higher", "measured",
               "steps x time to read and write the grid once / time, same round; that time is the least of a plain "
               "copy, a copy past the caches and two thirds of a triad, and all three must run; above 1 only where "
               "several steps share one pass over memory"),
        Metric("share_of_roofline", "", "higher", "measured",
               "the larger of the time to read and write the grid once and of the operations needed / (rate of a BLAS "
               "product of this type in this machine's profile) / time; operations are those of the sum term by term, "
               "or of column and row where the weights are their product"),
        Metric("updates_per_s", "", "higher", "measured", "cells x steps / time"),
        Metric("share_of_peak", "", "higher", "measured",
               "(operations of the sum, term by term / time) / (rate of a BLAS product of this type in this machine's "
               "profile)"),
        Gain("ahead_of_best_peer", over=LIBRARIES, only=OWN, table=False,
             of="least time among the libraries / time, same round"),
        Metric("flops_per_s", "", "higher", "measured",
               "operations of the sum, term by term / time; for grid-copy the roof: the rate that the "
               "fastest copy feeds at one read and one write per cell, at most the rate of the BLAS "
               "product in this machine's profile",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time against numpy's", y="time_ratio", by="stencil", log="x",
              says="Below 1 is faster than numpy."),
        Chart("bars", "Share of the memory's bound", y="share_of_bound", by="stencil",
              says="1 reads and writes every cell once per step; more is had by taking several steps at a time."),
        Chart("sweep", "Roofline", y="flops_per_s", by="flops_per_byte", log="xy",
              says="grid-copy is the roof of one sweep at a time."),
    )  # fmt: skip

    stencils: tuple[str, ...] = setting(
        ("star-1", "star-4", "box-1", "box-4"), says="Stencils that are swept: constructor and radius", choices=NAMED
    )
    weights: str = setting(
        "random",
        says="Weights: random without shortcuts; boxes that are a column times a row; the stencil's own, all equal",
        choices=WEIGHTS,
    )
    side: int = setting(4096, unit="cells", says="Height and width of the grid", low=64, high=65536)
    steps: int = setting(1, says="Sweeps per call", low=1, high=10_000)
    float_bits: int = setting(32, says="Bits per cell", choices=(32, 64))
    rounds: int = setting(3, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)

    def check(self) -> None:
        """Refuse grids that do not fit."""
        # The grid, and up to three of each system.
        require_memory(3 * len((*OWN, *COPIES, *LIBRARIES)) * self._grid_bytes(), "stencil")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Systems use all cores, except numpy and scipy, which use one.",
            "share_of_bound holds a system against the fastest of a plain copy of the grid, a copy past the caches "
            "and a triad, by all threads in the same round.",
            "Libraries take their fastest filter for the weights: one for means, for a column times a row, or for any.",
            "The peak of share_of_roofline is what a BLAS product reaches here, not a figure of a data sheet.",
            "Operations are those of the sum term by term, also where a system needs fewer.",
            "Devito's operator is generated, compiled and tuned before the call that is timed; idle OpenMP threads "
            "sleep.",
            cached().note(),
        )

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the stencils."""
        return self.stencils

    def case(self, name: str, seed: int) -> Case:
        """Return a grid of random cells between 0 and 1."""
        pattern = pattern_of(name, self.weights, seed)
        dtype = np.dtype(f"float{self.float_bits}").type
        grid = stream(seed, "stencil-grid").random((self.side, self.side), dtype)
        grid.flags.writeable = False
        return Case(name, Sweeps(grid, pattern, self.steps))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the system's prepared call."""
        data = case.data
        call: Callable[[], object] = system.prepare(data.grid, data.pattern, data.steps, "dirichlet")
        return call

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compare with the reference on squares whose cells depend on nothing beyond a slightly larger square."""
        found, data = np.asarray(result), case.data
        if system in self.copies:
            scale = 4 if system == "grid-triad" else 1
            if not np.allclose(found, scale * data.grid, rtol=1e-6 * (scale > 1), atol=0):
                raise WavetankError(f"{system} did not copy the grid.")
            return
        halo = data.pattern.radius * data.steps
        # Rounding grows with the number of sums, and with the size of weights that cancel.
        growth = max(1.0, float(np.abs(data.pattern.coefficients).sum())) ** data.steps
        allowed = 4 * np.finfo(data.grid.dtype).eps * (data.pattern.points + 1) * data.steps * growth
        for square, inner in _squares(data.grid.shape, halo):
            expected = reference_sweep(data.grid[square], data.pattern, data.steps)[inner]
            if not (np.abs(found[square][inner] - expected) <= allowed).all():
                raise WavetankError(f"{system} did not sweep {case.name} right.")

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> Measurements:
        """Return rates and the shares of what the fastest copy and a product would take."""
        found, pattern, cells = Measurements(), case.data.pattern, float(self.side) ** 2
        once = min((part * times[copy] for copy, part in self.copies.items() if copy in times), default=math.nan)
        peak = self._peak_flops_per_s()
        place = {"flops_per_byte": pattern.flops_per_point / (2 * self.float_bits // 8), "shape": pattern.shape}
        if name in self.copies:
            if name == next(iter(self.copies)):
                found.put("flops_per_s", min(pattern.flops_per_point * cells / once, peak), **place)
            return found
        rate = self.steps * cells / times[name]
        found.put("updates_per_s", rate)
        found.put("share_of_peak", rate * pattern.flops_per_point / peak)
        found.put("flops_per_s", rate * pattern.flops_per_point, **place)
        # A plain copy alone is slower than memory allows, and would flatter.
        if self.copies.keys() <= times.keys():
            found.put("share_of_bound", self.steps * once / times[name])
            if self.roofline:
                flops = min(pattern.flops_per_point, form_of(pattern, self._dtype).flops_per_point)
                found.put("share_of_roofline", max(once, self.steps * cells * flops / peak) / times[name])
        return found

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(f"float{self.float_bits}")

    def _peak_flops_per_s(self) -> float:
        profile = cached()
        return profile.peak_float32_per_s if self.float_bits == 32 else profile.peak_float64_per_s

    def _grid_bytes(self) -> int:
        return self.side * self.side * self.float_bits // 8


def _squares(shape: tuple[int, int], halo: int) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice]]]:
    """Yield windows of the grid, each with the part of it that a sweep of the window alone gets right."""
    spans = []
    for side in shape:
        starts = (0, (side - _CHECKED) // 2, side - _CHECKED)
        spans.append([(max(0, start - halo), max(start, 0), min(side, start + _CHECKED)) for start in starts])
    for low_y, first_y, end_y in spans[0]:
        for low_x, first_x, end_x in spans[1]:
            high_y, high_x = min(shape[0], end_y + halo), min(shape[1], end_x + halo)
            yield (
                (slice(low_y, high_y), slice(low_x, high_x)),
                (slice(first_y - low_y, end_y - low_y), slice(first_x - low_x, end_x - low_x)),
            )
