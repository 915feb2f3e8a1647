"""What one client can do to the others: by requests that every backend fails at, by leaving, by asking for a model."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from wavetank.serving.proxy import router as router_module

CHAT = "/v1/chat/completions"
ANSWERS = {
    "500": b"HTTP/1.1 500 X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "502": b"HTTP/1.1 502 X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "503": b"HTTP/1.1 503 X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "no JSON": b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{x",
    "no HTTP": b"HTP\r\n\r\n",
    "died": b"",
    "broken stream": b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata: {}\n\n",
}


def out_of(router: Any) -> list[int]:
    """Return which backends are ejected now."""
    return [place for place, each in enumerate(router.backends) if not each.routable(time.monotonic())]


async def status_of(client: aiohttp.ClientSession, body: dict[str, Any]) -> int:
    """Return the status of an answer, or 0 where its connection broke off."""
    try:
        async with client.post(CHAT, json=body) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


def posted(body: dict[str, Any], *more: str, version: str = "1.1") -> bytes:
    """Return a request as bytes."""
    data = json.dumps(body).encode()
    lines = (f"POST {CHAT} HTTP/{version}", "Host: x", f"Content-Length: {len(data)}", *more)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + data


async def received(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return all that comes, and whether the connection was reset."""
    found = b""
    try:
        while piece := await reader.read(65_536):
            found += piece
    except ConnectionError:
        return found, True
    return found, False


class TestRequestsThatEveryBackendFailsAt:
    @pytest.mark.parametrize("kind", ANSWERS)
    def test_they_take_at_most_a_share_of_the_backends_out(self, live: Any, kind: str) -> None:
        async def fails(backend: Any, asked: Any, writer: Any) -> None:
            if asked.json["messages"][0]["content"] != "bad":
                await live.well_behaved(backend, asked, writer)
                return
            writer.write(ANSWERS[kind])
            await writer.drain()
            if kind in ("died", "broken stream"):
                writer.transport.abort()

        async def main() -> None:
            settings = {"eject_s": 50.0, "retry_floor": 1000, "probe_every_s": 60.0}
            async with live.backends(8, fails) as servers, live.routing(*servers, **settings) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    most = 0
                    for _ in range(80):
                        assert await status_of(client, live.ask("bad")) in (0, 500, 502, 503)
                        most = max(most, len(out_of(router)))
                    # A quarter of eight: a backend that fails like that may be ill, all of them are not.
                    assert most == 2
                    before = [len(server.asked) for server in servers]
                    assert [await status_of(client, live.ask("good")) for _ in range(12)] == [200] * 12
                    asked = [len(server.asked) - then for server, then in zip(servers, before, strict=True)]
                    assert sum(map(bool, asked)) == 6

        live.run(main())

    def test_no_limit_holds_for_backends_that_refuse_connections(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(4) as servers:
                async with live.routing(*servers, eject_s=50.0, eject_after=2, probe_every_s=60.0) as router:
                    for server in servers[:3]:
                        await server.kill()
                    async with aiohttp.ClientSession(router.address) as client:
                        assert [await status_of(client, live.ask()) for _ in range(8)] == [200] * 8
                    assert out_of(router) == [0, 1, 2]

        live.run(main())

    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_the_share_is_the_users(self, live: Any, share: float) -> None:
        async def fails(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(ANSWERS["500"])

        async def main() -> None:
            settings = {"eject_s": 50.0, "eject_after_answers": 2, "eject_share": share}
            async with live.backends(3, fails) as servers, live.routing(*servers, **settings) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for _ in range(6):
                        assert await status_of(client, live.ask()) == 500
                assert len(out_of(router)) == (3 if share else 0)

        live.run(main())


class TestModels:
    @pytest.mark.parametrize("policy", ["round-robin", "central-queue"])
    def test_one_that_only_an_ejected_backend_serves_is_asked_of_it(self, live: Any, policy: str) -> None:
        async def main() -> None:
            async with live.backends(3) as servers:
                servers[2].models = ("m", "adapter")
                async with live.routing(*servers, policy=policy, eject_s=50.0) as router:
                    for _ in range(3):
                        router.relay._failed(router.backends[2], "died")
                    assert router.dispatcher.targets == router.backends[:2]
                    async with aiohttp.ClientSession(router.address) as client:
                        assert await status_of(client, live.ask(model="adapter")) == 200
                        async with client.get("/v1/models") as answer:
                            assert [each["id"] for each in (await answer.json())["data"]] == ["m", "adapter"]
                        async with client.get("/v1/models/adapter") as answer:
                            assert answer.status == 200
                        assert await status_of(client, live.ask(model="other")) == 404
                    assert [len(server.asked) for server in servers] == [0, 0, 1]
                    assert [backend.account.in_flight for backend in router.backends] == [0] * 3

        live.run(main())

    def test_one_whose_backend_is_down_is_unavailable_and_not_unknown(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(2) as servers:
                servers[1].models = ("m", "adapter")
                async with live.routing(*servers, fall=1) as router:
                    servers[1].health = 500
                    await live.until(lambda: len(router.dispatcher.targets) == 1)
                    async with aiohttp.ClientSession(router.address) as client:
                        assert await status_of(client, live.ask(model="adapter")) == 503
                        assert await status_of(client, live.ask(model="other")) == 404
                        servers[1].health = 200
                        await live.until(lambda: len(router.dispatcher.targets) == 2)
                        assert await status_of(client, live.ask(model="adapter")) == 200

        live.run(main())

    def test_a_backend_whose_list_is_unknown_hides_no_other_ones(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(3) as servers:
                servers[0].models, servers[1].models, servers[2].models = ("a",), ("b",), ()
                async with live.routing(*servers) as router:
                    async with aiohttp.ClientSession(router.address) as client:
                        for model in ("a", "b") * 6:
                            assert await status_of(client, live.ask(model=model)) == 200
                assert {asked.json["model"] for asked in servers[0].asked} == {"a"}
                assert {asked.json["model"] for asked in servers[1].asked} == {"b"}

        live.run(main())


class TestHalfClosedClients:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("pause_s", [0.0, 0.02])
    def test_a_client_that_ends_its_side_has_left_and_frees_its_backend(
        self, live: Any, stream: bool, pause_s: float
    ) -> None:
        async def slow(backend: Any, asked: Any, writer: Any) -> None:
            if asked.json["messages"][0]["content"] == "secret":
                if stream:
                    writer.write(live.head(200, "text/event-stream") + live.chunk(live.event("secret")))
                await asyncio.sleep(3600.0)
            await live.well_behaved(backend, asked, writer)

        async def main() -> None:
            async with live.backends(1, slow) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for number in range(5):
                        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                        # A second request behind the first: it is given up as well.
                        writer.write(posted(live.ask("secret", stream=stream)) * 2)
                        if pause_s:
                            await live.until(lambda: server.answering)
                            await asyncio.sleep(pause_s)
                        writer.write_eof()
                        found, was_reset = await received(reader)
                        assert b"0\r\n\r\n" not in found
                        assert not was_reset
                        await live.until(lambda: not server.answering and not router.proxy.in_flight)
                        writer.close()
                        async with client.post(CHAT, json=live.ask(f"own {number}")) as answer:
                            text = await answer.text()
                        assert f"own {number}" in text
                        assert "secret" not in text
                assert router.backends[0].account.in_flight == 0
                assert router.backends[0]._failures == 0

        live.run(main())


class TestAnswersWithoutABody:
    @pytest.mark.parametrize("status", [204, 304])
    @pytest.mark.parametrize("more", ["", "Connection: close\r\n", "Content-Type: text/event-stream\r\n"])
    def test_they_are_complete_and_nothing_is_wrong_with_their_backend(self, live: Any, status: int, more: str) -> None:
        async def empty(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(f"HTTP/1.1 {status} X\r\n{more}\r\n".encode())

        async def main() -> None:
            async with live.backends(1, empty) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for _ in range(3):
                        async with client.post(CHAT, json=live.ask()) as answer:
                            assert await answer.read() == b""
                            assert answer.status == status
                assert router.backends[0]._failures == 0
                assert len(server.asked) == 3

        live.run(main())


def test_a_client_of_http_1_0_gets_no_interim_answer(live: Any) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server) as router:
            for version, first in (("1.0", b"HTTP/1.0 200 OK"), ("1.1", b"HTTP/1.1 100 Continue")):
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                writer.write(posted(live.ask(), "Expect: 100-continue", "Connection: close", version=version))
                assert (await received(reader))[0].startswith(first)
                writer.close()

    live.run(main())


class TestTheEnd:
    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    @pytest.mark.parametrize("length", [None, 100_000])
    def test_a_stream_that_the_routers_end_cuts_never_looks_complete(
        self, live: Any, version: str, length: int | None
    ) -> None:
        async def endless(backend: Any, asked: Any, writer: Any) -> None:
            said = live.event("a")
            writer.write(live.head(200, "text/event-stream", length) + (said if length else live.chunk(said)))
            await asyncio.sleep(3600.0)

        async def main() -> None:
            async with live.backends(1, endless) as [server]:
                async with live.routing(server) as router:
                    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                    writer.write(posted(live.ask(stream=True), version=version))
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(f"HTTP/{version} 200".encode())
                found, was_reset = await received(reader)
                # By the missing end of the coding, or by an error of the connection.
                chunked = b"chunked" in head
                assert chunked is (version == "1.1" and length is None)
                assert was_reset or (chunked and not found.endswith(b"0\r\n\r\n"))
                writer.close()

        live.run(main())

    def test_idle_connections_of_clients_hold_nothing_up(self, live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(router_module, "_SHUTDOWN_S", 3600.0)

        async def main() -> None:
            async with live.backends(1) as [server], aiohttp.ClientSession() as client:
                async with live.routing(server) as router:
                    async with client.post(router.address + CHAT, json=live.ask()) as answer:
                        assert answer.status == 200
                        await answer.read()
                    assert len(router.proxy.server.connections) == 1

        live.run(main())
