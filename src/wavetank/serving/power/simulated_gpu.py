"""A GPU that runs phases in simulated time, with what disturbs measurements on a real one.

The truth is a :class:`~wavetank.serving.power.dvfs.GpuModel`.  Runs differ by a little noise, and in some of them the
firmware moves the clock for a part of the run: up to the highest clock although it was locked, or down because of heat.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wavetank.serving.power.architectures import Work
from wavetank.serving.power.dvfs import GpuModel, Operation, PowerSetting
from wavetank.serving.power.harness import POWER_CAP, THERMAL, Trace
from wavetank.settings import check_ranges, setting

SAMPLE_S = 0.0625
"""Time between samples: 16 Hz."""


@lru_cache(maxsize=65536)
def steady(model: GpuModel, work: Work, given: PowerSetting) -> Operation:
    """Return what a GPU does when nothing disturbs it; results are kept.

    Parameters
    ----------
    model : GpuModel
    work : Work
    given : PowerSetting
    """
    return model.run(work, given)


@dataclass(frozen=True, kw_only=True)
class SimulatedGpu:
    """Runs a phase over and over for a fixed time.

    Parameters
    ----------
    model : GpuModel
        The truth.
    """

    model: GpuModel
    run_s: float = setting(2.5, unit="s", says="Length of a run", low=0.1, high=3600)
    noise: float = setting(0.004, says="Standard deviation of a run's speed and power", low=0, high=0.5)
    excursions: float = setting(0.3, says="Share of runs in which the clock leaves its set value", low=0, high=1)

    def __post_init__(self) -> None:
        check_ranges(self)

    def run(self, work: Work, given: PowerSetting, draws: np.random.Generator) -> Trace:
        """Return the trace of one run.

        Parameters
        ----------
        work : Work
        given : PowerSetting
        draws : numpy.random.Generator
            Of noise and excursions.

        Raises
        ------
        BadValueError
            If the device cannot be set so.
        """
        calm = steady(self.model, work, given)
        pieces = [(self.run_s, calm, 0)]
        if draws.random() < self.excursions:
            # A quarter to all of the run, at its highest clock or, hot, at a clock below the set one.
            length = self.run_s * draws.uniform(0.25, 1.0)
            table = self.model.table
            if draws.random() < 0.5 and given.clock_hz is not None:
                other, reason = self.model.at(work, table.clock_max_hz), 0
            else:
                other = self.model.at(work, max(calm.clock_hz * draws.uniform(0.6, 0.9), table.clock_min_hz))
                reason = THERMAL
            pieces = [(self.run_s - length, calm, 0), (length, other, reason)]
        set_hz = self.model.table.clock_max_hz if given.clock_hz is None else given.clock_hz
        capped = POWER_CAP if calm.clock_hz < set_hz else 0
        speed, draw = 1 + self.noise * draws.standard_normal(2)
        ends = np.cumsum([length for length, _, _ in pieces])
        times = np.arange(SAMPLE_S / 2, self.run_s, SAMPLE_S)
        which = np.minimum(np.searchsorted(ends, times, side="right"), len(pieces) - 1)
        began_j = float(draws.uniform(1e5, 1e8))
        return Trace(
            time_s=times,
            power_w=np.array([each.power_w for _, each, _ in pieces])[which] * draw
            * (1 + self.noise * draws.standard_normal(len(times))),
            clock_hz=np.array([each.clock_hz for _, each, _ in pieces])[which],
            reasons=np.array([reason for _, _, reason in pieces])[which] | capped,
            began_s=0.0,
            ended_s=self.run_s,
            began_j=began_j,
            ended_j=began_j + draw * sum(length * each.power_w for length, each, _ in pieces),
            tokens=speed * sum(length * each.tokens_per_s for length, each, _ in pieces),
            clock_set_hz=given.clock_hz,
        )  # fmt: skip
