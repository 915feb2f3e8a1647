"""Study ``stencil-gpu``: sweeping a stencil over a grid in a GPU's memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.kernels.stencils.study import NAMED, StencilStudy
from wavetank.machine.cuda import DeviceClock, as_graph, described, require_cuda
from wavetank.settings import setting
from wavetank.study.study import Chart, Metric
from wavetank.study.timing import Case, Gain, Repeated, in_a_row

_OWN = "stencil-triton"
_PEERS = ("torch-slices-gpu", "torch-conv2d-gpu")
# Of the product that measures the device's rate; a small one where Triton's interpreter stands for a GPU.
_PRODUCT_SIDE, _SMALL_PRODUCT_SIDE = 4096, 256
_LEAST_S, _MOST_SWEEPS = 0.005, 100


@dataclass(frozen=True, kw_only=True)
class GpuStencilStudy(StencilStudy):
    """The grid lies in the device's memory before and after.  Times are those of the device, between two events."""

    name = "stencil-gpu"
    baseline = "torch-slices-gpu"
    clock = DeviceClock
    copies: ClassVar[Mapping[str, float]] = {"grid-copy-gpu": 1.0}
    roofline = False
    metrics = (
        Metric("share_of_bound", "", "higher", "measured", "steps x time of grid-copy-gpu / time, same round"),
        Metric("updates_per_s", "", "higher", "measured", "cells x steps / time"),
        Metric("share_of_peak", "", "higher", "measured",
               "(operations of the sum, term by term / time) / (rate of the device's matrix product of this type, "
               "without TF32)"),
        Gain("ahead_of_best_peer", over=_PEERS, only=(_OWN,), table=False,
             of="least time of torch's systems / time, same round"),
        Metric("flops_per_s", "", "higher", "measured",
               "operations of the sum, term by term / time; for grid-copy-gpu the roof: the rate that its "
               "bandwidth feeds at one read and one write per cell, at most the rate of the device's "
               "product", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time against torch's slices", y="time_ratio", by="stencil", log="x",
              says="Below 1 is faster."),
        Chart("bars", "Share of the memory's bound", y="share_of_bound", by="stencil",
              says="1 reads and writes every cell once per step."),
        Chart("sweep", "Roofline", y="flops_per_s", by="flops_per_byte", log="xy",
              says="grid-copy-gpu is the roof of one sweep at a time."),
    )  # fmt: skip

    stencils: tuple[str, ...] = setting(
        tuple(f"{shape}-{radius}" for shape in ("star", "box") for radius in (1, 2, 3, 4)),
        says="Stencils that are swept: constructor and radius",
        choices=NAMED,
    )
    side: int = setting(8192, unit="cells", says="Height and width of the grid", low=64, high=65536)
    device: str = setting(
        "cuda", says="Name of the CUDA device; cpu only with TRITON_INTERPRET=1", choices=("cuda", "cpu")
    )

    def check(self) -> None:
        """Refuse what ``stencil`` refuses, and a machine without a GPU."""
        super().check()
        require_cuda("The study stencil-gpu", self.device, "wavetank compare stencil asks the same of the processor")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            described(self.device),
            "The grid is on the device already; nothing crosses the link to the processor.",
            "Sums are those of the pattern term by term; no system takes several steps a pass.",
            "The sweeps of every system are queued as one graph, so that none is timed on how fast Python can ask for "
            "them.",
        )

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the system's prepared call, which queues the work."""
        torch = require_cuda(self.name, self.device)
        grid = torch.from_numpy(case.data.grid.copy()).to(self.device)
        call: Callable[[], object] = system.prepare(grid, case.data.pattern, case.data.steps)
        # The first call compiles, the second says how long one takes.
        call()
        took = self.clock.of(self).seconds(call)
        times = max(1, min(_MOST_SWEEPS, math.ceil(_LEAST_S / max(took, 1e-6))))
        return Repeated(as_graph(self.device, in_a_row(call, times)), times)

    def verify(self, case: Case, system: str, result: Any) -> None:
        """Compare with the reference as ``stencil`` does."""
        super().verify(case, system, result.cpu().numpy())

    def _peak_flops_per_s(self) -> float:
        return _product_flops_per_s(self.device, self.float_bits)


@functools.cache
def _product_flops_per_s(device: str, float_bits: int) -> float:
    torch, clock = require_cuda("stencil-gpu", device), DeviceClock(device)
    side = _PRODUCT_SIDE if clock.on_gpu else _SMALL_PRODUCT_SIDE
    a = torch.full((side, side), 0.5, dtype=getattr(torch, f"float{float_bits}"), device=device)
    out = torch.empty_like(a)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        took = min(clock.seconds(lambda: torch.matmul(a, a, out=out)) for _ in range(4))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2.0 * side**3 / took
