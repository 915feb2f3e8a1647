"""The router as a process: eyes on the backends, the view, drain, end."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.proxy.backends import identity_of
from wavetank.serving.proxy.configuration import make_configuration
from wavetank.serving.proxy.router import Router, listening_sockets
from wavetank.sim.rng import stream

CHAT = "/v1/chat/completions"
PAGE = """vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0"}} {usage}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="100"}} 1
"""


def page(running: int, waiting: int, usage: float) -> bytes:
    return PAGE.format(running=running, waiting=waiting, usage=usage).encode()


class TestBackends:
    def test_a_killed_backend_is_left_out_and_taken_back(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(2) as servers, live.routing(*servers, fall=2, rise=1) as router:
                async with aiohttp.ClientSession(router.address) as client:

                    async def answered() -> int:
                        async with client.post(CHAT, json=live.ask()) as answer:
                            await answer.read()
                            return answer.status

                    await servers[0].kill()
                    assert [await answered() for _ in range(20)] == [200] * 20
                    await live.until(lambda: len(router.dispatcher.targets) == 1)
                    await live.until(lambda: not router.backends[0].up)
                    before = len(servers[0].asked)
                    await servers[0].start()
                    await live.until(lambda: len(router.dispatcher.targets) == 2)
                    assert [await answered() for _ in range(4)] == [200] * 4
                    assert len(servers[0].asked) == before + 2

        live.run(main())

    def test_a_storm_of_errors_takes_a_backend_out_for_a_time(self, live: Any) -> None:
        async def storm(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(500, "application/json", 2) + b"{}")

        async def main() -> None:
            async with (
                live.backends(2) as servers,
                live.routing(*servers, eject_after_answers=3, eject_s=0.3) as router,
            ):
                servers[0].behaviour = storm
                async with aiohttp.ClientSession(router.address) as client:
                    statuses = []
                    for _ in range(12):
                        async with client.post(CHAT, json=live.ask()) as answer:
                            statuses.append(answer.status)
                    # 500 is an answer: it goes to the client, three times.
                    assert statuses.count(500) == 3
                    assert router.dispatcher.targets == (router.backends[1],)
                    servers[0].behaviour = live.well_behaved
                    await live.until(lambda: len(router.dispatcher.targets) == 2)
                    for _ in range(4):
                        async with client.post(CHAT, json=live.ask()) as answer:
                            assert answer.status == 200
                assert len(servers[0].asked) >= 5

        live.run(main())

    def test_overlapping_ejections_wait_with_one_timer(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(3) as servers, live.routing(*servers, probe_every_s=60.0, eject_s=50.0) as router:
                loop = asyncio.get_running_loop()
                made: list[asyncio.TimerHandle] = []
                plain = loop.call_later

                def call_later(delay: float, callback: Any, *given: Any, **more: Any) -> asyncio.TimerHandle:
                    handle = plain(delay, callback, *given, **more)
                    if callback == router._update:
                        made.append(handle)
                    return handle

                loop.call_later = call_later  # type: ignore[method-assign]
                for at in range(30):
                    backend = router.backends[at % 3]
                    backend._ejected_until_s = asyncio.get_running_loop().time() + 50.0 + at
                    router._update()
                    assert sum(not handle.cancelled() for handle in made) == 1
                assert len(made) == 30
            assert all(handle.cancelled() for handle in made)

        live.run(main())

    def test_where_all_fail_they_are_tried_all_the_same(self, live: Any) -> None:
        async def storm(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(500, "application/json", 2) + b"{}")

        async def main() -> None:
            async with (
                live.backends(2, storm) as servers,
                live.routing(*servers, eject_after=1, eject_s=50.0) as router,
            ):
                async with aiohttp.ClientSession(router.address) as client:
                    for _ in range(6):
                        async with client.post(CHAT, json=live.ask()) as answer:
                            assert answer.status == 500
                assert len(router.dispatcher.targets) == 2

        live.run(main())

    def test_without_any_backend_it_says_so_and_recovers(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1) as [server]:
                server.health = 500
                async with live.routing(server, rise=1) as router, aiohttp.ClientSession(router.address) as client:
                    async with client.get("/health") as answer:
                        assert (answer.status, (await answer.json())["status"]) == (503, "no backend")
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.status == 503
                        assert answer.headers["Retry-After"] == "1"
                        assert (await answer.json())["error"]["code"] == "no_backend"
                    server.health = 404
                    await live.until(lambda: router.dispatcher.targets)
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.status == 200

        live.run(main())

    def test_a_model_that_only_some_serve_goes_to_those(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(3) as servers:
                servers[2].models = ("m", "adapter")
                async with live.routing(*servers) as router, aiohttp.ClientSession(router.address) as client:
                    for _ in range(6):
                        async with client.post(CHAT, json=live.ask(model="adapter")) as answer:
                            assert answer.status == 200
                    assert [len(server.asked) for server in servers] == [0, 0, 6]
                    assert [backend.account.in_flight for backend in router.backends] == [0, 0, 0]

        live.run(main())

    @pytest.mark.parametrize("policy", ["round-robin", "central-queue"])
    def test_an_ejected_backend_keeps_its_row_and_is_asked_for_what_it_alone_has(self, live: Any, policy: str) -> None:
        async def main() -> None:
            async with live.backends(3) as servers:
                servers[2].models = ("m", "own")
                async with (
                    live.routing(*servers, policy=policy, probe_every_s=60.0) as router,
                    aiohttp.ClientSession(router.address) as client,
                ):

                    async def answered(model: str) -> int:
                        async with client.post(CHAT, json=live.ask(model=model)) as answer:
                            await answer.read()
                            return answer.status

                    view, dispatcher = router.dispatcher.view, router.dispatcher
                    assert view.workers.identity.tolist() == [identity_of(server.url) for server in servers]
                    router.backends[2]._ejected_until_s = asyncio.get_running_loop().time() + 50.0
                    router._update()
                    assert view.workers.takes.tolist() == [1, 1, 0]
                    assert [await answered("m") for _ in range(6)] == [200] * 6
                    assert len(servers[2].asked) == 0
                    assert [await answered("own") for _ in range(2)] == [200] * 2
                    assert len(servers[2].asked) == 2
                    router.backends[2]._ejected_until_s = 0.0
                    router._update()
                    # All along it was one view, and one state.
                    assert dispatcher.view is view
                    assert view.workers.takes.tolist() == [1, 1, 1]
                    assert [await answered("own") for _ in range(2)] == [200] * 2
                    assert len(servers[2].asked) == 4
                    assert "unfit" not in router.metrics.page().decode()
                    assert [backend.account.in_flight for backend in router.backends] == [0, 0, 0]

        live.run(main())

    def test_a_server_without_a_model_list_is_asked_for_anything(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1, models=()) as [server]:
                async with live.routing(server) as router, aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask(model="whatever")) as answer:
                        assert answer.status == 200

        live.run(main())

    def test_while_backends_die_and_return_no_answer_is_crossed_or_silently_cut(self, live: Any) -> None:
        rng = stream(0, "kills")
        outcomes: dict[str, int] = {}

        async def one(client: aiohttp.ClientSession, number: int) -> None:
            name = f"request-{number}"
            streams = number % 2 == 0
            try:
                async with client.post(CHAT, json=live.ask(name, stream=streams)) as answer:
                    found = await answer.read()
                    status = answer.status
            except aiohttp.ClientPayloadError:
                # Broken off, and the client can see that.
                outcome = "broken"
            else:
                outcome = str(status)
                if status == 200 and streams:
                    expected = live.event("") + b"".join(live.event(f"{name}/{at}") for at in range(8))
                    assert found == expected + b"data: [DONE]\n\n"
                elif status == 200:
                    assert json.loads(found)["choices"][0]["message"]["content"] == name
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

        async def main() -> None:
            async with live.backends(3) as servers, live.routing(*servers, rise=1, fall=1, eject_s=0.05) as router:
                for server in servers:
                    server.pause_s = 0.002
                done = asyncio.Event()

                async def kill() -> None:
                    while not done.is_set():
                        server = servers[int(rng.integers(0, 3))]
                        await server.kill()
                        await asyncio.sleep(0.03 * float(rng.random()))
                        await server.start()
                        await asyncio.sleep(0.06 * float(rng.random()))

                killing = asyncio.ensure_future(kill())
                connector = aiohttp.TCPConnector(limit=24)
                async with aiohttp.ClientSession(router.address, connector=connector) as client:
                    await asyncio.gather(*(one(client, number) for number in range(900)))
                done.set()
                await killing
                assert [backend.account.in_flight for backend in router.backends] == [0, 0, 0]
                assert router.proxy.in_flight == 0

        live.run(main())
        assert sum(outcomes.values()) == 900
        assert set(outcomes) <= {"200", "broken", "502", "503"}
        assert outcomes["200"] > 700


class TestView:
    def test_a_backend_with_metrics_shows_its_own_figures(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(2) as servers:
                servers[0].metrics_page = page(7, 3, 0.25)
                async with live.routing(*servers) as router:
                    view = router.dispatcher.view.workers
                    assert (view.running[0], view.waiting[0], view.kv_tokens[0]) == (7, 3, 400)
                    assert view.kv_capacity_tokens.tolist() == [1600, 400_000]
                    assert (view.running[1], view.kv_tokens[1]) == (0, 0)
                    servers[0].metrics_page = page(1, 0, 0.5)
                    await live.until(lambda: view.kv_tokens[0] == 800)
                    assert view.running[0] == 1

        live.run(main())

    def test_metrics_that_stop_are_believed_for_a_while_then_own_accounting_takes_over(
        self, live: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wavetank.serving.proxy.router.METRICS_BELIEVED_S", 0.3)

        async def main() -> None:
            async with live.backends(1) as [server]:
                server.metrics_page = page(7, 3, 0.25)
                async with live.routing(server) as router:
                    server.metrics_page = b"garbage"
                    view = router.dispatcher.view
                    await asyncio.sleep(0.05)
                    assert view.workers.running[0] == 7
                    await live.until(lambda: view.workers.running[0] == 0)
                    assert view.workers.kv_tokens[0] == 0

        live.run(main())

    def test_own_accounting_follows_the_requests(self, live: Any) -> None:
        gate: list[asyncio.Event] = []

        async def held(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(200, "text/event-stream") + live.chunk(live.event("a") * 5))
            await writer.drain()
            gate.append(asyncio.Event())
            await gate[-1].wait()
            writer.write(live.chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        async def main() -> None:
            async with live.backends(1, held) as [server], live.routing(server, metrics="own") as router:
                server.metrics_page = page(7, 3, 0.25)
                view = router.dispatcher.view.workers
                async with aiohttp.ClientSession(router.address) as client:
                    body = {"model": "m", "prompt": list(range(100)), "stream": True}
                    async with client.post("/v1/completions", json=body) as answer:
                        await live.until(lambda: view.kv_tokens[0] == 105)
                        assert (view.running[0], view.sent_requests[0]) == (1, 0)
                        gate[0].set()
                        await answer.read()
                    await live.until(lambda: view.kv_tokens[0] == 0)
                assert server.looks == 0

        live.run(main())

    def test_prompts_that_begin_alike_go_where_the_beginning_is(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(3) as servers:
                alone = {"load_cap": "1000", "beta": "0"}
                settings = {"policy": "prefix-affinity", "parameters": alone, "block_tokens": 8}
                async with (
                    live.routing(*servers, **settings) as router,
                    aiohttp.ClientSession(router.address) as client,
                ):
                    for number in range(30):
                        text = f"conversation {number % 3} " * 20 + f"turn {number}"
                        async with client.post(CHAT, json=live.ask(text)) as answer:
                            assert answer.status == 200
                homes = [
                    {
                        at
                        for at, server in enumerate(servers)
                        for asked in server.asked
                        if f"conversation {name}" in str(asked)
                    }
                    for name in range(3)
                ]
                assert all(len(home) == 1 for home in homes)

        live.run(main())

    def test_a_pool_policy_holds_requests_back_until_there_is_room(self, live: Any) -> None:
        gate = asyncio.Event()
        most = [0]

        async def held(backend: Any, asked: Any, writer: Any) -> None:
            most[0] = max(most[0], backend.answering)
            await gate.wait()
            await live.well_behaved(backend, asked, writer)

        async def main() -> None:
            async with live.backends(2, held) as servers:
                settings = {"policy": "balance-route", "max_running": 2, "pool_limit": 4, "metrics": "own"}
                async with (
                    live.routing(*servers, **settings) as router,
                    aiohttp.ClientSession(router.address) as client,
                ):

                    async def ask() -> int:
                        async with client.post(CHAT, json=live.ask()) as answer:
                            await answer.read()
                            return answer.status

                    asking = [asyncio.ensure_future(ask()) for _ in range(8)]
                    await live.until(lambda: router.dispatcher.waiting == 4)
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.status == 429
                        assert answer.headers["Retry-After"] == "1"
                        assert (await answer.json())["error"]["type"] == "rate_limit_error"
                    asking[-1].cancel()
                    await live.until(lambda: router.dispatcher.waiting == 3)
                    gate.set()
                    assert await asyncio.gather(*asking[:-1]) == [200] * 7
                assert most == [2]

        live.run(main())


class TestEnd:
    def test_a_drained_router_has_answered_everything_and_took_nothing_new(self, live: Any) -> None:
        gate = asyncio.Event()

        async def held(backend: Any, asked: Any, writer: Any) -> None:
            await gate.wait()
            await live.well_behaved(backend, asked, writer)

        async def main() -> None:
            async with live.backends(1, held) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    asking = asyncio.ensure_future(client.post(CHAT, json=live.ask()))
                    await live.until(lambda: server.asked)
                    draining = asyncio.ensure_future(router.drain())
                    await asyncio.sleep(0)
                    async with client.get("/health") as answer:
                        assert (answer.status, (await answer.json())["status"]) == (503, "draining")
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.status == 503
                        assert answer.headers["Connection"] == "close"
                    assert not draining.done()
                    gate.set()
                    async with await asking as answer:
                        assert answer.status == 200
                    await draining
                    assert len(server.asked) == 1

        live.run(main())

    def test_a_stopped_router_leaves_no_request_behind(self, live: Any) -> None:
        async def silent(backend: Any, asked: Any, writer: Any) -> None:
            await asyncio.sleep(60)

        async def main() -> None:
            async with live.backends(1, silent) as [server]:
                async with live.routing(server) as router, aiohttp.ClientSession(router.address) as client:
                    asking = asyncio.ensure_future(client.post(CHAT, json=live.ask()))
                    await live.until(lambda: server.asked)
                    await router.stop()
                    with pytest.raises(aiohttp.ClientError):
                        await asking
                    await live.until(lambda: server.left == 1)

        live.run(main())


class TestStart:
    def test_a_port_in_use_is_reported_before_anything_starts(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(BadValueError, match="The port is in use") as caught:
                Router(make_configuration(policy="random-worker", backends=["http://a:1"], settings={"port": port}))
        assert caught.value.given == f"127.0.0.1:{port}"

    def test_any_free_port_is_one_on_all_addresses_of_the_host(self) -> None:
        sockets = listening_sockets("localhost", 0)
        assert len({each.getsockname()[1] for each in sockets}) == 1
        for each in sockets:
            each.close()
        with pytest.raises(BadValueError, match="no such address"):
            listening_sockets("no such host", 0)


@pytest.fixture
def engine(live: Any) -> Iterator[str]:
    """Address of a backend in a process of its own."""
    code = (
        "import http.server, json, time\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    protocol_version = 'HTTP/1.1'\n"
        "    def log_message(self, *a): pass\n"
        "    def say(self, body):\n"
        "        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()\n"
        "        self.wfile.write(body)\n"
        "    def do_GET(self): self.say(json.dumps({'data': [{'id': 'm'}]}).encode())\n"
        "    def do_POST(self):\n"
        "        self.rfile.read(int(self.headers['Content-Length'])); time.sleep(1.0); self.say(b'{}')\n"
        "s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)\n"
        "print(s.server_address[1], flush=True)\n"
        "s.serve_forever()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@pytest.mark.parametrize(("signals", "code", "answered"), [(1, 0, True), (2, 130, False)], ids=["drains", "at once"])
def test_a_signal_drains_and_a_second_one_ends(
    engine: str, executable: str, signals: int, code: int, answered: bool
) -> None:
    words = [executable, "launch", "router", "--policy", "round-robin", "--backend", engine, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"router on (http://127\.0\.0\.1:\d+), policy round-robin, 1 backend\n", line)
        assert found, (line, process.stderr.read() if process.stderr else "")
        script = (
            "import sys, urllib.request\n"
            f"r = urllib.request.Request({found[1] + CHAT!r}, data=b'{json.dumps({'model': 'm', 'messages': []})}')\n"
            "print(urllib.request.urlopen(r, timeout=20).status)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as client:
            while b"in_flight_requests 1.0" not in urllib.request.urlopen(found[1] + "/metrics", timeout=20).read():
                pass
            for _ in range(signals):
                os.kill(process.pid, signal.SIGTERM)
                if signals > 1:
                    # Two signals that come together count as one.
                    _wait_until_draining(found[1])
            out, _ = client.communicate(timeout=20)
        assert process.wait(timeout=20) == code
        assert out == ("200\n" if answered else "")


def _wait_until_draining(address: str) -> None:
    while True:
        try:
            if b"draining 1.0" in urllib.request.urlopen(address + "/metrics", timeout=20).read():
                return
        except OSError:
            return
