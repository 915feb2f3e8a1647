"""An algorithm over sockets in one file: the place to begin to read :mod:`wavetank.live`.

Each node listens on a TCP socket of loopback and has a connection to each of its peers.  Everything happens on one
event loop.  A batch of messages is delivered, the node reacts, and when the loop comes round, what the node did leaves
together: one write per link, then decisions and replies are passed to the client.

:class:`Clock`, :class:`Timers`, :class:`LiveContext` and :class:`Host` are those of the whole cluster, too.  A cluster
(:mod:`wavetank.live.cluster`) adds what :class:`MinimalHost` leaves out: links that are made again and have bounded
queues, a handshake, signatures and TLS, saved values that survive kill -9, faults, processes and other hosts.

Compare ``actor/spawn.rs`` of Stateright (https://github.com/stateright/stateright), which runs checked actors over UDP.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import socket
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.loops import fastest_loop
from wavetank.live.run import ClusterRun, Output
from wavetank.live.wire import (
    LARGEST_FRAME_BYTES,
    Envelope,
    FrameSplitter,
    HostileFrameError,
    MessageCodec,
    encoded,
    framed,
    too_large,
)
from wavetank.sim.network import Topology
from wavetank.sim.node import Algorithm, Message, Node, no_link, not_later, unlisted
from wavetank.sim.rng import Draws, stream_key
from wavetank.sim.simulation import Request


class Clock:
    """Time in rounds, and the calls that are due.

    Parameters
    ----------
    round_s : float
        Seconds per round.
    rung : callable
        Called after calls that were due.
    """

    def __init__(self, round_s: float, rung: Callable[[], None]) -> None:
        self.round_s = round_s
        self.now = 0.0
        self.closed = False
        self._rung = rung
        self._calendar: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")
        self.begin()

    def begin(self, elapsed_s: float = 0.0) -> None:
        """Say that round 0 was ``elapsed_s`` seconds ago."""
        # uvloop's own clock counts whole milliseconds and stands still within a turn of the loop.
        self._epoch_s = time.monotonic() - elapsed_s

    def tick(self) -> None:
        """Read the time; it stands still until the next reading."""
        self.now = (time.monotonic() - self._epoch_s) / self.round_s

    def at(self, due: float, call: Callable[[], None]) -> None:
        """Have something called at an instant."""
        heapq.heappush(self._calendar, (due, next(self._count), call))
        if due < self._alarm_at and not self.closed:
            self._set_alarm(due)

    def close(self) -> None:
        """Call nothing more."""
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()

    def _set_alarm(self, due: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        wait_s = self._epoch_s + due * self.round_s - time.monotonic()
        # uvloop rounds to milliseconds; rounded up, it does not wake too early and wait again.
        self._alarm = asyncio.get_running_loop().call_later(max(wait_s, 0.0) + 0.0005, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, float("inf")
        self.tick()
        calendar, now = self._calendar, self.now
        while calendar and calendar[0][0] <= now:
            heapq.heappop(calendar)[2]()
        if calendar and calendar[0][0] < self._alarm_at and not self.closed:
            self._set_alarm(calendar[0][0])
        self._rung()


class Timers:
    """The timers of one node.

    Parameters
    ----------
    clock : Clock
    ran_out : callable
        Given the name of each timer that runs out.
    """

    def __init__(self, clock: Clock, ran_out: Callable[[str], None]) -> None:
        self._clock = clock
        self._ran_out = ran_out
        # Timer to when it runs out, and to when the calendar looks at it next.
        self._due: dict[str, float] = {}
        self._looks: dict[str, float] = {}

    def set(self, name: str, after: float) -> None:
        """Have a timer run out; resetting one to a later time, the usual case, only writes down the time."""
        self._due[name] = due = self._clock.now + after
        self._look_at(name, due)

    def cancel(self, name: str) -> None:
        """Forget a timer."""
        self._due.pop(name, None)

    def clear(self) -> None:
        """Forget all timers."""
        self._due.clear()

    def _look_at(self, name: str, due: float) -> None:
        if due < self._looks.get(name, float("inf")):
            self._looks[name] = due
            self._clock.at(due, partial(self._look, name, due))

    def _look(self, name: str, looked_at: float) -> None:
        if self._looks.get(name) == looked_at:
            del self._looks[name]
        due = self._due.get(name)
        if due is None:
            return
        if due > self._clock.now:
            self._look_at(name, due)
            return
        del self._due[name]
        self._ran_out(name)


class LiveContext:
    """What a node sees of the world; see :class:`wavetank.sim.node.Context`."""

    __slots__ = ("_clock", "_host", "_kinds", "_routes", "_timers", "id", "peers", "rng", "size")

    def __init__(self, host: Host, node: int, timers: Timers, rng: Draws) -> None:
        self._host = host
        self._clock = host.clock
        self._timers = timers
        self._kinds = host.codec.kinds
        self.id = node
        self.size = host.topology.size
        self.peers: Sequence[int] = host.topology.peers(node)
        self.rng = rng
        # Receiver to what takes an envelope for it.
        self._routes = host.routes(node, self.peers)

    @property
    def now(self) -> float:
        """Time in rounds at which this reaction began."""
        return self._clock.now

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        if type(message) not in self._kinds:
            raise unlisted(message, self._host.algorithm)
        put = self._routes.get(to)
        if put is None:
            raise no_link(self.id, to)
        self._host.sent += 1
        put((self.id, to, message))

    def broadcast(self, message: Message) -> None:
        """See Context."""
        if type(message) not in self._kinds:
            raise unlisted(message, self._host.algorithm)
        sender = self.id
        self._host.sent += len(self._routes)
        for to, put in self._routes.items():
            put((sender, to, message))

    def set_timer(self, name: str, after: float) -> None:
        """See Context."""
        if not after > 0:
            raise not_later(self.id, name, after)
        self._timers.set(name, after)

    def cancel_timer(self, name: str) -> None:
        """See Context."""
        self._timers.cancel(name)

    def save(self, key: str, value: Any) -> None:
        """See Context."""
        self._host.save(self.id, key, value)

    def load(self, key: str, default: Any = None) -> Any:
        """See Context."""
        return self._host.load(self.id, key, default)

    def decide(self, value: Any, instance: Any = 0) -> None:
        """See Context."""
        self._host.report("decide", self.id, instance, value)

    def reply(self, number: int, result: Any) -> None:
        """See Context."""
        self._host.report("reply", self.id, number, result)

    def record(self, metric: str, value: float = 1.0) -> None:
        """See Context."""
        self._host.report("record", self.id, metric, value)


class Host(ABC):
    """Where nodes run: delivers to them, and lets out what they did when the event loop comes round.

    Parameters
    ----------
    algorithm : Algorithm
    topology : Topology
    nodes : iterable of int
        Those that run here.
    round_s : float
        Seconds per round.
    outputs : callable
        Given a list of Output, in order, after what they rest on was let out.

    Attributes
    ----------
    sent, delivered : int
        Messages.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        topology: Topology,
        nodes: Iterable[int],
        round_s: float,
        outputs: Callable[[list[Output]], None],
    ) -> None:
        self.algorithm = algorithm
        self.topology = topology
        self.codec = MessageCodec(algorithm.messages)
        self.clock = Clock(round_s, self.schedule_flush)
        self.sent = self.delivered = 0
        self._loop = asyncio.get_running_loop()
        self._outputs = outputs
        self._reported: list[Output] = []
        self._flush_scheduled = False
        # Node to what takes its messages, and to who may send them where not everybody may.
        self._receivers: dict[int, Callable[[int, Any], None]] = {}
        self._sources = None if topology.links is None else {node: frozenset(topology.sources(node)) for node in nodes}

    @abstractmethod
    def routes(self, sender: int, peers: Sequence[int]) -> Mapping[int, Callable[[Envelope], None]]:
        """Return what takes the envelopes of a node to each of its peers."""

    @abstractmethod
    def save(self, node: int, key: str, value: Any) -> None:
        """Keep a value for a node."""

    @abstractmethod
    def load(self, node: int, key: str, default: Any) -> Any:
        """Return what a node saved."""

    @abstractmethod
    def fail(self, node: int, error: BaseException) -> None:
        """End a node whose code raised."""

    @abstractmethod
    def let_out(self) -> None:
        """Write what the nodes saved and sent."""

    def deliver(self, batch: list[Envelope]) -> None:
        """Give messages to the nodes; raises HostileFrameError for one that no link leads to."""
        self.clock.tick()
        receivers, sources = self._receivers, self._sources
        for sender, to, message in batch:
            receive = receivers.get(to)
            if receive is None or (sender == to if sources is None else sender not in sources[to]):
                raise HostileFrameError("not-here", f"from node {sender} to node {to}")
            try:
                receive(sender, message)
            except Exception as error:
                self.fail(to, error)
        self.delivered += len(batch)
        self.schedule_flush()

    def react(self, node: int, call: Callable[[], None]) -> None:
        """Have a node react to something else than a message."""
        self.clock.tick()
        try:
            call()
        except Exception as error:
            self.fail(node, error)
        self.schedule_flush()

    def report(self, kind: str, node: int, name: Any, value: Any) -> None:
        """Pass on what a node said to the outside."""
        self._reported.append(Output(kind, node, self.clock.now, name, value))

    def schedule_flush(self) -> None:
        """Flush when the event loop comes round."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Let out what the nodes did since the last time: what they saved and sent, then what they reported."""
        self._flush_scheduled = False
        if self.clock.closed:
            return
        self.let_out()
        if self._reported:
            reported, self._reported = self._reported, []
            self._outputs(reported)


class MinimalHost(Host):
    """One node, its listening socket, and a connection to each of its peers.

    Parameters
    ----------
    algorithm, topology, round_s, outputs
        As for :class:`Host`.
    number : int
        The node.
    seed : int
        Of the run.
    failed : callable
        Given the node and the trace of the exception that ended it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        topology: Topology,
        number: int,
        *,
        seed: int,
        round_s: float,
        outputs: Callable[[list[Output]], None],
        failed: Callable[[int, str], None],
    ) -> None:
        super().__init__(algorithm, topology, [number], round_s, outputs)
        self.number = number
        self.node: Node = algorithm.node(number, topology.size)
        self.connections: set[asyncio.Transport] = set()
        self._failed = failed
        self._saved: dict[str, Any] = {}
        self._queues: dict[int, list[Envelope]] = {peer: [] for peer in topology.peers(number)}
        self._links: dict[int, asyncio.Transport] = {}
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._emptied = asyncio.Event()
        timers = Timers(self.clock, lambda name: self.react(number, lambda: self.node.timer(name)))
        self.node.context = LiveContext(self, number, timers, Draws(stream_key(seed, "node", number)))
        self._receivers[number] = self.node.receive

    async def listen(self) -> tuple[str, int]:
        """Open the socket and return its address."""
        # Held before anything is awaited, so that it is closed whenever the run is cancelled.
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._server = await self._loop.create_server(lambda: _Connection(self), sock=self._socket, start_serving=False)
        await self._server.start_serving()
        host, port = self._socket.getsockname()
        return host, port

    async def connect(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Connect to the peers, whose addresses are in the order of the nodes."""
        for peer in self._queues:
            self._links[peer], _ = await self._loop.create_connection(lambda: _Connection(self), *addresses[peer])

    def begin(self) -> None:
        """Start the node."""
        self.clock.begin()
        self.react(self.number, self.node.start)

    def routes(self, sender: int, peers: Sequence[int]) -> dict[int, Callable[[Envelope], None]]:
        """Return what takes the envelopes of the node to each of its peers."""
        return {peer: self._queues[peer].append for peer in peers}

    def save(self, node: int, key: str, value: Any) -> None:
        """Keep a value in memory."""
        self._saved[key] = value

    def load(self, node: int, key: str, default: Any) -> Any:
        """Return what was saved."""
        return self._saved.get(key, default)

    def fail(self, node: int, error: BaseException) -> None:
        """Report the exception; it ends the run."""
        self._failed(node, "".join(traceback.format_exception(error)))

    def let_out(self) -> None:
        """Write what the node sent: one frame per peer."""
        for peer, queue in self._queues.items():
            if queue:
                try:
                    self._links[peer].writelines(self._frames(queue))
                except Exception as error:
                    self.fail(self.number, error)
                queue.clear()

    def _frames(self, queue: Sequence[Envelope]) -> list[bytes]:
        """Return the frames of a batch: several where one would be longer than the other end takes."""
        body = encoded(self.codec, queue)
        if len(body) <= LARGEST_FRAME_BYTES:
            return [framed(body)]
        if len(queue) == 1:
            raise too_large(queue[0], len(body), LARGEST_FRAME_BYTES)
        return [*self._frames(queue[: len(queue) // 2]), *self._frames(queue[len(queue) // 2 :])]

    def close(self) -> None:
        """Begin to close all sockets."""
        self.clock.close()
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()
        for transport in self.connections:
            transport.abort()

    async def closed(self) -> None:
        """Return when all sockets are closed."""
        while self.connections:
            self._emptied.clear()
            await self._emptied.wait()

    def lost(self, transport: asyncio.Transport) -> None:
        """Forget a connection that is closed."""
        self.connections.discard(transport)
        self._emptied.set()


class _Connection(asyncio.Protocol):
    """One end of a connection: the end that made it writes, the other one reads."""

    transport: asyncio.Transport

    def __init__(self, host: MinimalHost) -> None:
        self._host = host
        self._splitter = FrameSplitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._host.connections.add(self.transport)
        if self._host.clock.closed:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                self._host.deliver(self._host.codec.decode(frame))
        except HostileFrameError:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.lost(self.transport)


async def play_minimal(
    algorithm: Algorithm,
    size: int,
    requests: Sequence[Request] = (),
    duration_s: float = 10.0,
    seed: int = 0,
    *,
    round_s: float = 0.05,
    stop: Callable[[ClusterRun], bool] | None = None,
) -> ClusterRun:
    """Run an algorithm as :func:`run_minimal` does, on the event loop that runs; all is closed when it is cancelled."""
    _check(size, requests, duration_s, round_s)
    run = ClusterRun(size=size, correct=frozenset(range(size)), requests=list(requests))
    changed = asyncio.Event()

    def take(outputs: list[Output]) -> None:
        for output in outputs:
            run.take(output, output.at * round_s)
        changed.set()

    def failed(node: int, trace: str) -> None:
        run.failures.setdefault(node, trace)
        changed.set()

    def ask(number: int, request: Request) -> None:
        host = hosts[request.node]
        run.invoked_s[number] = host.clock.now * round_s
        host.react(request.node, lambda: host.node.request(number, request.command))

    topology = Topology.complete(size)
    hosts: list[MinimalHost] = []
    for number in range(size):
        try:
            hosts.append(
                MinimalHost(algorithm, topology, number, seed=seed, round_s=round_s, outputs=take, failed=failed)
            )
        except WavetankError:
            raise
        except Exception:
            failed(number, traceback.format_exc())
            return run
    try:
        addresses = [await host.listen() for host in hosts]
        for host in hosts:
            await host.connect(addresses)
        begun_s = time.monotonic()
        for host in hosts:
            host.begin()
        for number, request in enumerate(requests):
            hosts[request.node].clock.at(request.at, partial(ask, number, request))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                while not run.failures and not (stop is not None and stop(run)):
                    changed.clear()
                    await changed.wait()
        run.duration_s = time.monotonic() - begun_s
    finally:
        # All begin to close before any is waited for: a second cancellation leaves nothing open.
        for host in hosts:
            host.close()
        for host in hosts:
            await host.closed()
    run.time = run.duration_s / round_s
    run.nodes = [host.node for host in hosts]
    run.sent, run.delivered = sum(host.sent for host in hosts), sum(host.delivered for host in hosts)
    run.judge(algorithm)
    return run


def _check(size: int, requests: Sequence[Request], duration_s: float, round_s: float) -> None:
    for name, value in (("round_s", round_s), ("duration_s", duration_s)):
        if not 0 < value < math.inf:
            raise BadValueError("A time is positive and ends.", given=value, allowed="seconds above 0", where=name)
    for request in requests:
        if not 0 <= request.node < size:
            raise BadValueError(
                "There is no such node.", given=request.node, allowed=f"0 to {size - 1}", where="requests"
            )
        if not 0 <= request.at < math.inf:
            raise BadValueError("A request has a time.", given=request.at, allowed="rounds from 0", where="requests")


def run_minimal(
    algorithm: Algorithm,
    size: int,
    requests: Sequence[Request] = (),
    duration_s: float = 10.0,
    seed: int = 0,
    *,
    round_s: float = 0.05,
    stop: Callable[[ClusterRun], bool] | None = None,
) -> ClusterRun:
    """Run an algorithm over TCP sockets of loopback, all in this process, and return what came out.

    Parameters
    ----------
    algorithm : Algorithm
    size : int
        Nodes; each is linked to all others.
    requests : sequence of Request
        As for :func:`wavetank.sim.events.simulate`; ``at`` in rounds.  A request is asked once.
    duration_s : float
        Seconds after which the run ends.
    seed : int
        Of the nodes' random streams, which are those of a simulation.
    round_s : float
        Seconds per round.
    stop : callable, optional
        Ends the run when it returns True of the ClusterRun so far.

    Raises
    ------
    WavetankError
        If a request is for no node, or the code of a node raised.

    Examples
    --------
    >>> run = run_minimal(algorithm, 4, duration_s=5, stop=lambda run: len(run.decisions) == 4)  # doctest: +SKIP
    >>> run.violation  # doctest: +SKIP
    ''
    """
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        run = runner.run(play_minimal(algorithm, size, requests, duration_s, seed, round_s=round_s, stop=stop))
    run.check()
    return run
