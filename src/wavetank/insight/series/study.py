"""Study ``series-forecast``: how far forecasts of one step and of a quarter are from what a cloud service then did."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.diagnosis.outside import PYTHON, outside_python
from wavetank.insight.series import histories
from wavetank.insight.series.interface import Forecaster
from wavetank.insight.series.outside_forecasters import OutsideForecaster
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets
from wavetank.workloads.series import Regular

_SHOWN = (1, 7, 30, 90)
_GENERATED = 4


@dataclass(frozen=True, kw_only=True)
class SeriesForecast(Study):
    """A forecaster sees a history up to an origin and says what comes on each of the next 90 days; origins are 45 days
    apart, the first after a year.  Days that were not observed do not count.  A seed stands for one runtime of the real
    histories, eight series each, of those runtimes by which no setting of ours was chosen; or for generated series.
    """

    name: ClassVar[str] = "series-forecast"
    baseline: ClassVar[str] = "last-value"
    primary: ClassVar[str] = "mape_90"
    secondary: ClassVar[tuple[str, ...]] = ("mape_1", "forecast_ms")
    default_seeds: ClassVar[int] = 6
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("mape_90", "%", "lower", "counted", "mean of |forecast - value| / value over the next 90 days, over "
               "origins and series", words="error over 90 days"),
        Metric("mape_1", "%", "lower", "counted", "the same of the next day alone", words="error of the next day"),
        Metric("mape", "%", "lower", "counted", "the same, up to a day", table=False, words="error"),
        Metric("forecast_ms", "ms", "lower", "measured", "one forecast, learning included", words="time of a forecast"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Error over 90 days", y="mape_90", says="Shorter is better."),
        Chart("sweep", "Error by how far ahead", y="mape", by="ahead", log="x",
              says="Mean error up to that day; lower is better."),
        Chart("pareto", "Error and time", x="forecast_ms", y="mape_90", log="x", says="Below and left is better."),
    )  # fmt: skip

    history: str = setting(
        "auto", says="Real histories, generated ones, or the real ones if their data set is here",
        choices=("auto", "observed", "generated"),
    )  # fmt: skip
    runtimes: str = setting("scored", says="Real runtimes: those by which forecasters are judged, or those by which "
                            "our settings were chosen", choices=("scored", "tuning"))  # fmt: skip
    first: int = setting(365, unit="days", says="Days before the first origin", low=28, high=10**5)
    stride: int = setting(45, unit="days", says="Days between origins", low=1, high=10**5)
    steps: int = setting(90, unit="days", says="Days ahead", low=2, high=1000)
    outside: str = setting("", says=PYTHON.format("statsforecast and prophet"))

    def check(self) -> None:
        """Refuse to go on where real histories are asked for and not here."""
        if self.history == "observed":
            histories.observed()

    @property
    def real(self) -> bool:
        """Whether the histories are real."""
        return self.history == "observed" or (self.history == "auto" and histories.is_here())

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the real histories."""
        if not self.real:
            return {}
        return {histories.DATA: next(each.sha256 for each in datasets.entry(histories.DATA).files)}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        if not self.real:
            return ("Generated series of 900 days with a weekly and a quarterly cycle, a shift and gaps.",)
        return (
            "Cold starts of AWS Lambda, one figure a day, with gaps up to 29 days.",
            "Other runtimes of the same days gave our settings: what hits the whole platform on a day is in both.",
        )

    def series(self, seed: int) -> tuple[Regular, ...]:
        """Return the histories of a seed.

        Parameters
        ----------
        seed : int
        """
        if not self.real:
            return tuple(histories.planted(seed * _GENERATED + each).series for each in range(_GENERATED))
        names = histories.scored()
        if self.runtimes == "tuning":
            names = tuple(each for each in histories.runtimes() if each not in names)
        return histories.of_runtime(names[seed % len(names)])

    def measure(self, system: Forecaster | OutsideForecaster, seed: int) -> Measurements:
        """Forecast from each origin of each history; nothing where a forecaster's environment is not here."""
        cases = [
            (each.until(origin), each.value[origin : origin + self.steps])
            for each in self.series(seed)
            for origin in range(self.first, each.value.size - self.steps + 1, self.stride)
        ]
        found = Measurements()
        if isinstance(system, OutsideForecaster):
            outside = outside_python(self.outside)
            if not outside:
                return found
            said, took = system.forecasts([history for history, _ in cases], self.steps, outside)
        else:
            said, took = [], []
            for history, _ in cases:
                began = time.perf_counter()
                said.append(system.forecast(history, self.steps))
                took.append(time.perf_counter() - began)
        table = np.array([100.0 * np.abs(each - came) / came for each, (_, came) in zip(said, cases, strict=True)])
        found.put("mape_90", _mean_of_rows(table))
        found.put("mape_1", _mean_of_rows(table[:, :1]))
        found.put("forecast_ms", 1000.0 * float(np.mean(took)))
        for ahead in sorted({*(each for each in _SHOWN if each <= self.steps), self.steps}):
            found.put("mape", _mean_of_rows(table[:, :ahead]), ahead=ahead)
        return found


def _mean_of_rows(table: np.ndarray) -> float:
    """Return the mean over forecasts of each one's mean over the days that were observed."""
    seen = ~np.isnan(table)
    some = seen.any(axis=1)
    return float(np.mean(np.where(seen, table, 0.0).sum(axis=1)[some] / seen.sum(axis=1)[some]))
