"""Study ``matmul-gpu``: products of large and odd matrices on a GPU, against torch's own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import WavetankError
from wavetank.kernels.products.study import names_of, sides_of
from wavetank.machine.clocks import WallClock
from wavetank.machine.cuda import DeviceClock, as_graph, described, require_cuda, require_free, require_torch
from wavetank.machine.limits import require_memory
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Metric, Trial
from wavetank.study.timing import Case, Gain, Limits, Repeated, Seconds, TimingStudy, in_a_row

# (K, N) of linear layers as in the paper's models: DeepSeek-R1 has 7,168 hidden and 18,432 inner units, HunyuanVideo
# 3,072 and four times as many.
_LAYERS = ((7168, 4096), (7168, 18432), (3072, 12288))
SHAPES = {
    "squares": tuple((n, n, n) for n in (2048, 4096, 8192, 16384)),
    "llm": tuple((m, k, n) for m in (4096, 10240, 20480) for k, n in _LAYERS),
    "thin": ((1, 4096, 4096), (64, 8192, 8192), (8192, 64, 8192), (8192, 8192, 64)),
    "odd": ((4095, 4097, 4099), (5000, 2200, 6001), (8191, 8193, 8190)),
}
_BASE = "torch-matmul-gpu"
_OURS = "falcon-gemm-gpu"
# With prepared weights less is done: that is no choice that falcon-gemm-gpu has.
_WITHIN = (_OURS, "always-strassen-gpu", "winograd-2-gpu", "fused-strassen-gpu", "torch-padded-gpu", _BASE)
_PEAK_SIDE = 8192
_LEAST_S, _MOST_PRODUCTS = 0.01, 100


class Operands(NamedTuple):
    """The matrices of a case on the device, and what their product's sampled rows are in float64."""

    a: Any
    b: Any
    rows: Any
    exact: Any


@dataclass(frozen=True, kw_only=True)
class MatmulGpuStudy(TimingStudy):
    """Every system multiplies the same two matrices in the GPU's memory into a new one.  Before anything is timed,
    the product is compared with float64 on a sample of rows.  Times are those of the GPU, between two events around as
    many products as take ten milliseconds.
    """

    name = "matmul-gpu"
    baseline = _BASE
    cases_by = "shape"
    clock = DeviceClock
    metrics = (
        Metric(
            "share_of_peak", "", "higher", "measured",
            "(2 M K N / time) / (rate of torch's product of two squares of 8192, same type and round); a scheme needs "
            "fewer operations",
        ),
        Gain("speedup", of="time of torch-matmul-gpu / time, same round", over=(_BASE,)),
        Gain("speedup_mean", of="geometric mean of speedup over the shapes", over=(_BASE,), by_case=False,
             mean="geometric"),
        Gain("speedup_least", of="least speedup over the shapes", over=(_BASE,), by_case=False, mean="least",
             table=False),
        Metric("effective_tflops", "Tflop/s", "higher", "measured", "2 M K N / time / 1e12; may exceed the peak"),
        Gain("choice_over_oracle", better="lower", over=_WITHIN, only=(_OURS,), table=False,
             of="time of falcon-gemm-gpu / least time among it and the systems it chooses from, same round"),
        Gain("choice_over_oracle_mean", better="lower", of="geometric mean of choice_over_oracle", over=_WITHIN,
             only=(_OURS,), by_case=False, mean="geometric", table=False),
        Metric(
            "rms_error", "", "lower", "measured",
            "root mean square of the difference from float64 over that of the product, on sampled rows", table=False,
        ),
        Metric("workspace_bytes", "bytes", "lower", "counted", "largest scratch memory, as stated by the "
                                                               "implementation", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Speed against torch's product", y="speedup", by="shape", says="Above 1 is faster than torch."),
    )

    shapes: tuple[str, ...] = setting(("squares", "odd"), says="Groups of shapes", choices=tuple(SHAPES))
    dtype: str = setting(
        "bfloat16", says="Type of the elements", choices=("float16", "bfloat16", "float32", "float64")
    )  # fmt: skip
    tf32: bool = setting(False, says="Let every system round float32 to TF32")
    scale: int = setting(1, says="Divisor of every side, for a quick look", low=1, high=1024)
    device: str = setting(
        "cuda", says="Name of the CUDA device; cpu only with TRITON_INTERPRET=1", choices=("cuda", "cpu")
    )
    rounds: int = setting(3, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)

    def check(self) -> None:
        """Refuse a machine without a GPU, and what does not fit into it."""
        torch = require_cuda(
            "The study matmul-gpu", self.device, "wavetank compare matmul asks the same of the processor"
        )
        # Operands, the result, sums and products of two levels; float64 of the sampled rows' operand.
        size = getattr(torch, self.dtype).itemsize
        need = max(
            int(5.1 * (m * k + k * n + m * n) * size) + 8 * k * n for m, k, n in map(sides_of, self.case_names(0))
        )
        if self.device == "cuda":
            require_free(self.device, need, "The study", where="shapes", hint="--set scale=2 halves every side")
        else:
            require_memory(need, self.name)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            described(self.device),
            "falcon-gemm-weights had the sums of its right operand formed before, as a layer's weights allow.",
            "share_of_peak is relative to torch's own product; a scheme needs fewer operations.",
            "The products of every system are queued as one graph, so that short ones are not timed on how fast Python "
            "can ask for them.",
        )

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the shapes as MxKxN."""
        return names_of([shape for group in self.shapes for shape in SHAPES[group]], self.scale)

    def case(self, name: str, seed: int) -> Case:
        """Return two matrices of entries even in [-0.5, 0.5), rounded to the type."""
        torch, (m, k, n) = require_torch(self.name), sides_of(name)
        source = torch.Generator(self.device).manual_seed(seed)
        a, b = (
            (torch.rand(shape, generator=source, device=self.device) - 0.5).to(getattr(torch, self.dtype))
            for shape in ((m, k), (k, n))
        )
        rows = torch.from_numpy(np.unique(np.linspace(0, m - 1, min(m, 32)).astype(np.int64))).to(self.device)
        return Case(name, Operands(a, b, rows, a[rows].double() @ b.double()), flops=2.0 * m * k * n)

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the system's prepared call, so often as takes ten milliseconds, as one graph of launches."""
        call: Callable[[], object] = system.prepare(case.data.a, case.data.b)
        # The first call compiles and, where it plans, times; the second says how long one takes.
        call()
        took = self.clock.of(self).seconds(call)
        times = max(1, min(_MOST_PRODUCTS, math.ceil(_LEAST_S / max(took, 1e-6))))
        return Repeated(as_graph(self.device, in_a_row(call, times)), times)

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compare sampled rows with float64; the tolerance allows two levels of a scheme."""
        torch = require_torch(self.name)
        # Halves are rounded as sums, products and results; float32 and float64 err by what they sum.
        unit = float(torch.finfo(getattr(torch, self.dtype)).eps)
        unit = max(unit, 2.0**-10) if self.dtype == "float32" and self.tf32 else unit
        share = 32 * unit if unit > 1e-4 else 400 * unit * math.sqrt(case.data.a.shape[1])
        error = _rms_error(case.data, result)
        if not error <= share:
            raise WavetankError(f"{system} did not multiply {case.name}: its error is {error:.3g} of the product.")

    def result_figures(self, case: Case, name: str, system: Any, result: Any) -> dict[str, float]:
        """Return error and workspace."""
        found = {"rms_error": _rms_error(case.data, result)}
        # Our own decision needs a GPU's profile.
        if hasattr(system, "planned") and (self.device == "cuda" or name != _OURS):
            planned = system.planned(*sides_of(case.name), self.dtype)
            if planned is not None:
                found["workspace_bytes"] = planned.workspace_bytes
        return found

    def limits(self, case: Case, clock: WallClock) -> Limits:
        """Return torch's product of two large squares."""
        torch, side = require_torch(self.name), max(1, _PEAK_SIDE // self.scale)
        square = (torch.rand(side, side, device=self.device) - 0.5).to(case.data.a.dtype)
        return {"share_of_peak": lambda: case.flops * clock.seconds(lambda: square @ square) / (2.0 * side**3)}

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> dict[str, float]:
        """Return the rate."""
        return {"effective_tflops": 2e-12 * math.prod(sides_of(case.name)) / times[name]}

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Verify and time all systems on the trial's case, or on all cases."""
        with _precision("high" if self.tf32 else "highest"):
            return super().run(trial, built)


@contextlib.contextmanager
def _precision(wanted: str) -> Iterator[None]:
    torch = require_torch("The study matmul-gpu")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _rms_error(operands: Operands, result: Any) -> float:
    difference = result[operands.rows].double() - operands.exact
    scale = float(operands.exact.square().mean().sqrt())
    return float(difference.square().mean().sqrt()) / (scale or 1.0)
