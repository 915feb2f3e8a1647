"""Study ``rank-failures``: how long a server of experts says nothing when ranks die, and what it says then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.interface import Rates
from wavetank.serving.rank_failures.modelled import WideInstance
from wavetank.serving.rank_failures.small_model import Shape
from wavetank.serving.rank_failures.trials import Outcome, many_faults, one_fault, step_times
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial


@dataclass(frozen=True, kw_only=True)
class RankFailures(Study):
    """Processes of this machine serve a small mixture of experts over shared memory, and some of them are killed at one
    moment. Each answer is held against that of one process alone, token by token. Beside it, a model of many
    accelerators adds up what each way to recover has to load, over which link, and the times that are assumed for
    processes, groups and graphs. Measured and modelled figures are different metrics.
    """

    name: ClassVar[str] = "rank-failures"
    baseline: ClassVar[str] = "full-restart"
    primary: ClassVar[str] = "pause_s"
    secondary: ClassVar[tuple[str, ...]] = ("wrong_answers", "copied_experts", "modelled_pause_s")
    must_be_zero: ClassVar[tuple[str, ...]] = ("lost_answers", "hung", "moved_tables")
    in_process: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("pause_s", "s", "lower", "measured", "from the kill until a token comes that was computed after it",
               words="pause"),
        Metric("everybody_s", "s", "lower", "measured", "from the kill until each request has had a token that was "
               "computed after it, those of dead ranks included", words="until all go on"),
        Metric("wrong_answers", "answers", "lower", "counted", "answers with a token that one process alone does not "
               "say", words="wrong answers"),
        Metric("lost_answers", "answers", "lower", "counted", "answers that did not get all their tokens",
               words="lost answers"),
        Metric("hung", "", "lower", "counted", "faults after which answers did not end within a minute", table=False),
        Metric("copied_experts", "experts", "lower", "counted", "experts whose weights survivors loaded",
               words="experts loaded"),
        Metric("kills", "processes", "", "counted", "processes that were killed", table=False),
        Metric("moved_tables", "", "lower", "counted", "tables of a rank whose place in memory changed", table=False),
        Metric("step_s", "s", "lower", "measured", "a step without faults: with tables and a look for faults, with "
               "constants and that look (group-restart), or with constants alone (full-restart); median over rounds in "
               "turns, of the slowest rank", words="time of a step"),
        Metric("modelled_pause_s", "s", "lower", "modelled", "from a fault of a wide instance until tokens come again",
               words="modelled pause"),
        Metric("modelled_downtime_s", "s", "lower", "modelled", "that pause and the one in which replacements are "
               "taken in", words="modelled pauses"),
        Metric("modelled_recovered_s", "s", "lower", "modelled", "from the fault until 95 % of the throughput before, "
               "taken as the share of ranks", words="modelled time to 95 %"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Pause of real processes after a kill", y="pause_s", log="y", says="Shorter goes on sooner."),
        Chart("bars", "Wrong answers after a kill", y="wrong_answers",
              says="Counted; experts that nobody has make answers wrong where tokens do without them."),
        Chart("bars", "Modelled pause of a wide instance", y="modelled_pause_s", log="y",
              says="From bytes, rates and assumed times of processes, groups and graphs; shorter goes on sooner."),
    )  # fmt: skip

    ranks: int = setting(4, unit="ranks", says="Real processes", low=2, high=16)
    failed: int = setting(2, unit="ranks", says="Ranks that are killed at one moment, next to each other", low=1,
                          high=15)  # fmt: skip
    replicas: int = setting(2, says="Replicas of each expert, on ranks next to each other", low=1, high=16)
    experts: int = setting(8, says="Experts of each of two layers", low=1, high=64)
    requests: int = setting(8, unit="requests", says="Requests under way", low=1, high=256)
    tokens: int = setting(64, unit="tokens", says="Tokens of an answer", low=8, high=100_000)
    timeout_s: float = setting(1.0, unit="s", says="Silence after which a rank is taken for dead", low=0.05, high=600)
    kills: int = setting(0, says="Processes to kill, one to all but one at a time, at drawn points of steps, "
                         "repairs and rejoins; 0: one fault", low=0, high=100_000)  # fmt: skip
    rounds: int = setting(16, says="Rounds in which steps are timed, per seed; 0: none", low=0, high=1000)
    wide_ranks: int = setting(32, unit="ranks", says="Accelerators of the modelled instance", low=2, high=1024)
    wide_failed: int = setting(1, unit="ranks", says="Accelerators that it loses", low=1, high=1023)
    start_s: float = setting(30.0, unit="s", says="Assumed: start of a process, libraries, device", low=0, high=3600)
    capture_s: float = setting(30.0, unit="s", says="Assumed: capture of a rank's graphs", low=0, high=3600)
    group_s: float = setting(20.0, unit="s", says="Assumed: to make the group of all ranks", low=0, high=3600)
    disk_gb_per_s: float = setting(2.0, says="GB/s that a host reads weights from the disk with", low=0.01, high=1000)

    def check(self) -> None:
        """Refuse faults that nobody survives, and replicas that would share a rank."""
        for failed, ranks, name in ((self.failed, self.ranks, "failed"),
                                    (self.wide_failed, self.wide_ranks, "wide_failed")):  # fmt: skip
            if failed >= ranks:
                raise BadValueError("A fault that nobody survives is not repaired.", given=failed,
                                    allowed=f"less than {ranks} ranks", where=name)  # fmt: skip
        if self.replicas > min(self.ranks, self.wide_ranks):
            raise BadValueError("Replicas of an expert are on different ranks.", given=self.replicas,
                                allowed=f"at most {min(self.ranks, self.wide_ranks)}", where="replicas")  # fmt: skip
        self.shape()

    def shape(self) -> Shape:
        """Return the real model."""
        return Shape(experts=self.experts, choices=min(2, self.experts))

    def wide(self) -> WideInstance:
        """Return the modelled instance."""
        return WideInstance(
            ranks=self.wide_ranks, failed=self.wide_failed, replicas=self.replicas, detect_s=self.timeout_s,
            rates=Rates(disk_bytes_per_s=round(self.disk_gb_per_s * 1e9)), start_s=self.start_s,
            capture_s=self.capture_s, group_s=self.group_s,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "The model is small: a real restart is the start of Python and numba, not the loading of weights.",
            "The end of a killed process is noticed at once; the modelled instance waits for a time-out.",
            "A modelled restart reads all weights of each rank from the disk; a page cache would spare replicas.",
            "Modelled pauses contain assumed times of processes, groups and graphs: start_s, group_s, capture_s.",
        )

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial for each seed: all systems meet the same fault, and steps are timed in turns."""
        return [Trial(systems=tuple(systems), seed=seed) for seed in seeds]

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Let each system meet the fault of a seed."""
        times = self._times()
        records: list[Record] = []
        for name, system in built.items():
            found = self.figures(system, trial.seed)
            if times:
                found.put("step_s", times[system.build])
            records.extend(self.stamp(name, trial.seed, found))
        return records

    def _times(self) -> dict[str, float]:
        if not self.rounds:
            return {}
        return step_times(self.shape(), ranks=2, rounds=self.rounds, steps=60, requests=8,
                          replicas=min(2, self.replicas))  # fmt: skip

    def figures(self, system: Any, seed: int) -> Measurements:
        """Return the figures of one system.

        Parameters
        ----------
        system : PartialRecovery, FullRestart, MaskOnly or GroupRestart
        seed : int
        """
        settings = {
            "ranks": self.ranks, "replicas": system.replicas or self.replicas, "repair": system.repair,
            "host": system.host, "timeout_s": self.timeout_s,
        }  # fmt: skip
        if self.kills:
            outcome = many_faults(settings, shape=self.shape(), seed=seed, kills=self.kills, requests=self.requests,
                                  count=self.tokens)  # fmt: skip
        else:
            outcome = one_fault(settings, shape=self.shape(), seed=seed, failed=self.failed, requests=self.requests,
                                count=self.tokens)  # fmt: skip
        found = self._counted(outcome)
        downtime = system.downtime(self.wide())
        if math.isfinite(downtime.pause_s):
            found.put("modelled_pause_s", downtime.pause_s)
            found.put("modelled_downtime_s", downtime.pause_s + downtime.rejoin_s)
            found.put("modelled_recovered_s", downtime.recovered_s)
        return found

    def _counted(self, outcome: Outcome) -> Measurements:
        found = Measurements()
        if outcome.pause_s:
            found.put("pause_s", outcome.pause_s[0])
            found.put("everybody_s", outcome.whole_s[0])
        found.put("wrong_answers", outcome.wrong)
        found.put("lost_answers", outcome.lost)
        found.put("hung", outcome.hung)
        found.put("copied_experts", outcome.copied)
        found.put("kills", outcome.kills)
        if self.kills:
            found.put("moved_tables", outcome.moved)
        return found
