"""An endpoint: one socket, the nodes that live behind it, and their context over sockets.

Everything happens on one event loop.  A batch of messages is delivered, the nodes react, and when the loop comes round
what they did leaves together: first what they saved is synchronised to disk, then messages are written, one write a
link, and decisions and replies are told.  So one synchronisation and one write serve many messages, and nothing that
is known outside can be forgotten by a crash.

Differs from the simulation: time is wall time, ``round_s`` seconds a round; the network is real, and only delays,
losses and partitions that were asked for are put on top of it, on the sending side.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import itertools
import logging
import os
import socket
import ssl
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.interfaces import Algorithm, Message, Node
from wavetank.protocols.live.credentials import Certificate, Signatures
from wavetank.protocols.live.durable import DurableState
from wavetank.protocols.live.links import (
    HELLO_TIMEOUT_S,
    DatagramLink,
    DatagramPort,
    Incoming,
    Link,
    StreamLink,
    TlsListener,
)
from wavetank.protocols.live.strangers import Strangers
from wavetank.protocols.live.values import ValueCodec
from wavetank.protocols.live.wire import (
    LARGEST_DATAGRAM_BYTES,
    LARGEST_FRAME_BYTES,
    DatagramReader,
    DatagramWriter,
    EndpointSigner,
    Envelope,
    HostileFrameError,
    MessageCodec,
    RunIdentity,
    encoded,
)
from wavetank.protocols.network import Network
from wavetank.rng import Draws, stream_key

TRANSPORTS = ("tcp", "udp")
_LOGGED_FRAMES = 20
LARGEST_QUEUE_BYTES = 64 * 2**20
_RECEIVE_BUFFER_BYTES = 4 * 2**20

log = logging.getLogger("wavetank.cluster")


@dataclass(frozen=True, kw_only=True)
class EndpointPlan:
    """What all endpoints of a run have in common.

    Parameters
    ----------
    identity : RunIdentity
    homes : tuple of tuple of int
        The nodes that live at each endpoint.
    network : Network
        Who may send to whom, and what is put on top of the real network; links that are ``plain`` put nothing.
    round_s : float
        Seconds a round.
    seed : int
    transport : str
        ``tcp`` or ``udp``.
    queue_messages : int
        Messages a link keeps; the oldest are dropped.
    queue_bytes : int
        Bytes of messages that a link keeps while its peer takes none; the oldest are dropped.
    frame_bytes : int
        Greatest frame, and so the greatest message.
    hello_timeout_s : float
        How long a new connection may keep silent.
    signed : bool
        Whether frames carry the Ed25519 signature of the node that sent them.
    """

    identity: RunIdentity
    homes: tuple[tuple[int, ...], ...]
    network: Network
    round_s: float = 0.05
    seed: int = 0
    transport: str = "tcp"
    queue_messages: int = 65_536
    queue_bytes: int = LARGEST_QUEUE_BYTES
    frame_bytes: int = LARGEST_FRAME_BYTES
    hello_timeout_s: float = HELLO_TIMEOUT_S
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What a node told the outside.

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


class SocketContext:
    """What a node sees of the world; see :class:`wavetank.protocols.interfaces.Context`."""

    __slots__ = ("_endpoint", "_kinds", "_routes", "_seat", "id", "peers", "rng", "size")

    def __init__(self, endpoint: Endpoint, seat: _Seat, rng: Draws) -> None:
        self._endpoint = endpoint
        self._seat = seat
        self._kinds = endpoint.codec.kinds
        self.id = seat.node_id
        self.size = endpoint.identity.size
        self.peers: Sequence[int] = endpoint.plan.network.topology.peers(self.id)
        self.rng = rng
        # Receiver to what takes an envelope for it.
        self._routes: Mapping[int, Callable[[Envelope], None]] = endpoint.routes(self.id, self.peers)

    @property
    def now(self) -> float:
        """Time in rounds at which this reaction began."""
        return self._endpoint.instant

    def send(self, to: int, message: Message) -> None:
        """See Context."""
        if type(message) not in self._kinds:
            raise _unknown_kind(message, self._kinds)
        put = self._routes.get(to)
        if put is None:
            raise BadValueError(
                f"Node {self.id} has no link to node {to}.", given=to, allowed="the nodes in context.peers"
            )
        self._endpoint.sent += 1
        put((self.id, to, message))

    def broadcast(self, message: Message) -> None:
        """See Context."""
        if type(message) not in self._kinds:
            raise _unknown_kind(message, self._kinds)
        sender = self.id
        self._endpoint.sent += len(self._routes)
        for to, put in self._routes.items():
            put((sender, to, message))

    def set_timer(self, name: str, after: float) -> None:
        """See Context."""
        if not after > 0:
            where = f"node {self.id}, timer {name!r}"
            raise BadValueError("A timer runs out later than now.", given=after, where=where)
        self._endpoint.set_timer(self._seat, name, after)

    def cancel_timer(self, name: str) -> None:
        """See Context."""
        self._seat.timers.pop(name, None)

    def save(self, key: str, value: Any) -> None:
        """See Context."""
        self._endpoint.save(self._seat, key, value)

    def load(self, key: str, default: Any = None) -> Any:
        """See Context."""
        state = self._seat.state
        return default if state is None else state.load(key, default)

    def decide(self, value: Any, instance: Any = 0) -> None:
        """See Context."""
        self._endpoint.tell("decide", self.id, instance, value)

    def reply(self, number: int, result: Any) -> None:
        """See Context."""
        self._endpoint.tell("reply", self.id, number, result)

    def record(self, metric: str, value: float = 1.0) -> None:
        """See Context."""
        self._endpoint.tell("record", self.id, metric, value)


def _unknown_kind(message: object, kinds: frozenset[type[Message]]) -> BadValueError:
    return BadValueError(
        "An algorithm names every kind of message that it sends.",
        given=type(message).__name__,
        allowed=sorted(kind.__name__ for kind in kinds),
    )


class _Seat:
    """The place of one node: the node while it is up, and what outlives it."""

    __slots__ = (
        "backlog",
        "backlog_bytes",
        "node",
        "node_id",
        "path",
        "restarts",
        "state",
        "status",
        "timers",
        "wakes",
    )

    def __init__(self, node_id: int, path: Path) -> None:
        self.node_id = node_id
        self.path = path
        self.state: DurableState | None = None
        self.node: Node | None = None
        # "waiting" before the start, then "up", "held" (stopped for a while) or "down".
        self.status = "waiting"
        self.restarts = 0
        # What waits for the node, with its length on the wire.
        self.backlog: deque[tuple[int, Callable[[Node], None]]] = deque()
        self.backlog_bytes = 0
        # Timer to when it runs out, and to when the calendar looks at it next; both in rounds.
        self.timers: dict[str, float] = {}
        self.wakes: dict[str, float] = {}


class Endpoint:
    """One socket and its nodes.

    Parameters
    ----------
    number : int
        Which of the plan's endpoints.
    plan : EndpointPlan
    algorithm : Algorithm
    make_node : callable
        Node id to a new node, faults attached.
    values : ValueCodec
    folder : Path
        Where the nodes keep what they save.
    outputs : callable
        Given a list of Output, in order, after what they rest on is on disk.
    failed : callable
        Given a node and the trace of the exception that ended it.
    private_keys : mapping
        Ed25519 keys of this endpoint's nodes.
    certificate : Certificate, optional
        Encrypts the links (TCP only).
    incarnation : int
        How often this endpoint was started before.

    Attributes
    ----------
    hostile : Counter
        Reason to the number of frames and connections refused for it.
    delivered, overflowed, lost, undelivered : int
        Messages: given to nodes; dropped from full queues; dropped on purpose; for nodes that were down.
    """

    def __init__(
        self,
        number: int,
        plan: EndpointPlan,
        algorithm: Algorithm,
        *,
        make_node: Callable[[int], Node],
        values: ValueCodec,
        folder: Path,
        outputs: Callable[[list[Output]], None],
        failed: Callable[[int, str], None],
        private_keys: Mapping[int, bytes] | None = None,
        certificate: Certificate | None = None,
        incarnation: int = 0,
    ) -> None:
        self.number = number
        self.plan = plan
        self.identity = plan.identity
        self.codec = MessageCodec(algorithm.messages)
        self.homes = {place: frozenset(nodes) for place, nodes in enumerate(plan.homes)}
        self.queue_messages = plan.queue_messages
        self.queue_bytes = plan.queue_bytes
        self.frame_bytes = plan.frame_bytes
        self.hello_timeout_s = plan.hello_timeout_s
        # Peers are known one by one; whoever has not said who it is waits apart from them.
        self.strangers: Strangers[Any] = Strangers()
        self.signatures = Signatures(private_keys or {}) if plan.signed else None
        self.signer = EndpointSigner(self.signatures, self.homes) if self.signatures is not None else None
        self.client_tls: ssl.SSLContext | None = certificate.client_context() if certificate else None
        self._server_tls = certificate.server_context() if certificate else None
        self.incarnation = incarnation
        # Of all endpoints, as far as is known.
        self.incarnations = {number: incarnation}
        self.port: DatagramPort | None = None
        self.datagram_writer: DatagramWriter | None = None
        self.datagram_reader: DatagramReader | None = None

        self.hostile: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.silences: Counter[int] = Counter()
        self.sent = self.duplicated = self.delivered = 0
        self.overflowed = self.lost = self.undelivered = self.unreachable = 0
        self.incoming: set[Incoming] = set()
        self._gate: TlsListener | None = None
        self.instant = 0.0

        self._make_node = make_node
        self._values = values
        self._outputs = outputs
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        # uvloop's own clock counts whole milliseconds and stands still within a turn of the loop.
        self._epoch_s = time.monotonic()
        self._server: asyncio.Server | None = None
        self._by_peer: dict[int, Incoming] = {}
        self._told: list[Output] = []
        self._unsynchronised: list[DurableState] = []
        self._flush_scheduled = False
        self._closing = False
        self._calendar: list[tuple[float, int, _Seat | None, Any]] = []
        self._count = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")
        kind = StreamLink if plan.transport == "tcp" else DatagramLink
        self.links: list[Link] = [kind(self, target) for target in range(len(plan.homes))]
        self._link_of = {node: self.links[place] for place, nodes in self.homes.items() for node in nodes}
        topology = plan.network.topology
        home_of = {node: place for place, nodes in self.homes.items() for node in nodes}
        # A ring of endpoints has no use for connections from everyone to everyone.
        self._needed = {home_of[peer] for node in self.homes[number] for peer in topology.peers(node)}
        self._sources = (
            None if topology.links is None else {node: frozenset(topology.sources(node)) for node in self.homes[number]}
        )
        self._impaired = None if plan.network.links.plain else plan.network.links
        self._seats = {node: _Seat(node, folder / f"node-{node}.state") for node in sorted(self.homes[number])}
        self._receivers: dict[int, Callable[[int, Any], None]] = {
            node: partial(self._kept, seat) for node, seat in self._seats.items()
        }

    # -- the socket --------------------------------------------------------------------------------------------------

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Open the socket and return its address.

        Raises
        ------
        BadValueError
            If the port is in use or the address is not this machine's.
        """
        loop = self._loop
        try:
            if self.plan.transport == "tcp":
                found = await self._listen_for_streams(host, port)
            else:
                transport, self.port = await loop.create_datagram_endpoint(
                    lambda: DatagramPort(self), local_addr=(host, port)
                )
                raw = transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
                found = transport.get_extra_info("sockname")
                self._set_up_datagrams()
        except OSError as error:
            raise cannot_listen(error, host, port) from None
        return str(found[0]), int(found[1])

    async def _listen_for_streams(self, host: str, port: int) -> tuple[Any, ...]:
        if self._server_tls is None:
            self._server = await self._loop.create_server(lambda: Incoming(self), host, port, backlog=1024)
            return tuple(self._server.sockets[0].getsockname())
        [(family, kind, number, _, address), *_] = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listening = socket.socket(family, kind, number)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(1024)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        self._gate = TlsListener(
            listening,
            self.strangers,
            self._server_tls,
            self.hello_timeout_s,
            lambda: Incoming(self),
            lambda error: self.count_hostile(error, "a stranger"),
        )
        return tuple(listening.getsockname())

    def _set_up_datagrams(self) -> None:
        self.datagram_writer = DatagramWriter(
            self.codec,
            self.identity,
            self.number,
            self.incarnation,
            limit=min(self.frame_bytes, LARGEST_DATAGRAM_BYTES),
            signatures=self.signatures,
        )
        self.datagram_reader = DatagramReader(
            self.codec,
            self.identity,
            senders=self.homes,
            incarnation=self.incarnation,
            endpoint=self.number,
            signatures=self.signatures,
        )

    def connect(self, addresses: Mapping[int, tuple[str, int]], incarnations: Mapping[int, int] | None = None) -> None:
        """Say where the endpoints are; may be said again when one has moved."""
        for place, address in addresses.items():
            if place in self._needed:
                self.links[place].move(address)
        self.incarnations.update(incarnations or {})
        if self.datagram_reader is not None:
            for place, incarnation in self.incarnations.items():
                self.datagram_reader.expect(place, incarnation)

    def know_keys(self, public: Mapping[int, bytes]) -> None:
        """Say which Ed25519 keys the nodes sign with."""
        if self.signatures is not None:
            self.signatures.know(public)

    async def connected(self, timeout_s: float) -> bool:
        """Return whether all links are up, after at most so long."""
        links = (self.links[place] for place in self._needed)
        waits = [link.connected.wait() for link in links if isinstance(link, StreamLink)]
        try:
            await asyncio.wait_for(asyncio.gather(*waits), timeout_s)
        except TimeoutError:
            return False
        return True

    def missing(self) -> dict[int, str]:
        """Return the endpoints to which there has never been a link, each with why the last attempt failed."""
        links = (self.links[place] for place in sorted(self._needed))
        return {
            link.target: link.last_error or "no connection was tried"
            for link in links
            if isinstance(link, StreamLink) and not link.connections
        }

    async def close(self) -> None:
        """Send what can be sent, then close everything."""
        self.flush()
        self._closing = True
        if self._alarm is not None:
            self._alarm.cancel()
        for link in self.links:
            await link.close()
        if self._server is not None:
            self._server.close()
        if self.port is not None:
            self.port.transport.close()
        if self._gate is not None:
            self._gate.close()
        for connection in list(self.incoming):
            connection.close()
        # Closing takes the loop one more turn.
        await asyncio.sleep(0)
        for connection in list(self.incoming):
            connection.transport.abort()
        for seat in self._seats.values():
            if seat.state is not None:
                seat.state.close()
                seat.state = None

    def replace_incoming(self, peer: int, connection: Incoming) -> None:
        """Know a peer by its newest connection alone."""
        before = self._by_peer.get(peer)
        self._by_peer[peer] = connection
        if before is not None:
            before.close()

    def forget_incoming(self, peer: int, connection: Incoming) -> None:
        """Forget a connection that is gone."""
        self.incoming.discard(connection)
        if self._by_peer.get(peer) is connection:
            del self._by_peer[peer]

    def count_hostile(self, error: HostileFrameError, who: str) -> None:
        """Count something that no honest peer sends; the first few are logged."""
        if self._closing:
            return
        self.hostile[error.reason] += 1
        if self.hostile.total() <= _LOGGED_FRAMES:
            log.warning("endpoint %d refused what came from %s: %s", self.number, who, error)

    # -- the nodes ---------------------------------------------------------------------------------------------------

    def begin(self, elapsed_s: float = 0.0) -> None:
        """Start all nodes; ``elapsed_s`` seconds of the run have passed already."""
        self._epoch_s = time.monotonic() - elapsed_s
        for seat in self._seats.values():
            self._start(seat)

    def nodes(self) -> dict[int, Node]:
        """Return the nodes that are up, by id."""
        return {seat.node_id: seat.node for seat in self._seats.values() if seat.node is not None}

    def deliver(self, batch: list[Envelope]) -> None:
        """Give messages to the nodes; raises HostileFrameError for one that no link leads to."""
        self._tick()
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
        if not self._flush_scheduled:
            self._schedule_flush()

    def request(self, node: int, number: int, command: Any) -> None:
        """Ask a node for something; nothing happens while it is down."""
        self._call(self._seats[node], lambda up: up.request(number, command))

    def crash(self, node: int) -> None:
        """End a node as kill -9 would, between two reactions; what it saved stays."""
        self.flush()
        self._end(self._seats[node])

    def restart(self, node: int) -> None:
        """Start a node that is down again, with what it had saved."""
        seat = self._seats[node]
        if seat.status != "down":
            return
        seat.restarts += 1
        self._start(seat)

    def hold(self, node: int) -> None:
        """Stop a node for a while, as SIGSTOP would: what comes waits."""
        seat = self._seats[node]
        if seat.status == "up":
            seat.status = "held"
            self._receivers[node] = partial(self._kept, seat)

    def release(self, node: int) -> None:
        """Let a node that was stopped go on."""
        seat = self._seats[node]
        if seat.status == "held":
            self._let_go(seat)

    def fail(self, node: int, error: BaseException) -> None:
        """End a node whose code raised."""
        seat = self._seats[node]
        if seat.status == "down":
            return
        self._end(seat)
        self._failed(node, "".join(traceback.format_exception(error)))

    def _start(self, seat: _Seat) -> None:
        if seat.state is None and seat.path.exists():
            seat.state = DurableState(seat.path, seat.node_id, self._values)
        node = seat.node = self._make_node(seat.node_id)
        lives = self.incarnation + seat.restarts
        again = ("life", lives) if lives else ()
        node.context = SocketContext(self, seat, Draws(stream_key(self.plan.seed, "node", seat.node_id, *again)))
        seat.status = "held"
        self._tick()
        try:
            node.start()
        except Exception as error:
            self.fail(seat.node_id, error)
        else:
            self._let_go(seat)
        self._schedule_flush()

    def _let_go(self, seat: _Seat) -> None:
        seat.status = "up"
        if seat.node is not None:
            self._receivers[seat.node_id] = seat.node.receive
        backlog, seat.backlog, seat.backlog_bytes = seat.backlog, deque(), 0
        for _, call in backlog:
            self._call(seat, call)

    def _end(self, seat: _Seat) -> None:
        seat.status = "down"
        seat.node = None
        seat.timers.clear()
        seat.backlog.clear()
        seat.backlog_bytes = 0
        if seat.state is not None:
            # What it sent in its last reaction is on the way: then what it saved there counts as well.
            seat.state.synchronise()
        self._receivers[seat.node_id] = self._undeliverable

    def _undeliverable(self, _sender: int, _message: Any) -> None:
        self.undelivered += 1
        self.delivered -= 1

    def _kept(self, seat: _Seat, sender: int, message: Any) -> None:
        length = len(encoded(self.codec, [(sender, seat.node_id, message)]))
        self._keep(seat, lambda node: node.receive(sender, message), length)

    def _keep(self, seat: _Seat, call: Callable[[Node], None], length: int = 0) -> None:
        seat.backlog.append((length, call))
        seat.backlog_bytes += length
        while len(seat.backlog) > self.queue_messages or seat.backlog_bytes > self.queue_bytes:
            seat.backlog_bytes -= seat.backlog.popleft()[0]
            self.overflowed += 1

    def _call(self, seat: _Seat, call: Callable[[Node], None]) -> None:
        if seat.status == "up" and seat.node is not None:
            self._tick()
            try:
                call(seat.node)
            except Exception as error:
                self.fail(seat.node_id, error)
            self._schedule_flush()
        elif seat.status in ("held", "waiting"):
            self._keep(seat, call)

    def _silence(self, node: int, error: Exception) -> None:
        """End a node whose state cannot be kept, with all that rests on it."""
        seat = self._seats[node]
        if seat.state is not None:
            seat.state.close()
            seat.state = None
        for link in self.links:
            link.drop_from(node)
        # What waits on an impaired link rests on it, too.
        self.silences[node] += 1
        self._told = [output for output in self._told if output.node != node]
        self.fail(node, error)

    # -- what nodes do -----------------------------------------------------------------------------------------------

    def save(self, seat: _Seat, key: str, value: Any) -> None:
        """Keep a value for a node; it is on disk before anything else the node does is seen."""
        if seat.state is None:
            seat.state = DurableState(seat.path, seat.node_id, self._values)
        if seat.state.save(key, value):
            self._unsynchronised.append(seat.state)

    def tell(self, kind: str, node: int, name: Any, value: Any) -> None:
        """Pass on what a node said to the outside."""
        self._told.append(Output(kind, node, self.instant, name, value))

    def set_timer(self, seat: _Seat, name: str, after: float) -> None:
        """Have a timer run out; resetting one to a later time, the usual case, only writes down the time."""
        due = self.instant + after
        seat.timers[name] = due
        if due < seat.wakes.get(name, float("inf")):
            seat.wakes[name] = due
            self._put(due, seat, name)

    def routes(self, sender: int, peers: Sequence[int]) -> dict[int, Callable[[Envelope], None]]:
        """Return what takes the envelopes of a node to each of its peers."""
        if self._impaired is None:
            return {to: self._link_of[to].queue.append for to in peers}
        impaired = _ImpairedLinks(self, sender)
        return {to: partial(impaired.transmit, to, self._link_of[to].queue.append) for to in peers}

    def later(self, due: float, put: Callable[[], None]) -> None:
        """Have an impaired link deliver at an instant."""
        self._put(due, None, put)

    # -- the clock ---------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.instant = (time.monotonic() - self._epoch_s) / self.plan.round_s

    def _put(self, due: float, seat: _Seat | None, what: Any) -> None:
        heapq.heappush(self._calendar, (due, next(self._count), seat, what))
        if due < self._alarm_at and not self._closing:
            self._set_alarm(due)

    def _set_alarm(self, due: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        wait_s = self._epoch_s + due * self.plan.round_s - time.monotonic()
        # uvloop rounds to milliseconds; rounded up, it does not wake too early and wait again.
        self._alarm = self._loop.call_later(max(wait_s, 0.0) + 0.0005, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, float("inf")
        self._tick()
        calendar, now = self._calendar, self.instant
        while calendar and calendar[0][0] <= now:
            due, _, seat, what = heapq.heappop(calendar)
            if seat is None:
                what()
            else:
                self._ran_out(seat, what, due, now)
        if calendar and calendar[0][0] < self._alarm_at:
            self._set_alarm(calendar[0][0])
        self._schedule_flush()

    def _ran_out(self, seat: _Seat, name: str, looked_at: float, now: float) -> None:
        if seat.wakes.get(name) == looked_at:
            del seat.wakes[name]
        due = seat.timers.get(name)
        if due is None:
            return
        if due > now:
            if due < seat.wakes.get(name, float("inf")):
                seat.wakes[name] = due
                self._put(due, seat, name)
            return
        del seat.timers[name]
        self._call(seat, lambda node: node.timer(name))

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Let out what the nodes did since the last time: to disk, then to the links, then to the outside."""
        self._flush_scheduled = False
        if self._closing:
            return
        if self._unsynchronised:
            states, self._unsynchronised = self._unsynchronised, []
            for state in states:
                try:
                    state.synchronise()
                except (OSError, BadValueError) as error:
                    self._silence(state.node, error)
        for link in self.links:
            if link.queue:
                link.flush()
        if self._told:
            told, self._told = self._told, []
            self._outputs(told)

    def counters(self) -> dict[str, int]:
        """Return what was counted, by name."""
        waiting = sum(len(link.queue) for link in self.links)
        return {
            "sent": self.sent,
            "duplicated": self.duplicated,
            "delivered": self.delivered,
            "overflowed": self.overflowed,
            "lost": self.lost,
            "undelivered": self.undelivered,
            "waiting": waiting,
            "connections": sum(link.connections for link in self.links if isinstance(link, StreamLink)),
            "torn_bytes": sum(seat.state.torn_bytes for seat in self._seats.values() if seat.state is not None),
            "synchronised": sum(seat.state.synchronised for seat in self._seats.values() if seat.state is not None),
        }


class _ImpairedLinks:
    """What a described network does to the messages of one node before they are sent."""

    def __init__(self, endpoint: Endpoint, sender: int) -> None:
        self._endpoint = endpoint
        self._links = endpoint.plan.network.links
        self._sender = sender
        self._draws = Draws(stream_key(endpoint.plan.seed, "live links", sender))
        self._last_due: dict[int, float] = {}
        self._waiting: Counter[int] = Counter()

    def transmit(self, to: int, put: Callable[[Envelope], None], envelope: Envelope) -> None:
        """Lose a message, or put it and copies of it on its link, each in its time."""
        links, draws, endpoint = self._links, self._draws, self._endpoint
        if links.cut(self._sender, to, endpoint.instant) or (links.drop and draws.chance(links.drop)):
            endpoint.lost += 1
            return
        while True:
            self._delay(to, put, envelope)
            if not links.duplicate or not draws.chance(links.duplicate):
                return
            endpoint.duplicated += 1

    def _delay(self, to: int, put: Callable[[Envelope], None], envelope: Envelope) -> None:
        links, draws, endpoint = self._links, self._draws, self._endpoint
        held_back = links.reorder > 0.0 and draws.chance(links.reorder)
        delay = links.sampled_delay(draws.random()) + links.extra_delay(self._sender, to)
        if held_back:
            delay += links.sampled_delay(draws.random())
        due = endpoint.instant + delay
        if not held_back:
            due = self._last_due[to] = max(due, self._last_due.get(to, 0.0))
        if links.queue is not None and self._waiting[to] >= links.queue:
            endpoint.lost += 1
            return
        self._waiting[to] += 1

        silences = endpoint.silences[self._sender]

        def arrive() -> None:
            self._waiting[to] -= 1
            if endpoint.silences[self._sender] == silences:
                put(envelope)

        endpoint.later(due, arrive)


def cannot_listen(error: OSError, host: str, port: int) -> BadValueError:
    """Return the error about an address that cannot be listened on."""
    given = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return BadValueError("The port is in use.", given=given, hint="choose another port; 0 takes any free one")
    # Names that cannot be resolved have negative numbers and their own texts.
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else (error.strerror or str(error))
    return BadValueError(
        f"It is not possible to listen there: {reason}.", given=given, hint="name an address of this machine"
    )
