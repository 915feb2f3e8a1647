"""Runs as events: time is a real number, messages have delays; and :func:`simulate`, which runs either way."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

from wavetank.errors import BadValueError
from wavetank.sim.clients import Clients
from wavetank.sim.faults import Fault
from wavetank.sim.network import Network
from wavetank.sim.node import Algorithm, Message, Node
from wavetank.sim.rounds import Rounds
from wavetank.sim.simulation import (
    ASKED,
    LIVES,
    Request,
    Run,
    Scheduler,
    SimulatedContext,
    Simulation,
    check_request,
    new_run,
)

# Order of what happens at one node at one time.
_REQUEST, _MESSAGE, _TIMER, _CLIENT = 0, 1, 2, 3


class _Events(Simulation):
    """A calendar of instants; the door of clients who wait for answers."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.now = 0.0
        self._asked: list[Request] = []
        self._calendar: list[tuple[float, int, int, int, int, Any]] = []
        self._count = 0
        self._queued: dict[tuple[int, int], list[float]] = {}

    def uniform(self, context: SimulatedContext, to: int) -> Callable[[], float]:
        return context.uniform

    def enqueue(self, context: SimulatedContext, to: int, message: Message) -> bool:
        links, now = self.links, context.now
        held_back = links.reorder > 0.0 and context.uniform() < links.reorder
        delay = self.delay(context, to, message, context.uniform, held_back)
        if math.isinf(delay):
            self.held += 1
            return True
        waiting: list[float] | None = None
        if links.queue is not None:
            waiting = self._queued.setdefault((context.id, to), [])
            waiting[:] = [each for each in waiting if each > now]
            if len(waiting) >= links.queue:
                return False
        due = now + delay
        if not held_back:
            due = context.latest[to] = max(due, context.latest.get(to, 0.0))
        if waiting is not None:
            waiting.append(due)
        self._put(due, to, _MESSAGE, context.id, message)
        return True

    def put_timer(self, due: float, node: int, name: str, generation: int) -> None:
        self._put(due, node, _TIMER, generation, name)

    def put_request(self, number: int, request: Request) -> None:
        self._put(request.at, request.node, _REQUEST, number, request.command)

    def ask(self, node: int, command: Any, client: str = "") -> int:
        """See Door."""
        request = Request(at=self.now, node=node, command=command, client=client)
        check_request(request, self.run.size)
        self._asked.append(request)
        number = len(self.run.requests) + len(self._asked) - 1
        self.put_request(number, request)
        return number

    def later(self, after: float, act: Callable[[], None]) -> None:
        """See Door."""
        # Behind every node.
        self._put(self.now + after, self.run.size, _CLIENT, 0, act)

    def _put(self, due: float, node: int, kind: int, detail: int, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._calendar, (due, node, kind, self._count, detail, what))

    def play(self, stop: Callable[[Run], bool] | None) -> float:
        calendar, nodes, contexts = self._calendar, self.run.nodes, self.contexts
        until, watched = self.until, self.watched
        now = 0.0
        if self.clients is not None:
            self.clients.start(self)
        while calendar and calendar[0][0] <= until:
            now, node, kind, _, detail, what = heapq.heappop(calendar)
            self.now = now
            if kind == _CLIENT:
                what()
                continue
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
                break
        self.run.requests += tuple(self._asked)
        return until if stop is None else now

    def under_way(self) -> int:
        return sum(entry[2] == _MESSAGE for entry in self._calendar)


def simulate(
    algorithm: Algorithm,
    *,
    size: int = 0,
    network: Network | None = None,
    until: float,
    life: str = "rounds",
    seed: int = 0,
    requests: Sequence[Request] = (),
    clients: Clients | None = None,
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
    clients : Clients, optional
        What ask and wait for the answers, as events only; their requests follow ``requests`` in the run.
    faults : sequence of Fault
        See :mod:`wavetank.sim.faults`.
    scheduler : Scheduler, optional
        An adversary that may hold messages.
    stop : callable, optional
        Looked at after every round (or event); the run ends when it returns True.
    log : bool
        Whether to write down everything that happens.
    setup : callable, optional
        Given the nodes before they start: what an experimenter knows and no message says.
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
    if clients is not None and life != "events":
        raise BadValueError("Clients who wait for answers need a run as events.", given=life, allowed="events")
    run = new_run(algorithm, count, requests, faults)
    kind = Rounds if life == "rounds" else _Events
    simulation = kind(network, seed, scheduler, run, until=until, watched=log)
    simulation.clients = clients
    return simulation.finished(stop=stop, setup=setup, invariant=invariant)
