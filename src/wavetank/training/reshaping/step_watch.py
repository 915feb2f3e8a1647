"""Predicts a step from the lengths of its sequences, and takes a rank for slow only if it is slower than predicted.

Under a fixed budget of tokens the attention of a batch with long sequences still costs more, so that the time of steps
varies without anything being wrong.  What a micro-batch takes on a stage is ``a * sum(len) + b * sum(len^2) + c``,
fitted to healthy steps; put into the pipeline's schedule, the critical path predicts the step.  What is left over is
small and does not follow the lengths, so that a few per cent of a lasting slowdown stand out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.training.reshaping.interface import Floats
from wavetank.training.reshaping.telemetry import Observation, step_time_s

_MAD = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
_LEAST = 3  # steps of which a fit makes sense
_EVERY = 5  # steps between fits, once the window is full


class Alarm(NamedTuple):
    """A step in which something seems slow.

    Attributes
    ----------
    replica, stage : int
        Of the group that is suspected; -1 where none stands out.
    excess : float
        By which share it, or the step, is slower than it should be.
    """

    replica: int
    stage: int
    excess: float


class Watch(Protocol):
    """A detector at work on one job."""

    def step(self, seen: Observation) -> Alarm | None:
        """Take a step in, and return an alarm or None."""
        ...

    def reset(self) -> None:
        """Forget what was normal: after a validation, or when work has moved."""
        ...


class Detector(Protocol):
    """What starts a watch; ``thresholds`` are those among which rehearsals choose, none where it needs no choice."""

    thresholds: tuple[float, ...]

    def start(self, threshold: float, send_s: float) -> Watch:
        """Return a watch."""
        ...


@dataclass(frozen=True, kw_only=True)
class StepWatch:
    """Watches the difference between predicted and observed steps and, by group, times of computing.

    ``start(threshold, send_s)`` returns the watch of one job; ``step(observation)`` on it returns an alarm or None.
    """

    window: int = setting(50, unit="steps", says="Healthy steps that the fit and the spread are taken from", low=8,
                          high=10_000)  # fmt: skip
    recent: int = setting(5, unit="steps", says="Steps whose median must be too slow", low=1, high=1000)
    least: float = setting(0.05, says="Excess below which nothing is slow", low=0.0, high=10.0)
    spreads: float = setting(3.0, says="Excess in robust standard deviations below which nothing is slow", low=0.0,
                             high=100.0)  # fmt: skip
    quadratic: bool = setting(True, says="Whether attention's square of the lengths is in the fit")
    by_group: bool = setting(True, says="Whether a slow group alone, without a slow step, is enough")

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Nothing is left to rehearsals."""
        return ()

    def start(self, threshold: float = 0.0, send_s: float = 0.0) -> StepWatching:
        """Return a watch that knows nothing yet.

        Parameters
        ----------
        threshold : float
            Not used.
        send_s : float
            What a boundary between stages takes, s.
        """
        return StepWatching(self, send_s)


class StepWatching:
    """A :class:`StepWatch` at work.

    Parameters
    ----------
    rule : StepWatch
    send_s : float
        What a boundary between stages takes, s.
    """

    def __init__(self, rule: StepWatch, send_s: float = 0.0) -> None:
        if not 0 <= send_s < float("inf"):
            raise BadValueError("A boundary takes a time.", given=send_s, allowed="0 s or more")
        self.rule, self.send_s = rule, send_s
        self.predicted_s = float("nan")
        self.reset()

    def reset(self) -> None:
        """Forget all steps."""
        rule = self.rule
        self._layers: tuple[int, ...] = ()
        self._replicas = 0
        self._coefficients: Floats | None = None
        self._scale = np.ones(3)
        self._learned = 0
        self._features: deque[Floats] = deque(maxlen=rule.window)
        self._targets: deque[Floats] = deque(maxlen=rule.window)
        # Observed less predicted step, and its share of the predicted one in healthy steps.
        self._rests: deque[float] = deque(maxlen=rule.window)
        self._healthy: deque[float] = deque(maxlen=rule.window)
        self._healthy_groups: deque[Floats] = deque(maxlen=rule.window)
        self._recent: deque[tuple[float, Floats]] = deque(maxlen=rule.recent)
        self._waiting: deque[tuple[Observation, float, float, Floats]] = deque()

    @property
    def coefficients(self) -> Floats:
        """Seconds per token, squared token and micro-batch by stage, shape (3, stages)."""
        if self._coefficients is None:
            raise BadValueError("Nothing was fitted yet.", given=f"{len(self._features)} steps", allowed=f"{_LEAST}")
        return self._coefficients / self._scale[:, None]

    def step(self, seen: Observation) -> Alarm | None:
        """Take a step in; return an alarm if the last steps were slower than predicted.

        Parameters
        ----------
        seen : Observation

        Raises
        ------
        BadValueError
            For times or lengths that are not finite, or below 0.
        """
        _check(seen)
        if (seen.layers, len(seen.busy_s)) != (self._layers, self._replicas):
            # Times per layer are kept; what is left over, and its spread, are not.
            self._moved(seen.layers, len(seen.busy_s))
        self.predicted_s = float("nan")
        if self._coefficients is None or len(self._features) < self.rule.recent:
            self._learn(seen, float("nan"))
            return None
        chunk = self._chunks(seen)
        path_s = step_time_s(chunk, self.send_s)
        if len(self._rests) < self.rule.recent:
            self._learn(seen, seen.step_s - path_s)
            return None
        self.predicted_s = path_s + float(np.median(self._rests))
        residual = seen.step_s / self.predicted_s - 1
        groups = seen.busy_s / np.maximum(chunk.sum(axis=2), 1e-300) - 1
        self._recent.append((residual, groups))
        self._waiting.append((seen, seen.step_s - path_s, residual, groups))
        alarm = self._alarm()
        if alarm is None and len(self._waiting) > self.rule.recent:
            # A step is learned from once those after it have shown that nothing was wrong.
            before, rest_s, step, by_group = self._waiting.popleft()
            self._learn(before, rest_s)
            self._healthy.append(step)
            self._healthy_groups.append(by_group)
        return alarm

    def _alarm(self) -> Alarm | None:
        if len(self._recent) < self.rule.recent:
            return None
        excess = float(np.median([residual for residual, _ in self._recent]))
        by_group = np.median([groups for _, groups in self._recent], axis=0)
        replica, stage = np.unravel_index(int(np.argmax(by_group)), by_group.shape)
        worst = float(by_group[replica, stage])
        too_slow = worst > self._limit(self._healthy_groups)
        if excess > self._limit(self._healthy) or (self.rule.by_group and too_slow):
            return Alarm(int(replica), int(stage), worst) if too_slow else Alarm(-1, -1, excess)
        return None

    def _limit(self, healthy: deque[float] | deque[Floats]) -> float:
        """What is too slow, by the spread of healthy steps where enough of them are known."""
        if len(healthy) < self.rule.recent:
            return self.rule.least
        known = np.array(healthy)
        return max(self.rule.least, self.rule.spreads * _MAD * float(np.median(np.abs(known - np.median(known)))))

    def _features_of(self, seen: Observation) -> Floats:
        squares = seen.squares if self.rule.quadratic else np.zeros_like(seen.squares)
        return np.stack([seen.tokens, squares, (seen.tokens > 0).astype(np.float64)], axis=-1)

    def _chunks(self, seen: Observation) -> Floats:
        """Predicted passes, (replicas, stages, microbatches), s."""
        if self._coefficients is None:
            raise BadValueError("Nothing was fitted yet.", given="no steps", allowed=f"{_LEAST}")
        per_layer = self._features_of(seen) / self._scale @ self._coefficients
        return np.maximum(np.moveaxis(per_layer, 2, 1) * np.array(seen.layers, np.float64)[None, :, None], 0.0)

    def _moved(self, layers: tuple[int, ...], replicas: int) -> None:
        if len(layers) != len(self._layers):
            self.reset()
        self._layers, self._replicas = layers, replicas
        for each in (self._rests, self._healthy, self._healthy_groups, self._recent, self._waiting):
            each.clear()

    def _learn(self, seen: Observation, rest_s: float) -> None:
        self._features.append(self._features_of(seen).sum(axis=1))
        self._targets.append(seen.busy_s / np.array(seen.layers, np.float64))
        if np.isfinite(rest_s):
            self._rests.append(rest_s)
        self._learned += 1
        if len(self._features) < _LEAST or (self._learned > self.rule.window and self._learned % _EVERY):
            return
        features, targets = np.concatenate(self._features), np.concatenate(self._targets)
        # Under a fixed budget tokens and micro-batches say the same: the least squares of least norm divide it.
        scale = np.abs(features).mean(axis=0)
        self._scale = np.where(scale > 0, scale, 1.0)
        self._coefficients = np.asarray(np.linalg.lstsq(features / self._scale, targets, rcond=1e-9)[0], np.float64)


def _check(seen: Observation) -> None:
    shapes = [np.shape(each) for each in (seen.tokens, seen.squares, seen.busy_s)]
    replicas, stages = shapes[2] if len(shapes[2]) == 2 else (0, 0)
    known = shapes[0] == shapes[1] and len(shapes[0]) == 2 and shapes[0][0] == replicas and stages == len(seen.layers)
    if not known or min(*shapes[0], *seen.layers, 0 if not stages else 1) < 1:
        raise BadValueError(
            "A step has lengths by replica and micro-batch, and times by replica and stage, each of which has layers.",
            given=f"shapes {shapes[0]}, {shapes[1]} and {shapes[2]}, layers {seen.layers}",
        )
    for name in ("tokens", "squares", "busy_s"):
        value = getattr(seen, name)
        if not np.all((value >= 0) & np.isfinite(value)):
            raise BadValueError("A step is observed in finite numbers.", given=str(value)[:80], where=name)
    if not 0 < seen.step_s < float("inf"):
        raise BadValueError("A step takes a time.", given=seen.step_s, allowed="above 0 s")
