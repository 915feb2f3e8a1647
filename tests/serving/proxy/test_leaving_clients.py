"""Clients that leave at every possible moment: nobody else gets a byte of their answers, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from wavetank.serving.proxy.backend_connection import PAUSE_ABOVE_BYTES, BackendConnection, ConnectionPool
from wavetank.serving.proxy.backend_exchange import BackendError

CHAT = b"/v1/chat/completions"
FIRST = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nsecret\r\n2\r\nof\r\n1\r\nA\r\n0\r\n\r\n"
SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfor B"
LIMITS = {"first_byte_s": 5.0, "idle_s": 5.0, "max_bytes": 100_000_000}


class Wire(asyncio.Transport):
    """A transport that remembers what was asked of it."""

    def __init__(self, unsent_bytes: int = 0) -> None:
        super().__init__()
        self.closed = False
        self.reading = True
        self.unsent_bytes = unsent_bytes

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


async def next_one_reads(pool: ConnectionPool, used: BackendConnection, wire: Wire) -> bytes:
    """Return what the next exchange of a pool reads: on the used connection if it is lent again, else on a new one."""
    connection = pool.idle()
    if connection is None:
        assert wire.closed
        connection, wire = BackendConnection(lambda _: None), Wire()
        connection.connection_made(wire)
    else:
        assert connection is used
    assert wire.reading
    connection.send(b"B", **LIMITS)  # type: ignore[arg-type]
    for at in range(len(SECOND)):
        connection.data_received(SECOND[at : at + 1])
    async with asyncio.timeout(1.0):
        assert await connection.answer() == 200
        found = b""
        while piece := await connection.read():
            found += piece
    assert connection.reusable()
    connection.close()
    return found


def moments() -> Iterator[tuple[int, int, bool, bytes]]:
    """Yield every cut of the first answer, reads before it, whether its reader waits, and what comes too late."""
    for cut in range(len(FIRST) + 1):
        for reads in range(3):
            for waits in (False, True):
                for late in {b"", FIRST[cut:], FIRST}:
                    yield cut, reads, waits, late


def test_after_a_client_left_at_any_byte_the_next_exchange_reads_its_own_bytes_only() -> None:
    async def one(cut: int, reads: int, waits: bool, late: bytes) -> None:
        pool = ConnectionPool("127.0.0.1", 1, tls=False, connect_s=1.0, keep_alive_s=60.0)
        connection, wire = BackendConnection(lambda _: None), Wire()
        connection.connection_made(wire)
        connection.send(b"A", **LIMITS)  # type: ignore[arg-type]
        connection.data_received(FIRST[:cut])
        exchange = connection.exchange
        found = b"".join(exchange.take() for _ in range(reads))
        reader = asyncio.ensure_future(connection.read())
        if waits:
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        pool.give_back(connection)
        if late and not wire.closed:
            # Bytes that nobody asked for.
            connection.data_received(late)
            assert wire.closed
        assert b"secretofA".startswith(found)
        assert await next_one_reads(pool, connection, wire) == b"for B"

    async def main() -> None:
        for moment in moments():
            await one(*moment)

    asyncio.run(main())


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("reads", [0, 1])
def test_a_slow_reader_that_leaves_pauses_nobody_else(whole: bool, reads: int) -> None:
    async def main() -> None:
        pool = ConnectionPool("127.0.0.1", 1, tls=False, connect_s=1.0, keep_alive_s=60.0)
        connection, wire = BackendConnection(lambda _: None), Wire()
        connection.connection_made(wire)
        connection.send(b"A", **LIMITS)  # type: ignore[arg-type]
        size = 4 * PAUSE_ABOVE_BYTES
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        connection.data_received(b"A" * (size // 2))
        assert not wire.reading
        for _ in range(reads):
            await connection.read()
            assert wire.reading
        connection.data_received(b"A" * (size // 2 if whole else size // 2 - 1))
        pool.give_back(connection)
        assert await next_one_reads(pool, connection, wire) == b"for B"

    asyncio.run(main())


def test_a_request_that_was_not_sent_whole_ends_its_connection_though_it_was_answered() -> None:
    async def main() -> None:
        pool = ConnectionPool("127.0.0.1", 1, tls=False, connect_s=1.0, keep_alive_s=60.0)
        connection, wire = BackendConnection(lambda _: None), Wire(unsent_bytes=7)
        connection.connection_made(wire)
        connection.send(b"A", **LIMITS)  # type: ignore[arg-type]
        connection.data_received(SECOND)
        while await connection.read():
            pass
        pool.give_back(connection)
        assert wire.closed
        assert pool.idle() is None

    asyncio.run(main())


def test_nothing_is_sent_on_a_connection_that_is_in_use() -> None:
    async def main() -> None:
        connection, wire = BackendConnection(lambda _: None), Wire()
        connection.connection_made(wire)
        connection.send(b"A", **LIMITS)  # type: ignore[arg-type]
        connection.send(b"B", **LIMITS)  # type: ignore[arg-type]
        assert wire.closed
        with pytest.raises(BackendError):
            await connection.answer()

    asyncio.run(main())


def test_bytes_that_wait_in_the_socket_are_nobodys_answer(live: Any) -> None:
    """A second answer unasked, between two requests: the next one gets its own."""
    sent = []

    async def doubles(backend: Any, asked: Any, writer: Any) -> None:
        writer.write(live.plain(asked.json["messages"][0]["content"]))
        await writer.drain()
        sent.append(writer)

    async def main() -> None:
        async with live.backends(1, doubles) as [server]:
            pool = ConnectionPool("127.0.0.1", server.port, tls=False, connect_s=1.0, keep_alive_s=5.0)
            body = json.dumps(live.ask("own")).encode()
            message = b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (CHAT, len(body), body)
            connection = await pool.fresh()
            connection.send(message, **LIMITS)  # type: ignore[arg-type]
            await connection.answer()
            while await connection.read():
                pass
            pool.give_back(connection)
            # Written and asked for in the same round of the loop: only the socket knows.
            sent[0].write(live.plain("poison"))
            assert pool.idle() is None
            pool.close()
            await asyncio.sleep(0.01)

    live.run(main())


async def _asked(port: int, name: str, stream: bool, live: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(live.ask(name, stream=stream)).encode()
    writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT, len(body), body))
    return reader, writer


async def _answered(port: int, name: str, stream: bool, live: Any) -> bytes:
    reader, writer = await _asked(port, name, stream, live)
    try:
        async with asyncio.timeout(5.0):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            if stream:
                return await reader.readuntil(b"0\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return await reader.readexactly(length)
    finally:
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_at_any_byte_of_its_answer_leaves_nothing_to_the_next_one(live: Any, stream: bool) -> None:
    leaving: dict[str, tuple[int, asyncio.StreamWriter]] = {}

    def whole(name: str) -> bytes:
        if not stream:
            return bytes(live.plain(name))
        head = live.head(200, "text/event-stream")
        return bytes(head + live.chunk(live.event(name)) + live.chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def answers(backend: Any, asked: Any, writer: Any) -> None:
        name = asked.json["messages"][0]["content"]
        answer = whole(name)
        if name in leaving:
            cut, client = leaving[name]
            writer.write(answer[:cut])
            await asyncio.sleep(0.002)
            # The end of the answer and the client's end meet the router in one round of its loop.
            client.transport.abort()
            writer.write(answer[cut:])
        else:
            writer.write(answer)

    async def main() -> None:
        async with live.backends(1, answers) as [server], live.routing(server, metrics="own") as router:
            size = len(whole("secret-0000"))
            for cut in range(size):
                name = f"secret-{cut:04}"
                _, writer = await asyncio.open_connection("127.0.0.1", router.port)
                leaving[name] = (cut, writer)
                body = json.dumps(live.ask(name, stream=stream)).encode()
                writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT, len(body), body))
                await live.until(lambda writer=writer: writer.transport.is_closing())
                found = await _answered(router.port, f"other-{cut:04}", stream, live)
                assert b"secret" not in found
                assert f"other-{cut:04}".encode() in found
            await live.until(lambda: router.proxy.in_flight == 0)
            assert router.backends[0].account.in_flight == 0

    live.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_in_any_round_of_the_loop_leaves_nothing_to_the_next_one(live: Any, stream: bool) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server, metrics="own") as router:
            for rounds in range(80):
                _, writer = await _asked(router.port, "secret", stream, live)
                for _ in range(rounds):
                    await asyncio.sleep(0)
                writer.transport.abort()
                found = await _answered(router.port, f"other-{rounds}", stream, live)
                assert b"secret" not in found
                assert f"other-{rounds}".encode() in found
            await live.until(lambda: router.proxy.in_flight == 0)
            assert router.backends[0].account.in_flight == 0

    live.run(main())
