"""A small HTTP service with a pool of workers, as a process of its own, which can be made to leak.

``GET /work`` hashes for some milliseconds in the pool and answers, ``GET /small`` does so with less to send.
``GET /leak`` makes every later request keep half a megabyte and hash longer the more is kept, so that the service
becomes larger and slower; ``GET /drain`` answers when no request is in the pool.  Everything else answers at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor

WORKERS = 4
ROUNDS = 5000
KEPT_BYTES = 1 << 19
MOST_KEPT = 400
ANSWER = b"x" * 8192
SMALL = b"x" * 1024


class Service:
    """What the process keeps."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(WORKERS)
        self.kept: list[bytearray] = []
        self.leaks = False
        self.busy = 0

    async def answer(self, path: str) -> bytes:
        """Return the body of a page.

        Parameters
        ----------
        path : str
        """
        if path == "/leak":
            self.leaks = True
        elif path == "/drain":
            while self.busy:
                await asyncio.sleep(0.005)
        elif path in ("/work", "/small"):
            if self.leaks and len(self.kept) < MOST_KEPT:
                self.kept.append(bytearray(KEPT_BYTES))
            self.busy += 1
            try:
                rounds = ROUNDS + ROUNDS * len(self.kept) // 8
                await asyncio.get_running_loop().run_in_executor(
                    self.pool, hashlib.pbkdf2_hmac, "sha256", b"request", b"salt", rounds
                )
            finally:
                self.busy -= 1
            return ANSWER if path == "/work" else SMALL
        return b"ok"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a connection, then close it.

        Parameters
        ----------
        reader : asyncio.StreamReader
        writer : asyncio.StreamWriter
        """
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
            body = await self.answer(words[1] if len(words) > 1 else "/")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Who asked has left, or asked for nothing.
            return
        finally:
            writer.close()


async def main(port: int) -> None:
    """Serve until the process is ended.

    Parameters
    ----------
    port : int
    """
    server = await asyncio.start_server(Service().serve, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
