"""Study ``collective-faults``: who names the rank that makes a collective slow or hang, in simulated jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from wavetank.diagnosis.scoreboard import label_counts, macro_f1
from wavetank.errors import BadValueError
from wavetank.insight.collectives.interface import FAULTS, FaultFinder, Verdict, Window
from wavetank.insight.collectives.job_model import Job, Planted, drawn_fault, simulated
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

HEALTHY = "healthy"
# A class counts as located when this share of its faults or more is named by class and ranks.
_LOCATED_SHARE = 0.95
_TIMED_REPLICAS = (16, 32, 62, 125)
_REPEATS = 3
_PATIENT_S = 0.2
_SHIFT_S = 1e5


@dataclass(frozen=True, kw_only=True)
class CollectiveFaults(Study):
    """In simulated jobs of tensor-parallel groups and data-parallel rings one fault is planted at a time: a rank that
    does not come, calls something else or stands still, a link that breaks, a rank that computes or transfers slowly,
    or both.  All see the same frames of a window: counters, and times by clocks that are seconds apart.  Lengths of
    sequences make somebody else late each time; in healthy windows checkpoints are written for up to four minutes.
    """

    name: ClassVar[str] = "collective-faults"
    baseline: ClassVar[str] = "duration-threshold"
    primary: ClassVar[str] = "rank_accuracy"
    secondary: ClassVar[tuple[str, ...]] = ("class_accuracy", "false_alarm_share", "analysis_ms")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("rank_accuracy", "", "higher", "counted",
               "share of faults of which exactly the planted ranks are named, all classes alike", words="ranks named"),
        Metric("class_accuracy", "", "higher", "counted", "share of faults whose class is said",
               words="classes said"),
        Metric("classes_located", "classes", "higher", "counted",
               f"classes of which class and ranks are right in {_LOCATED_SHARE:.0%} of the faults or more",
               words="classes located"),
        Metric("false_alarm_share", "", "lower", "counted", "share of healthy windows in which a fault is said",
               words="false alarms"),
        Metric("victims_named_share", "", "lower", "counted",
               "share of hangs in which a rank is named that is not at fault; nearly all block several communicators",
               words="victims named"),
        Metric("macro_f1", "", "higher", "counted", "mean of the F1 of the six classes, healthy windows among cases",
               words="F1"),
        Metric("rank_accuracy_at", "", "higher", "counted", "the same by class", table=False, words="ranks named"),
        Metric("class_accuracy_at", "", "higher", "counted", "the same by class", table=False, words="classes said"),
        Metric("said_share", "", "", "counted", "what is said of the windows of a class, as shares", table=False,
               words="share said"),
        Metric("changed_by_clocks", "", "lower", "counted",
               f"share of windows of which something else is said when clocks are up to {_SHIFT_S:g} s off",
               words="answers that change with clocks"),
        Metric("slow_found_at", "", "higher", "counted",
               "share of slow transfers that are named by class and rank, by how many times slower they are",
               table=False, words="slow transfers found"),
        Metric("late_found_at", "", "higher", "counted",
               "share of late ranks that are named by class and rank, by the spread of clocks", table=False,
               words="late ranks found"),
        Metric("analysis_ms", "ms", "lower", "measured",
               "processor time for a window of 4,000 ranks, slow or hanging; not taken where a hang of 512 takes 0.2 s",
               words="time of an analysis"),
        Metric("analysis_at_ms", "ms", "lower", "measured", "processor time for a slow window by ranks", table=False,
               words="time of an analysis"),
        Metric("analysis_growth", "", "lower", "measured",
               "processor time for each rank of 4,000 / that of 512, slow windows; 1 is linear", words="growth"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Faults of which the rank is named", y="rank_accuracy_at", by="fault", says="1 is all."),
        Chart("sweep", "Slow transfers found", y="slow_found_at", by="factor", log="x",
              says="The paper's threshold is near 3."),
        Chart("sweep", "Late ranks found by the spread of clocks", y="late_found_at", by="clocks_s",
              says="Counters do not depend on clocks."),
        Chart("sweep", "Time of an analysis", y="analysis_at_ms", by="ranks", log="xy", says="Linear is a slope of 1."),
    )  # fmt: skip

    replicas: int = setting(16, unit="replicas", says="Data-parallel replicas of 32 ranks; 125 give 4,000 ranks", low=2,
                            high=1000)  # fmt: skip
    anomalies: int = setting(6, says="Faults of each class", low=1, high=1_000_000)
    healthy: int = setting(40, unit="windows", says="Healthy windows", low=1, high=10_000_000)
    strengths: tuple[float, ...] = setting(
        (1.1, 1.5, 2.0, 2.5, 3.0, 3.5, 5.0, 10.0), says="How many times slower transfers are, swept", low=1.0,
        high=1000.0,
    )  # fmt: skip
    swept: int = setting(3, says="Faults at each strength, and at each spread of clocks", low=1, high=1_000_000)
    clocks: tuple[float, ...] = setting((0.0, 0.003, 0.03, 1.0), unit="s", says="Spreads of clocks, swept", low=0.0,
                                        high=1e6)  # fmt: skip
    clocks_s: float = setting(1.0, unit="s", says="Spread of clocks everywhere else", low=0.0, high=1e6)
    lengths: float = setting(0.3, says="Spread of the logarithm of a replica's lengths", low=0.0, high=2.0)
    noise: float = setting(0.05, says="Spread of the logarithm of each time", low=0.0, high=1.0)
    congested: float = setting(0.01, says="Share of transfers that something else slows down", low=0.0, high=1.0)
    weakest: float = setting(3.3, says="Least factor of slow transfers but in the sweep", low=1.0, high=1000.0)
    strongest: float = setting(10.0, says="Largest one", low=1.0, high=1000.0)
    timed: bool = setting(True, says="Measure the time of an analysis up to 4,000 ranks")

    def check(self) -> None:
        """Refuse a range of strengths that is none."""
        if self.weakest > self.strongest:
            raise BadValueError("The weakest fault is stronger than the strongest.",
                                given=(self.weakest, self.strongest), where=f"study {self.name}")  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            f"Jobs of {self.job().ranks} ranks; slow transfers are {self.weakest:g} to {self.strongest:g} times "
            "slower, evenly in the logarithm, above all thresholds: the sweep shows what weaker ones do.",
            "Transfers are steps at which sender and receiver meet; what probes count is exact.",
        )

    def job(self, replicas: int = 0) -> Job:
        """Return the layout.

        Parameters
        ----------
        replicas : int
            0: those of the study.
        """
        return Job(replicas=replicas or self.replicas, lengths=self.lengths, noise=self.noise, congested=self.congested)

    def planted(self, seed: int, fault: str, many: int) -> Iterator[tuple[Planted, Window]]:
        """Yield faults of a class, or healthy windows, with what probes say.

        Parameters
        ----------
        seed : int
        fault : str
            Empty for healthy windows.
        many : int
        """
        for number in range(many):
            draws = stream(seed, "window", fault, number)
            planted = drawn_fault(self.job(), fault, draws, (self.weakest, self.strongest))
            # Healthy windows may have a few operations only.
            turns = 3 if fault.startswith("H") else 8 if fault else int(draws.integers(1, 9))
            yield planted, simulated(self.job(), planted, draws, iterations=turns, clocks_s=self.clocks_s)

    def measure(self, system: FaultFinder, seed: int) -> Measurements:
        """Ask about planted faults and healthy windows."""
        found = Measurements()
        truth, said = list[set[str]](), list[set[str]]()
        named, classes, located, victims = list[float](), list[float](), 0, list[bool]()
        moved = list[bool]()
        for fault in FAULTS:
            answers = [
                (planted, self._asked(system, window, stream(seed, "clocks", fault, number), moved, number % 4 == 0))
                for number, (planted, window) in enumerate(self.planted(seed, fault, self.anomalies))
            ]
            ranks_right = [verdict.ranks == planted.ranks for planted, verdict in answers]
            class_right = [verdict.fault == fault for _, verdict in answers]
            both = [a and b for a, b in zip(ranks_right, class_right, strict=True)]
            located += float(np.mean(both)) >= _LOCATED_SHARE
            named.append(float(np.mean(ranks_right)))
            classes.append(float(np.mean(class_right)))
            found.put("rank_accuracy_at", named[-1], fault=fault)
            found.put("class_accuracy_at", classes[-1], fault=fault)
            _confusion(found, fault, [verdict for _, verdict in answers])
            truth += [{fault}] * len(answers)
            said += [{verdict.fault} - {""} for _, verdict in answers]
            if fault.startswith("H"):
                victims += [not set(verdict.ranks) <= set(planted.ranks) for planted, verdict in answers]
        healthy = [
            self._asked(system, window, stream(seed, "clocks", "", number), moved, number % 16 == 0)
            for number, (_, window) in enumerate(self.planted(seed, "", self.healthy))
        ]
        _confusion(found, HEALTHY, healthy)
        truth += [set()] * len(healthy)
        said += [{verdict.fault} - {""} for verdict in healthy]
        found.put("rank_accuracy", float(np.mean(named)))
        found.put("class_accuracy", float(np.mean(classes)))
        found.put("classes_located", located)
        found.put("false_alarm_share", float(np.mean([bool(verdict.fault) for verdict in healthy])))
        found.put("victims_named_share", float(np.mean(victims)))
        found.put("macro_f1", macro_f1(label_counts(truth, said, FAULTS)))
        found.put("changed_by_clocks", float(np.mean(moved)))
        self._sweeps(found, system, seed)
        if self.timed:
            self._times(found, system, seed)
        return found

    def _asked(
        self, system: FaultFinder, window: Window, draws: np.random.Generator, moved: list[bool], again: bool
    ) -> Verdict:
        """Return the answer, and note for some windows whether it is another one with other clocks."""
        verdict = system.find(window)
        if again:
            offsets = np.round(draws.uniform(-_SHIFT_S, _SHIFT_S, window.now_ns.size) * 1e9).astype(np.int64)
            moved.append(system.find(window.shifted(offsets)) != verdict)
        return verdict

    def _sweeps(self, found: Measurements, system: FaultFinder, seed: int) -> None:
        """Put slow transfers by strength, and late ranks by the spread of clocks."""
        for factor in self.strengths:
            right = [
                self._found(system, seed, "S2", f"factor {factor!r}", number, factor=factor, clocks_s=self.clocks_s)
                for number in range(self.swept)
            ]
            found.put("slow_found_at", float(np.mean(right)), factor=factor)
        for clocks_s in self.clocks:
            right = [
                self._found(system, seed, "S1", "clocks", number, factor=1.0, clocks_s=clocks_s)
                for number in range(self.swept)
            ]
            found.put("late_found_at", float(np.mean(right)), clocks_s=clocks_s)

    def _found(
        self, system: FaultFinder, seed: int, fault: str, purpose: str, number: int, *, factor: float, clocks_s: float
    ) -> bool:
        draws = stream(seed, "sweep", purpose, number)
        planted = replace(drawn_fault(self.job(), fault, draws), factor=factor)
        verdict = system.find(simulated(self.job(), planted, draws, clocks_s=clocks_s))
        return verdict.fault == fault and verdict.ranks == planted.ranks

    def _times(self, found: Measurements, system: FaultFinder, seed: int) -> None:
        taken, hang_s = dict[int, float](), 0.0
        for replicas in _TIMED_REPLICAS:
            job = self.job(replicas)
            draws = stream(seed, "timed", replicas)
            window = simulated(job, drawn_fault(job, "S2", draws), draws)
            taken[job.ranks] = _time_s(system, window)
            found.put("analysis_at_ms", 1e3 * taken[job.ranks], ranks=job.ranks)
            # Where a hang of few ranks takes long, one of 4,000 would take minutes.
            if replicas == _TIMED_REPLICAS[0] or (replicas == _TIMED_REPLICAS[-1] and hang_s < _PATIENT_S):
                hang_s = _time_s(system, simulated(job, drawn_fault(job, "H3", draws), draws, iterations=3))
        least, most = min(taken), max(taken)
        if hang_s < _PATIENT_S:
            found.put("analysis_ms", 1e3 * max(taken[most], hang_s))
        found.put("analysis_growth", taken[most] / most / (taken[least] / least))


def _time_s(system: FaultFinder, window: Window) -> float:
    times = []
    for _ in range(_REPEATS):
        # A window as new: what an analysis before has worked out is not kept.
        fresh = Window(window.frames, window.members, window.now_ns, window.trees)
        begin_s = time.process_time()
        system.find(fresh)
        times.append(time.process_time() - begin_s)
    return float(np.median(times))


def _confusion(found: Measurements, planted: str, verdicts: list[Verdict]) -> None:
    for said in (*FAULTS, HEALTHY):
        share = float(np.mean([(verdict.fault or HEALTHY) == said for verdict in verdicts]))
        if share:
            found.put("said_share", share, planted=planted, said=said)
