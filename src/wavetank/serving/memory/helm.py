"""A learned boundary, corrected online, frozen in bursts.

What the best boundary is shows in what a node measures anyway: hit ratios, lengths of histories, how often users come
back.  A small network that was trained on simulated traffic reads the boundary off these in microseconds, where
a search has to try or to count first.  Two layers keep it honest: a linear correction learns from small probes of the
boundary what the network is wrong about on this node, and during bursts the boundary is frozen and nothing is copied,
so that the request path has the link to itself.  A node that misses its objective at its usual rate is in no burst: its
boundary may be the reason, and after two windows it moves again.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.serving.memory.che import Floats
from wavetank.serving.memory.interface import Decision, WindowView
from wavetank.serving.memory.node import LEAST, MOST
from wavetank.serving.memory.traffic import REFERENCE_SHARE, Traffic
from wavetank.settings import setting
from wavetank.study.learning import Network, load_network

OBSERVATIONS = 10
FEWEST_MISSES = 1e-4
"""Share of missed look-ups below which no difference is read."""
SHIPPED = Path(__file__).with_name("helm_policy.npz")


def observe(view: WindowView) -> Floats:
    """Return the ten figures that the network reads, each of the order of one.

    The share of look-ups that miss is read on a logarithmic scale: one that falls from 2 % to 0.5 % says as much about
    the popularities as one that falls from 40 % to 10 %.

    Parameters
    ----------
    view : WindowView
    """
    return np.array([
        -0.5 * math.log10(max(1.0 - view.row_hits, FEWEST_MISSES)), view.user_hits, view.refill_share,
        min(view.queue_s / view.slo_s, 3.0),
        min(view.busy_share, 3.0), view.rate_change, view.history_tokens / 16_384, view.distinct_share, view.share,
        min(view.p99_s / view.slo_s, 3.0),
    ])  # fmt: skip


def share_of(action: float) -> float:
    """Return the share that an action between -1 and 1 asks for."""
    return 0.5 + 0.48 * action


@functools.cache
def shipped_network() -> Network:
    """Return the network that ships; ``python -m wavetank.serving.memory.training`` makes it."""
    return load_network(SHIPPED, observations=OBSERVATIONS, actions=1)


@dataclass
class HelmState:
    """What the controller remembers.

    Attributes
    ----------
    network : Network
    average : ndarray of float64, shape (10,)
        Moving average of observations.
    weights, inverse : ndarray of float64, shapes (20,) and (20, 20)
        Of the recursive least squares.
    probe : float
        Sign of the probe of the window that has just ended.
    before : tuple or None
        Time of a request and features, of the window before.
    frozen : bool
        Whether a burst is not over.
    calm, ramp : int
        Windows since the last burst, while it is not over; windows of the ramp that are left.
    slow : int
        Windows in a row that missed the objective without a rise of the rate.
    """

    network: Network
    average: Floats | None = None
    weights: Floats = field(default_factory=lambda: np.zeros(2 * OBSERVATIONS))
    inverse: Floats = field(default_factory=lambda: 10.0 * np.eye(2 * OBSERVATIONS))
    probe: float = 1.0
    before: tuple[float, float] | None = None
    frozen: bool = False
    calm: int = 0
    ramp: int = 0
    slow: int = 0


@dataclass(frozen=True, kw_only=True)
class Helm:
    """The three layers; each of the upper two can be left out."""

    residual: bool = setting(True, says="Whether a correction is learned from probes")
    burst: bool = setting(True, says="Whether the boundary is frozen in bursts")
    smoothing: float = setting(0.8, says="Weight of the windows before in what the network reads", low=0.0, high=0.99)
    largest_residual: float = setting(0.08, says="Largest correction of the share", low=0.0, high=0.5)
    dither: float = setting(0.01, says="Probe of the share, to either side", low=0.0, high=0.1)
    forgetting: float = setting(0.98, says="Weight that an older probe loses per window", low=0.5, high=1.0)
    gain: float = setting(
        0.02, says="Correction of the share per relative change of time per share", low=0.0, high=10.0
    )
    burst_score: float = setting(
        3.0, says="Standard deviations of the rate from which on it is a burst", low=0.5, high=100.0
    )
    calm_windows: int = setting(5, unit="windows", says="Calm windows that end a burst", low=1, high=10_000)
    ramp_windows: int = setting(
        3, unit="windows", says="Windows in which a burst's end takes effect", low=1, high=10_000
    )
    patience_windows: int = setting(
        2, unit="windows", says="Windows over the objective, at a usual rate, after which the boundary moves again",
        low=0, high=10_000,
    )  # fmt: skip

    def begin(self, traffic: Traffic) -> tuple[float, Any]:
        """Return the reference share and an empty memory."""
        return REFERENCE_SHARE, HelmState(network=shipped_network())

    def decide(self, view: WindowView, state: HelmState) -> Decision:
        """Return the share to move to.

        Parameters
        ----------
        view : WindowView
        state : HelmState
            Changed.
        """
        now = observe(view)
        if state.average is None:
            state.average = now
        else:
            state.average = self.smoothing * state.average + (1 - self.smoothing) * now
            # The boundary is known without noise.
            state.average[8] = view.share
        share = share_of(float(state.network(state.average)[0]))
        if self.residual:
            share += self._correction(view, state)
        if self.burst:
            return self._in_bursts(view, state, share)
        return Decision(min(max(share, LEAST), MOST))

    def _correction(self, view: WindowView, state: HelmState) -> float:
        """Learn from the last probe, and return the correction with the next one."""
        average = state.average
        features = np.concatenate((average, average * average)) if average is not None else state.weights
        if state.before is not None:
            service_s, share = state.before
            moved = view.share - share
            if abs(moved) > 1e-6:
                slope = math.log(view.service_s / service_s) / moved
                target = min(max(-self.gain * slope, -self.largest_residual), self.largest_residual)
                scaled = state.inverse @ features
                gains = scaled / (self.forgetting + features @ scaled)
                state.weights += gains * (target - state.weights @ features)
                state.inverse = (state.inverse - np.outer(gains, scaled)) / self.forgetting
                # Features hardly change for long stretches: what is not excited must not grow without bound.
                if np.trace(state.inverse) > 1e4:
                    state.inverse *= 1e4 / np.trace(state.inverse)
        state.before = (view.service_s, view.share)
        state.probe = -state.probe
        correction = float(state.weights @ features)
        return min(max(correction, -self.largest_residual), self.largest_residual) + state.probe * self.dither

    def _in_bursts(self, view: WindowView, state: HelmState, share: float) -> Decision:
        surge, slow = view.rate_score > self.burst_score, view.p99_s > view.slo_s
        state.slow = state.slow + 1 if slow and not surge else 0
        if state.slow > self.patience_windows:
            # No burst: the boundary itself may be what is slow, and then holding it would never end.
            state.frozen, state.calm, state.ramp = False, 0, 0
            return Decision(min(max(share, LEAST), MOST), refill=False)
        if surge or slow:
            state.frozen, state.calm = True, 0
        elif state.frozen:
            state.calm += 1
            if state.calm == self.calm_windows:
                state.frozen, state.ramp = False, self.ramp_windows
        if state.frozen:
            return Decision(view.share, refill=False)
        share = min(max(share, LEAST), MOST)
        if state.ramp:
            part = (self.ramp_windows - state.ramp + 1) / (self.ramp_windows + 1)
            state.ramp -= 1
            return Decision(view.share + part * min(max(share - view.share, -0.02), 0.02))
        return Decision(share)
