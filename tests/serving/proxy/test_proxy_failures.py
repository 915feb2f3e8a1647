"""How often a request is sent out when backends fail, and how an answer that is cut ends at the client."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest

from wavetank.serving.proxy import relay

CHAT = "/v1/chat/completions"


async def dies(backend: Any, asked: Any, writer: Any) -> None:
    """Work for a while, then close without a byte."""
    await asyncio.sleep(backend.pause_s)
    writer.transport.abort()


async def asked_once(live: Any, router: Any, status: int, **more: Any) -> None:
    async with aiohttp.ClientSession(router.address) as client:
        async with client.post(CHAT, json=live.ask(**more)) as answer:
            await answer.read()
            assert answer.status == status


async def warmed_up(live: Any, router: Any, servers: list[Any]) -> None:
    """Leave one idle connection that was used to every backend; then nothing is asked yet."""
    for _ in servers:
        await asked_once(live, router, 200)
    assert [len(server.asked) for server in servers] == [1] * len(servers)
    for server in servers:
        server.asked.clear()


class TestSentAgain:
    @pytest.mark.parametrize("warm", [False, True])
    @pytest.mark.parametrize("pause_s", [0.0, 0.05])
    def test_a_request_whose_connections_die_is_sent_out_twice_in_all(
        self, live: Any, warm: bool, pause_s: float
    ) -> None:
        async def main() -> None:
            settings = {"tries": 4, "eject_after": 100, "keep_alive_s": 4.0 if warm else 0.0}
            async with live.backends(4) as servers, live.routing(*servers, **settings) as router:
                if warm:
                    await warmed_up(live, router, servers)
                for server in servers:
                    server.behaviour, server.pause_s = dies, pause_s
                await asked_once(live, router, 502)
                assert sum(len(server.asked) for server in servers) == 2

        live.run(main())

    @pytest.mark.parametrize(("limit_s", "on_each"), [(30.0, [0, 2]), (0.01, [1, 1])])
    def test_only_a_connection_that_ended_at_once_is_sent_again_on_the_same_backend(
        self, live: Any, monkeypatch: pytest.MonkeyPatch, limit_s: float, on_each: list[int]
    ) -> None:
        monkeypatch.setattr(relay, "STALE_WITHIN_S", limit_s)

        async def main() -> None:
            async with live.backends(2) as servers, live.routing(*servers, eject_after=100) as router:
                await warmed_up(live, router, servers)
                for server in servers:
                    server.behaviour, server.pause_s = dies, 0.1
                await asked_once(live, router, 502)
                assert sorted(len(server.asked) for server in servers) == on_each

        live.run(main())

    @pytest.mark.parametrize(("close", "warm", "on_each"), [(True, True, 2), (False, True, 1), (True, False, 1)])
    def test_the_408_of_an_idle_connection_that_ends_is_nobodys_answer(
        self, live: Any, close: bool, warm: bool, on_each: int
    ) -> None:
        async def timed_out(backend: Any, asked: Any, writer: Any) -> None:
            backend.behaviour = live.well_behaved
            writer.write(live.head(408, "text/plain", 0, "Connection: close\r\n" if close else ""))

        async def main() -> None:
            async with live.backends(1) as [server]:
                async with live.routing(server, keep_alive_s=4.0 if warm else 0.0) as router:
                    if warm:
                        await warmed_up(live, router, [server])
                    server.behaviour = timed_out
                    await asked_once(live, router, 200 if on_each == 2 else 408)
                    assert len(server.asked) == on_each
                    assert router.backends[0]._failures == 0

        live.run(main())

    def test_a_503_is_passed_on_beside_a_death(self, live: Any) -> None:
        async def busy(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(503, "application/json", 2) + b"{}")

        async def main() -> None:
            async with live.backends(3) as servers, live.routing(*servers, eject_after=100, keep_alive_s=0.0) as router:
                first, second, third = servers
                first.behaviour, second.behaviour, third.behaviour = busy, dies, live.well_behaved
                await asked_once(live, router, 200)
                assert [len(server.asked) for server in servers] == [1, 1, 1]

        live.run(main())

    def test_refused_connections_do_not_use_up_the_tries(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(6) as servers:
                async with live.routing(*servers, probe_every_s=60.0, eject_after=100, tries=1) as router:
                    for server in servers[:5]:
                        await server.kill()
                    # Round robin, then the one with the fewest requests: the first in line are the dead ones.
                    await asked_once(live, router, 200)
                    assert len(servers[5].asked) == 1
                    await servers[5].kill()
                    await asked_once(live, router, 502)
                    assert [backend.account.in_flight for backend in router.backends] == [0] * 6

        live.run(main())

    @pytest.mark.parametrize("model", ["m", "adapter"])
    def test_where_no_other_backend_is_left_the_ejected_ones_are_tried(self, live: Any, model: str) -> None:
        async def main() -> None:
            async with live.backends(3, models=("m", "adapter")) as servers:
                servers[2].models = ("m",)
                settings = {"probe_every_s": 60.0, "eject_after": 3, "eject_share": 1.0, "eject_s": 50.0}
                async with live.routing(*servers, **settings) as router:
                    for server in servers[1:]:
                        server.behaviour = dies
                        for _ in range(3):
                            router.relay._failed(router.backends[servers.index(server)], "died")
                    assert router.dispatcher.targets == (router.backends[0],)
                    await servers[0].kill()
                    servers[1].behaviour = live.well_behaved
                    await asked_once(live, router, 200, model=model)
                    # The one that does not serve the model is not asked for it.
                    assert len(servers[1].asked) == 1
                    assert len(servers[2].asked) == 0
                    assert [backend.account.in_flight for backend in router.backends] == [0] * 3

        live.run(main())


async def cut_answer(port: int, body: bytes, version: str) -> tuple[bytes, bool]:
    """Return all that a client gets, and whether its connection was reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {CHAT} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    found = b""
    try:
        while piece := await reader.read(65_536):
            found += piece
    except ConnectionError:
        return found, True
    finally:
        writer.close()
    return found, False


class TestCutAnswers:
    @pytest.mark.parametrize("length", [None, 5000])
    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    @pytest.mark.parametrize("ending", ["", "\n", "\n\n", "\r\n\r\n"])
    def test_a_cut_stream_never_looks_complete(self, live: Any, length: int | None, version: str, ending: str) -> None:
        said = b'data: {"choices":[]}' + ending.encode()

        async def breaks(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(200, "text/event-stream", length) + (said if length else live.chunk(said)))
            await asyncio.sleep(0.05)
            writer.transport.abort()

        async def main() -> None:
            async with live.backends(1, breaks) as [server], live.routing(server) as router:
                found, was_reset = await cut_answer(router.port, json.dumps(live.ask(stream=True)).encode(), version)
                assert len(server.asked) == 1
                if length is None and version == "1.1":
                    whole = found.partition(b"\r\n\r\n")[2]
                    assert not whole.endswith(b"0\r\n\r\n")
                    text = b""
                    while whole:
                        size, _, whole = whole.partition(b"\r\n")
                        text, whole = text + whole[: int(size, 16)], whole[int(size, 16) + 2 :]
                    # The error is an event of its own, not a line of the one that was cut.
                    events = [each for each in re.split(rb"\n\n|\r\n\r\n", text) if each.strip()]
                    assert len(events) == 2
                    assert events[0].strip() == said.strip()
                    error = json.loads(events[1].strip().removeprefix(b"data: "))
                    assert error["error"]["code"] == "backend_failed"
                    assert not was_reset
                else:
                    assert was_reset
                    assert b"backend_failed" not in found

        live.run(main())

    def test_an_error_event_does_not_fill_an_announced_length_up(self, live: Any) -> None:
        said = b'data: {"choices":[]}\n\n'

        async def breaks(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(200, "text/event-stream", len(said) + 30) + said)
            await asyncio.sleep(0.05)
            writer.transport.abort()

        async def main() -> None:
            async with live.backends(1, breaks) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    with pytest.raises(aiohttp.ClientError):
                        async with client.post(CHAT, json=live.ask(stream=True)) as answer:
                            await answer.read()

        live.run(main())


def test_a_connection_that_closes_before_its_first_request_is_forgotten(live: Any) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server, read_s=3600.0) as router:
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", router.port)
                writer.close()
            async with asyncio.timeout(5.0):
                await live.until(lambda: not router.proxy.server.connections)
                await live.until(lambda: not router.proxy._silent)

    live.run(main())
