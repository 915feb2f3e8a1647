"""Links between endpoints: asyncio protocols for TCP and UDP under one queue.

A link is one directed pair of endpoints.  It keeps what is to be sent in a bounded queue: whatever the socket cannot
take stays there, the oldest is dropped when it is full, and a lost connection is made again, later and later.  A write
takes the whole queue, a read delivers whole batches, and no task runs per message.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wavetank.live.strangers import Strangers, address_of
from wavetank.live.wire import (
    BATCH_MESSAGES,
    LARGEST_GREETING_BYTES,
    VERSION,
    Challenge,
    Envelope,
    FrameReader,
    FrameSplitter,
    FrameWriter,
    Hello,
    HostileFrameError,
    Refusal,
    UnknownKeyError,
    UnsendableError,
    Welcome,
    encoded,
    fresh_nonce,
    greeting,
    read_greeting,
)

if TYPE_CHECKING:
    from wavetank.live.endpoint import Endpoint

HELLO_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_UNWRITTEN_BYTES = 2**20
# Messages taken from a queue at once: between two turns the socket can say that it is full.
_TAKEN = BATCH_MESSAGES


class Link(ABC):
    """What one endpoint has to say to another.

    Parameters
    ----------
    endpoint : Endpoint
        Who sends.
    target : int
        Number of the endpoint at the other end.

    Attributes
    ----------
    queue : deque of (int, int, Message)
        What is not yet written.
    """

    def __init__(self, endpoint: Endpoint, target: int) -> None:
        self.endpoint = endpoint
        self.target = target
        self.queue: deque[Envelope] = deque()
        # Lengths of the first messages of the queue, measured only when they have to wait.
        self._lengths: deque[int] = deque()
        self._waiting_bytes = 0

    def flush(self) -> None:
        """Write what the socket takes; drop the oldest of the rest when there is too much."""
        if self.writable:
            while self.queue and self.writable:
                self._write(self._taken())
        if not self.queue:
            self._lengths.clear()
            self._waiting_bytes = 0
            return
        self._measure()
        endpoint = self.endpoint
        while self.queue and (len(self.queue) > endpoint.queue_messages or self._waiting_bytes > endpoint.queue_bytes):
            self.queue.popleft()
            self._waiting_bytes -= self._lengths.popleft()
            endpoint.overflowed += 1

    def _measure(self) -> None:
        """Learn how long the messages are that came since the last time."""
        known = len(self._lengths)
        if known > len(self.queue):
            # Some were written meanwhile, or taken back with their node.
            self._lengths.clear()
            self._waiting_bytes = known = 0
        for envelope in itertools.islice(self.queue, known, None):
            try:
                length = len(encoded(self.endpoint.codec, [envelope]))
            except UnsendableError:
                # The writer names the node that sent it.
                length = 0
            self._lengths.append(length)
            self._waiting_bytes += length

    def drop_from(self, node: int) -> None:
        """Forget what waits of a node."""
        kept = [envelope for envelope in self.queue if envelope[0] != node]
        self.queue.clear()
        self.queue.extend(kept)
        self._lengths.clear()
        self._waiting_bytes = 0

    @property
    @abstractmethod
    def writable(self) -> bool:
        """Whether a write would go out now."""

    @abstractmethod
    def move(self, address: tuple[str, int]) -> None:
        """Send to this address from now on."""

    @abstractmethod
    async def close(self) -> None:
        """Stop sending."""

    def _taken(self) -> list[Envelope]:
        queue = self.queue
        self._lengths.clear()
        self._waiting_bytes = 0
        if len(queue) <= _TAKEN:
            batch = list(queue)
            queue.clear()
            return batch
        return [queue.popleft() for _ in range(_TAKEN)]

    def _write(self, batch: list[Envelope]) -> None:
        try:
            written = self._encode_and_write(batch)
            self.queue.extendleft(reversed(batch[written:]))
        except UnsendableError as error:
            culprit = error.envelope
            self.endpoint.fail(culprit[0], error)
            self.queue.extendleft(
                reversed([each for each in batch if each[2] is not culprit[2] or each[0] != culprit[0]])
            )

    @abstractmethod
    def _encode_and_write(self, batch: list[Envelope]) -> int:
        """Put the first messages of a batch on the wire; return how many."""


class StreamLink(Link):
    """A link over TCP; keeps a connection, and makes it again when it is lost."""

    def __init__(self, endpoint: Endpoint, target: int) -> None:
        super().__init__(endpoint, target)
        self.connected = asyncio.Event()
        self.connections = 0
        # Why there is no connection.
        self.last_error = ""
        self._address: tuple[str, int] | None = None
        self._moved = asyncio.Event()
        self._current: _Outgoing | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def writable(self) -> bool:
        """Whether there is a connection that takes more."""
        current = self._current
        return current is not None and current.writer is not None and not current.paused

    def move(self, address: tuple[str, int]) -> None:
        """Connect to this address; a connection to another one is closed."""
        if address == self._address:
            return
        self._address = address
        self._moved.set()
        if self._current is not None:
            self._current.drop()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    def cut(self) -> None:
        """Lose the connection, as a network might; it will be made again."""
        if self._current is not None:
            self._current.drop()

    async def close(self) -> None:
        """Send what the connection takes and close it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._current is not None:
            self._current.finish()

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            self._moved.clear()
            address = self._address
            if address is None:
                await self._moved.wait()
                continue
            attempt = _Outgoing(self)
            try:
                tls = self.endpoint.client_tls
                await loop.create_connection(
                    lambda made=attempt: made,
                    *address,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else self.endpoint.hello_timeout_s,
                )
                self._current = attempt
                await attempt.lost
                self.last_error = attempt.error or "the connection was closed"
            except OSError as error:
                # Nobody listens there, yet or any more; TLS failures are of this kind as well.
                self.last_error = reason_of(error)
            finally:
                self._current = None
                self.connected.clear()
            if attempt.writer is not None:
                pause_s = _FIRST_PAUSE_S
            with contextlib.suppress(TimeoutError):
                # Spread, so that all peers of a restarted endpoint do not come at once.
                await asyncio.wait_for(self._moved.wait(), pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _encode_and_write(self, batch: list[Envelope]) -> int:
        current = self._current
        if current is None or current.writer is None:
            return len(batch)
        # Not all at once: what the socket does not take would wait in a buffer that has no limit.
        frames, count = current.writer.filled(batch, _UNWRITTEN_BYTES)
        current.transport.write(b"".join(frames))
        return count


class _Outgoing(asyncio.Protocol):
    """One connection that was made from here: frames go out, only the handshake comes in."""

    transport: asyncio.Transport

    def __init__(self, link: StreamLink) -> None:
        self.link = link
        self.writer: FrameWriter | None = None
        self.paused = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._splitter = FrameSplitter(LARGEST_GREETING_BYTES)
        self._challenge = b""
        self._nonce = fresh_nonce()
        self._deadline: asyncio.TimerHandle | None = None
        self.error = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=_UNWRITTEN_BYTES)
        self._deadline = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        self.error = "the program that listens there does not answer"
        self.drop()

    def data_received(self, data: bytes) -> None:
        """Take bytes; called by the event loop."""
        endpoint = self.link.endpoint
        try:
            for frame in self._splitter.feed(data):
                self._heard(read_greeting(frame))
        except HostileFrameError as error:
            endpoint.count_hostile(error, f"endpoint {self.link.target}")
            self.error = f"the program that listens there is not endpoint {self.link.target} of this run ({error})"
            self.drop()
        except UnknownKeyError:
            self.error = f"the key of endpoint {self.link.target} is not known yet"
            self.drop()

    def _heard(self, words: Challenge | Hello | Welcome | Refusal) -> None:
        endpoint = self.link.endpoint
        identity = endpoint.identity
        if isinstance(words, Challenge) and not self._challenge:
            self._challenge = words.nonce
            hello = identity.hello(endpoint.number, words, self._nonce, target=self.link.target, signer=endpoint.signer)
            self.transport.write(greeting(hello))
        elif isinstance(words, Welcome) and self._challenge and self.writer is None:
            identity.check_welcome(
                words,
                endpoint.number,
                self._challenge,
                self._nonce,
                target=self.link.target,
                signer=endpoint.signer,
            )
            if self._deadline is not None:
                self._deadline.cancel()
            session = identity.session(endpoint.number, self._challenge, self._nonce, target=self.link.target)
            self.writer = FrameWriter(
                endpoint.codec, session, limit=endpoint.frame_bytes, signatures=endpoint.signatures
            )
            self.link.connections += 1
            self.link.connected.set()
            self.link.flush()
        elif isinstance(words, Refusal):
            endpoint.refused[words.reason[:64]] += 1
            self.error = f"refused: {words.reason[:64]}"
            self.drop()
        else:
            raise HostileFrameError("garbage", f"{type(words).__name__} out of turn")

    def pause_writing(self) -> None:
        """Keep what is to be sent; the socket takes no more."""
        self.paused = True

    def resume_writing(self) -> None:
        """Send what was kept."""
        self.paused = False
        self.link.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; called by the event loop."""
        if isinstance(exc, OSError) and not self.error:
            self.error = reason_of(exc)
        self.paused = True
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.lost.done():
            self.lost.set_result(None)

    def drop(self) -> None:
        """Close at once."""
        self.paused = True
        self.transport.abort()

    def finish(self) -> None:
        """Close when everything is written."""
        self.transport.close()


class Incoming(asyncio.Protocol):
    """One connection that was made to here; it has to say who it is before anything else."""

    transport: asyncio.Transport

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._splitter = FrameSplitter(LARGEST_GREETING_BYTES)
        self._nonce = fresh_nonce()
        self._reader: FrameReader | None = None
        self._peer = -1
        self._deadline: asyncio.TimerHandle | None = None
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        self.transport = transport  # type: ignore[assignment]
        endpoint = self._endpoint
        endpoint.incoming.add(self)
        out = endpoint.strangers.enter(self, address_of(self.transport.get_extra_info("peername")))
        if out is not None:
            out.crowded_out()
        self._deadline = asyncio.get_running_loop().call_later(
            endpoint.hello_timeout_s, self._refuse, HostileFrameError("silent")
        )
        self.transport.write(greeting(Challenge(VERSION, self._nonce)))

    def data_received(self, data: bytes) -> None:
        """Take bytes; called by the event loop."""
        if self._closed:
            return
        try:
            frames = self._splitter.feed(data)
            if self._reader is None:
                for frame in frames:
                    self._introduced(frame)
                    break
                else:
                    return
            reader, deliver = self._reader, self._endpoint.deliver
            if reader is not None:
                for frame in frames:
                    deliver(reader.batch(frame))
        except HostileFrameError as error:
            self._refuse(error)
        except UnknownKeyError:
            # Its peer tries again; it has done nothing wrong.
            self.transport.write(greeting(Refusal("early")))
            self.close()

    def _introduced(self, frame: bytes) -> None:
        endpoint = self._endpoint
        hello = read_greeting(frame)
        if not isinstance(hello, Hello):
            raise HostileFrameError("garbage", f"{type(hello).__name__} in place of a hello")
        # Before anything is changed: without it one process of the run could take the place of another.
        endpoint.identity.check_hello(hello, self._nonce, target=endpoint.number, signer=endpoint.signer)
        senders = endpoint.homes.get(hello.endpoint)
        if senders is None:
            raise HostileFrameError("wrong-sender", f"endpoint {hello.endpoint}")
        self._peer = hello.endpoint
        self._reader = FrameReader(
            endpoint.codec,
            endpoint.identity.session(hello.endpoint, self._nonce, hello.nonce, target=endpoint.number),
            senders=senders,
            signatures=endpoint.signatures,
        )
        self._splitter.limit = endpoint.frame_bytes
        if self._deadline is not None:
            self._deadline.cancel()
        endpoint.strangers.leave(self)
        endpoint.replace_incoming(self._peer, self)
        welcome = endpoint.identity.welcome(hello, self._nonce, target=endpoint.number, signer=endpoint.signer)
        self.transport.write(greeting(welcome))

    def crowded_out(self) -> None:
        """Make room for another stranger."""
        self._refuse(HostileFrameError("crowded"))

    def _refuse(self, error: HostileFrameError) -> None:
        if self._closed:
            return
        who = f"endpoint {self._peer}" if self._peer >= 0 else "a stranger"
        self._endpoint.count_hostile(error, who)
        self.transport.write(greeting(Refusal(error.reason)))
        self.close()

    def close(self) -> None:
        """Close; nothing more is read."""
        self._closed = True
        self._endpoint.strangers.leave(self)
        self.transport.close()
        # A peer that does not read would keep the socket open.
        asyncio.get_running_loop().call_later(1.0, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; called by the event loop."""
        if self._deadline is not None:
            self._deadline.cancel()
        if not self._closed and self._splitter.pending_bytes:
            self._endpoint.count_hostile(
                HostileFrameError("truncated", f"{self._splitter.pending_bytes} bytes of a frame"),
                f"endpoint {self._peer}" if self._peer >= 0 else "a stranger",
            )
        self._closed = True
        self._endpoint.strangers.leave(self)
        self._endpoint.forget_incoming(self._peer, self)


class TlsListener:
    """Takes connections and lets those in whose TLS handshake succeeds; until then each is a stranger like any other.

    asyncio's own listener keeps connections in their handshake where nobody can count them.

    Parameters
    ----------
    listening : socket.socket
    strangers : Strangers
        The room in which connections wait.
    tls : ssl.SSLContext
    timeout_s : float
        How long a handshake may take.
    made : callable
        Returns the protocol of a new connection.
    refused : callable
        Given a HostileFrameError for each connection that is not let in.
    """

    def __init__(
        self,
        listening: socket.socket,
        strangers: Strangers[Any],
        tls: ssl.SSLContext,
        timeout_s: float,
        made: Callable[[], asyncio.Protocol],
        refused: Callable[[HostileFrameError], None],
    ) -> None:
        self._listening = listening
        self._strangers = strangers
        self._tls = tls
        self._timeout_s = timeout_s
        self._made = made
        self._refused = refused
        self._gates: set[_TlsGate] = set()
        self._task = asyncio.get_running_loop().create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError:
                # No descriptor is free: those that are open end sooner or later.
                await asyncio.sleep(_FIRST_PAUSE_S)
                continue
            gate = _TlsGate()
            out = self._strangers.enter(gate, address_of(address))
            if out is not None:
                out.crowded_out()
            if out is gate:
                accepted.close()
                continue
            self._gates.add(gate)
            gate.task = loop.create_task(self._pass(gate, accepted))

    async def _pass(self, gate: _TlsGate, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._made, accepted, ssl=self._tls, ssl_handshake_timeout=self._timeout_s
            )
        except OSError as error:
            self._refused(HostileFrameError("tls", reason_of(error)))
        except asyncio.CancelledError:
            if gate.crowded:
                self._refused(HostileFrameError("crowded"))
            accepted.close()
        finally:
            self._strangers.leave(gate)
            self._gates.discard(gate)

    def close(self) -> None:
        """Take no more connections, and end those in their handshake."""
        self._task.cancel()
        for gate in list(self._gates):
            if gate.task is not None:
                gate.task.cancel()
        self._listening.close()


class _TlsGate:
    """A connection in its TLS handshake."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.crowded = False

    def crowded_out(self) -> None:
        """Make room for another stranger."""
        self.crowded = True
        if self.task is not None:
            self.task.cancel()


def reason_of(error: OSError) -> str:
    """Return why a connection failed, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    # Names that cannot be resolved have negative numbers and their own texts.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else (error.strerror or str(error))


class DatagramLink(Link):
    """A link over UDP: what the network loses is lost, what it overtakes comes out of order."""

    def __init__(self, endpoint: Endpoint, target: int) -> None:
        super().__init__(endpoint, target)
        self._address: tuple[str, int] | None = None

    @property
    def writable(self) -> bool:
        """Whether it is known where to send."""
        port = self.endpoint.port
        return self._address is not None and port is not None and not port.paused

    def move(self, address: tuple[str, int]) -> None:
        """Send to this address from now on."""
        self._address = address

    async def close(self) -> None:
        """Nothing is kept open for one link."""

    def _encode_and_write(self, batch: list[Envelope]) -> int:
        endpoint = self.endpoint
        if endpoint.port is None or endpoint.datagram_writer is None:
            return len(batch)
        incarnation = endpoint.incarnations.get(self.target, 0)
        for datagram in endpoint.datagram_writer.datagrams(batch, incarnation, target=self.target):
            endpoint.port.transport.sendto(datagram, self._address)
        return len(batch)


class DatagramPort(asyncio.DatagramProtocol):
    """The UDP socket of an endpoint."""

    transport: asyncio.DatagramTransport

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        self.transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Take a datagram; called by the event loop."""
        endpoint = self._endpoint
        if endpoint.datagram_reader is None:
            return
        try:
            endpoint.deliver(endpoint.datagram_reader.batch(data))
        except HostileFrameError as error:
            endpoint.count_hostile(error, f"a datagram from {addr[0]}")

    def error_received(self, exc: Exception) -> None:
        """Count a datagram that found nobody."""
        # A peer that is down answers with "port unreachable"; that is what losing a datagram looks like.
        self._endpoint.unreachable += 1

    def pause_writing(self) -> None:
        """Keep what is to be sent; the socket takes no more."""
        self.paused = True

    def resume_writing(self) -> None:
        """Send what was kept."""
        self.paused = False
        self._endpoint.flush()
