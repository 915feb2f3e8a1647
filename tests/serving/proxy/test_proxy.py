"""The HTTP side of the router, on real loopback sockets."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest

CHAT = "/v1/chat/completions"


async def raw(port: int, data: bytes) -> bytes:
    """Send bytes as they are, return all that comes back until the router closes or is silent for long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    found = b""
    try:
        async with asyncio.timeout(1.0):
            while piece := await reader.read(65536):
                found += piece
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    return found


def posted(body: bytes, *more: str, path: str = CHAT) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", *more]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in more):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def metric(router: Any, name: str, **labels: str) -> float:
    value = router.metrics.registry.get_sample_value(f"wavetank_router_{name}", labels)
    return 0.0 if value is None else value


class TestEndpoints:
    def test_a_chat_request_is_answered_by_a_backend_byte_for_byte(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server) as router:
                body = b'{ "model":"m",  "messages":[{"role":"user","content":"\xc3\xa4"}] , "x": 1e400}'
                async with aiohttp.ClientSession(router.address) as client:
                    headers = {"Authorization": "Bearer s", "X-Trace": "7", "Content-Type": "application/json"}
                    async with client.post(CHAT + "?a=%20b", data=body, headers=headers) as answer:
                        assert answer.status == 200
                        found = await answer.read()
                        assert answer.headers["Content-Type"] == "application/json"
                assert found == live.plain("ä").partition(b"\r\n\r\n")[2]
                [asked] = server.asked
                assert asked.body == body
                assert asked.path == CHAT + "?a=%20b"
                assert asked.header("authorization") == "Bearer s"
                assert asked.header("x-trace") == "7"
                assert asked.header("host") == f"127.0.0.1:{server.port}"
                assert asked.header("accept-encoding") is None

        live.run(main())

    def test_completions_models_health_and_metrics_are_served(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(2) as servers:
                servers[1].models = ("m", "adapter")
                async with live.routing(*servers) as router, aiohttp.ClientSession(router.address) as client:
                    async with client.post("/v1/completions", json={"model": "m", "prompt": [1, 2, 3]}) as answer:
                        assert (await answer.json())["choices"][0]["message"]["content"] == "[1, 2, 3]"
                    async with client.get("/v1/models") as answer:
                        listed = await answer.json()
                        assert [each["id"] for each in listed["data"]] == ["m", "adapter"]
                    async with client.get("/health") as answer:
                        assert (answer.status, await answer.json()) == (200, {"status": "ready", "backends": 2})
                    async with client.get("/metrics") as answer:
                        text = await answer.text()
                        assert answer.headers["Content-Type"].startswith("text/plain")
                assert 'requests_total{backend="127.0.0.1:' in text

        live.run(main())

    @pytest.mark.parametrize(
        ("method", "path", "status", "code"),
        [
            ("GET", "/v1/assistants", 404, "unknown_url"),
            ("GET", "/v1/embeddings", 405, "method_not_supported"),
            ("POST", "/V1/embeddings", 404, "unknown_url"),
            ("POST", "//v1/embeddings", 404, "unknown_url"),
            ("POST", "/v1/embeddings%2f", 404, "unknown_url"),
            ("POST", "/", 404, "unknown_url"),
            ("POST", "/v1/chat/completions/", 404, "unknown_url"),
            ("POST", "/v1/../metrics", 404, "unknown_url"),
            ("GET", CHAT, 405, "method_not_supported"),
            ("DELETE", "/v1/models", 405, "method_not_supported"),
            ("POST", "/health", 405, "method_not_supported"),
        ],
    )
    def test_other_paths_and_methods_are_refused_as_openai_refuses(
        self, live: Any, method: str, path: str, status: int, code: str
    ) -> None:
        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server) as router:
                found = await raw(
                    router.port, f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
                )
                head, _, body = found.partition(b"\r\n\r\n")
                assert head.startswith(f"HTTP/1.1 {status} ".encode())
                error = json.loads(body)["error"]
                assert (error["type"], error["code"]) == ("invalid_request_error", code)
                assert (b"\r\nAllow: " in head) == (status == 405)
                assert server.asked == []

        live.run(main())

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            (b"", 400, "invalid_body"),
            (b'{"model":', 400, "invalid_body"),
            (b"[]", 400, "invalid_body"),
            (b'"m"', 400, "invalid_body"),
            (b'{"model":"m","messages":' + b"[" * 100_000, 400, "invalid_body"),
            (b'{"model":"m","x":"\xff\xfe"}' + b"\xff", 400, "invalid_body"),
            (b"{}", 400, "model_required"),
            (b'{"model":7,"messages":[]}', 400, "model_required"),
            (b'{"model":"n","messages":[]}', 404, "model_not_found"),
            (b'{"model":"m","messages":[' + b"1," * 600_000 + b"1]}", 413, "request_too_large"),
        ],
    )
    def test_a_body_that_no_backend_could_take_is_refused(self, live: Any, body: bytes, status: int, code: str) -> None:
        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server, max_body_bytes=1_000_000) as router:
                async with aiohttp.ClientSession(router.address) as client, client.post(CHAT, data=body) as answer:
                    assert answer.status == status
                    assert (await answer.json())["error"]["code"] == code
                assert server.asked == []
                assert metric(router, "requests_total", policy="round-robin", backend="none", status=str(status)) == 1

        live.run(main())

    def test_a_shape_that_only_the_backend_knows_goes_through(self, live: Any) -> None:
        async def answer(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(422, "application/json", 2) + b"{}")

        async def main() -> None:
            async with live.backends(1, answer) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, data=b'{"model":"m","messages":"odd"}') as answered:
                        assert (answered.status, await answered.read()) == (422, b"{}")
                assert router.backends[0].routable(1e12)

        live.run(main())

    def test_a_key_is_asked_of_clients_and_shown_to_backends(self, live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ROUTER_KEY", "secret")

        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server, api_key_env="ROUTER_KEY") as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer sécret"}):
                        async with client.post(CHAT, json=live.ask(), headers=headers) as answer:
                            assert answer.status == 401
                            assert "secret" not in await answer.text()
                    async with client.get("/v1/models") as answer:
                        assert answer.status == 401
                    async with client.post(CHAT, json=live.ask(), headers={"Authorization": "Bearer secret"}) as answer:
                        assert answer.status == 200
                [asked] = server.asked
                assert asked.header("authorization") == "Bearer secret"

        live.run(main())


class TestStreams:
    def test_hundreds_of_streams_at_once_come_whole_in_order_and_uncrossed(self, live: Any) -> None:
        async def one(client: aiohttp.ClientSession, name: str) -> None:
            async with client.post(CHAT, json=live.ask(name, stream=True)) as answer:
                assert answer.headers["Content-Type"] == "text/event-stream"
                found = await answer.read()
            expected = live.event("") + b"".join(live.event(f"{name}/{number}") for number in range(8))
            assert found == expected + b"data: [DONE]\n\n"

        async def main() -> None:
            async with live.backends(3) as servers, live.routing(*servers, policy="fewest-requests") as router:
                for server in servers:
                    server.pause_s = 0.001
                connector = aiohttp.TCPConnector(limit=0)
                async with aiohttp.ClientSession(router.address, connector=connector) as client:
                    await asyncio.gather(*(one(client, f"request-{number}") for number in range(300)))
                assert sum(len(server.asked) for server in servers) == 300
                assert min(len(server.asked) for server in servers) > 50
                assert [backend.account.in_flight for backend in router.backends] == [0, 0, 0]

        live.run(main())

    def test_an_event_comes_to_the_client_before_the_next_one_is_made(self, live: Any) -> None:
        gate = []

        async def answer(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(200, "text/event-stream"))
            for number in range(3):
                writer.write(live.chunk(live.event(str(number))))
                await writer.drain()
                gate.append(asyncio.Event())
                await gate[-1].wait()
            writer.write(live.chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        async def main() -> None:
            async with live.backends(1, answer) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask(stream=True)) as answered:
                        for number in range(3):
                            assert await answered.content.readany() == live.event(str(number))
                            gate[number].set()
                        assert await answered.content.read() == b"data: [DONE]\n\n"

        live.run(main())

    def test_a_client_that_leaves_takes_its_request_at_the_backend_with_it(self, live: Any) -> None:
        async def endless(backend: Any, asked: Any, writer: Any) -> None:
            if asked.json["stream"]:
                writer.write(live.head(200, "text/event-stream") + live.chunk(live.event("x")))
            await asyncio.sleep(60)

        async def main() -> None:
            async with live.backends(1, endless) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for number, stream in enumerate((True, False), 1):
                        asking = asyncio.ensure_future(client.post(CHAT, json=live.ask(stream=stream)))
                        await live.until(lambda number=number: len(server.asked) == number)
                        if stream:
                            (await asking).close()
                        else:
                            asking.cancel()
                        await live.until(lambda number=number: server.left == number)
                assert router.backends[0].account.in_flight == 0
                assert router.proxy.in_flight == 0
                assert metric(router, "client_cancels_total") == 2

        live.run(main())

    def test_a_client_that_reads_slowly_slows_its_backend_and_nobody_else(self, live: Any) -> None:
        written = []

        async def flood(backend: Any, asked: Any, writer: Any) -> None:
            if not asked.json["stream"]:
                return await live.well_behaved(backend, asked, writer)
            writer.write(live.head(200, "text/event-stream"))
            for _ in range(400):
                writer.write(live.chunk(b"data: " + b"x" * 65_536 + b"\n\n"))
                await writer.drain()
                written.append(1)
            writer.write(b"0\r\n\r\n")
            return None

        async def main() -> None:
            async with live.backends(1, flood) as [server], live.routing(server) as router:
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                writer.write(posted(json.dumps(live.ask(stream=True)).encode()))
                await live.until(lambda: len(written) > 10)
                before = -1
                while len(written) != before:
                    before = len(written)
                    await asyncio.sleep(0.1)
                # 26 MB are on offer; what lies in buffers on the way is much less.
                assert before < 300
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.status == 200
                whole = 0
                while piece := await reader.read(1 << 20):
                    whole += len(piece)
                    if piece.endswith(b"0\r\n\r\n"):
                        break
                assert whole > 400 * 65_536
                writer.close()

        live.run(main())


class TestFailures:
    def test_a_request_goes_to_another_backend_while_nothing_was_answered(self, live: Any) -> None:
        async def dies(backend: Any, asked: Any, writer: Any) -> None:
            writer.transport.abort()

        async def main() -> None:
            # No connection is used twice: an idle one is first asked again.
            async with live.backends(2) as servers, live.routing(*servers, keep_alive_s=0.0) as router:
                servers[0].behaviour = dies
                async with aiohttp.ClientSession(router.address) as client:
                    for stream in (False, True):
                        async with client.post(CHAT, json=live.ask(stream=stream)) as answer:
                            assert answer.status == 200
                            assert b"hello" in await answer.read()
                assert len(servers[1].asked) == 2
                assert metric(router, "retries_total", backend=router.backends[0].name, reason="died") >= 1

        live.run(main())

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nContent-Length: 11\r\n\r\n0123456789",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nBad Header: 1\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nX: 1\r\n folded\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
            b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
            b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{",
            b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
            b"",
        ],
    )
    def test_a_lying_backend_is_not_believed(self, live: Any, answer: bytes) -> None:
        async def lies(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(answer)
            await writer.drain()
            writer.close()

        async def main() -> None:
            async with live.backends(2) as servers, live.routing(*servers, keep_alive_s=0.0) as router:
                servers[0].behaviour = lies
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask()) as answered:
                        found = await answered.json()
                        # Only a request without a byte of an answer goes to another backend.
                        again = answer == b"" or answer.startswith(b"HTTP/1.1 503")
                        assert answered.status == (200 if again else 502)
                        assert ("choices" in found) == again
                assert len(servers[0].asked) == 1
                assert len(servers[1].asked) == again

        live.run(main())

    def test_bytes_behind_an_answer_are_never_taken_for_the_next_one(self, live: Any) -> None:
        async def doubles(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.plain(asked.json["messages"][0]["content"]) + live.plain("poison"))

        async def main() -> None:
            async with live.backends(1, doubles) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for number in range(5):
                        async with client.post(CHAT, json=live.ask(str(number))) as answer:
                            assert (await answer.json())["choices"][0]["message"]["content"] == str(number)

        live.run(main())

    @pytest.mark.parametrize("how", ["abort", "close", "garbage"])
    def test_a_stream_that_breaks_off_never_looks_complete(self, live: Any, how: str) -> None:
        async def breaks(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(200, "text/event-stream") + live.chunk(live.event("one")))
            await writer.drain()
            await asyncio.sleep(0.05)
            if how == "garbage":
                writer.write(b"zzz\r\n")
            elif how == "close":
                writer.close()
            else:
                writer.transport.abort()

        async def main() -> None:
            async with live.backends(2, breaks) as servers, live.routing(*servers) as router:
                found = await raw(router.port, posted(json.dumps(live.ask(stream=True)).encode()))
                assert live.event("one") in found
                assert b'data: {"error": {"message": ' in found
                assert b"[DONE]" not in found
                assert not found.endswith(b"0\r\n\r\n")
                # Its first byte was out: no other backend is asked.
                assert sum(len(server.asked) for server in servers) == 1
                broken = sum(metric(router, "broken_streams_total", backend=each.name) for each in router.backends)
                assert broken == 1
                assert sum(backend.account.in_flight for backend in router.backends) == 0

        live.run(main())

    def test_a_stream_that_ends_with_the_connection_must_say_that_it_is_done(self, live: Any) -> None:
        done = [b"data: [DONE]\n\n", b""]

        async def old(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + live.event("one"))
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(done[len(backend.asked) - 1])
            writer.close()

        async def main() -> None:
            async with live.backends(1, old) as [server], live.routing(server) as router:
                body = posted(json.dumps(live.ask(stream=True)).encode(), "Connection: close")
                first, second = await raw(router.port, body), await raw(router.port, body)
                assert first.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
                assert b'"error"' in second
                assert not second.endswith(b"0\r\n\r\n")

        live.run(main())

    def test_a_long_answer_that_breaks_off_breaks_off_at_the_client(self, live: Any) -> None:
        async def short(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(200, "application/json", 4_000_000) + b"x" * 2_000_000)
            await writer.drain()
            writer.close()

        async def main() -> None:
            async with live.backends(1, short) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.headers["Content-Length"] == "4000000"
                        with pytest.raises(aiohttp.ClientPayloadError):
                            await answer.read()

        live.run(main())

    @pytest.mark.parametrize(
        ("settings", "code"),
        [({"first_byte_s": 0.1}, "first_byte"), ({"total_s": 0.1}, "timeout")],
    )
    def test_a_backend_that_never_answers_gives_504(self, live: Any, settings: dict[str, Any], code: str) -> None:
        async def silent(backend: Any, asked: Any, writer: Any) -> None:
            await asyncio.sleep(60)

        async def main() -> None:
            async with live.backends(1, silent) as [server], live.routing(server, **settings) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask(stream=True)) as answer:
                        assert answer.status == 504
                        assert (await answer.json())["error"]["code"] == code
                await live.until(lambda: server.left == 1)

        live.run(main())

    @pytest.mark.parametrize(
        "settings",
        [{"idle_s": 0.1}, {"total_s": 0.3}, {"max_response_bytes": 100_000}],
        ids=lambda each: next(iter(each)),
    )
    def test_a_body_that_never_ends_is_ended(self, live: Any, settings: dict[str, Any]) -> None:
        async def endless(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(200, "text/event-stream"))
            while True:
                writer.write(live.chunk(live.event("x" * 1000)))
                await writer.drain()
                await asyncio.sleep(10 if "idle_s" in settings else 0.002)

        async def main() -> None:
            async with live.backends(1, endless) as [server], live.routing(server, **settings) as router:
                found = await raw(router.port, posted(json.dumps(live.ask(stream=True)).encode()))
                assert b'data: {"error": ' in found
                assert not found.endswith(b"0\r\n\r\n")
                await live.until(lambda: server.left == 1)
                assert router.backends[0].account.in_flight == 0

        live.run(main())

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_slow_backend_is_no_failed_one(self, live: Any, stream: bool) -> None:
        async def slow(backend: Any, asked: Any, writer: Any) -> None:
            await asyncio.sleep(0.5)
            await live.well_behaved(backend, asked, writer)

        async def main() -> None:
            async with live.backends(3, slow) as servers:
                async with live.routing(*servers, first_byte_s=0.1, eject_after=1) as router:
                    async with aiohttp.ClientSession(router.address) as client:
                        for _ in range(3):
                            async with client.post(CHAT, json=live.ask(stream=stream)) as answer:
                                # A plain answer comes when it is whole; of a stream the first byte is late.
                                assert answer.status == (504 if stream else 200)
                                await answer.read()
                    # Each ran once, and nobody is out for it.
                    assert [len(server.asked) for server in servers] == [1, 1, 1]
                    assert len(router.dispatcher.targets) == 3
                    assert sum(metric(router, "retries_total", backend=each.name, reason="first_byte")
                               for each in router.backends) == 0  # fmt: skip

        live.run(main())

    @pytest.mark.parametrize("how", ["in the head", "behind the head", "in the body", "504"])
    def test_a_request_that_was_answered_at_all_is_never_sent_again(self, live: Any, how: str) -> None:
        async def breaks(backend: Any, asked: Any, writer: Any) -> None:
            whole = live.plain()
            cut = {"in the head": 10, "behind the head": whole.index(b"{"), "in the body": len(whole) - 1}.get(how)
            writer.write(live.head(504, "application/json", 2) + b"{}" if cut is None else whole[:cut])
            await writer.drain()
            writer.close()

        async def main() -> None:
            async with live.backends(3, breaks) as servers, live.routing(*servers) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.status == (504 if how == "504" else 502)
                assert sum(len(server.asked) for server in servers) == 1

        live.run(main())

    def test_retries_are_bounded_by_a_budget(self, live: Any) -> None:
        async def dies(backend: Any, asked: Any, writer: Any) -> None:
            writer.transport.abort()

        async def main() -> None:
            settings = {"eject_after": 10_000, "retry_floor": 2, "retry_share": 0.1, "retry_window_s": 60.0}
            async with live.backends(2, dies) as servers, live.routing(*servers, **settings) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for _ in range(30):
                        async with client.post(CHAT, json=live.ask()) as answer:
                            assert answer.status == 502
                # 30 requests, and a tenth of them and two more sent again.
                assert sum(len(server.asked) for server in servers) == 35
                assert metric(router, "denied_retries_total") >= 20

        live.run(main())

    def test_all_tries_failing_gives_the_last_failure(self, live: Any) -> None:
        async def busy(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(503, "application/json", 14, "Retry-After: 9\r\n") + b'{"error":"no"}')

        async def dies(backend: Any, asked: Any, writer: Any) -> None:
            writer.transport.abort()

        async def main() -> None:
            async with live.backends(3, busy) as servers, live.routing(*servers, tries=2) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert (answer.status, await answer.read()) == (503, b'{"error":"no"}')
                        assert answer.headers["Retry-After"] == "9"
                    assert sum(len(server.asked) for server in servers) == 2
                    for server in servers:
                        server.behaviour = dies
                    async with client.post(CHAT, json=live.ask()) as answer:
                        assert answer.status == 502
                        assert (await answer.json())["error"]["type"] == "server_error"

        live.run(main())

    def test_a_connection_that_the_backend_closed_while_idle_is_no_failure(self, live: Any) -> None:
        async def closes(backend: Any, asked: Any, writer: Any) -> None:
            await live.well_behaved(backend, asked, writer)
            await writer.drain()
            # Without a word in the answer: the router still believes in the connection.
            asyncio.get_running_loop().call_later(0.01, writer.transport.abort)

        async def main() -> None:
            # On a busy machine every connection is closed before its next use, which the budget of retries must allow.
            async with live.backends(1, closes) as [server], live.routing(server, retry_share=1.0) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    for _ in range(20):
                        async with client.post(CHAT, json=live.ask()) as answer:
                            assert answer.status == 200
                        await asyncio.sleep(0.009)
                assert metric(router, "retries_total", backend=router.backends[0].name, reason="died") == 0

        live.run(main())


class TestStrictness:
    @pytest.mark.parametrize(
        "lines",
        [
            ("Content-Length: 4", "Transfer-Encoding: chunked"),
            ("Transfer-Encoding: chunked", "Content-Length: 4"),
            ("Content-Length: 4", "Content-Length: 5"),
            ("Content-Length: +4",),
            ("Content-Length: 4 4",),
            ("Content-Length: 0x4",),
            ("Transfer-Encoding: xchunked",),
            ("Transfer-Encoding: chunked, identity",),
            ("Transfer-Encoding : chunked",),
            ("Content-Length: 4", "X: a\rb"),
            ("Content-Length: 4", "X: a\x00b"),
            ("Content-Length: 4", "X: a", " folded: b"),
            ("Content-Length: 4", "X y: a"),
        ],
        ids=" + ".join,
    )
    def test_a_request_with_two_readings_reaches_no_backend(self, live: Any, lines: tuple[str, ...]) -> None:
        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server) as router:
                hidden = posted(json.dumps(live.ask("smuggled")).encode())
                found = await raw(router.port, posted(b"0\r\n\r\n" + hidden, *lines))
                assert re.match(rb"HTTP/1\.[01] 400 ", found)
                assert found.count(b"HTTP/1.") == 1
                assert server.asked == []
                assert router.proxy.in_flight == 0

        live.run(main())

    def test_a_chunked_request_arrives_with_one_length_and_nothing_of_the_connection(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server) as router:
                body = json.dumps(live.ask()).encode()
                data = live.chunk(body[:7]) + live.chunk(body[7:]) + b"0\r\n\r\n"
                lines = (
                    "Transfer-Encoding: chunked", "Connection: close, X-Mine", "X-Mine: 1", "Keep-Alive: 5",
                    "TE: trailers", "Upgrade: h2c", "Proxy-Authorization: Basic x", "X-Kept: 1",
                )  # fmt: skip
                found = await raw(router.port, posted(data, *lines))
                assert found.startswith(b"HTTP/1.1 200 ")
                [asked] = server.asked
                assert asked.body == body
                assert {name.lower() for name, _ in asked.headers} == {
                    "host", "content-length", "x-kept", "x-request-id", "via",
                }  # fmt: skip

        live.run(main())

    def test_pipelined_requests_are_answered_in_order(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(2) as servers, live.routing(*servers) as router:
                bodies = [json.dumps(live.ask(f"number {i}")).encode() for i in range(5)]
                data = b"".join(posted(body) for body in bodies[:-1]) + posted(bodies[-1], "Connection: close")
                found = await raw(router.port, data)
                assert re.findall(rb'"content": "(number \d)"', found) == [b"number %d" % i for i in range(5)]

        live.run(main())

    def test_hop_by_hop_headers_of_an_answer_stay_behind(self, live: Any) -> None:
        async def answer(backend: Any, asked: Any, writer: Any) -> None:
            lines = ("Connection: X-Mine", "X-Mine: 1", "Keep-Alive: timeout=1", "Upgrade: h2c", "X-Kept: \xe9",
                     "Set-Cookie: a", "Set-Cookie: b", "")  # fmt: skip
            more = "\r\n".join(lines)
            writer.write(
                live.head(200, "application/json", 2).replace(b"\r\n\r\n", b"\r\n" + more.encode("latin-1") + b"\r\n")
                + b"{}"
            )

        async def main() -> None:
            async with live.backends(1, answer) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post(CHAT, json=live.ask()) as answered:
                        names = {name.lower() for name in answered.headers}
                        assert not names & {"x-mine", "keep-alive", "upgrade"}
                        assert answered.headers.getall("Set-Cookie") == ["a", "b"]
                        assert "x-kept" in names

        live.run(main())

    def test_expect_continue_is_answered_before_the_body_comes(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server, max_body_bytes=1000) as router:
                body = json.dumps(live.ask()).encode()
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                writer.write(posted(b"", f"Content-Length: {len(body)}", "Expect: 100-continue"))
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(body)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                writer.close()
                found = await raw(router.port, posted(b"", "Content-Length: 5000", "Expect: 100-continue"))
                assert found.startswith(b"HTTP/1.1 413 ")
                assert (await raw(router.port, posted(body, "Expect: magic", "Connection: close"))).startswith(
                    b"HTTP/1.1 417 "
                )
                assert (await raw(router.port, posted(body, "Content-Encoding: gzip", "Connection: close"))).startswith(
                    b"HTTP/1.1 415 "
                )
                assert server.asked[0].header("expect") is None

        live.run(main())

    def test_clients_that_dawdle_are_sent_away(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server, read_s=0.1, max_connections=3) as router:
                half = posted(b"{", "Content-Length: 10")
                dawdling = asyncio.gather(*(raw(router.port, data) for data in (b"", b"POST / HT", half)))
                await live.until(lambda: len(router.proxy.server.connections) == 3)
                # One connection more than are allowed.
                assert await raw(router.port, half) == b""
                found = await dawdling
                assert found[:2] == [b"", b""]
                assert found[2].startswith(b"HTTP/1.1 408 ")
                await live.until(lambda: not router.proxy.server.connections)

        live.run(main())

    def test_an_old_client_gets_a_stream_that_ends_with_its_connection(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1) as [server], live.routing(server) as router:
                body = json.dumps(live.ask(stream=True)).encode()
                found = await raw(router.port, posted(body).replace(b"HTTP/1.1", b"HTTP/1.0"))
                head, _, rest = found.partition(b"\r\n\r\n")
                assert b"Transfer-Encoding" not in head
                assert rest.startswith(b"data: ")
                assert rest.endswith(b"data: [DONE]\n\n")

        live.run(main())


def test_a_defect_of_the_router_is_a_500_and_logged(live: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server) as router:

            async def fails(request: Any) -> None:
                raise ZeroDivisionError

            router.dispatcher.assign = fails
            async with aiohttp.ClientSession(router.address) as client:
                async with client.post(CHAT, json=live.ask()) as answer:
                    assert answer.status == 500
                    assert (await answer.json())["error"]["type"] == "server_error"
            assert router.proxy.in_flight == 0

    live.run(main())
    assert "ZeroDivisionError" in caplog.text


def test_nothing_is_left_after_a_thousand_requests_of_all_kinds(live: Any) -> None:
    async def mixed(backend: Any, asked: Any, writer: Any) -> None:
        number = int(asked.json["messages"][0]["content"])
        if number % 10 == 3:
            writer.transport.abort()
        elif number % 10 == 5:
            writer.write(live.head(503, "application/json", 2) + b"{}")
        else:
            await live.well_behaved(backend, asked, writer)

    async def one(client: aiohttp.ClientSession, number: int) -> None:
        body = live.ask(str(number), stream=number % 2 == 0)
        if number % 10 == 7:
            try:
                async with asyncio.timeout(0.0005):
                    async with client.post(CHAT, json=body) as answer:
                        await answer.read()
            except TimeoutError:
                pass
            return
        async with client.post(CHAT, json=body) as answer:
            await answer.read()
            assert answer.status == (200 if number % 10 not in (3, 5) else answer.status)
            assert number % 10 != 3 or answer.status == 502

    async def main() -> None:
        async with live.backends(3, mixed) as servers, live.routing(*servers, eject_after=10_000) as router:
            async with aiohttp.ClientSession(router.address, connector=aiohttp.TCPConnector(limit=50)) as client:
                await asyncio.gather(*(one(client, number) for number in range(1000)))
            await live.until(lambda: router.proxy.in_flight == 0)
            await live.until(lambda: not router.proxy.server.connections)
            assert [backend.account.in_flight for backend in router.backends] == [0, 0, 0]
            tasks = {task.get_name() for task in asyncio.all_tasks()}
            expected = {"refresh", *(f"probe {backend.name}" for backend in router.backends)}
            expected |= {f"look {backend.name}" for backend in router.backends}
            assert {name for name in tasks if name.startswith(("refresh", "probe", "look"))} <= expected
            assert sum(backend.connections.open for backend in router.backends) <= 60
        assert all(backend.connections.open == 0 for backend in router.backends)

    live.run(main())
