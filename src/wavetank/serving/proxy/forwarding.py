"""Heads that are passed on: which header lines go to a backend, and which of its answer go to the client.

Source: RFC 9110, section 7.6, on what a proxy does not forward.
"""

from __future__ import annotations

from multidict import CIMultiDict

from wavetank.serving.proxy.backend_exchange import BackendExchange
from wavetank.serving.proxy.client_connection import ClientRequest

# Of one connection, not of the message (RFC 9110, 7.6.1), or made anew for the next one.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
_NOT_TO_BACKEND = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"accept-encoding", b"x-request-id"}
_NOT_TO_CLIENT = _HOP_BY_HOP | {b"content-length", b"server", b"x-request-id"}


def forwarded(request: ClientRequest, length: int) -> tuple[bytes, bytes]:
    """Return the request line, and the header lines that go to a backend."""
    path = request.raw_path.encode("utf-8", "surrogateescape")
    lines = [b"Content-Length: %d\r\nX-Request-Id: %b\r\n" % (length, request.request_id)]
    dropped: frozenset[bytes] | set[bytes] = _NOT_TO_BACKEND
    raw = request.raw_headers
    for name, value in raw:
        if name.lower() == b"connection":
            dropped = dropped | {each.strip().lower() for each in value.split(b",")}
    for name, value in raw:
        if name.lower() not in dropped:
            lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"\r\n")
    return b"POST %b HTTP/1.1\r\n" % path, b"".join(lines)


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
