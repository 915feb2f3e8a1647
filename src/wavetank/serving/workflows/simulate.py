"""Applications on simulated devices: events are arrivals and ends of stages."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.workflows.dispatcher import Begun, Dispatcher
from wavetank.serving.workflows.interface import Application, FloatArray, Platform, Scheduler, StageKey


@dataclass(frozen=True, kw_only=True)
class Executed:
    """A stage as it was computed.

    Parameters
    ----------
    key : tuple of int
    devices : tuple of int
    start_s, end_s : float
        From its dispatch to the end of its last shard.
    loads, reused_tokens : int
        Models that were loaded for it, and tokens of its prefix found, over its devices.
    """

    key: StageKey
    devices: tuple[int, ...]
    start_s: float
    end_s: float
    loads: int
    reused_tokens: int

    @classmethod
    def of(cls, begun: Begun, start_s: float, end_s: float) -> Executed:
        """Return a stage that began and has ended, or will."""
        return cls(
            key=begun.key, devices=begun.devices, start_s=start_s, end_s=end_s,
            loads=sum(each.loaded for each in begun.used), reused_tokens=sum(each.reused_tokens for each in begun.used),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """What became of the applications.

    Parameters
    ----------
    stages : tuple of Executed
        In order of their dispatch.
    finish_s : tuple of float
        Of each application, in order of arrival.
    arrival_s : tuple of float
    decision_s : tuple of float
        Time that each decision took on this machine.
    load_s : float
        Time that devices spent loading models.
    """

    stages: tuple[Executed, ...]
    finish_s: tuple[float, ...]
    arrival_s: tuple[float, ...]
    decision_s: tuple[float, ...]
    load_s: float

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the end of the last stage."""
        return max(self.finish_s) - min(self.arrival_s)

    @property
    def latency_s(self) -> FloatArray:
        """From the arrival of each application to its end."""
        return np.array(self.finish_s) - np.array(self.arrival_s)


def actual_end_s(dispatcher: Dispatcher, begun: Begun, now_s: float) -> tuple[float, float]:
    """Return when a stage ends with the tokens that it really writes, and how long its devices load.

    Parameters
    ----------
    dispatcher : Dispatcher
        That began it.
    begun : Begun
    now_s : float
    """
    number, task = begun.key
    times = dispatcher.times(number)
    stage = times.application.stages[task]
    ends, loading = [], 0.0
    for device, share, transfer, used in zip(begun.devices, begun.shares, begun.transfer_s, begun.used, strict=True):
        about = dispatcher.platform.devices[device]
        load = float(times.load_s[task, device]) if used.loaded else 0.0
        prefix, rest = about.parts_s(stage, stage.output_tokens, used.reused_tokens)
        ends.append(now_s + transfer + load + prefix + share * rest)
        loading += load
    return max(ends) + dispatcher.platform.merge_s * (len(begun.devices) - 1), loading


def simulate(
    applications: Sequence[Application],
    platform: Platform,
    scheduler: Scheduler,
    *,
    dispatcher: Dispatcher | None = None,
) -> Run:
    """Run applications to their end.

    Parameters
    ----------
    applications : sequence of Application
        In order of arrival.
    platform : Platform
    scheduler : Scheduler
    dispatcher : Dispatcher, optional
        One that keeps its views; by default a new one without.

    Raises
    ------
    BadValueError
        If there is no application, arrivals are out of order, or a decision cannot be carried out.
    GaveUpError
        If the scheduler lets stages wait for ever.
    """
    arrivals = [each.arrival_s for each in applications]
    if not arrivals or arrivals != sorted(arrivals):
        raise BadValueError("Applications are needed, in order of arrival.", given=len(arrivals))
    books = Dispatcher(platform=platform, scheduler=scheduler) if dispatcher is None else dispatcher
    ends: list[tuple[float, int, StageKey]] = []
    done: list[Executed] = []
    finish = [0.0] * len(arrivals)
    arrived, now, loading = 0, 0.0, 0.0
    while arrived < len(arrivals) or ends:
        now = min(ends[0][0] if ends else float("inf"), arrivals[arrived] if arrived < len(arrivals) else float("inf"))
        while ends and ends[0][0] <= now:
            _, _, key = heapq.heappop(ends)
            books.finish(key)
            finish[key[0]] = now
        while arrived < len(arrivals) and arrivals[arrived] <= now:
            books.arrive(applications[arrived])
            arrived += 1
        for begun in books.decide(now) if books.waiting else ():
            end, load = actual_end_s(books, begun, now)
            loading += load
            heapq.heappush(ends, (end, len(done), begun.key))
            done.append(Executed.of(begun, now, end))
    return Run(
        stages=tuple(done), finish_s=tuple(finish), arrival_s=tuple(arrivals), decision_s=tuple(books.decision_s),
        load_s=loading,
    )  # fmt: skip
