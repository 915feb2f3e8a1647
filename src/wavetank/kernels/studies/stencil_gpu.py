"""Study ``stencil-gpu``: sweeping a stencil over a grid in a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.kernels.cuda import DeviceClock, described, require_cuda
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.studies.stencil import NAMED, StencilStudy
from wavetank.records import Record
from wavetank.settings import setting
from wavetank.study import Case, Chart, Measurements, Metric, in_turns

_OWN = "stencil-triton"
# Of the product that tells the device's rate; a small one where Triton's interpreter stands for a GPU.
_PRODUCT_SIDE, _SMALL_PRODUCT_SIDE = 4096, 256


@dataclass(frozen=True, kw_only=True)
class GpuStencilStudy(StencilStudy):
    """How fast is a stencil swept over a grid on a GPU, and how near does that come to reading and writing it once?

    The grid lies in the device's memory before and after.  Times are those of the device, between two events.
    """

    name = "stencil-gpu"
    baseline = "torch-slices-gpu"
    systems = (_OWN, "grid-copy-gpu", "torch-slices-gpu", "torch-conv2d-gpu")
    bound: ClassVar[str] = "grid-copy-gpu"
    bounds: ClassVar[tuple[str, ...]] = (bound,)
    metrics = (
        Metric("time_ratio", "", "lower", "measured", "time / time of torch-slices-gpu, same round"),
        Metric("time_s", "s", "lower", "measured", "time of one call on the device, between two events"),
        Metric("share_of_bound", "", "higher", "measured", "steps x time of grid-copy-gpu / time, same round"),
        Metric("updates_per_s", "", "higher", "measured", "cells x steps / time"),
        Metric("share_of_peak", "", "higher", "measured",
               "(operations of the sum, term by term / time) / (rate of the device's matrix product of this type, "
               "without TF32)"),
        Metric("ahead_of_best_peer", "", "higher", "measured", "least time of torch's contenders / time, same round",
               table=False),
        Metric("flops_per_s", "", "higher", "measured",
               "operations of the sum, term by term / time; for grid-copy-gpu the roof: what its bandwidth feeds at "
               "one read and one write of a cell, at most the rate of the device's product", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time against torch's slices", y="time_ratio", by="stencil", log="x",
              says="Below 1 is faster."),
        Chart("bars", "Share of the memory's bound", y="share_of_bound", by="stencil",
              says="1 reads and writes every cell once a step."),
        Chart("sweep", "Roofline", y="flops_per_s", by="flops_per_byte", log="xy",
              says="grid-copy-gpu is the roof of one sweep at a time."),
    )  # fmt: skip

    stencils: tuple[str, ...] = setting(
        tuple(f"{shape}-{radius}" for shape in ("star", "box") for radius in (1, 2, 3, 4)),
        says="what is swept: constructor and radius",
        choices=NAMED,
    )
    side: int = setting(8192, unit="cells", says="height and width of the grid", low=64, high=65536)
    device: str = setting("cuda", says="a CUDA device; cpu only with TRITON_INTERPRET=1", choices=("cuda", "cpu"))

    def check(self) -> None:
        """Refuse what ``stencil`` refuses, and a machine without a GPU."""
        super().check()
        require_cuda("The study stencil-gpu", self.device, "wavetank compare stencil asks the same of the processor")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            described(self.device),
            "The grid is on the device already; nothing crosses the link to the processor.",
            "Sums are those of the pattern term by term; no contender takes several steps a pass.",
        )

    def contender(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the contender's prepared call, which queues the work."""
        torch = require_cuda(self.name, self.device)
        grid = torch.from_numpy(case.data.grid.copy()).to(self.device)
        call: Callable[[], object] = system.prepare(grid, case.data.pattern, case.data.steps)
        return call

    def verify(self, case: Case, system: str, result: Any) -> None:
        """Compare with the reference as ``stencil`` does."""
        super().verify(case, system, result.cpu().numpy())

    def run(self, trial: Any, built: Mapping[str, Any]) -> list[Record]:
        """Time all contenders on the trial's case, or on all cases."""
        records: list[Record] = []
        for case in (self.case(trial.case, trial.seed),) if trial.case else self.cases(trial.seed):
            records += self._time(case, trial.seed, built)
        return records

    def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> dict[str, Measurements]:
        """Return nothing for whole rounds: every figure here belongs to a stencil."""
        return {}

    def _time(self, case: Case, seed: int, built: Mapping[str, Any]) -> list[Record]:
        records: list[Record] = []
        calls = {}
        for name, system in built.items():
            calls[name] = self.contender(system, case)
            # The first time libraries are loaded and kernels compiled.
            self.verify(case, name, calls[name]())
        clock = DeviceClock(self.device)
        peak = self._product_flops_per_s(clock)
        for number in range(self.rounds):
            times = {name: clock.seconds(calls[name]) for name in in_turns(list(calls), number)}
            for name, found in self._figures(case, times, peak).items():
                records += self.stamp(name, seed * self.rounds + number, found)
        return records

    def _figures(self, case: Case, times: Mapping[str, float], peak: float) -> dict[str, Measurements]:
        pattern: Stencil = case.data.pattern
        at = {"stencil": case.name}
        place: dict[str, Any] = {
            "flops_per_byte": pattern.flops_per_point / (2 * self.float_bits // 8),
            "shape": pattern.shape,
        }
        cells = float(case.data.grid.size)
        peers = [took for name, took in times.items() if name not in (_OWN, self.bound)]
        found = {name: Measurements() for name in times}
        for name, took in times.items():
            found[name].put("time_s", took, **at)
            if self.baseline in times:
                found[name].put("time_ratio", took / times[self.baseline], **at)
            if name == self.bound:
                found[name].put("flops_per_s", min(pattern.flops_per_point * cells / took, peak), **place)
                continue
            rate = self.steps * cells / took
            found[name].put("updates_per_s", rate, **at)
            found[name].put("share_of_peak", rate * pattern.flops_per_point / peak, **at)
            found[name].put("flops_per_s", rate * pattern.flops_per_point, **place)
            if self.bound in times:
                found[name].put("share_of_bound", self.steps * times[self.bound] / took, **at)
            if name == _OWN and peers:
                found[name].put("ahead_of_best_peer", min(peers) / took, **at)
        return found

    def _product_flops_per_s(self, clock: DeviceClock) -> float:
        torch = require_cuda(self.name, self.device)
        side = _PRODUCT_SIDE if clock.on_gpu else _SMALL_PRODUCT_SIDE
        kind = torch.float32 if self.float_bits == 32 else torch.float64
        a = torch.full((side, side), 0.5, dtype=kind, device=self.device)
        out = torch.empty_like(a)
        allowed = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            took = min(clock.seconds(lambda: torch.matmul(a, a, out=out)) for _ in range(4))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed
        return 2.0 * side**3 / took
