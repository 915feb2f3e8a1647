"""Connections to backends: one HTTP/1.1 exchange at a time, parsed strictly, bytes handed on as they come.

The general HTTP client that comes with the server library spends much of a small request's time on cookies, redirects
and header maps that a router has no use for.  A router sends POST and GET with a body of known length and needs the
answer's status, headers and bytes, back-pressure, and certainty about where an answer ends; nothing else is here.

Source: RFC 9112, "HTTP/1.1", sections 2 to 7.

Differs from the source:

1. Stricter: an answer with both a length and a transfer coding, a folded header line, a bare line end, another transfer
   coding than ``chunked`` or bytes behind its end is refused or ends the connection.
2. An answer that ends with the connection is taken only where it announces that (``Connection: close`` or HTTP/1.0).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable

# A head or a trailer that is longer is refused.
MAX_HEAD_BYTES = 65_536
MAX_TRAILER_BYTES = 8_192
# Bytes that wait for the client before the backend is asked to pause.
PAUSE_ABOVE_BYTES = 262_144
MAX_INTERIM = 8

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*))?")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")

IDLE, HEAD, LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, UNTIL_CLOSE, BROKEN = range(9)


class BackendError(Exception):
    """A backend that gave no complete answer.

    Attributes
    ----------
    reason : str
        ``connect``, ``died``, ``protocol``, ``first_byte``, ``idle`` or ``too_long``.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class BackendConnection(asyncio.Protocol):
    """One connection to a backend.

    Parameters
    ----------
    lost : callable
        Called with the connection when it is closed from either side.

    Attributes
    ----------
    status : int
        Of the answer; 0 before its head has come.
    headers : list of (bytes, bytes)
        Names in lower case, in the order received.
    complete : bool
        Whether the answer has come to its end.
    exchanges : int
        Requests sent on this connection.
    received_bytes : int
        Of the current answer, head and framing included.
    """

    def __init__(self, lost: Callable[[BackendConnection], None]) -> None:
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._state = IDLE
        self._buffer = b""
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._paused = False
        self._left = 0
        self._interim = 0
        self._body_seen = False
        self._error: BackendError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._moved_s = 0.0
        self._first_byte_s = 0.0
        self._idle_s = 0.0
        self._max_bytes = 0
        self._keep = True
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.exchanges = 0
        self.received_bytes = 0
        self.idle_since_s = 0.0

    # -- what the owner calls ------------------------------------------------------------------------------------------

    def send(self, request: bytes, *, first_byte_s: float, idle_s: float, max_bytes: int) -> None:
        """Send a request; its answer is read with :meth:`answer` and :meth:`read`.

        Parameters
        ----------
        request : bytes
            Head and body.
        first_byte_s : float
            Longest time to the first byte of the answer's body, in s.
        idle_s : float
            Longest time between two later pieces, in s; while the reader is behind the clock stands still.
        max_bytes : int
            Longest answer, head and framing included.
        """
        self.exchanges += 1
        self.status = 0
        self.headers = []
        self.complete = False
        self.received_bytes = 0
        self._state = HEAD
        self._interim = 0
        self._body_seen = False
        self._keep = True
        self._first_byte_s, self._idle_s, self._max_bytes = first_byte_s, idle_s, max_bytes
        self._moved_s = self._loop.time()
        self._timer = self._loop.call_at(self._moved_s + first_byte_s, self._look_at_the_clock)
        if self._transport is None:
            self._fail("died", "The connection was closed.")
        else:
            self._transport.write(request)

    async def answer(self) -> int:
        """Wait for the head of the answer and return its status.

        Raises
        ------
        BackendError
            If none comes.
        """
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """Return all bytes of the body that have come since, at least one; ``b""`` at the end of the answer.

        Raises
        ------
        BackendError
            If the answer breaks off; what came before has been returned then.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._wait()
        return self.taken()

    def taken(self) -> bytes:
        """Return what has come without waiting; may be empty."""
        pieces = self._pieces
        if not pieces:
            return b""
        found = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._waiting_bytes = 0
        if self._paused:
            self._paused = False
            self._moved_s = self._loop.time()
            if self._transport is not None:
                self._transport.resume_reading()
        return found

    def reusable(self) -> bool:
        """Say whether another request may be sent."""
        transport = self._transport
        return (
            self._state == IDLE
            and self._keep
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        )

    def close(self) -> None:
        """Close at once; an answer in progress is given up."""
        if self._state != IDLE and self._error is None:
            self._fail("died", "The connection was closed.")
        if self._transport is not None:
            self._transport.abort()

    # -- what the event loop calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Take bytes of an answer; bytes that nobody asked for end the connection."""
        if self._state in (IDLE, BROKEN):
            self._keep = False
            self.close()
            return
        if self._body_seen:
            # A head that trickles does not stop the clock to the body's first byte.
            self._moved_s = self._loop.time()
        self.received_bytes += len(data)
        if self.received_bytes > self._max_bytes:
            self._fail("too_long", f"The answer is longer than {self._max_bytes} bytes.")
            return
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        try:
            self._parse(data)
        except ValueError as error:
            self._fail("protocol", str(error))
        self._wake()

    def eof_received(self) -> None:
        """Let the transport close: no backend may half-close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: well where it ends with the connection, else not."""
        self._transport = None
        if self._state == UNTIL_CLOSE and exc is None and self._error is None:
            self._keep = False
            self._end()
        elif self._state not in (IDLE, BROKEN):
            self._fail("died", "The backend closed the connection before its answer was complete.")
        self._wake()
        self._lost(self)

    # -- the parser ----------------------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        at = 0
        end = len(data)
        while at < end:
            state = self._state
            if state in (CHUNK_DATA, LENGTH):
                take = min(self._left, end - at)
                self._push(data[at : at + take] if take < end else data)
                at += take
                self._left -= take
                if not self._left:
                    if state == LENGTH:
                        self._end()
                    else:
                        self._state = CHUNK_END
            elif state == CHUNK_SIZE:
                line_end = data.find(b"\r\n", at)
                if line_end < 0:
                    if end - at > 1024:
                        raise ValueError("A chunk's size line does not end.")
                    self._buffer = data[at:]
                    return
                match = _CHUNK.fullmatch(data, at, line_end)
                if match is None:
                    raise ValueError("A chunk's size is not a hexadecimal number.")
                self._left = int(match[1], 16)
                at = line_end + 2
                self._state = CHUNK_DATA if self._left else TRAILER
            elif state == CHUNK_END:
                if end - at < 2:
                    self._buffer = data[at:]
                    return
                if data[at : at + 2] != b"\r\n":
                    raise ValueError("A chunk is longer than its size.")
                at += 2
                self._state = CHUNK_SIZE
            elif state == UNTIL_CLOSE:
                self._push(data[at:])
                return
            elif state == HEAD:
                head_end = data.find(b"\r\n\r\n", at)
                if head_end < 0 or head_end - at > MAX_HEAD_BYTES:
                    if end - at > MAX_HEAD_BYTES:
                        raise ValueError(f"The head of the answer is longer than {MAX_HEAD_BYTES} bytes.")
                    self._buffer = data[at:]
                    return
                self._read_head(data[at:head_end])
                at = head_end + 4
            elif state == TRAILER:
                # The last chunk's line end has been read: an empty line, or fields that end with one.
                if data.startswith(b"\r\n", at):
                    at += 2
                    self._end()
                    continue
                trailer_end = data.find(b"\r\n\r\n", at)
                if trailer_end < 0:
                    if end - at > MAX_TRAILER_BYTES:
                        raise ValueError(f"The trailer is longer than {MAX_TRAILER_BYTES} bytes.")
                    self._buffer = data[at:]
                    return
                at = trailer_end + 4
                self._end()
            else:
                # Behind the end of the answer: this connection cannot be trusted any more.
                self._keep = False
                if self._transport is not None:
                    self._transport.abort()
                return

    def _read_head(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        breaks = len(lines) - 1
        if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
            raise ValueError("The head of the answer holds a bare line end or a null byte.")
        match = _STATUS.fullmatch(lines[0])
        if match is None:
            raise ValueError("The answer does not begin with a status line.")
        status = int(match[2])
        headers = []
        length: bytes | None = None
        coding: bytes | None = None
        close = match[1] == b"0"
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon or _NAME.fullmatch(name) is None:
                raise ValueError("A header line of the answer has no valid name.")
            name, value = name.lower(), value.strip(b" \t")
            if name == b"content-length":
                if _DIGITS.fullmatch(value) is None or length not in (None, value):
                    raise ValueError("The answer's length is not one number.")
                length = value
            elif name == b"transfer-encoding":
                if coding is not None or value.lower() != b"chunked":
                    raise ValueError("The answer has another transfer coding than chunked.")
                coding = value
            elif name == b"connection" and b"close" in value.lower():
                close = True
            headers.append((name, value))
        if status < 200:
            self._interim += 1
            if status == 101 or self._interim > MAX_INTERIM:
                raise ValueError("The backend answered with interim heads only.")
            return
        if coding is not None and (length is not None or match[1] == b"0"):
            raise ValueError("The answer has both a length and a transfer coding.")
        bodiless = status in (204, 304)
        if coding is None and length is None and not close and not bodiless:
            raise ValueError("The answer has no length and does not announce that it ends with the connection.")
        self.status, self.headers = status, headers
        self._keep = not close
        if bodiless:
            self._end()
        elif coding is not None:
            self._state = CHUNK_SIZE
        elif length is not None:
            self._left = int(length)
            self._state = LENGTH
            if not self._left:
                self._end()
        else:
            self._state = UNTIL_CLOSE

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the end of the connection marks the end of the answer."""
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _push(self, piece: bytes) -> None:
        if not piece:
            return
        if not self._body_seen:
            self._body_seen = True
            self._moved_s = self._loop.time()
            if self._timer is not None and self._idle_s < self._first_byte_s:
                self._timer.cancel()
                self._timer = self._loop.call_later(self._idle_s, self._look_at_the_clock)
        self._pieces.append(piece)
        self._waiting_bytes += len(piece)
        if self._waiting_bytes > PAUSE_ABOVE_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _end(self) -> None:
        self.complete = True
        self._state = IDLE
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, reason: str, text: str) -> None:
        if self._error is None:
            self._error = BackendError(reason, text)
        self._keep = False
        self._state = BROKEN
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _look_at_the_clock(self) -> None:
        # One timer an exchange: it looks whether the deadline has moved instead of being moved with every piece.
        self._timer = None
        if self._state in (IDLE, BROKEN):
            return
        now = self._loop.time()
        allowed_s = self._idle_s if self._body_seen else self._first_byte_s
        if self._paused or self._pieces:
            self._moved_s = now
        due = self._moved_s + allowed_s
        if now < due:
            self._timer = self._loop.call_at(due, self._look_at_the_clock)
        elif self._body_seen:
            self._fail("idle", f"The backend sent nothing for {allowed_s:g} s in the middle of its answer.")
        else:
            self._fail("first_byte", f"The backend did not begin to answer within {allowed_s:g} s.")

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ConnectionPool:
    """The connections to one backend: idle ones are used again, the one used last first.

    Parameters
    ----------
    host : str
    port : int
    tls : bool
        Whether to speak TLS; certificates are verified.
    connect_s : float
        Longest time to connect, in s.
    keep_alive_s : float
        How long an idle connection is kept; below what the backend allows.
    """

    def __init__(self, host: str, port: int, *, tls: bool, connect_s: float, keep_alive_s: float) -> None:
        self._host, self._port = host, port
        self._tls = ssl.create_default_context() if tls else None
        self._connect_s, self._keep_alive_s = connect_s, keep_alive_s
        self._idle: list[BackendConnection] = []
        self._all: set[BackendConnection] = set()
        self._closed = False

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._all)

    def idle(self) -> BackendConnection | None:
        """Return an idle connection that was used shortly before, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable() and self._now() - connection.idle_since_s < self._keep_alive_s:
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
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            raise BackendError("connect", f"No connection within {self._connect_s:g} s.") from None
        except OSError as error:
            raise BackendError("connect", f"No connection: {error.strerror or error}") from None
        self._all.add(connection)
        if self._closed:
            connection.close()
        return connection

    def give_back(self, connection: BackendConnection) -> None:
        """Take a connection back: keep it for the next request, or close it when its answer was given up."""
        if connection.reusable() and not self._closed:
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
