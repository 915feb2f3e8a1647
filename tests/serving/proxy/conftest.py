"""Loopback servers that do what a test says, and a router in this process in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("aiohttp")

from wavetank.serving.proxy.configuration import make_configuration
from wavetank.serving.proxy.router import Router

# Far beyond what any test takes: a policy may have to be compiled first, on a machine that has much else to do.
DEADLINE_S = 120.0


class Asked(NamedTuple):
    """A request as a backend received it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """The only header of a name."""
        found = [value for key, value in self.headers if key.lower() == name]
        assert len(found) < 2
        return found[0] if found else None


Behaviour = Callable[["FakeBackend", Asked, asyncio.StreamWriter], Awaitable[None]]


def plain(text: str = "hello", *, prompt_tokens: int = 10, completion_tokens: int = 3, model: str = "m") -> bytes:
    """Return a whole answer of a well-behaved server."""
    body = json.dumps(
        {
            "model": model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
        }
    ).encode()
    return head(200, "application/json", len(body)) + body


def head(status: int, kind: str, length: int | None = None, more: str = "") -> bytes:
    """Return the head of an answer; without a length it is chunked."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{framing}\r\n{more}\r\n".encode()


def event(text: str) -> bytes:
    """Return one event of a stream."""
    choice = {"index": 0, "delta": {"content": text}}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    """Return data in chunked framing."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def well_behaved(backend: FakeBackend, asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Answer as an OpenAI server does: the prompt back, in eight tokens where it is streamed."""
    request = asked.json
    text = request["messages"][-1]["content"] if "messages" in request else str(request["prompt"])
    if not request.get("stream"):
        writer.write(plain(text))
        return
    writer.write(head(200, "text/event-stream") + chunk(event("")))
    for number in range(8):
        await asyncio.sleep(backend.pause_s)
        writer.write(chunk(event(f"{text}/{number}")))
    if request.get("stream_options", {}).get("include_usage"):
        usage = {"choices": [], "usage": {"prompt_tokens": 21, "completion_tokens": 8}}
        writer.write(chunk(b"data: " + json.dumps(usage).encode() + b"\n\n"))
    writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


class FakeBackend:
    """A server on a port of its own.

    Attributes
    ----------
    behaviour
        What it does with a completion; may be changed at any time.
    parents
        Of the models that are adapters: what they adapt.
    asked
        The completions it was asked for.
    pages
        The other pages it was asked for.
    tls, prefix
        How it listens, and what stands before its paths.
    left
        Connections that the other side closed in the middle of an answer.
    metrics_page
        What /metrics shows; 404 while None.
    health
        Status of /health.
    """

    def __init__(self, behaviour: Behaviour = well_behaved, *, models: tuple[str, ...] = ("m",)) -> None:
        self.behaviour = behaviour
        self.models = models
        self.parents: dict[str, str] = {}
        self.asked: list[Asked] = []
        self.pages: list[Asked] = []
        self.left = 0
        self.answering = 0
        self.connections = 0
        self.metrics_page: bytes | None = None
        self.looks = 0
        self.health = 200
        self.pause_s = 0.0
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self.prefix = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Its address."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}{self.prefix}"

    async def start(self) -> None:
        """Listen; on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Go away with all connections."""
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                asked = await self._read(reader)
                await self._answer(asked, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Asked:
        raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = raw[0].split(" ")
        headers = [(line.partition(": ")[0], line.partition(": ")[2]) for line in raw[1:-2]]
        lengths = [int(value) for name, value in headers if name.lower() == "content-length"]
        return Asked(method, path, headers, await reader.readexactly(lengths[0]) if lengths else b"")

    def _entries(self) -> list[dict[str, str | None]]:
        return [
            {"id": name, "parent": self.parents.get(name)} if self.parents else {"id": name} for name in self.models
        ]

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if asked.method == "GET":
            status, body = 404, b""
            self.pages.append(asked)
            if asked.path == self.prefix + "/health":
                status = self.health
            elif asked.path == self.prefix + "/v1/models":
                status, body = 200, json.dumps({"data": self._entries()}).encode()
            elif asked.path == self.prefix + "/metrics" and self.metrics_page is not None:
                self.looks += 1
                status, body = 200, self.metrics_page
            writer.write(head(status, "text/plain", len(body)) + body)
            return
        self.asked.append(asked)
        self.answering += 1
        doing = asyncio.ensure_future(self.behaviour(self, asked, writer))
        # Nobody sends a second request before the first is answered: what can be read is the end.
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                self.left += 1
                raise ConnectionResetError
            doing.result()
        finally:
            self.answering -= 1
            for task in (doing, gone):
                task.cancel()
            await asyncio.gather(doing, gone, return_exceptions=True)


@contextlib.asynccontextmanager
async def backends(count: int, behaviour: Behaviour = well_behaved, **more: Any) -> AsyncIterator[list[FakeBackend]]:
    """Start equal backends."""
    made = [FakeBackend(behaviour, **more) for _ in range(count)]
    for each in made:
        await each.start()
    try:
        yield made
    finally:
        for each in made:
            await each.kill()


@contextlib.asynccontextmanager
async def routing(
    *servers: FakeBackend,
    policy: str = "round-robin",
    parameters: dict[str, Any] | None = None,
    backends: dict[str, dict[str, Any]] | None = None,
    aliases: dict[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Router]:
    """Start a router in front of backends; it is quick to notice things.  ``backends`` has more settings by address."""
    quick = {
        "port": 0, "refresh_s": 0.01, "probe_every_s": 0.05, "probe_s": 1.0, "connect_s": 1.0, "first_byte_s": 5.0,
        "idle_s": 5.0, "eject_s": 0.2, "log": "none",
    }  # fmt: skip
    made = make_configuration(
        policy=policy,
        backends=[server.url for server in servers],
        parameters=parameters or {},
        settings={**quick, **settings},
    )
    more = backends or {}
    listed = tuple(dataclasses.replace(each, **more.get(each.url, {})) for each in made.backends)
    router = Router(dataclasses.replace(made, backends=listed, aliases=aliases or {}))
    await router.start()
    try:
        yield router
    finally:
        await router.stop()


class Authority:
    """Somebody who signs certificates, into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self._signed(name, self._key, 0, 30, names=(), authority=True))

    def issue(self, file: str, *names: str, days: tuple[float, float] = (-1, 30), key: Any = None) -> tuple[str, str]:
        """Write a certificate for host names or addresses, and its key; returns both paths."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = key or ec.generate_private_key(ec.SECP256R1())
        cert_file, key_file = self._folder / f"{file}.crt", self._folder / f"{file}.key"
        cert_file.write_bytes(self._signed(file, key, *days, names=names))
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        key_file.write_bytes(key.private_bytes(*form))
        return str(cert_file), str(key_file)

    def _signed(
        self, name: str, key: Any, begin: float, end: float, *, names: tuple[str, ...], authority: bool = False
    ) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.x509.oid import NameOID

        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)])
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=min(begin, end - 1)))
            .not_valid_after(now + datetime.timedelta(days=end))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        found: list[Any] = []
        for each in names:
            try:
                found.append(x509.IPAddress(ipaddress.ip_address(each)))
            except ValueError:
                found.append(x509.DNSName(each))
        if found:
            made = made.add_extension(x509.SubjectAlternativeName(found), critical=False)
        return bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


async def until(true: Callable[[], Any]) -> None:
    """Wait until something is so."""
    while not true():
        await asyncio.sleep(0.002)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a test's coroutine, for two minutes at most; tasks it leaves behind are a failure."""

    async def bounded() -> Any:
        async with asyncio.timeout(DEADLINE_S):
            found = await main
        await asyncio.sleep(0)
        for _ in range(200):
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            if not left:
                break
            await asyncio.sleep(0.01)
        assert not left, left
        return found

    return asyncio.run(bounded())


def ask(text: str = "hello", *, stream: bool = False, model: str = "m", **more: Any) -> dict[str, Any]:
    """Return the body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream, **more}


@pytest.fixture
def live() -> SimpleNamespace:
    """All of the above."""
    return SimpleNamespace(
        ask=ask, backends=backends, chunk=chunk, event=event, head=head, plain=plain, routing=routing, run=run,
        until=until, well_behaved=well_behaved, FakeBackend=FakeBackend, Authority=Authority,
    )  # fmt: skip
