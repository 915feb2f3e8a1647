"""Study ``spmv-gpu``: one sparse matrix times one vector, again and again, on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wavetank.kernels.cuda import DeviceClock, described, require_cuda
from wavetank.kernels.studies.spmv import IRREGULAR, SparseProduct
from wavetank.records import Record
from wavetank.settings import setting
from wavetank.study import Case, Chart, Measurements, Metric, in_turns

_COO, _CSR = "cusparse-coo", "cusparse-csr"
_TRIAD_ITEMS = 1 << 25
_LEAST_PRODUCTS, _MOST_PRODUCTS = 10, 1000


class _Clock(DeviceClock):
    """A device's clock, with the triad that bounds it and graphs of launches."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        items = _TRIAD_ITEMS if self.on_gpu else 1 << 16
        kind = self._torch.float64
        self._triad = [self._torch.full((items,), float(number), dtype=kind, device=device) for number in range(3)]

    def triad_bytes_per_s(self) -> float:
        """Return the bandwidth of ``a = b + s * c`` in float64, read plus written."""
        a, b, c = self._triad
        took = self.seconds(lambda: self._torch.add(b, c, alpha=3.0, out=a))
        return 3.0 * a.numel() * a.element_size() / took

    def repeated(self, product: Callable[[], object], repeats: int, captured: bool) -> Callable[[], object]:
        """Return the call that queues a product so often, as one graph of launches where it may be captured."""

        def queue() -> None:
            for _ in range(repeats):
                product()

        if not captured or not self.on_gpu:
            return queue
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            queue()

        # A graph knows addresses alone: with the product goes the memory that it reads.
        def replay(_kept: object = product) -> None:
            graph.replay()

        return replay


@dataclass(frozen=True, kw_only=True)
class GpuSparseProduct(SparseProduct):
    """How fast is a sparse matrix times a vector on a GPU, and how near to its memory's limit?

    Every contender lays the matrix out as it likes, outside the timed call, and multiplies it by the same vector.
    Values are random, so that none can be dropped.  Results are compared with scipy's before anything is timed.  Times
    are those of the device, between two events around many products.
    """

    name = "spmv-gpu"
    baseline = _COO
    systems = ("merbit-gpu", _COO, _CSR, "torch-coo-gpu", "torch-csr-gpu")
    metrics = (
        Metric("time_ratio", "", "lower", "measured", "time of the contender / time of cusparse-coo, same round"),
        Metric("time_s", "s", "lower", "measured", "time of one product on the device, mean over the products between "
               "two events"),
        Metric(
            "share_of_triad", "", "higher", "measured",
            "(bytes of the matrix in compressed rows, of x and of y, each once / time) / triad bandwidth of the "
            "device, same round; above 1 where the matrix stays in cache",
        ),
        Metric("gain_over_coo", "", "higher", "measured", "time of cusparse-coo / time, same round; over several "
               "matrices the geometric mean"),
        Metric("gain_over_csr", "", "higher", "measured", "time of cusparse-csr / time, same round; over several "
               "matrices the geometric mean"),
        Metric("build_s", "s", "lower", "measured", "time to lay the matrix out, from compressed rows in the "
               "processor's memory", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time against cuSPARSE's coordinates", y="time_ratio", by="matrix", log="x",
              says="Below 1 is faster than cuSPARSE."),
        Chart("bars", "Share of the triad's bandwidth", y="share_of_triad", by="matrix",
              says="1 is the memory's limit for a matrix in compressed rows."),
    )  # fmt: skip
    rivals = ((_COO, "gain_over_coo"), (_CSR, "gain_over_csr"))

    nonzeros_a_call: int = setting(
        2_000_000_000, says="matrices are multiplied again until a timed call has had so many, 10 to 1000 times", low=1
    )
    device: str = setting("cuda", says="a CUDA device; cpu only with TRITON_INTERPRET=1", choices=("cuda", "cpu"))

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

    def run(self, trial: Any, built: Mapping[str, Any]) -> list[Record]:
        """Lay out and time all contenders on the trial's case, or on all cases."""
        clock, records = _Clock(self.device), []
        for case in (self.case(trial.case, trial.seed),) if trial.case else self.cases(trial.seed):
            records += self._time(clock, case, trial.seed, built)
        return records

    def _time(self, clock: _Clock, case: Case, seed: int, built: Mapping[str, Any]) -> list[Record]:
        records, calls, repeats = [], {}, self.repeats(case)
        for name, system in built.items():
            # The first time libraries are loaded and kernels compiled.
            self.verify(case, name, system.prepare(case.data.matrix, case.data.x, self.device)())
            start = time.perf_counter()
            product = system.prepare(case.data.matrix, case.data.x, self.device)
            clock.wait()
            found = Measurements()
            found.put("build_s", time.perf_counter() - start, matrix=case.name)
            records += self.stamp(name, seed * self.rounds, found)
            self.verify(case, name, product())
            clock.wait()
            calls[name] = clock.repeated(product, repeats, system.captures)
            calls[name]()
        clock.triad_bytes_per_s()
        for number in range(self.rounds):
            triad = clock.triad_bytes_per_s()
            times = {name: clock.seconds(calls[name]) / repeats for name in in_turns(list(calls), number)}
            gains = self.derive({name: {case.name: took} for name, took in times.items()}, {})
            for name, took in times.items():
                found = gains[name]
                found.put("time_s", took, matrix=case.name)
                found.put("share_of_triad", case.bytes_moved / repeats / took / triad, matrix=case.name)
                if self.baseline in times:
                    found.put("time_ratio", took / times[self.baseline], matrix=case.name)
                found.rows = [row for row in found.rows if "matrix" in row[2]]
                records += self.stamp(name, seed * self.rounds + number, found)
        return records

    def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> dict[str, Measurements]:
        """Return gains a matrix and, over all matrices of a round, their geometric means."""
        found = {name: Measurements() for name in times}
        for name, by_case in times.items():
            for peer, metric in self.rivals:
                if peer not in times or peer == name:
                    continue
                gains = {case: times[peer][case] / seconds for case, seconds in by_case.items()}
                for case, gain in gains.items():
                    found[name].put(metric, gain, matrix=case)
                if set(IRREGULAR) <= set(gains):
                    mean = statistics.geometric_mean(gains[case] for case in IRREGULAR)
                    found[name].put(metric, mean, of="irregular")
        return found
