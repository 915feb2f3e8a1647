"""Study ``collective-faults-live``: faults that strike real processes, and what probes cost."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from wavetank.insight.collectives.ccl_d import CclD
from wavetank.insight.collectives.interface import FAULTS, FaultFinder
from wavetank.insight.collectives.live import Found, Strike, time_turns, watched
from wavetank.live.ranks import Ranks
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

_MB = 1 << 20
_MOST_TIMES = 16


@dataclass(frozen=True, kw_only=True)
class CollectiveFaultsLive(Study):
    """Four processes of this machine run ring and tree all-reduces of our own, with clocks that are seconds apart.  One
    of them is stopped before or inside an operation, calls something else, comes late, sends slowly, or both; its
    probes are read from outside.  All systems see the same frames.  Seeds draw the culprit and the form of the fault.
    """

    name: ClassVar[str] = "collective-faults-live"
    baseline: ClassVar[str] = "duration-threshold"
    primary: ClassVar[str] = "classes_located"
    secondary: ClassVar[tuple[str, ...]] = ("healthy_alarms",)
    in_process: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("classes_located", "classes", "higher", "counted",
               "of six: class and exactly the culprit are named, one fault of each class", words="classes located"),
        Metric("located", "", "higher", "counted", "the same by class, 1 or 0", table=False, words="faults located"),
        Metric("healthy_alarms", "", "lower", "counted", "faults said of a run without any", words="false alarms"),
        Metric("delay_s", "s", "lower", "measured",
               "from the last movement of any rank to the look at its frames, largest of the hangs; looks begin at the "
               "setting hang_s, and all systems judge the same frames", words="delay"),
        Metric("probe_time_ratio", "", "lower", "measured",
               "time of an all-reduce with probes / without, in turns, median of the rounds, by MB", table=False,
               words="time with probes"),
        Metric("probe_time_mean", "", "lower", "measured", "the same, geometric mean over the sizes",
               words="time with probes"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Faults located in real processes", y="located", by="fault", says="1 is located."),
        Chart("sweep", "Time with probes over time without", y="probe_time_ratio", by="mb", log="x", says="1 is free."),
    )

    ranks: int = setting(4, unit="processes", says="Processes, an even number", low=4, high=16)
    iterations: int = setting(12, says="Iterations of a run that comes through", low=12, high=100)
    hang_s: float = setting(1.0, unit="s", says="Standstill from which an operation hangs", low=0.1, high=300.0)
    sizes_mb: tuple[int, ...] = setting((1, 4, 16, 64), unit="MB", says="All-reduces that are timed with and without "
                                        "probes", low=1, high=1024)  # fmt: skip
    rounds: int = setting(
        8, says="Rounds of the largest size, with and without probes in turns; smaller ones get up to 16 times as many",
        low=2, high=1000,
    )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            f"Hangs are judged after {self.hang_s:g} s, not after five minutes; links are paced to 60 MB/s.",
            "Collectives are our own, in Python over TCP; probes of a library on a device cost something else.",
        )

    def measure(self, system: FaultFinder, seed: int) -> Measurements:
        """Strike with one fault of each class, and time probes where the system is CCL-D itself."""
        found, right, delays = Measurements(), 0, []
        finder = replace(system, hang_s=self.hang_s) if hasattr(system, "hang_s") else system  # type: ignore[type-var]
        for fault in FAULTS:
            seen = seen_of(self, fault, seed)
            verdict = finder.find(seen.window)
            culprit = _strike(self, fault, seed).rank
            located = verdict.fault == fault and verdict.ranks == (culprit,)
            right += located
            found.put("located", float(located), fault=fault)
            delays += [seen.delay_s] if fault.startswith("H") else []
        found.put("classes_located", right)
        found.put("healthy_alarms", float(bool(finder.find(seen_of(self, "", seed).window).fault)))
        found.put("delay_s", max(delays))
        if isinstance(system, CclD):
            ratios = probe_ratios(self, seed)
            for size, ratio in zip(self.sizes_mb, ratios, strict=True):
                found.put("probe_time_ratio", ratio, mb=size)
            found.put("probe_time_mean", float(np.exp(np.mean(np.log(ratios)))))
        return found


def _strike(study: CollectiveFaultsLive, fault: str, seed: int) -> Strike:
    draws = stream(seed, "strike", fault)
    rank = int(draws.integers(study.ranks))
    how = ("size", "op")[seed % 2] if fault == "H2" else ("sleep", "throttle")[seed % 2]
    return Strike(fault=fault, rank=rank, how=how)


@functools.lru_cache(maxsize=64)
def seen_of(study: CollectiveFaultsLive, fault: str, seed: int) -> Found:
    """Return what probes of real processes said of a fault; one run for all systems.

    Parameters
    ----------
    study : CollectiveFaultsLive
    fault : str
        Empty for none.
    seed : int
    """
    finder = CclD(hang_s=study.hang_s)
    strike = _strike(study, fault, seed)
    return watched(finder, strike, size=study.ranks, iterations=study.iterations, seed=seed, hang_s=study.hang_s)


def rounds_of(study: CollectiveFaultsLive) -> list[int]:
    """Return how often each size is timed: small ones more often, since they take less time and vary more.

    Parameters
    ----------
    study : CollectiveFaultsLive
    """
    largest = max(study.sizes_mb)
    return [study.rounds * min(_MOST_TIMES, largest // size) for size in study.sizes_mb]


@functools.lru_cache(maxsize=64)
def probe_ratios(study: CollectiveFaultsLive, seed: int) -> list[float]:
    """Return the time of an all-reduce with probes over that without, by size; probes are the same for all systems.

    Parameters
    ----------
    study : CollectiveFaultsLive
    seed : int
        Each is timed once.
    """
    with tempfile.TemporaryDirectory(prefix="wavetank-probes-") as folder:
        arguments: dict[str, Any] = {
            "folder": folder, "sizes": [size * _MB for size in study.sizes_mb], "rounds": rounds_of(study),
        }  # fmt: skip
        with Ranks(time_turns, 2, arguments=arguments, timeout_s=120.0) as ranks:
            rows = ranks.values(600.0)
    # An operation takes as long as its slowest rank.
    slowest = [np.max([rank[place] for rank in rows], axis=0) for place in range(len(study.sizes_mb))]
    return [float(np.median(each[:, 1] / each[:, 0])) for each in slowest]
