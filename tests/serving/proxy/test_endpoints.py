"""Other paths than completions: read strictly, routed by model, passed on untouched; and forms with tricks in them."""

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.proxy.endpoints import ENDPOINTS, MOST_PARTS, path_of, read_form, read_request, with_model
from wavetank.serving.proxy.prompt_size import BodyError

JSON = "application/json"
FORM = "multipart/form-data; boundary=b"
POSTED = [path for path, endpoint in ENDPOINTS.items() if endpoint.kind != "own"]


def form(*parts: bytes, end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + end


def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="%b"%b\r\n\r\n%b' % (name, more, value)


def body_of(path: str, **more: Any) -> tuple[bytes, str]:
    """Return a body that the endpoint takes."""
    if ENDPOINTS[path].kind == "form":
        sound = part(b"file", bytes(range(256)), b'; filename="a.wav"')
        return form(part(b"model", more.get("model", "m").encode()), sound), FORM
    return json.dumps({"model": "m", "input": "hello", **more}).encode(), JSON


class TestReading:
    @pytest.mark.parametrize(
        ("path", "body", "tokens", "text"),
        [
            ("/v1/embeddings", {"input": [1, 2, 3]}, 3, 0),
            ("/v1/embeddings", {"input": [[1, 2], [3]]}, 3, 0),
            ("/v1/embeddings", {"input": ["a", "b"]}, 0, 10),
            ("/v1/embeddings", {"input": [1, "b"]}, 0, 8),
            ("/v1/rerank", {"query": "abc", "documents": ["d"]}, 0, 10),
            ("/score", {"text_1": "ab", "text_2": "c"}, 0, 7),
            ("/v1/messages", {"system": "s", "messages": [], "max_tokens": 9}, 0, 5),
            ("/tokenize", {"prompt": "x" * 10_000}, 1, 0),
            ("/v1/responses", {"input": "abc", "previous_response_id": None, "background": False}, 0, 5),
        ],
    )
    def test_a_prompt_is_measured_wherever_it_stands(
        self, path: str, body: dict[str, Any], tokens: int, text: int
    ) -> None:
        found = read_request(ENDPOINTS[path], json.dumps({"model": "m", **body}).encode(), JSON)
        assert (found.model, found.token_ids, found.text_bytes, found.stream) == ("m", tokens, text, False)

    @pytest.mark.parametrize(
        ("path", "body", "kind"),
        [
            ("/v1/embeddings", b"[]", JSON),
            ("/v1/embeddings", b'{"model":', JSON),
            ("/v1/embeddings", b'{"model":["m"]}', JSON),
            ("/v1/embeddings", b'{"a":' + b"[" * 100_000, JSON),
            ("/v1/embeddings", b'{"model":"m"}', "application/json; charset=utf-16"),
            ("/v1/embeddings", b'{"model":"m"}', 'application/json; Charset = "utf-7"'),
            ("/v1/chat/completions", b'{"model":"m"}', "application/json;charset=utf-7"),
            ("/v1/responses", b'{"model":"m","previous_response_id":"resp_1"}', JSON),
            ("/v1/responses", b'{"model":"m","background":true}', JSON),
            ("/v1/responses", b'{"model":"m","conversation":"c"}', JSON),
            ("/v1/audio/transcriptions", b'{"model":"m"}', JSON),
        ],
    )
    def test_what_cannot_be_read_or_needs_a_memory_is_refused(self, path: str, body: bytes, kind: str) -> None:
        with pytest.raises(BodyError):
            read_request(ENDPOINTS[path], body, kind)

    @given(
        st.dictionaries(
            st.text(max_size=8),
            st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.lists(st.integers()),
        )
    )
    def test_a_body_with_another_model_is_the_same_otherwise(self, fields: dict[str, Any]) -> None:
        fields = {name: value for name, value in fields.items() if name.casefold() != "model"}
        found = json.loads(with_model(json.dumps({**fields, "model": "alias"}).encode(), "m"))
        assert found == {**fields, "model": "m"}

    def test_numbers_and_text_keep_their_bytes(self) -> None:
        given = b'{"seed": 1e400, "x" :"\\u00e4", "n": 12345678901234567890123, "model":"a", "model" : "b"}'
        found = with_model(given, "m")
        assert b"1e400" in found
        assert b'"\\u00e4"' in found
        assert b"12345678901234567890123" in found
        assert found.count(b'"model"') == 1
        for name in (b"Model", b"MODEL", b"\\u004dodel"):
            with pytest.raises(BodyError):
                with_model(b'{"model":"a","%b":"b"}' % name, "m")

    @pytest.mark.parametrize(
        ("path", "found"),
        [
            ("/v1/embeddings?x=/v1/models/", "/v1/embeddings"),
            ("/v1/models/a/b", "/v1/models/"),
            ("/v1/models/", ""),
            ("/v1/models/..%2f..", "/v1/models/"),
            ("/v1/embeddings/", "/v1/embeddings/"),
        ],
    )
    def test_a_path_is_taken_as_it_is(self, path: str, found: str) -> None:
        assert path_of(path) == found


class TestForms:
    def test_a_form_names_its_model_wherever_it_stands(self) -> None:
        for parts in (
            (part(b"model", b"m"),),
            (part(b"file", b"\r\n--a\r\n--", b'; filename=""'), part(b"model", b"m")),
            (b"X: y\r\n" + part(b"model", b"m"), part(b"file", b"")),
        ):
            body = form(*parts)
            found = read_form(body, FORM)
            assert found.model == "m"
            assert found.with_model(body, "other") == body.replace(b"\r\n\r\nm\r\n", b"\r\n\r\nother\r\n")
        assert read_form(form(part(b"model", b"m")), 'Multipart/Form-Data; boundary="b"').model == "m"

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"--b--\r\n",
            form(),
            form(part(b"file", b"x")),
            form(part(b"model", b"")),
            form(part(b"model", b"a b")),
            form(part(b"model", b"m\n")),
            form(part(b"model", b"m"), part(b"model", b"m")),
            form(part(b"model", b"m"), part(b"Model", b"secret")),
            form(part(b"model", b"m")) + b"--b\r\n" + part(b"model", b"secret") + b"\r\n--b--\r\n",
            b"preamble\r\n" + form(part(b"model", b"m")),
            form(part(b"model", b"m")) + b"epilogue",
            form(part(b"model", b"m"), end=b"--b\r\n"),
            form(part(b"model", b"m"), end=b""),
            form(part(b"file", b"\n--b\r\n" + part(b"model", b"secret")), part(b"model", b"m")),
            form(part(b"model", b"m"), b'Content-Disposition: form-data; name=model\r\n\r\nsecret'),
            form(part(b"model", b"m"), b'Content-Disposition: form-data; name*=utf-8\'\'model\r\n\r\nsecret'),
            form(part(b"model", b"m"), b'Content-Disposition: form-data; name="a"; name="model"\r\n\r\nsecret'),
            form(part(b"model", b"m"), b'Content-Disposition: form-data; name="mo\\del"\r\n\r\nsecret'),
            form(part(b"model", b"m"), b'Content-Disposition: form-data;\r\n name="model"\r\n\r\nsecret'),
            form(b'Content-Disposition: form-data; name="a"\r\n' + part(b"model", b"m")),
            form(part(b"model", b"m"), b"Content-Type: text/plain\r\n\r\nno name"),
            form(b"Content-Transfer-Encoding: base64\r\n" + part(b"model", b"bQ==")),
            form(part(b"model", b"m"), b'Content-Disposition : form-data; name="x"\r\n\r\ny'),
            form(part(b"model", b"m"), b'Content-Disposition: form-data; name="x"\n\ny\r\n\r\nz'),
            form(part(b"model", b"m"), b'Content-Disposition: form-data; name="file"\r\n'),
            form(part(b"model", b"m"), *[part(b"x", b"") for _ in range(MOST_PARTS)]),
            form(b"X: " + b"y" * 10_000 + b"\r\n" + part(b"model", b"m")),
            form(part(b"model", b"m")).replace(b"--b\r\n", b"--b \r\n", 1),
        ],
    )  # fmt: skip
    def test_a_form_that_can_be_read_in_two_ways_is_refused(self, body: bytes) -> None:
        with pytest.raises(BodyError):
            read_form(body, FORM)

    @pytest.mark.parametrize(
        "kind",
        ["", "multipart/form-data", "multipart/mixed; boundary=b", "multipart/form-data; boundary=b; boundary=c",
         'multipart/form-data; boundary=""', "multipart/form-data; boundary=b, x",
         "multipart/form-data; boundary=\u00e4",
         "multipart/form-data; charset=x; boundary=b", "multipart/form-data; boundary=" + "b" * 71],
    )  # fmt: skip
    def test_a_boundary_is_given_once_and_plainly(self, kind: str) -> None:
        with pytest.raises(BodyError):
            read_form(form(part(b"model", b"m")), kind)

    @given(st.binary(max_size=200))
    def test_any_bytes_are_a_form_or_refused(self, data: bytes) -> None:
        for body in (data, form(data), form(part(b"model", data)), form(part(b"file", data), part(b"model", b"m"))):
            try:
                found = read_form(body, FORM)
            except BodyError:
                continue
            assert body[found.start : found.end].decode() == found.model


class TestTogether:
    @pytest.mark.parametrize("path", POSTED)
    def test_every_endpoint_is_passed_on_byte_for_byte_to_who_serves_the_model(self, live: Any, path: str) -> None:
        async def answers(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(live.head(200, "application/x-any", len(asked.body)) + asked.body)

        async def main() -> None:
            async with live.backends(2, answers) as servers:
                servers[0].models = ("other",)
                async with live.routing(*servers) as router, aiohttp.ClientSession(router.address) as client:
                    body, kind = body_of(path)
                    for _ in range(3):
                        headers = {"Content-Type": kind}
                        async with client.post(path + "?q=1", data=body, headers=headers) as answer:
                            assert (answer.status, await answer.read()) == (200, body)
                            assert answer.headers["Content-Type"] == "application/x-any"
                    for name in ("GET", "PUT"):
                        async with client.request(name, path) as answer:
                            assert (answer.status, answer.headers["Allow"]) == (405, "POST")
                    wrong, kind = body_of(path, model="nowhere")
                    async with client.post(path, data=wrong, headers={"Content-Type": kind}) as answer:
                        assert answer.status == 404
                        assert ((await answer.json()).get("type") == "error") == path.startswith("/v1/messages")
                    async with client.post(path, data=b"{", headers={"Content-Type": kind}) as answer:
                        assert answer.status == 400
                    assert [backend.account.in_flight for backend in router.backends] == [0, 0]
                assert servers[0].asked == []
                assert [(each.path, each.body) for each in servers[1].asked] == [(path + "?q=1", body)] * 3

        live.run(main())

    def test_a_model_may_be_left_out_where_there_is_one_only(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1) as [server]:
                async with live.routing(server) as router, aiohttp.ClientSession(router.address) as client:
                    for path, status in (("/tokenize", 200), ("/rerank", 200), ("/v1/embeddings", 400)):
                        async with client.post(path, json={"prompt": "x"}) as answer:
                            assert answer.status == status
                    server.models = ("m", "n")
                    await router.members._list_models(router.backends[0])
                    router._update()
                    async with client.post("/tokenize", json={"prompt": "x"}) as answer:
                        assert (await answer.json())["error"]["code"] == "model_required"

        live.run(main())

    @pytest.mark.parametrize(
        ("path", "last", "error"),
        [
            ("/v1/responses", b"response.completed", b"event: error\ndata: "),
            ("/v1/messages", b"message_stop", b'event: error\ndata: {"type": "error"'),
            ("/v1/chat/completions", b"[DONE]", b'data: {"error"'),
        ],
    )
    def test_a_stream_ends_with_its_own_last_event_or_with_an_error_of_its_kind(
        self, live: Any, path: str, last: bytes, error: bytes
    ) -> None:
        piece = b'event: x\ndata: {"delta":"a"}\n\n'

        async def answers(backend: Any, asked: Any, writer: Any) -> None:
            how = asked.json["input"]
            if how == "close":
                head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
                writer.write(head + piece + b"data: " + last + b"\n\n")
                await writer.drain()
                writer.close()
            else:
                writer.write(live.head(200, "text/event-stream") + live.chunk(piece))
                await writer.drain()
                await asyncio.sleep(0.01)
                writer.transport.abort()

        async def main() -> None:
            async with live.backends(1, answers) as [server]:
                async with live.routing(server, eject_after=100) as router:
                    async with aiohttp.ClientSession(router.address) as client:
                        body = {"model": "m", "stream": True, "messages": []}
                        async with client.post(path, json={**body, "input": "close"}) as answer:
                            assert await answer.read() == piece + b"data: " + last + b"\n\n"
                        async with client.post(path, json={**body, "input": "cut"}) as answer:
                            found = b""
                            with pytest.raises(aiohttp.ClientPayloadError):
                                async for data in answer.content.iter_any():
                                    found += data
                        assert found.startswith(piece)
                        assert error in found

        live.run(main())

    @pytest.mark.parametrize(
        ("path", "last", "ended"),
        [
            ("/v1/chat/completions", b"data: [DONE]", True),
            ("/v1/chat/completions", b"data:[DONE]\r", True),
            ("/v1/chat/completions", b'data: {"content": "[DONE]"}', False),
            ("/v1/chat/completions", b"data: [DONE]\n\n" + b'data: {"content": "more"}', False),
            ("/v1/chat/completions", b": [DONE]", False),
            ("/v1/responses", b'event: response.completed\ndata: {"response": {"output": []}}', True),
            ("/v1/responses", b'data: {"response": {"output": []}, "type":"response.incomplete"}', True),
            ("/v1/responses", b'data: {"type": "delta", "delta": "response.completed"}', False),
            ("/v1/responses", b'data: {"type": "delta", "delta": "\\"type\\": \\"response.completed\\""}', False),
            ("/v1/messages", b'event: message_stop\r\ndata: {"type": "message_stop"}', True),
            ("/v1/messages", b'event: message_delta\r\ndata: {"delta": "message_stop"}', False),
        ],
    )
    def test_a_mark_of_the_end_counts_in_the_last_event_and_in_no_text(
        self, path: str, last: bytes, ended: bool
    ) -> None:
        assert ENDPOINTS[path].ended(b'data: {"content": "x"}\n\n' + last + b"\n\n") is ended

    def test_an_end_that_comes_byte_by_byte_is_one(self, live: Any) -> None:
        async def trickles(backend: Any, asked: Any, writer: Any) -> None:
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + live.event("x"))
            for byte in b"data: [DONE]\n\n":
                await asyncio.sleep(0.001)
                writer.write(bytes([byte]))
            await writer.drain()
            writer.close()

        async def main() -> None:
            async with live.backends(1, trickles) as [server], live.routing(server) as router:
                async with aiohttp.ClientSession(router.address) as client:
                    async with client.post("/v1/chat/completions", json=live.ask(stream=True)) as answer:
                        assert await answer.read() == live.event("x") + b"data: [DONE]\n\n"

        live.run(main())

    def test_an_alias_stands_for_its_model_everywhere(self, live: Any) -> None:
        async def main() -> None:
            async with live.backends(1, models=("m", "n")) as [server]:
                async with live.routing(server, aliases={"gpt": "m", "lost": "nowhere"}) as router:
                    async with aiohttp.ClientSession(router.address) as client:
                        async with client.get("/v1/models") as answer:
                            assert [each["id"] for each in (await answer.json())["data"]] == ["m", "n", "gpt"]
                        async with client.get("/v1/models/gpt") as answer:
                            assert (await answer.json())["id"] == "gpt"
                        for path in ("/v1/chat/completions", "/v1/audio/transcriptions"):
                            body, kind = body_of(path, model="gpt", prompt="x", n=1)
                            async with client.post(path, data=body, headers={"Content-Type": kind}) as answer:
                                assert answer.status in (200, 502)
                        async with client.post("/v1/completions", json={"model": "lost", "prompt": "x"}) as answer:
                            found = await answer.json()
                            assert (answer.status, found["error"]["code"]) == (404, "model_not_found")
                            assert "nowhere" not in found["error"]["message"]
                assert server.asked[0].json == {"model": "m", "input": "hello", "prompt": "x", "n": 1}
                assert read_form(server.asked[1].body, FORM).model == "m"

        live.run(main())

    @pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages", "/v1/responses", "/v1/audio/transcriptions"])
    def test_a_client_that_leaves_in_any_round_of_the_loop_leaves_nothing_to_the_next_one(
        self, live: Any, path: str
    ) -> None:
        async def echo(backend: Any, asked: Any, writer: Any) -> None:
            await asyncio.sleep(0)
            if path in ("/v1/messages", "/v1/responses"):
                writer.write(live.head(200, "text/event-stream") + live.chunk(b"data: " + asked.body + b"\n\n"))
                await asyncio.sleep(0)
                writer.write(b"0\r\n\r\n")
            else:
                writer.write(live.head(200, "application/x-any", len(asked.body)) + asked.body)

        def message(name: str) -> bytes:
            if path.startswith("/v1/audio"):
                body, kind = form(part(b"model", b"m"), part(b"file", name.encode())), FORM
            else:
                body, kind = json.dumps({"model": "m", "input": name, "stream": True}).encode(), JSON
            return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
                path.encode(), kind.encode(), len(body), body,
            )  # fmt: skip

        async def main() -> None:
            async with live.backends(1, echo) as [server], live.routing(server, metrics="own") as router:
                for rounds in range(40):
                    _, writer = await asyncio.open_connection("127.0.0.1", router.port)
                    writer.write(message("secret"))
                    for _ in range(rounds):
                        await asyncio.sleep(0)
                    writer.transport.abort()
                    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                    writer.write(message(f"other-{rounds}"))
                    found = await reader.readuntil(f"other-{rounds}".encode())
                    assert b"HTTP/1.1 200" in found
                    assert b"secret" not in found
                    writer.close()
                await live.until(lambda: router.proxy.in_flight == 0)
                assert router.backends[0].account.in_flight == 0

        live.run(main())
