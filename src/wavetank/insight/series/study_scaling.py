"""Study ``series-scaling``: memory sizes chosen by forecasts, replayed on the latencies that every size then had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.insight.series import histories
from wavetank.insight.series.interface import Floats, Forecaster
from wavetank.insight.series.scaling import sizes_for
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets
from wavetank.workloads.series import Regular, regular

_DURATION = "avg_duration_ms"


@dataclass(frozen=True, kw_only=True)
class SeriesScaling(Study):
    """Every quarter the latency of a first call, cold start and handler, is forecast for each memory size of a
    function, and each day gets the cheapest size that is predicted to meet a target.  The data set has what every size
    did on each day, so that any choice can be replayed.  A seed stands for one runtime, as in ``series-forecast``.
    """

    name: ClassVar[str] = "series-scaling"
    baseline: ClassVar[str] = "last-value"
    primary: ClassVar[str] = "regret"
    secondary: ClassVar[tuple[str, ...]] = ("late", "cost")
    default_seeds: ClassVar[int] = 6
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("regret", "", "lower", "counted", "share of days with another size than perfect forecasts choose",
               words="days with another size than the best"),
        Metric("late", "", "lower", "counted", "share of days over the target", words="days over the target"),
        Metric("late_at_best", "", "", "counted", "the same with perfect forecasts", table=False),
        Metric("cost", "", "lower", "counted", "memory times latency / that with perfect forecasts", words="cost"),
        Metric("variation", "", "lower", "counted", "standard deviation of the latency / that of the largest size all "
               "the time", words="variability"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Days with another size than perfect forecasts choose", y="regret", says="Shorter is better."),
        Chart("pareto", "Cost and days over the target", x="cost", y="late", says="Below and left is better."),
    )  # fmt: skip

    slack: float = setting(1.1, says="Target / median latency of 256 MB over the first year", low=0.1,
                           high=100.0)  # fmt: skip
    first: int = setting(365, unit="days", says="Days before the first forecast", low=28, high=10**5)
    stride: int = setting(90, unit="days", says="Days of a forecast", low=1, high=1000)
    architecture: str = setting("x86_64", says="Of the functions", choices=("x86_64", "arm64"))

    def check(self) -> None:
        """Refuse to go on where the real histories are not here."""
        histories.observed()

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the real histories."""
        return {histories.DATA: next(each.sha256 for each in datasets.entry(histories.DATA).files)}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Cold starts of these functions hardly depend on memory, handlers of few of them do: the lever is small.",
        )

    def latencies(self, seed: int) -> tuple[Floats, tuple[Regular, ...]]:
        """Return the memory sizes of a seed's function and the latency of a first call with each.

        Parameters
        ----------
        seed : int
        """
        runtime = histories.scored()[seed % len(histories.scored())]
        cold, warm = (
            {each.name: each for each in histories.of_runtime(runtime, column)}
            for column in (histories.COLUMN, _DURATION)
        )
        names = sorted((each for each in cold if f" {self.architecture} " in each), key=_memory)
        return np.array([_memory(each) for each in names]), tuple(
            regular(cold[each].value + warm[each].value, name=each) for each in names
        )

    def measure(self, system: Forecaster, seed: int) -> Measurements:
        """Choose sizes quarter by quarter and replay them."""
        memory, series = self.latencies(seed)
        came = np.stack([each.value for each in series])
        target = self.slack * float(np.nanmedian(came[list(memory).index(256.0), : self.first]))
        days, chosen, best = [], [], []
        for origin in range(self.first, came.shape[1], self.stride):
            steps = min(self.stride, came.shape[1] - origin)
            said = np.stack([system.forecast(each.until(origin), steps) for each in series])
            seen = ~np.isnan(came[:, origin : origin + steps]).any(axis=0)
            days.append(origin + np.flatnonzero(seen))
            chosen.append(sizes_for(said, memory, target)[seen])
            best.append(sizes_for(came[:, origin : origin + steps][:, seen], memory, target))
        at, ours, perfect = np.concatenate(days), np.concatenate(chosen), np.concatenate(best)
        latency, ideal = came[ours, at], came[perfect, at]
        found = Measurements()
        found.put("regret", float(np.mean(ours != perfect)))
        found.put("late", float(np.mean(latency > target)))
        found.put("late_at_best", float(np.mean(ideal > target)))
        found.put("cost", float((memory[ours] * latency).sum() / (memory[perfect] * ideal).sum()))
        found.put("variation", float(latency.std() / came[int(memory.argmax()), at].std()))
        return found


def _memory(name: str) -> float:
    return float(name.rsplit(" ", 1)[1])
