"""What came out of a cluster: counters, and what clients asked and nodes decided, be it more than memory holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from wavetank.errors import WavetankError
from wavetank.live.journal import Lanes, as_operation, operations_of
from wavetank.live.spill import RECENT, Spilled, SpilledList, SpillFile
from wavetank.sim.history import History, Operation
from wavetank.sim.node import Algorithm, Node, Snapshot
from wavetank.sim.simulation import Answer, Request

# Contradictions of one node that are kept; one decides the verdict.
_MOST_CONTRADICTIONS = 10
_NOTHING = object()

T = TypeVar("T")
Growing = list[T] | SpilledList[T]


@dataclass(frozen=True, slots=True)
class Output:
    """What a node reported to the outside.

    Parameters
    ----------
    kind : str
        ``decide``, ``reply`` or ``record``.
    node : int
    at : float
        Rounds.
    name : object
        The instance, the number of the request, or the metric.
    value : object
    """

    kind: str
    node: int
    at: float
    name: Any
    value: Any


@dataclass(kw_only=True)
class ClusterRun:
    """What came out of a cluster; the names are those of :class:`wavetank.sim.simulation.Run`.

    Attributes
    ----------
    size : int
        Nodes.
    time : float
        Rounds that passed.
    duration_s : float
        Seconds that passed.
    nodes : list of Node
        As they ended, those that were up and whose state is plain; the others are new.
    correct : frozenset of int
        Nodes without a Byzantine fault.
    decisions, decided_at, contradictions, requests, replies, recorded
        As in a simulation; of the contradictions of each node the first ones.
    instances : mapping
        Instance to how many nodes decided in it.
    sent, duplicated, delivered, dropped : int
        Messages; what a killed process had not yet reported is missing.
    counters : dict
        All counters by name: ``overflowed`` from full queues, ``lost`` on purpose, ``undelivered`` to nodes that were
        down, ``connections`` made, ``synchronised`` writes to disk, ...
    hostile : dict
        Reason to the number of frames and connections refused for it.
    latencies_s : dict
        Number of a request to the seconds from asking to the first answer, at the client.
    invoked_s, returned_s : dict
        Number of a request to its times.
    retries, restarts : int
    unheard : int
        Requests that were not passed on, because their node took none for too long; clients ask again.
    failures : dict
        Node to the trace of the exception that ended it.
    violation : str
        Which invariant is broken and how; empty when all hold.
    first_number : int
        Number of the first request; more than 0 when an earlier run was resumed.
    runs : int
        How many runs used the folder, this one included.
    journal : Path or None
        Where requests and answers of all these runs are written down.
    troubles : list of str
        What went wrong with the cluster itself rather than with the protocol: a node that did not come back, a link
        that never came up, bytes that a crash tore off.
    """

    size: int
    time: float = 0.0
    duration_s: float = 0.0
    nodes: list[Node] = field(default_factory=list)
    correct: frozenset[int] = frozenset()
    decisions: MutableMapping[tuple[int, Any], Any] = field(default_factory=dict)
    decided_at: MutableMapping[tuple[int, Any], float] = field(default_factory=dict)
    instances: MutableMapping[Any, int] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    requests: Growing[Request] = field(default_factory=list)
    replies: MutableMapping[int, Answer] = field(default_factory=dict)
    recorded: dict[str, Growing[tuple[float, int, float]]] = field(default_factory=lambda: defaultdict(list))
    sent: int = 0
    duplicated: int = 0
    delivered: int = 0
    dropped: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    hostile: dict[str, int] = field(default_factory=dict)
    latencies_s: MutableMapping[int, float] = field(default_factory=dict)
    invoked_s: MutableMapping[int, float] = field(default_factory=dict)
    returned_s: MutableMapping[int, float] = field(default_factory=dict)
    retries: int = 0
    unheard: int = 0
    restarts: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    violation: str = ""
    first_number: int = 0
    runs: int = 1
    journal: Path | None = None
    troubles: list[str] = field(default_factory=list)

    def total(self, metric: str) -> float:
        """Return the sum of what the nodes recorded under ``metric``."""
        return sum(value for _, _, value in self.recorded.get(metric, ()))

    def snapshot(self) -> Snapshot:
        """Return the end of the run, for invariants."""
        return Snapshot(self.nodes, self.correct, self.decisions, _Results(self.replies))

    def latency_s(self, quantile: float) -> float:
        """Return a quantile of the requests' latencies; NaN when none was answered."""
        count = len(self.latencies_s)
        if not count:
            return float("nan")
        place = min(int(quantile * count), count - 1)
        found = np.fromiter(self.latencies_s.values(), np.float64, count)
        return float(np.partition(found, place)[place])

    def operations(self) -> Iterator[Operation]:
        """Yield the requests as operations of clients, as :meth:`history` has them, without keeping them in memory."""
        if self.journal is not None:
            yield from operations_of(self.journal)
            return
        lanes = Lanes()
        # In the order in which they were asked.
        for number, invoked in self.invoked_s.items():
            request = self.requests[number - self.first_number]
            action, key, value = as_operation(request.command)
            answer = self.replies.get(number)
            returned = self.returned_s.get(number)
            yield Operation(
                process=lanes.name(request.client, invoked, returned),
                action=action,
                key=key,
                value=value,
                result=None if answer is None else answer.result,
                invoked=invoked,
                returned=returned,
            )

    def history(self) -> History:
        """Return the requests as operations of clients.

        A command ``(action, key, value)`` becomes that operation, any other the value of a ``command``.  A client that
        asks before it was answered counts as several.  Of a run that was resumed the requests of the earlier runs
        come first, since what they wrote can be read.
        """
        return History(operations=tuple(self.operations()))

    def take(self, output: Output, now_s: float) -> bool:
        """Take in what a node reported; returns whether it is the first answer to a request.

        Parameters
        ----------
        output : Output
        now_s : float
            Seconds from the start to the arrival of an answer at the client.
        """
        number = output.name
        if output.kind == "decide":
            self.decided(output.node, output.name, output.value, output.at)
        elif output.kind == "record":
            self.recorded[output.name].append((output.at, output.node, output.value))
        elif number in self.invoked_s and number not in self.replies:
            self.replies[number] = Answer(output.at, output.node, output.value)
            self.returned_s[number] = now_s
            self.latencies_s[number] = now_s - self.invoked_s[number]
            return True
        return False

    def judge(self, algorithm: Algorithm) -> None:
        """Set the violation: the first contradiction of a correct node, or what the algorithm finds broken."""
        said = (each for each in self.contradictions if int(each.split()[1]) in self.correct)
        self.violation = next(said, "") or algorithm.violation(self.snapshot())

    def decided(self, node: int, instance: Any, value: Any, at: float) -> None:
        """Take in a decision; of two of one node in one instance the first counts."""
        place = (node, instance)
        known = self.decisions.get(place, _NOTHING)
        if known is _NOTHING:
            self.decisions[place] = value
            self.decided_at[place] = at
            self.instances[instance] = self.instances.get(instance, 0) + 1
        elif known is not value and known != value:
            start = f"node {node} decided "
            # What a Byzantine node contradicts for ever must not grow, nor hide what another one does.
            if sum(text.startswith(start) for text in self.contradictions) < _MOST_CONTRADICTIONS:
                self.contradictions.append(f"{start}{known!r}, then {value!r} in instance {instance!r}")

    def spill(self, file: SpillFile, recent: int = RECENT) -> None:
        """Keep in memory only the newest of what is taken in from now on.

        Parameters
        ----------
        file : SpillFile
            Takes the others.
        recent : int
            As for :class:`~wavetank.live.spill.Spilled`.
        """
        for name in ("decisions", "decided_at", "instances", "latencies_s", "invoked_s", "returned_s"):
            setattr(self, name, Spilled(file, name, recent=recent))
        self.replies = Spilled(
            file,
            "replies",
            pack=lambda answer: (answer.at, answer.node, answer.result),
            unpack=lambda row: Answer(*row),
            recent=recent,
        )
        self.requests = SpilledList(
            file,
            "requests",
            pack=lambda request: (request.at, request.node, request.command, request.client),
            unpack=lambda row: Request(at=row[0], node=row[1], command=row[2], client=row[3]),
            recent=recent,
        )
        self.recorded = _Recorded(file, recent)

    def check(self) -> None:
        """Raise WavetankError if the code of a node raised."""
        for node, trace in sorted(self.failures.items()):
            says = exception_of(trace)
            raise WavetankError(f"Node {node} ended with an exception: {says}", given=trace, where="the algorithm")


def exception_of(trace: str) -> str:
    """Return the exception that a trace ends with, all of its message in one line."""
    lines = trace.strip().splitlines()
    first = max((place for place, line in enumerate(lines) if not line.startswith(" ")), default=0)
    return "; ".join(line.strip() for line in lines[first:] if line.strip())


class _Recorded(dict[str, Growing[tuple[float, int, float]]]):
    """Metric to its list, each of which spills."""

    def __init__(self, file: SpillFile, recent: int) -> None:
        super().__init__()
        self._file, self._limit = file, recent

    def __missing__(self, metric: str) -> Growing[tuple[float, int, float]]:
        found: SpilledList[tuple[float, int, float]] = SpilledList(
            self._file, f"recorded {len(self)}", recent=self._limit
        )
        self[metric] = found
        return found


class _Results(Mapping[int, Any]):
    """Number of a request to its result."""

    def __init__(self, replies: Mapping[int, Answer]) -> None:
        self._replies = replies

    def __getitem__(self, number: int) -> Any:
        return self._replies[number].result

    def __iter__(self) -> Iterator[int]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)
