"""An endpoint: one socket, the nodes behind it, and their context over sockets.

Everything happens on one event loop.  A batch of messages is delivered, the nodes react, and when the loop comes round
what they did leaves together: first what they saved is synchronised to disk, then messages are written, one write per
link, and decisions and replies are reported.  So one synchronisation and one write serve many messages, and nothing
that is known outside can be forgotten by a crash.

Differs from the simulation: time is wall time, ``round_s`` seconds per round; the network is real, and only delays,
losses and partitions that were asked for are put on top of it, on the sending side.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from wavetank.errors import BadValueError
from wavetank.live.credentials import Certificate, Signatures
from wavetank.live.durable import DurableState
from wavetank.live.links import (
    HELLO_TIMEOUT_S,
    DatagramLink,
    DatagramPort,
    Incoming,
    Link,
    StreamLink,
    TlsListener,
    reason_of,
)
from wavetank.live.minimal import Host, LiveContext, Timers
from wavetank.live.run import Output
from wavetank.live.strangers import Strangers
from wavetank.live.values import ValueCodec
from wavetank.live.wire import (
    LARGEST_DATAGRAM_BYTES,
    LARGEST_FRAME_BYTES,
    DatagramReader,
    DatagramWriter,
    EndpointSigner,
    Envelope,
    HostileFrameError,
    RunIdentity,
    encoded,
)
from wavetank.sim.network import Network
from wavetank.sim.node import Algorithm, Node
from wavetank.sim.rng import Draws, stream_key

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
        The nodes of each endpoint.
    network : Network
        Who may send to whom, and what is put on top of the real network; links that are ``plain`` put nothing.
    round_s : float
        Seconds per round.
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


class _NodeSlot:
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
    )

    def __init__(self, node_id: int, path: Path, timers: Timers) -> None:
        self.node_id = node_id
        self.path = path
        self.timers = timers
        self.state: DurableState | None = None
        self.node: Node | None = None
        # "waiting" before the start, then "up", "held" (stopped for a while) or "down".
        self.status = "waiting"
        self.restarts = 0
        # What waits for the node, with its length on the wire.
        self.backlog: deque[tuple[int, Callable[[Node], None]]] = deque()
        self.backlog_bytes = 0


class Endpoint(Host):
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
        super().__init__(algorithm, plan.network.topology, plan.homes[number], plan.round_s, outputs)
        self.number = number
        self.plan = plan
        self.identity = plan.identity
        self.homes = {place: frozenset(nodes) for place, nodes in enumerate(plan.homes)}
        self.queue_messages = plan.queue_messages
        self.queue_bytes = plan.queue_bytes
        self.frame_bytes = plan.frame_bytes
        self.hello_timeout_s = plan.hello_timeout_s
        # Peers are known one by one; a connection that has not said whose it is waits apart from them.
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
        self.duplicated = 0
        self.overflowed = self.lost = self.undelivered = self.unreachable = 0
        self.incoming: set[Incoming] = set()
        self._gate: TlsListener | None = None

        self._make_node = make_node
        self._values = values
        self._failed = failed
        self._server: asyncio.Server | None = None
        self._by_peer: dict[int, Incoming] = {}
        self._unsynchronised: list[DurableState] = []
        kind = StreamLink if plan.transport == "tcp" else DatagramLink
        self.links: list[Link] = [kind(self, target) for target in range(len(plan.homes))]
        self._link_of = {node: self.links[place] for place, nodes in self.homes.items() for node in nodes}
        home_of = {node: place for place, nodes in self.homes.items() for node in nodes}
        # A ring of endpoints has no use for connections from everyone to everyone.
        self._needed = {home_of[peer] for node in self.homes[number] for peer in self.topology.peers(node)}
        self._impaired = None if plan.network.links.plain else plan.network.links
        self._slots = {
            node: _NodeSlot(node, folder / f"node-{node}.state", Timers(self.clock, partial(self._ran_out, node)))
            for node in sorted(self.homes[number])
        }
        self._receivers = {node: partial(self._kept, slot) for node, slot in self._slots.items()}

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
        self.clock.close()
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
        for slot in self._slots.values():
            if slot.state is not None:
                slot.state.close()
                slot.state = None

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
        if self.clock.closed:
            return
        self.hostile[error.reason] += 1
        if self.hostile.total() <= _LOGGED_FRAMES:
            log.warning("endpoint %d refused what came from %s: %s", self.number, who, error)

    # -- the nodes ---------------------------------------------------------------------------------------------------

    def begin(self, elapsed_s: float = 0.0) -> None:
        """Start all nodes; ``elapsed_s`` seconds of the run have passed already."""
        self.clock.begin(elapsed_s)
        for slot in self._slots.values():
            self._start(slot)

    def nodes(self) -> dict[int, Node]:
        """Return the nodes that are up, by id."""
        return {slot.node_id: slot.node for slot in self._slots.values() if slot.node is not None}

    def request(self, node: int, number: int, command: Any) -> None:
        """Ask a node for something; nothing happens while it is down."""
        self._call(self._slots[node], lambda up: up.request(number, command))

    def crash(self, node: int) -> None:
        """End a node as kill -9 would, between two reactions; what it saved stays."""
        self.flush()
        self._end(self._slots[node])

    def restart(self, node: int) -> None:
        """Start a node that is down again, with what it had saved."""
        slot = self._slots[node]
        if slot.status != "down":
            return
        slot.restarts += 1
        self._start(slot)

    def hold(self, node: int) -> None:
        """Stop a node for a while, as SIGSTOP would: what comes waits."""
        slot = self._slots[node]
        if slot.status == "up":
            slot.status = "held"
            self._receivers[node] = partial(self._kept, slot)

    def release(self, node: int) -> None:
        """Let a node that was stopped go on."""
        slot = self._slots[node]
        if slot.status == "held":
            self._let_go(slot)

    def fail(self, node: int, error: BaseException) -> None:
        """End a node whose code raised."""
        slot = self._slots[node]
        if slot.status == "down":
            return
        self._end(slot)
        self._failed(node, "".join(traceback.format_exception(error)))

    def _start(self, slot: _NodeSlot) -> None:
        if slot.state is None and slot.path.exists():
            slot.state = DurableState(slot.path, slot.node_id, self._values)
        node = slot.node = self._make_node(slot.node_id)
        starts = self.incarnation + slot.restarts
        again = ("life", starts) if starts else ()
        draws = Draws(stream_key(self.plan.seed, "node", slot.node_id, *again))
        node.context = LiveContext(self, slot.node_id, slot.timers, draws)
        slot.status = "held"
        self.react(slot.node_id, node.start)
        if slot.node is node:
            self._let_go(slot)

    def _let_go(self, slot: _NodeSlot) -> None:
        slot.status = "up"
        if slot.node is not None:
            self._receivers[slot.node_id] = slot.node.receive
        backlog, slot.backlog, slot.backlog_bytes = slot.backlog, deque(), 0
        for _, call in backlog:
            self._call(slot, call)

    def _end(self, slot: _NodeSlot) -> None:
        slot.status = "down"
        slot.node = None
        slot.timers.clear()
        slot.backlog.clear()
        slot.backlog_bytes = 0
        if slot.state is not None:
            # What it sent in its last reaction is on the way: then what it saved there counts as well.
            slot.state.synchronise()
        self._receivers[slot.node_id] = self._undeliverable

    def _undeliverable(self, _sender: int, _message: Any) -> None:
        self.undelivered += 1
        self.delivered -= 1

    def _kept(self, slot: _NodeSlot, sender: int, message: Any) -> None:
        length = len(encoded(self.codec, [(sender, slot.node_id, message)]))
        self._keep(slot, lambda node: node.receive(sender, message), length)

    def _keep(self, slot: _NodeSlot, call: Callable[[Node], None], length: int = 0) -> None:
        slot.backlog.append((length, call))
        slot.backlog_bytes += length
        while len(slot.backlog) > self.queue_messages or slot.backlog_bytes > self.queue_bytes:
            slot.backlog_bytes -= slot.backlog.popleft()[0]
            self.overflowed += 1

    def _call(self, slot: _NodeSlot, call: Callable[[Node], None]) -> None:
        if slot.status == "up" and slot.node is not None:
            self.react(slot.node_id, partial(call, slot.node))
        elif slot.status in ("held", "waiting"):
            self._keep(slot, call)

    def _silence(self, node: int, error: Exception) -> None:
        """End a node whose state cannot be kept, with all that rests on it."""
        slot = self._slots[node]
        if slot.state is not None:
            slot.state.close()
            slot.state = None
        for link in self.links:
            link.drop_from(node)
        # What waits on an impaired link rests on it, too.
        self.silences[node] += 1
        self._reported = [output for output in self._reported if output.node != node]
        self.fail(node, error)

    # -- what nodes do -----------------------------------------------------------------------------------------------

    def save(self, node: int, key: str, value: Any) -> None:
        """Keep a value for a node; it is on disk before anything else the node does is seen."""
        slot = self._slots[node]
        if slot.state is None:
            slot.state = DurableState(slot.path, slot.node_id, self._values)
        if slot.state.save(key, value):
            self._unsynchronised.append(slot.state)

    def load(self, node: int, key: str, default: Any) -> Any:
        """Return what a node saved, also before a crash."""
        state = self._slots[node].state
        return default if state is None else state.load(key, default)

    def routes(self, sender: int, peers: Sequence[int]) -> dict[int, Callable[[Envelope], None]]:
        """Return what takes the envelopes of a node to each of its peers."""
        if self._impaired is None:
            return {to: self._link_of[to].queue.append for to in peers}
        impaired = _ImpairedLinks(self, sender)
        return {to: partial(impaired.transmit, to, self._link_of[to].queue.append) for to in peers}

    def _ran_out(self, node: int, name: str) -> None:
        self._call(self._slots[node], lambda up: up.timer(name))

    def let_out(self) -> None:
        """Synchronise what the nodes saved to disk, then write to the links."""
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
            "torn_bytes": sum(slot.state.torn_bytes for slot in self._slots.values() if slot.state is not None),
            "synchronised": sum(slot.state.synchronised for slot in self._slots.values() if slot.state is not None),
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
        if links.cut(self._sender, to, endpoint.clock.now) or (links.drop and draws.chance(links.drop)):
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
        due = endpoint.clock.now + delay
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

        endpoint.clock.at(due, arrive)


def cannot_listen(error: OSError, host: str, port: int) -> BadValueError:
    """Return the error about an address that cannot be listened on."""
    given = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return BadValueError("The port is in use.", given=given, hint="choose another port; 0 takes any free one")
    return BadValueError(
        f"It is not possible to listen there: {reason_of(error)}.",
        given=given,
        hint="name an address of this machine",
    )
