"""Other ways to the times of a training step: SimPy, plain Python, and a closed form where there is one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import BadValueError, GaveUpError, missing_extra
from wavetank.sim.step_reference import reference_times
from wavetank.sim.steps import DeadlockError, StepTimes, matches, numbered_links
from wavetank.training.steps.interface import StepCase
from wavetank.workloads.pipelines import pipeline_time_ps


@dataclass(frozen=True, kw_only=True)
class PythonSteps:
    """The rules of a step in plain Python, which the compiled executor equals; the baseline of the study.

    A simulator of the study has ``prepare(case)``, which returns the call to time.
    """

    def prepare(self, case: StepCase) -> Callable[[], StepTimes]:
        """Return the call that runs the graph.

        Parameters
        ----------
        case : StepCase
        """
        case.graph.prepared()
        return lambda: reference_times(case.graph.steps, case.graph.describe)


@dataclass(frozen=True, kw_only=True)
class ClosedFormSteps:
    """The makespan of a pipeline of equal stages by formula: what a planner asks that tries thousands of plans."""

    def prepare(self, case: StepCase) -> Callable[[], int]:
        """Return the call that works out the makespan; it gives up on a step without a closed form.

        Parameters
        ----------
        case : StepCase
        """

        def call() -> int:
            if not case.pipeline:
                raise GaveUpError("There is no closed form of this step.")
            return pipeline_time_ps(**case.pipeline)

        return call


@dataclass(frozen=True, kw_only=True)
class BusiestRank:
    """Adds up what a rank does, one thing after another, as a planner on the back of an envelope does.

    Nothing overlaps, and no rank waits for another: a step takes as long as its busiest rank has work.
    """

    def prepare(self, case: StepCase) -> Callable[[], StepTimes]:
        """Return the call that adds durations up, by rank.

        Parameters
        ----------
        case : StepCase
        """
        taken_ps, rank = case.graph.prepared().taken_ps, case.graph.rank

        def call() -> StepTimes:
            end_ps = np.zeros(taken_ps.size, np.int64)
            for each in np.unique(rank).tolist():
                end_ps[rank == each] = np.cumsum(taken_ps[rank == each])
            return StepTimes(end_ps, taken_ps)

        return call


class _Lists(NamedTuple):
    """A step graph as lists, by operation, for processes in Python."""

    streams: Sequence[Sequence[int]]
    before: Sequence[Sequence[int]]
    taken: Sequence[int]
    meeting: Sequence[int]
    members: Sequence[Sequence[int]]
    link: Sequence[int]
    links: int


@dataclass(frozen=True, kw_only=True)
class SimpySteps:
    """SimPy with a process for every stream.

    As fast as it gets within SimPy: a process waits for an event only where an operation before it has not ended, and
    makes that event only then; a shared link is the time from which it is free, so that a request is no event.
    """

    def prepare(self, case: StepCase) -> Callable[[], StepTimes]:
        """Return the call that builds the processes and runs them.

        Parameters
        ----------
        case : StepCase

        Raises
        ------
        MissingExtraError
            Without SimPy.
        BadValueError
            For collectives or messages without a partner, which would stand still.
        """
        try:
            simpy = importlib.import_module("simpy")
        except ImportError:
            raise missing_extra("simpy", "training", needed_for="The system simpy-steps") from None
        steps = case.graph.steps
        found = matches(steps)
        if (found.sender == -2).any() or not all(found.whole):
            raise BadValueError(
                "simpy-steps runs whole graphs alone.", given="a collective or message without its partner",
                allowed="graphs in which each has one", hint="the executor of wavetank.sim.steps names the operation",
            )  # fmt: skip
        by_stream: dict[tuple[int, int], list[int]] = {}
        last: dict[tuple[int, int], int] = {}
        before = [list(case.graph.after(i)) for i in range(len(case.graph))]
        for i, key in enumerate(zip(steps.rank.tolist(), steps.stream.tolist(), strict=True)):
            by_stream.setdefault(key, []).append(i)
            if found.sender[i] >= 0:
                before[i].append(int(found.sender[i]))
            if found.meeting[i] >= 0:
                queue = int(steps.group[i]), key[0]
                before[i] += [last[queue]] if queue in last else []
                last[queue] = i
        prepared = case.graph.prepared()
        link, links = numbered_links(steps)
        lists = _Lists(
            tuple(by_stream.values()), before, prepared.taken_ps.tolist(), found.meeting.tolist(), found.members,
            link.tolist(), links,
        )  # fmt: skip

        def call() -> StepTimes:
            return StepTimes(np.array(_simpy_ends(simpy, lists), np.int64), prepared.taken_ps)

        return call


def _simpy_ends(simpy: Any, lists: _Lists) -> list[int]:
    environment = simpy.Environment()
    end = [-1] * len(lists.taken)
    waiting: dict[int, Any] = {}
    came: dict[int, list[int]] = {}
    link_free = [0] * lists.links

    def stream(operations: Sequence[int]) -> Generator[Any]:
        before, taken, meeting, members, link = lists.before, lists.taken, lists.meeting, lists.members, lists.link
        timeout, event = environment.timeout, environment.event
        for i in operations:
            for each in before[i]:
                if end[each] < 0:
                    if each not in waiting:
                        waiting[each] = event()
                    yield waiting[each]
            those = [i]
            meets = meeting[i]
            if meets >= 0:
                arrived = came.setdefault(meets, [])
                arrived.append(i)
                those = list(members[meets])
                if len(arrived) < len(those):
                    if i not in waiting:
                        waiting[i] = event()
                    yield waiting[i]
                    continue
            if link[i] >= 0:
                start = max(environment.now, link_free[link[i]])
                link_free[link[i]] = start + taken[i]
                yield timeout(start + taken[i] - environment.now)
            else:
                yield timeout(taken[i])
            now = environment.now
            for each in those:
                end[each] = now
                if each in waiting:
                    waiting[each].succeed()

    for operations in lists.streams:
        environment.process(stream(operations))
    environment.run()
    # SimPy ends when nothing is left to happen, whether all have run or not.
    left = end.count(-1)
    if left:
        raise DeadlockError(
            f"{left} of {len(end)} operations never start.", allowed="graphs in which all can run",
            hint="the executor of wavetank.sim.steps names the operations that wait for each other",
        )  # fmt: skip
    return end
