"""A model server without a model: answers OpenAI chat requests at once, with tokens that can be checked.

It takes the place of the engines when a proxy is measured, so that what is measured is the proxy.  Every token names
the request it belongs to and its place (:func:`token`), so that a client sees a lost, doubled or cross-wired answer.
A request asks for its own delays in its first words (:func:`prompt`); one server serves all cases of a study.

Run as a process of its own: ``python -m wavetank.serving.proxy.null_backend --listeners 4``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import msgspec

from wavetank.errors import WavetankError

MODEL = "null-model"
MAX_TOKENS = 1_000_000
MAX_TOKEN_BYTES = 1_000_000
_HEAD_LIMIT_BYTES = 65_536
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class _Message(msgspec.Struct):
    content: str


class _Asked(msgspec.Struct):
    messages: list[_Message]
    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


_decode = msgspec.json.Decoder(_Asked).decode


def prompt(request: str, delay_s: float = 0.0, gap_s: float = 0.0, prompt_bytes: int = 0, token_bytes: int = 0) -> str:
    """Return the text of a request: its name, the delays it asks for, and words up to ``prompt_bytes``.

    Parameters
    ----------
    request : str
        Name without blanks, colons or semicolons; unique among all requests.
    delay_s : float
        Until the first byte of the answer.
    gap_s : float
        Between two tokens of a stream; 0: as fast as they can be sent, every token in a write of its own.
    prompt_bytes : int
        Least length of the text.
    token_bytes : int
        Bytes that every token of a stream carries on top, so that answers can be longer than buffers on their way.
    """
    text = f"{request} {delay_s:.6f} {gap_s:.6f} {token_bytes} "
    return (
        text
        + ("what is the depth of a tank " * (max(prompt_bytes - len(text), 0) // 28 + 1))[
            : max(prompt_bytes - len(text), 0)
        ]
    )


def token(request: str, number: int, sent_ns: int = 0) -> str:
    """Return the text of a request's token: whose it is, which one, and when it was sent by the monotonic clock."""
    return f"{request}:{number}:{sent_ns};"


class Wanted(NamedTuple):
    """What a request asks for: its name, the two delays, tokens, whether to stream, and bytes on top of each token."""

    name: str
    delay_s: float
    gap_s: float
    tokens: int
    stream: bool
    token_bytes: int


def asked(body: bytes) -> Wanted:
    """Return what a request's body asks for.

    Raises
    ------
    ValueError
        If the body is not a chat request made with :func:`prompt`.
    """
    try:
        request = _decode(body)
        name, delay, gap, more = request.messages[-1].content.split(" ", 4)[:4]
        tokens = request.max_tokens or request.max_completion_tokens or 16
        return Wanted(
            name, float(delay), float(gap), min(max(tokens, 1), MAX_TOKENS), request.stream,
            min(max(int(more), 0), MAX_TOKEN_BYTES),
        )  # fmt: skip
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise ValueError(f"This is no request for a null backend: {error}") from error


def whole_answer(request: str, tokens: int) -> bytes:
    """Return a plain answer: headers and body."""
    text = "".join([token(request, number) for number in range(tokens)])
    body = (
        f'{{"id":"chatcmpl-{request}","object":"chat.completion","created":1700000000,"model":"{MODEL}",'
        f'"choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"logprobs":null,'
        f'"finish_reason":"stop"}}],"usage":{{"prompt_tokens":9,"completion_tokens":{tokens},'
        f'"total_tokens":{tokens + 9}}}}}'
    ).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def event(request: str, number: int, tokens: int, sent_ns: int, token_bytes: int = 0) -> bytes:
    """Return one token of a stream as a chunk of HTTP/1.1; the last one carries the end of the stream too."""
    last = number == tokens - 1
    reason = '"stop"' if last else "null"
    role = '"role":"assistant",' if number == 0 else ""
    more = f',"more":"{"x" * token_bytes}"' if token_bytes else ""
    data = (
        f'data: {{"id":"chatcmpl-{request}","object":"chat.completion.chunk","created":1700000000,"model":"{MODEL}",'
        f'"choices":[{{"index":0,"delta":{{{role}"content":"{token(request, number, sent_ns)}"}},"logprobs":null,'
        f'"finish_reason":{reason}}}]{more}}}\n\n'
    ).encode()
    chunk = b"%x\r\n%b\r\n" % (len(data), data)
    return chunk + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" if last else chunk


def _plain(status: bytes, body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (status, kind, len(body), body)


_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "wavetank"}]}).encode()
_PAGES = {
    b"/health": _plain(b"200 OK", b"{}"),
    b"/v1/models": _plain(b"200 OK", _MODELS),
}
_NOT_FOUND = _plain(b"404 Not Found", b'{"error":{"message":"no such page"}}')
_BAD_REQUEST = _plain(b"400 Bad Request", b'{"error":{"message":"not a request for a null backend"}}')


class _Connection(asyncio.Protocol):
    """One connection: requests in, answers out, one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buffer = b""
        self._busy = False
        self._due: asyncio.Handle | None = None
        self._resume: Callable[[], None] | None = None
        self._paused = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._due is not None:
            self._due.cancel()
        self._resume = None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._next_request()

    def _next_request(self) -> None:
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            if len(self._buffer) > _HEAD_LIMIT_BYTES:
                self._transport.abort()
            return
        head = self._buffer[:head_end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if at < 0 and b"\r\ntransfer-encoding:" in head:
            found = _unchunked(self._buffer, head_end + 4)
            if found is None:
                return
            body, stop = found
        else:
            stop = head_end + 4 + length
            if len(self._buffer) < stop:
                return
            body = self._buffer[head_end + 4 : stop]
        path = self._buffer[: self._buffer.find(b"\r\n")].split(b" ")[1].split(b"?")[0]
        self._buffer = self._buffer[stop:]
        self._busy = True
        if not head.startswith(b"post "):
            self._write(_PAGES.get(path, _NOT_FOUND))
            return
        try:
            wanted = asked(body)
        except ValueError:
            self._write(_BAD_REQUEST)
            return
        if not wanted.stream:
            self._after(wanted.delay_s, lambda: self._write(whole_answer(wanted.name, wanted.tokens)))
            return

        def begin() -> None:
            self._transport.write(_STREAM_HEAD)
            self._stream(wanted, 0, self._loop.time())

        self._after(wanted.delay_s, begin)

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        if delay_s > 0:
            self._due = self._loop.call_later(delay_s, call)
        else:
            call()

    def _stream(self, wanted: Wanted, number: int, due_s: float) -> None:
        self._transport.write(event(wanted.name, number, wanted.tokens, time.perf_counter_ns(), wanted.token_bytes))
        number += 1
        if number == wanted.tokens:
            self._done()
            return
        gap_s = wanted.gap_s
        due_s += gap_s

        def go_on() -> None:
            self._stream(wanted, number, due_s)

        if self._paused:
            self._resume = go_on
        elif gap_s > 0:
            # By the clock of the stream, not from now: a late token does not delay the next one.
            self._due = self._loop.call_at(due_s, go_on)
        else:
            # One token of every stream in turn, as an engine that serves them in one batch.
            self._due = self._loop.call_soon(go_on)

    def _write(self, answer: bytes) -> None:
        self._transport.write(answer)
        self._done()

    def _done(self) -> None:
        self._busy = False
        self._due = None
        if self._buffer:
            self._due = self._loop.call_soon(self._next_request)


def _unchunked(buffer: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the body and where it ends, None while it is incomplete."""
    parts: list[bytes] = []
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        size = int(buffer[at:line_end].split(b";")[0], 16)
        start = line_end + 2
        if len(buffer) < start + size + 2:
            return None
        if size == 0:
            return b"".join(parts), start + 2
        parts.append(buffer[start : start + size])
        at = start + size + 2
    return None


async def serve(ports: list[int], ready: Callable[[list[int]], None]) -> None:
    """Serve on loopback until it is cancelled or ended by SIGTERM or SIGINT.

    Parameters
    ----------
    ports : list of int
        0 takes a free one.
    ready : callable
        Called with the ports once all are open.

    Raises
    ------
    WavetankError
        If a port is taken.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    servers = []
    try:
        for port in ports:
            try:
                # A port that another process holds for us (see processes.hold_port) is shared with it.
                server = await loop.create_server(
                    lambda: _Connection(loop), "127.0.0.1", port, backlog=4096, reuse_port=True
                )
            except OSError as error:
                raise WavetankError(f"The null backend cannot listen: {error}", given=port) from error
            servers.append(server)
        ready([server.sockets[0].getsockname()[1] for server in servers])
        await stop.wait()
    finally:
        for server in servers:
            server.close()


@click.command()
@click.option("--listeners", default=1, show_default=True, type=click.IntRange(1, 1000), help="Free ports to serve.")
@click.option("--port", "ports", multiple=True, type=click.IntRange(1, 65535), help="Serve this port; repeatable.")
def command(listeners: int, ports: tuple[int, ...]) -> None:
    """Serve OpenAI chat requests made by wavetank's load generator; prints the ports as one line of JSON."""
    from wavetank.live.loops import fastest_loop

    def say(found: list[int]) -> None:
        sys.stdout.write(json.dumps({"ports": found}) + "\n")
        sys.stdout.flush()

    with asyncio.Runner(loop_factory=fastest_loop) as loop:
        loop.run(serve(list(ports) or [0] * listeners, say))


if __name__ == "__main__":
    command()
