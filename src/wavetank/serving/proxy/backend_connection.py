"""Connections to backends, and the pool that lends them: one exchange at a time, bytes handed on as they come.

The general HTTP client that comes with the server library spends much of a small request's time on cookies, redirects
and header maps that a router has no use for.  A router sends POST and GET with a body of known length and needs the
answer's status, headers and bytes, back-pressure, and certainty about where an answer ends
(:mod:`wavetank.serving.proxy.backend_exchange`); nothing else is here.

A connection is lent again only where its exchange is complete and was read to the end, the request was sent whole,
reading is not paused, and nothing waits in the socket.  Everything else closes it: a new connection costs a fraction of
a millisecond, another client's bytes cannot be taken back.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any

from wavetank.serving.proxy.backend_exchange import BackendError, BackendExchange

# Bytes that wait for the client before the backend is asked to pause.
PAUSE_ABOVE_BYTES = 262_144
# A host that vanished without a word is given up after about half a minute, and what was sent to it after a minute:
# the long silence of a backend that computes is not that of one that is gone.
_ALIVE = (
    ("SO_KEEPALIVE", 1),
    ("TCP_KEEPIDLE", 15),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 4),
    ("TCP_USER_TIMEOUT", 60_000),
)


class BackendConnection(asyncio.Protocol):
    """One connection to a backend.

    Parameters
    ----------
    lost : callable
        Called with the connection when it is closed from either side.

    Attributes
    ----------
    exchange : BackendExchange
        The one under way, or the last one; made anew by :meth:`send`.
    exchanges : int
        Requests sent on this connection.
    """

    def __init__(self, lost: Callable[[BackendConnection], None]) -> None:
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._paused = self._tls = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._moved_s = 0.0
        self._first_byte_s: float | None = None
        self._idle_s = 0.0
        self.exchange = BackendExchange(0)
        self.exchanges = 0
        self.idle_since_s = 0.0

    # -- what the owner calls ------------------------------------------------------------------------------------------

    def send(
        self, request: bytes, *, first_byte_s: float | None, idle_s: float, max_bytes: int, method: bytes = b"POST"
    ) -> BackendExchange:
        """Send a request; its answer is read with :meth:`answer` and :meth:`read`.

        Parameters
        ----------
        request : bytes
            Head and body.
        first_byte_s : float or None
            Longest time to the first byte of the answer's body, in s; None: no limit.
        idle_s : float
            Longest time between two later pieces, in s; while the reader is behind the clock stands still.
        max_bytes : int
            Longest answer, head and framing included.
        method : bytes

        Returns
        -------
        BackendExchange
            Its status and headers, for as long as they are wanted.
        """
        unfit = self._transport is None or (self.exchanges > 0 and not self.reusable())
        self.exchanges += 1
        exchange = self.exchange = BackendExchange(max_bytes, method)
        self._first_byte_s, self._idle_s = first_byte_s, idle_s
        self._moved_s = self._loop.time()
        if unfit:
            exchange.fail("died", "The connection was closed.")
            self.close()
        elif self._transport is not None:
            if first_byte_s is not None:
                self._timer = self._loop.call_at(self._moved_s + first_byte_s, self._look_at_the_clock)
            self._transport.write(request)
        return exchange

    async def answer(self) -> int:
        """Wait for the head of the answer and return its status.

        Raises
        ------
        BackendError
            If none comes.
        """
        exchange = self.exchange
        while not exchange.status:
            if exchange.error is not None:
                raise exchange.error
            await self._wait()
        return exchange.status

    async def read(self) -> bytes:
        """Return all bytes of the body that have come since, at least one; ``b""`` at the end of the answer.

        Raises
        ------
        BackendError
            If the answer breaks off; what came before has been returned then.
        """
        exchange = self.exchange
        while True:
            piece = exchange.take()
            if piece:
                self._go_on()
                return piece
            if exchange.error is not None:
                raise exchange.error
            if exchange.complete:
                return b""
            await self._wait()

    def reusable(self) -> bool:
        """Say whether another request may be sent."""
        transport = self._transport
        return (
            self.exchange.finished()
            and not self._paused
            and self._waiter is None
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        )

    def quiet(self) -> bool:
        """Say whether nothing waits in the socket: neither bytes that nobody asked for, nor the connection's end."""
        if self._poll is None:
            if self._transport is None:
                return False
            own: Any = self._transport.get_extra_info("socket")
            if own is None:
                return True
            self._poll = select.poll()
            self._poll.register(own.fileno(), select.POLLIN)
        return not self._poll.poll(0)

    def close(self) -> None:
        """Close at once; an answer in progress is given up."""
        self.exchange.fail("died", "The connection was closed.")
        self._after()
        if self._transport is not None:
            self._transport.abort()

    # -- what the event loop calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and ask the system to notice a host that vanishes."""
        self._transport = transport  # type: ignore[assignment]
        self._tls = transport.get_extra_info("sslcontext") is not None
        own = transport.get_extra_info("socket")
        if own is not None:
            for name, value in _ALIVE:
                if hasattr(socket, name):
                    level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
                    own.setsockopt(level, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        """Take bytes of an answer; bytes that nobody asked for end the connection."""
        exchange = self.exchange
        seen = exchange.body_seen
        unasked = exchange.over
        exchange.feed(data)
        if unasked:
            self.close()
            return
        if exchange.body_seen:
            # A head that trickles does not stop the clock to the body's first byte.
            self._moved_s = self._loop.time()
            if not seen:
                self._restart_clock()
        self._after()
        if self._transport is None:
            return
        if exchange.error is not None or exchange.surplus:
            self._transport.abort()
        elif exchange.waiting_bytes > PAUSE_ABOVE_BYTES and not exchange.over and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """Let the transport close: no backend may half-close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: well where it ends with the connection, else not."""
        self._transport = None
        self._poll = None
        self._paused = False
        if self._tls and self.exchanges == 1 and not self.exchange.received_bytes:
            # With TLS 1.3 a server refuses a client's certificate behind the handshake, and not all say so.
            if isinstance(exc, ssl.SSLError):
                self.exchange.fail("tls", f"No TLS: {tls_trouble(exc)}")
            else:
                self.exchange.fail("died", "The backend ended the connection right behind the TLS handshake.")
        self.exchange.end_of_connection(exc is None)
        self._after()
        self._lost(self)

    # ------------------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._paused:
            self._paused = False
            self._moved_s = self._loop.time()
            if self._transport is not None:
                self._transport.resume_reading()

    def _restart_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._idle_s, self._look_at_the_clock)

    def _after(self) -> None:
        """Stop the clock of an exchange that is over, and wake its reader."""
        if self.exchange.over and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look_at_the_clock(self) -> None:
        # One timer per exchange: it looks whether the deadline has moved instead of being moved with every piece.
        self._timer = None
        exchange = self.exchange
        if exchange.over:
            return
        now = self._loop.time()
        if self._paused or exchange.waiting_bytes:
            self._moved_s = now
        allowed_s = self._idle_s if exchange.body_seen or self._first_byte_s is None else self._first_byte_s
        due = self._moved_s + allowed_s
        if now < due:
            self._timer = self._loop.call_at(due, self._look_at_the_clock)
            return
        if exchange.body_seen:
            exchange.fail("idle", f"The backend sent nothing for {allowed_s:g} s in the middle of its answer.")
        else:
            exchange.fail("first_byte", f"The backend did not begin to answer within {allowed_s:g} s.")
        self.close()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class ConnectionPool:
    """The connections to one backend: idle ones are used again, the one used last first.

    Parameters
    ----------
    host : str
    port : int
    tls : bool or SSLContext
        Whether to speak TLS, and how; certificates are verified.
    connect_s : float
        Longest time to connect, in s.
    keep_alive_s : float
        How long an idle connection is kept; below what the backend allows.
    server_name : str
        Name that the server's certificate must have; by default the host.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: bool | ssl.SSLContext,
        connect_s: float,
        keep_alive_s: float,
        server_name: str = "",
    ) -> None:
        self._host, self._port = host, port
        self._tls = tls if isinstance(tls, ssl.SSLContext) else ssl.create_default_context() if tls else None
        self._server_name = server_name or host
        self.configure(connect_s, keep_alive_s)
        self._idle: list[BackendConnection] = []
        self._all: set[BackendConnection] = set()
        self._closed = self._retired = False

    def configure(self, connect_s: float, keep_alive_s: float) -> None:
        """Set the times; parameters as of the constructor."""
        self._connect_s, self._keep_alive_s = connect_s, keep_alive_s

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._all)

    def idle(self) -> BackendConnection | None:
        """Return an idle connection that was used shortly before, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            fresh = self._now() - connection.idle_since_s < self._keep_alive_s
            if fresh and connection.reusable() and connection.quiet():
                return connection
            connection.close()
        return None

    async def fresh(self) -> BackendConnection:
        """Open a connection.

        Raises
        ------
        BackendError
            If the backend cannot be reached in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: BackendConnection(self._forget),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._server_name if self._tls else None,
                )
        except ssl.SSLError as error:
            raise BackendError("tls", f"No TLS: {tls_trouble(error)}", untouched=True) from None
        except TimeoutError:
            raise BackendError("connect", f"No connection within {self._connect_s:g} s.", untouched=True) from None
        except (OSError, UnicodeError) as error:
            if self._tls is not None and isinstance(error, ConnectionAbortedError | ConnectionResetError):
                raise BackendError("tls", "No TLS: the server ended the handshake.", untouched=True) from None
            reason = getattr(error, "strerror", None) or error
            raise BackendError("connect", f"No connection: {reason}", untouched=True) from None
        self._all.add(connection)
        if self._closed:
            connection.close()
        return connection

    def give_back(self, connection: BackendConnection) -> None:
        """Take a connection back: keep it for the next request, or close it when its answer was given up."""
        if connection.reusable() and not (self._closed or self._retired):
            connection.idle_since_s = self._now()
            self._idle.append(connection)
        else:
            connection.close()

    def close_stale(self) -> None:
        """Close the connections that were idle for too long."""
        oldest = self._now() - self._keep_alive_s
        stale = [connection for connection in self._idle if connection.idle_since_s < oldest]
        if stale:
            self._idle = [connection for connection in self._idle if connection.idle_since_s >= oldest]
            for connection in stale:
                connection.close()

    def retire(self) -> None:
        """Keep no connection any longer; requests under way come to their end."""
        self._retired = True
        for connection in tuple(self._idle):
            connection.close()
        self._idle.clear()

    def close(self) -> None:
        """Close all connections, answers in progress included."""
        self._closed = True
        self._idle.clear()
        for connection in tuple(self._all):
            connection.close()

    def _forget(self, connection: BackendConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def tls_trouble(error: ssl.SSLError) -> str:
    """Return what is wrong with a certificate or a handshake, in the library's words without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {error.verify_message or error.reason}"
    return str(error.reason or error).replace("_", " ").lower()
