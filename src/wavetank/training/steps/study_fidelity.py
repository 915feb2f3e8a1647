"""Study ``step-fidelity``: simulated steps against real ones, and collectives against the alpha-beta formula."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import BadValueError, missing_extra
from wavetank.live.ranks import run_ranks
from wavetank.platforms.fabric import Fabric, Level
from wavetank.settings import setting
from wavetank.sim.steps import StepTimes
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.steps.calibrate import (
    QUIET,
    Floats,
    RankSteps,
    at_rows,
    costs,
    own_seconds,
    predicted_graph,
    waits,
)
from wavetank.training.steps.interface import StepCase
from wavetank.training.steps.real_plans import PLANS, RANKS, run_plans
from wavetank.workloads import datasets
from wavetank.workloads.chakra import read_trace_file, step_graph
from wavetank.workloads.operations import UNPRICED, Operation, StepGraph

DATA_SET = "chakra-et"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
RECORDED_RANKS = (4, 8)
RECORDED_BYTES = 1 << 20
# On the way of the recorded ring of sends: sums of its eight ranks, and what each takes.
_SUMS, _SUM_S = 7, 7e-6
# Bytes of the messages that are timed alone.
_SIZES = (1 << 14, 1 << 17, 1 << 19, 1 << 21, 1 << 22)
_LIMIT_S = 600.0


class _Benchmark(NamedTuple):
    name: str
    ranks: int
    graph: StepGraph
    expected_s: float


@dataclass(frozen=True, kw_only=True)
class StepFidelity(Study):
    """Two questions to every system.

    Real steps: two processes of this machine train a small model by four plans.  Calls are recorded by torch's
    observers at two numbers of rows, messages are timed alone, and the steps of other numbers of rows, which nobody
    watched, are predicted.  ``same_rows_error`` is that of other steps with the recorded rows.

    Collectives: all run the same ones on a ring without shared links, native ones and an all-reduce that is spelled out
    as sends, made here or, with ``traces=recorded``, read from Chakra traces.  The formula is worked out in floating
    point, apart from the fabric that prices the graphs; a native collective has its duration from the fabric, by the
    same formula in whole picoseconds, and the ring of sends alone is timed message by message.
    """

    name = "step-fidelity"
    baseline = "python-steps"
    primary = "step_error"
    secondary = ("largest_error",)
    exact = True
    in_process = True
    default_seeds = 5
    metrics = (
        Metric(
            "step_error",
            "",
            "lower",
            "measured",
            "|simulated / measured time of a step - 1|, of steps with numbers of rows that no recorded step had, "
            "mean over these; over all plans, and by plan",
            words="error of steps",
        ),
        Metric(
            "same_rows_error",
            "",
            "lower",
            "measured",
            "the same, of other steps than the recorded ones, with their numbers of rows, mean over these; they say "
            "what watching adds",
        ),
        Metric(
            "spread",
            "",
            "",
            "measured",
            "|measured time of a step in even turns / in odd turns - 1|, mean over rows that no recorded step had: "
            "how much of an error is the machine's",
        ),
        Metric(
            "measured_s",
            "s",
            "",
            "measured",
            "lower quartile of the times of a step that nobody watched, from the "
            "first process's begin to the last one's end: others on the machine only make it longer",
            table=False,
        ),
        Metric(
            "predicted_s",
            "s",
            "",
            "measured",
            "simulated time of that step, from what other steps and messages took",
            table=False,
        ),
        Metric("largest_error", "", "lower", "simulated", "the largest error of all collectives"),
        Metric("error", "", "lower", "simulated", "|simulated time / alpha-beta formula - 1|"),
        Metric("simulated_s", "s", "", "simulated", "end of the last operation", table=False),
    )
    charts = (
        Chart(
            "bars",
            "Error of predicted steps",
            y="step_error",
            by="plan",
            says="Steps of numbers of rows that were not recorded.",
        ),
        Chart("bars", "Simulated time", y="simulated_s", by="case", says="The systems follow one formula, and agree."),
    )

    traces: str = setting("made", says="Collectives that are made, or read from traces", choices=("made", "recorded"))
    alpha_s: float = setting(500e-9, unit="s", says="What a message takes before its first byte", low=0.0, high=1.0)
    bytes_per_s: float = setting(50e9, unit="bytes/s", says="From a rank to the next", low=1.0, high=1e15)
    size_bytes: int = setting(
        RECORDED_BYTES, unit="bytes", says="Of every collective; recorded ones have 1 MiB", low=1, high=1 << 40
    )

    plans: tuple[str, ...] = setting(
        PLANS, says="Real plans: data-parallel, fsdp2, tensor, 1f1b; none without torch", choices=PLANS
    )
    width: int = setting(256, says="Numbers in a row of the real model", low=8, high=4096)
    layers: int = setting(4, unit="layers", says="Blocks of the real model, an even number", low=2, high=64)
    microbatches: int = setting(4, says="Of the real pipeline", low=2, high=64)
    recorded_rows: tuple[int, ...] = setting((128, 256), unit="rows", says="Of recorded steps", low=1, high=1 << 16)
    other_rows: tuple[int, ...] = setting((192, 384), unit="rows", says="Of predicted steps", low=1, high=1 << 16)
    turns: int = setting(6, says="How often a real run goes through all that it times", low=2, high=1000)
    repeats: int = setting(1, unit="steps", says="Steps of one kind in a turn", low=1, high=1000)

    def check(self) -> None:
        """Refuse recorded traces that are not on this machine, another size of these, and steps that cannot be run."""
        if self.plans:
            if importlib.util.find_spec("torch") is None:
                raise missing_extra("torch", "torch", needed_for="A real training step")
            rows = (*self.recorded_rows, *self.other_rows)
            if len(set(self.recorded_rows)) < 2 or not self.other_rows or len(set(rows)) < len(rows):
                raise BadValueError("Steps are predicted from others.", given=rows,
                                    allowed="two recorded numbers of rows or more, and others, each once")  # fmt: skip
            if self.layers % RANKS or any(each % self.microbatches for each in rows):
                raise BadValueError(
                    "A pipeline of two stages has equal stages and micro-batches.", given=(self.layers, rows),
                    allowed=f"an even number of layers, rows in multiples of {self.microbatches}",
                )  # fmt: skip
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
        if self.plans:
            self._steps(system, seed, found)
        return found

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            ("Real steps: two processes with gloo on loopback, one thread each; a mean over two numbers of rows.",)
            if self.plans
            else ()
        )

    def _steps(self, system: Any, seed: int, found: Measurements) -> None:
        """Predict the real steps of this seed, which are run once for all systems."""
        recording = _recording(
            self.plans, self.width, self.layers, self.microbatches, self.recorded_rows, self.other_rows, self.turns,
            self.repeats, seed,
        )  # fmt: skip
        errors = []
        for plan in self.plans:
            by_rows = {}
            for rows in (*self.recorded_rows, *self.other_rows):
                call: Callable[[], StepTimes] = system.prepare(StepCase(recording.graph(plan, rows), {}))
                predicted_s = call().makespan_ps / 1e12
                measured_s = float(np.quantile(recording.steps_s(plan, rows), QUIET))
                found.put("predicted_s", predicted_s, plan=plan, rows=rows)
                found.put("measured_s", measured_s, plan=plan, rows=rows)
                by_rows[rows] = abs(predicted_s / measured_s - 1.0)
            errors.append(float(np.mean([by_rows[rows] for rows in self.other_rows])))
            found.put("step_error", errors[-1], plan=plan)
            found.put("same_rows_error", float(np.mean([by_rows[rows] for rows in self.recorded_rows])), plan=plan)
            found.put("spread", float(np.mean([recording.spread(plan, rows) for rows in self.other_rows])), plan=plan)
        found.put("step_error", float(np.mean(errors)))


class _Recording:
    """What the processes of one run found: calls and times of recorded steps, times of others and of messages."""

    def __init__(self, ranks: Sequence[Mapping[str, Any]], repeats: int) -> None:
        self._ranks, self._repeats = ranks, repeats
        self._costs = costs([each["messages"] for each in ranks])

    def graph(self, plan: str, rows: int) -> StepGraph:
        """The step graph of a plan at some rows, from its recorded steps."""
        ranks = []
        for each in self._ranks:
            calls = {int(key): value for key, value in each["calls"][plan].items()}
            begin, end = each["begin"][plan], each["end"][plan]
            waiting = waits(calls[min(calls)], begin[str(min(calls))], end[str(min(calls))], self._costs)
            alone = {key: each["steps"][plan][str(key)][:, 1] - each["steps"][plan][str(key)][:, 0] for key in calls}
            own = {key: own_seconds(calls[key], waiting, begin[str(key)], end[str(key)], alone[key]) for key in calls}
            called, seconds = at_rows(calls, own, rows)
            ranks.append(RankSteps(called, waiting, seconds))
        return predicted_graph(ranks, self._costs)

    def steps_s(self, plan: str, rows: int) -> Floats:
        """What the steps took that nobody watched, in their order, s."""
        times = np.stack([each["steps"][plan][str(rows)] for each in self._ranks])
        took: Floats = times[:, :, 1].max(0) - times[:, :, 0].min(0)
        return took

    def spread(self, plan: str, rows: int) -> float:
        """How far the medians of even and odd turns are from each other."""
        turns = self.steps_s(plan, rows).reshape(-1, self._repeats)
        return abs(float(np.quantile(turns[::2], QUIET) / np.quantile(turns[1::2], QUIET)) - 1.0)


@functools.lru_cache(maxsize=2)
def _recording(
    plans: tuple[str, ...], width: int, layers: int, microbatches: int, recorded_rows: tuple[int, ...],
    other_rows: tuple[int, ...], turns: int, repeats: int, seed: int,
) -> _Recording:  # fmt: skip
    arguments = {
        "plans": list(plans), "width": width, "layers": layers, "microbatches": microbatches,
        "watched_rows": list(recorded_rows), "rows": [*recorded_rows, *other_rows], "sizes": list(_SIZES),
        "turns": turns, "repeats": repeats, "seed": seed,
    }  # fmt: skip
    return _Recording(run_ranks(run_plans, RANKS, arguments=arguments, timeout_s=_LIMIT_S), repeats)


def _recorded(collective: str, ranks: int) -> StepGraph:
    name = collective.replace("-", "_")
    folder = datasets.find(DATA_SET) / "micro" / name / f"{ranks}npus_1MB"
    return step_graph([read_trace_file(folder / f"{name}.{rank}.et") for rank in range(ranks)])
