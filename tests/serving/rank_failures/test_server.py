"""The server in front of ranks, with an instance that is none: streams, whole answers, refusals and failures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs the library aiohttp")

from aiohttp.test_utils import TestClient, TestServer

from wavetank.errors import WavetankError
from wavetank.serving.rank_failures import server as module
from wavetank.serving.rank_failures.instance import Answer, Change
from wavetank.serving.rank_failures.server import ExpertServer, InstanceThread
from wavetank.serving.rank_failures.small_model import Shape, word


class FakeInstance:
    """Says the prompt's tokens over and over; three at a time."""

    def __init__(self) -> None:
        self.failure: WavetankError | None = None
        self.fails_at = 10**9
        self.forgotten: list[int] = []
        self.silent = False

    def ask(self, prompt: list[int], count: int, heard: Callable[[Answer], None]) -> int:
        if self.silent:
            return 7
        answer = Answer(0, prompt, count)
        while not answer.done:
            if len(answer.said) >= self.fails_at:
                answer.error = WavetankError("Weights of experts are nowhere any more.")
            else:
                answer.said.append(prompt[len(answer.said) % len(prompt)])
            heard(answer)
        return 7

    def forget(self, ticket: int) -> None:
        self.forgotten.append(ticket)


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


def test_a_client_that_leaves_before_the_first_token_is_forgotten() -> None:
    instance = FakeInstance()
    instance.silent = True

    async def ask() -> None:
        server = ExpertServer(instance)  # type: ignore[arg-type]
        served = TestServer(server.app())
        await served.start_server()
        async with TestClient(served) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.post("/v1/completions", data='{"prompt": "a"}'), 0.2)
            for _ in range(100):
                await asyncio.sleep(0.01)
                if instance.forgotten:
                    break

    asyncio.run(ask())
    assert instance.forgotten == [7]


def test_an_error_in_a_stream_is_an_event_of_the_stream() -> None:
    instance = FakeInstance()
    instance.fails_at = 2
    status, text = asked(instance, "/v1/completions", {"prompt": "ab", "max_tokens": 5, "stream": True})
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200 and "HTTP/1.1" not in text and "[DONE]" not in text
    assert "".join(each["choices"][0]["text"] for each in events[:-1]) == "".join(map(word, [97, 98]))
    assert events[-1]["error"]["code"] == "unavailable"


class ToyInstance:
    """Stands for an instance, without processes."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.changes: list[Change] = []
        self.ranks = SimpleNamespace(pid=lambda rank: 1)
        self.fails, self.submitted, self.forgotten = fails, list[Answer](), list[int]()
        self.heard: Any = None

    def __enter__(self) -> ToyInstance:
        return self

    def __exit__(self, *given: object) -> None:
        return None

    def pump(self, seconds: float, until: Callable[[], bool]) -> bool:
        if self.fails is not None and self.submitted:
            raise self.fails
        self.changes = [Change(0, 1, (0,), (), 0, (), (), 0.0, 0, 0)]
        time.sleep(0.001)
        return until()

    def submit(self, prompt: list[int], count: int) -> Answer:
        self.submitted.append(Answer(len(self.submitted), prompt, count))
        return self.submitted[-1]

    def forget(self, answer: Answer) -> None:
        self.forgotten.append(answer.number)


def threaded(monkeypatch: pytest.MonkeyPatch, toy: ToyInstance) -> InstanceThread:
    monkeypatch.setattr(module, "Instance", lambda shape, **settings: toy)
    found = InstanceThread(Shape(), {}, lambda line: None)
    found.start()
    return found


def test_a_request_is_forgotten_by_its_ticket_and_hears_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    toy, heard = ToyInstance(), list[Answer]()
    found = threaded(monkeypatch, toy)
    first, second = found.ask([1], 5, heard.append), found.ask([2], 5, heard.append)
    found.forget(first)
    for _ in range(1000):
        if toy.forgotten:
            break
        time.sleep(0.002)
    assert toy.forgotten == [0] and second != first
    found.close()
    # The other one is refused at the end, and so is whatever comes later.
    assert [str(each.error) for each in heard] == ["The instance was stopped."]
    found.ask([3], 5, heard.append)
    assert len(heard) == 2 and heard[1].error is not None


def test_a_broken_instance_is_a_failure_and_leaves_no_request_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Answer] = []
    found = threaded(monkeypatch, ToyInstance(KeyError("what nobody thought of")))
    found.ask([1], 5, heard.append)
    for _ in range(1000):
        if heard:
            break
        time.sleep(0.002)
    assert "nobody thought of" in str(heard[0].error) and found.failure is not None
    found.close()


def test_an_interrupt_while_ranks_begin_ends_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyInstance()
    monkeypatch.setattr(toy, "pump", lambda seconds, until: time.sleep(0.001))
    monkeypatch.setattr(module, "Instance", lambda shape, **settings: toy)
    found = InstanceThread(Shape(), {}, lambda line: None)

    def interrupted(seconds: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(found._begun, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found.start()
    try:
        assert not found._thread.is_alive()
    finally:
        found._stop.set()
