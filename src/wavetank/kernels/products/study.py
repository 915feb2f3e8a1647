"""Study ``matmul``: products of large and odd matrices, against the libraries that people call today."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Metric
from wavetank.study.timing import SHARE_OF_PEAK, Case, Gain, Seconds, TimingStudy

# (K, N) of linear layers as in the paper's models: DeepSeek-R1 has 7,168 hidden units, HunyuanVideo 3,072.
_LAYERS = ((7168, 4096), (7168, 2304), (3072, 9216))
SHAPES = {
    "squares": tuple((n, n, n) for n in (1024, 2048, 3072, 4096)),
    "square-8192": ((8192, 8192, 8192),),
    "llm": ((4096, 7168, 4096), (4096, 4096, 8192), (5120, 7168, 4096), (4608, 4096, 4096)),
    "llm-short": tuple((m, k, n) for m in (512, 1024) for k, n in _LAYERS),
    "thin": ((1, 4096, 4096), (16, 4096, 4096), (4096, 16, 4096), (4096, 4096, 16), (64, 8192, 1024)),
    "odd": ((1023, 1537, 2049), (2500, 1100, 3001), (777, 3333, 1999), (3000, 2999, 3001)),
    "small": ((64, 64, 64), (150, 200, 100)),
}
LIBRARIES = ("numpy-matmul", "torch-matmul", "numpy-own-kernels", "scipy-matmul", "mkl-matmul", "aocl-matmul")
OURS = ("falcon-gemm", "fused-plain", "always-strassen", "strassen-2", "strassen-3")
# A library in another process is none that falcon-gemm can choose.
WITHIN = (*OURS, *(name for name in LIBRARIES if name != "numpy-own-kernels"))
PLAIN = ("planned-matmul", "fused-plain", *LIBRARIES)
"""Systems with the accuracy of a plain product, entry by entry."""
ENTRIES = ("even", "small-rows", "far-columns", "graded")


def sides_of(name: str) -> tuple[int, int, int]:
    """Return M, K and N of a shape written MxKxN."""
    try:
        m, k, n = map(int, name.split("x"))
    except ValueError:
        raise BadValueError("A shape is written MxKxN.", given=name) from None
    return m, k, n


def names_of(shapes: Sequence[tuple[int, int, int]], scale: int) -> tuple[str, ...]:
    """Return shapes as MxKxN, every side divided by ``scale``, each once."""
    return tuple(dict.fromkeys("x".join(str(max(1, side // scale)) for side in shape) for shape in shapes))


class Operands(NamedTuple):
    """The matrices of a case, and some rows of their product as they should be."""

    a: NDArray[Any]
    b: NDArray[Any]
    rows: NDArray[np.int64]
    exact: NDArray[np.float64]
    """Rounded once, for float64 by compensated sums."""
    sizes: NDArray[np.float64]
    """The same rows of |A||B|: what errors of single entries are relative to."""
    norms: float
    """max|A| max|B|."""


@dataclass(frozen=True, kw_only=True)
class MatmulStudy(TimingStudy):
    """Every system multiplies the same two matrices in memory into a new one.  Before anything is timed, the product
    is compared with float64 on a sample of rows.
    """

    name = "matmul"
    baseline = "numpy-matmul"
    cases_by = "shape"
    # Threads of a BLAS spin on for about 20 ms after a product, on a core that the next system needs.
    rest_s = 0.03
    metrics = (
        SHARE_OF_PEAK,
        Gain("speedup", of="time of numpy-matmul / time, same round", over=("numpy-matmul",)),
        Gain("speedup_torch", of="time of torch-matmul / time, same round", over=("torch-matmul",), table=False),
        Gain("speedup_best", over=LIBRARIES, of="least time among the libraries present (numpy in this process and its "
             "own, torch, scipy, MKL, AOCL) / time, same round"),
        Gain("speedup_best_mean", of="geometric mean of speedup_best over the shapes", over=LIBRARIES, by_case=False,
             mean="geometric"),
        Gain("speedup_best_least", of="least speedup_best over the shapes", over=LIBRARIES, by_case=False,
             mean="least", table=False),
        Metric("effective_gflops", "Gflop/s", "higher", "measured", "2 M K N / time / 1e9; may exceed the peak"),
        Gain("choice_over_oracle", better="lower", over=WITHIN, only=("falcon-gemm",), table=False,
             of="time of falcon-gemm / least time among the systems it can choose from, same round"),
        Gain("choice_over_oracle_mean", better="lower", of="geometric mean of choice_over_oracle", over=WITHIN,
             only=("falcon-gemm",), by_case=False, mean="geometric", table=False),
        Gain("over_separate", of="time of separate-winograd / time, same round", over=("separate-winograd",),
             table=False),
        Metric(
            "rms_error", "", "lower", "measured",
            "root mean square of the difference from float64 over that of the product, on sampled rows",
        ),
        Metric(
            "norm_error", "", "lower", "measured", "largest error of sampled rows / (max|A| max|B|)", table=False,
        ),
        Metric(
            "entry_error", "", "lower", "measured",
            "largest error of an entry / the same entry of |A||B|, on sampled rows: shows the accuracy "
            "of small rows and columns",
        ),
        Metric("workspace_bytes", "bytes", "lower", "counted", "largest scratch memory, as stated by the "
                                                               "implementation", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Speed against numpy's product", y="speedup", by="shape", says="Above 1 is faster than numpy."),
        Chart("bars", "Speed against the best library", y="speedup_best", by="shape",
              says="Above 1 is faster than every library, each with the kernels it chooses itself."),
    )  # fmt: skip

    shapes: tuple[str, ...] = setting(("squares", "odd"), says="Groups of shapes", choices=tuple(SHAPES))
    dtype: str = setting("float32", says="Type of the elements", choices=("float32", "float64"))
    threads: int = setting(1, says="Threads per system", low=1, high=1024)
    entries: str = setting(
        "even", choices=ENTRIES,
        says="Distribution of inputs: in [-0.5, 0.5), or positive: half of A's rows times 1e-7, half of "
             "B's columns times 1e6, or graded",
    )  # fmt: skip
    scale: int = setting(1, says="Divisor of every side, for a quick look", low=1, high=256)

    def check(self) -> None:
        """Refuse what does not fit into memory; let torch's idle threads sleep, if it is not loaded yet."""
        from wavetank.machine.limits import require_memory
        from wavetank.machine.thread_pool import let_idle_threads_sleep

        let_idle_threads_sleep()
        largest = max(m * k + k * n + m * n for m, k, n in map(sides_of, self.case_names(0)))
        # Operands, the other process's copy, torch's, and a system's result.
        require_memory(4 * largest * np.dtype(self.dtype).itemsize, "matmul")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        from wavetank.kernels.products import libraries, priors, profile
        from wavetank.machine.threads import allowed_threads

        set_here = ", ".join(f"{name}={value}" for name, value in libraries.steering().items()) or "none"
        measured = profile.kept(self.dtype, allowed_threads(self.threads))
        known = "the kept profile" if measured is not None else f"what ships for {priors.here().name}"
        return (
            f"Choices came from {known}; wavetank profile measures one.",
            f"Libraries on this machine: {', '.join(libraries.present())}. Variables that steer them: {set_here}.",
            "numpy-matmul ran in this process, whose OpenBLAS uses the kernels: "
            f"{libraries.blas_kernels() or 'unknown'}. The variable OPENBLAS_CORETYPE can hold it to older ones; "
            "numpy-own-kernels runs without it.",
            "share_of_peak is relative to numpy's product in this process; a scheme needs fewer operations.",
            "torch's idle OpenMP threads sleep: by default they spin on, and disturb the system that is timed next.",
        )

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the shapes as MxKxN."""
        return names_of([shape for group in self.shapes for shape in SHAPES[group]], self.scale)

    def case(self, name: str, seed: int) -> Case:
        """Return two matrices."""
        m, k, n = sides_of(name)
        rng = stream(seed, "matmul", name)
        kind = np.dtype(self.dtype).type
        a, b = (rng.random(shape, dtype=kind) - kind(0.5) for shape in ((m, k), (k, n)))
        _make_uneven(a, b, self.entries)
        rows = np.unique(np.linspace(0, m - 1, min(m, 32 if self.dtype == "float32" else 8)).astype(np.int64))
        sizes = np.abs(a[rows]).astype(np.float64) @ np.abs(b).astype(np.float64)
        norms = float(np.abs(a).max(initial=0)) * float(np.abs(b).max(initial=0))
        return Case(name, Operands(a, b, rows, _exact(a[rows], b), sizes, norms), flops=2.0 * m * k * n)

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the system's prepared call."""
        call: Callable[[], object] = system.prepare(case.data.a, case.data.b, self.threads)
        return call

    def verify(self, case: Case, system: str, result: object) -> None:
        """Hold sampled rows against the bound of a plain product, entry by entry; schemes against that of the norm."""
        found, k = np.asarray(result), case.data.a.shape[1]
        unit = float(np.finfo(self.dtype).eps) / 2
        error, relative_to, limit = _norm_error(case.data, found), "max|A| max|B|", _LOOSEST * k * k * unit
        if system in PLAIN:
            error, relative_to, limit = _entry_error(case.data, found), "|A||B|", max(k, 2) * unit
        if not error <= limit:
            raise WavetankError(
                f"{system} did not multiply {case.name}: its largest error is {error:.3g} of {relative_to}, where "
                f"{limit:.3g} is allowed."
            )

    def result_figures(self, case: Case, name: str, system: Any, result: Any) -> dict[str, float]:
        """Return errors and workspace."""
        product = np.asarray(result)
        found = {
            "rms_error": _rms_error(case.data, product),
            "norm_error": _norm_error(case.data, product),
            "entry_error": _entry_error(case.data, product),
        }
        if hasattr(system, "planned"):
            planned = system.planned(*sides_of(case.name), np.dtype(self.dtype), self.threads)
            found["workspace_bytes"] = planned.workspace_bytes
        return found

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> dict[str, float]:
        """Return the rate."""
        m, k, n = sides_of(case.name)
        return {"effective_gflops": 2e-9 * m * k * n / times[name]}


# Three levels of a scheme err by at most 18^3 times a plain product's bound.
_LOOSEST = 18.0**3


def _make_uneven(a: NDArray[Any], b: NDArray[Any], entries: str) -> None:
    """Change matrices of entries even in [-0.5, 0.5) to what a setting asks for."""
    if entries == "even":
        return
    for matrix in (a, b):
        np.add(np.abs(matrix), matrix.dtype.type(0.01), out=matrix)
    if entries == "small-rows":
        a[: len(a) // 2] *= a.dtype.type(1e-7)
    elif entries == "far-columns":
        b[:, b.shape[1] // 2 :] *= b.dtype.type(1e6)
    else:
        # From 1 to 1e-6 along the inner side, against each other, so that every term counts alike.
        grades = np.geomspace(1.0, 1e-6, a.shape[1]).astype(a.dtype)
        a *= grades
        b /= grades[:, None]


def _exact(rows: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Return the product of some rows, rounded about once.

    float64 holds products of float32 exactly, and its sums err by far less than float32 rounds.  For float64 itself,
    products and sums are carried in two numbers each.
    """
    if rows.dtype == np.float32:
        return np.asarray(rows.astype(np.float64) @ b.astype(np.float64))
    from wavetank.kernels.products.compensated import compensated_product

    return compensated_product(rows, b)


def _norm_error(operands: Operands, result: NDArray[Any]) -> float:
    worst = float(np.abs(result[operands.rows].astype(np.float64) - operands.exact).max())
    return worst / (operands.norms or 1.0)


def _entry_error(operands: Operands, result: NDArray[Any]) -> float:
    difference = np.abs(result[operands.rows].astype(np.float64) - operands.exact)
    return float((difference / np.where(operands.sizes > 0, operands.sizes, 1.0)).max())


def _rms_error(operands: Operands, result: NDArray[Any]) -> float:
    difference = result[operands.rows].astype(np.float64) - operands.exact
    scale = float(np.sqrt(np.mean(operands.exact**2)))
    return float(np.sqrt(np.mean(difference**2))) / (scale or 1.0)
