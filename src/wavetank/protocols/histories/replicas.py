"""A small world for replicated stores: replicas, clients beside them, messages with delays, and a partition.

Time is virtual and every draw has a name, so that a seed gives one history.  A message over a cut link waits until the
cut heals.  A client asks the replica beside it, one operation at a time; after its patience it gives up, the operation
stays open in the history, and the client goes on under another name, as clients of test harnesses do.

Source: the set-up of S. Gilbert, N. Lynch, "Brewer's Conjecture and the Feasibility of Consistent, Available,
Partition-Tolerant Web Services", SIGACT News 33(2), 2002.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from wavetank.sim.history import History, Operation
from wavetank.sim.rng import stream

Reply = Callable[[Any], None]


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


class Replicas:
    """The event loop of one run: what a store may use.

    Parameters
    ----------
    world : World
    seed : int
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.now_s = world, 0.0
        self.replicas = world.replicas
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._rng = stream(seed, "replicas", "delays")

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do something at a time; equal times in the order of the calls."""
        self._count += 1
        heapq.heappush(self._queue, (time_s, self._count, act))

    def send(self, sender: int, receiver: int, act: Callable[[], None]) -> None:
        """Deliver a message: do something at the receiver, after a delay and when no cut is between the two."""
        if sender == receiver:
            self.at(self.now_s, act)
            return
        mean = self.world.delay_s
        arrival = self.now_s + 0.1 * mean + float(self._rng.exponential(mean))
        begin, end = self.world.partition_at_s, self.world.partition_at_s + self.world.partition_s
        cut = (sender == self.replicas - 1) != (receiver == self.replicas - 1)
        if cut and self.now_s < end and arrival > begin:
            arrival += end - max(self.now_s, begin)
        self.at(arrival, act)

    def broadcast(self, sender: int, act: Callable[[int], None]) -> None:
        """Send to all replicas but the sender."""
        for receiver in range(self.replicas):
            if receiver != sender:
                self.send(sender, receiver, lambda receiver=receiver: act(receiver))  # type: ignore[misc]

    def run(self) -> None:
        """Run until nothing is left to do."""
        while self._queue:
            self.now_s, _, act = heapq.heappop(self._queue)
            act()


class Store(Protocol):
    """A replicated store: makes its state for one run."""

    def open(self, replicas: Replicas) -> OpenStore:
        """Return the store's state for a run over these replicas."""


class OpenStore(Protocol):
    """A store in a run; ``reply`` is called once, when the operation is done, with what was read."""

    def read(self, replica: int, key: str, reply: Reply) -> None:
        """Read at a replica."""

    def write(self, replica: int, key: str, value: int, reply: Reply) -> None:
        """Write at a replica."""


class _Client:
    """Asks one operation after another and records the answers."""

    def __init__(self, number: int, replicas: Replicas, store: OpenStore, seed: int, log: list[Operation]) -> None:
        self._number, self._replicas, self._store, self._log = number, replicas, store, log
        self._rng = stream(seed, "replicas", "client", number)
        self._life, self._done = 0, 0

    def begin(self) -> None:
        self._replicas.at(float(self._rng.exponential(self._replicas.world.think_s)), self._next)

    def _next(self) -> None:
        world = self._replicas.world
        if self._done == world.operations:
            self._replicas.at(max(self._replicas.now_s, world.partition_at_s + world.partition_s) + world.quiet_s,
                              lambda: self._look(0))  # fmt: skip
            return
        self._done += 1
        key = f"k{int(self._rng.integers(world.keys))}"
        write = self._rng.random() < world.writes
        # No two writes are alike, so that every read names its source.
        value = self._number * world.operations + self._done if write else None
        self._ask(key, value, self._pause)

    def _pause(self) -> None:
        self._replicas.at(
            self._replicas.now_s + 1e-6 + float(self._rng.exponential(self._replicas.world.think_s)), self._next
        )

    def _look(self, key: int) -> None:
        if key < self._replicas.world.keys:
            self._ask(
                f"k{key}", None, lambda: self._replicas.at(self._replicas.now_s + 1e-6, lambda: self._look(key + 1))
            )

    def _ask(self, key: str, value: int | None, go_on: Callable[[], None]) -> None:
        invoked = self._replicas.now_s
        process = f"{self._number}" if not self._life else f"{self._number}.{self._life}"
        answered: list[bool] = []

        def note(result: Any, returned: float | None) -> None:
            answered.append(True)
            if value is not None or returned is not None:
                self._log.append(
                    Operation(
                        process=process, action="read" if value is None else "write", key=key, value=value,
                        result=result if value is None else None, invoked=invoked, returned=returned,
                    )
                )  # fmt: skip
            go_on()

        def reply(result: Any) -> None:
            if not answered:
                note(result, self._replicas.now_s)

        def give_up() -> None:
            if not answered:
                self._life += 1
                self.given_up += 1
                note(None, None)

        self.asked += 1
        self._replicas.at(invoked + self._replicas.world.patience_s, give_up)
        replica = self._number % self._replicas.replicas
        if value is None:
            self._store.read(replica, key, reply)
        else:
            self._store.write(replica, key, value, reply)

    asked = 0
    given_up = 0


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What came of one run.

    Parameters
    ----------
    history : History
        Clock in seconds; keys hold 0 at first.
    availability : float
        Share of operations that were answered within the clients' patience.
    """

    history: History
    availability: float


def record(store: Store, world: World, seed: int) -> Recorded:
    """Run a store and return its history.

    Parameters
    ----------
    store : Store
    world : World
    seed : int
    """
    replicas = Replicas(world, seed)
    log: list[Operation] = []
    opened = store.open(replicas)
    clients = [_Client(number, replicas, opened, seed, log) for number in range(world.clients)]
    for client in clients:
        client.begin()
    replicas.run()
    log.sort(key=lambda operation: operation.invoked)
    asked = sum(client.asked for client in clients)
    history = History(operations=tuple(log), store="register", initial=0)
    return Recorded(history=history, availability=1.0 - sum(client.given_up for client in clients) / asked)


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
