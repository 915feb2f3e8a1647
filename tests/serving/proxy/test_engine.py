"""A stand-in engine behaves as an OpenAI server does, keeps its model's pace, and forgets nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("aiohttp")
import aiohttp
from aiohttp import web

from wavetank.errors import BadValueError, WavetankError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.proxy.engine import DEFAULT_OUTPUT_TOKENS, Engine, EngineOptions, serve, token_text
from wavetank.serving.simulator.cluster import Cluster
from wavetank.workloads.generate import FixedLengths

FAST = FittedStepTime(overhead_s=2e-4)
SLOW = FittedStepTime(overhead_s=0.02)


def options(step_time: FittedStepTime = FAST, **given: Any) -> EngineOptions:
    own = EngineOptions.__dataclass_fields__
    limits = {name: given.pop(name) for name in list(given) if name not in own}
    return EngineOptions(model="m", cluster=Cluster(workers=1, step_time=step_time, **limits), **given)


@contextlib.asynccontextmanager
async def served(given: EngineOptions) -> AsyncIterator[tuple[Engine, aiohttp.ClientSession]]:
    engine = Engine(given, "engine-a")
    runner = web.AppRunner(engine.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            yield engine, session
    finally:
        await runner.cleanup()


def run(scenario: Callable[[Engine, aiohttp.ClientSession], Any], given: EngineOptions | None = None) -> Any:
    async def whole() -> Any:
        async with served(given or options()) as (engine, session):
            return await scenario(engine, session)

    return asyncio.run(asyncio.wait_for(whole(), 30))


async def asked(session: Any, path: str = "/v1/completions", **fields: Any) -> tuple[int, Any]:
    fields = {"prompt": [1, 2, 3], "max_tokens": 4, **fields} if path == "/v1/completions" else fields
    async with session.post(path, json=fields) as response:
        return response.status, json.loads(await response.read())


async def streamed(session: Any, path: str = "/v1/completions", *, given_id: str = "r1", **fields: Any) -> list[Any]:
    """Return the events of an answer, decoded; the last one must be the end."""
    fields = {"prompt": [1, 2, 3], "max_tokens": 4, "stream": True, **fields}
    async with session.post(path, json=fields, headers={"X-Request-Id": given_id}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        text = (await response.read()).decode()
    *events, end, nothing = text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def metrics(session: Any) -> dict[str, float]:
    async with session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():
            await asyncio.sleep(0.002)


def test_a_stream_names_its_request_and_counts_its_tokens() -> None:
    async def scenario(engine: Engine, session: Any) -> list[Any]:
        return await streamed(session, max_tokens=12, stream_options={"include_usage": True})

    *tokens, last = run(scenario)
    assert [event["choices"][0]["text"] for event in tokens] == [token_text(i) for i in range(12)]
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 11 + ["length"]
    assert {(event["id"], event["object"], event["model"], event["system_fingerprint"]) for event in tokens} == {
        ("cmpl-r1", "text_completion", "m", "engine-a")
    }
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


def test_a_chat_begins_with_its_role() -> None:
    async def scenario(engine: Engine, session: Any) -> list[Any]:
        fields = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 2}
        return await streamed(session, "/v1/chat/completions", **fields)

    first, *tokens = run(scenario)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"] for event in tokens] == [{"content": " t0"}, {"content": " t1"}]
    assert {event["object"] for event in (first, *tokens)} == {"chat.completion.chunk"}
    assert {event["id"] for event in (first, *tokens)} == {"chatcmpl-r1"}


def test_a_whole_answer_has_text_and_usage() -> None:
    async def scenario(engine: Engine, session: Any) -> Any:
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "user": "me"}
        return await asked(session, user="me"), await asked(session, "/v1/chat/completions", **chat)

    (status, plain), (_, chat) = run(scenario)
    assert status == 200
    assert plain["choices"] == [{"index": 0, "text": " t0 t1 t2 t3", "logprobs": None, "finish_reason": "length"}]
    assert (plain["id"], plain["object"], plain["usage"]["completion_tokens"]) == ("cmpl-me", "text_completion", 4)
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": " t0 t1 t2"}
    assert (chat["id"], chat["object"], chat["usage"]["prompt_tokens"]) == ("chatcmpl-me", "chat.completion", 2)


def test_many_streams_at_once_are_each_whole_and_their_own() -> None:
    async def scenario(engine: Engine, session: Any) -> list[list[Any]]:
        return await asyncio.gather(*(streamed(session, given_id=f"r{i}", max_tokens=1 + i % 40) for i in range(120)))

    for i, events in enumerate(run(scenario, options(max_running=16))):
        assert [event["choices"][0]["text"] for event in events] == [token_text(k) for k in range(1 + i % 40)]
        assert {event["id"] for event in events} == {f"cmpl-r{i}"}


def test_who_says_no_length_gets_the_default_and_drawn_lengths_end_with_stop() -> None:
    async def scenario(engine: Engine, session: Any) -> Any:
        exact = await asked(session, max_tokens=None)
        engine.options = options(lengths=FixedLengths(prompt_tokens=1, output_tokens=5))
        drawn = [await asked(session, max_tokens=limit) for limit in (None, 9, 5, 3)]
        forced = await asked(session, max_tokens=9, ignore_eos=True)
        least = await asked(session, max_tokens=9, min_tokens=7)
        return [(a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"]) for _, a in
                (exact, *drawn, forced, least)]  # fmt: skip

    assert run(scenario) == [
        (DEFAULT_OUTPUT_TOKENS, "length"),
        (5, "stop"), (5, "stop"), (5, "length"), (3, "length"), (9, "length"), (7, "stop"),
    ]  # fmt: skip


def test_equal_request_ids_draw_equal_lengths() -> None:
    from wavetank.workloads.generate import CONV

    async def scenario(engine: Engine, session: Any) -> list[int]:
        answers = [await asked(session, max_tokens=3000, user=user) for user in ("a", "b", "a")]
        return [answer["usage"]["completion_tokens"] for _, answer in answers]

    first, other, again = run(scenario, options(FittedStepTime(overhead_s=1e-6), lengths=CONV))
    assert first == again != other


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"prompt": [1] * 90, "max_tokens": 11}, 400, "context_length_exceeded"),
        ({"model": "gpt"}, 404, "model_not_found"),
        ({"max_tokens": "x"}, 400, "invalid_type"),
        ({"user": "a b"}, 400, "invalid_value"),
        ({"user": "x" * 201}, 400, "invalid_value"),
        ({"prompt": "x" * 3000}, 413, "body_too_large"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_openais_form(fields: dict[str, Any], status: int, code: str) -> None:
    async def scenario(engine: Engine, session: Any) -> Any:
        refused = await asked(session, **fields)
        return refused, (await asked(session))[0], engine.unanswered

    (answered, body), after, left = run(scenario, options(context_tokens=100, body_bytes=2000))
    assert (answered, body["error"]["code"]) == (status, code)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (after, left) == (200, 0)


def test_unknown_pages_and_methods_are_refused_in_the_same_form() -> None:
    async def scenario(engine: Engine, session: Any) -> Any:
        async with session.get("/v2/x") as unknown, session.get("/v1/completions") as wrong:
            return (unknown.status, await unknown.json()), (wrong.status, await wrong.json(), wrong.headers["Allow"])

    (unknown, body), (wrong, _, allow) = run(scenario)
    assert (unknown, wrong, allow) == (404, 405, "POST")
    assert body["error"]["message"] == "Not Found: GET /v2/x"


def test_one_request_too_many_is_refused_for_now() -> None:
    async def scenario(engine: Engine, session: Any) -> Any:
        tasks = [asyncio.create_task(asked(session, max_tokens=15)) for _ in range(3)]
        await until(lambda: engine.unanswered == 3)
        async with session.post("/v1/completions", json={"prompt": [1]}) as response:
            refused = response.status, response.headers["Retry-After"], await response.json()
        return refused, [status for status, _ in await asyncio.gather(*tasks)]

    (status, after, body), others = run(scenario, options(SLOW, max_running=1, max_waiting=2))
    assert (status, after, body["error"]["code"]) == (429, "1", "queue_full")
    assert others == [200, 200, 200]


def test_models_health_and_metrics_are_reported() -> None:
    async def scenario(engine: Engine, session: Any) -> Any:
        async with session.get("/v1/models") as models, session.get("/health") as health:
            pages = await models.json(), health.status
        await asked(session, prompt=[1] * 40, max_tokens=7)
        return *pages, await metrics(session)

    models, health, found = run(scenario, options(kv_capacity_tokens=1000))
    assert [(model["id"], model["max_model_len"], model["owned_by"]) for model in models["data"]] == [
        ("m", 1000, "wavetank")
    ]
    assert health == 200
    expected = {
        "vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0, "vllm:kv_cache_usage_perc": 0,
        "vllm:prompt_tokens_total": 40, "vllm:generation_tokens_total": 7, "vllm:cache_config_info": 1,
        "vllm:time_to_first_token_seconds_count": 1, "vllm:e2e_request_latency_seconds_count": 1,
        "wavetank_engine_steps_total": 7, "wavetank_engine_late_seconds_count": 7, "wavetank_engine_aborted_total": 0,
        "wavetank_engine_waiting_prompt_tokens": 0, "wavetank_engine_time_scale": 1,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_its_metrics_are_what_our_router_reads() -> None:
    from wavetank.serving.proxy.engine_metrics import read_load

    async def scenario(engine: Engine, session: Any) -> Any:
        tasks = [asyncio.create_task(asked(session, prompt=[1] * 20, max_tokens=5)) for _ in range(3)]
        await until(lambda: engine.stepped.worker.held > 0 and engine.stepped.waiting == 1)
        async with session.get("/metrics") as response:
            page = await response.read()
        held = engine.stepped.worker.held
        await asyncio.gather(*tasks)
        return read_load(page), held

    load, held = run(scenario, options(SLOW, max_running=2, kv_capacity_tokens=1000, time_scale=3.0))
    assert (load.running, load.waiting, load.kv_capacity_tokens) == (2, 1, 1000)
    assert held >= 40
    assert load.kv_usage * load.kv_capacity_tokens == pytest.approx(held, abs=2)


def test_prefixes_are_found_again_where_they_are_cached() -> None:
    async def scenario(engine: Engine, session: Any) -> list[int]:
        prompts = [[7] * 40, [7] * 40, [7] * 20 + [8] * 20, [9] * 40]
        answers = [await asked(session, prompt=prompt) for prompt in prompts]
        return [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for _, answer in answers]

    assert run(scenario, options(prefix_caching=True, block_tokens=10)) == [0, 30, 20, 0]
    assert run(scenario, options()) == [0, 0, 0, 0]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_takes_its_request_and_its_kv_cache_with_it(stream: bool) -> None:
    async def scenario(engine: Engine, session: Any) -> Any:
        stays = asyncio.create_task(asked(session, max_tokens=30))
        leaves = asyncio.create_task(asked(session, max_tokens=10_000, stream=stream, prompt=[1] * 50))
        queued = asyncio.create_task(asked(session, max_tokens=10_000, stream=stream))
        await until(lambda: len(engine.stepped.worker.running) == 2 and engine.unanswered == 3)
        leaves.cancel()
        queued.cancel()
        await until(lambda: engine.unanswered == 1)
        status, answer = await stays
        return status, len(answer["choices"][0]["text"].split()), engine.stepped.worker.held, await metrics(session)

    status, tokens, held, found = run(scenario, options(FittedStepTime(overhead_s=0.01), max_running=2))
    assert (status, tokens, held, found["wavetank_engine_aborted_total"]) == (200, 30, 0, 2)


def test_a_client_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wavetank.serving.proxy.engine.MOST_UNREAD_BYTES", 20_000)

    async def scenario(engine: Engine, session: Any) -> int:
        host, port = session._base_url.host, session._base_url.port
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, port))
            body = json.dumps({"prompt": [1], "max_tokens": 300_000, "stream": True}).encode()
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
                len(body), body))  # fmt: skip
            await until(lambda: engine.unanswered == 1)
            await until(lambda: engine.unanswered == 0)
        return int((await metrics(session))["wavetank_engine_aborted_total"])

    assert run(scenario, options(FittedStepTime(overhead_s=1e-6))) == 1


def test_an_old_client_gets_its_stream_without_chunks() -> None:
    async def scenario(engine: Engine, session: Any) -> bytes:
        reader, writer = await asyncio.open_connection(session._base_url.host, session._base_url.port)
        body = b'{"prompt": [1], "max_tokens": 3, "stream": true}'
        writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        answer = await reader.read()
        writer.close()
        return answer

    head, _, body = run(scenario).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert [event[:6] for event in body.split(b"\n\n")] == [b"data: "] * 4 + [b""]
    assert body.endswith(b"data: [DONE]\n\n")


def test_no_token_comes_before_its_time_and_lateness_does_not_add_up() -> None:
    async def scenario(engine: Engine, session: Any) -> Any:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        task = asyncio.create_task(asked(session, max_tokens=40))
        await until(lambda: engine.unanswered == 1)
        # The whole process stalls for several steps.
        time.sleep(0.12)
        await task
        took_s = loop.time() - start_s
        return took_s, engine.stepped.steps, await metrics(session)

    took_s, steps, found = run(scenario, options(SLOW, time_scale=0.5))
    # 40 steps of 10 ms; were the stall added, it would be 0.52 s.
    assert took_s >= 0.4
    assert steps == found["wavetank_engine_late_seconds_count"] == 40
    assert found["wavetank_engine_late_seconds_sum"] >= 0.1


def test_a_signal_lets_running_requests_end_and_refuses_new_ones() -> None:
    async def whole() -> Any:
        engine, address = Engine(options(SLOW)), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(engine, host="127.0.0.1", port=0, drain_s=20.0, say=address.set_result))
        url = await address
        async with aiohttp.ClientSession(url) as session:
            running = asyncio.create_task(asked(session, max_tokens=20))
            await until(lambda: engine.unanswered == 1)
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: engine.draining)
            refused, _ = await asked(session)
            async with session.get("/health") as response:
                health = response.status
            status, _ = await running
        await serving
        return url, engine.name, refused, health, status

    url, name, refused, health, status = asyncio.run(asyncio.wait_for(whole(), 30))
    assert (url, refused, health, status) == (f"http://{name}", 503, 503, 200)


def test_a_second_signal_and_the_end_of_patience_end_at_once() -> None:
    async def whole(drain_s: float, signals: int) -> BaseException | None:
        engine, address = Engine(options(SLOW)), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(engine, host="127.0.0.1", port=0, drain_s=drain_s, say=address.set_result))
        async with aiohttp.ClientSession(await address) as session:
            running = asyncio.create_task(asked(session, max_tokens=100_000))
            await until(lambda: engine.unanswered == 1)
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.05)
            await serving
            (ended,) = await asyncio.gather(running, return_exceptions=True)
            return ended

    for drain_s, signals in ((1000.0, 2), (0.05, 1)):
        ended = asyncio.run(asyncio.wait_for(whole(drain_s, signals), 30))
        assert isinstance(ended, aiohttp.ClientError)


def test_a_port_that_is_taken_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(WavetankError, match="cannot listen") as caught:
            asyncio.run(serve(Engine(options()), host="127.0.0.1", port=port, drain_s=0, say=lambda text: None))
    assert caught.value.given == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    "wrong", [{"time_scale": 0.0}, {"time_scale": float("inf")}, {"block_tokens": 0}, {"max_waiting": -1},
              {"body_bytes": 0}, {"context_tokens": -1}]
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError) as caught:
        options(**wrong)
    assert caught.value.where == next(iter(wrong))
