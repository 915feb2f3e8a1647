"""Connections to backends: the parser, its limits, the clock, the pool."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.proxy import backend_exchange
from wavetank.serving.proxy.backend_connection import BackendConnection, ConnectionPool
from wavetank.serving.proxy.backend_exchange import BackendError

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 Fine\r\ntransfer-encoding: Chunked\r\n\r\n"
    b"5;name=value\r\nhello\r\n6\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
CLOSING = b"HTTP/1.0 200 OK\r\n\r\nhello world"


class Wire(asyncio.Transport):
    """A transport that remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def with_connection(check: Callable[[BackendConnection, Wire], Any], **limits: float) -> Any:
    """Run something with a connection that has sent a request."""

    async def main() -> Any:
        connection, wire = BackendConnection(lambda _: None), Wire()
        connection.connection_made(wire)
        asked = {"first_byte_s": 5.0, "idle_s": 5.0, "max_bytes": 10_000_000, **limits}
        connection.send(b"request", **asked)  # type: ignore[arg-type]
        found = check(connection, wire)
        if asyncio.iscoroutine(found):
            found = await found
        connection.close()
        return found

    return asyncio.run(main())


async def whole(connection: BackendConnection) -> bytes:
    await connection.answer()
    found = b""
    while piece := await connection.read():
        found += piece
    return found


@given(
    data=st.sampled_from([LENGTH, CHUNKED, CLOSING]),
    cuts=st.lists(st.integers(1, len(CHUNKED)), max_size=12),
)
def test_an_answer_is_the_same_however_its_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    async def check(connection: BackendConnection, wire: Wire) -> None:
        at = 0
        for cut in [*sorted({cut for cut in cuts if cut < len(data)}), len(data)]:
            connection.data_received(data[at:cut])
            at = cut
        if data is CLOSING:
            connection.connection_lost(None)
        assert await whole(connection) == b"hello world"
        assert (connection.exchange.status, connection.exchange.complete) == (200, True)
        assert connection.reusable() == (data is not CLOSING)
        assert wire.written == b"request"

    with_connection(check)


@given(data=st.sampled_from([LENGTH, CHUNKED]), at=st.integers(0, len(CHUNKED) - 1))
def test_an_answer_that_is_cut_short_is_never_complete(data: bytes, at: int) -> None:
    async def check(connection: BackendConnection, wire: Wire) -> None:
        connection.data_received(data[: min(at, len(data) - 1)])
        connection.connection_lost(None)
        with pytest.raises(BackendError) as caught:
            await whole(connection)
        assert caught.value.reason == "died"
        assert not connection.reusable()

    with_connection(check)


@given(data=st.binary(max_size=300))
def test_garbage_never_raises_anything_else(data: bytes) -> None:
    async def check(connection: BackendConnection, wire: Wire) -> None:
        connection.data_received(b"HTTP/1.1 200 OK\r\n" + data)
        connection.connection_lost(ConnectionResetError())
        try:
            await whole(connection)
        except BackendError:
            assert not connection.reusable()

    with_connection(check)


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 1",
        "HTTP/1.1 200 OK\r\nContent-Length: ",
        "HTTP/1.1 200 OK\r\nContent-Length: 1_0",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
        "HTTP/1.1 200 OK",
        "HTTP/2 200 OK\r\nContent-Length: 1",
        "HTTP/1.1 20 OK\r\nContent-Length: 1",
        "HTTP/1.1 200 OK\r\n Content-Length: 1",
        "HTTP/1.1 200 OK\r\nContent-Length : 1",
        "HTTP/1.1 200 OK\r\nX: a\nContent-Length: 1",
        "HTTP/1.1 200 OK\r\nX: a\0\r\nContent-Length: 1",
        "HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 1",
        "HTTP/1.1 101 Go\r\nUpgrade: x",
        "\r\n".join(["HTTP/1.1 100 Continue\r\n"] * 20),
    ],
)
def test_a_head_with_two_readings_is_refused(head: str) -> None:
    async def check(connection: BackendConnection, wire: Wire) -> None:
        connection.data_received(head.encode() + b"\r\n\r\nx")
        with pytest.raises(BackendError) as caught:
            await connection.answer()
        assert caught.value.reason == "protocol"
        assert wire.closed

    with_connection(check)


@pytest.mark.parametrize(
    "body", [b"x\r\n", b"-1\r\n", b"0x5\r\nhello\r\n", b"5\r\nhello!\r\n", b"1" * 17 + b"\r\n", b"1" * 2000, b"5 5\r\n"]
)
def test_a_bad_chunk_is_refused(body: bytes) -> None:
    async def check(connection: BackendConnection, wire: Wire) -> None:
        connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        with pytest.raises(BackendError) as caught:
            await whole(connection)
        assert caught.value.reason == "protocol"

    with_connection(check)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * (backend_exchange.MAX_HEAD_BYTES + 1), "protocol"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
            + b"y" * (backend_exchange.MAX_TRAILER_BYTES + 1),
            "protocol",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"y" * 200_000, "too_long"),
    ],
)
def test_nothing_grows_without_bound(data: bytes, reason: str) -> None:
    async def check(connection: BackendConnection, wire: Wire) -> None:
        for at in range(0, len(data), 1000):
            connection.data_received(data[at : at + 1000])
        with pytest.raises(BackendError) as caught:
            await whole(connection)
        assert caught.value.reason == reason

    with_connection(check, max_bytes=100_000)


def test_an_answer_without_a_body_ends_with_its_head() -> None:
    for text in (b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):

        async def check(connection: BackendConnection, wire: Wire, text: bytes = text) -> None:
            connection.data_received(text)
            assert await whole(connection) == b""
            assert connection.reusable()

        with_connection(check)


def test_bytes_behind_the_end_close_the_connection() -> None:
    async def check(connection: BackendConnection, wire: Wire) -> None:
        connection.data_received(LENGTH + b"HTTP/1.1 200 OK\r\n")
        assert await whole(connection) == b"hello world"
        assert wire.closed
        assert not connection.reusable()

    with_connection(check)

    async def later(connection: BackendConnection, wire: Wire) -> None:
        connection.data_received(LENGTH)
        connection.data_received(b"more")
        assert wire.closed
        assert not connection.reusable()

    with_connection(later)


def test_the_backend_pauses_while_its_reader_is_behind() -> None:
    async def check(connection: BackendConnection, wire: Wire) -> None:
        connection.data_received(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(5):
            connection.data_received(b"x" * 65_536)
        assert not wire.reading
        assert len(await connection.read()) == 5 * 65_536
        assert wire.reading

    with_connection(check)


def test_the_clock_runs_to_the_first_byte_then_between_pieces() -> None:
    async def silent(connection: BackendConnection, wire: Wire) -> str:
        with pytest.raises(BackendError) as caught:
            await connection.answer()
        return caught.value.reason

    assert with_connection(silent, first_byte_s=0.02) == "first_byte"

    async def head_only(connection: BackendConnection, wire: Wire) -> str:
        connection.data_received(LENGTH[:-11])
        with pytest.raises(BackendError) as caught:
            await whole(connection)
        return caught.value.reason

    assert with_connection(head_only, first_byte_s=0.02) == "first_byte"

    async def stalls(connection: BackendConnection, wire: Wire) -> str:
        connection.data_received(LENGTH[:-3])
        with pytest.raises(BackendError) as caught:
            await whole(connection)
        return caught.value.reason

    assert with_connection(stalls, idle_s=0.02) == "idle"

    async def is_not_read(connection: BackendConnection, wire: Wire) -> bytes:
        connection.data_received(LENGTH[:-3])
        await asyncio.sleep(0.08)
        connection.data_received(LENGTH[-3:])
        return await whole(connection)

    assert with_connection(is_not_read, idle_s=0.02) == b"hello world"


def test_a_pool_uses_connections_again_and_forgets_those_that_end(live: Any) -> None:
    async def main() -> None:
        async with live.backends(1) as [server]:
            pool = ConnectionPool("127.0.0.1", server.port, tls=False, connect_s=1.0, keep_alive_s=0.1)
            assert pool.idle() is None

            async def ask() -> BackendConnection:
                connection = pool.idle() or await pool.fresh()
                connection.send(b"GET /health HTTP/1.1\r\n\r\n", first_byte_s=1.0, idle_s=1.0, max_bytes=1000)
                await whole(connection)
                pool.give_back(connection)
                return connection

            first = await ask()
            assert await ask() is first
            assert (first.exchanges, pool.open, server.connections) == (2, 1, 1)
            await asyncio.sleep(0.15)
            assert await ask() is not first
            await live.until(lambda: pool.open == 1)
            await asyncio.sleep(0.15)
            pool.close_stale()
            await live.until(lambda: pool.open == 0)
            await ask()
            await server.kill()
            await live.until(lambda: pool.open == 0)
            assert pool.idle() is None
            with pytest.raises(BackendError) as caught:
                await pool.fresh()
            assert caught.value.reason == "connect"
            pool.close()

    live.run(main())


def test_a_given_up_answer_closes_its_connection(live: Any) -> None:
    async def main() -> None:
        async with live.backends(1) as [server]:
            pool = ConnectionPool("127.0.0.1", server.port, tls=False, connect_s=1.0, keep_alive_s=5.0)
            connection = await pool.fresh()
            connection.send(b"GET /health HTTP/1.1\r\n\r\n", first_byte_s=1.0, idle_s=1.0, max_bytes=1000)
            pool.give_back(connection)
            assert pool.idle() is None
            await live.until(lambda: pool.open == 0)

    live.run(main())


async def beside_a_socket(check: Callable[[ConnectionPool, BackendConnection, socket.socket], Any]) -> None:
    """Run something with a connection whose other side is a plain socket: it acts while the loop stands still."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pool = ConnectionPool("127.0.0.1", listening.getsockname()[1], tls=False, connect_s=1.0, keep_alive_s=60.0)
        connection = await pool.fresh()
        other, _ = listening.accept()
        with other:
            await check(pool, connection, other)
        pool.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize("what", ["bytes", "end"])
def test_a_connection_with_something_in_its_socket_is_not_lent(live: Any, what: str) -> None:
    async def check(pool: ConnectionPool, connection: BackendConnection, other: socket.socket) -> None:
        connection.send(b"request", first_byte_s=5.0, idle_s=5.0, max_bytes=1000)
        other.sendall(LENGTH)
        assert await whole(connection) == b"hello world"
        pool.give_back(connection)
        assert pool.idle() is connection
        pool.give_back(connection)
        # From here on the loop does not run: only the system knows.
        if what == "bytes":
            other.sendall(b"HTTP/1.1 200 OK\r\n")
        else:
            other.shutdown(socket.SHUT_WR)
        assert select.select([connection._transport.get_extra_info("socket").fileno()], [], [], 5.0)[0]  # type: ignore[union-attr]
        assert connection.reusable()
        assert pool.idle() is None

    live.run(beside_a_socket(check))


def test_a_connection_whose_request_is_not_sent_whole_is_not_lent(live: Any) -> None:
    async def check(pool: ConnectionPool, connection: BackendConnection, other: socket.socket) -> None:
        # More than the system's buffers of both sides hold; nobody reads it.
        connection.send(b"x" * 100_000_000, first_byte_s=5.0, idle_s=5.0, max_bytes=1000)
        other.sendall(LENGTH)
        assert await whole(connection) == b"hello world"
        assert connection.exchange.finished()
        assert not connection.reusable()
        pool.give_back(connection)
        assert pool.idle() is None
        await live.until(lambda: pool.open == 0)

    live.run(beside_a_socket(check))
