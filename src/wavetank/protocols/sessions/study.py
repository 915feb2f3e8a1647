"""Study ``session-race``: two roles want to act at once; what does it cost to end on one branch?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.protocols.sessions.race import run_race
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

DELAYS = ("constant", "uniform", "exponential")
_MOST_MESSAGES = 8


def draw_delays(kind: str, shape: tuple[int, int], seed: int) -> NDArray[np.float64]:
    """Return one-way delays with mean 1.

    Parameters
    ----------
    kind : str
        ``constant``; ``uniform`` between 0.5 and 1.5; ``exponential``.
    shape : (int, int)
        Sessions, and messages of a session.
    seed : int
    """
    rng = stream(seed, "session-race", "delays", kind)
    if kind == "exponential":
        return rng.exponential(1.0, shape)
    return rng.uniform(0.5, 1.5, shape) if kind == "uniform" else np.ones(shape)


@dataclass(frozen=True, kw_only=True)
class SessionRace(Study):
    """In every session one role wishes to send data and one to stop, at times drawn within a window; a message takes a
    random delay and keeps its order only between the same two roles.  All systems see the same wishes and the same
    delays.
    """

    name = "session-race"
    baseline = "referee-choice"
    primary = "messages"
    secondary = ("latency_delays", "leftovers")
    must_be_zero = ("leftovers",)
    metrics = (
        Metric("messages", "", "lower", "counted", "messages sent per session, mean"),
        Metric("most_messages", "", "lower", "counted", "messages sent per session, largest"),
        Metric(
            "latency_delays",
            "",
            "lower",
            "simulated",
            "time from the last wish that was acted on until both racers are on their last branch, in "
            "mean one-way delays; mean over sessions",
            words="latency",
        ),
        Metric(
            "latency_p99_delays",
            "",
            "lower",
            "simulated",
            "99th percentile of the same times",
            table=False,
        ),
        Metric("agreement", "", "higher", "counted", "share of sessions in which both racers end on the same branch"),
        Metric("leftovers", "", "lower", "counted", "messages neither received nor dropped as stale, per session"),
        Metric("dropped", "", "", "counted", "messages dropped as stale, per session", table=False),
        Metric(
            "crossings", "", "", "counted", "share of sessions in which both roles acted on their wish", table=False
        ),
    )
    charts = (
        Chart("bars", "Messages per session", "messages", says="Two messages against four."),
        Chart(
            "pareto",
            "Agreement against latency",
            "agreement",
            x="latency_delays",
            says="The cheap way without tags does not agree.",
        ),
    )
    default_seeds = 6

    sessions: int = setting(2000, unit="sessions", says="Sessions per seed", low=1, high=10_000_000)
    window: float = setting(
        1.0, unit="", says="Window, in mean delays, within which both roles wish to act", low=0.0, high=1e6
    )
    delays: str = setting("exponential", says="Distribution of one-way delays with mean 1", choices=DELAYS)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run the sessions of one seed."""
        plan = system.race()
        wishes = stream(seed, "session-race", "wishes").uniform(0.0, self.window, (self.sessions, 2)).tolist()
        delays = draw_delays(self.delays, (self.sessions, _MOST_MESSAGES), seed).tolist()
        ends = [run_race(plan, wish, delay) for wish, delay in zip(wishes, delays, strict=True)]
        latencies = np.array([end.latency for end in ends])
        return Measurements(
            {
                "messages": math.fsum(end.messages for end in ends) / len(ends),
                "most_messages": max(end.messages for end in ends),
                "latency_delays": float(latencies.mean()),
                "latency_p99_delays": float(np.quantile(latencies, 0.99)),
                "agreement": sum(end.agreed for end in ends) / len(ends),
                "leftovers": sum(end.leftovers for end in ends) / len(ends),
                "dropped": sum(end.dropped for end in ends) / len(ends),
                "crossings": sum(end.crossed for end in ends) / len(ends),
            }
        )
