"""Exporters on loopback that a test makes behave, well or badly."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WELL = "# TYPE up gauge\nup 1\n"


@contextlib.contextmanager
def exporter(shows: Callable[[], str], status: int = 200, length: int = 0, headers: dict[str, str] | None = None
             ) -> Iterator[str]:  # fmt: skip
    """An address whose answer is ``shows()``; ``length`` claims more bytes than there are."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = shows().encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) + length))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@contextlib.contextmanager
def closing(answer: bytes) -> Iterator[str]:
    """An address that sends these bytes, whatever it is asked, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            with contextlib.suppress(OSError):
                taken, _ = server.accept()
                with taken:
                    taken.recv(1 << 16)
                    taken.sendall(answer)

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
    thread.join(5)


@contextlib.contextmanager
def dripping(every_s: float, content: bytes = b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 10_000) -> Iterator[str]:
    """An address that sends a byte of its answer now and then, as good as for ever."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with contextlib.suppress(OSError):
                taken, _ = server.accept()
                with taken:
                    for byte in content:
                        if done.wait(every_s):
                            return
                        taken.sendall(bytes([byte]))

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        done.set()
    thread.join(5)
