"""Study ``step-fidelity``: simulated collectives against the alpha-beta formula, as made and as recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import Fabric, Level
from wavetank.settings import setting
from wavetank.sim.steps import StepTimes
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.steps.interface import StepCase
from wavetank.workloads import datasets
from wavetank.workloads.chakra import read_trace_file, step_graph
from wavetank.workloads.operations import UNPRICED, Operation, StepGraph

DATA_SET = "chakra-et"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
RECORDED_RANKS = (4, 8)
RECORDED_BYTES = 1 << 20
# On the way of the recorded ring of sends: sums of its eight ranks, and what each takes.
_SUMS, _SUM_S = 7, 7e-6


class _Benchmark(NamedTuple):
    name: str
    ranks: int
    graph: StepGraph
    expected_s: float


@dataclass(frozen=True, kw_only=True)
class StepFidelity(Study):
    """Every system runs the same collectives on a ring without shared links: native ones, and an all-reduce that is
    spelled out as sends.  They are made here or, with ``traces=recorded``, read from Chakra traces, one file a rank.
    The formula is worked out in floating point, apart from the fabric that prices the graphs.

    What this checks: a native collective has its duration from the fabric, by the same formula in whole picoseconds,
    and the executor only adds when its members come; the ring of sends alone is timed message by message.  Recorded
    traces hold what is called, its size and what it depends on, and no measured times: nothing here is held against
    hardware.
    """

    name = "step-fidelity"
    baseline = "python-steps"
    primary = "largest_error"
    exact = True
    default_seeds = 1
    metrics = (
        Metric("largest_error", "", "lower", "simulated", "the largest error of all collectives"),
        Metric("error", "", "lower", "simulated", "|simulated time / alpha-beta formula - 1|"),
        Metric("simulated_s", "s", "", "simulated", "end of the last operation", table=False),
    )
    charts = (
        Chart("bars", "Simulated time", y="simulated_s", by="case", says="The systems follow one formula, and agree."),
    )

    traces: str = setting("made", says="Collectives that are made, or read from traces", choices=("made", "recorded"))
    alpha_s: float = setting(500e-9, unit="s", says="What a message takes before its first byte", low=0.0, high=1.0)
    bytes_per_s: float = setting(50e9, unit="bytes/s", says="From a rank to the next", low=1.0, high=1e15)
    size_bytes: int = setting(
        RECORDED_BYTES, unit="bytes", says="Of every collective; recorded ones have 1 MiB", low=1, high=1 << 40
    )

    def check(self) -> None:
        """Refuse recorded traces that are not on this machine, and another size of these."""
        if self.traces == "recorded":
            if self.size_bytes != RECORDED_BYTES:
                raise BadValueError(
                    "Recorded collectives have a size.", given=self.size_bytes, allowed=str(RECORDED_BYTES)
                )
            datasets.find(DATA_SET)

    def data(self) -> Mapping[str, str]:
        """Return the data set, if it is read."""
        return {DATA_SET: datasets.entry(DATA_SET).home} if self.traces == "recorded" else {}

    def formula_s(self, collective: str, ranks: int) -> float:
        """Return what a collective takes by the alpha-beta formula of a ring.

        Parameters
        ----------
        collective : str
        ranks : int
        """
        messages = (ranks - 1) * (2 if collective == "all-reduce" else 1)
        return messages * (self.alpha_s + self.size_bytes / ranks / self.bytes_per_s)

    def fabric(self, ranks: int) -> Fabric:
        """Return the ring.

        Parameters
        ----------
        ranks : int
        """
        level = Level(name="ring", size=ranks, alpha_s=self.alpha_s, bytes_per_s=self.bytes_per_s)
        return Fabric(levels=(level,))

    def benchmarks(self) -> Iterator[_Benchmark]:
        """Yield the collectives, then the ring of sends."""
        made = self.traces == "made"
        for ranks in RECORDED_RANKS:
            for collective in COLLECTIVES:
                graph = self._made(collective, ranks) if made else _recorded(collective, ranks)
                yield _Benchmark(f"{collective}, {ranks} ranks", ranks, graph, self.formula_s(collective, ranks))
        ranks = RECORDED_RANKS[-1]
        expected_s = self.formula_s("all-reduce", ranks)
        if made:
            graph = self.fabric(ranks).spelled_out(
                self.fabric(ranks).rounds("all-reduce", range(ranks), self.size_bytes)
            )
        else:
            folder = datasets.find(DATA_SET) / f"custom_ring_allreduce_{ranks}npus_1MB"
            graph = step_graph([read_trace_file(folder / f"custom_allreduce.{rank}.et") for rank in range(ranks)])
            expected_s += _SUMS * _SUM_S
        yield _Benchmark(f"ring of sends, {ranks} ranks", ranks, graph, expected_s)

    def _made(self, collective: str, ranks: int) -> StepGraph:
        return StepGraph.of(
            [
                Operation(rank=rank, kind="collective", collective=collective, group=0, n_bytes=self.size_bytes,
                          duration_ps=UNPRICED)
                for rank in range(ranks)
            ],
            groups=(range(ranks),),
        )  # fmt: skip

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run every collective once."""
        found, errors = Measurements(), []
        for name, ranks, graph, expected_s in self.benchmarks():
            priced = self.fabric(ranks).priced(graph, flops_per_s=1.0)
            call: Callable[[], StepTimes] = system.prepare(StepCase(priced, {}))
            simulated_s = call().makespan_ps / 1e12
            errors.append(abs(simulated_s / expected_s - 1.0))
            found.put("error", errors[-1], case=name)
            found.put("simulated_s", simulated_s, case=name)
        found.put("largest_error", max(errors))
        return found


def _recorded(collective: str, ranks: int) -> StepGraph:
    name = collective.replace("-", "_")
    folder = datasets.find(DATA_SET) / "micro" / name / f"{ranks}npus_1MB"
    return step_graph([read_trace_file(folder / f"{name}.{rank}.et") for rank in range(ranks)])
