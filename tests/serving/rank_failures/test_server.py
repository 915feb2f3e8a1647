"""The server in front of ranks, with an instance that is none: streams, whole answers, refusals and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs the library aiohttp")

from aiohttp.test_utils import TestClient, TestServer

from wavetank.errors import WavetankError
from wavetank.serving.rank_failures.instance import Answer
from wavetank.serving.rank_failures.server import ExpertServer
from wavetank.serving.rank_failures.small_model import word


class FakeInstance:
    """Says the prompt's tokens over and over; three at a time."""

    def __init__(self) -> None:
        self.failure: WavetankError | None = None
        self.fails_at = 10**9
        self.forgotten: list[Answer] = []

    def ask(self, prompt: list[int], count: int, heard: Callable[[Answer], None]) -> None:
        answer = Answer(0, prompt, count)
        while not answer.done:
            if len(answer.said) >= self.fails_at:
                answer.error = WavetankError("Weights of experts are nowhere any more.")
            else:
                answer.said.append(prompt[len(answer.said) % len(prompt)])
            heard(answer)

    def forget(self, answer: Answer) -> None:
        self.forgotten.append(answer)


def asked(instance: FakeInstance, path: str, body: Any) -> tuple[int, str]:
    async def ask() -> tuple[int, str]:
        server = ExpertServer(instance)  # type: ignore[arg-type]
        async with TestClient(TestServer(server.app())) as client:
            response = await (client.get(path) if body is None else client.post(path, data=json.dumps(body)))
            text = await response.text()
            assert server.unanswered == 0
            return response.status, text

    return asyncio.run(ask())


def test_a_stream_and_a_whole_answer_say_the_same_words() -> None:
    wanted = "".join(map(word, [104, 105, 104, 105, 104]))
    status, whole = asked(FakeInstance(), "/v1/completions", {"prompt": "hi", "max_tokens": 5})
    assert (status, json.loads(whole)["choices"][0]["text"]) == (200, wanted)
    assert json.loads(whole)["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True}
    status, text = asked(FakeInstance(), "/v1/chat/completions", body)
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200 and events[-1] == "[DONE]"
    choices = [json.loads(each)["choices"][0] for each in events[:-1]]
    assert "".join(each["delta"]["content"] for each in choices) == wanted
    assert [each["finish_reason"] for each in choices][-1] == "length"


@pytest.mark.parametrize(
    ("body", "status"),
    [({"prompt": [256]}, 400), ({"prompt": "a", "model": "other"}, 404), ({"prompt": "a", "max_tokens": 70000}, 400),
     ({"prompt": ""}, 400)],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused(body: dict[str, Any], status: int) -> None:
    assert asked(FakeInstance(), "/v1/completions", body)[0] == status


def test_an_instance_that_fails_says_why() -> None:
    instance = FakeInstance()
    instance.fails_at = 0
    status, text = asked(instance, "/v1/completions", {"prompt": "a"})
    assert status == 503 and "nowhere any more" in text
    instance.failure = WavetankError("All is lost.")
    assert asked(instance, "/v1/completions", {"prompt": "a"})[0] == 503
    assert asked(instance, "/health", None) == (503, '{"status":"failed"}')
    status, text = asked(FakeInstance(), "/v1/models", None)
    assert (status, json.loads(text)["data"][0]["id"]) == (200, "small-experts")
