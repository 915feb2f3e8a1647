"""Study ``spmv``: one sparse matrix times one vector, again and again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.machine.clocks import WallClock
from wavetank.machine.limits import cached, require_memory
from wavetank.machine.threads import allowed_threads, libraries_limited
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Trial
from wavetank.study.timing import SHARE_OF_COPY, Case, Gain, Limits, Seconds, TimingStudy, in_a_row
from wavetank.workloads import datasets, matrices

IRREGULAR = ("rmat-18", "rmat-20", "uniform-20", "ego-facebook", "wiki-vote")
REGULAR = ("stencil-1500", "banded-20")
FILES = {"ego-facebook": "facebook_combined.edges.txt.gz", "wiki-vote": "wiki-Vote.edges.txt.gz"}
OWN = "file"
_NEVER = 1e9
_BUILDS = 5
_SCIPY, _TORCH, _MKL = "scipy-csr", "torch-csr", "mkl-inspector-executor"
_LIBRARIES = (_SCIPY, _TORCH, _MKL)
OVER_IRREGULAR: Mapping[str, Any] = {"mean": "geometric", "cases": IRREGULAR, "at": {"of": "irregular"}}


class Product(NamedTuple):
    """The matrix and vector of a case, and what their product must be."""

    matrix: Any
    x: NDArray[Any]
    expected: NDArray[Any]
    tolerance: NDArray[Any]
    """How far each item may be off: rounding of as many additions as its row has entries."""


def matrix_of(name: str, shrink: int, seed: int) -> Any:
    """Return the matrix of a case, values uniform in (0, 1], a ``scipy.sparse.csr_array`` with 32-bit indices.

    Parameters
    ----------
    name : str
        One of :data:`IRREGULAR` or :data:`REGULAR`.
    shrink : int
        Halve the number of rows so often; real graphs stay as they are.
    seed : int
    """
    if name in FILES:
        found = matrices.read_matrix(datasets.find("sparse-matrices", FILES[name]))
    elif name == "stencil-1500":
        found = matrices.five_point_stencil(max(2, round(1500 / math.sqrt(2**shrink))))
    elif name == "banded-20":
        found = matrices.banded(1 << max(4, 20 - shrink), seed=seed)
    elif name == "uniform-20":
        found = matrices.uniform_random(1 << max(4, 20 - shrink), seed=seed)
    else:
        found = matrices.rmat(max(4, int(name.removeprefix("rmat-")) - shrink), seed=seed)
    found.data = 1.0 - stream(seed, "spmv-values", name).random(found.nnz)
    return found


@dataclass(frozen=True, kw_only=True)
class SparseProduct(TimingStudy):
    """Every system lays the matrix out as it likes, outside the timed call, and multiplies it by the same vector.
    Values are random, so that none can be dropped.  Results are compared with scipy's before anything is timed.
    """

    name = "spmv"
    baseline = _SCIPY
    cases_by = "matrix"
    # Threads of torch's OpenMP spin on for a while after a product, on a core that the next system needs.
    rest_s = 0.03
    metrics: ClassVar[tuple[Metric, ...]] = (
        SHARE_OF_COPY,
        Metric(
            "share_of_triad", "", "higher", "measured",
            "(bytes of the matrix in compressed rows, of x and of y, each once / time) / triad bandwidth of all "
            "threads; above 1 where the matrix stays in cache",
        ),
        Gain("gain_over_scipy", over=(_SCIPY,), but=(_SCIPY,), **OVER_IRREGULAR,
             of="time of scipy-csr / time, same round; over several matrices the geometric mean"),
        Gain("gain_over_torch", over=(_TORCH,), but=(_TORCH,), **OVER_IRREGULAR, table=False,
             of="time of torch-csr / time, same round; over several matrices the geometric mean"),
        Metric("least_gain_over_better", "", "higher", "measured",
               "least over the regular matrices of: time of the faster of scipy-csr and torch-csr / time, same round",
               table=False),
        Gain("gain_over_mkl", over=(_MKL,), but=(_MKL,), **OVER_IRREGULAR, table=False,
             of="time of mkl-inspector-executor / time, same round; over several matrices the geometric mean"),
        Gain("gain_over_best", over=_LIBRARIES, but=_LIBRARIES, mean="least", cases=(*IRREGULAR, *REGULAR),
             at={"of": "all"}, of="time of the fastest of scipy-csr, torch-csr and mkl-inspector-executor, of those "
             "present, / time, same round; over several matrices the least"),
        Gain("gain_over_coo", over=("scipy-coo",), but=("scipy-coo",), by_case=False, **OVER_IRREGULAR, table=False,
             of="time of scipy-coo, which uses one thread, / time, geometric mean over the irregular matrices, same "
             "round"),
        Metric("build_s", "s", "lower", "measured", "time to lay the matrix out, from compressed rows, median of five",
               table=False),
        Metric("break_even_products", "", "lower", "measured",
               "build_s / (median time of scipy-csr - median time, per product); 1e9 where it is not faster",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Time against scipy's", y="time_ratio", by="matrix", log="x",
              says="Below 1 is faster than scipy."),
        Chart("bars", "Share of the triad's bandwidth", y="share_of_triad", by="matrix",
              says="1 is the memory's limit for a matrix in compressed rows."),
    )  # fmt: skip

    matrices: tuple[str, ...] = setting(
        (*IRREGULAR, *REGULAR), says="Matrices to multiply", choices=(*IRREGULAR, *REGULAR, OWN)
    )
    file: str = setting("", says="Path of the Matrix Market or edge-list file for the matrix 'file'")
    shrink: int = setting(0, says="How often the number of rows of generated matrices is halved", low=0, high=16)
    float_bits: int = setting(64, says="Bits per value", choices=(32, 64))
    nonzeros_a_call: int = setting(
        40_000_000,
        says="Nonzeros per timed call: a small matrix is multiplied repeatedly until it has processed this number",
        low=1,
    )
    threads: int = setting(0, says="Threads that each system can use, scipy one; 0 takes all allowed threads", low=0)
    rounds: int = setting(3, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)

    def check(self) -> None:
        """Refuse a matrix without a file, and matrices that do not fit."""
        if (OWN in self.matrices) != bool(self.file):
            raise WavetankError(
                "The matrix 'file' and the setting file belong together.", given=f"file={self.file!r}",
                where="matrices", hint="--set matrices=file --set file=MATRIX.mtx",
            )  # fmt: skip
        # Systems' forms of 16 million nonzeros, all held at once.
        require_memory((3 << 30) >> self.shrink, "spmv")

    def data(self) -> Mapping[str, str]:
        """Return the data set of the real graphs, where one is asked for."""
        wanted = sorted(FILES[name] for name in self.case_names(0) if name in FILES)
        known = {each.path: each.sha256 for each in datasets.entry("sparse-matrices").files}
        return {f"sparse-matrices/{name}": known[name] for name in wanted}

    def _absent(self) -> tuple[str, ...]:
        """Return the real graphs to do without: those not on this machine, unless the user chose the matrices."""
        if self.matrices != (*IRREGULAR, *REGULAR):
            return ()
        missing = datasets.status("sparse-matrices").missing
        return tuple(name for name in self.matrices if FILES.get(name) in missing)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        absent = self._absent()
        return (
            *(
                [f"Left out, and out of every mean: {' and '.join(absent)} (wavetank data fetch sparse-matrices)."]
                if absent
                else []
            ),
            f"Systems may use {allowed_threads(self.threads or None)} threads each, scipy uses one.",
            "The vector stays the same, so that x, and a small matrix, are in cache when a product begins.",
            "A timed call multiplies a small matrix again and again, as iterative methods do: threads that a library "
            "keeps awake for a while help it, and do not disturb the next system.",
            cached().note(),
        )

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the matrices; without real graphs that nobody asked for and that are not on this machine."""
        absent = self._absent()
        return tuple(name for name in self.matrices if name not in absent)

    def case(self, name: str, seed: int) -> Case:
        """Return matrix, vector and expected product."""
        dtype = np.dtype(f"float{self.float_bits}")
        given = matrices.read_matrix(self.file) if name == OWN else matrix_of(name, self.shrink, seed)
        matrix = given.astype(dtype)
        x = stream(seed, "spmv-vector").standard_normal(matrix.shape[1]).astype(dtype)
        scale = abs(matrix) @ abs(x)
        tolerance = (np.diff(matrix.indptr) + 8) * np.finfo(dtype).eps * scale
        item = dtype.itemsize
        once = matrix.nnz * (item + 4) + 4 * (matrix.shape[0] + 1) + item * sum(matrix.shape)
        case = Case(name, Product(matrix, x, matrix @ x, tolerance))
        return replace(case, bytes_moved=float(once * self.repeats(case)))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the product with the matrix laid out; of a small matrix many products, one after the other."""
        most = self.threads or None
        if most and hasattr(system, "threads"):
            system = replace(system, threads=most)
        products = in_a_row(system.prepare(case.data.matrix, case.data.x), self.repeats(case))

        def limited() -> object:
            # torch takes no number of threads.
            with libraries_limited(most or 1):
                return products()

        return limited if most else products

    def repeats(self, case: Case) -> int:
        """Return the products of one timed call."""
        return max(1, self.nonzeros_a_call // max(1, case.data.matrix.nnz))

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compare with scipy's product."""
        found = np.asarray(result.cpu() if hasattr(result, "cpu") else result)
        if (
            found.shape != case.data.expected.shape
            or not (np.abs(found - case.data.expected) <= case.data.tolerance).all()
        ):
            raise WavetankError(f"{system} did not multiply {case.name} right.")

    def limits(self, case: Case, clock: WallClock) -> Limits:
        """Return one thread's copy and the triad of all threads, as measured before."""
        least_s = case.bytes_moved / cached().triad_all_bytes_per_s
        return {**super().limits(case, clock), "share_of_triad": lambda: least_s}

    def round_figures(self, name: str, times: Mapping[str, Seconds]) -> Measurements:
        """Return the least gain over scipy and torch, where both are there."""
        found, peers = Measurements(), [times[peer] for peer in (_SCIPY, _TORCH) if peer in times and peer != name]
        if len(peers) == 2 and set(REGULAR) <= set(times[name]):
            least = min(min(peer[case] for peer in peers) / times[name][case] for case in REGULAR)
            found.put("least_gain_over_better", least, of="regular")
        return found

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Time all systems, then how long each takes to lay the matrix out."""
        records = super().run(trial, built)
        for case in self.cases_of(trial):
            took: dict[str, list[float]] = {}
            for record in records:
                if record.metric == "time_s" and record.at["matrix"] == case.name:
                    took.setdefault(record.system, []).append(record.value)
            for name, system in built.items():
                found = Measurements()
                for metric, value in self.build_figures(case, name, system, took).items():
                    found.put(metric, value, matrix=case.name)
                records += self.stamp(name, trial.seed * self.rounds, found)
        return records

    def build_figures(self, case: Case, name: str, system: Any, took: Mapping[str, list[float]]) -> dict[str, float]:
        """Return how long it takes to lay the matrix out, and by the times of calls after how many that has paid."""
        if name in (_SCIPY, _TORCH, "scipy-coo"):
            return {}
        clock = self.clock.of(self)
        builds = [clock.seconds(lambda: system.prepare(case.data.matrix, case.data.x)) for _ in range(_BUILDS)]
        found = {"build_s": statistics.median(builds)}
        if _SCIPY in took:
            saved = statistics.median(took[_SCIPY]) - statistics.median(took[name])
            found["break_even_products"] = found["build_s"] / saved * self.repeats(case) if saved > 0 else _NEVER
        return found
