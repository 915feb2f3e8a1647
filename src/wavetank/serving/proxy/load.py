"""A closed-loop load generator for OpenAI chat servers on loopback that checks every answer, token by token.

Each of its clients keeps one connection, sends a request, waits for the whole answer, and sends the next one.  A null
backend (:mod:`wavetank.serving.proxy.null_backend`) names request and place in every token, so the generator
distinguishes an answer that is right from one that was lost, doubled or crossed with another.  It parses no more HTTP
than it must: it shares its core with the backends and must stay well ahead of the proxy that is measured.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.loops import fastest_loop
from wavetank.serving.proxy.null_backend import MODEL, prompt
from wavetank.sim.rng import stream as random_stream

OUTCOMES = ("right", "failed", "broken", "lost", "doubled", "crossed", "hung", "left")
"""How a request may end.

right    every token of this request, once, in order, and the end of the answer
failed   an HTTP status of 400 or more
broken   an answer that began right and visibly stopped: cut off inside its framing, or an error event, or no ``[DONE]``
         before the connection closed
lost     a connection closed without a status, or an answer that looks whole but lacks tokens
doubled  a token that came before came again
crossed  a token of another request, or something that is no token at all
hung     no end of the answer within the time allowed
left     the client left first, as it was meant to; every token that came before was right
"""
RIGHT, FAILED, BROKEN, LOST, DOUBLED, CROSSED, HUNG, LEFT = range(8)
_NS_PER_S = 1e9
_WATCH_S = 0.25
# A client that leaves about when its answer ends does so within this time of it.
_ABOUT_S = 0.0005
# A slow reader: it reads nothing for this time, into a small buffer, of an answer that fills all buffers on its way.
_SLOW_S = 0.3
_SLOW_BUFFER_BYTES = 131_072
_SLOW_TOKEN_BYTES = 65_536
_SLOW_TOKENS = 96


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    message: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    error: Any = None


_decode = msgspec.json.Decoder(_Answer).decode


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is offered to a server.

    Parameters
    ----------
    clients : int
        Connections, each with one request at a time.
    requests : int
        Number of requests after which no new one is sent; 0: no limit.
    duration_s : float
        Time after which no new request is sent; 0: no limit.
    tokens : tuple of int
        Least and most tokens of an answer; drawn for each request.
    streamed_share : float
        Share of the requests that ask for a stream.
    delay_s : float
        Mean time a backend takes before it answers, drawn uniformly from half to one and a half of it; 0: at once.
    gap_s : float
        Time between two tokens of a stream; 0: as fast as a backend can send.
    prompt_bytes : int
        Length of a prompt.
    timeout_s : float
        A request without its answer after this time hangs.
    leaving_share : float
        Share of the requests whose client leaves: a third at a random moment before the answer's expected end, a third
        within half a millisecond of that end, a third when it has seen a drawn number of tokens (of a plain answer: its
        first byte).
    slow_share : float
        Share of the requests whose client asks for a stream of about 6 MB, stops reading for 0.3 s at its first byte,
        and then either leaves or reads the rest.
    seed : int
        Of what is drawn.
    name : str
        Begins the names of all requests; without blanks, colons and semicolons.
    """

    clients: int = 64
    requests: int = 0
    duration_s: float = 0.0
    tokens: tuple[int, int] = (16, 16)
    streamed_share: float = 0.0
    delay_s: float = 0.0
    gap_s: float = 0.0
    prompt_bytes: int = 1000
    timeout_s: float = 30.0
    leaving_share: float = 0.0
    slow_share: float = 0.0
    seed: int = 0
    name: str = "r"

    def __post_init__(self) -> None:
        if self.clients < 1 or self.requests < 0 or self.duration_s < 0 or not 1 <= self.tokens[0] <= self.tokens[1]:
            raise BadValueError("The load is ill defined.", given=repr(self))
        if self.requests == 0 and self.duration_s == 0:
            raise BadValueError(
                "The load has no end.", given="requests=0, duration_s=0", allowed="one of them above 0", where="Load"
            )
        if set(self.name) & set(' :;"\\'):
            raise BadValueError("The name holds signs that separate tokens.", given=self.name, where="Load")


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """What became of a load.

    Attributes
    ----------
    outcome : int8 array, shape (requests,)
        Index into :data:`OUTCOMES`.
    status : int16 array, shape (requests,)
        HTTP status, 0 without one.
    latency_s : float array, shape (requests,)
        Last byte of the answer - request sent.
    first_s : float array, shape (requests,)
        First byte of the answer - request sent; NaN without an answer.
    asked_s : float array, shape (requests,)
        Delay the request asked its backend for.
    streamed : bool array, shape (requests,)
    chunk_delay_s : float array, shape (streamed tokens,)
        Token received - token sent by the backend; both clocks are the machine's monotonic one.
    duration_s : float
        From the first request to the last answer.
    tokens : int
        Streamed tokens received, all in place.
    notes : tuple of str
        The first few answers that were not right: name, outcome, status and what was wrong.
    """

    outcome: NDArray[np.int8]
    status: NDArray[np.int16]
    latency_s: NDArray[np.float64]
    first_s: NDArray[np.float64]
    asked_s: NDArray[np.float64]
    streamed: NDArray[np.bool_]
    chunk_delay_s: NDArray[np.float64]
    duration_s: float
    tokens: int
    notes: tuple[str, ...]

    def count(self, outcome: int) -> int:
        """Return how many requests ended so."""
        return int(np.count_nonzero(self.outcome == outcome))

    @property
    def right(self) -> int:
        """Return how many requests were answered right."""
        return self.count(RIGHT)

    @property
    def requests_per_s(self) -> float:
        """Return requests answered right per second."""
        return self.right / self.duration_s

    @property
    def chunks_per_s(self) -> float:
        """Return streamed tokens received in place per second."""
        return self.tokens / self.duration_s

    @property
    def overhead_s(self) -> NDArray[np.float64]:
        """Return the latency of the right answers beyond the delay that was asked for, in s."""
        kept = self.outcome == RIGHT
        return (self.latency_s - self.asked_s)[kept]


def offer(port: int, load: Load) -> LoadResult:
    """Send a load to the server at a loopback port and return what became of it.

    Raises
    ------
    WavetankError
        If nothing listens there, at the start or later.
    """
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        return runner.run(offer_async(port, load))


async def offer_async(port: int, load: Load) -> LoadResult:
    """Do as :func:`offer`, within a running loop."""
    return await _Offer(port, load).run()


@dataclass(slots=True)
class _Request:
    name: str
    tokens: int
    streamed: bool
    asked_s: float
    wire: bytes
    leaves_s: float
    leaves_at: int
    slow: bool


class _Offer:
    """One load under way: what is left to send, and what came back."""

    def __init__(self, port: int, load: Load) -> None:
        self.port, self.load = port, load
        self.loop = asyncio.get_running_loop()
        self.rows: list[tuple[int, int, float, float, float, bool]] = []
        self.chunk_delay_ns: list[int] = []
        self.notes: list[str] = []
        self.tokens = 0
        self._left = self._requests()
        self._open = load.clients
        self._all_done = self.loop.create_future()

    async def run(self) -> LoadResult:
        clients = [_Client(self) for _ in range(self.load.clients)]
        self.start_s = time.perf_counter()
        # Clients begin one after the other over the mean delay: together they would stay together for ever.
        pause_s = self.load.delay_s / self.load.clients
        starts = [self.loop.call_later(i * pause_s, client.next) for i, client in enumerate(clients)]
        watch = self.loop.create_task(self._watch(clients))
        try:
            await self._all_done
        finally:
            watch.cancel()
            for start, client in zip(starts, clients, strict=True):
                start.cancel()
                client.close()
        duration_s = time.perf_counter() - self.start_s
        outcome, status, latency_s, first_s, asked_s, streamed = zip(*self.rows, strict=True)
        return LoadResult(
            outcome=np.array(outcome, np.int8),
            status=np.array(status, np.int16),
            latency_s=np.array(latency_s),
            first_s=np.array(first_s),
            asked_s=np.array(asked_s),
            streamed=np.array(streamed),
            chunk_delay_s=np.array(self.chunk_delay_ns) / _NS_PER_S,
            duration_s=duration_s,
            tokens=self.tokens,
            notes=tuple(self.notes),
        )

    def _requests(self) -> Iterator[_Request]:
        load, rng = self.load, random_stream(self.load.seed, "load", self.load.name)
        number = 0
        while not load.requests or number < load.requests:
            batch = min(256, load.requests - number) if load.requests else 256
            tokens = rng.integers(load.tokens[0], load.tokens[1], batch, endpoint=True).tolist()
            streamed = (rng.random(batch) < load.streamed_share).tolist()
            delays = (load.delay_s * rng.uniform(0.5, 1.5, batch)).round(6).tolist()
            slow = (rng.random(batch) < load.slow_share).tolist() if load.slow_share else [False] * batch
            for i in range(batch):
                name = f"{load.name}{number}"
                if slow[i]:
                    yield self._request(name, _SLOW_TOKENS, True, 0.0, _SLOW_TOKEN_BYTES, number % 2 == 0)
                else:
                    request = self._request(name, tokens[i], streamed[i], delays[i])
                    if load.leaving_share and rng.random() < load.leaving_share:
                        self._make_leave(request, rng)
                    yield request
                number += 1

    def _make_leave(self, request: _Request, rng: np.random.Generator) -> None:
        """Draw when the client of a request leaves."""
        kind = rng.integers(3)
        ends_s = request.asked_s + (request.tokens * self.load.gap_s if request.streamed else 0.0)
        if kind == 0:
            request.leaves_s = ends_s * rng.random()
        elif kind == 1:
            request.leaves_s = max(ends_s + _ABOUT_S * rng.uniform(-1.0, 1.0), 0.0)
        else:
            request.leaves_at = int(rng.integers(1, request.tokens, endpoint=True))

    def _request(
        self, name: str, tokens: int, streamed: bool, delay_s: float, token_bytes: int = 0, leaves: bool = False
    ) -> _Request:
        gap_s = 0.0 if token_bytes else self.load.gap_s
        text = prompt(name, delay_s, gap_s, self.load.prompt_bytes, token_bytes)
        body = (
            f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":{tokens},'
            f'"stream":{"true" if streamed else "false"}}}'
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer none\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        return _Request(
            name, tokens, streamed, delay_s, head + body, _SLOW_S if leaves else math.inf, 0, token_bytes > 0
        )

    def next_request(self) -> _Request | None:
        load = self.load
        if load.duration_s and time.perf_counter() - self.start_s > load.duration_s:
            return None
        return next(self._left, None)

    def ended(self, client: _Client, outcome: int, why: str) -> int:
        request = client.request
        now = time.perf_counter()
        self.rows.append(
            (
                outcome,
                client.status,
                now - client.sent_s,
                client.first_s - client.sent_s,
                request.asked_s,
                request.streamed,
            )
        )
        # Clean failures are many when backends die, and must not take the room of what is wrong.
        if outcome not in (RIGHT, LEFT) and len(self.notes) < (20 if outcome in (FAILED, BROKEN) else 100):
            self.notes.append(f"{request.name}: {OUTCOMES[outcome]}, status {client.status}, {why}")
        return len(self.rows) - 1

    def left(self) -> None:
        self._open -= 1
        if self._open == 0 and not self._all_done.done():
            self._all_done.set_result(None)

    def gone(self, error: OSError) -> None:
        if not self._all_done.done():
            self._all_done.set_exception(
                WavetankError(f"The server under load does not take connections: {error}", given=self.port)
            )

    async def _watch(self, clients: list[_Client]) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            late_s = time.perf_counter() - self.load.timeout_s
            for client in clients:
                if client.waiting and client.sent_s < late_s:
                    client.end(HUNG, f"no end of the answer in {self.load.timeout_s:g} s", keep=False)


class _Client(asyncio.Protocol):
    """One client: its connection, the request it waits for, and a parser for the answer."""

    def __init__(self, offer: _Offer) -> None:
        self._offer = offer
        self._transport: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._paused: asyncio.TimerHandle | None = None
        self.waiting = False
        self.request: _Request

    # The connection

    def next(self) -> None:
        """Send the next request, or leave when there is none."""
        request = self._offer.next_request()
        if request is None:
            self.close()
            self._offer.left()
            return
        self.request = request
        if request.slow and self._transport is not None:
            # Its connection has a smaller buffer.
            self._drop()
        if self._transport is None or self._transport.is_closing():
            self._connecting = self._offer.loop.create_task(self._connect())
        else:
            self._send()

    async def _connect(self) -> None:
        try:
            if self.request.slow:
                small = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                small.setblocking(False)
                small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
                await self._offer.loop.sock_connect(small, ("127.0.0.1", self._offer.port))
                await self._offer.loop.create_connection(lambda: self, sock=small)
            else:
                await self._offer.loop.create_connection(lambda: self, "127.0.0.1", self._offer.port)
        except OSError as error:
            self._offer.gone(error)
            return
        self._send()

    def _send(self) -> None:
        self.waiting = True
        self.status = 0
        self._buffer = b""
        self._events = self._cut = b""
        self._parse = self._head
        self._place = 0
        self._finished = False
        self._text: list[bytes] = []
        self._left = 0
        self._keep = True
        self.first_s = math.nan
        self.sent_s = time.perf_counter()
        self._transport.write(self.request.wire)
        if self.request.leaves_s < math.inf:
            self._leaving = self._offer.loop.call_later(self.request.leaves_s, self._leave)

    def _leave(self) -> None:
        if self.waiting:
            self.end(LEFT, keep=False)

    def _read_on(self) -> None:
        self._paused = None
        if self._transport is not None:
            self._transport.resume_reading()

    def _drop(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def close(self) -> None:
        """Close the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._forget_timers()
        self._drop()

    def _forget_timers(self) -> None:
        for timer in (self._leaving, self._paused):
            if timer is not None:
                timer.cancel()
        self._leaving = self._paused = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self.waiting:
            return
        if self._parse == self._until_close:
            self._whole()
        elif self.status == 0:
            self.end(LOST, f"the connection closed without an answer ({error})", keep=False)
        else:
            self.end(FAILED if self.status >= 400 else BROKEN, "the connection closed inside the answer", keep=False)

    def data_received(self, data: bytes) -> None:
        if not self.waiting:
            # Bytes that no request asked for: the answer before had a second one behind it.
            self._offer.rows[self._row] = (DOUBLED, *self._offer.rows[self._row][1:])
            self._offer.notes.append(f"{self.request.name}: bytes after the answer: {data[:200]!r}")
            self.close()
            return
        if math.isnan(self.first_s):
            self.first_s = time.perf_counter()
            if self.request.slow:
                self._transport.pause_reading()
                if self.request.leaves_s == math.inf:
                    self._paused = self._offer.loop.call_later(_SLOW_S, self._read_on)
            if self.request.leaves_at and not self.request.streamed:
                self._leave()
                return
        try:
            self._parse(data)
        except (ValueError, IndexError, msgspec.MsgspecError) as error:
            if self.waiting:
                self.end(CROSSED, f"not to be read: {error!r}, {data[:200]!r}", keep=False)

    def end(self, outcome: int, why: str = "", *, keep: bool) -> None:
        """Record the answer and go on to the next request."""
        self.waiting = False
        self._forget_timers()
        self._row = self._offer.ended(self, outcome, why)
        if not keep or self.request.slow:
            self._drop()
        # Not from here: a server that answers at once would recurse.
        self._offer.loop.call_soon(self.next)

    # The parser: one method per state, each takes the bytes that follow

    def _head(self, data: bytes) -> None:
        buffer = self._buffer + data
        head_end = buffer.find(b"\r\n\r\n")
        if head_end < 0:
            self._buffer = buffer
            return
        self._buffer = b""
        self.status = int(buffer[9:12])
        head = buffer[:head_end].lower()
        self._keep = b"\r\nconnection: close" not in head
        if b"\r\ntransfer-encoding: chunked" in head:
            self._parse = self._chunks
        elif (at := head.find(b"\r\ncontent-length:")) >= 0:
            self._left = int(head[at + 17 :].split(b"\r\n", 1)[0])
            self._parse = self._counted
        else:
            self._keep = False
            self._parse = self._until_close
        rest = buffer[head_end + 4 :]
        if rest or self._left == 0:
            self._parse(rest)

    def _counted(self, data: bytes) -> None:
        if len(data) > self._left:
            self.end(DOUBLED, f"bytes after the answer: {data[self._left :][:200]!r}", keep=False)
            return
        self._left -= len(data)
        self._body(data)
        if self.waiting and self._left == 0:
            self._whole()

    def _until_close(self, data: bytes) -> None:
        self._body(data)

    def _chunks(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while self.waiting and (line_end := buffer.find(b"\r\n", at)) >= 0:
            size = int(buffer[at:line_end].split(b";", 1)[0], 16)
            start = line_end + 2
            stop = start + size
            if len(buffer) < stop + 2:
                break
            if buffer[stop : stop + 2] != b"\r\n":
                raise ValueError("a chunk without its end")
            at = stop + 2
            if size:
                self._body(buffer[start:stop])
            elif at < len(buffer):
                self.end(DOUBLED, f"bytes after the answer: {buffer[at:][:200]!r}", keep=False)
            else:
                self._whole()
        self._buffer = buffer[at:]

    def _body(self, data: bytes) -> None:
        if not self.request.streamed or self.status >= 400:
            self._text.append(data)
            return
        now_ns = time.perf_counter_ns()
        *events, self._events = (self._events + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if self.waiting:
                self._event(event, now_ns)

    def _event(self, event: bytes, now_ns: int) -> None:
        if event.startswith(b":") or not event:
            return
        if not event.startswith(b"data:"):
            raise ValueError("no event of a stream")
        data = event[5:].strip()
        if data == b"[DONE]":
            if self._cut:
                raise ValueError(f"what is no event stands before the end: {self._cut[:200]!r}")
            if self._finished:
                self.end(DOUBLED, "a second end of the stream", keep=False)
            self._finished = True
            return
        try:
            answer = _decode(data)
        except msgspec.MsgspecError:
            if self._cut:
                raise
            # A backend that died in the middle of an event leaves half of it before the router's error event.
            self._cut = data
            return
        if self._cut and answer.error is None:
            raise ValueError(f"what is no event stands before another: {self._cut[:200]!r}")
        if answer.error is not None:
            self.end(BROKEN, f"an error event: {data[:200]!r}", keep=False)
            return
        for choice in answer.choices:
            if choice.delta.content:
                self._take(choice.delta.content, now_ns)

    def _take(self, text: str, now_ns: int) -> None:
        """Hold tokens against the request: whose they are, and whether they come in order."""
        for part in text.split(";")[:-1]:
            name, number, sent_ns = part.split(":")
            place = int(number)
            if name != self.request.name or place >= self.request.tokens:
                self.end(CROSSED, f"a token of another request: {part}", keep=False)
                return
            if place != self._place:
                self.end(DOUBLED if place < self._place else LOST, f"token {self._place} is {place}", keep=False)
                return
            self._place += 1
            if self._place == self.request.leaves_at and self.request.streamed:
                self._leave()
                return
            if now_ns:
                self._offer.chunk_delay_ns.append(now_ns - int(sent_ns))
                self._offer.tokens += 1

    def _whole(self) -> None:
        """Judge an answer that ended in order."""
        if self.status >= 400:
            self.end(FAILED, f"{b''.join(self._text)[:200]!r}", keep=self._keep)
            return
        if not self.request.streamed:
            text = b"".join(self._text)
            try:
                answer = _decode(text) if text else _Answer()
            except msgspec.MsgspecError as error:
                # Without a length, half an answer is only seen by its being half a JSON object.
                cut = self._parse == self._until_close
                self.end(BROKEN if cut else CROSSED, f"no JSON: {error}, {text[:200]!r}", keep=False)
                return
            for choice in answer.choices:
                self._take(choice.message.content or "", 0)
                if not self.waiting:
                    return
            whole = self._place == self.request.tokens
        else:
            if self._cut:
                self.end(CROSSED, f"not to be read: {self._cut[:200]!r}", keep=False)
                return
            whole = self._place == self.request.tokens and self._finished
        if whole:
            self.end(RIGHT, keep=self._keep)
        elif self.request.streamed and not self._finished and not self._keep:
            self.end(BROKEN, "the stream closed without [DONE]", keep=False)
        else:
            self.end(LOST, f"{self._place} of {self.request.tokens} tokens, and looked whole", keep=False)
