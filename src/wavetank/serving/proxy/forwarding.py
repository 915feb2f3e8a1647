"""Heads that are passed on: which header lines go to a backend, and which of its answer go to the client.

Every request says in ``Via`` which routers it has passed, so that one that comes back is known.

Source: RFC 9110, section 7.6, on what a proxy does not forward, and on ``Via``.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from multidict import CIMultiDict

from wavetank.serving.proxy.backend_exchange import BackendExchange
from wavetank.serving.proxy.backends import Backend
from wavetank.serving.proxy.client_connection import ClientRequest

# Of one connection, not of the message (RFC 9110, 7.6.1), or made anew for the next one.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
_NOT_TO_BACKEND = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"accept-encoding", b"x-request-id"}
_TRACE = frozenset((b"traceparent", b"tracestate"))
# Whatever a client may show its key in.
_CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key"))
_NOT_TO_CLIENT = _HOP_BY_HOP | {b"content-length", b"server", b"x-request-id"}


class Forwarded(NamedTuple):
    """The head of a request, without what differs from backend to backend.

    Attributes
    ----------
    path : bytes
        With the query.
    credentials : bytes
        Header lines by which the client shows who it is; empty where the router itself asks for keys.
    lines : bytes
        All other header lines, and the empty line behind them.
    """

    path: bytes
    credentials: bytes
    lines: bytes

    def to(self, backend: Backend) -> bytes:
        """Return the head for a backend: with its own key where it has one, never with a key of the router's."""
        return b"POST %b%b HTTP/1.1\r\nHost: %b\r\n%b%b" % (
            backend.prefix, self.path, backend.host_header, backend.credentials or self.credentials, self.lines,
        )  # fmt: skip


def new_name() -> bytes:
    """Return a name by which a router knows what has passed through it."""
    return b"wavetank-" + secrets.token_hex(8).encode()


def forwarded(request: ClientRequest, length: int, *, name: bytes, keyless: bool = True) -> Forwarded:
    """Return the head of a request as it goes to backends.

    Parameters
    ----------
    request : ClientRequest
    length : int
        Of the body.
    name : bytes
        By which the router knows what has passed through it.
    keyless : bool
        Whether the router asks for no key of its own, so that a key may be the backend's.
    """
    path = request.raw_path.encode("utf-8", "surrogateescape")
    lines = [b"Content-Length: %d\r\nX-Request-Id: %b\r\nVia: 1.1 %b\r\n" % (length, request.request_id, name)]
    credentials = b""
    dropped: frozenset[bytes] | set[bytes] = _NOT_TO_BACKEND
    if request.trace is not None and (own := request.trace.lines):
        lines.append(own)
        dropped = dropped | _TRACE
    named = [(name.lower(), name, value) for name, value in request.raw_headers]
    for lower, _, value in named:
        if lower == b"connection":
            dropped = dropped | {each.strip().lower() for each in value.split(b",")}
    for lower, name, value in named:
        if lower in dropped:
            continue
        if lower in _CREDENTIALS:
            if keyless:
                credentials += b"%b: %b\r\n" % (name, value)
        else:
            lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"\r\n")
    return Forwarded(path, credentials, b"".join(lines))


def headers_of(exchange: BackendExchange) -> CIMultiDict[str]:
    """Return the headers of an answer that go to the client."""
    dropped: frozenset[bytes] | set[bytes] = _NOT_TO_CLIENT
    for name, value in exchange.headers:
        if name == b"connection":
            dropped = dropped | {each.strip().lower() for each in value.split(b",")}
    found = CIMultiDict(
        (name.decode("ascii"), _decoded(value)) for name, value in exchange.headers if name not in dropped
    )
    found.setdefault("Content-Type", "application/octet-stream")
    return found


def _decoded(value: bytes) -> str:
    # Header values go out as UTF-8.
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
