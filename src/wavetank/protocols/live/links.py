"""Links between endpoints: asyncio protocols for TCP and UDP under one queue.

A link is one directed pair of endpoints.  It keeps what is to be sent in a bounded queue: whatever the socket cannot
take stays there, the oldest is dropped when it is full, and a lost connection is made again, later and later.  A write
takes the whole queue, a read delivers whole batches, and no task runs per message.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from wavetank.protocols.live.wire import (
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
    UnsendableError,
    Welcome,
    fresh_nonce,
    greeting,
    read_greeting,
)

if TYPE_CHECKING:
    from wavetank.protocols.live.endpoint import Endpoint

HELLO_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_UNWRITTEN_BYTES = 2**20
# Messages taken from a queue at once: between two turns the socket can say that it is full.
_TAKEN = 8192


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

    def flush(self) -> None:
        """Write what the socket takes; drop the oldest of the rest when there is too much."""
        if self.writable:
            while self.queue and self.writable:
                self._write(self._taken())
        excess = len(self.queue) - self.endpoint.queue_messages
        if excess > 0:
            for _ in range(excess):
                self.queue.popleft()
            self.endpoint.overflowed += excess

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
        if len(queue) <= _TAKEN:
            batch = list(queue)
            queue.clear()
            return batch
        return [queue.popleft() for _ in range(_TAKEN)]

    def _write(self, batch: list[Envelope]) -> None:
        try:
            self._encode_and_write(batch)
        except UnsendableError as error:
            culprit = error.envelope
            self.endpoint.fail(culprit[0], error)
            self.queue.extendleft(
                reversed([each for each in batch if each[2] is not culprit[2] or each[0] != culprit[0]])
            )

    @abstractmethod
    def _encode_and_write(self, batch: list[Envelope]) -> None:
        """Put a batch on the wire."""


class StreamLink(Link):
    """A link over TCP; keeps a connection, and makes it again when it is lost."""

    def __init__(self, endpoint: Endpoint, target: int) -> None:
        super().__init__(endpoint, target)
        self.connected = asyncio.Event()
        self.connections = 0
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
                await loop.create_connection(lambda made=attempt: made, *address, ssl=self.endpoint.client_tls)
                self._current = attempt
                await attempt.lost
            except OSError:
                # Nobody listens there, yet or any more; TLS failures are of this kind as well.
                pass
            finally:
                self._current = None
                self.connected.clear()
            if attempt.writer is not None:
                pause_s = _FIRST_PAUSE_S
            with contextlib.suppress(TimeoutError):
                # Spread, so that all peers of a restarted endpoint do not come at once.
                await asyncio.wait_for(self._moved.wait(), pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _encode_and_write(self, batch: list[Envelope]) -> None:
        current = self._current
        if current is not None and current.writer is not None:
            current.transport.write(b"".join(current.writer.frames(batch)))


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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=_UNWRITTEN_BYTES)
        self._deadline = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self.drop)

    def data_received(self, data: bytes) -> None:
        """Take bytes; called by the event loop."""
        endpoint = self.link.endpoint
        try:
            for frame in self._splitter.feed(data):
                self._heard(read_greeting(frame))
        except HostileFrameError as error:
            endpoint.count_hostile(error, f"endpoint {self.link.target}")
            self.drop()

    def _heard(self, words: Challenge | Hello | Welcome | Refusal) -> None:
        endpoint = self.link.endpoint
        identity = endpoint.identity
        if isinstance(words, Challenge) and not self._challenge:
            self._challenge = words.nonce
            self.transport.write(greeting(identity.hello(endpoint.number, words, self._nonce)))
        elif isinstance(words, Welcome) and self._challenge and self.writer is None:
            identity.check_welcome(words, endpoint.number, self._challenge, self._nonce)
            if self._deadline is not None:
                self._deadline.cancel()
            session = identity.session(endpoint.number, self._challenge, self._nonce)
            self.writer = FrameWriter(
                endpoint.codec, session, limit=endpoint.frame_bytes, signatures=endpoint.signatures
            )
            self.link.connections += 1
            self.link.connected.set()
            self.link.flush()
        elif isinstance(words, Refusal):
            endpoint.refused[words.reason[:64]] += 1
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
        if len(endpoint.incoming) >= endpoint.most_connections:
            self._refuse(HostileFrameError("crowded"))
            return
        endpoint.incoming.add(self)
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

    def _introduced(self, frame: bytes) -> None:
        endpoint = self._endpoint
        hello = read_greeting(frame)
        if not isinstance(hello, Hello):
            raise HostileFrameError("garbage", f"{type(hello).__name__} in place of a hello")
        endpoint.identity.check_hello(hello, self._nonce)
        senders = endpoint.homes.get(hello.endpoint)
        if senders is None:
            raise HostileFrameError("wrong-sender", f"endpoint {hello.endpoint}")
        self._peer = hello.endpoint
        self._reader = FrameReader(
            endpoint.codec,
            endpoint.identity.session(hello.endpoint, self._nonce, hello.nonce),
            senders=senders,
            signatures=endpoint.signatures,
        )
        self._splitter.limit = endpoint.frame_bytes
        if self._deadline is not None:
            self._deadline.cancel()
        endpoint.replace_incoming(self._peer, self)
        self.transport.write(greeting(endpoint.identity.welcome(hello, self._nonce)))

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
        self._endpoint.forget_incoming(self._peer, self)


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

    def _encode_and_write(self, batch: list[Envelope]) -> None:
        endpoint = self.endpoint
        if endpoint.port is None or endpoint.datagram_writer is None:
            return
        incarnation = endpoint.incarnations.get(self.target, 0)
        for datagram in endpoint.datagram_writer.datagrams(batch, incarnation):
            endpoint.port.transport.sendto(datagram, self._address)


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
