"""One request's way to a backend and back: what is logged and charged.  Failures: test_proxy_failures."""

# Servers, a client and its requests are opened one inside the other, a line each.

# Servers, a client and its requests are opened one inside the other, a line each.
# ruff: noqa: SIM117

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from wavetank.serving.proxy.access import digest_of

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
def test_a_log_names_the_request_and_holds_nothing_that_was_asked(
    live: Any, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server, log="requests") as router:
            async with aiohttp.ClientSession(router.address) as client:
                headers = {"X-Request-Id": "mine-7", "Authorization": "Bearer hush"}
                body = live.ask("confidential", stream=stream)
                async with client.post(CHAT + "?key=hush", json=body, headers=headers) as answer:
                    await answer.read()
                    assert answer.headers["X-Request-Id"] == "mine-7"
                async with client.post("/nowhere\u2028?key=hush", headers=headers) as answer:
                    assert answer.status == 404
            assert server.asked[0].header("x-request-id") == "mine-7"

    caplog.set_level(logging.INFO, "wavetank.router")
    live.run(main())
    lines = [record.getMessage() for record in caplog.records if "id=mine-7" in record.getMessage()]
    assert len(lines) == 2
    assert f"POST '{CHAT}' 200 127.0.0.1:" in lines[0]
    assert "hush" not in caplog.text
    assert "confidential" not in caplog.text


def test_no_client_writes_a_line_of_the_log(live: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server, log="requests") as router:
            async with aiohttp.ClientSession(router.address) as client:
                for model in ("x\n2027-01-01 POST forged 200", "x\r\x1b[2J", "x\u2028y", "\ud800"):
                    async with client.post(CHAT, json={"model": model, "messages": []}) as answer:
                        assert answer.status in (400, 404)

    caplog.set_level(logging.INFO, "wavetank.router")
    live.run(main())
    messages = [record.getMessage() for record in caplog.records if "POST" in record.getMessage()]
    assert len(messages) == 4
    assert all(message.isascii() and message.isprintable() for message in messages)


USAGES = {
    "/v1/chat/completions": {"prompt_tokens": 10, "completion_tokens": 5000},
    "/v1/responses": {"input_tokens": 10, "output_tokens": 5000},
    "/v1/messages": {"input_tokens": 10, "output_tokens": 5000},
    "/v1/embeddings": {"prompt_tokens": 4000, "total_tokens": 4000},
}


@pytest.mark.parametrize("path", USAGES)
@pytest.mark.parametrize("size", [0, 1_500_000], ids=["short", "longer than what is held back"])
def test_no_endpoint_and_no_length_gets_past_a_limit_of_tokens(live: Any, tmp_path: Path, path: str, size: int) -> None:
    (tmp_path / "k").write_text(f'[[keys]]\nname = "a"\nsha256 = "{digest_of("a")}"\ntokens_per_minute = 1000\n')
    body = json.dumps({"text": "y" * size, "usage": USAGES[path]}).encode()

    async def answers(backend: Any, asked: Any, writer: Any) -> None:
        writer.write(live.head(200, "application/json", len(body)) + body)

    async def main() -> None:
        async with live.backends(1, answers) as [server], live.routing(server, keys_file=str(tmp_path / "k")) as router:
            async with aiohttp.ClientSession(router.address, headers={"X-Api-Key": "a"}) as client:
                for status in (200, 429):
                    async with client.post(path, json={**live.ask(), "input": "x"}) as answer:
                        assert answer.status == status
                        await answer.read()

    live.run(main())


@pytest.mark.parametrize(("stream", "left"), [(False, 1000 - 13), (True, 1000 - 29)])
def test_what_an_answer_used_is_charged_to_its_key(live: Any, tmp_path: Path, stream: bool, left: int) -> None:
    (tmp_path / "k").write_text(
        f'[[keys]]\nname = "a"\nsha256 = "{digest_of("a")}"\ntokens_per_minute = 1000\nburst_s = 60\n'
    )

    async def main() -> None:
        async with live.backends(1) as [server], live.routing(server, keys_file=str(tmp_path / "k")) as router:
            async with aiohttp.ClientSession(router.address, headers={"X-Api-Key": "a"}) as client:
                body = live.ask("x" * 1000, stream=stream, stream_options={"include_usage": True})
                async with client.post(CHAT, json=body) as answer:
                    assert answer.status == 200
                    await answer.read()
            [who] = router.access.clients
            assert who._tokens._level == pytest.approx(left, abs=1.0)

    live.run(main())
