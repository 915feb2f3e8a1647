"""Study ``trace-metrics``: are the shares that an analyser reads from a trace those that were planted?"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from wavetank.diagnosis.outside import PYTHON, ask, outside_python
from wavetank.errors import DataUnavailableError, GaveUpError, WavetankError
from wavetank.insight.metrics.ccl_bench import CclBench
from wavetank.insight.metrics.interface import SHARED, Answer, TraceAnalyser
from wavetank.insight.metrics.planted import OVERLAPS, planted
from wavetank.insight.metrics.rivals import HolisticTraceAnalysis
from wavetank.settings import setting
from wavetank.study.effects import ratio
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets

DATA_SET = "kineto-traces"
TRACES = (
    "alexnet_1gpu", "amd_mi250_minitoy", "cuda_event_sync_multi_stream", "gloo_world300_rank34_cpu",
    "nccl_world2_rank0", "world128_sampled_rank0", "world128_sampled_rank1", "world8_rank3_control",
)  # fmt: skip
_LIMIT_S = 300.0
_WHOLLY = 10.0
_NOT_SAID_POINTS = 100.0


def answers(
    system: TraceAnalyser, files: Sequence[Path], *, outside: str, warm: Path | None = None, repeats: int = 1
) -> list[Answer]:
    """Ask an analyser for shares of some traces.

    Parameters
    ----------
    system : TraceAnalyser
    files : sequence of Path
    outside : str
        Python of the environment of others; empty where there is none.
    warm : Path, optional
        Read once before anything is timed.
    repeats : int
        How often each is read and measured.

    Raises
    ------
    GaveUpError
        If the analyser is not here.
    WavetankError
        If its process fails or takes too long.
    """
    words = system.command(outside)
    if not words:
        raise GaveUpError(
            "The analyser needs an environment of its own.", hint="make insight-peers, or --set outside=PYTHON"
        )
    question = {"files": [str(each) for each in files], "warm": str(warm) if warm else None, "repeats": repeats}
    name = type(system).__name__
    found = ask(words, question, name=name, timeout_s=_LIMIT_S)
    try:
        said = [Answer({k: float(v) for k, v in each["shares"].items()}, each["cpu_s"], each["peak_bytes"])
                for each in found]  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WavetankError(f"{name} gave no answers of the form asked for.", given=str(error)) from error
    if len(said) != len(files):
        raise WavetankError(f"{name} did not answer for each trace.", given=f"{len(said)} of {len(files)}")
    return said


@functools.lru_cache(maxsize=16)
def _of_files(system: Any, files: tuple[Path, ...], outside: str) -> tuple[Answer, ...]:
    return tuple(answers(system, files, outside=outside))


@dataclass(frozen=True, kw_only=True)
class TraceMetrics(Study):
    """Analysers measure shares of traces: how much of communication computing hides, idle time, computing time.  Traces
    with 0, 50 and 100 % hidden are made for every seed, and their truth is counted nanosecond by nanosecond; the eight
    public traces have no truth, so that there analysers are held against HolisticTraceAnalysis.
    """

    name: ClassVar[str] = "trace-metrics"
    baseline: ClassVar[str] = "summed-durations"
    primary: ClassVar[str] = "error_points"
    in_process: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 6
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("error_points", "", "lower", "counted", "largest difference of a share from the planted one, in points, "
               "over three shares of three traces; 100 where it is not said; of one share and overlap at share and "
               "hidden", words="error in points"),
        Metric("answered", "", "higher", "counted", "shares of the public traces that it says, of 24; a trace without "
               "communication has no overlap", words="answers"),
        Metric("difference_percent", "%", "lower", "counted", "largest |share / share of HolisticTraceAnalysis - 1| "
               "over what both say of the public traces, at most 1,000 %; of one at trace and share"),
        Metric("overlap_ranks_speed", "", "", "counted", "correlation of the ranks of overlap and of speed over the "
               "DeepSeek rows of one work, 8 sequences of 1,024 tokens on 8 A100s", table=False),
        Metric("overlap_ranks_mfu", "", "", "counted", "correlation of the ranks of overlap and of model FLOPs "
               "utilisation over all DeepSeek rows of training", table=False),
        Metric("more_overlap_slower", "", "", "counted", "step time of EP4-DP2-TP4 / of EP8-DP8, which has half of the "
               "overlap", table=False),
        Metric("framework_gap", "", "", "counted", "largest ratio of the best step times of two frameworks at equal "
               "model, batch, length and devices", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Error of shares, in points", y="error_points", by="hidden", says="0: as planted."),
    )

    outside: str = setting("", says=PYTHON.format("HolisticTraceAnalysis"))

    def data(self) -> Mapping[str, str]:
        """Return the checksums of the traces."""
        return {f"{DATA_SET}/{file.path}": file.sha256 for file in datasets.entry(DATA_SET).files}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        found = [
            "HolisticTraceAnalysis counts the last marked step and does not round to microseconds here; by default it "
            "does the opposite of both, and then says 47.0 % where both say 46.2 % (world8_rank3_control).",
        ]
        if not outside_python(self.outside):
            found.append("HolisticTraceAnalysis is not here (make insight-peers): nothing is held against it.")
        if not self._files():
            found.append("The data set kineto-traces is not here: planted traces alone.")
        return tuple(found)

    def measure(self, system: TraceAnalyser, seed: int) -> Measurements:
        """Ask for shares of planted and of public traces."""
        outside, found = outside_python(self.outside), Measurements()
        if not system.command(outside):
            return found
        self._planted(system, seed, outside, found)
        files = self._files()
        if files:
            self._public(system, files, outside, found)
        if isinstance(system, CclBench):
            try:
                rows = system.rows()
            except DataUnavailableError:
                rows = {}
            for name, value in rows.items():
                found.put(name, value)
        return found

    def _planted(self, system: TraceAnalyser, seed: int, outside: str, found: Measurements) -> None:
        made = [planted(percent, seed) for percent in OVERLAPS]
        with tempfile.TemporaryDirectory(prefix="wavetank-planted-") as folder:
            files = [each.write(Path(folder) / f"{percent}.json") for percent, each in zip(OVERLAPS, made, strict=True)]
            said = answers(system, files, outside=outside)
        worst = 0.0
        for percent, each, answer in zip(OVERLAPS, made, said, strict=True):
            for share in SHARED:
                off = _NOT_SAID_POINTS
                if share in answer.shares:
                    off = 100 * abs(answer.shares[share] - each.truth[share])
                found.put("error_points", off, share=share, hidden=f"{percent} %")
                worst = max(worst, off)
        found.put("error_points", worst)

    def _public(self, system: TraceAnalyser, files: tuple[Path, ...], outside: str, found: Measurements) -> None:
        said = _of_files(system, files, outside)  # type: ignore[arg-type]
        found.put("answered", sum(len(each.shares) for each in said))
        if not outside or isinstance(system, HolisticTraceAnalysis):
            return
        theirs = _of_files(HolisticTraceAnalysis(), files, outside)
        worst = 0.0
        for name, mine, other in zip(TRACES, said, theirs, strict=True):
            for share in sorted(set(mine.shares) & set(other.shares)):
                # Beside a share of nothing any other is wholly wrong.
                off = 100 * min(abs(ratio(mine.shares[share], other.shares[share]) - 1), _WHOLLY)
                found.put("difference_percent", off, trace=name, share=share)
                worst = max(worst, off)
        found.put("difference_percent", worst)

    def _files(self) -> tuple[Path, ...]:
        try:
            return tuple(datasets.find(DATA_SET, f"{name}.json.gz") for name in TRACES)
        except DataUnavailableError:
            return ()
