"""Study ``throttled-all-reduce``: sums over real processes whose connections are throttled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.compression.interface import Task
from wavetank.training.compression.live import sum_on_ranks
from wavetank.training.compression.quantise import scales_of
from wavetank.training.compression.workload import WORKLOADS, members

_BUCKET = 16384


@dataclass(frozen=True, kw_only=True)
class ThrottledAllReduce(Study):
    """Processes of this machine sum over loopback, whose connections are paced by the kernel.  Codecs run on the cores
    that the processes share with the network; nothing overlaps, as a part of these messages is one frame.  The median
    of some all-reduces after a first one counts, of the process that takes longest.
    """

    name: ClassVar[str] = "throttled-all-reduce"
    baseline: ClassVar[str] = "plain-ring"
    primary: ClassVar[str] = "time_s"
    secondary: ClassVar[tuple[str, ...]] = ("compression_ratio", "relative_error")
    in_process: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 3
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("time_s", "s", "lower", "measured", "one all-reduce on the slowest link"),
        Metric("compression_ratio", "", "higher", "counted", "bytes that a ring sends of numbers as they are / bytes "
               "that were sent on the slowest link"),
        Metric("relative_error", "", "lower", "counted", "norm of the error of the sum / norm of the sum",
               words="relative error"),
        Metric("error_over_bound", "", "lower", "counted", "largest error / (ranks * bound + half the spacing of "
               "single precision), of fields", words="error over its bound"),
        Metric("ranks_differ", "", "lower", "counted", "largest difference between the sums of two processes",
               table=False),
        Metric("time_by_link_s", "s", "lower", "measured", "one all-reduce, by bytes per second of each connection; "
               "0: no limit", table=False, words="time"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Time of an all-reduce", y="time_by_link_s", by="link_bytes_per_s", log="x",
              says="Shorter is faster; without a limit of the link codecs cost more than they save."),
    )  # fmt: skip

    workload: str = setting("u", says="Winds u and v or geopotential z of the atmosphere, or gradients",
                            choices=WORKLOADS)  # fmt: skip
    ranks: int = setting(2, unit="ranks", says="Processes", low=2, high=4)
    relative_bound: float = setting(
        1e-3, says="Bound of the error of one rank's number, over the spread of all", low=1e-7, high=0.5
    )
    levels: int = setting(127, says="Multiples of a unit at most, of gradients", low=1, high=1 << 20)
    links: tuple[float, ...] = setting((1e7, 1e8, 0.0), unit="bytes/s", says="Limits of connections; 0: none", low=0.0,
                                       high=4e9)  # fmt: skip
    repeats: int = setting(3, says="All-reduces on each link", low=1, high=1000)

    def check(self) -> None:
        """Refuse a sweep without a limit."""
        if not any(self.links):
            raise BadValueError("No link is limited.", given=self.links, allowed="one above 0 at least", where="links")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            f"{self.ranks} processes share the cores of this machine; a part of these messages is one frame, so that "
            "coding and sending do not overlap.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Sum the numbers of a seed on every link."""
        given = members(self.workload, self.ranks, seed)
        bound = self.relative_bound * given.spread
        levels = self.levels if self.workload == "gradients" else 0
        if levels:
            bound = float(np.mean([scales_of(each, _BUCKET) for each in given.values])) / levels
        task = Task(size=self.ranks, shape=given.shape, bound=bound, levels=levels, bucket=_BUCKET, seed=seed)
        outcome = sum_on_ranks(system, given.values, task, links=self.links, repeats=self.repeats, timeout_s=300.0)
        sums = [each for each, _, _ in outcome]
        exact = np.sum(given.values, axis=0, dtype=np.float64)
        found = Measurements()
        # An all-reduce is over when the last process has its sum.
        times = [
            float(np.median(np.max([seconds[i] for _, _, seconds in outcome], axis=0))) for i in range(len(self.links))
        ]
        slowest = min(range(len(self.links)), key=lambda i: self.links[i] or np.inf)
        found.put("time_s", times[slowest])
        sent = sum(bytes_sent[slowest] for _, bytes_sent, _ in outcome)
        found.put("compression_ratio", 2 * (self.ranks - 1) * given.values[0].nbytes / sent)
        apart = np.abs(sums[0] - exact)
        found.put("relative_error", float(np.linalg.norm(apart) / np.linalg.norm(exact)))
        if not levels:
            least = self.ranks * bound + np.spacing(np.abs(sums[0])) / 2.0
            found.put("error_over_bound", float(np.max(apart / least)))
        found.put("ranks_differ", max(float(np.abs(each - sums[0]).max()) for each in sums))
        for link, took_s in zip(self.links, times, strict=True):
            found.put("time_by_link_s", took_s, link_bytes_per_s=link)
        return found
