"""Study ``trace-speed``: what it costs to read a profiler's trace and to measure its shares."""

from __future__ import annotations

import gzip
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from wavetank.diagnosis.outside import PYTHON, outside_python
from wavetank.errors import WavetankError
from wavetank.insight.metrics.ccl_bench import CclBench
from wavetank.insight.metrics.interface import SHARED, TraceAnalyser
from wavetank.insight.metrics.study import DATA_SET, TRACES, answers
from wavetank.insight.metrics.what_if import replay_graph
from wavetank.insight.traces.measures import TraceSource
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets

_WARM = "alexnet_1gpu"
_NEAR = 0.01
_REPLAYS = 20


@dataclass(frozen=True, kw_only=True)
class TraceSpeed(Study):
    """Analysers read a public trace of 35 MB, which is packed, and measure three shares of it, in processes of their
    own, one after the other under each seed.  Starting Python, importing and a first small trace do not count;
    processor time does, so that a second core helps nobody.  An analyser whose shares are off by 1 % ends the run.
    """

    name: ClassVar[str] = "trace-speed"
    baseline: ClassVar[str] = "plain-json"
    primary: ClassVar[str] = "cpu_s"
    secondary: ClassVar[tuple[str, ...]] = ("peak_of_file",)
    in_process: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 6
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("cpu_s", "s", "lower", "measured", "processor time to read and measure the trace once: the median of "
               "the repeats of one process", words="processor time"),
        Metric("peak_of_file", "", "lower", "measured", "largest memory of the process - its memory after a "
               "small trace / size of the unpacked trace", words="memory over the file's size"),
        Metric("mb_per_s", "MB/s", "higher", "measured", "size of the unpacked trace / processor time"),
        Metric("nodes_per_s", "nodes/s", "higher", "measured", "nodes of the graph that replays the trace's kernels "
               "with faster links / processor time of the executor, the graph laid out before", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Processor time to read and measure a trace", y="cpu_s", log="x", says="Shorter is faster."),
        Chart("bars", "Memory over the size of the file", y="peak_of_file", log="x", says="Shorter is less."),
    )

    trace: str = setting("world8_rank3_control", says="Which of the public traces", choices=TRACES)
    repeats: int = setting(3, says="How often each process reads it", low=1, high=1000)
    outside: str = setting("", says=PYTHON.format("HolisticTraceAnalysis"))

    def check(self) -> None:
        """Refuse a machine without the traces."""
        datasets.find(DATA_SET, f"{self.trace}.json.gz")

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the trace."""
        return {DATA_SET: next(f.sha256 for f in datasets.entry(DATA_SET).files if f.path == f"{self.trace}.json.gz")}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        if not outside_python(self.outside):
            return ("HolisticTraceAnalysis is not here (make insight-peers): it is left out.",)
        return ("HolisticTraceAnalysis reads only the columns that these shares need, which is its fastest way.",)

    def measure(self, system: TraceAnalyser, seed: int) -> Measurements:
        """Let a process read the trace some times."""
        path, warm = (datasets.find(DATA_SET, f"{name}.json.gz") for name in (self.trace, _WARM))
        outside = outside_python(self.outside)
        if not system.command(outside):
            return Measurements()
        (found,) = answers(system, [path], outside=outside, warm=warm, repeats=self.repeats)
        expected = _shares(path)
        for share, value in expected.items():
            if abs(found.shares.get(share, float("inf")) - value) > _NEAR * max(abs(value), _NEAR):
                raise WavetankError(f"{type(system).__name__} gives another {share}.", given=found.shares.get(share),
                                    allowed=str(value), where=str(path))  # fmt: skip
        size, took = _size(path), statistics.median(found.cpu_s)
        figures = Measurements({"cpu_s": took, "peak_of_file": found.peak_bytes / size, "mb_per_s": size / 1e6 / took})
        if isinstance(system, CclBench):
            figures.put("nodes_per_s", _nodes_per_s(path))
        return figures


def _shares(path: Path) -> dict[str, float]:
    """Return the shares that are right: of the definitions, which tests hold against brute force."""
    from wavetank.insight.metrics.analyser_process import toolkit

    return {name: value for name, value in toolkit(str(path)).items() if name in SHARED}


def _size(path: Path) -> int:
    with gzip.open(path) as file:
        total = 0
        while part := file.read(1 << 20):
            total += len(part)
    return total


def _nodes_per_s(path: Path) -> float:
    source = TraceSource(path)
    rank = source.rank(next(iter(source.traces)))
    which = rank.device
    graph = replay_graph(rank.starts[which], rank.ends[which], rank.trace.stream[which], rank.talks[which], faster=2.0)
    prepared = graph.prepared()
    prepared.times()
    began = time.process_time()
    for _ in range(_REPLAYS):
        prepared.times()
    return _REPLAYS * len(graph) / (time.process_time() - began)
