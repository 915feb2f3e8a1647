"""``wavetank serve``: a read-only page on this machine over a folder of runs, the ledger and the catalog."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import click

from wavetank.errors import BadValueError, WavetankError
from wavetank.terminal import say

# Pages are made one at a time, since each reads records and draws; further requests wait, up to this many.
_MOST_WAITING = 32
_IDLE_S = 15.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Reports bring their own small script; nothing is ever loaded from elsewhere.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@click.command()
@click.argument("runs", metavar="[RUNS]", default="runs", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 for any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
def command(runs: Path, port: int, host: str) -> int:
    """Serve pages over the folder RUNS until Ctrl-C: runs side by side, the ledger, the catalog.

    Nothing is written, and only this machine can connect unless --host says otherwise.
    """
    if runs.exists() and not runs.is_dir():
        raise BadValueError("Runs are kept in a folder.", given=str(runs), where="wavetank serve")
    with listening(runs, host, port) as server:
        if host not in _LOOPBACK:
            say(f"warning: everyone who can reach {host} can read these runs", err=True)
        if not runs.is_dir():
            say(f"note: there is no folder {runs} yet; the ledger and the catalog are there", err=True)
        say(f"http://{shown(host)}:{server.server_address[1]}/  (Ctrl-C ends it)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("", err=True)
    return 0


def shown(host: str) -> str:
    """Return a host as an address in a URL."""
    return f"[{host}]" if ":" in host else host


def listening(runs: Path, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server that listens and does not serve yet.

    Parameters
    ----------
    runs : Path
        The folder of all runs.
    host : str
    port : int
        0 for any free one.

    Raises
    ------
    BadValueError
        If the address cannot be listened on.
    """
    try:
        return _Server(runs, host, port)
    except OSError as error:
        raise BadValueError(
            f"This address cannot be listened on: {error.strerror or error}.",
            given=f"{host}:{port}", where="--host, --port",
            hint="another server may have the port: --port 0 takes any free one",
        ) from error  # fmt: skip


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_WAITING
    # On Linux this only allows a port in TIME_WAIT; two servers on one port stay impossible.
    allow_reuse_address = True

    def __init__(self, runs: Path, host: str, port: int) -> None:
        self.runs, self.host = runs, host
        self.making = threading.Lock()
        self.waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection where too many wait."""
        if not self.waiting.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.waiting.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away; the request was only read."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _IDLE_S
    server_version, sys_version = "wavetank", ""
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        """Answer with a page."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer with a page's head."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        from wavetank.cli import site

        if not self._is_own_host(self.headers.get("Host", "")):
            # A page elsewhere that has its name point here must not read through the user's browser.
            self._send(HTTPStatus.FORBIDDEN, b"This server answers to its own address only.\n", "text/plain", body)
            return
        address = urlsplit(self.path)
        pairs = parse_qsl(address.query[:4096], keep_blank_values=True, max_num_fields=20)
        query = {name: "\n".join(value for each, value in pairs if each == name) for name, _ in pairs}
        status, make = HTTPStatus.OK, self._page(site.page, unquote(address.path), query)
        try:
            with self.server.making:
                content = make()
        except site.NotFoundError as error:
            status, content = HTTPStatus.NOT_FOUND, site.failure("Not found", error)
        except WavetankError as error:
            status, content = HTTPStatus.BAD_REQUEST, site.failure("This cannot be shown", error)
        except (ValueError, OSError) as error:
            problem = WavetankError(f"The page could not be made: {error}")
            status, content = HTTPStatus.INTERNAL_SERVER_ERROR, site.failure("This cannot be shown", problem)
        self._send(status, content, "text/html", body)

    def _page(self, make: Callable[..., bytes], path: str, query: dict[str, str]) -> Callable[[], bytes]:
        return lambda: make(self.server.runs, path, query)

    def _is_own_host(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return name.strip("[]").casefold() in (*_LOOPBACK, self.server.host.casefold())

    def _send(self, status: HTTPStatus, content: bytes, kind: str, body: bool) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(content))),
            ("Content-Security-Policy", _POLICY), ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-store"),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name of the base class)
        """Say nothing: the terminal shows the address alone."""
