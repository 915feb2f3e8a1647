"""HEFT, PEFT and CPOP: the whole workflow is planned when it arrives, stage by stage in an order of urgency.

They know what a stage takes on every device and what transfers take, but not what devices keep: loading and cached
prefixes are not in their costs.  Planned stages keep their device; one that is late lets the next one of its device
that is ready go first.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wavetank.serving.workflows.costs import means, upward_s
from wavetank.serving.workflows.interface import Dispatch, FloatArray, Platform, Session, StageKey, View
from wavetank.serving.workflows.watch import Watch
from wavetank.settings import setting

Parents = Sequence[Sequence[int]]


class Placed(NamedTuple):
    """Where and when a task is planned."""

    device: int
    start_s: float
    end_s: float


class Timelines:
    """What devices are planned to do; new tasks may go into gaps.

    Parameters
    ----------
    devices : int
    """

    def __init__(self, devices: int) -> None:
        self.busy: list[list[tuple[float, float]]] = [[] for _ in range(devices)]

    def earliest_s(self, device: int, ready_s: float, length_s: float) -> float:
        """Return when a task of a length could begin, not before it is ready."""
        at = ready_s
        for start, end in self.busy[device]:
            if at + length_s <= start:
                break
            at = max(at, end)
        return at

    def take(self, placed: Placed) -> None:
        """Fill in a task."""
        bisect.insort(self.busy[placed.device], (placed.start_s, placed.end_s))


class Problem(NamedTuple):
    """A workflow to plan."""

    run_s: FloatArray
    """Shape (tasks, devices); infinite where a task may not run."""
    parents: Parents
    edge_s: Sequence[Sequence[float]]
    """Time from each parent to another device."""
    order: Sequence[int]
    """Parents before children."""

    @property
    def mean_s(self) -> FloatArray:
        """Mean time of each task over the devices that may run it."""
        return means(self.run_s)

    def upward_s(self) -> FloatArray:
        """Return each task's mean time and the longest way after it."""
        return upward_s(self.mean_s, self.parents, self.edge_s, self.order)

    def downward_s(self) -> FloatArray:
        """Return the longest way before each task."""
        found, mean = np.zeros(len(self.order)), self.mean_s
        for task in self.order:
            for parent, edge in zip(self.parents[task], self.edge_s[task], strict=True):
                found[task] = max(found[task], found[parent] + mean[parent] + edge)
        return found

    def optimistic_s(self) -> FloatArray:
        """Return PEFT's table: the longest of the shortest ways after each task, if it runs on each device."""
        count = self.run_s.shape[1]
        found = np.zeros(self.run_s.shape)
        for task in reversed(self.order):
            for parent, edge in zip(self.parents[task], self.edge_s[task], strict=True):
                to = found[task] + self.run_s[task]
                away = edge * (1 - np.eye(count))
                found[parent] = np.maximum(found[parent], (to[None, :] + away).min(axis=1))
        return found


def planned(
    problem: Problem,
    priority: FloatArray,
    timelines: Timelines,
    *,
    now_s: float = 0.0,
    ahead_s: FloatArray | None = None,
    fixed: dict[int, int] | None = None,
) -> list[Placed]:
    """Return a plan: of the tasks whose parents are planned always the one of highest priority, where it ends first.

    Parameters
    ----------
    problem : Problem
    priority : array of float64, shape (tasks,)
    timelines : Timelines
        Of the devices; filled in.
    now_s : float
        Nothing begins earlier.
    ahead_s : array of float64, shape (tasks, devices), optional
        What is added to a task's end when devices are compared.
    fixed : dict of int to int, optional
        Devices of tasks that have no choice.
    """
    children: list[list[int]] = [[] for _ in problem.parents]
    for task, above in enumerate(problem.parents):
        for parent in above:
            children[parent].append(task)
    missing = [len(each) for each in problem.parents]
    ready = [(-priority[task], task) for task, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    found: list[Placed] = [Placed(-1, 0.0, 0.0)] * len(missing)
    while ready:
        _, task = heapq.heappop(ready)
        best, least = Placed(-1, math.inf, math.inf), math.inf
        own = (fixed or {}).get(task)
        for device in range(problem.run_s.shape[1]) if own is None else (own,):
            length = float(problem.run_s[task, device])
            if length == math.inf:
                continue
            at = now_s
            for parent, edge in zip(problem.parents[task], problem.edge_s[task], strict=True):
                at = max(at, found[parent].end_s + (edge if found[parent].device != device else 0.0))
            start = timelines.earliest_s(device, at, length)
            ahead = 0.0 if ahead_s is None else float(ahead_s[task, device])
            if start + length + ahead < least:
                best, least = Placed(device, start, start + length), start + length + ahead
        found[task] = best
        timelines.take(best)
        for child in children[task]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, (-priority[child], child))
    return found


def heft(problem: Problem, timelines: Timelines, now_s: float = 0.0) -> list[Placed]:
    """Plan with HEFT: by upward rank, each task where it ends first.

    Parameters
    ----------
    problem : Problem
    timelines : Timelines
    now_s : float
    """
    return planned(problem, problem.upward_s(), timelines, now_s=now_s)


def peft(problem: Problem, timelines: Timelines, now_s: float = 0.0) -> list[Placed]:
    """Plan with PEFT: by the mean of its table, each task where its end and the table's entry are least.

    Parameters
    ----------
    problem : Problem
    timelines : Timelines
    now_s : float
    """
    table = problem.optimistic_s()
    finite = np.where(np.isfinite(problem.run_s), table, np.nan)
    return planned(problem, np.nanmean(finite, axis=1), timelines, now_s=now_s, ahead_s=table)


def cpop(problem: Problem, timelines: Timelines, now_s: float = 0.0) -> list[Placed]:
    """Plan with CPOP: the tasks of the critical path on the device that takes least for all of them.

    Parameters
    ----------
    problem : Problem
    timelines : Timelines
    now_s : float
    """
    priority = problem.upward_s() + problem.downward_s()
    longest = max(priority[task] for task, above in enumerate(problem.parents) if not above)
    path: list[int] = []
    for task in problem.order:
        follows = not problem.parents[task] if not path else path[-1] in problem.parents[task]
        if follows and math.isclose(priority[task], longest, rel_tol=1e-9):
            path.append(task)
    total = problem.run_s[path].sum(axis=0)
    fixed = dict.fromkeys(path, int(total.argmin())) if np.isfinite(total.min()) else {}
    return planned(problem, priority, timelines, now_s=now_s, fixed=fixed)


_RULES = {"heft": heft, "peft": peft, "cpop": cpop}


class _Static:
    def __init__(self, platform: Platform, rule: str) -> None:
        self._watch, self._rule = Watch(platform), _RULES[rule]
        self._timelines = Timelines(len(platform.devices))
        self._queues: list[list[tuple[float, StageKey]]] = [[] for _ in platform.devices]

    def decide(self, view: View) -> Sequence[Dispatch]:
        known = len(self._watch.times)
        self._watch.see(view)
        for number in range(known, len(view.applications)):
            self._plan(view, number)
        ready = set(view.ready)
        found = []
        for device, queue in enumerate(self._queues):
            if view.devices[device].idle:
                first = next((each for each in queue if each[1] in ready), None)
                if first is not None:
                    queue.remove(first)
                    found.append(Dispatch(first[1], (device,)))
        return found

    def _plan(self, view: View, number: int) -> None:
        times = self._watch.times[number]
        workflow = times.application.workflow
        network = times.platform.network_bytes_per_s
        problem = Problem(
            times.run_s, workflow.parents, [[size / network for size in sizes] for sizes in workflow.edge_bytes],
            workflow.order,
        )  # fmt: skip
        for task, placed in enumerate(self._rule(problem, self._timelines, view.now_s)):
            bisect.insort(self._queues[placed.device], (placed.start_s, (number, task)))


@dataclass(frozen=True, kw_only=True)
class ListScheduling:
    """Plans every workflow as a whole when it arrives."""

    rule: str = setting("heft", says="How tasks are ordered and placed", choices=tuple(_RULES))

    def session(self, platform: Platform) -> Session:
        """Return a session with empty timelines.

        Parameters
        ----------
        platform : Platform
        """
        return _Static(platform, self.rule)
