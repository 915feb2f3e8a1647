"""A job under faults of single GPUs: what it trains in which time, by the same rules for every reshaper.

A dead device stops the job until it is noticed and the plan has changed; the step that it was in is lost.  A slow one
is noticed after some of the job's own, slower, steps.  A change of plan stops the job for as long as new groups and
missing state take.  A restart takes its time and what was not saved.  Where no plan is left, nothing is trained until
a device is well again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wavetank.errors import BadValueError
from wavetank.training.reshaping.fault_events import Event
from wavetank.training.reshaping.interface import (
    Job,
    Plan,
    Reshaper,
    View,
    check_plan,
    healthy_plan,
    move_s,
    step_ps,
)
from wavetank.training.reshaping.pipeline_clock import PS


@dataclass(frozen=True, kw_only=True)
class Times:
    """What notices and restarts take.

    Parameters
    ----------
    dead_s : float
        From a death to its notice, s.
    slow_steps : int
        Steps from a slowdown to its notice, and validation included.
    validate_s : float
        For which the job stands still to find the slow device, s.
    restart_s : float
        Of a restart, s.
    unsaved_s : float
        Work that a restart does again, s.
    quiet_s : float
        Expected time between changes, s.
    """

    dead_s: float = 10.0
    slow_steps: int = 5
    validate_s: float = 3.0
    restart_s: float = 300.0
    unsaved_s: float = 300.0
    quiet_s: float = math.inf

    def __post_init__(self) -> None:
        for name in ("dead_s", "slow_steps", "validate_s", "restart_s", "unsaved_s", "quiet_s"):
            value = getattr(self, name)
            if not value >= 0 or (name != "quiet_s" and value == math.inf):
                raise BadValueError("This is no time of a job.", given=value, allowed="0 or more",
                                    where=name)  # fmt: skip


@dataclass
class Run:
    """What a job has done.

    Parameters
    ----------
    time_s : float
        Of the run.
    steps : float
        Trained and kept; parts of a step count.
    plans : int
        Changes of plan.
    changing_s : float
        In which the job stood still for notices, changes and restarts, s.
    stopped_s : float
        In which no plan was left, s.
    worst : float
        Longest step in force after a change / the healthy step.
    segments : list of (float, float, float)
        Begin and end, s, and steps per second.
    """

    time_s: float
    steps: float = 0.0
    plans: int = 0
    changing_s: float = 0.0
    stopped_s: float = 0.0
    worst: float = 1.0
    segments: list[tuple[float, float, float]] = field(default_factory=list)

    def spend(
        self, begin_s: float, end_s: float, pace: float, pace_until_s: float, still_until_s: float, rate: float
    ) -> None:
        """Count what is trained in a span: at one pace, then nothing, then at the pace of the plan in force.

        Parameters
        ----------
        begin_s, end_s : float
        pace, rate : float
            Steps per second before the stand, and after it.
        pace_until_s, still_until_s : float
        """
        first_s = min(end_s, max(begin_s, pace_until_s))
        second_s = min(end_s, max(first_s, still_until_s))
        for from_s, until_s, steps_per_s in (
            (begin_s, first_s, pace), (first_s, second_s, 0.0), (second_s, end_s, rate)
        ):  # fmt: skip
            if until_s > from_s:
                self.steps += (until_s - from_s) * steps_per_s
                self.segments.append((from_s, until_s, steps_per_s))
        self.changing_s += second_s - first_s
        self.stopped_s += end_s - second_s if rate == 0 else 0.0


def simulate(job: Job, events: Sequence[Event], horizon_s: float, reshaper: Reshaper, times: Times) -> Run:
    """Return what a job trains under given faults.

    Parameters
    ----------
    job : Job
    events : sequence of Event
        In order of time.
    horizon_s : float
        End of the run, s.
    reshaper : Reshaper
    times : Times
    """
    speed = np.ones(job.devices)
    last = healthy_plan(job)
    plan: Plan | None = last
    healthy_ps = step_ps(job, speed, last)
    run = Run(horizon_s)
    now_s = 0.0
    # Until when the job still runs at another pace, and until when it stands still after that.
    pace, pace_until_s, still_until_s = 0.0, 0.0, 0.0
    for event in events:
        if event.time_s >= horizon_s:
            break
        run.spend(now_s, event.time_s, pace, pace_until_s, still_until_s, _rate(job, speed, plan))
        now_s = event.time_s
        in_use = plan is not None and any(event.device in group for each in plan.replicas for group in each.groups)
        died, slowed = in_use and event.speed == 0, in_use and 0 < event.speed < speed[event.device]
        stood = still_until_s > now_s >= pace_until_s
        speed[event.device] = event.speed
        pace_until_s, left_s = now_s, max(0.0, still_until_s - max(now_s, pace_until_s))
        if slowed and not stood:
            pace = _rate(job, speed, plan)
            pace_until_s = now_s + times.slow_steps / pace
        if died and not stood:
            # The step that it was in, half done on average.
            run.steps = max(0.0, run.steps - 0.5)
        stop_s = left_s + (times.dead_s if died else times.validate_s if slowed else 0.0)
        after = reshaper.reshape(View(job, speed.copy(), last, times.quiet_s, times.restart_s + times.unsaved_s))
        if after is not None:
            check_plan(job, speed, after)
            if plan is None or after[:2] != plan[:2]:
                run.plans += 1
                stop_s += move_s(job, last, after)
                stop_s += times.restart_s + times.unsaved_s if after.restart else 0.0
            run.worst = max(run.worst, step_ps(job, speed, after) / healthy_ps)
            last = after
        plan = after
        still_until_s = pace_until_s + stop_s
    run.spend(now_s, horizon_s, pace, pace_until_s, still_until_s, _rate(job, speed, plan))
    return run


def _rate(job: Job, speed: np.ndarray, plan: Plan | None) -> float:
    """Steps per second; 0 without a plan."""
    return PS / step_ps(job, speed, plan) if plan is not None else 0.0
