"""Two of the four lives of an algorithm: rounds, and events with delays.

Both run the same nodes over the same links in one total order: time, then the number of the node, then requests before
messages before timers, then the order in which they were sent.  In rounds, time is a whole number and what is idle
costs nothing: a round costs its messages and the nodes that wake up.  As events, time is a real number.  Random numbers
come from one stream a node and purpose, so the same seed gives the same log wherever a run takes place.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavetank.errors import BadValueError, WavetankError
from wavetank.protocols.faults import Fault, attached, byzantine_members
from wavetank.protocols.history import History, Operation
from wavetank.protocols.interfaces import Algorithm, Message, Node, Opaque, Snapshot, unlisted
from wavetank.protocols.network import Links, Network, Topology
from wavetank.rng import Draws, stream, stream_key

LIVES = ("rounds", "events")

# When the algorithm's invariant is asked.
ASKED = ("every-step", "at-the-end")

# Order of what happens at one node at one time.
_REQUEST, _MESSAGE, _TIMER = 0, 1, 2

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
class Happening:
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
    log : list of Happening
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
    log: list[Happening] = field(default_factory=list)

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


class SimulatedContext(Opaque):
    """A node's side of a simulation, links aside: what all simulations of this package share.

    Parameters
    ----------
    run : Run
        Where decisions, replies and figures go.
    topology : Topology
    node : int
    seed : int
        Of the run.
    put_timer : callable
        Has a timer run out: ``put_timer(due, node, name, generation)``; the timer counts if then ``ran_out`` says so.
    """

    __slots__ = (
        "_decided_at",
        "_decisions",
        "_generations",
        "_kinds",
        "_linked",
        "_put_timer",
        "_run",
        "_saved",
        "id",
        "now",
        "peers",
        "rng",
        "size",
    )

    def __init__(
        self, run: Run, topology: Topology, node: int, seed: int, put_timer: Callable[[float, int, str, int], None]
    ) -> None:
        self._run = run
        self._decisions = run.decisions
        self._decided_at = run.decided_at
        self._put_timer = put_timer
        self.id = node
        self.size = topology.size
        self.peers = topology.peers(node)
        self.now = 0.0
        self.rng = Draws(stream_key(seed, "node", node))
        # Of a complete topology the numbers say who has a link.
        self._linked = None if topology.links is None else frozenset(self.peers)
        self._saved: dict[str, Any] = {}
        self._generations: dict[str, int] = {}
        self._kinds = frozenset(run.algorithm.messages)

    def no_link(self, to: int) -> WavetankError:
        """Return the error of sending to a node that is not among ``peers``."""
        return BadValueError(
            f"Node {self.id} has no link to node {to}.", given=to, allowed="the nodes in context.peers"
        )

    def not_listed(self, message: Message) -> WavetankError:
        """Return the error of sending a message that no wire would carry."""
        return unlisted(message, self._run.algorithm)

    def set_timer(self, name: str, after: float) -> None:
        """See Context."""
        if not after > 0:
            where = f"node {self.id}, timer {name!r}"
            raise BadValueError("A timer runs out later than now.", given=after, where=where)
        generation = self._generations.get(name, 0) + 1
        self._generations[name] = generation
        self._put_timer(self.now + after, self.id, name, generation)

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
            told = f"node {self.id} decided {decisions[key]!r}, then {value!r} in instance {instance!r}"
            self._run.contradictions.append(told)

    def reply(self, number: int, result: Any) -> None:
        """See Context."""
        self._run.replies.setdefault(number, Answer(self.now, self.id, result))

    def record(self, metric: str, value: float = 1.0) -> None:
        """See Context."""
        self._run.recorded.setdefault(metric, []).append((self.now, self.id, value))


class _Context(SimulatedContext):
    """A node's side of the two lives."""

    __slots__ = ("_calls", "_channels", "_draws", "_simulation", "_spill", "_targets", "_turn")

    def __init__(self, simulation: _Simulation, node: int) -> None:
        super().__init__(simulation.run, simulation.network.topology, node, simulation.seed, simulation.put_timer)
        self._simulation = simulation
        self._draws: Iterator[float] | None = None
        # Receiver to [when the last message of this link arrives, how many arrive then].
        self._channels: dict[int, list[Any]] = {}
        # A budget rarely binds.  As long as this node made no more calls in this round than the budget, no link of its
        # own can be over it, and there is nothing to look up.
        self._turn: float = -1
        self._calls = 0
        self._targets: list[int] = []
        self._spill: float = 0

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        linked = self._linked
        if (to not in linked) if linked is not None else (not 0 <= to < self.size or to == self.id):
            raise self.no_link(to)
        if type(message) not in self._kinds:
            raise self.not_listed(message)
        simulation = self._simulation
        simulation.sent += 1
        if simulation.plain:
            if simulation.budget is not None and not self._within_budget(to):
                self._scheduled(to, message, simulation.budget)
                return
            box = simulation.next_boxes[to]
            if not box:
                simulation.next_awake.append(to)
            box.append((self.id, message))
        else:
            simulation.transmit(self, to, message)

    def broadcast(self, message: Message) -> None:
        """See Context."""
        if type(message) not in self._kinds:
            raise self.not_listed(message)
        simulation = self._simulation
        peers = self.peers
        simulation.sent += len(peers)
        if simulation.plain and (simulation.budget is None or self._within_budget(-1)):
            boxes = simulation.next_boxes
            awake = simulation.next_awake
            packet = (self.id, message)
            for to in peers:
                box = boxes[to]
                if not box:
                    awake.append(to)
                box.append(packet)
        elif simulation.plain:
            for to in peers:
                self._scheduled(to, message, simulation.budget or 1)
        else:
            for to in peers:
                simulation.transmit(self, to, message)

    def _within_budget(self, to: int) -> bool:
        """Count a call to ``to`` (-1: to all); return whether the budget of every link surely still holds."""
        now = self.now
        if self._turn != now:
            self._turn = now
            self._calls = 0
            self._targets.clear()
        self._calls += 1
        budget = self._simulation.budget
        if self._calls <= budget and self._spill <= now:  # type: ignore[operator]
            self._targets.append(to)
            return True
        if self._targets:
            # From here on this round is counted link by link, beginning with what was sent without counting.
            for target in self._targets:
                for each in self.peers if target < 0 else (target,):
                    channel = self._channels.setdefault(each, [0, 0])
                    if channel[0] <= now:
                        channel[0], channel[1] = now + 1, 0
                    channel[1] += 1
            self._targets.clear()
            self._calls = budget + 1  # type: ignore[operator]
        return False

    def _scheduled(self, to: int, message: Message, budget: int) -> None:
        """Put a message on a link that may be at its budget."""
        channel = self._channels.setdefault(to, [0, 0])
        due = self.now + 1
        if channel[0] < due:
            channel[0], channel[1] = due, 0
        elif channel[1] >= budget:
            channel[0] += 1
            channel[1] = 0
        channel[1] += 1
        self._spill = max(self._spill, channel[0] if channel[0] > due else self._spill)
        self._simulation.put(channel[0], to, self.id, message)

    def uniform(self) -> float:
        """Draw the next of this node's numbers for links."""
        if self._draws is None:
            self._draws = _uniforms(self._simulation.seed, self.id)
        return next(self._draws)


def _uniforms(seed: int, node: int) -> Iterator[float]:
    generator = stream(seed, "links", node)
    while True:
        yield from generator.random(_BLOCK).tolist()


class Scheduler:
    """An adversary that decides how long messages take; by default it does not interfere."""

    def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
        """Return what to add to the delay, in rounds; infinity holds the message to the end of the run."""
        return 0.0


class _Simulation(ABC):
    """State shared by the two lives; each has its own calendar and loop."""

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
        self.plain = False
        self.budget: int | None = None
        size = network.topology.size
        self.next_boxes: list[list[tuple[int, Message]]] = [[] for _ in range(size)]
        self.next_awake: list[int] = []
        # Called with the time after every round or event, until it has something to say.
        self.asks: Callable[[float], bool] | None = None
        self.contexts = [_Context(self, node) for node in range(size)]
        self._queued: dict[tuple[int, int], list[float]] = {}

    def transmit(self, context: _Context, to: int, message: Message) -> None:
        """Put a message, and copies of it, on a link that does more than deliver in the next round."""
        links = self.links
        if (links.partitions and links.cut(context.id, to, context.now)) or (
            links.drop and context.uniform() < links.drop
        ):
            self.dropped += 1
            self._note_on_link("drop", context, to, message)
            return
        while True:
            if not self._enqueue(context, to, message):
                self.dropped += 1
                self._note_on_link("drop", context, to, message)
                return
            if not links.duplicate or context.uniform() >= links.duplicate:
                return
            self.duplicated += 1
            self._note_on_link("duplicate", context, to, message)

    def _note_on_link(self, kind: str, context: _Context, to: int, message: Message) -> None:
        if self.watched:
            self.note(kind, context.now, to, message, context.id)

    def _enqueue(self, context: _Context, to: int, message: Message) -> bool:
        links = self.links
        sender, now = context.id, context.now
        held_back = links.reorder > 0.0 and context.uniform() < links.reorder
        delay = links.sampled_delay(context.uniform()) + links.extra_delay(sender, to)
        if held_back:
            delay += links.sampled_delay(context.uniform())
        if self.scheduler is not None:
            delay += self.scheduler.extra_delay(sender, to, message, now)
            if math.isinf(delay):
                self.held += 1
                return True
        due = self.arrival(now, delay)
        waiting: list[float] | None = None
        if links.queue is not None:
            waiting = self._queued.setdefault((sender, to), [])
            waiting[:] = [each for each in waiting if each > now]
            if len(waiting) >= links.queue:
                return False
        if not held_back:
            channel = context._channels.setdefault(to, [0, 0])
            if channel[0] < due:
                channel[0], channel[1] = due, 0
            elif self.budget is not None and channel[1] >= self.budget:
                channel[0], channel[1] = channel[0] + 1, 0
            channel[1] += 1
            due = channel[0]
        if waiting is not None:
            waiting.append(due)
        self.put(due, to, sender, message)
        return True

    @abstractmethod
    def arrival(self, now: float, delay: float) -> float:
        """Return when a message sent now arrives."""

    @abstractmethod
    def put(self, due: float, to: int, sender: int, message: Message) -> None:
        """Have a message arrive."""

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
        self.run.log.append(Happening(now, node, kind, what, sender))


class _Rounds(_Simulation):
    """A calendar of rounds."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.plain = self.links.plain and self.scheduler is None
        self.budget = self.links.budget
        self._round = 0
        self._later: dict[int, dict[int, list[tuple[int, Message]]]] = {}
        self._timers: dict[int, list[tuple[int, str, int]]] = {}
        self._requests: dict[int, list[tuple[int, int]]] = {}
        self._agenda: list[int] = []

    def arrival(self, now: float, delay: float) -> float:
        return now + max(math.ceil(delay), 1)

    def put(self, due: float, to: int, sender: int, message: Message) -> None:
        number = int(due)
        if number == self._round + 1:
            box = self.next_boxes[to]
            if not box:
                self.next_awake.append(to)
            box.append((sender, message))
            return
        boxes = self._later.get(number)
        if boxes is None:
            boxes = self._later[number] = {}
            heapq.heappush(self._agenda, number)
        boxes.setdefault(to, []).append((sender, message))

    def put_timer(self, due: float, node: int, name: str, generation: int) -> None:
        if due > self.until:
            return
        number = max(math.ceil(due), self._round + 1)
        timers = self._timers.get(number)
        if timers is None:
            timers = self._timers[number] = []
            heapq.heappush(self._agenda, number)
        timers.append((node, name, generation))

    def put_request(self, number: int, request: Request) -> None:
        due = max(math.ceil(request.at), 1)
        self._requests.setdefault(due, []).append((request.node, number))
        heapq.heappush(self._agenda, due)

    def play(self, stop: Callable[[Run], bool] | None) -> float:
        last = math.floor(self.until)
        boxes: list[list[tuple[int, Message]]] = [[] for _ in self.contexts]
        while self._round < last:
            agenda = self._agenda
            following = self._round + 1 if self.next_awake else (agenda[0] if agenda else last + 1)
            if following > last:
                break
            number = self._round = following
            while agenda and agenda[0] <= number:
                heapq.heappop(agenda)
            boxes, self.next_boxes = self.next_boxes, boxes
            awake, self.next_awake = self.next_awake, []
            due = self._later.pop(number, None)
            if due is not None:
                # What was put here earlier was sent earlier: it stands first.
                for node, early in due.items():
                    if not boxes[node]:
                        awake.append(node)
                    boxes[node][:0] = early
            requests = self._requests.pop(number, None)
            timers = self._timers.pop(number, None)
            if timers is None and requests is None:
                awake.sort()
                self._deliver(number, awake, boxes)
            else:
                self._mixed(number, awake, boxes, requests or [], timers or [])
            if self.asks is not None:
                self.stepped(float(number))
            if stop is not None and stop(self.run):
                return number
        return last if stop is None else self._round

    def _deliver(self, number: int, awake: list[int], boxes: list[list[tuple[int, Message]]]) -> None:
        nodes, contexts = self.run.nodes, self.contexts
        now = float(number)
        for node in awake:
            contexts[node].now = now
            box = boxes[node]
            self.delivered += len(box)
            receive = nodes[node].receive
            if self.watched:
                # What a handler sends is noted after the message that it answers.
                for sender, message in box:
                    self.note("message", now, node, message, sender)
                    receive(sender, message)
            else:
                for sender, message in box:
                    receive(sender, message)
            box.clear()

    def _mixed(
        self,
        number: int,
        awake: list[int],
        boxes: list[list[tuple[int, Message]]],
        requests: list[tuple[int, int]],
        timers: list[tuple[int, str, int]],
    ) -> None:
        nodes, contexts = self.run.nodes, self.contexts
        now = float(number)
        asked: dict[int, list[int]] = {}
        for node, request in requests:
            asked.setdefault(node, []).append(request)
        due: dict[int, list[tuple[str, int]]] = {}
        for node, name, generation in timers:
            due.setdefault(node, []).append((name, generation))
        for node in sorted({*awake, *asked, *due}):
            context = contexts[node]
            context.now = now
            for request in asked.get(node, ()):
                command = self.run.requests[request].command
                if self.watched:
                    self.note("request", now, node, command, request)
                nodes[node].request(request, command)
            if boxes[node]:
                self._deliver(number, [node], boxes)
            for name, generation in due.get(node, ()):
                if context.ran_out(name, generation):
                    self.timers += 1
                    if self.watched:
                        self.note("timer", now, node, name)
                    nodes[node].timer(name)

    def under_way(self) -> int:
        later = sum(len(box) for boxes in self._later.values() for box in boxes.values())
        return sum(map(len, self.next_boxes)) + later


class _Events(_Simulation):
    """A calendar of instants."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._calendar: list[tuple[float, int, int, int, int, Any]] = []
        self._count = 0

    def arrival(self, now: float, delay: float) -> float:
        return now + delay

    def put(self, due: float, to: int, sender: int, message: Message) -> None:
        self._count += 1
        heapq.heappush(self._calendar, (due, to, _MESSAGE, self._count, sender, message))

    def put_timer(self, due: float, node: int, name: str, generation: int) -> None:
        self._count += 1
        heapq.heappush(self._calendar, (due, node, _TIMER, self._count, generation, name))

    def put_request(self, number: int, request: Request) -> None:
        self._count += 1
        heapq.heappush(self._calendar, (request.at, request.node, _REQUEST, self._count, number, request.command))

    def play(self, stop: Callable[[Run], bool] | None) -> float:
        calendar, nodes, contexts = self._calendar, self.run.nodes, self.contexts
        until, watched = self.until, self.watched
        now = 0.0
        while calendar and calendar[0][0] <= until:
            now, node, kind, _, detail, what = heapq.heappop(calendar)
            context = contexts[node]
            context.now = now
            if kind == _MESSAGE:
                self.delivered += 1
                if watched:
                    self.note("message", now, node, what, detail)
                nodes[node].receive(detail, what)
            elif kind == _TIMER:
                if not context.ran_out(what, detail):
                    continue
                self.timers += 1
                if watched:
                    self.note("timer", now, node, what)
                nodes[node].timer(what)
            else:
                if watched:
                    self.note("request", now, node, what, detail)
                nodes[node].request(detail, what)
            if self.asks is not None:
                self.stepped(now)
            if stop is not None and stop(self.run):
                return now
        return until if stop is None else now

    def under_way(self) -> int:
        return sum(entry[2] == _MESSAGE for entry in self._calendar)


def new_run(algorithm: Algorithm, size: int, requests: Sequence[Request], faults: Sequence[Fault]) -> Run:
    """Return a run that has not begun, with its nodes and their faults.

    Raises
    ------
    BadValueError
        For a request or fault of a node that does not exist, or a request before the start.
    """
    for request in requests:
        if not 0 <= request.node < size or not 0 <= request.at < math.inf:
            raise BadValueError("A request goes to a node at a time.", given=request, allowed=f"nodes 0 to {size - 1}")
    return Run(
        size=size,
        algorithm=algorithm,
        time=0.0,
        nodes=attached(algorithm, size, faults),
        correct=frozenset(range(size)) - byzantine_members(faults),
        requests=tuple(requests),
    )


def simulate(
    algorithm: Algorithm,
    *,
    size: int = 0,
    network: Network | None = None,
    until: float,
    life: str = "rounds",
    seed: int = 0,
    requests: Sequence[Request] = (),
    faults: Sequence[Fault] = (),
    scheduler: Scheduler | None = None,
    stop: Callable[[Run], bool] | None = None,
    log: bool = False,
    setup: Callable[[Sequence[Node]], None] | None = None,
    invariant: str = "every-step",
) -> Run:
    """Run an algorithm in rounds or as events, and ask its invariant.

    Parameters
    ----------
    algorithm : Algorithm
    size : int
        Nodes; taken from ``network`` when that is given.
    network : Network, optional
        By default complete, and every message arrives one round later.
    until : float
        Rounds to run.
    life : str
        ``rounds`` or ``events``.
    seed : int
        All randomness of nodes, links and faults follows from it.
    requests : sequence of Request
        What clients ask, and when.
    faults : sequence of Fault
        See :mod:`wavetank.protocols.faults`.
    scheduler : Scheduler, optional
        An adversary that may hold messages.
    stop : callable, optional
        Looked at after every round (or event); the run ends when it returns True.
    log : bool
        Whether to write down everything that happens.
    setup : callable, optional
        Given the nodes before they start: what an experimenter knows and no message tells.
    invariant : str
        When ``algorithm.violation`` is asked: ``every-step``, after the start and every round (or event), so that
        nothing passes unseen; or ``at-the-end``, for long runs whose invariants, once broken, stay broken.

    Raises
    ------
    BadValueError
        For a life, size, request or fault that makes no sense.
    """
    if life not in LIVES:
        raise BadValueError("An algorithm is simulated in rounds or as events.", given=life, allowed=LIVES)
    if invariant not in ASKED:
        raise BadValueError("There is no such time to ask the invariant.", given=invariant, allowed=ASKED)
    if not until >= 0:
        raise BadValueError("A run takes some rounds.", given=until, allowed="a number from 0")
    if network is None:
        network = Network.complete(size)
    count = network.topology.size
    if size not in (0, count):
        raise BadValueError("The network has another size.", given=size, allowed=f"{count}, or none")
    run = new_run(algorithm, count, requests, faults)
    nodes = run.nodes
    kind = _Rounds if life == "rounds" else _Events
    simulation = kind(network, seed, scheduler, run, until=until, watched=log)
    for number, request in enumerate(requests):
        simulation.put_request(number, request)
    for node, context in zip(nodes, simulation.contexts, strict=True):
        node.context = context
    if setup is not None:
        setup(nodes)
    for number, node in enumerate(nodes):
        if log:
            simulation.note("start", 0.0, number, None)
        node.start()
    asks = asking(run)
    if invariant == "every-step":
        simulation.asks = asks
        simulation.stepped(0.0)
    run.time = simulation.play(stop)
    if invariant == "at-the-end":
        asks(run.time)
    run.sent, run.duplicated = simulation.sent, simulation.duplicated
    run.delivered, run.dropped, run.timers = simulation.delivered, simulation.dropped, simulation.timers
    run.under_way = simulation.under_way() + simulation.held
    return run


def asking(run: Run) -> Callable[[float], bool]:
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
