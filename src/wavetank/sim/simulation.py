"""What every simulated run of an algorithm shares: requests, the run, the context of a node, one total order.

Events are ordered by time, then the number of the node, then requests before messages before timers, then the order in
which they were sent.  Random numbers come from one stream per node, link and purpose, so the same seed gives the same
log wherever a run takes place.  :mod:`wavetank.sim.rounds` and :mod:`wavetank.sim.events` are the two ways to run.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from wavetank.errors import BadValueError
from wavetank.sim.clients import Clients
from wavetank.sim.faults import Fault, attached, byzantine_members
from wavetank.sim.history import History, Operation
from wavetank.sim.network import Links, Network
from wavetank.sim.node import Algorithm, Message, Node, Opaque, Snapshot, no_link, not_later, unlisted
from wavetank.sim.rng import Draws, stream, stream_key

LIVES = ("rounds", "events")


# When the algorithm's invariant is asked.
ASKED = ("every-step", "at-the-end")


_BLOCK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Something a client asks of a node.

    Parameters
    ----------
    at : float
        Rounds after the start; in rounds, rounded up.
    node : int
        Whom the client asks.
    command : object
        What it asks for; for a history a tuple ``(action, key, value)``.
    client : str
        Who asks, one thing at a time; empty for a client that asks nothing else.
    """

    at: float
    node: int
    command: Any
    client: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request came to.

    Parameters
    ----------
    at : float
        Time of the answer in rounds.
    node : int
        Who answered.
    result : object
    """

    at: float
    node: int
    result: Any


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log: what happened to a node.

    Parameters
    ----------
    at : float
    node : int
    kind : str
        ``start``, ``request``, ``message`` or ``timer``; ``drop`` and ``duplicate`` for a message on a link, at the
        time it was sent.
    what : object
        The command, message or name.
    sender : int
        Of a message; the number of a request; -1 otherwise.
    """

    at: float
    node: int
    kind: str
    what: Any = None
    sender: int = -1


@dataclass(kw_only=True)
class Run:
    """What came out of a run.

    Every message sent is delivered, dropped or still under way:
    ``sent + duplicated == delivered + dropped + under_way``.

    Attributes
    ----------
    size : int
        Nodes.
    algorithm : Algorithm
        What was run; None in a run that was put together by hand.
    time : float
        Rounds that were simulated.
    nodes : list of Node
        As they ended; a faulty node is wrapped.
    correct : frozenset of int
        Nodes without a Byzantine fault.
    decisions : dict
        ``(node, instance)`` to value.
    decided_at : dict
        ``(node, instance)`` to time.
    contradictions : list of str
        Nodes that decided twice, differently, in one instance.
    violation : str
        The first broken invariant that was seen, the algorithm's own or a correct node that decided twice; "" for none.
    violated_at : float or None
        Time at which it was seen.
    requests : tuple of Request
    replies : dict
        Number of the request to its first answer.
    recorded : dict
        Metric to ``(time, node, value)``.
    sent, duplicated, delivered, dropped, under_way : int
        Messages.
    timers : int
        Timers that ran out.
    log : list of LogEntry
        Empty unless it was asked for.
    """

    size: int
    time: float
    nodes: list[Node]
    correct: frozenset[int]
    algorithm: Any = None
    decisions: dict[tuple[int, Any], Any] = field(default_factory=dict)
    decided_at: dict[tuple[int, Any], float] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    violation: str = ""
    violated_at: float | None = None
    requests: tuple[Request, ...] = ()
    replies: dict[int, Answer] = field(default_factory=dict)
    recorded: dict[str, list[tuple[float, int, float]]] = field(default_factory=dict)
    sent: int = 0
    duplicated: int = 0
    delivered: int = 0
    dropped: int = 0
    under_way: int = 0
    timers: int = 0
    log: list[LogEntry] = field(default_factory=list)

    def total(self, metric: str) -> float:
        """Return the sum of what the nodes recorded under ``metric``."""
        return sum(value for _, _, value in self.recorded.get(metric, ()))

    def snapshot(self) -> Snapshot:
        """Return the end of the run, for invariants."""
        return Snapshot(
            self.nodes,
            self.correct,
            self.decisions,
            {number: answer.result for number, answer in self.replies.items()},
        )

    def history(self) -> History:
        """Return what the clients saw, for the consistency checker.

        Raises
        ------
        BadValueError
            If a command is no tuple ``(action, key, value)``, or a client asks before it was answered.
        """
        operations = []
        for number, request in enumerate(self.requests):
            command = request.command
            if not isinstance(command, tuple) or not 2 <= len(command) <= 3:
                raise BadValueError(
                    "A history is made of commands (action, key, value).", given=command, where=f"request {number}"
                )
            answer = self.replies.get(number)
            operations.append(
                Operation(
                    process=request.client or f"request {number}",
                    action=command[0],
                    key=command[1],
                    value=command[2] if len(command) == 3 else None,
                    result=None if answer is None else answer.result,
                    invoked=request.at,
                    returned=None if answer is None else answer.at,
                )
            )
        return History(operations=tuple(sorted(operations, key=lambda each: each.invoked)))

    def digest(self) -> str:
        """Return a checksum of log, decisions and replies: equal for equal runs, on any machine."""
        found = hashlib.blake2b(digest_size=16)
        for part in (*self.log, *self.decisions.items(), *self.decided_at.items(), *self.replies.items()):
            found.update(repr(part).encode())
        return found.hexdigest()


Packet = tuple[int, Message]


sender_of = itemgetter(0)


class SimulatedContext(Opaque):
    """A node's side of a simulation."""

    __slots__ = (
        "_decided_at",
        "_decisions",
        "_draws",
        "_generations",
        "_kinds",
        "_linked",
        "_run",
        "_saved",
        "_simulation",
        "id",
        "latest",
        "now",
        "peers",
        "rng",
        "size",
    )

    def __init__(self, simulation: Simulation, node: int) -> None:
        run, topology = simulation.run, simulation.network.topology
        self._simulation = simulation
        self._run = run
        self._decisions = run.decisions
        self._decided_at = run.decided_at
        self.id = node
        self.size = topology.size
        self.peers = topology.peers(node)
        self.now = 0.0
        self.rng = Draws(stream_key(simulation.seed, "node", node))
        # Of a complete topology the numbers say who has a link.
        self._linked = None if topology.links is None else frozenset(self.peers)
        self._saved: dict[str, Any] = {}
        self._generations: dict[str, int] = {}
        self._kinds = frozenset(run.algorithm.messages)
        self._draws: Iterator[float] | None = None
        # Receiver to when the last message of this link arrives that keeps to the order, in events.
        self.latest: dict[int, float] = {}

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        self.check(to, message)
        self._simulation.sent += 1
        self._simulation.transmit(self, to, message)

    def broadcast(self, message: Message) -> None:
        """See Context."""
        if type(message) not in self._kinds:
            raise unlisted(message, self._run.algorithm)
        self._simulation.sent += len(self.peers)
        for to in self.peers:
            self._simulation.transmit(self, to, message)

    def check(self, to: int, message: Message) -> None:
        """Refuse a message to a node that is not among ``peers``, or one that no wire would carry."""
        linked = self._linked
        if (to not in linked) if linked is not None else (not 0 <= to < self.size or to == self.id):
            raise no_link(self.id, to)
        if type(message) not in self._kinds:
            raise unlisted(message, self._run.algorithm)

    def uniform(self) -> float:
        """Draw the next of this node's numbers for links."""
        if self._draws is None:
            self._draws = _uniforms(self._simulation.seed, self.id)
        return next(self._draws)

    def set_timer(self, name: str, after: float) -> None:
        """See Context."""
        if not after > 0:
            raise not_later(self.id, name, after)
        generation = self._generations.get(name, 0) + 1
        self._generations[name] = generation
        self._simulation.put_timer(self.now + after, self.id, name, generation)

    def cancel_timer(self, name: str) -> None:
        """See Context."""
        if name in self._generations:
            self._generations[name] += 1

    def ran_out(self, name: str, generation: int) -> bool:
        """Return whether a timer that is due was neither replaced nor cancelled."""
        return self._generations[name] == generation

    def save(self, key: str, value: Any) -> None:
        """See Context."""
        self._saved[key] = value

    def load(self, key: str, default: Any = None) -> Any:
        """See Context."""
        return self._saved.get(key, default)

    def decide(self, value: Any, instance: Any = 0) -> None:
        """See Context."""
        key = (self.id, instance)
        decisions = self._decisions
        if key not in decisions:
            decisions[key] = value
            self._decided_at[key] = self.now
        elif decisions[key] != value:
            problem = f"node {self.id} decided {decisions[key]!r}, then {value!r} in instance {instance!r}"
            self._run.contradictions.append(problem)

    def reply(self, number: int, result: Any) -> None:
        """See Context."""
        if number not in self._run.replies:
            self._run.replies[number] = Answer(self.now, self.id, result)
            if self._simulation.clients is not None:
                self._simulation.clients.answered(number, result)

    def record(self, metric: str, value: float = 1.0) -> None:
        """See Context."""
        self._run.recorded.setdefault(metric, []).append((self.now, self.id, value))


def _uniforms(seed: int, node: int) -> Iterator[float]:
    generator = stream(seed, "links", node)
    while True:
        yield from generator.random(_BLOCK).tolist()


class Scheduler:
    """An adversary that decides how long messages take; by default it does not interfere."""

    def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
        """Return what to add to the delay, in rounds; infinity holds the message to the end of the run."""
        return 0.0


class Simulation(ABC):
    """State shared by the two lives; each has its own calendar, links and loop."""

    def __init__(
        self, network: Network, seed: int, scheduler: Scheduler | None, run: Run, *, until: float, watched: bool
    ) -> None:
        self.network = network
        self.links: Links = network.links
        self.seed = seed
        self.scheduler = scheduler
        self.run = run
        self.until = until
        self.watched = watched
        self.sent = self.duplicated = self.delivered = self.dropped = self.timers = 0
        self.held = 0
        self.clients: Clients | None = None
        # Called with the time after every round or event, until it has something to say.
        self.asks: Callable[[float], bool] | None = None
        self.contexts = [self.context(node) for node in range(network.topology.size)]

    def context(self, node: int) -> Any:
        """Return a node's side."""
        return SimulatedContext(self, node)

    def transmit(self, context: SimulatedContext, to: int, message: Message) -> None:
        """Put a message, and copies of it, on a link."""
        links = self.links
        uniform = self.uniform(context, to)
        if (links.partitions and links.cut(context.id, to, context.now)) or (links.drop and uniform() < links.drop):
            self.dropped += 1
            self._note_on_link("drop", context, to, message)
            return
        while True:
            if not self.enqueue(context, to, message):
                self.dropped += 1
                self._note_on_link("drop", context, to, message)
                return
            if not links.duplicate or uniform() >= links.duplicate:
                return
            self.duplicated += 1
            self._note_on_link("duplicate", context, to, message)

    def _note_on_link(self, kind: str, context: SimulatedContext, to: int, message: Message) -> None:
        if self.watched:
            self.note(kind, context.now, to, message, context.id)

    def delay(
        self,
        context: SimulatedContext,
        to: int,
        message: Message,
        uniform: Callable[[], float],
        held_back: bool = False,
    ) -> float:
        """Return how long a message takes; infinity for one that is held to the end of the run."""
        links = self.links
        delay = links.sampled_delay(uniform()) + links.extra_delay(context.id, to)
        if held_back:
            delay += links.sampled_delay(uniform())
        if self.scheduler is not None:
            delay += self.scheduler.extra_delay(context.id, to, message, context.now)
        return delay

    @abstractmethod
    def uniform(self, context: SimulatedContext, to: int) -> Callable[[], float]:
        """Return what draws the numbers for a link."""

    @abstractmethod
    def enqueue(self, context: SimulatedContext, to: int, message: Message) -> bool:
        """Have a message arrive; return whether the link took it."""

    @abstractmethod
    def put_timer(self, due: float, node: int, name: str, generation: int) -> None:
        """Have a timer run out."""

    @abstractmethod
    def put_request(self, number: int, request: Request) -> None:
        """Have a request made."""

    @abstractmethod
    def play(self, stop: Callable[[Run], bool] | None) -> float:
        """Run to the end; return the time reached."""

    @abstractmethod
    def under_way(self) -> int:
        """Count the messages that have not arrived."""

    def stepped(self, now: float) -> None:
        """Ask the invariant after a step; once something is broken there is nothing more to ask."""
        if self.asks is not None and self.asks(now):
            self.asks = None

    def note(self, kind: str, now: float, node: int, what: Any, sender: int = -1) -> None:
        """Write the log."""
        self.run.log.append(LogEntry(now, node, kind, what, sender))

    def finished(
        self,
        *,
        stop: Callable[[Run], bool] | None,
        setup: Callable[[Sequence[Node]], None] | None = None,
        invariant: str = "every-step",
    ) -> Run:
        """Start the nodes, play, and return the run; the keywords are those of :func:`simulate`."""
        run = self.run
        for number, request in enumerate(run.requests):
            self.put_request(number, request)
        for node, context in zip(run.nodes, self.contexts, strict=True):
            node.context = context
        if setup is not None:
            setup(run.nodes)
        for number, node in enumerate(run.nodes):
            if self.watched:
                self.note("start", 0.0, number, None)
            node.start()
        asks = _asking(run)
        if invariant == "every-step":
            self.asks = asks
            self.stepped(0.0)
        run.time = self.play(stop)
        if invariant == "at-the-end":
            asks(run.time)
        run.sent, run.duplicated = self.sent, self.duplicated
        run.delivered, run.dropped, run.timers = self.delivered, self.dropped, self.timers
        run.under_way = self.under_way() + self.held
        return run


def new_run(algorithm: Algorithm, size: int, requests: Sequence[Request], faults: Sequence[Fault]) -> Run:
    """Return a run that has not begun, with its nodes and their faults.

    Parameters
    ----------
    algorithm : Algorithm
    size : int
        The number of nodes.
    requests : sequence of Request
        Their nodes lie from 0 to ``size - 1``, their times at 0 or later, in the run's unit of time.
    faults : sequence of Fault

    Raises
    ------
    BadValueError
        For a request or fault of a node that does not exist, or a request before the start.
    """
    for request in requests:
        check_request(request, size)
    return Run(
        size=size,
        algorithm=algorithm,
        time=0.0,
        nodes=attached(algorithm, size, faults),
        correct=frozenset(range(size)) - byzantine_members(faults),
        requests=tuple(requests),
    )


def check_request(request: Request, size: int) -> None:
    """Refuse a request to none of ``size`` nodes, or before the start; raises BadValueError."""
    if not 0 <= request.node < size or not 0 <= request.at < math.inf:
        raise BadValueError("A request goes to a node at a time.", given=request, allowed=f"nodes 0 to {size - 1}")


def _asking(run: Run) -> Callable[[float], bool]:
    """Return what asks the invariant of a run, notes the first violation, and says whether there was one."""
    results: dict[int, Any] = {}
    checked = 0

    def ask(now: float) -> bool:
        nonlocal checked
        if len(results) < len(run.replies):
            results.update((number, run.replies[number].result) for number in run.replies.keys() - results.keys())
        for said in run.contradictions[checked:]:
            if int(said.split()[1]) in run.correct:
                run.violation = said
        checked = len(run.contradictions)
        snapshot = Snapshot(run.nodes, run.correct, run.decisions, results)
        run.violation = run.violation or run.algorithm.violation(snapshot)
        if run.violation:
            run.violated_at = now
        return bool(run.violation)

    return ask


def counts(run: Run) -> Mapping[str, int]:
    """Return the message counters of a run by name."""
    names = ("sent", "duplicated", "delivered", "dropped", "under_way")
    return {name: getattr(run, name) for name in names}
