"""Traces replayed: when every node runs on some system, and the chain of nodes that decides how long it takes.

Source: MLCommons Chakra, arXiv 2605.11333, for the feeder; J. E. Kelley, M. R. Walker, "Critical-Path Planning and
Scheduling", 1959.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadTraceError, BadValueError
from wavetank.insight.replay.checks import validate
from wavetank.platforms.fabric import Fabric
from wavetank.sim.steps import COLLECTIVE, KINDS, RECEIVE, SEND, Matches, StepTimes, matches
from wavetank.workloads.chakra import ExecutionTrace, TraceNode, in_order, step_graph
from wavetank.workloads.operations import UNPRICED, StepGraph

_Longs = npt.NDArray[np.int64]
COMMUNICATION = ("recorded", "fabric")


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """When the nodes of some traces run.

    Parameters
    ----------
    graph : StepGraph
        What was run: an operation for every node, with its duration.
    times : StepTimes
    nodes : tuple of TraceNode
        In the order of the graph's operations.
    """

    graph: StepGraph
    times: StepTimes
    nodes: tuple[TraceNode, ...]

    @property
    def makespan_ps(self) -> int:
        """The end of the last operation, ps."""
        return self.times.makespan_ps

    @cached_property
    def matches(self) -> Matches:
        """Which operations of different ranks belong together."""
        return matches(self.graph.steps)

    @cached_property
    def ranks(self) -> int:
        """How many ranks it has."""
        return int(self.graph.rank.max()) + 1

    @cached_property
    def _before(self) -> tuple[_Longs, _Longs]:
        """Of each operation, the one before it on its stream and the collective before it in its group; -1 for none."""
        graph, n = self.graph, len(self.graph)
        on_stream, in_group = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        last: dict[tuple[int, int], int] = {}
        queued: dict[tuple[int, int], int] = {}
        for i, (rank, stream, group) in enumerate(
            zip(graph.rank.tolist(), graph.stream.tolist(), graph.group.tolist(), strict=True)
        ):
            on_stream[i] = last.get((rank, stream), -1)
            last[rank, stream] = i
            if group >= 0:
                in_group[i] = queued.get((rank, group), -1)
                queued[rank, group] = i
        return on_stream, in_group

    def waits_for(self, i: int) -> list[int]:
        """Return the operations of the same rank, and of a receive its send, that must end before one can start.

        Parameters
        ----------
        i : int
            Number of the operation.
        """
        on_stream, in_group = self._before
        sender = int(self.matches.sender[i]) if self.graph.kind[i] == RECEIVE else -1
        found = [*self.graph.after(i), int(on_stream[i]), int(in_group[i]), sender]
        return [each for each in dict.fromkeys(found) if each >= 0]

    @cached_property
    def arrivals(self) -> list[tuple[list[int], list[int]]]:
        """Of every collective with several members: its operations, and when each came, ps."""
        end = self.times.end_ps
        return [
            (those, [max((int(end[each]) for each in self.waits_for(i)), default=0) for i in those])
            for those in self.matches.members
            if len(those) > 1
        ]

    @cached_property
    def waiting_ps(self) -> _Longs:
        """Of each rank, how long its collectives waited for the last member, in all, ps."""
        waited = np.zeros(self.ranks, np.int64)
        for those, came in self.arrivals:
            for i, at in zip(those, came, strict=True):
                waited[self.graph.rank[i]] += max(came) - at
        return waited

    @cached_property
    def last_counts(self) -> _Longs:
        """Of each rank, to how many collectives it came after all others."""
        counts = np.zeros(self.ranks, np.int64)
        for those, came in self.arrivals:
            latest = max(came)
            if came.count(latest) == 1:
                counts[self.graph.rank[those[came.index(latest)]]] += 1
        return counts


def simulate(
    traces: Sequence[ExecutionTrace],
    fabric: Fabric | None = None,
    *,
    communication: str = "recorded",
    flops_per_s: float = 1e14,
    algorithm: str = "ring",
) -> Timeline:
    """Return when the nodes of the traces of ranks 0, 1, ... run.

    What a collective took on one rank includes the wait for the last; of recorded durations, the least of its members
    counts.  Messages and collectives without a recorded duration, or all of them with ``communication="fabric"``, take
    what the fabric says.

    Parameters
    ----------
    traces : sequence of ExecutionTrace
    fabric : Fabric, optional
        Needed where something has no duration.
    communication : str
        One of :data:`COMMUNICATION`.
    flops_per_s : float
        For computation without a duration (``num_ops``).
    algorithm : str
        Of collectives on the fabric.

    Raises
    ------
    BadTraceError
        With the first problem of :func:`~wavetank.insight.replay.checks.validate`, the culprit named, and where nothing
        takes any time.
    BadValueError
        If there are no traces, or durations are missing and there is no fabric.
    DeadlockError
        If operations wait for each other.
    """
    if communication not in COMMUNICATION or (communication == "fabric" and fabric is None):
        raise BadValueError("Communication takes what was recorded, or what a fabric says.", given=communication,
                            allowed=COMMUNICATION, hint="simulate(traces, fabric)")  # fmt: skip
    if not traces:
        raise BadValueError("There are no traces to simulate.", allowed="one for every rank")
    problems = validate(traces)
    if problems:
        first = problems[0]
        raise BadTraceError(
            first.says, given=f"{first.label}, {len(problems)} in all",
            where=", ".join(traces[rank].where for rank in first.ranks[:2]) or None,
            hint="validate(traces) lists them",
        )  # fmt: skip
    graph = shortest(step_graph(traces))
    if communication == "fabric":
        moves = (graph.kind == COLLECTIVE) | (graph.kind == SEND) | (graph.kind == RECEIVE)
        graph = replace(graph, duration_ps=np.where(moves, UNPRICED, graph.duration_ps))
    if fabric is not None:
        graph = fabric.priced(graph, flops_per_s=flops_per_s, algorithm=algorithm)
    times = graph.times()
    if not times.makespan_ps:
        raise BadTraceError(
            "Nothing in the traces takes any time.", given=f"{len(graph)} nodes",
            allowed="durations, or sizes and a fabric", where=traces[0].where,
        )  # fmt: skip
    nodes = tuple(node for trace in traces for node in in_order(trace))
    return Timeline(graph=graph, times=times, nodes=nodes)


def shortest(graph: StepGraph) -> StepGraph:
    """Return a graph in which collectives take as long as on the member that waited least.

    Parameters
    ----------
    graph : StepGraph
    """
    duration_ps = graph.duration_ps.copy()
    for those in matches(graph.steps).members:
        known = duration_ps[those][duration_ps[those] != UNPRICED]
        if known.size:
            duration_ps[those] = known.min()
    return replace(graph, duration_ps=duration_ps)


@dataclass(frozen=True, kw_only=True, eq=False)
class CriticalPath:
    """The operations that decide how long a timeline takes, each starting when the one before ends.

    Parameters
    ----------
    timeline : Timeline
    operations : ndarray of int64, shape (m,)
        Their numbers, in the order of time.
    waited_ps : int
        Time on the way in which a shared link was taken by others, ps.
    """

    timeline: Timeline
    operations: _Longs
    waited_ps: int

    @property
    def taken_ps(self) -> int:
        """Sum of the durations on the way, ps: the makespan but for the wait for links."""
        return int(self.timeline.times.taken_ps[self.operations].sum())

    def by_kind_ps(self) -> dict[str, int]:
        """Return the time on the way by kind of operation, ps."""
        taken, kind = self.timeline.times.taken_ps[self.operations], self.timeline.graph.kind[self.operations]
        return {name: int(taken[kind == number].sum()) for number, name in enumerate(KINDS)}

    def by_name_ps(self) -> dict[str, int]:
        """Return the time on the way by name of the node, the longest first, ps."""
        found: dict[str, int] = {}
        for i in self.operations.tolist():
            name = self.timeline.nodes[i].name
            found[name] = found.get(name, 0) + int(self.timeline.times.taken_ps[i])
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the chain of operations that decides how long a timeline takes.

    It ends with the operation that ends last, and goes back from each to what it waited for until last; of several at
    once, to the lowest number.

    Parameters
    ----------
    timeline : Timeline
    """
    times = timeline.times
    start, end = times.start_ps, times.end_ps
    at = int(end.argmax())
    way, waited, seen = [at], 0, {at}
    while start[at] > 0 or _reached(timeline, at):
        before = list(_reached(timeline, at))
        late = [each for each in before if end[each] == start[at]]
        if not late:
            # A shared link was taken: by what ended on it just then.
            same = (timeline.graph.link == timeline.graph.link[at]) & (end == start[at])
            late = [each for each in np.flatnonzero(same).tolist() if each not in seen]
        if not late:
            came = max(before, key=lambda each: int(end[each]), default=-1)
            if came < 0:
                waited += int(start[at])
                break
            waited += int(start[at] - end[came])
            late = [came]
        at = min(late)
        way.append(at)
        seen.add(at)
    return CriticalPath(timeline=timeline, operations=np.array(way[::-1], np.int64), waited_ps=waited)


def _reached(timeline: Timeline, i: int) -> list[int]:
    """What an operation waits for: of a collective, what any member does."""
    meeting = int(timeline.matches.meeting[i])
    those: Iterator[int] = iter(timeline.matches.members[meeting] if meeting >= 0 else (i,))
    return list(dict.fromkeys(each for member in those for each in timeline.waits_for(member)))
