"""What a policy sees and decides, once per window, and how its decision is put into effect.

The share of the memory that holds embedding rows moves towards what a policy asks for by at most two hundredths per
window, for all policies alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.memory import node as replay
from wavetank.serving.memory.che import Floats
from wavetank.serving.memory.node import LEAST, MOST, STEP
from wavetank.serving.memory.traffic import Traffic

WINDOW = 64
"""Requests of a window."""
SLO_S = 0.1
"""Objective for the 99th percentile of latencies."""


class WindowView(NamedTuple):
    """What is known of the window that has just ended.

    Attributes
    ----------
    share : float
        Of the memory, for embedding rows.
    row_hits, user_hits : float
        Share of the look-ups, and of the requests, that found what they needed.
    refill_share : float
        Bytes copied in the background, over what may be.
    queue_s : float
        Wait of a request that comes now, s.
    busy_share : float
        Time in which the node worked over the time that passed.
    rate_change : float
        log(rate of this window / mean of those before).
    rate_score : float
        Standard deviations by which the rate is above its mean over up to 60 windows.
    history_tokens : float
        Mean history.
    distinct_share : float
        Different users per request.
    p99_s, mean_s : float
        Latencies of the window.
    service_s : float
        Mean time of a request without its wait.
    row_gain_s, user_gain_s : float
        Time that a little more memory would have saved in each cache: requests for what was dropped last.
    segment : int
        Which segment of the trace came last: for oracles alone.
    slo_s : float
        Objective for the 99th percentile.
    """

    share: float
    row_hits: float
    user_hits: float
    refill_share: float
    queue_s: float
    busy_share: float
    rate_change: float
    rate_score: float
    history_tokens: float
    distinct_share: float
    p99_s: float
    mean_s: float
    service_s: float
    row_gain_s: float
    user_gain_s: float
    segment: int
    slo_s: float


class Decision(NamedTuple):
    """Share to move to, and whether rows may be copied in the background meanwhile."""

    share: float
    refill: bool = True


class SplitPolicy(Protocol):
    """Moves the boundary."""

    def begin(self, traffic: Traffic) -> tuple[float, Any]:
        """Return the share to begin with, and a state; of the traffic, only oracles look at more than the node."""
        ...

    def decide(self, view: WindowView, state: Any) -> Decision:
        """Return what to move to; the state may be changed."""
        ...


@dataclass(frozen=True, eq=False)
class Replay:
    """What a replay gave.

    Attributes
    ----------
    latency_s : ndarray of float64, shape (requests,)
    shares : ndarray of float64, shape (windows,)
        Share of embedding rows in each window.
    service_s : ndarray of float64, shape (windows,)
        Mean time of a request without its wait.
    decision_s : ndarray of float64, shape (windows,)
        Time of each decision on this machine.
    refill_bytes, demand_bytes : float
        Copied in the background, and on the request path.
    over_bytes : float
        Most by which both caches held more than the memory; 0 if never.
    """

    latency_s: Floats
    shares: Floats
    service_s: Floats
    decision_s: Floats
    refill_bytes: float
    demand_bytes: float
    over_bytes: float


class NodeReplay:
    """A node that is replayed window by window.

    Parameters
    ----------
    traffic : Traffic
    share : float
        To begin with.
    window : int, default 64
        Requests per window.
    slo_s : float, default 0.1

    Raises
    ------
    BadValueError
        If the share is none, a window has no requests, or the objective is no time.
    """

    def __init__(self, traffic: Traffic, share: float, *, window: int = WINDOW, slo_s: float = SLO_S) -> None:
        if not 0 <= share <= 1:
            raise BadValueError("A share of the memory is out of range.", given=share, allowed="0 to 1")
        if window < 1 or not 0 < slo_s < np.inf:
            raise BadValueError("A window or an objective is out of range.", given=f"{window} requests, {slo_s} s",
                                allowed="1 request or more, a time above 0")  # fmt: skip
        self.traffic, self.share, self.window, self.slo_s = traffic, share, window, slo_s
        self.caches = replay.filled(traffic, share)
        self.latency_s = np.zeros(len(traffic))
        self.sums = np.zeros(10)
        self.number = 0
        self._figures = replay.figures_of(traffic)
        self._log_rates: list[float] = []

    @property
    def windows(self) -> int:
        """Whole windows of the trace."""
        return len(self.traffic) // self.window

    def serve(self, refill: bool = True) -> WindowView:
        """Serve the next window with the share as it is."""
        traffic, first = self.traffic, self.number * self.window
        last = first + self.window
        replay.serve_window(
            self.caches, self._figures, traffic.arrival_s, traffic.user, traffic.segment, traffic.history,
            traffic.cumulative, traffic.guide, traffic.hot, traffic.swaps, traffic.key, first, last, self.number,
            self.share, refill, self.latency_s, self.sums,
        )  # fmt: skip
        self.number += 1
        return self._view(first, last)

    def move(self, share: float) -> None:
        """Move the boundary towards a share, as far as one window allows."""
        step = min(max(share - self.share, -STEP), STEP)
        if self.share + step != self.share:
            # Shares that were set beyond the bounds on purpose stay there until they are moved.
            self.share = min(max(self.share + step, LEAST), MOST)

    def _view(self, first: int, last: int) -> WindowView:
        traffic, sums = self.traffic, self.sums
        n = last - first
        passed = traffic.arrival_s[last - 1] - (traffic.arrival_s[first - 1] if first else 0.0)
        log_rate = float(np.log(n / passed))
        before = self._log_rates[-60:]
        mean = sum(before) / len(before) if before else log_rate
        # A window's rate is known to one over the root of its requests, whatever the windows before had.
        deviation = max(float(np.std(before)) if len(before) > 1 else 0.0, n**-0.5)
        self._log_rates.append(log_rate)
        latencies = np.sort(self.latency_s[first:last])
        group_bytes = float(self._figures[2])
        rate = float(self._figures[5])
        allowed = passed * rate * float(self._figures[6])
        return WindowView(
            share=self.share,
            row_hits=1.0 - sums[replay.MISSED] / max(sums[replay.LOOKED_UP], 1.0),
            user_hits=sums[replay.USER_HITS] / n,
            refill_share=sums[replay.REFILLED] / allowed if allowed > 0 else 0.0,
            queue_s=replay.queue_s(self.caches, float(traffic.arrival_s[last - 1])),
            busy_share=sums[replay.SERVICE_S] / passed,
            rate_change=log_rate - mean,
            rate_score=(log_rate - mean) / deviation,
            history_tokens=sums[replay.HISTORY] / n,
            distinct_share=sums[replay.ONCE] / n,
            p99_s=float(latencies[int(np.ceil(0.99 * n)) - 1]),
            mean_s=float(latencies.mean()),
            service_s=sums[replay.SERVICE_S] / n,
            row_gain_s=sums[replay.ROW_GHOST_HITS] * group_bytes / rate,
            user_gain_s=float(sums[replay.USER_GHOST_S]),
            segment=int(traffic.segment[last - 1]),
            slo_s=self.slo_s,
        )


def run_policy(
    traffic: Traffic,
    policy: SplitPolicy,
    *,
    window: int = WINDOW,
    slo_s: float = SLO_S,
    clock: Callable[[], float] = time.perf_counter,
    check_memory: bool = False,
) -> Replay:
    """Replay a trace under a policy.

    Parameters
    ----------
    traffic : Traffic
    policy : SplitPolicy
    window : int, default 64
        Requests per window.
    slo_s : float, default 0.1
    clock : callable
        Times decisions.
    check_memory : bool, default False
        Count what both caches hold after every window.

    Raises
    ------
    BadValueError
        If the trace is shorter than a window, or a policy asks for a share that is no number.
    """
    share, state = policy.begin(traffic)
    node = NodeReplay(traffic, share, window=window, slo_s=slo_s)
    if not node.windows:
        raise BadValueError("The trace is shorter than a window.", given=len(traffic), allowed=f"{window} or more")
    shares, services, decisions = (np.zeros(node.windows) for _ in range(3))
    refill, refilled, demanded, over = True, 0.0, 0.0, 0.0
    for number in range(node.windows):
        shares[number] = node.share
        view = node.serve(refill)
        services[number] = view.service_s
        refilled += float(node.sums[replay.REFILLED])
        demanded += float(node.sums[replay.MISSED]) * traffic.node.row_bytes * traffic.group
        if check_memory:
            over = max(over, sum(replay.held_bytes(node.caches, traffic)) - traffic.node.memory_bytes)
        began = clock()
        asked, refill = policy.decide(view, state)
        decisions[number] = clock() - began
        if not np.isfinite(asked):
            raise BadValueError("A policy asks for a share that is no number.", given=asked, allowed="0 to 1")
        node.move(asked)
    served = node.windows * window
    return Replay(node.latency_s[:served], shares, services, decisions, refilled, demanded, over)
