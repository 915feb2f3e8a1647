"""Study ``spd-solve``: one dense positive definite system, two devices of unequal speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Trial
from wavetank.study.timing import Case, Gain, Seconds, TimingStudy

METHODS = ("cholesky", "conjugate-gradient")
_HOST, _ACCELERATOR = "host-only", "accelerator-only"
PEERS = {
    "scipy-cho-solve": "cholesky", "numpy-cholesky": "cholesky", "torch-cholesky": "cholesky",
    "mkl-cholesky": "cholesky", "cusolver-cholesky": "cholesky",
    "scipy-cg": "conjugate-gradient", "numpy-cg": "conjugate-gradient",
}  # fmt: skip
# Norm of A x - b over that of b, above which a result is no solution.
_RESIDUALS = {"cholesky": 1e-10, "conjugate-gradient": 1.000001e-6}


class Linear(NamedTuple):
    """A system of equations."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SpdSolve(TimingStudy):
    """The systems come from Gaussian processes that learn how a chain of masses answers a force, as in the paper.  The
    accelerator is the GPU where there is one, else a core; the host is the other cores, or another core that computes
    each block ``slowdown`` times.  Every time holds the whole solution: laying the matrix out in both memories,
    computing, moving rows, collecting the result.
    """

    name = "spd-solve"
    baseline = _ACCELERATOR
    cases_by = "size"
    # Idle threads of scipy's BLAS look for work for about 0.1 s.
    rest_s = 0.15
    metrics = (
        Gain("gain", of="accelerator's time alone / time, same round", over=(_ACCELERATOR,), but=tuple(PEERS)),
        Metric(
            "share_of_bound", "", "higher", "measured",
            "gain / (1 + s_c / s_g); s_c / s_g is the accelerator's time alone over the host's, same round",
        ),
        Metric(
            "ahead_of_best_peer", "", "higher", "measured",
            "least time among the libraries' solvers of the same method / time, same round",
        ),
        Metric(
            "share_of_limit", "", "higher", "measured",
            "Cholesky: (N^3 / 3 / time) / rate of float64 BLAS products on all cores; conjugate gradients: (iterations "
            "x lower triangle / time of the products) / triad bandwidth of all cores; in one more run",
        ),
        Metric("iterations", "", "", "counted", "conjugate gradients: iterations; Cholesky: columns of blocks"),
        Metric("last_share", "", "", "measured", "share of the block rows for the accelerator at the end, in one "
                                                 "more run"),
        Metric(
            "break_even_size", "", "lower", "measured",
            "least size from which on it is faster than host and accelerator alone, same round; none if never",
            table=False,
        ),
        Metric(
            "modelled_gain", "", "higher", "modelled",
            "gain by the cost model in balance, with the rates of the devices alone in the same round, no copies",
            table=False,
        ),
        Metric("phase_s", "s", "", "measured", "time of the slower device per phase, in one more run", table=False),
        Metric("moved_bytes", "bytes", "lower", "counted", "data that crossed the link, in one more run", table=False),
    )  # fmt: skip
    charts = (
        Chart("sweep", "Gain over the accelerator alone", y="gain", by="size", log="x",
              says="Above 1 both together are faster."),
        Chart("sweep", "Share of the bound 1 + s_c / s_g", y="share_of_bound", by="size", log="x",
              says="1 would be both devices at full speed all the time."),
        Chart("sweep", "Time", y="time_s", by="size", log="xy", says="The slope is the method's order."),
    )  # fmt: skip

    method: str = setting("cholesky", says="Method of solution", choices=METHODS)
    sizes: tuple[int, ...] = setting((1024, 2048, 4096), says="Numbers of unknowns, N", low=2, high=65_536)
    slowdown: int = setting(3, says="How often the host computes each block if no GPU is used", low=1, high=100)
    accelerator: str = setting(
        "auto",
        says="Kind of accelerator: a GPU, a worker, or a GPU if one is present",
        choices=("auto", "worker", "cuda"),
    )
    window: int = setting(8, says="Number of past inputs from which the process predicts", low=1, high=1000)
    rounds: int = setting(3, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)

    def check(self) -> None:
        """Refuse sizes that do not fit into memory."""
        from wavetank.machine.limits import require_memory

        # The matrix, a peer's factor, and the triangles of two devices.
        require_memory(max(self.sizes) ** 2 * 8 * 3, f"spd-solve with {max(self.sizes):,} unknowns")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        from wavetank.machine.limits import cached

        pair = (
            "A GPU is the accelerator, the other cores are the host."
            if self._gpu()
            else f"Both devices are cores of this machine; the host computes each block {self.slowdown} times."
        )
        return (
            pair,
            "Both cores read one memory: in conjugate gradients the bound supposes a memory for each device.",
            "equal-workers is the same solver on two cores at full speed: what to hold against scipy.",
            cached().note(),
        )

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the sizes."""
        return [str(size) for size in self.sizes]

    def case(self, name: str, seed: int) -> Case:
        """Return the system of a Gaussian process with that many samples."""
        from wavetank.kernels.solvers.covariance import kernel_matrix, mass_spring_damper, windows

        force, position = mass_spring_damper(int(name), seed=seed)
        a = kernel_matrix(windows(force, self.window))
        a.flags.writeable = position.flags.writeable = False
        return Case(name, Linear(a, position))

    def _gpu(self) -> bool:
        from wavetank.machine.cuda import found_gpu

        return self.accelerator == "cuda" or (self.accelerator == "auto" and found_gpu())

    def _as_asked(self, system: Any) -> Any:
        from wavetank.kernels.solvers.solve import HeteroSolver

        if not isinstance(system, HeteroSolver):
            return system
        repeats = system.host_repeats or (1 if self._gpu() else self.slowdown)
        return replace(system, method=self.method, accelerator=self.accelerator, host_repeats=repeats)

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the call to time."""
        asked = self._as_asked(system)
        if hasattr(asked, "prepare"):
            call: Callable[[], object] = asked.prepare(case.data.a, case.data.b)
            return call
        return lambda: asked.solve(case.data.a, case.data.b)

    def verify(self, case: Case, system: str, result: object) -> None:
        """Compute the residual."""
        from wavetank.kernels.solvers.solve import relative_residual

        found = relative_residual(case.data.a, result.x, case.data.b)  # type: ignore[attr-defined]
        allowed = _RESIDUALS[PEERS.get(system, self.method)]
        if not found <= allowed:
            raise WavetankError(
                f"{system} did not solve the system with {case.name} unknowns.",
                given=f"residual {found:.3g}",
                allowed=f"{allowed:.3g}",
            )

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Time all systems, then look into one more run of each."""
        records = super().run(trial, built)
        for case in self.cases_of(trial):
            for system, built_system in built.items():
                time.sleep(self.rest_s)
                result = self.prepared_call(built_system, case)()
                records += self.stamp(system, trial.seed * self.rounds, self._insight(int(case.name), result))
        return records

    def _insight(self, size: int, result: Any) -> Measurements:
        from wavetank.kernels.solvers.conjugate_gradient import product_bytes
        from wavetank.kernels.solvers.solve import Solution
        from wavetank.machine.limits import cached

        found, at = Measurements(), str(size)
        found.put("iterations", result.iterations, size=at)
        if not isinstance(result, Solution):
            return found
        for phase, seconds in result.phases_s.items():
            found.put("phase_s", seconds, size=at, phase=phase)
        for purpose, moved in result.moved_bytes.items():
            found.put("moved_bytes", moved, size=at, purpose=purpose)
        found.put("last_share", result.shares[-1][1], size=at)
        limits = cached()
        if self.method == "cholesky":
            rate, limit = size**3 / 3 / result.elapsed_s, limits.peak_float64_per_s
        else:
            rate = result.iterations * product_bytes(size) / result.phases_s["product"]
            limit = limits.triad_all_bytes_per_s
        found.put("share_of_limit", rate / limit, size=at)
        return found

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> dict[str, float]:
        """Return the figures that need both devices alone, and the lead over the libraries of the same method."""
        found: dict[str, float] = {}
        if name in PEERS:
            return found
        # What cannot be computed without a system is left out.
        if _ACCELERATOR in times and _HOST in times:
            alone, by_host = times[_ACCELERATOR], times[_HOST]
            found["share_of_bound"] = alone / times[name] / (1.0 + alone / by_host)
            if name == "hetero-solvers":
                found["modelled_gain"] = self._modelled(int(case.name), alone, by_host)
        peers = [times[peer] for peer, method in PEERS.items() if peer in times and method == self.method]
        if peers:
            found["ahead_of_best_peer"] = min(peers) / times[name]
        return found

    def round_figures(self, name: str, times: Mapping[str, Seconds]) -> dict[str, float]:
        """Return the size from which on both devices pay."""
        if name in (*PEERS, _HOST, _ACCELERATOR):
            return {}
        threshold = _break_even(times[name], times.get(_HOST, {}), times.get(_ACCELERATOR, {}))
        return {} if threshold is None else {"break_even_size": threshold}

    def _modelled(self, size: int, accelerator_s: float, host_s: float) -> float:
        from wavetank.kernels.solvers.model import CostModel
        from wavetank.kernels.solvers.solve import default_block

        model = CostModel(host_rate=1.0 / host_s, accelerator_rate=1.0 / accelerator_s)
        return model.gain(self.method, size, default_block(size))


def _break_even(both: Mapping[str, float], host: Mapping[str, float], accelerator: Mapping[str, float]) -> float | None:
    found = None
    for size in sorted(both, key=int, reverse=True):
        alone = (host.get(size, math.nan), accelerator.get(size, math.nan))
        if not both[size] < min(alone) or math.isnan(sum(alone)):
            break
        found = float(size)
    return found
