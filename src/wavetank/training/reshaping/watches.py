"""What else watches for slow GPUs: the raw time of steps, change points in it, and other replicas."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import missing_extra
from wavetank.settings import setting
from wavetank.training.reshaping.interface import Floats
from wavetank.training.reshaping.step_watch import Alarm, Watch
from wavetank.training.reshaping.telemetry import Observation

_NOBODY = -1
_TINY = 1e-300
# Of a step's time: below this share, noise is no change.
_LEAST_SPREAD = 0.01


@dataclass(frozen=True, kw_only=True)
class RawTime:
    """Alarms when the median of the last steps is above that of the steps before them, by a threshold.

    A detector has ``thresholds``, among which rehearsals choose, and ``start(threshold, send_s)``, which returns a
    watch: ``step(observation)`` returns an alarm or None, ``reset()`` forgets what was normal.
    """

    threshold: float = setting(0.0, says="Excess that alarms; 0: the best in rehearsals", low=0.0, high=100.0)
    window: int = setting(50, unit="steps", says="Steps before them", low=4, high=10_000)
    recent: int = setting(5, unit="steps", says="Last steps", low=1, high=1000)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Excesses that rehearsals try."""
        return (self.threshold,) if self.threshold else (0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0)

    def start(self, threshold: float, send_s: float) -> Watch:
        """Return a watch of raw step times."""
        return _Level(threshold, self.window, self.recent)


class _Level:
    def __init__(self, threshold: float, window: int, recent: int) -> None:
        self.threshold, self.window, self.recent = threshold, window, recent
        self.reset()

    def reset(self) -> None:
        self._times: deque[float] = deque(maxlen=self.window + self.recent)
        self._layers: tuple[int, ...] = ()

    def step(self, seen: Observation) -> Alarm | None:
        if seen.layers != self._layers:
            self._times.clear()
            self._layers = seen.layers
        self._times.append(seen.step_s)
        if len(self._times) < 3 * self.recent:
            return None
        times = np.array(self._times)
        excess = float(np.median(times[-self.recent :]) / np.median(times[: -self.recent]) - 1)
        return Alarm(_NOBODY, _NOBODY, excess) if excess > self.threshold else None


@dataclass(frozen=True, kw_only=True)
class RunLengths:
    """Bayesian change points in the raw time of steps, as Greyhound takes them: alarms when a new run begins higher.

    Step times of a run are normal with a mean of their own, and a spread taken from the steps before.
    """

    threshold: float = setting(0.0, says="Rise of the mean that alarms; 0: the best in rehearsals", low=0.0, high=100.0)
    hazard: float = setting(0.005, says="Probability that a run ends at a step", low=1e-9, high=0.5)
    longest: int = setting(60, unit="steps", says="Longest run that is kept apart", low=10, high=1000)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Rises of the mean that rehearsals try."""
        return (self.threshold,) if self.threshold else (0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0)

    def start(self, threshold: float, send_s: float) -> Watch:
        """Return a watch of runs."""
        return _Runs(threshold, self.hazard, self.longest)


class _Runs:
    # Steps of a new run before it is believed, and of the old one that its spread is taken from.
    _SETTLED, _KNOWN = 4, 15

    def __init__(self, threshold: float, hazard: float, longest: int) -> None:
        self.threshold, self.hazard, self.longest = threshold, hazard, longest
        self.reset()

    def reset(self) -> None:
        self._times: list[float] = []
        self._layers: tuple[int, ...] = ()
        self._weights = np.zeros(1)
        self._sums = np.zeros(1)
        self._counts = np.zeros(1)

    def step(self, seen: Observation) -> Alarm | None:
        if seen.layers != self._layers:
            self.reset()
            self._layers = seen.layers
        self._times = [*self._times, seen.step_s][-self.longest :]
        if len(self._times) <= self._KNOWN:
            return None
        known = np.array(self._times[: self._KNOWN])
        centre = float(np.median(known))
        spread = max(1.4826 * float(np.median(np.abs(known - centre))), _LEAST_SPREAD * centre)
        value = (seen.step_s - centre) / spread
        # A run's mean is normal around the old level, ten spreads wide; its steps have a spread of 1.
        precision = self._counts + 0.01
        mean, variance = self._sums / precision, 1 / precision + 1
        grown = self._weights - 0.5 * ((value - mean) ** 2 / variance + np.log(variance))
        ended = np.logaddexp.reduce(grown) + np.log(self.hazard)
        weights = np.concatenate([[ended], grown + np.log1p(-self.hazard)])[: self.longest]
        # Logarithms: a step far from all that is known has next to no probability.
        self._weights = weights - weights.max()
        self._sums = np.concatenate([[0.0], self._sums + value])[: self.longest]
        self._counts = np.concatenate([[0.0], self._counts + 1])[: self.longest]
        run = int(np.argmax(self._weights))
        if not self._SETTLED <= run < len(self._times) - self._SETTLED:
            return None
        now, before = np.array(self._times[-run:]), np.array(self._times[:-run])
        excess = float(now.mean() / before.mean() - 1)
        return Alarm(_NOBODY, _NOBODY, excess) if excess > self.threshold else None


@dataclass(frozen=True, kw_only=True)
class Ruptures:
    """The library ruptures on the raw time of steps: an alarm when the last segment's mean is higher, by a threshold.

    Kernel change points with a linear kernel, at a penalty in units of the noise's variance.
    """

    threshold: float = setting(0.0, says="Rise of the mean that alarms; 0: the best in rehearsals", low=0.0, high=100.0)
    window: int = setting(60, unit="steps", says="Steps that are looked at", low=12, high=1000)
    every: int = setting(3, unit="steps", says="Steps between looks", low=1, high=1000)
    penalty: float = setting(12.0, says="Penalty of a change, in variances of the noise", low=0.0, high=1e6)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Rises of the mean that rehearsals try."""
        return (self.threshold,) if self.threshold else (0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0)

    def start(self, threshold: float, send_s: float) -> Watch:
        """Return a watch that calls the library."""
        try:
            import ruptures
        except ImportError as error:
            raise missing_extra("ruptures", "training", needed_for="Finding change points") from error
        return _Segments(ruptures, threshold, self)


class _Segments:
    _SHORTEST = 5

    def __init__(self, library: Any, threshold: float, rule: Ruptures) -> None:
        self.library, self.threshold, self.rule = library, threshold, rule
        self.reset()

    def reset(self) -> None:
        self._times: deque[float] = deque(maxlen=self.rule.window)
        self._layers: tuple[int, ...] = ()
        self._count = 0

    def step(self, seen: Observation) -> Alarm | None:
        if seen.layers != self._layers:
            self._times.clear()
            self._layers = seen.layers
        self._times.append(seen.step_s)
        self._count += 1
        if len(self._times) < 3 * self._SHORTEST or self._count % self.rule.every:
            return None
        times = np.array(self._times)
        # Differences of neighbours show the noise without the changes.
        spread = 1.4826 * float(np.median(np.abs(np.diff(times)))) / np.sqrt(2)
        noise = max(spread, _LEAST_SPREAD * float(np.median(times)))
        signal = (times / noise)[:, None]
        found = self.library.KernelCPD(kernel="linear", min_size=self._SHORTEST).fit(signal)
        cuts = found.predict(pen=self.rule.penalty)
        if len(cuts) < 2:
            return None
        begin, before = cuts[-2], cuts[-3] if len(cuts) > 2 else 0
        excess = float(times[begin:].mean() / times[before:begin].mean() - 1)
        return Alarm(_NOBODY, _NOBODY, excess) if excess > self.threshold else None


@dataclass(frozen=True, kw_only=True)
class Peers:
    """Alarms when a group computes longer than the median of its stage's groups in all replicas, by a threshold.

    The groups of a replica have the same micro-batches: divided by the median of its stages, times do not depend on
    lengths any more.
    """

    threshold: float = setting(0.0, says="Excess that alarms; 0: the best in rehearsals", low=0.0, high=100.0)
    recent: int = setting(5, unit="steps", says="Last steps, of which the median counts", low=1, high=1000)
    by_replica: bool = setting(False, says="Whether times are first divided by the median of the replica's stages")

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Excesses that rehearsals try."""
        return (self.threshold,) if self.threshold else (0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0)

    def start(self, threshold: float, send_s: float) -> Watch:
        """Return a watch of computing times."""
        return _Others(threshold, self.recent, self.by_replica)


class _Others:
    def __init__(self, threshold: float, recent: int, by_replica: bool) -> None:
        self.threshold, self.recent, self.by_replica = threshold, recent, by_replica
        self.reset()

    def reset(self) -> None:
        self._excess: deque[Floats] = deque(maxlen=self.recent)

    def step(self, seen: Observation) -> Alarm | None:
        if self._excess and self._excess[0].shape != seen.busy_s.shape:
            self._excess.clear()
        times = seen.busy_s
        if self.by_replica:
            times = times / np.maximum(np.median(times, axis=1, keepdims=True), _TINY)
        self._excess.append(times / np.maximum(np.median(times, axis=0), _TINY) - 1)
        if len(self._excess) < self.recent:
            return None
        excess = np.median(self._excess, axis=0)
        replica, stage = np.unravel_index(int(np.argmax(excess)), excess.shape)
        worst = float(excess[replica, stage])
        return Alarm(int(replica), int(stage), worst) if worst > self.threshold else None
