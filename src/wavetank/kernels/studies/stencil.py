"""Study ``stencil``: sweeping a stencil over a grid in memory, once or many times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.machine import cached, require_memory
from wavetank.kernels.stencils.pattern import STENCILS, Stencil
from wavetank.kernels.stencils.reference import reference_sweep
from wavetank.kernels.stencils.row_blocks import form_of
from wavetank.rng import stream
from wavetank.settings import setting
from wavetank.study import Case, Chart, Measurements, Metric, TimingStudy

COPIES = {"grid-copy": 1.0, "grid-stream": 1.0, "grid-triad": 2 / 3}
"""What reads and writes memory and does nothing else, and the part of its time that one read and one write take."""
OWN = ("stencil-sweep", "plain-sweep")
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
    """How fast is a stencil swept over a grid in memory, and how near does that come to reading and writing it once?

    All contenders sweep the same grid with a fixed rim and the same type of numbers.  What they return is compared
    with the plain sum of slices on squares in the corners, on the edges and in the middle before anything is timed.
    """

    name = "stencil"
    baseline = "numpy-slices"
    systems: ClassVar[tuple[str, ...]] = (
        "stencil-sweep", "plain-sweep", *COPIES, "numpy-slices", "scipy-correlate", "opencv", "numba-rows",
        "im2row-blas", "convstencil-blas", "torch-conv2d", "devito",
    )  # fmt: skip
    cases_by = "stencil"
    bounds: ClassVar[tuple[str, ...]] = tuple(COPIES)
    metrics = (
        *TimingStudy.timing_metrics[:2],
        Metric("share_of_bound", "", "higher", "measured",
               "steps x time to read and write the grid once / time, same round; that time is the least of a plain "
               "copy, a copy past the caches and two thirds of a triad; above 1 only where several steps share one "
               "pass over memory"),
        Metric("share_of_roofline", "", "higher", "measured",
               "the larger of the time to read and write the grid once and of the operations needed / (rate of a BLAS "
               "product of this type in this machine's profile) / time; operations are those of the sum term by term, "
               "or of column and row where the weights are their product"),
        Metric("updates_per_s", "", "higher", "measured", "cells x steps / time"),
        Metric("share_of_peak", "", "higher", "measured",
               "(operations of the sum, term by term / time) / (rate of a BLAS product of this type in this machine's "
               "profile)"),
        Metric("ahead_of_best_peer", "", "higher", "measured", "least time among the libraries / time, same round",
               table=False),
        Metric("flops_per_s", "", "higher", "measured",
               "operations of the sum, term by term / time; for grid-copy the roof: what the fastest copy feeds at one "
               "read and one write of a cell, at most the rate of the BLAS product in this machine's profile",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time against numpy's", y="time_ratio", by="stencil", log="x",
              says="Below 1 is faster than numpy."),
        Chart("bars", "Share of the memory's bound", y="share_of_bound", by="stencil",
              says="1 reads and writes every cell once a step; more is had by taking several steps at a time."),
        Chart("sweep", "Roofline", y="flops_per_s", by="flops_per_byte", log="xy",
              says="grid-copy is the roof of one sweep at a time."),
    )  # fmt: skip

    stencils: tuple[str, ...] = setting(
        ("star-1", "star-4", "box-1", "box-4"), says="what is swept: constructor and radius", choices=NAMED
    )
    weights: str = setting(
        "random",
        says="random ones that allow no shortcut; boxes that are a column times a row; the stencil's own, all equal",
        choices=WEIGHTS,
    )
    side: int = setting(4096, unit="cells", says="height and width of the grid", low=64, high=65536)
    steps: int = setting(1, says="sweeps of one call", low=1, high=10_000)
    float_bits: int = setting(32, says="of a cell: 32 or 64", low=32, high=64)
    rounds: int = setting(5, says="interleaved rounds after the warm-up", low=1, high=1000)

    def check(self) -> None:
        """Refuse types of cells that do not exist and grids that do not fit."""
        if self.float_bits not in (32, 64):
            raise BadValueError(
                "There are no such cells.", given=self.float_bits, allowed="32 or 64", where="float_bits"
            )
        # The grid, and up to three of each contender.
        require_memory(3 * len(self.systems) * self._grid_bytes(), "stencil")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Contenders use all cores, except numpy and scipy, which use one.",
            "share_of_bound holds a contender against the fastest of a plain copy of the grid, a copy past the caches "
            "and a triad, by all threads in the same round.",
            "Libraries take their fastest filter for the weights: one for means, for a column times a row, or for any.",
            "The peak of share_of_roofline is what a BLAS product reaches here, not a figure of a data sheet.",
            "Operations are those of the sum term by term, also where a contender needs fewer.",
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

    def contender(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the contender's prepared call."""
        data = case.data
        call: Callable[[], object] = system.prepare(data.grid, data.pattern, data.steps, "dirichlet")
        return call

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compare with the reference on squares whose cells depend on nothing beyond a slightly larger square."""
        found, data = np.asarray(result), case.data
        if system in self.bounds:
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

    def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> dict[str, Measurements]:
        """Return the figures that need the copy or all contenders of a round."""
        found = {name: Measurements() for name in times}
        peers = [name for name in times if name not in (*OWN, *COPIES)]
        cells = float(self.side) ** 2
        for name, by_case in times.items():
            for case, seconds in by_case.items():
                once = min(
                    (part * times[copy][case] for copy, part in COPIES.items() if copy in times), default=math.nan
                )
                pattern = pattern_of(case, self.weights, 0)
                needed = (
                    self.steps * cells * min(pattern.flops_per_point, form_of(pattern, self._dtype).flops_per_point)
                )
                intensity = pattern.flops_per_point / (2 * self.float_bits // 8)
                place: dict[str, Any] = {"flops_per_byte": intensity, "shape": pattern.shape}
                if name in COPIES:
                    if name == "grid-copy":
                        roof = min(pattern.flops_per_point * cells / once, self._peak_flops_per_s())
                        found[name].put("flops_per_s", roof, **place)
                    continue
                rate = self.steps * cells / seconds
                found[name].put("updates_per_s", rate, stencil=case)
                found[name].put(
                    "share_of_peak", rate * pattern.flops_per_point / self._peak_flops_per_s(), stencil=case
                )
                found[name].put("flops_per_s", rate * pattern.flops_per_point, **place)
                if not math.isnan(once):
                    found[name].put("share_of_bound", self.steps * once / seconds, stencil=case)
                    least = max(once, needed / self._peak_flops_per_s())
                    found[name].put("share_of_roofline", least / seconds, stencil=case)
                if name in OWN and peers:
                    best = min(times[peer][case] for peer in peers)
                    found[name].put("ahead_of_best_peer", best / seconds, stencil=case)
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
