"""Connections of clients: requests that carry an id, framing errors in OpenAI's form, ends that nobody can mistake.

Everything here is what the HTTP server of aiohttp leaves to its user.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wavetank.errors import missing_extra

try:
    from aiohttp import web
except ImportError:
    raise missing_extra("aiohttp", "serving", needed_for="The router") from None

from wavetank.serving.proxy.endpoints import Endpoint
from wavetank.serving.proxy.refusals import error_body

if TYPE_CHECKING:
    from wavetank.serving.proxy.access import Client
    from wavetank.serving.proxy.tracing import RequestTrace

# No version: it helps nobody but those who look for holes.
SERVER = "wavetank"
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


# Randomness of the system for the next ids; asking for it every time would cost a call of the system per request.
_random = bytearray()


def _random_id() -> bytes:
    if not _random:
        _random.extend(secrets.token_bytes(4096))
    found = bytes(_random[-16:])
    del _random[-16:]
    return found.hex().encode()


class ClientRequest(web.BaseRequest):
    """A request with what the router knows of it.

    Attributes
    ----------
    deaths : int
        How often its connection to a backend died without a byte.
    answer : StreamResponse or None
        The one that has begun.
    event_ended : bool
        Whether its last piece ended an event.
    client : Client or None
        Who sends it; None where nobody needs a key.
    endpoint : Endpoint
        Which path it asks for.
    trace : RequestTrace or None
        Its span, where traces are wanted.
    """

    deaths: int = 0
    answer: web.StreamResponse | None = None
    event_ended: bool = True
    client: Client | None = None
    endpoint: Endpoint = Endpoint()
    trace: RequestTrace | None = None
    _id: bytes = b""

    @property
    def request_id(self) -> bytes:
        """The client's own ``X-Request-Id`` where it is a word of printable characters, else a random one."""
        if not self._id:
            given = self.headers.get("X-Request-Id", "").encode("utf-8", "surrogateescape")
            self._id = given if _REQUEST_ID.fullmatch(given) else _random_id()
        return self._id

    @property
    def path_only(self) -> str:
        """The path for a log, at most 200 characters: what stands behind a question mark may be a secret."""
        return ascii(self.raw_path.partition("?")[0][:200])

    @property
    def says(self) -> str:
        """The request's id and the name of its key, for a log."""
        key = f" key={self.client.name}" if self.client is not None else ""
        return f"id={self.request_id.decode()}{key}"


class _Handler(web.RequestHandler):
    """A client's connection: errors of its framing have OpenAI's form, and a client that reads nothing is left.

    A client that takes no byte for ``write_s`` is found by the system, which knows what the other side acknowledged:
    neither buffers nor a backend's batch are held for it for ever.
    """

    __slots__ = ("__weakref__", "lost", "made", "write_s")
    lost: Callable[[object], None]
    made: Callable[[Any], None] | None
    write_s: float

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.made is not None:
            self.made(self)
        own = transport.get_extra_info("socket")
        if own is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(int(self.write_s * 1000), 1))

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.lost(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status < 500:
            # The library's words hold the bytes that it could not read: a key, perhaps.
            self.logger.info("%s sent what is not valid HTTP (%s)", request.remote, type(exc).__name__)
        else:
            self.log_exception("a defect of the HTTP layer, at a request from %s", request.remote, exc_info=exc)
        if request.writer.output_size > 0:
            # The connection ends without the answer's end.
            raise ConnectionError("The answer has begun.")
        kind = "invalid_request_error" if status < 500 else "server_error"
        says = (message or "The request is not valid HTTP.") if status < 500 else "The router failed."
        response = web.Response(
            status=status,
            body=error_body(status, says.strip().partition("\n")[0], kind, "invalid_http" if status < 500 else None),
            headers={"Content-Type": "application/json", "Server": SERVER},
        )
        response.force_close()
        return response


class ClientServer(web.Server):
    """Makes the connections of clients."""

    def __init__(
        self,
        handler: Any,
        *,
        write_s: float,
        lost: Callable[[object], None],
        made: Callable[[Any], None] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(handler, **more)
        self._write_s, self._lost = write_s, lost
        self.made = made

    def configure(self, *, write_s: float, keep_alive_s: float) -> None:
        """Set the times of connections that come from now on."""
        self._write_s = write_s
        self._kwargs["keepalive_timeout"] = keep_alive_s

    def __call__(self) -> web.RequestHandler:
        made = _Handler(self, loop=self._loop, **self._kwargs)
        made.write_s, made.lost, made.made = self._write_s, self._lost, self.made
        return made


class RefusedConnection(asyncio.Protocol):
    """A connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


def sign(response: web.StreamResponse, request: ClientRequest) -> None:
    """Put on an answer who gives it, and to which request."""
    response.headers["Server"] = SERVER
    response.headers["X-Request-Id"] = request.request_id.decode("ascii")


def reset(transport: asyncio.Transport | None) -> None:
    """Close a connection so that the other side sees an error and no orderly end."""
    if transport is None:
        return
    own = transport.get_extra_info("socket")
    if own is not None:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
