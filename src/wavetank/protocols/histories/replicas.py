"""A small world for replicated stores: replicas, clients beside them, messages with delays, and a partition.

A round of the simulation is the mean delay of a message; links do not keep the order of messages.  A message over a cut
link waits until the cut heals.  A client asks the replica beside it, one operation at a time; after its patience it
gives up, the operation stays open in the history, and the client goes on under another name, as clients of test
harnesses do.

Source: the set-up of S. Gilbert, N. Lynch, "Brewer's Conjecture and the Feasibility of Consistent, Available,
Partition-Tolerant Web Services", SIGACT News 33(2), 2002.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.sim.clients import Door
from wavetank.sim.events import simulate
from wavetank.sim.history import History, Operation
from wavetank.sim.network import Network
from wavetank.sim.node import Algorithm, Message
from wavetank.sim.rng import stream
from wavetank.sim.simulation import Scheduler

# Pause between two operations of a client, so that no two begin at one time; in seconds.
_BREATH_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class World:
    """What stores run in.

    Parameters
    ----------
    replicas, clients : int
        Client ``i`` sits beside replica ``i mod replicas``.
    operations : int
        Of each client.
    keys : int
    writes : float
        Share of writes.
    delay_s : float
        Mean one-way delay between replicas (exponential, on top of a tenth of it).
    think_s : float
        Mean pause of a client between operations (exponential).
    partition_s : float
        How long the last replica is cut off from the others; 0 for never.
    partition_at_s : float
        When that begins.
    patience_s : float
        After which a client gives an operation up.
    quiet_s : float
        Pause before each client reads every key once more, long after the last write.
    """

    replicas: int = 3
    clients: int = 6
    operations: int = 8
    keys: int = 2
    writes: float = 0.4
    delay_s: float = 0.05
    think_s: float = 0.05
    partition_s: float = 0.0
    partition_at_s: float = 0.2
    patience_s: float = 1.0
    quiet_s: float = 10.0


class _Delays(Scheduler):
    """Draws the delay of every message on its own, and holds what would cross the cut until it heals."""

    def __init__(self, world: World, seed: int) -> None:
        self._rng = stream(seed, "replicas", "delays")
        self._last = world.replicas - 1
        self._begin = world.partition_at_s / world.delay_s
        self._end = self._begin + world.partition_s / world.delay_s

    def extra_delay(self, sender: int, to: int, message: Message, now: float) -> float:
        delay = 0.1 + float(self._rng.exponential())
        crosses = (sender == self._last) != (to == self._last)
        if crosses and now < self._end and now + delay > self._begin:
            delay += self._end - max(now, self._begin)
        return delay


class _Clients:
    """All clients of a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.log: list[Operation] = []
        self.asked = self.given_up = 0
        self._replies: dict[int, Callable[[Any], None]] = {}
        self._clients = [_Client(number, self, seed) for number in range(world.clients)]

    def start(self, door: Door) -> None:
        self._door = door
        for client in self._clients:
            client.begin()

    def answered(self, number: int, result: Any) -> None:
        self._replies[number](result)

    @property
    def now_s(self) -> float:
        return self._door.now * self.world.delay_s

    def after(self, wait_s: float, act: Callable[[], None]) -> None:
        self._door.later(wait_s / self.world.delay_s, act)

    def ask(self, replica: int, command: tuple[Any, ...], process: str, reply: Callable[[Any], None]) -> None:
        self.asked += 1
        self._replies[self._door.ask(replica, command, process)] = reply


class _Client:
    """Asks one operation after another and records the answers."""

    def __init__(self, number: int, all_clients: _Clients, seed: int) -> None:
        self._number, self._all, self._world = number, all_clients, all_clients.world
        self._rng = stream(seed, "replicas", "client", number)
        self._life, self._done = 0, 0

    def begin(self) -> None:
        self._all.after(self._thinking_s(), self._next)

    def _thinking_s(self) -> float:
        return float(self._rng.exponential(self._world.think_s))

    def _next(self) -> None:
        world = self._world
        if self._done == world.operations:
            healed_s = max(world.partition_at_s + world.partition_s - self._all.now_s, 0.0)
            self._all.after(healed_s + world.quiet_s, lambda: self._look(0))
            return
        self._done += 1
        key = f"k{int(self._rng.integers(world.keys))}"
        write = self._rng.random() < world.writes
        # No two writes are alike, so that every read names its source.
        value = self._number * world.operations + self._done if write else None
        self._ask(key, value, lambda: self._all.after(_BREATH_S + self._thinking_s(), self._next))

    def _look(self, key: int) -> None:
        if key < self._world.keys:
            self._ask(f"k{key}", None, lambda: self._all.after(_BREATH_S, lambda: self._look(key + 1)))

    def _ask(self, key: str, value: int | None, go_on: Callable[[], None]) -> None:
        invoked = self._all.now_s
        process = f"{self._number}" if not self._life else f"{self._number}.{self._life}"
        action = "read" if value is None else "write"
        over = False

        def note(result: Any, returned: float | None) -> None:
            nonlocal over
            over = True
            # A read without an answer says nothing.
            if value is not None or returned is not None:
                self._all.log.append(
                    Operation(
                        process=process, action=action, key=key, value=value,
                        result=result if value is None else None, invoked=invoked, returned=returned,
                    )
                )  # fmt: skip
            go_on()

        def reply(result: Any) -> None:
            if not over:
                note(result, self._all.now_s)

        def give_up() -> None:
            if not over:
                self._life += 1
                self._all.given_up += 1
                note(None, None)

        self._all.after(self._world.patience_s, give_up)
        command = ("read", key) if value is None else ("write", key, value)
        self._all.ask(self._number % self._world.replicas, command, process, reply)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What came of one run.

    Parameters
    ----------
    history : History
        Clock in seconds; keys hold None at first.
    availability : float
        Share of operations that were answered within the clients' patience.
    violation : str
        How the store's own invariant was broken; empty when it held.
    """

    history: History
    availability: float
    violation: str = ""


def record(store: Algorithm, world: World, seed: int) -> Recorded:
    """Run a store and return its history."""
    clients = _Clients(world, seed)
    run = simulate(
        store, life="events", until=math.inf, seed=seed, clients=clients, scheduler=_Delays(world, seed),
        # Links alone delay nothing; what is held back keeps no order.
        network=Network.complete(world.replicas, least_delay=0.0, reorder=1.0),
    )  # fmt: skip
    log = sorted(clients.log, key=lambda operation: operation.invoked)
    history = History(operations=tuple(log), store="register")
    return Recorded(history=history, availability=1.0 - clients.given_up / clients.asked, violation=run.violation)


def staleness_s(history: History) -> list[float]:
    """Return for each read how long what it read had been overwritten, in seconds; 0 for a fresh one.

    A value is overwritten when a write that was invoked after it was written has returned.
    """
    writes: dict[str, list[Operation]] = {}
    for operation in history.operations:
        if operation.action == "write":
            writes.setdefault(operation.key, []).append(operation)
    found = []
    for read in history.operations:
        if read.action != "read" or read.returned is None:
            continue
        source = next((write for write in writes.get(read.key, ()) if write.value == read.result), None)
        began = -math.inf if source is None else source.returned
        ages = [
            read.invoked - write.returned
            for write in writes.get(read.key, ())
            if write.returned is not None
            and write.returned < read.invoked
            and began is not None
            and write.invoked > began
        ]
        found.append(max(ages, default=0.0))
    return found


def mean_staleness_s(history: History) -> float:
    """Return the mean of :func:`staleness_s`; 0 for a history without reads."""
    ages = staleness_s(history)
    return float(np.mean(ages)) if ages else 0.0
