"""Study ``series-parts``: which planted periods and level shifts are found, and how often noise shows one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.insight.series import histories
from wavetank.insight.series.finders import Finder
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

_NEAR = 0.02
_DAYS = 3


@dataclass(frozen=True, kw_only=True)
class SeriesParts(Study):
    """Each seed plants cycles of 7 and 91 days, a level shift and gaps into heavy-tailed noise, several times, and
    beside them series of plain noise.  What was planted is the truth; nothing of it is shown to a finder.
    """

    name: ClassVar[str] = "series-parts"
    baseline: ClassVar[str] = "given-week"
    primary: ClassVar[str] = "periods_found"
    secondary: ClassVar[tuple[str, ...]] = ("periods_in_noise", "shifts_found")
    default_seeds: ClassVar[int] = 10
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("periods_found", "", "higher", "counted", "share of planted periods of which one found is within 2 %",
               words="planted periods found"),
        Metric("periods_beside", "", "lower", "counted", "periods found per series that are no planted ones",
               words="other periods"),
        Metric("periods_in_noise", "", "lower", "counted", "share of series of plain noise in which a period is found",
               words="noise with a period"),
        Metric("shifts_found", "", "higher", "counted", "share of planted level shifts found within 3 days",
               words="planted shifts found"),
        Metric("shifts_beside", "", "lower", "counted", "level shifts found per series farther than 3 days from the "
               "planted one", words="other shifts"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Planted periods found", y="periods_found", says="Longer is better."),
        Chart("bars", "Noise with a period", y="periods_in_noise", says="Shorter is better."),
    )

    planted: int = setting(4, says="Series with planted parts, a seed", low=1, high=10**4)
    noise: int = setting(20, says="Series of plain noise, a seed", low=1, high=10**5)
    week: float = setting(0.03, says="Amplitude of the weekly cycle, as a share", low=0.0, high=1.0)
    quarter: float = setting(0.05, says="Amplitude of the quarterly cycle, as a share", low=0.0, high=1.0)
    shift: float = setting(0.2, says="Rise of the level, as a share", low=0.001, high=10.0)
    spread: float = setting(0.03, says="Standard deviation of the noise, as a share", low=0.001, high=1.0)

    def measure(self, system: Finder, seed: int) -> Measurements:
        """Look for parts in planted series and in noise."""
        there, beside, shifts, other = [], [], [], []
        for each in range(self.planted):
            truth = histories.planted(seed * self.planted + each, noise=self.spread, week=self.week,
                                      quarter=self.quarter, shift=self.shift)  # fmt: skip
            found = system.find(truth.series)
            there += [histories.within(found.periods, period, _NEAR) for period in truth.periods]
            beside.append(sum(not histories.within(truth.periods, period, _NEAR) for period in found.periods))
            near = [abs(change - truth.change) <= _DAYS for change in found.changes]
            shifts.append(any(near))
            other.append(len(near) - sum(near))
        plain = (histories.noise_only(seed * self.noise + each) for each in range(self.noise))
        false = [bool(system.find(each).periods) for each in plain]
        return Measurements(
            {
                "periods_found": float(np.mean(there)) if there else 0.0, "periods_beside": float(np.mean(beside)),
                "periods_in_noise": float(np.mean(false)), "shifts_found": float(np.mean(shifts)),
                "shifts_beside": float(np.mean(other)),
            }
        )  # fmt: skip
