"""What a client's connection adds to the HTTP server's: ids of requests, and ends that look like none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from multidict import CIMultiDict

from wavetank.serving.proxy.client_connection import SERVER, ClientRequest, RefusedConnection, reset, sign


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"abc-1", True),
        (b"x" * 128, True),
        (b"x" * 129, False),
        (b"", False),
        (b"a b", False),
        (b"a\tb", False),
        (b"\xc3\xa4", False),
    ],
)
def test_an_id_is_taken_over_only_where_it_is_one_printable_word(given: bytes, kept: bool) -> None:
    headers = CIMultiDict({"X-REQUEST-ID": given.decode("utf-8", "surrogateescape")})
    request: Any = SimpleNamespace(_id=b"", headers=headers)
    found = ClientRequest.request_id.fget(request)  # type: ignore[attr-defined]
    assert (found == given) is kept
    assert kept or (len(found) == 32 and found.isalnum())
    assert ClientRequest.deaths == 0


def test_random_ids_never_repeat() -> None:
    made = {ClientRequest.request_id.fget(SimpleNamespace(_id=b"", headers={})) for _ in range(2000)}  # type: ignore[attr-defined]
    assert len(made) == 2000


def test_every_answer_is_signed_once() -> None:
    response: Any = SimpleNamespace(headers={"Server": "theirs"})
    sign(response, SimpleNamespace(request_id=b"id-1"))  # type: ignore[arg-type]
    assert response.headers == {"Server": SERVER, "X-Request-Id": "id-1"}


def test_a_reset_is_an_error_at_the_other_side_and_a_refusal_is_an_end() -> None:
    class Resets(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.write(b"half")
            asyncio.get_running_loop().call_later(0.05, reset, transport)

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        found = []
        for kind in (Resets, RefusedConnection):
            server = await loop.create_server(kind, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
            try:
                found.append((await reader.read()).decode())
            except ConnectionResetError:
                found.append("reset")
            writer.close()
            server.close()
        reset(None)
        return found

    assert asyncio.run(main()) == ["reset", ""]
