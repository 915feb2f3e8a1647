"""Measuring one phase at one setting, and throwing away runs that measured something else.

A run is a trace: times, power and clock sampled at 10 to 20 Hz, the bits that say why a clock was lowered, and the
total-energy counter at both ends.  Energy is the difference of the counter, never a mean of samples.  A run counts only
if the clock stayed where it was locked and nothing throttled the device: where firmware changes the clock unasked, the
run measured another setting.  Several runs that count give a reading.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.settings import check_ranges, setting

Samples = npt.NDArray[np.float64]

# Reasons as NVML numbers them: what the user set, and a device that rests, are no disturbance.
IDLE, APPLICATION_CLOCKS, POWER_CAP = 0x1, 0x2, 0x4
HARDWARE_SLOWDOWN, THERMAL, POWER_BRAKE = 0x8, 0x20 | 0x40, 0x80
_HARMLESS = IDLE | APPLICATION_CLOCKS


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One run of a phase, as a GPU reports it.

    Attributes
    ----------
    time_s, power_w, clock_hz : ndarray of float64, shape (samples,)
        When, at which power and clock of the multiprocessors.
    reasons : ndarray of int64, shape (samples,)
        Bits that say why the clock was lowered, as NVML numbers them.
    began_s, ended_s : float
        When the counter was read.
    began_j, ended_j : float
        Total energy of the device since its driver was loaded.
    tokens : float
        Work done between both.
    clock_set_hz : float or None
        Clock that was locked; None where none was.
    """

    time_s: Samples
    power_w: Samples
    clock_hz: Samples
    reasons: npt.NDArray[np.int64]
    began_s: float
    ended_s: float
    began_j: float
    ended_j: float
    tokens: float
    clock_set_hz: float | None = None

    @property
    def energy_j(self) -> float:
        """Difference of the energy counter, J."""
        return self.ended_j - self.began_j

    def integral_j(self) -> float:
        """Return the integral of the sampled power over the run, J: the first and the last sample reach to its ends."""
        times = np.concatenate(([self.began_s], self.time_s, [self.ended_s]))
        powers = np.concatenate((self.power_w[:1], self.power_w, self.power_w[-1:]))
        return float(np.trapezoid(powers, times))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the runs of one phase at one setting gave.

    Attributes
    ----------
    tokens_per_s, joules_per_token, power_w, clock_hz : float
        Medians over the runs that count.
    spread : float
        (greatest - least) / median of the throughput over these runs.
    runs, rejected : int
        Runs that count, and that do not.
    """

    tokens_per_s: float
    joules_per_token: float
    power_w: float
    clock_hz: float
    spread: float
    runs: int
    rejected: int


@dataclass(frozen=True, kw_only=True)
class Harness:
    """Which runs count, and how many are needed."""

    repeats: int = setting(5, unit="runs", says="Runs that must count", low=1, high=1000)
    most_runs: int = setting(15, unit="runs", says="Runs after which it gives up", low=1, high=10_000)
    clock_tolerance_hz: float = setting(
        7.5e6, says="Difference from the locked clock above which a run is thrown away", low=0, high=1e9
    )
    largest_gap_s: float = setting(
        0.2, unit="s", says="Time without a sample above which a run is thrown away", low=1e-3, high=10
    )
    counter_tolerance: float = setting(
        0.1, says="Relative difference between the energy counter and the samples above which a run is thrown away",
        low=0.001, high=1.0,
    )  # fmt: skip
    rejecting: bool = setting(True, says="Whether runs are thrown away at all")

    def __post_init__(self) -> None:
        check_ranges(self)

    def fault(self, trace: Trace) -> str:
        """Return why a run does not count; empty where it does.

        Parameters
        ----------
        trace : Trace
        """
        times = trace.time_s
        if not len(times):
            return "no sample was taken"
        columns = (times, trace.power_w, trace.clock_hz, trace.reasons)
        if len({len(column) for column in columns}) > 1:
            return "samples are missing: not every sample has a power, a clock and reasons"
        ends = (trace.began_s, trace.ended_s, trace.began_j, trace.ended_j, trace.tokens, trace.clock_set_hz or 0.0)
        if not all(np.all(np.isfinite(column)) for column in (*columns, ends)):
            return "a sample, a time or a counter is no number"
        if trace.tokens <= 0 or trace.ended_s <= trace.began_s or trace.energy_j <= 0:
            return "the energy counter or the clock went back, or nothing was done"
        gaps = np.diff(np.concatenate(([trace.began_s], times, [trace.ended_s])))
        if gaps.min() < 0 or gaps.max() > self.largest_gap_s:
            return f"no sample was taken for {gaps.max():.2f} s, or samples are out of order"
        reasons = int(np.bitwise_or.reduce(trace.reasons)) & ~_HARMLESS
        # Where no clock is locked, a power limit is what governs the clock; the board always has one.
        governed = trace.clock_set_hz is None and reasons == POWER_CAP
        if reasons and not governed:
            return f"the device was throttled (reasons {reasons:#x})"
        if trace.clock_set_hz is not None:
            left = np.abs(trace.clock_hz - trace.clock_set_hz).max()
            if left > self.clock_tolerance_hz:
                return f"the clock left its locked value by {left / 1e6:.0f} MHz"
        elif not governed and np.ptp(trace.clock_hz) > self.clock_tolerance_hz:
            return f"the clock moved by {np.ptp(trace.clock_hz) / 1e6:.0f} MHz though nothing was set"
        if abs(trace.integral_j() / trace.energy_j - 1) > self.counter_tolerance:
            return "the energy counter and the samples do not agree"
        return ""

    def read(self, run: Callable[[], Trace]) -> Reading | None:
        """Measure until enough runs count.

        Parameters
        ----------
        run : callable
            Makes one run.

        Returns
        -------
        Reading or None
            None where too many runs had to be thrown away.

        Raises
        ------
        BadValueError
            If more runs must count than may be made.
        """
        if self.most_runs < self.repeats:
            raise BadValueError(
                "A harness cannot need more runs than it may make.", given=self.repeats,
                allowed=f"at most {self.most_runs}", where="repeats",
            )  # fmt: skip
        kept: list[Trace] = []
        made = 0
        while len(kept) < self.repeats:
            if made == self.most_runs:
                return None
            trace = run()
            made += 1
            if not self.rejecting or not self.fault(trace):
                kept.append(trace)
        rates = [trace.tokens / (trace.ended_s - trace.began_s) for trace in kept]
        rate = statistics.median(rates)
        return Reading(
            tokens_per_s=rate,
            joules_per_token=statistics.median(trace.energy_j / trace.tokens for trace in kept),
            power_w=statistics.median(trace.energy_j / (trace.ended_s - trace.began_s) for trace in kept),
            clock_hz=statistics.median(float(np.mean(trace.clock_hz)) for trace in kept),
            spread=(max(rates) - min(rates)) / rate,
            runs=len(kept),
            rejected=made - len(kept),
        )
