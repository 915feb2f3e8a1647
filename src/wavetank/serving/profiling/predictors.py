"""Ways to profile language models for a simulator: what each measures, and how it predicts a step from that.

Reuse across models pays because configurations repeat: the operations of two models differ in a few sizes, and every
size that the request sets is swept once for all of them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.profiling.database import Point
from wavetank.serving.profiling.operations import Operation
from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.platforms.step_time import StepTime
    from wavetank.serving.profiling.models import DecoderConfig
    from wavetank.serving.profiling.regression import Latency
    from wavetank.serving.profiling.session import HeldOut, Session

Latencies = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Times to first token and per output token of every request, s."""

# What the line through tokens is fitted to, as far as the grid goes.
_DECODES, _PROMPTS, _CONTEXT = (1, 2, 4, 8, 16), (16, 32, 64, 128, 256), 128


class _FromStepTime(ABC):
    """A predictor that gives the simulator a step time."""

    @abstractmethod
    def step_time(self, session: Session, config: DecoderConfig) -> StepTime:
        """Return the step time of a model on this machine."""

    def predict(self, session: Session, config: DecoderConfig, run: HeldOut) -> Latencies:
        """Return what the simulator says about a run with this step time."""
        return session.simulated(run, self.step_time(session, config))


@dataclass(frozen=True, kw_only=True)
class ReusedOperations(_FromStepTime):
    """Every operation is measured once for all models that have it; a step is the sum of its operations."""

    def reuse_key(self, config: DecoderConfig, operation: Operation) -> Hashable:
        """Return what two operations have in common when the second is not measured."""
        return operation.signature

    def spent_s(self, session: Session) -> float:
        """Return the time of all measurements of the models that are profiled here."""
        return session.spent_s(lambda config, operation: operation.signature)

    def step_time(self, session: Session, config: DecoderConfig) -> StepTime:
        """Return the sum of a model's operations from the database that all models share."""
        return session.shared_step_time(config)

    def recorded(self, session: Session) -> Mapping[str, tuple[float, float]]:
        """Return the errors of mean latencies on recorded runs of vLLM, from its published layer profiles."""
        return session.recorded_errors()


@dataclass(frozen=True, kw_only=True)
class FullProfiles(_FromStepTime):
    """Every model is profiled by itself: each of its distinct operations once, nothing taken from another model."""

    def reuse_key(self, config: DecoderConfig, operation: Operation) -> Hashable:
        """Return what two operations have in common when the second is not measured."""
        return config.name, operation.signature

    def spent_s(self, session: Session) -> float:
        """Return the time of all measurements of the models that are profiled here."""
        return session.spent_s(lambda config, operation: (config.name, operation.signature))

    def step_time(self, session: Session, config: DecoderConfig) -> StepTime:
        """Return the sum of a model's operations, measured for it alone."""
        return session.own_step_time(config)


@dataclass(frozen=True, kw_only=True)
class ShapeProfiles(FullProfiles):
    """A profile serves every model of the same widths: whole layers are reused, single operations are not."""

    def reuse_key(self, config: DecoderConfig, operation: Operation) -> Hashable:
        """Return what two operations have in common when the second is not measured."""
        if operation.kind == "attention":
            return operation.signature
        c = config
        widths: tuple[int, ...] = (c.hidden, c.vocab)
        if operation.kind in ("tokens", "once"):
            widths = (c.hidden, c.heads, c.kv_heads, c.head_dim, c.ffn, c.experts)
        return (*widths, operation.signature)

    def spent_s(self, session: Session) -> float:
        """Return the time of all measurements of the models that are profiled here."""
        return session.spent_s(self.reuse_key)

    def step_time(self, session: Session, config: DecoderConfig) -> StepTime:
        """Return the sum of a model's operations; those that are reused are the same ones."""
        return session.shared_step_time(config)


@dataclass(frozen=True, kw_only=True)
class ForestProfiles(FullProfiles):
    """Every model is profiled by itself, and a random forest per operation predicts what lies between the points."""

    trees: int = setting(50, says="Trees of each forest", low=1, high=1000)
    seed: int = setting(0, says="Start of the forests' random streams", low=0, high=2**31 - 1)

    def step_time(self, session: Session, config: DecoderConfig) -> StepTime:
        """Return the sum of what the forests say, looked up for every number of tokens."""
        from wavetank.serving.profiling.regression import compiled_step_time

        model, measured = session.shared_measurements(config)
        fits = {operation: self.fitted(points) for operation, points in measured.items()}
        asked = {operation: _asked(operation, points) for operation, points in measured.items()}
        return compiled_step_time(model, fits, asked)

    def fitted(self, measured: Mapping[Point, float]) -> Latency:
        """Return the forest of an operation.

        Parameters
        ----------
        measured : mapping of Point to float
            Seconds.
        """
        from sklearn.ensemble import RandomForestRegressor

        points = np.array(list(measured), np.float64)
        seconds = np.array(list(measured.values()))
        forest = RandomForestRegressor(n_estimators=self.trees, random_state=self.seed).fit(points, seconds)
        known: dict[Point, float] = {}

        def latency(point: Point) -> float:
            if point not in known:
                known[point] = float(forest.predict(np.array([point], np.float64))[0])
            return known[point]

        return latency


def _asked(operation: Operation, points: Mapping[Point, float]) -> dict[Point, float]:
    """Return the points at which a table takes over what a forest says: all token counts, a finer grid of attention."""
    if operation.kind != "tokens":
        return dict(points)
    counts = sorted(point.tokens for point in points)
    finer = {*counts, *((a + b) // 2 for a, b in itertools.pairwise(counts))}
    return {Point(tokens=n): 0.0 for n in sorted(finer)}


@dataclass(frozen=True, kw_only=True)
class LineInTokens(_FromStepTime):
    """A straight line in the tokens of a step, fitted to whole steps."""

    def step_time(self, session: Session, config: DecoderConfig) -> StepTime:
        """Return the line."""
        from wavetank.platforms.step_time import FittedStepTime

        table = session.shared_step_time(config)
        batches = [(n, table.seconds(n, n * _CONTEXT)) for n in _DECODES]
        batches += [(n, table.seconds(0, 0, n, n * (n + 1) // 2)) for n in _PROMPTS]
        tokens, seconds = np.array(batches, np.float64).T
        # Relative errors count, as in the figures that are judged.
        slope, intercept = np.polyfit(tokens, seconds, 1, w=1 / seconds)
        each_s = max(0.0, float(slope))
        return FittedStepTime(overhead_s=max(1e-9, float(intercept)), per_request_s=each_s, per_prefill_token_s=each_s)


@dataclass(frozen=True, kw_only=True)
class MachineRoofline(_FromStepTime):
    """The measured limits of the machine alone: no operation is measured."""

    def step_time(self, session: Session, config: DecoderConfig) -> StepTime:
        """Return the roofline of a model on this machine."""
        from wavetank.platforms.step_time import RooflineStepTime

        return RooflineStepTime(
            device=session.machine(), model=session.shape(config), flops_efficiency=1.0, bandwidth_efficiency=1.0,
            overhead_s=0.0,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SecondRun:
    """The engine itself serves the run a second time: what is left of an error when the prediction is perfect."""

    def predict(self, session: Session, config: DecoderConfig, run: HeldOut) -> Latencies:
        """Return what the engine took the second time."""
        again: Any = session.served_again(config, run)
        return again.ttft_s, again.tpot_s
