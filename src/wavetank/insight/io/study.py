"""Study ``io-diagnosis``: which diagnosis of I/O logs finds what costs time, and little else."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from wavetank.diagnosis.findings import unsupported
from wavetank.diagnosis.scoreboard import Counts, interval, label_counts, macro_f1, micro
from wavetank.insight.io.diagnose import IoAgent
from wavetank.insight.io.drishti import Drishti
from wavetank.insight.io.forgetful import ForgettingMerge
from wavetank.insight.io.labels import KINDS, kind
from wavetank.insight.io.planted import PlantedTrace, Servers, make_traces
from wavetank.insight.io.quantities import DarshanSource
from wavetank.insight.io.rivals import FlatAgent
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads.darshan import DarshanLog

_STRENGTHS = ((0.0, 0.03), (0.03, 0.1), (0.1, 0.3), (0.3, 1.01))
_GAINS = ((-10.0, 0.01), (0.01, 0.05), (0.05, 0.1), (0.1, 0.3), (0.3, 10.0))
_CACHED = 12
_DONE = 0.1


class IoDiagnosis(Protocol):
    """What the study asks of a system."""

    def fitted(self, logs: Sequence[DarshanLog], kinds: Sequence[frozenset[str]]) -> IoDiagnosis:
        """Return itself, or itself with what it learned from logs whose issues are known."""
        ...

    def said(self, log: DarshanLog) -> frozenset[str]:
        """Return the kinds of issues that it reports for a log."""
        ...


@functools.lru_cache(maxsize=_CACHED)
def _traces(seed: int, tuning: int, held_out: int, servers: Servers) -> tuple[tuple[PlantedTrace, ...], ...]:
    first, second = make_traces(seed, tuning=tuning, held_out=held_out, servers=servers)
    return tuple(first), tuple(second)


def _done(trace: PlantedTrace) -> frozenset[str]:
    """Return the kinds that a program has by what it does: no model of time, and no threshold of a system."""
    return frozenset(name for name, strength in trace.planted.items() if strength >= _DONE)


@functools.lru_cache(maxsize=_CACHED)
def _tuned_rules(seed: int, tuning: int, held_out: int, servers: Servers, *, done: bool = False) -> Drishti:
    first, _ = _traces(seed, tuning, held_out, servers)
    true = [_done(each) if done else each.kinds for each in first]
    return Drishti(fits=True).fitted([each.log for each in first], true)


@dataclass(frozen=True, kw_only=True)
class IoDiagnosisStudy(Study):
    """Logs of planted programs, some healthy, some with issues, some with what only looks like one.  An issue is true
    where the model of the file system says that removing it saves more than 5 % of the I/O time.  Thresholds and trees
    are fitted on nine families of programs and judged on three others; the seed draws both.
    """

    name: ClassVar[str] = "io-diagnosis"
    baseline: ClassVar[str] = "drishti"
    primary: ClassVar[str] = "f1"
    secondary: ClassVar[tuple[str, ...]] = ("precision", "recall", "healthy_alarms")
    must_be_zero: ClassVar[tuple[str, ...]] = ("unsupported",)
    metrics = (
        Metric("f1", "", "higher", "simulated", "micro F1 of kinds of issues on held-out families", words="F1"),
        Metric("precision", "", "higher", "simulated", "share of reported kinds that are true"),
        Metric("recall", "", "higher", "simulated", "share of true kinds that are reported"),
        Metric("f1_low", "", "", "simulated", "2.5 % point of F1, bootstrap over traces", words="lower end of F1"),
        Metric("f1_high", "", "", "simulated", "97.5 % point of F1, bootstrap over traces", words="upper end of F1"),
        Metric("precision_low", "", "", "simulated", "2.5 % point of precision, bootstrap over traces",
               words="lower end of precision"),
        Metric("precision_high", "", "", "simulated", "97.5 % point of precision, bootstrap over traces",
               words="upper end of precision"),
        Metric("planted_f1", "", "higher", "simulated", "F1 over planted kinds, by the share of requests affected",
               words="F1 of planted kinds"),
        Metric("planted_true", "", "", "simulated", "share of planted kinds that cost enough to count",
               words="planted kinds that count"),
        Metric("reported_share", "", "", "simulated", "kinds that are reported, by the share of I/O time they cost",
               words="reported kinds"),
        Metric("done_f1", "", "higher", "simulated",
               "micro F1 where what was planted in a tenth of the requests or more is true, whatever it costs; systems "
               "are fitted to that", words="F1 of what programs do"),
        Metric("macro_f1", "", "higher", "simulated", "mean F1 of the kinds that occur", words="mean F1 of kinds"),
        Metric("over_tuned", "", "higher", "simulated", "F1 / F1 of Drishti's rules with fitted thresholds",
               words="F1 over tuned Drishti"),
        Metric("over_tuned_low", "", "", "simulated", "2.5 % point of that ratio, bootstrap over traces",
               words="lower end of F1 over tuned Drishti"),
        Metric("healthy_alarms", "", "lower", "simulated", "kinds reported for a trace in which none is true, mean",
               words="false kinds for a healthy trace"),
        Metric("decoy_alarms", "", "lower", "simulated", "the same for traces with what only looks like an issue",
               words="false kinds for a decoy"),
        Metric("unsupported", "", "lower", "counted", "statements of reports that do not recompute from the log",
               words="unsupported statements"),
        Metric("cited_share", "", "higher", "simulated", "findings, notes left out, with a passage of knowledge",
               words="cited findings"),
        Metric("kept_share", "", "higher", "simulated",
               "issues of 32 fragments that a forgetful model still has at the end", words="issues kept"),
    )  # fmt: skip
    charts = (
        Chart("bars", "F1 on families that nothing was fitted to", y="f1", says="Longer is better."),
        Chart("pareto", "Precision against recall", x="recall", y="precision", says="Up and to the right is better."),
        Chart("sweep", "As issues become stronger", y="planted_f1", by="strength", log="x",
              says="A curve that is high on the left would mean that the labels leak."),
        Chart("sweep", "Reported, as issues cost more", y="reported_share", by="saves", log="x",
              says="What costs less than 5 % should not be reported, what costs more should."),
        Chart("sweep", "As requests take the servers longer", y="f1", by="slower", log="x",
              says="Where the model of the file system moves away from the rule of thumb."),
        Chart("sweep", "Issues that a forgetful model keeps", y="kept_share", by="summary", log="x",
              says="Short summaries favour the tree, long ones a flat prompt."),
    )  # fmt: skip

    tuning: int = setting(150, unit="traces", says="Of nine families, to fit with", low=20, high=10_000)
    held_out: int = setting(50, unit="traces", says="Of three other families, to judge with", low=10, high=10_000)
    slower: tuple[float, ...] = setting(
        (0.25, 4.0), says="Further factors on latency, seeks and locks of the servers", low=0.01, high=100.0
    )
    summaries: tuple[int, ...] = setting(
        (1, 2, 4, 8), unit="lines", says="Lengths of summaries for the forgetful model", low=1, high=100
    )
    rounds: int = setting(500, says="Draws of the bootstrap", low=10, high=100_000)
    repeats: int = setting(40, says="Merges by the forgetful model", low=1, high=100_000)

    def opening(self) -> tuple[str, ...]:
        """Return what is compared."""
        return (
            f"{self.tuning} planted traces of nine families to fit with, {self.held_out} of three others to judge "
            "with; kinds of issues, reads and writes together, since Drishti does not hold them apart everywhere.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Truth comes from a model of latency and bandwidth, and so does the rule of thumb of io-agent: real file "
            "systems differ from both. What a program does (done_f1) needs no such model.",
            "Drishti's rules are those of release 0.8 in our words; tests hold them against the program on real logs.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Fit a system on a seed's tuning traces and judge it on the held-out ones."""
        found = Measurements()
        base = Servers()
        fitted = self._fitted(system, seed, base)
        _, traces = _traces(seed, self.tuning, self.held_out, base)
        truth = [each.kinds for each in traces]
        said = [fitted.said(each.log) for each in traces]
        counts = _micro(truth, said)
        found.put("f1", _number(counts.f1))
        found.put("precision", _number(counts.precision))
        found.put("recall", _number(counts.recall))
        found.put("macro_f1", _number(macro_f1(label_counts(truth, said, KINDS))))
        for metric in ("f1", "precision"):

            def score(at: Any, name: str = metric) -> float:
                return float(getattr(_chosen(truth, said, at), name))

            low, high = interval(len(traces), score, seed=seed, rounds=self.rounds)
            found.put(f"{metric}_low", _number(low))
            found.put(f"{metric}_high", _number(high))
        tuned = _tuned_rules(seed, self.tuning, self.held_out, base)
        theirs = [tuned.said(each.log) for each in traces]
        found.put("over_tuned", counts.f1 / max(_number(_micro(truth, theirs).f1), 1e-9))

        def ratio(at: Any) -> float:
            return _chosen(truth, said, at).f1 / max(_number(_chosen(truth, theirs, at).f1), 1e-9)

        found.put("over_tuned_low", _number(interval(len(traces), ratio, seed=seed, rounds=self.rounds)[0]))
        for metric, chosen in (
            ("healthy_alarms", [not each.truth for each in traces]),
            ("decoy_alarms", [each.decoy for each in traces]),
        ):
            wrong = [len(heard - true) for heard, true, of in zip(said, truth, chosen, strict=True) if of]
            found.put(metric, float(np.mean(wrong)) if wrong else 0.0)
        for low, high in _STRENGTHS:
            planted = [
                (name in true, name in heard)
                for true, heard, each in zip(truth, said, traces, strict=True)
                for name, strength in each.planted.items()
                if low <= strength < high
            ]
            if any(true for true, _ in planted):
                right = sum(true and heard for true, heard in planted)
                extra = sum(heard and not true for true, heard in planted)
                missed = sum(true and not heard for true, heard in planted)
                found.put("planted_f1", Counts(right, extra, missed).f1, strength=min(high, 1.0))
                found.put("planted_true", (right + missed) / len(planted), strength=min(high, 1.0))
        for low, high in _GAINS:
            reported = [
                name in report
                for each, report in zip(traces, said, strict=True)
                for name in KINDS
                if low <= max(gain for code, gain in each.gains.items() if kind(code) == name) < high
            ]
            if reported:
                found.put("reported_share", sum(reported) / len(reported), saves=min(high, 1.0))
        done = self._fitted(system, seed, base, done=True)
        found.put(
            "done_f1", _number(_micro([_done(each) for each in traces], [done.said(each.log) for each in traces]).f1)
        )
        for factor in self.slower:
            found.put("f1", self._f1_with(system, seed, factor), slower=factor)
        found.put("f1", _number(counts.f1), slower=1.0)
        if isinstance(fitted, IoAgent):
            self._reports(fitted, traces, found)
            for lines in self.summaries:
                merge = ForgettingMerge(summary=lines, flat=isinstance(fitted, FlatAgent))
                draws = stream(seed, "forgetful", lines)
                found.put("kept_share", float(np.mean([merge.kept(draws) for _ in range(self.repeats)])), summary=lines)
        return found

    def _fitted(self, system: Any, seed: int, servers: Servers, *, done: bool = False) -> Any:
        if isinstance(system, Drishti) and system == Drishti(fits=True):
            return _tuned_rules(seed, self.tuning, self.held_out, servers, done=done)
        first, _ = _traces(seed, self.tuning, self.held_out, servers)
        return system.fitted([each.log for each in first], [_done(each) if done else each.kinds for each in first])

    def _f1_with(self, system: Any, seed: int, factor: float) -> float:
        base = Servers()
        servers = replace(
            base, request_s=base.request_s * factor, seek_s=base.seek_s * factor, lock_s=base.lock_s * factor,
            round_trip_s=base.round_trip_s * factor, metadata_s=base.metadata_s * factor,
        )  # fmt: skip
        _, traces = _traces(seed, self.tuning, self.held_out, servers)
        fitted = self._fitted(system, seed, servers)
        return _number(_micro([each.kinds for each in traces], [fitted.said(each.log) for each in traces]).f1)

    def _reports(self, system: IoAgent, traces: Sequence[PlantedTrace], found: Measurements) -> None:
        wrong, cited, findings = 0, 0, 0
        for each in traces:
            report = system.diagnosed(DarshanSource.of(each.log), "log")
            wrong += len(unsupported(report, DarshanSource.of(each.log)))
            graver = [finding for finding in report.findings if finding.severity != "note"]
            findings += len(graver)
            cited += sum(len(finding.sources) > 1 for finding in graver)
        found.put("unsupported", wrong)
        found.put("cited_share", cited / findings if findings else 0.0)


def _micro(truth: Sequence[frozenset[str]], said: Sequence[frozenset[str]]) -> Counts:
    return micro(label_counts(truth, said, KINDS))


def _chosen(truth: Sequence[frozenset[str]], said: Sequence[frozenset[str]], at: Any) -> Counts:
    right = wrong = missed = 0
    for index in at:
        true, heard = truth[index], said[index]
        both = len(true & heard)
        right, wrong, missed = right + both, wrong + len(heard) - both, missed + len(true) - both
    return Counts(right, wrong, missed)


def _number(value: float) -> float:
    """Return a score, 0 where there is none: nothing was said and nothing is true."""
    return value if value == value else 0.0
