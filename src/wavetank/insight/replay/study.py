"""Study ``trace-replay``: replays of collected traces against real steps, and generated traces against their source."""

from __future__ import annotations

import functools
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import missing_extra
from wavetank.insight.replay.collect import AS_IS, CHANGES, RANKS, collect, step_name
from wavetank.insight.replay.convert import from_pytorch, read_profile, step_span
from wavetank.insight.replay.generator import likeness
from wavetank.insight.replay.interface import CollectedStep
from wavetank.insight.replay.planted import planted_job
from wavetank.live.ranks import run_ranks
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads.chakra import read_trace_file

_NS_PER_S = 1e9
# Of times of one thing: the machine has other work, which only ever makes them longer.
QUIET = 0.25
_LIMIT_S = 600.0
# A source of as many calls as a small job makes in some steps.
_SOURCE_CALLS = 400
_SOURCE_RANKS = 4
_BLUR = 0.2


@dataclass(frozen=True, kw_only=True)
class TraceReplay(Study):
    """Two processes train, recorded by torch's observers.  Rank 1 prepares its rows while rank 0 waits; a step runs as
    it is, with rank 0 held up, and with rank 1 held up, in turns.  From the records of steps as they are, every system
    says how long the others take: lower quartiles over turns are compared, watched on both sides:
    others on the machine only make a step longer.

    Generated traces are held against planted sources whose kinds, sizes and names are known.
    """

    name = "trace-replay"
    baseline = "recorded-durations"
    primary = "what_if_error"
    secondary = ("replay_error",)
    exact = True
    in_process = True
    default_seeds = 5
    metrics = (
        Metric(
            "what_if_error", "", "lower", "measured",
            "|lower quartile of predicted / of measured lengths of a step with a rank held up - 1|; by change, and the "
            "mean over changes",
            words="error of changed steps",
        ),
        Metric(
            "replay_error", "", "lower", "measured",
            "|replayed / recorded length of the same step - 1|, mean over recorded steps; 0 by definition where the "
            "recorded length is what is returned",
            words="error of the same steps",
        ),
        Metric("measured_s", "s", "", "measured", "lower quartile over turns, from the first begin to the last end",
               table=False),
        Metric("predicted_s", "s", "", "measured", "lower quartile over turns of what is predicted", table=False),
        Metric("spread", "", "", "measured", "|lower quartile of even / of odd turns - 1| of steps as they are",
               table=False),
        Metric("mix_p_value", "", "higher", "simulated",
               "chi-square test of the counts of kinds of communication in generated traces against their source's "
               "shares", words="p of the mix"),
        Metric("sizes_ks", "", "lower", "simulated",
               "largest distance between both distributions of bytes, over all calls", words="distance of sizes"),
        Metric("largest_sizes_ks", "", "lower", "simulated",
               "the same of the kind with the largest, of kinds with 30 calls and more on both sides", table=False),
        Metric("blurred_sizes_ks", "", "lower", "simulated",
               "as sizes_ks with frequent sizes moved by a fifth, so that they show no layer", table=False),
        Metric("names_kept", "names", "lower", "counted", "names of the source in what is generated"),
    )  # fmt: skip
    charts = (
        Chart("bars", "Error of steps with a rank held up", y="what_if_error", by="change",
              says="Shorter is nearer to the real step."),
    )  # fmt: skip

    width: int = setting(256, unit="numbers", says="Of a row of the model", low=8, high=8192)
    layers: int = setting(4, unit="layers", says="Of the model", low=1, high=64)
    rows: int = setting(64, unit="rows", says="Of a step, on each rank", low=1, high=1 << 16)
    prepare_s: float = setting(0.06, unit="s", says="How long rank 1 is busy before each step", low=0.0, high=10.0)
    delay_s: float = setting(0.04, unit="s", says="How long a rank is held up", low=1e-4, high=10.0)
    turns: int = setting(10, says="How often each kind of step runs", low=2, high=1000)

    def check(self) -> None:
        """Refuse a run without torch."""
        if importlib.util.find_spec("torch") is None:
            raise missing_extra("torch", "torch", needed_for="A real training step")

    def measure(self, system: Any, seed: int) -> Measurements:
        """Predict the steps of this seed, which run once for all systems, and generate where a system can."""
        found = Measurements()
        job = _job(self.width, self.layers, self.rows, self.prepare_s, self.turns, self.delay_s, seed)
        replayed = [system.step_s(step, 0, 0.0) / step.took_s for step in job.as_is]
        found.put("replay_error", float(np.mean([abs(each - 1.0) for each in replayed])))
        errors = []
        for rank, change in enumerate(CHANGES):
            predicted_s = float(np.quantile([system.step_s(step, rank, self.delay_s) for step in job.as_is], QUIET))
            measured_s = float(np.quantile(job.changed_s[change], QUIET))
            errors.append(abs(predicted_s / measured_s - 1.0))
            found.put("what_if_error", errors[-1], change=change)
            found.put("predicted_s", predicted_s, change=change)
            found.put("measured_s", measured_s, change=change)
        found.put("what_if_error", float(np.mean(errors)))
        took = np.array([step.took_s for step in job.as_is])
        found.put("measured_s", float(np.quantile(took, QUIET)), change=AS_IS)
        found.put("spread", abs(float(np.quantile(took[::2], QUIET) / np.quantile(took[1::2], QUIET)) - 1.0))
        if hasattr(system, "generated"):
            _generate(system, seed, found)
        return found

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return ("Two processes with gloo on loopback, one thread each; the other load of the machine is in all steps.",)


def _generate(system: Any, seed: int, found: Measurements) -> None:
    source, names = planted_job(seed, calls=_SOURCE_CALLS, ranks=_SOURCE_RANKS)
    made = system.generated(source, seed)
    near = likeness(source, made)
    found.put("mix_p_value", near.p_value)
    found.put("sizes_ks", near.ks)
    found.put("largest_sizes_ks", near.largest_ks)
    content = b"".join(trace.content() for trace in made)
    found.put("names_kept", float(sum(name.encode() in content for name in names)))
    blurred = likeness(source, type(system)(blur=_BLUR).generated(source, seed))
    found.put("blurred_sizes_ks", blurred.ks)


class _Job(NamedTuple):
    as_is: Sequence[CollectedStep]
    changed_s: Mapping[str, Sequence[float]]


@functools.lru_cache(maxsize=2)
def _job(
    width: int, layers: int, rows: int, prepare_s: float, turns: int, delay_s: float, seed: int
) -> _Job:  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="wavetank-replay-") as folder:
        arguments = {
            "folder": folder, "width": width, "layers": layers, "rows": rows, "prepare_s": prepare_s,
            "turns": turns, "delay_s": delay_s,
            "seed": seed,
        }  # fmt: skip
        run_ranks(collect, RANKS, arguments=arguments, timeout_s=_LIMIT_S)
        hosts = [read_trace_file(Path(folder) / f"host.{rank}.json") for rank in range(RANKS)]
        profiles = [read_profile(Path(folder) / f"device.{rank}.json") for rank in range(RANKS)]
    as_is: list[CollectedStep] = []
    changed_s: dict[str, list[float]] = {change: [] for change in CHANGES}
    for turn in range(turns):
        for change in (AS_IS, *CHANGES):
            name = step_name(change, turn)
            spans = [step_span(profile, name) for profile in profiles]
            since_ns = min(begin for begin, _ in spans)
            took_s = (max(end for _, end in spans) - since_ns) / _NS_PER_S
            if change != AS_IS:
                changed_s[change].append(took_s)
                continue
            traces = [
                from_pytorch(host, profile, step=name, since_ns=since_ns)
                for host, profile in zip(hosts, profiles, strict=True)
            ]
            as_is.append(CollectedStep(traces, took_s))
    return _Job(as_is, changed_s)
