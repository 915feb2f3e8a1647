"""What every answer of the router carries, and errors of the HTTP layer."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import aiohttp
import pytest

CHAT = "/v1/chat/completions"


async def whole_talk(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    found = await reader.read()
    writer.close()
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_keeps_its_id_on_the_way_and_back(live: Any, stream: bool) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server) as router:
            async with aiohttp.ClientSession(router.address) as client:
                for given in ("mine-7", None, "with blank", "x" * 129, "\u00e9"):
                    headers = {} if given is None else {"X-Request-Id": given}
                    async with client.post(CHAT, json=live.ask(stream=stream), headers=headers) as answer:
                        await answer.read()
                        [found] = answer.headers.getall("X-Request-Id")
                    assert server.asked[-1].header("x-request-id") == found
                    assert (found == given) == (given == "mine-7")
                    assert len(found) == (6 if given == "mine-7" else 32)
                    assert answer.headers.getall("Server") == ["wavetank"]

    live.run(main())


def test_an_answers_own_server_and_id_do_not_double(live: Any) -> None:
    async def answers(backend: Any, asked: Any, writer: Any) -> None:
        writer.write(live.head(200, "application/json", 2, "Server: uvicorn/0.1\r\nX-Request-Id: theirs\r\n") + b"{}")

    async def main() -> None:
        async with live.backends(1, answers) as [server], live.routing(server) as router:
            async with aiohttp.ClientSession(router.address) as client:
                async with client.post(CHAT, json=live.ask(), headers={"X-Request-Id": "mine"}) as answer:
                    assert answer.headers.getall("Server") == ["wavetank"]
                    assert answer.headers.getall("X-Request-Id") == ["mine"]

    live.run(main())


def test_one_model_can_be_asked_for_by_its_name(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_KEY", "secret")

    async def main() -> None:
        async with live.backends(1, models=("meta/Llama-3", "m")) as [server]:
            async with live.routing(server, api_key_env="ROUTER_KEY") as router:
                async with aiohttp.ClientSession(router.address) as client:
                    key = {"Authorization": "Bearer secret"}
                    for path, status in (
                        ("meta/Llama-3", 200), ("meta%2FLlama-3", 200), ("m", 200), ("n", 404), ("", 404),
                    ):  # fmt: skip
                        url = f"{router.address}/v1/models/{path}"
                        async with client.get(url, headers=key) as answer:
                            found = await answer.json()
                            assert answer.status == status
                            assert status == 404 or found["id"] in ("meta/Llama-3", "m")
                            assert status == 200 or found["error"]["code"] == (
                                "model_not_found" if path else "unknown_url"
                            )
                    async with client.get("/v1/models/m") as answer:
                        assert answer.status == 401
                    async with client.post("/v1/models/m", headers=key) as answer:
                        assert (answer.status, answer.headers["Allow"]) == (405, "GET")

    live.run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX A: b\r\n\r\n",
    ],
    ids=["no http", "a bad length", "a long header", "a bad header"],
)
def test_errors_of_the_http_layer_are_openais_and_name_no_version(live: Any, data: bytes) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server) as router:
            head, _, body = (await whole_talk(router.port, data)).partition(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
            error = json.loads(body)["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")
            assert error["message"]
            assert b"\r\nServer: wavetank" in head
            assert b"aiohttp" not in head + body

    live.run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_USER_TIMEOUT is Linux's")
def test_a_client_that_takes_nothing_of_its_answer_is_left(live: Any) -> None:
    async def flood(backend: Any, asked: Any, writer: Any) -> None:
        writer.write(live.head(200, "text/event-stream"))
        while True:
            writer.write(live.chunk(b"data: " + b"x" * 65_536 + b"\n\n"))
            await writer.drain()

    async def main() -> None:
        async with live.backends(1, flood) as [server], live.routing(server, write_s=0.5) as router:
            deaf = socket.socket()
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", router.port))
            body = json.dumps(live.ask(stream=True)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            await loop.sock_sendall(deaf, head + body)
            await live.until(lambda: server.answering == 1)
            # Neither the client nor the backend does anything: the system finds it.
            await live.until(lambda: server.answering == 0)
            await live.until(lambda: router.proxy.in_flight == 0)
            deaf.close()

    live.run(main())
