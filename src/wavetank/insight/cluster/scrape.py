"""What an exporter shows, fetched with limits: an address, a deadline for all of it, and a number of bytes.

Nothing is followed: an exporter that sends somewhere else is answered with an error.  The deadline holds for the whole
answer, so that one who sends a byte a second holds nobody up.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from typing import NamedTuple
from urllib.parse import urlsplit

from wavetank.errors import BadValueError, WavetankError
from wavetank.workloads.prometheus import Sample, read_exposition

MOST_BYTES = 16 << 20
_PART_BYTES = 1 << 16
_LONGEST_ADDRESS = 2000


class Target(NamedTuple):
    """An exporter.

    Attributes
    ----------
    node : str
        What it is called.
    scheme, host : str
    port : int
    path : str
    """

    node: str
    scheme: str
    host: str
    port: int
    path: str


class ScrapeError(WavetankError):
    """An exporter that could not be asked, or did not answer as one."""


def target_of(text: str) -> Target:
    """Return the exporter that a user names: ``NODE=http://host:port/path``, or the address alone.

    Parameters
    ----------
    text : str

    Raises
    ------
    BadValueError
        If it is no address of http or https, or has a password.
    """
    node, equals, address = text.partition("=")
    if not equals or "/" in node:
        node, address = "", text
    allowed = "NODE=http://host:port/metrics"
    try:
        parts = urlsplit(address.strip())
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise BadValueError("This is no address.", given=text[:_LONGEST_ADDRESS], allowed=allowed) from error
    # Spaces and line feeds in a path would end the line of the request.
    broken = any(letter <= " " or letter == "\x7f" for letter in address.strip()) or not address.isascii()
    if parts.scheme not in ("http", "https") or not parts.hostname or broken or len(address) > _LONGEST_ADDRESS:
        raise BadValueError("This is no address of an exporter.", given=text[:_LONGEST_ADDRESS], allowed=allowed)
    if parts.username is not None or parts.password is not None:
        raise BadValueError("An address holds no password.", given=parts.hostname, allowed=allowed)
    path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    return Target(node.strip() or f"{parts.hostname}:{port}", parts.scheme, parts.hostname, port, path)


def scrape(target: Target, *, timeout_s: float, most_bytes: int = MOST_BYTES) -> list[Sample]:
    """Return the samples that an exporter shows now.

    Parameters
    ----------
    target : Target
    timeout_s : float
        For all of it.
    most_bytes : int
        Of the answer.

    Raises
    ------
    ScrapeError
        If it does not answer in time, with success, within the bytes, and with a metric.
    BadTraceError
        If the answer is no text of an exporter.
    """
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.host, target.port, timeout=timeout_s)
    late = threading.Event()

    def end(socket_: socket.socket) -> None:
        # A deadline of each read would begin again with each byte.
        late.set()
        with contextlib.suppress(OSError):
            socket_.shutdown(socket.SHUT_RDWR)

    cut = threading.Timer(timeout_s, end)
    cut.daemon = True
    try:
        connection.connect()
        cut.args = (connection.sock,)
        cut.start()
        connection.request("GET", target.path, headers={"Accept": "text/plain;version=0.0.4", "Connection": "close"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ScrapeError("The exporter refuses.", given=f"status {answer.status}", where=target.node)
        found = bytearray()
        while part := answer.read1(_PART_BYTES):
            found += part
            if len(found) > most_bytes:
                raise ScrapeError("The exporter shows too much.", given=f"more than {most_bytes} bytes",
                                  where=target.node)  # fmt: skip
        if answer.length:
            raise ScrapeError("The answer of the exporter is cut off.", given=f"{answer.length} bytes are missing",
                              where=target.node)  # fmt: skip
        # Without a length only the last line feed shows that the last value is whole.
        if answer.length is None and not answer.chunked and found and not found.endswith(b"\n"):
            raise ScrapeError("The answer of the exporter is cut off.", given="the last line has no end",
                              where=target.node)  # fmt: skip
    # A name of a host with two dots in a row is no OSError.
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        raise ScrapeError("The exporter does not answer.", given=str(error)[:200], where=target.node) from error
    finally:
        cut.cancel()
        connection.close()
    if late.is_set():
        raise ScrapeError("The exporter is too slow.", given=f"more than {timeout_s:g} s", where=target.node)
    samples = read_exposition(found.decode("utf-8", errors="replace"), where=target.node)
    if not samples:
        raise ScrapeError("The exporter shows no metrics.", given=f"{len(found)} bytes", where=target.node)
    return samples
