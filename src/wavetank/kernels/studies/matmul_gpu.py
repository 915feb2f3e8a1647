"""Study ``matmul-gpu``: products of large and odd matrices on a GPU, against torch's own."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import WavetankError
from wavetank.kernels.cuda import DeviceClock, described, require_cuda, require_free, require_torch
from wavetank.kernels.machine import require_memory
from wavetank.kernels.studies.matmul import names_of, sides_of
from wavetank.records import Record
from wavetank.settings import setting
from wavetank.study import Case, Chart, Measurements, Metric, TimingStudy, in_turns

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
    """How much faster is a matrix product with fewer multiplications than torch's on a GPU, and where does it pay?

    Every contender multiplies the same two matrices in the GPU's memory into a new one.  Before anything is timed, the
    product is compared with float64 on a sample of rows.  Times are those of the GPU, between two events around as many
    products as take ten milliseconds.
    """

    name = "matmul-gpu"
    baseline = _BASE
    systems = (
        _OURS, "falcon-gemm-weights", "always-strassen-gpu", "winograd-2-gpu", "fused-strassen-gpu", _BASE,
    )  # fmt: skip
    cases_by = "shape"
    metrics = (
        Metric("time_ratio", "", "lower", "measured", "time of the contender / time of torch-matmul-gpu, same round"),
        Metric("time_s", "s", "lower", "measured", "time of one product on the device, mean between two events"),
        Metric(
            "share_of_peak", "", "higher", "measured",
            "(2 M K N / time) / (rate of torch's product of two squares of 8192, same type and round); a scheme needs "
            "fewer operations",
        ),
        Metric("speedup", "", "higher", "measured", "time of torch-matmul-gpu / time, same round"),
        Metric("speedup_mean", "", "higher", "measured", "geometric mean of speedup over the shapes"),
        Metric("speedup_least", "", "higher", "measured", "least speedup over the shapes", table=False),
        Metric("effective_tflops", "Tflop/s", "higher", "measured", "2 M K N / time / 1e12; may exceed the peak"),
        Metric(
            "choice_over_oracle", "", "lower", "measured",
            "time of falcon-gemm-gpu / least time among it and the contenders it chooses from, same round", table=False,
        ),
        Metric(
            "choice_over_oracle_mean", "", "lower", "measured", "geometric mean of choice_over_oracle", table=False
        ),
        Metric(
            "rms_error", "", "lower", "measured",
            "root mean square of the difference from float64 over that of the product, on sampled rows", table=False,
        ),
        Metric("workspace_bytes", "bytes", "lower", "counted", "stated most scratch memory", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Speed against torch's product", y="speedup", by="shape", says="Above 1 is faster than torch."),
    )

    shapes: tuple[str, ...] = setting(("squares", "odd"), says="groups of shapes", choices=tuple(SHAPES))
    dtype: str = setting(
        "bfloat16", says="of the elements", choices=("float16", "bfloat16", "float32", "float64")
    )  # fmt: skip
    tf32: bool = setting(False, says="let every contender round float32 to TF32")
    scale: int = setting(1, says="divide every side by this, for a quick look", low=1, high=1024)
    device: str = setting("cuda", says="a CUDA device; cpu only with TRITON_INTERPRET=1", choices=("cuda", "cpu"))
    rounds: int = setting(7, says="interleaved rounds after the warm-up", low=1, high=1000)

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

    def contender(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the contender's prepared call."""
        call: Callable[[], object] = system.prepare(case.data.a, case.data.b)
        return call

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

    def run(self, trial: Any, built: Mapping[str, Any]) -> list[Record]:
        """Verify and time all contenders on the trial's case, or on all cases."""
        records: list[Record] = []
        with _precision("high" if self.tf32 else "highest"):
            for name in (trial.case,) if trial.case else self.case_names(trial.seed):
                records += self._time(self.case(name, trial.seed), trial.seed, built)
        return records

    def _time(self, case: Case, seed: int, built: Mapping[str, Any]) -> list[Record]:
        torch, clock = require_torch(self.name), DeviceClock(self.device)
        records, calls, repeats = [], {}, {}
        sides = sides_of(case.name)
        for name, system in built.items():
            calls[name] = self.contender(system, case)
            result = calls[name]()
            self.verify(case, name, result)
            found = Measurements()
            found.put("rms_error", _rms_error(case.data, result), shape=case.name)
            del result
            planned = system.planned(*sides, self.dtype) if hasattr(system, "planned") and self._plans(name) else None
            if planned is not None:
                found.put("workspace_bytes", planned.workspace_bytes, shape=case.name)
            records += self.stamp(name, seed * self.rounds, found)
            # The first call compiles and, where it plans, times; the second says how long one takes.
            took = clock.seconds(calls[name])
            repeats[name] = max(1, min(_MOST_PRODUCTS, math.ceil(_LEAST_S / max(took, 1e-6))))
        side = max(1, _PEAK_SIDE // self.scale)
        square = (torch.rand(side, side, device=self.device) - 0.5).to(case.data.a.dtype)
        clock.seconds(lambda: square @ square)
        for number in range(self.rounds):
            peak = 2.0 * side**3 / clock.seconds(lambda: square @ square)
            times = {name: clock.seconds(calls[name], repeats[name]) for name in in_turns(list(calls), number)}
            ratios = self.derive({name: {case.name: took} for name, took in times.items()}, {})
            for name, took in times.items():
                found = ratios[name]
                found.put("time_s", took, shape=case.name)
                found.put("share_of_peak", case.flops / took / peak, shape=case.name)
                if _BASE in times:
                    found.put("time_ratio", took / times[_BASE], shape=case.name)
                # Figures of a whole round come when all its cases are done.
                found.rows = [row for row in found.rows if "shape" in row[2]]
                records += self.stamp(name, seed * self.rounds + number, found)
        return records

    def _plans(self, name: str) -> bool:
        """Return whether a contender's plan can be asked for: our own decision needs a GPU's profile."""
        return self.device == "cuda" or name != _OURS

    def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> dict[str, Measurements]:
        """Return the ratios of a round."""
        found = {name: Measurements() for name in times}
        for name, by_case in times.items():
            ratios, regrets = [], []
            for case, took in by_case.items():
                found[name].put("effective_tflops", 2e-12 * math.prod(sides_of(case)) / took, shape=case)
                if _BASE in times:
                    ratios.append(times[_BASE][case] / took)
                    found[name].put("speedup", ratios[-1], shape=case)
                if name == _OURS:
                    # With prepared weights less is done: that is no choice it has.
                    best = min(times[each][case] for each in times if each != "falcon-gemm-weights")
                    regrets.append(took / best)
                    found[name].put("choice_over_oracle", regrets[-1], shape=case)
            if ratios:
                found[name].put("speedup_mean", statistics.geometric_mean(ratios))
                found[name].put("speedup_least", min(ratios))
            if regrets:
                found[name].put("choice_over_oracle_mean", statistics.geometric_mean(regrets))
        return found


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
