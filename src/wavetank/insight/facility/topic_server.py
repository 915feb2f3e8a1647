"""A topic on loopback: lines of JSON come in, state and advice go out by HTTP on the same port.

A connection whose first line begins with GET is answered once, and only where it names this very machine as its host;
other requests of HTTP are refused, so that no page in a browser can post messages.  Any other connection sends
messages, one JSON object a line: topic, ts, value and unit.  Lines, connections and silence have limits.  Where all
connections are taken, the one that has sent no message for longest makes room, so that peers that hold connections
and say nothing keep nobody out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wavetank.insight.facility.ingest import MALFORMED, Ingestion
from wavetank.insight.facility.live_twin import LiveTwin

_MOST_LINE = 2048
_MOST_HEAD = 64
_ANSWER_S = 5.0
_REQUEST = re.compile(rb"[A-Z]{3,16} \S+ HTTP/\d")
DISPLACED = "displaced"
_HOSTS = ("127.0.0.1", "localhost", "[::1]")


@dataclass(kw_only=True, eq=False)
class _Peer:
    """A connection, whether it has sent a message, and when it sent the last one or began; s of the event loop."""

    writer: asyncio.StreamWriter
    since_s: float
    sent: bool = False


@dataclass(kw_only=True, eq=False)
class TopicServer:
    """One site's topic.

    Parameters
    ----------
    ingestion : Ingestion
    twin : LiveTwin
    connections : int
        At most at the same time.
    idle_s : float
        Time without a well-formed message after which a connection is closed, s.
    clock : callable
        Seconds since the epoch.
    """

    ingestion: Ingestion
    twin: LiveTwin
    connections: int = 64
    idle_s: float = 60.0
    clock: Callable[[], float] = time.time
    _open: dict[asyncio.Task[Any], _Peer] = field(default_factory=dict)

    async def serve(self, port: int, ready: Callable[[int], None], stop: asyncio.Event) -> None:
        """Serve on loopback until asked to stop; all connections are closed then.

        Parameters
        ----------
        port : int
            0 for any that is free.
        ready : callable
            Called with the port.
        stop : asyncio.Event
        """
        server = await asyncio.start_server(self._connected, "127.0.0.1", port, limit=_MOST_LINE)
        try:
            ready(server.sockets[0].getsockname()[1])
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1.0)
                self.twin.take(self.ingestion.close(self.clock()))
        finally:
            server.close()
            for each in tuple(self._open):
                each.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            writer.close()
            return
        if len(self._open) >= self.connections:
            self._make_room()
        peer = self._open[task] = _Peer(writer=writer, since_s=asyncio.get_running_loop().time())
        try:
            await self._talk(reader, peer)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            # A peer that went away, fell silent or sent a line without end: its connection ends, and nothing else.
            self.ingestion.note(MALFORMED)
        finally:
            self._open.pop(task, None)
            writer.close()

    def _make_room(self) -> None:
        """End the connection that has sent no message at all for longest, or else the one whose last is oldest."""
        task, peer = min(self._open.items(), key=lambda each: (each[1].sent, each[1].since_s))
        del self._open[task]
        task.cancel()
        peer.writer.transport.abort()
        self.ingestion.note(DISPLACED)

    async def _talk(self, reader: asyncio.StreamReader, peer: _Peer) -> None:
        loop, first = asyncio.get_running_loop(), True
        while True:
            # What is no message does not keep a connection.
            async with asyncio.timeout_at(peer.since_s + self.idle_s):
                line = await reader.readline()
            if not line:
                return
            if first and (line.startswith(b"GET ") or _REQUEST.match(line)):
                async with asyncio.timeout(min(self.idle_s, _ANSWER_S)):
                    peer.writer.write(await self._answer(line, reader))
                    await peer.writer.drain()
                return
            first = False
            if self.message(line) != MALFORMED:
                peer.sent, peer.since_s = True, loop.time()

    def message(self, line: bytes) -> str:
        """Take one line; return what became of it.

        Parameters
        ----------
        line : bytes
        """
        try:
            topic = json.loads(line)["topic"]
        except (ValueError, KeyError, TypeError, RecursionError):
            topic = None
        if not isinstance(topic, str):
            return self.ingestion.note(MALFORMED)
        return self.ingestion.take(topic, line, self.clock())

    async def _answer(self, line: bytes, reader: asyncio.StreamReader) -> bytes:
        if not line.startswith(b"GET "):
            self.ingestion.note(MALFORMED)
            return _response(405, {"error": "messages are lines of JSON, without HTTP"})
        host = ""
        for _ in range(_MOST_HEAD):
            head = await reader.readline()
            if head in (b"\r\n", b"\n", b""):
                break
            name, _, value = head.decode("latin-1").partition(":")
            if name.strip().lower() == "host":
                host = value.strip()
        if host.rpartition(":")[0] not in _HOSTS and host not in _HOSTS:
            return _response(403, {"error": "ask for this machine by its own name"})
        path = line.split()[1].decode("latin-1") if len(line.split()) > 1 else ""
        answers: dict[str, Any] = {"/state": self.twin.state, "/advice": self.twin.advice}
        if path == "/counts":
            return _response(200, dict(self.ingestion.counts))
        if path not in answers:
            return _response(404, {"error": "ask for /state, /advice or /counts"})
        found = answers[path]
        return _response(200, None if found is None else _plain(found._asdict()))


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts with null where nothing is known: JSON has no NaN."""
    return {name: None if isinstance(each, float) and not math.isfinite(each) else each for name, each in facts.items()}


def _response(status: int, content: Any) -> bytes:
    body = json.dumps(content).encode() + b"\n"
    words = {200: "OK", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}[status]
    head = f"HTTP/1.1 {status} {words}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
