"""Other ways to place the boundary: fixed, by ghost caches, by trial, and as known popularities ask for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wavetank.serving.memory.che import best_share
from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.interface import Decision, WindowView
from wavetank.serving.memory.traffic import REFERENCE_SHARE, Traffic
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class FixedSplit:
    """A boundary that never moves; by default the best one of the training traces.

    A policy has ``begin(traffic) -> (share, state)`` and ``decide(view, state) -> (share, refill)``, see
    :mod:`wavetank.serving.memory.interface`.
    """

    share: float = setting(REFERENCE_SHARE, says="Share of the memory for embedding rows", low=0.0, high=1.0)

    def begin(self, traffic: Traffic) -> tuple[float, Any]:
        """Return the share."""
        return self.share, None

    def decide(self, view: WindowView, state: Any) -> Decision:
        """Return the share."""
        return Decision(view.share)


@dataclass(frozen=True, kw_only=True)
class GhostCaches:
    """Moves towards the cache in which a little more memory would have saved more time, as its ghost cache counts."""

    smoothing: float = setting(0.7, says="Weight of the windows before", low=0.0, high=0.999)
    deadband: float = setting(
        0.15, says="Relative difference of the two gains below which nothing moves", low=0.0, high=10.0
    )

    def begin(self, traffic: Traffic) -> tuple[float, Any]:
        """Return the reference share, and no gains."""
        return REFERENCE_SHARE, [0.0, 0.0]

    def decide(self, view: WindowView, state: Any) -> Decision:
        """Return a step to the side of the larger gain."""
        keep = self.smoothing
        state[0] = keep * state[0] + (1 - keep) * view.row_gain_s
        state[1] = keep * state[1] + (1 - keep) * view.user_gain_s
        rows, users = state
        if abs(rows - users) <= self.deadband * max(rows, users):
            return Decision(view.share)
        return Decision(view.share + (0.02 if rows > users else -0.02))


@dataclass(frozen=True, kw_only=True)
class HillClimbing:
    """Tries a step, keeps going while the measured time of requests falls, and turns round when it rises."""

    every: int = setting(4, unit="windows", says="Windows between two steps", low=1, high=10_000)
    step: float = setting(0.04, says="Step of the share", low=0.001, high=0.5)

    def begin(self, traffic: Traffic) -> tuple[float, Any]:
        """Return the reference share, and a first direction."""
        return REFERENCE_SHARE, {"direction": 1.0, "target": REFERENCE_SHARE, "windows": 0, "sum": 0.0, "last": None}

    def decide(self, view: WindowView, state: Any) -> Decision:
        """Return the share that is tried."""
        state["windows"] += 1
        state["sum"] += view.service_s
        if state["windows"] == self.every:
            mean = state["sum"] / self.every
            if state["last"] is not None and mean > state["last"]:
                state["direction"] = -state["direction"]
            state["last"], state["windows"], state["sum"] = mean, 0, 0.0
            state["target"] = min(max(view.share + state["direction"] * self.step, 0.02), 0.98)
        return Decision(state["target"])


@dataclass(frozen=True, kw_only=True)
class KnownPopularities:
    """Moves to the best share for the exponents and histories that the trace is made with."""

    def begin(self, traffic: Traffic) -> tuple[float, Any]:
        """Return the first segment's best share."""
        return self._best(traffic, 0, traffic.segments[0].history), traffic

    def decide(self, view: WindowView, state: Any) -> Decision:
        """Return the best share of the segment that runs."""
        return Decision(self._best(state, view.segment, view.history_tokens))

    @staticmethod
    def _best(traffic: Traffic, segment: int, history: float) -> float:
        each = traffic.segments[segment]
        # Histories that grow are taken in steps of 500 tokens.
        rounded = round(history / 500) * 500.0 or 500.0
        return _best_share(traffic.node, each.row_exponent, each.user_exponent, rounded)


@lru_cache(maxsize=4096)
def _best_share(node: Node, row_exponent: float, user_exponent: float, history: float) -> float:
    """Return :func:`best_share`'s share; windows of one kind of traffic ask for the same one."""
    return best_share(node, row_exponent, user_exponent, history)[0]
