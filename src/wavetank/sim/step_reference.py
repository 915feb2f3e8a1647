"""The rules of :mod:`wavetank.sim.steps` in plain Python: slow, short, and what the compiled executor must equal.

Every stream is asked whether its next operation can go on, and asked again when an operation ends that one of its own
depends on.  When none can go on, the earliest request for a shared link is served.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from wavetank.sim.steps import COLLECTIVE, DeadlockError, Steps, StepTimes, matches


class _Reference:
    """A run: what has ended, and where every stream is."""

    def __init__(self, steps: Steps) -> None:
        n = steps.rank.size
        self.end: dict[int, int] = {}
        self.taken = steps.duration_ps.tolist()
        self.link = steps.link.tolist()
        self.link_free: dict[int, int] = {}
        # Requests for links: when, which number asks, and the operations that run at once.
        self.asked: list[tuple[int, int, list[int]]] = []
        self.waiting: set[int] = set()
        self.arrived: dict[int, dict[int, int]] = {}
        self.found = matches(steps)
        self.sender, self.meeting = self.found.sender.tolist(), self.found.meeting.tolist()
        self.stream_of = list(zip(steps.rank.tolist(), steps.stream.tolist(), strict=True))
        self.streams: dict[tuple[int, int], list[int]] = {}
        self.before: list[list[int]] = []
        # Streams to ask again when an operation ends.
        self.followers: list[set[tuple[int, int]]] = [{stream} for stream in self.stream_of]
        self.ask: set[tuple[int, int]] = set(self.stream_of)
        last: dict[tuple[int, int], int] = {}
        starts, deps = steps.dep_start.tolist(), steps.dep.tolist()
        for i in range(n):
            self.streams.setdefault(self.stream_of[i], []).append(i)
            before = deps[starts[i] : starts[i + 1]]
            if self.sender[i] >= 0:
                before.append(self.sender[i])
            if steps.kind[i] == COLLECTIVE:
                queue = (int(steps.group[i]), int(steps.rank[i]))
                if queue in last:
                    before.append(last[queue])
                last[queue] = i
            for each in before:
                self.followers[each].add(self.stream_of[i])
            self.before.append(before)

    def go_on(self, i: int, free: int) -> None:
        """Run an operation, of which those before it on its stream ended at ``free``, if it can."""
        arrived = self.arrived.get(self.meeting[i], {})
        if self.sender[i] == -2 or i in arrived or i in self.waiting:
            return
        if any(each not in self.end for each in self.before[i]):
            return
        ready = max([free, *(self.end[each] for each in self.before[i])])
        those = [i]
        if self.meeting[i] >= 0:
            self.arrived.setdefault(self.meeting[i], arrived)[i] = ready
            those = self.found.members[self.meeting[i]]
            if not self.found.whole[self.meeting[i]] or len(arrived) < len(those):
                return
            ready = max(arrived.values())
        if self.link[i] >= 0:
            heapq.heappush(self.asked, (ready, min(those), those))
            self.waiting.update(those)
        else:
            self.run(those, ready)

    def run(self, those: list[int], start: int) -> int:
        """Run one operation, or all of a collective, and return when they end."""
        longest = max(self.taken[i] for i in those)
        for i in those:
            self.taken[i], self.end[i] = longest, start + longest
            self.ask |= self.followers[i]
        return start + longest

    def serve(self) -> None:
        """Serve the earliest request for a link."""
        asked, _, those = heapq.heappop(self.asked)
        link = self.link[those[0]]
        self.link_free[link] = self.run(those, max(asked, self.link_free.get(link, 0)))


def reference_times(steps: Steps, describe: Callable[[int], str] = "operation {}".format) -> StepTimes:
    """Return when every operation ends.

    Parameters
    ----------
    steps : Steps
    describe : callable
        Returns how errors call an operation, by its number.

    Raises
    ------
    DeadlockError
        If operations never start.
    """
    run = _Reference(steps)
    n = len(run.before)
    position = dict.fromkeys(run.streams, 0)
    free = dict.fromkeys(run.streams, 0)
    while run.ask or run.asked:
        if not run.ask:
            run.serve()
        stream = run.ask.pop()
        operations = run.streams[stream]
        while position[stream] < len(operations):
            i = operations[position[stream]]
            if i not in run.end:
                run.go_on(i, free[stream])
            if i not in run.end:
                break
            free[stream] = run.end[i]
            position[stream] += 1
    left = [i for i in range(n) if i not in run.end]
    if left:
        raise DeadlockError(f"{len(left)} of {n} operations never start: {describe(left[0])} is one.")
    return StepTimes(np.array([run.end[i] for i in range(n)], np.int64), np.array(run.taken, np.int64))
