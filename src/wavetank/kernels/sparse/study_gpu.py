"""Study ``spmv-gpu``: one sparse matrix times one vector, again and again, on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wavetank.kernels.sparse.study import OVER_IRREGULAR, SparseProduct
from wavetank.machine.clocks import WallClock
from wavetank.machine.cuda import DeviceClock, as_graph, described, require_cuda
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric
from wavetank.study.timing import Case, Gain, Limits, Repeated, Seconds, in_a_row

_COO, _CSR = "cusparse-coo", "cusparse-csr"
_TRIAD_ITEMS = 1 << 25
_LEAST_PRODUCTS, _MOST_PRODUCTS = 10, 1000


@dataclass(frozen=True, kw_only=True)
class GpuSparseProduct(SparseProduct):
    """Every system lays the matrix out as it likes, outside the timed call, and multiplies it by the same vector.
    Values are random, so that none can be dropped.  Results are compared with scipy's before anything is timed.  Times
    are those of the device, between two events around many products.
    """

    name = "spmv-gpu"
    baseline = _COO
    clock = DeviceClock
    metrics = (
        Metric(
            "share_of_triad", "", "higher", "measured",
            "(bytes of the matrix in compressed rows, of x and of y, each once / time) / triad bandwidth of the "
            "device, same round; above 1 where the matrix stays in cache",
        ),
        Gain("gain_over_coo", over=(_COO,), but=(_COO,), **OVER_IRREGULAR,
             of="time of cusparse-coo / time, same round; over several matrices the geometric mean"),
        Gain("gain_over_csr", over=(_CSR,), but=(_CSR,), **OVER_IRREGULAR,
             of="time of cusparse-csr / time, same round; over several matrices the geometric mean"),
        Metric("build_s", "s", "lower", "measured", "time to lay the matrix out, from compressed rows in the "
               "processor's memory", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time against cuSPARSE's coordinates", y="time_ratio", by="matrix", log="x",
              says="Below 1 is faster than cuSPARSE."),
        Chart("bars", "Share of the triad's bandwidth", y="share_of_triad", by="matrix",
              says="1 is the memory's limit for a matrix in compressed rows."),
    )  # fmt: skip

    nonzeros_a_call: int = setting(
        2_000_000_000,
        says="Nonzeros per timed call: a matrix is multiplied 10 to 1000 times until it has processed this number",
        low=1,
    )
    device: str = setting(
        "cuda", says="Name of the CUDA device; cpu only with TRITON_INTERPRET=1", choices=("cuda", "cpu")
    )

    def check(self) -> None:
        """Refuse what ``spmv`` refuses, and a machine without a GPU."""
        super().check()
        require_cuda("The study spmv-gpu", self.device, "wavetank compare spmv asks the same of the processor")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            described(self.device),
            "The vector stays the same, so that x, and a small matrix, are in the device's cache when a product "
            "begins.",
            "Products of merbit-gpu and cuSPARSE are queued as one graph, so that a small one is not timed on how fast "
            "Python can ask for it; torch's are queued one by one.",
        )

    def repeats(self, case: Case) -> int:
        """Return the products of one timed call."""
        return min(_MOST_PRODUCTS, max(_LEAST_PRODUCTS, super().repeats(case)))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the products with the matrix laid out, as one graph of launches where they may be captured."""
        product = system.prepare(case.data.matrix, case.data.x, self.device)
        # The first time libraries are loaded and kernels compiled, which no graph may hold.
        product()
        repeats = self.repeats(case)
        queue = in_a_row(product, repeats)
        return Repeated(as_graph(self.device, queue) if system.captures else queue, repeats)

    def limits(self, case: Case, clock: WallClock) -> Limits:
        """Return the triad ``a = b + s * c`` in float64 on the device, for one product."""
        torch = require_cuda(self.name, self.device)
        items = _TRIAD_ITEMS if self.device == "cuda" else 1 << 16
        a, b, c = (torch.full((items,), float(number), dtype=torch.float64, device=self.device) for number in range(3))
        share = case.bytes_moved / self.repeats(case) / (3.0 * items * a.element_size())
        return {"share_of_triad": lambda: share * clock.seconds(lambda: torch.add(b, c, alpha=3.0, out=a))}

    def round_figures(self, name: str, times: Mapping[str, Seconds]) -> Measurements:
        """Return nothing: regular matrices have no figure of their own here."""
        return Measurements()

    def build_figures(self, case: Case, name: str, system: Any, took: Mapping[str, list[float]]) -> dict[str, float]:
        """Return how long a system takes to lay the matrix out."""
        clock = DeviceClock(self.device)

        def build() -> object:
            product = system.prepare(case.data.matrix, case.data.x, self.device)
            clock.wait()
            return product

        return {"build_s": WallClock().seconds(build)}
