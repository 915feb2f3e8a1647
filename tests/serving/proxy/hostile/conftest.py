"""A router as a process of its own, in front of a good backend and one that does whatever wrong it is asked to do."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("aiohttp")

from wavetank.live.processes import ChildProcess, free_port
from wavetank.serving.proxy.load import Load, LoadResult, offer
from wavetank.serving.proxy.null_backend import prompt

GOOD, BAD = "null-model", "bad-model"
# Longest time that any answer may take here; the router's own limits are far below.
PATIENCE_S = 15.0
LIMITS = (
    "--first-byte-s", "0.8", "--idle-s", "0.8", "--connect-s", "0.5", "--read-s", "1", "--total-s", "2.5",
    "--max-body-bytes", "1MiB", "--max-response-bytes", "4MiB", "--client-keep-alive-s", "2", "--keep-alive-s", "1",
    "--probe-every-s", "0.2", "--fall", "100", "--eject-after", "10000", "--drain-s", "1", "--log", "none",
)  # fmt: skip

OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Type: application/json\r\n"
EVENTS = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
BOMB = gzip.compress(bytes(50_000_000))


def chunk(data: bytes) -> bytes:
    """Return data as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def counted(body: bytes) -> bytes:
    """Return a body with its length before it."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


# What a bad backend sends, then closes.
SENDS: dict[str, bytes] = {
    "nothing": b"",
    "no-http": b"hello, who is there?\r\n\r\n",
    "half-a-head": OK + b"Content-Ty",
    "less-than-its-length": PLAIN + b"Content-Length: 1000\r\n\r\n" + b'{"choices":',
    "more-than-its-length": PLAIN + b"Content-Length: 5\r\n\r\n" + b'{"id":"x","choices":[]}' * 3,
    "a-length-that-is-no-number": PLAIN + b"Content-Length: ten\r\n\r\n{}",
    "a-negative-length": PLAIN + b"Content-Length: -1\r\n\r\n{}",
    "two-lengths": PLAIN + b"Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}",
    "length-and-chunks": PLAIN + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"{}") + chunk(b""),
    "an-unknown-coding": PLAIN + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk(b"{}") + chunk(b""),
    "bare-line-ends": b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    "a-bare-return-in-a-header": PLAIN + b"X-A: b\rSet-Cookie: c\r\n" + counted(b"{}"),
    "a-null-in-a-header": PLAIN + b"X-A: \0\r\n" + counted(b"{}"),
    "a-folded-header": PLAIN + b"X-A: b\r\n c\r\n" + counted(b"{}"),
    "a-header-without-a-name": PLAIN + b": b\r\n" + counted(b"{}"),
    "a-header-of-a-megabyte": PLAIN + b"X-A: " + b"a" * 1_000_000 + b"\r\n" + counted(b"{}"),
    "headers-without-end": OK + b"X-A: aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 10_000,
    "another-protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "interim-heads-only": b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    "a-chunk-size-that-is-no-number": PLAIN + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a-chunk-longer-than-its-size": PLAIN + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "a-chunk-of-absurd-size": PLAIN + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
    "chunks-without-end": PLAIN + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"{}"),
    "status-500": b"HTTP/1.1 500 Oh\r\n" + counted(b'{"error":{"message":"oh"}}'),
    "status-503": b"HTTP/1.1 503 Oh\r\n" + counted(b'{"error":{"message":"oh"}}'),
    "a-bomb": PLAIN + b"Content-Encoding: gzip\r\n" + counted(BOMB),
    "no-utf-8": PLAIN + counted(b'{"choices":[{"message":{"content":"\xff\xfe"}}]}'),
    "no-json": PLAIN + counted(b"<html>"),
    "two-answers": PLAIN + counted(b"{}") + PLAIN + counted(b'{"smuggled":1}'),
    "a-stream-cut-between-chunks": EVENTS + chunk(EVENT) * 2,
    "a-stream-cut-inside-a-chunk": EVENTS + chunk(EVENT) + chunk(EVENT)[:20],
    "a-stream-with-a-bad-chunk": EVENTS + chunk(EVENT) + b"xyz\r\n",
    "a-stream-of-no-events": EVENTS + chunk(bytes(range(256))) + chunk(b""),
    "a-stream-without-done": EVENTS + chunk(EVENT) + chunk(b""),
    "a-stream-without-its-last-line": EVENTS + chunk(EVENT) + chunk(DONE[:-2]) + chunk(b""),
    "a-stream-that-just-closes": OK + b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n" + EVENT,
    "a-stream-with-a-length": OK + b"Content-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n" + EVENT,
}


async def _never(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(PATIENCE_S)


async def _slow_head(writer: asyncio.StreamWriter) -> None:
    writer.write(OK)
    for _ in range(int(PATIENCE_S / 0.1)):
        writer.write(b"X-A: b\r\n")
        await asyncio.sleep(0.1)


async def _stall(writer: asyncio.StreamWriter) -> None:
    writer.write(EVENTS + chunk(EVENT))
    await asyncio.sleep(PATIENCE_S)


async def _slow_for_ever(writer: asyncio.StreamWriter) -> None:
    writer.write(EVENTS)
    for _ in range(int(PATIENCE_S / 0.1)):
        writer.write(chunk(EVENT))
        await asyncio.sleep(0.1)


async def _endless_body(writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN + b"Transfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(chunk(b" " * 60_000))
        await writer.drain()


async def _endless_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(EVENTS)
    while not writer.is_closing():
        writer.write(chunk(EVENT) * 1000)
        await writer.drain()


# What a bad backend does beyond sending and closing.
DOES = {
    "never-answers": _never,
    "a-head-that-trickles": _slow_head,
    "a-stream-that-stalls": _stall,
    "a-stream-too-slow-to-end": _slow_for_ever,
    "a-body-without-end": _endless_body,
    "a-stream-without-end": _endless_stream,
}


class BadBackend:
    """A server in a thread of its own; the first word of a request's prompt says what it does wrong."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(ready),))
        self._thread.start()
        ready.wait()

    async def _serve(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.port: int = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen.append(head)
        if head.startswith(b"GET "):
            models = json.dumps({"object": "list", "data": [{"id": BAD, "object": "model"}]}).encode()
            page = {b"/health": b"{}", b"/v1/models": models}.get(head.split(b" ")[1])
            writer.write(b"HTTP/1.1 404 No\r\n" + counted(b"") if page is None else PLAIN + counted(page))
            await writer.drain()
            return True
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        self.seen.append(body)
        fault = json.loads(body)["messages"][-1]["content"].split(" ")[0]
        if fault in DOES:
            await DOES[fault](writer)
        else:
            writer.write(SENDS[fault])
            await writer.drain()
        return False

    def close(self) -> None:
        """End the server and its thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


class Reply(NamedTuple):
    """An answer as a strict client reads it.

    status    0 without one
    head      lower case
    body      of what came, framing taken off
    whole     whether its framing says that it is complete
    rest      bytes behind it
    """

    status: int
    head: bytes
    body: bytes
    whole: bool
    rest: bytes = b""

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error object."""
        found = json.loads(self.body)["error"]
        assert isinstance(found, dict)
        assert found["message"]
        return found

    @property
    def visibly_broken(self) -> bool:
        """Whether a client can see that this is no complete answer."""
        return not self.whole or b'"error"' in self.body


def read_reply(data: bytes, *, closed: bool) -> Reply | None:
    """Parse an answer; None while more of it must come."""
    head, blank, rest = data.partition(b"\r\n\r\n")
    if not blank:
        return Reply(0, head.lower(), b"", False) if closed else None
    status, head = int(head[9:12]), head.lower()
    if status == 100:
        return read_reply(rest, closed=closed)
    if b"\r\ntransfer-encoding: chunked" in head:
        body = b""
        while True:
            size, line_end, more = rest.partition(b"\r\n")
            if not line_end or len(more) < int(size, 16) + 2:
                return Reply(status, head, body, False) if closed else None
            body += more[: int(size, 16)]
            rest = more[int(size, 16) + 2 :]
            if int(size, 16) == 0:
                return Reply(status, head, body, True, rest)
    if b"\r\ncontent-length: " in head:
        length = int(head.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
        if len(rest) < length:
            return Reply(status, head, rest, False) if closed else None
        return Reply(status, head, rest[:length], True, rest[length:])
    return Reply(status, head, rest, True) if closed else None


def send(port: int, data: bytes, answers: int = 1) -> list[Reply]:
    """Send bytes on one connection and return the answers that come back."""
    found: list[Reply] = []
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link:
        # A server may refuse before it has read all.
        with contextlib.suppress(ConnectionError):
            link.sendall(data)
        while len(found) < answers:
            try:
                piece = link.recv(1 << 18)
            except ConnectionResetError:
                piece = b""
            received += piece
            while (reply := read_reply(received, closed=not piece)) is not None:
                found.append(reply)
                received = reply.rest
                if len(found) == answers or not reply.whole:
                    return found
            if not piece:
                return found
    return found


def request(body: bytes, *more: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    """Return a POST request."""
    lines = b"".join(line + b"\r\n" for line in more)
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path, lines, len(body), body,
    )  # fmt: skip


def chat(text: str, *, model: str = BAD, stream: bool = False, tokens: int = 3) -> bytes:
    """Return the body of a chat request."""
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": model, "messages": messages, "stream": stream, "max_tokens": tokens}).encode()


def good(name: str, *, stream: bool = False, tokens: int = 3, gap_s: float = 0.0) -> bytes:
    """Return a request that the good backend answers."""
    return request(chat(prompt(name, 0.0, gap_s), model=GOOD, stream=stream, tokens=tokens))


class Site:
    """The router under test and what stands behind it."""

    def __init__(self, port: int, router: ChildProcess, bad: BadBackend) -> None:
        self.port, self.router, self.bad = port, router, bad

    def fault(self, name: str, *, stream: bool = False) -> Reply:
        """Ask the bad backend for one fault and return what a client of the router sees."""
        (reply,) = send(self.port, request(chat(f"{name} please", stream=stream)))
        return reply

    def works(self) -> bool:
        """Return whether a good request is answered right."""
        (reply,) = send(self.port, good("fine"))
        return reply.status == 200 and b"fine:0:0;fine:1:0;fine:2:0;" in reply.body

    def gauge(self, name: str) -> float:
        """Return a figure of the router's metrics page."""
        (reply,) = send(self.port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        rows = [line.split() for line in reply.body.decode().splitlines() if line.startswith(name)]
        assert rows, f"no {name} in {reply.body.decode()}"
        return sum(float(row[-1]) for row in rows)

    def quiet(self) -> bool:
        """Wait until nothing is in flight; returns whether that came."""
        stop = time.monotonic() + PATIENCE_S
        while time.monotonic() < stop:
            if self.gauge("wavetank_router_in_flight_requests") == 0:
                return True
            time.sleep(0.05)
        return False


def good_load(seconds: float, seed: int) -> Load:
    """Return requests to the good backend, plain and streamed."""
    return Load(clients=2, duration_s=seconds, tokens=(1, 8), streamed_share=0.5, gap_s=0.001, seed=seed)


class Meanwhile:
    """A good load in a thread, while a test does something else."""

    def __init__(self, port: int, load: Load) -> None:
        self._found: list[LoadResult] = []
        self._thread = threading.Thread(target=lambda: self._found.append(offer(port, load)))
        self._thread.start()

    def result(self) -> LoadResult:
        """Return what became of it."""
        self._thread.join()
        return self._found[0]


@contextlib.contextmanager
def running_site(*options: str) -> Iterator[Site]:
    """Start a router in front of a good and a bad backend."""
    bad, port = BadBackend(), free_port()
    null = [sys.executable, "-m", "wavetank.serving.proxy.null_backend"]
    try:
        with ChildProcess(null, name="null backend") as backend:
            words = [sys.executable, "-m", "wavetank", "launch", "router", "--policy", "round-robin"]
            words += ["--port", str(port), "--backend", f"http://127.0.0.1:{bad.port}", *LIMITS, *options]
            words += ["--backend", f"http://127.0.0.1:{json.loads(backend.first_line())['ports'][0]}"]
            with ChildProcess(words, name="router") as router:
                router.wait_ready(port)
                site = Site(port, router, bad)
                assert site.works()
                yield site
                assert router.running, router.output()
                assert "Traceback" not in router.output(), router.output()
    finally:
        bad.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """One router for all tests of a module; whatever one test does to it, the next must find it well."""
    with running_site() as found:
        yield found


@pytest.fixture
def meanwhile(site: Site) -> Iterator[Callable[[], LoadResult]]:
    """Good requests at the same time, which must all be right."""
    load = Meanwhile(site.port, good_load(0.1, 0))
    yield load.result
    result = load.result()
    assert result.right == len(result.outcome), result.notes
    assert result.right > 0


@pytest.fixture(scope="session")
def wire() -> SimpleNamespace:
    """What tests speak HTTP with."""
    return SimpleNamespace(
        send=send, request=request, chat=chat, good=good, running_site=running_site, Meanwhile=Meanwhile, GOOD=GOOD,
        SENDS=SENDS, DOES=DOES, BOMB=BOMB, load=good_load,
    )  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for ``fault`` every one there is."""
    if "fault" in metafunc.fixturenames:
        metafunc.parametrize("fault", [*SENDS, *DOES])
