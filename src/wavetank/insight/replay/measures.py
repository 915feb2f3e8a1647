"""Quantities of Chakra traces: what they hold, what is wrong with them, and what their replay says.

A replay takes recorded durations; what has none takes what a fabric says that the analyser's settings describe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from wavetank.diagnosis.findings import Value
from wavetank.errors import BadTraceError, WavetankError, unknown_name
from wavetank.insight.replay.checks import Problem, validate
from wavetank.insight.replay.reading import read_et
from wavetank.insight.replay.timeline import CriticalPath, Timeline, critical_path, simulate
from wavetank.platforms.fabric import Fabric, Level
from wavetank.sim.steps import KINDS
from wavetank.workloads.chakra import COLLECTIVE_NODE, SEND_NODE, ExecutionTrace, duration_ns, is_collective, on_host

_PS = 1e12
_MOVING = ("collective", "send", "receive")


class NoReplayError(WavetankError):
    """The traces cannot be replayed, or hold nothing of what a quantity is made of."""


class ChakraSource:
    """The traces of one job as quantities by name.

    Parameters
    ----------
    path : Path
        A file, or a folder with one file a rank.
    alpha_s, bytes_per_s : float
        Of the fabric, for what has no recorded duration.
    flops_per_s : float
        Likewise.

    Raises
    ------
    BadFileError, BadTraceError
        If a file cannot be read, or ranks are missing.
    """

    def __init__(self, path: Path, *, alpha_s: float, bytes_per_s: float, flops_per_s: float) -> None:
        self.path = path
        self.traces: tuple[ExecutionTrace, ...] = read_et(path, unique=False)
        self._alpha_s, self._bytes_per_s, self._flops_per_s = alpha_s, bytes_per_s, flops_per_s

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """What keeps the traces from being replayed."""
        return validate(self.traces)

    @cached_property
    def timeline(self) -> Timeline:
        """The replay.

        Raises
        ------
        NoReplayError
            If it cannot be.
        """
        level = Level(
            name="fabric", size=max(len(self.traces), 2), alpha_s=self._alpha_s, bytes_per_s=self._bytes_per_s
        )
        try:
            return simulate(self.traces, Fabric(levels=(level,)), flops_per_s=self._flops_per_s)
        except WavetankError as error:
            raise NoReplayError("The traces cannot be replayed.", given=str(error.problem),
                                where=str(self.path)) from error  # fmt: skip

    @cached_property
    def path_of(self) -> CriticalPath:
        """The critical path of the replay."""
        return critical_path(self.timeline)

    def rank(self, rank: int) -> ExecutionTrace:
        """Return the trace of a rank.

        Parameters
        ----------
        rank : int
        """
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < len(self.traces):
            raise BadTraceError("There is no trace of this rank.", given=rank, allowed=f"0 to {len(self.traces) - 1}")
        return self.traces[rank]

    def problem(self, number: int) -> Problem:
        """Return one of the problems.

        Parameters
        ----------
        number : int
            From 0.
        """
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self.problems):
            raise NoReplayError("There is no such problem.", given=number, where=str(self.path))
        return self.problems[number]

    def quantity(self, name: str, **of: Any) -> Value:
        """Return a quantity by its name.

        Parameters
        ----------
        name : str
            One of :data:`QUANTITIES`.
        **of : value
            Its arguments.

        Raises
        ------
        NoReplayError
            If the traces do not hold what it is made of.
        UnknownNameError
            If there is no such quantity.
        """
        if name not in QUANTITIES:
            raise unknown_name("quantity", name, QUANTITIES, hint="see wavetank.insight.replay.measures")
        return QUANTITIES[name](self, **of)

    def how(self, name: str) -> str:
        """Return how a quantity is read from the traces.

        Parameters
        ----------
        name : str
        """
        return (QUANTITIES[name].__doc__ or "").strip().rstrip(".")


def _ranks(source: ChakraSource) -> int:
    """Files of ranks that were read."""
    return len(source.traces)


def _form(source: ChakraSource) -> str:
    """Form of the first file: et, or the key of its list of nodes."""
    return source.traces[0].form


def _nodes(source: ChakraSource, rank: int) -> int:
    """Nodes of the file."""
    return len(source.rank(rank).nodes)


def _all_nodes(source: ChakraSource) -> int:
    """Nodes of all files."""
    return sum(len(trace.nodes) for trace in source.traces)


def _collectives(source: ChakraSource) -> int:
    """Nodes of type 7 (collective) that are not on the host, of all files."""
    return sum(is_collective(node) for trace in source.traces for node in trace.nodes)


def _unrecorded(source: ChakraSource) -> float:
    """Collectives and sends without a duration / collectives and sends that are not on the host."""
    moving = [
        node for trace in source.traces for node in trace.nodes
        if node.type in (SEND_NODE, COLLECTIVE_NODE) and not on_host(node)
    ]  # fmt: skip
    if not moving:
        raise NoReplayError("Nothing in the traces communicates.", where=str(source.path))
    return sum(duration_ns(node) == 0 for node in moving) / len(moving)


def _problems(source: ChakraSource) -> int:
    """What keeps the traces from being replayed, at most 100."""
    return len(source.problems)


def _problem(source: ChakraSource, number: int) -> str:
    """What the problem is, by wavetank.insight.replay.validate."""
    return source.problem(number).says


def _problem_label(source: ChakraSource, number: int) -> str:
    """Its label."""
    return source.problem(number).label


def _problem_node(source: ChakraSource, number: int) -> int:
    """Identity of the first node that shows it; -1 where a node is lacking."""
    return source.problem(number).node


def _culprits(source: ChakraSource, number: int) -> str:
    """Ranks that differ from most others in it, or all that it is about."""
    return ", ".join(map(str, source.problem(number).ranks))


def _call(source: ChakraSource, number: int) -> int:
    """Which call of the group it is, from 0."""
    return source.problem(number).call


def _same(source: ChakraSource, label: str) -> int:
    """Problems of this label, at most 100."""
    return sum(problem.label == label for problem in source.problems)


def _makespan(source: ChakraSource) -> float:
    """End of the last node in the replay."""
    return source.timeline.makespan_ps / _PS


def _of_path(source: ChakraSource, kinds: tuple[str, ...]) -> float:
    by_kind = source.path_of.by_kind_ps()
    return sum(by_kind[kind] for kind in kinds) / source.timeline.makespan_ps


def _communication(source: ChakraSource) -> float:
    """Collectives and messages on the critical path / makespan of the replay."""
    return _of_path(source, _MOVING)


def _computation(source: ChakraSource) -> float:
    """Computation of devices on the critical path / makespan of the replay."""
    return _of_path(source, tuple(kind for kind in KINDS if kind not in (*_MOVING, "host")))


def _host(source: ChakraSource) -> float:
    """Nodes of the host on the critical path / makespan of the replay."""
    return _of_path(source, ("host",))


def _link_wait(source: ChakraSource) -> float:
    """Waiting for shared links on the critical path / makespan of the replay."""
    return source.path_of.waited_ps / source.timeline.makespan_ps


def _path_nodes(source: ChakraSource) -> int:
    """Nodes on the critical path."""
    return int(source.path_of.operations.size)


def _largest(source: ChakraSource) -> str:
    """Name with the largest sum of durations on the critical path."""
    return next(iter(source.path_of.by_name_ps()))


def _largest_share(source: ChakraSource) -> float:
    """Sum of the durations of that name on the critical path / makespan of the replay."""
    return next(iter(source.path_of.by_name_ps().values())) / source.timeline.makespan_ps


def _waiting(source: ChakraSource, rank: int) -> float:
    """Sum over collectives of (when the last member came - when this rank came) / makespan of the replay."""
    source.rank(rank)
    waited = source.timeline.waiting_ps
    return float(waited[rank]) / source.timeline.makespan_ps if rank < waited.size else 0.0


def _last_rank(source: ChakraSource) -> int:
    """Rank that comes last, and alone, to the most collectives of the replay."""
    return int(_counts(source).argmax())


def _last_share(source: ChakraSource) -> float:
    """Collectives to which that rank comes last, and alone / collectives with several members."""
    return float(_counts(source).max()) / len(source.timeline.arrivals)


def _counts(source: ChakraSource) -> Any:
    counts = source.timeline.last_counts
    if not source.timeline.arrivals or not counts.any():
        raise NoReplayError("No collective has members of which one comes last.", where=str(source.path))
    return counts


QUANTITIES: Mapping[str, Callable[..., Value]] = {
    "ranks": _ranks, "form": _form, "nodes": _nodes, "all_nodes": _all_nodes, "collectives": _collectives,
    "unrecorded_share": _unrecorded, "problems": _problems, "problem": _problem, "problem_label": _problem_label,
    "problem_node": _problem_node, "culprits": _culprits, "call": _call, "problems_alike": _same,
    "makespan_s": _makespan, "path_communication_share": _communication, "path_computation_share": _computation,
    "path_host_share": _host, "path_link_wait_share": _link_wait, "path_nodes": _path_nodes,
    "largest_node": _largest, "largest_node_share": _largest_share, "waiting_share": _waiting,
    "last_rank": _last_rank, "last_share": _last_share,
}  # fmt: skip
"""What can be asked of a source, by name; the text below each function is how it is read."""
