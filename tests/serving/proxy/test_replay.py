"""A replay sends a trace at its own times, proves every answer, and counts what went wrong by kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp")
from aiohttp import web

from wavetank.errors import BadValueError, UnknownNameError, WavetankError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.proxy.engine import Engine, EngineOptions
from wavetank.serving.proxy.replay import Outcome, Replay, ReplayOptions, as_text, prompt_ids, replay
from wavetank.serving.simulator.cluster import Cluster
from wavetank.workloads import RequestTrace
from wavetank.workloads.load import read_trace

STEP = FittedStepTime(overhead_s=1e-3)


def trace(n: int = 12, gap_s: float = 0.003, prompt: int = 30, output: int = 5, **more: Any) -> RequestTrace:
    given = {"arrival_s": np.arange(n) * gap_s, "prompt_tokens": [prompt] * n, "output_tokens": [output] * n}
    return RequestTrace(**{**given, **more})


@contextlib.asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def replayed(requests: RequestTrace, step: FittedStepTime = STEP, *, scale: float = 1.0, **given: Any) -> Replay:
    """Replay against an engine of ours."""
    how = {name: given.pop(name) for name in list(given) if name in ReplayOptions.__dataclass_fields__}
    cluster = Cluster(workers=1, step_time=step, **given)

    async def whole() -> Replay:
        engine = Engine(EngineOptions(model="m", cluster=cluster, time_scale=scale), "engine-a")
        async with listening(engine.app()) as url:
            return await replay(requests, ReplayOptions(url=url, time_scale=scale, **how))

    return asyncio.run(asyncio.wait_for(whole(), 30))


def answered_by(*answers: bytes | int | None, output: int = 3, check: bool | None = True, **how: Any) -> Replay:
    """Replay one request after another against a server that gives these answers: a body, a status, or nothing.

    ``ID`` in a body stands for the request's id.
    """
    left = list(answers)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def answer(request: web.Request) -> web.StreamResponse:
        body = left.pop(0)
        if isinstance(body, int):
            return web.Response(status=body, text="what is wrong")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if body is None:
            await asyncio.sleep(60)
        await response.write((body or b"").replace(b"ID", request.headers["X-Request-Id"].encode()))
        if body is not None and body.endswith(b"..."):
            assert request.transport is not None
            request.transport.abort()
        return response

    async def whole() -> Replay:
        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_post("/v1/completions", answer)
        async with listening(app) as url:
            options = ReplayOptions(url=url, check=check, **how)
            return await replay(trace(len(answers), gap_s=0.05, output=output), options)

    return asyncio.run(asyncio.wait_for(whole(), 30))


def event(text: str, name: str = "cmpl-ID") -> bytes:
    return f'data: {{"id": "{name}", "choices": [{{"index": 0, "text": "{text}"}}]}}\n\n'.encode()


def finish(reason: str) -> bytes:
    return (
        f'data: {{"id": "cmpl-ID", "choices": [{{"index": 0, "text": "", "finish_reason": "{reason}"}}]}}\n\n'.encode()
    )


GOOD = event(" t0") + event(" t1") + event(" t2") + b"data: [DONE]\n\n"


def test_every_request_is_answered_once_and_times_are_in_order() -> None:
    requests = trace(30, gap_s=0.002, output=7)
    found = replayed(requests)
    assert (found.checked, found.interrupted, dict(found.failures)) == (True, False, {})
    assert [outcome.number for outcome in found.outcomes] == list(range(30))
    assert {outcome.worker for outcome in found.outcomes} == {"engine-a"}
    for outcome in found.outcomes:
        assert outcome.arrival_s <= outcome.sent_s < outcome.first_token_s < outcome.finish_s
        assert (outcome.prompt_tokens, outcome.output_tokens) == (30, 7)
        # Six more steps of a millisecond, whatever the network adds to both ends.
        assert outcome.first_token_s - outcome.arrival_s >= 1e-3


def test_the_figures_are_those_of_a_simulated_run() -> None:
    found = replayed(trace(20, output=4))
    run = found.run()
    assert run.output_tokens.tolist() == [4] * 20
    assert run.ttft_s.tolist() == [outcome.first_token_s - outcome.arrival_s for outcome in found.finished]
    assert run.metrics()["ttft_mean_s"] > 0
    assert math.isnan(run.metrics()["idle_share"])
    assert set(run.worker.tolist()) == {0}
    assert found.sending_late_s >= 0


def test_a_time_scale_is_taken_out_again() -> None:
    # 20 steps of 10 ms of the model, in a fifth of the time.
    found = replayed(trace(3, gap_s=0.05, output=21), FittedStepTime(overhead_s=0.01), scale=0.2)
    for outcome in found.finished:
        assert outcome.finish_s - outcome.arrival_s >= 0.21
    assert [outcome.arrival_s for outcome in found.outcomes] == pytest.approx([0.0, 0.05, 0.1])


def test_a_trace_that_starts_late_keeps_its_clock() -> None:
    found = replayed(trace(2, arrival_s=np.array([1000.0, 1000.01])))
    assert [outcome.arrival_s for outcome in found.outcomes] == [1000.0, 1000.01]
    assert all(1000.0 < outcome.first_token_s < 1010.0 for outcome in found.outcomes)


def test_text_is_counted_as_the_tokens_it_stands_for() -> None:
    found = replayed(trace(4, prompt=333), as_text=True)
    assert [(outcome.failure, outcome.prompt_tokens) for outcome in found.outcomes] == [("", 333)] * 4


def test_shared_blocks_of_a_trace_hit_the_servers_prefix_cache() -> None:
    blocks = {"block_ids": [0, 1, 2, 0, 1, 3, 4, 5, 6], "block_offsets": [0, 3, 6, 9], "block_tokens": 512}
    requests = trace(3, gap_s=0.2, prompt=1500, **blocks)
    for text in (False, True):
        found = replayed(requests, prefix_caching=True, as_text=text)
        assert [outcome.cached_tokens for outcome in found.outcomes] == [0, 1024, 0]


@given(st.integers(1, 3), st.integers(3, 40), st.data())
def test_prompts_share_tokens_exactly_as_far_as_they_share_blocks(n: int, size: int, data: Any) -> None:
    prompts = data.draw(st.lists(st.integers(1, 120), min_size=n, max_size=n))
    shared = [data.draw(st.integers(0, prompt // size)) for prompt in prompts]
    ids: list[int] = []
    offsets = [0]
    for number, depth in enumerate(shared):
        ids += [*range(depth), 1000 + number]
        ids = ids if prompts[number] > depth * size else ids[:-1]
        offsets.append(len(ids))
    made = trace(n, block_ids=ids, block_offsets=offsets, block_tokens=size, prompt_tokens=prompts)
    tokens = [prompt_ids(made, number) for number in range(n)]
    assert [part.size for part in tokens] == prompts
    for one in range(n):
        assert len(as_text(tokens[one])) == 4 * prompts[one]
        for other in range(one):
            common = min(shared[one], shared[other]) * size
            assert (tokens[one][:common] == tokens[other][:common]).all()
            end = common + 3
            if min(prompts[one], prompts[other]) >= end:
                assert (tokens[one][:end] != tokens[other][:end]).any()
                assert as_text(tokens[one][:end]) != as_text(tokens[other][:end])


def test_prompts_of_another_seed_are_unknown_to_prefix_caches() -> None:
    made = trace(3, prompt=40, block_ids=[0, 1, 0, 2, 3, 4], block_offsets=[0, 2, 4, 6], block_tokens=20)
    for one in range(3):
        for other in range(3):
            for seed, another in ((0, 1), (1, 2), (6999, 7000)):
                ours, theirs = prompt_ids(made, one, seed), prompt_ids(made, other, another)
                assert (ours[:3] != theirs[:3]).any()
                assert as_text(ours) != as_text(theirs)
    # Within a seed they share what the trace says.
    assert (prompt_ids(made, 0, 9)[:20] == prompt_ids(made, 1, 9)[:20]).all()
    assert max(prompt_ids(made, 2, 7000)) < 17_000


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (GOOD, ""),
        (GOOD.replace(b"\n", b"\r\n"), ""),
        (b": comment\n\nevent: x\n" + GOOD, ""),
        (GOOD.replace(b"data: [DONE]\n\n", b""), "cut off"),
        (GOOD.replace(b"data: [DONE]\n\n", b"") + finish("length"), ""),
        (GOOD.replace(b"data: [DONE]\n\n", b"") + finish("length").rstrip(), ""),
        (GOOD.rstrip(), ""),
        (GOOD.replace(b"data: [DONE]\n\n", b"") + finish("length") + b"...", "cut off"),
        (event(" t0") + finish("length"), "wrong answer"),
        (event(" t0") + b"...", "cut off"),
        (event(" t0") + event(" t2") + b"data: [DONE]\n\n", "wrong answer"),
        (event(" t0") + event(" t1") + b"data: [DONE]\n\n", "wrong answer"),
        (event(" t0") + event(" t0") + GOOD, "wrong answer"),
        (event(" t0", "cmpl-other") + b"data: [DONE]\n\n", "wrong answer"),
        (GOOD + event(" t3"), "wrong answer"),
        (b"data: [DONE]\n\n", "wrong answer"),
        (b'data: {"error": {"message": "no"}}\n\n', "error event"),
        (b"data: {broken\n\n", "malformed"),
        (b"data: [1]\n\n", "malformed"),
        (b"x" * 1_100_000, "malformed"),
        (500, "http-500"),
        (429, "http-429"),
        (None, "timeout"),
    ],
)
def test_what_went_wrong_has_a_name_and_harms_no_other(answer: bytes | int | None, failure: str) -> None:
    found = answered_by(GOOD, answer, GOOD, timeout_s=0.5)
    assert [outcome.failure for outcome in found.outcomes] == ["", failure, ""]
    assert dict(found.failures) == ({failure: 1} if failure else {})
    assert (failure in found.why_not()) if failure else found.why_not() == ""
    assert len(found.finished) == 2 + (not failure)


def test_tokens_of_other_servers_are_not_compared() -> None:
    found = answered_by(event("Hello") + event(" world") + b"data: [DONE]\n\n", check=None)
    assert (found.checked, found.outcomes[0].failure, found.outcomes[0].output_tokens) == (False, "", 2)


def test_what_the_server_counts_counts() -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": 8}}\n\n'
    (outcome,) = answered_by(event("Hello") + usage + b"data: [DONE]\n\n", check=None).outcomes
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (31, 8, 0)


def test_an_answer_that_the_model_ended_is_whole_and_counted_as_short() -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'
    brief = event("Hello") + event(" you") + finish("stop") + usage + b"data: [DONE]\n\n"
    found = answered_by(brief, brief.replace(b'_tokens": 2', b'_tokens": 3'), output=3, check=None)
    assert dict(found.failures) == {}
    assert [(outcome.output_tokens, outcome.asked_tokens) for outcome in found.outcomes] == [(2, 3), (3, 3)]
    assert found.short == (found.outcomes[0],)
    # A time per token is one of the tokens that came.
    assert found.run().output_tokens.tolist() == [2, 3]


# What the API reference lists for both kinds of completion.
OPENAI_FIELDS = {"model", "prompt", "messages", "max_tokens", "temperature", "stream", "stream_options"}


@pytest.mark.parametrize(
    ("owner", "extensions", "sent"),
    [
        ("openai", "auto", False), ("", "auto", False), ("vllm", "auto", True), ("sglang", "auto", True),
        ("llamacpp", "auto", True), ("openai", "on", True), ("vllm", "off", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("text", [False, True])
def test_only_fields_of_openais_go_to_a_server_that_is_not_known_to_take_more(
    owner: str, extensions: str, sent: bool, text: bool
) -> None:
    bodies: list[dict[str, Any]] = []

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": owner}]})

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        bodies.append(body)
        unknown = set(body) - OPENAI_FIELDS
        if unknown and not sent:
            return web.Response(status=422, text=f"Unexpected fields in the request: {unknown}")
        said = {"delta": {"content": "x"}} if text else {"text": "x"}
        chunk = json.dumps({"choices": [{"index": 0, **said, "finish_reason": "length"}]})
        return web.Response(text=f"data: {chunk}\n\n", content_type="text/event-stream")

    async def whole() -> Replay:
        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_post("/v1/completions", answer)
        app.router.add_post("/v1/chat/completions", answer)
        async with listening(app) as url:
            return await replay(trace(1, output=1), ReplayOptions(url=url, extensions=extensions, as_text=text))

    found = asyncio.run(asyncio.wait_for(whole(), 30))
    assert (dict(found.failures), found.lengths_asked) == ({}, sent)
    assert set(bodies[0]) - OPENAI_FIELDS == ({"min_tokens", "ignore_eos"} if sent else set())
    assert bodies[0]["max_tokens"] == 1


def test_an_interrupted_replay_keeps_what_finished() -> None:
    async def whole() -> Replay:
        engine = Engine(EngineOptions(model="m", cluster=Cluster(workers=1, step_time=FittedStepTime(overhead_s=0.01))))
        async with listening(engine.app()) as url:
            requests = trace(4, arrival_s=[0.0, 0.0, 0.0, 100.0], output_tokens=[2, 2, 50_000, 1])
            task = asyncio.create_task(replay(requests, ReplayOptions(url=url)))
            while engine.metrics.registry.get_sample_value("vllm:e2e_request_latency_seconds_count", LABELS) != 2:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            task.cancel()
            found = await task
            while engine.unanswered:
                await asyncio.sleep(0.005)
            return found

    found = asyncio.run(asyncio.wait_for(whole(), 30))
    assert found.interrupted
    assert [outcome.failure for outcome in found.outcomes] == ["", "", "interrupted", "interrupted"]


LABELS = {"model_name": "m", "engine": "0"}


def test_progress_is_reported_and_ends_with_everything() -> None:
    reported: list[tuple[int, int]] = []

    async def whole() -> None:
        engine = Engine(EngineOptions(model="m", cluster=Cluster(workers=1, step_time=STEP)))
        async with listening(engine.app()) as url:
            await replay(trace(5), ReplayOptions(url=url), progress=lambda sent, done: reported.append((sent, done)))

    asyncio.run(asyncio.wait_for(whole(), 30))
    assert reported[-1] == (5, 5)


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_records_are_a_trace_themselves(tmp_path: Path, name: str) -> None:
    requests = trace(6, output=3)
    found = replayed(requests)
    found.write(tmp_path / name)
    again = read_trace(tmp_path / name)
    assert again == requests
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_records_of_failures_have_no_times(tmp_path: Path) -> None:
    found = Replay((Outcome(number=0, arrival_s=1.0, failure="timeout"),), False, True)
    found.write(tmp_path / "r.jsonl")
    row = json.loads((tmp_path / "r.jsonl").read_text())
    assert (row["first_token_s"], row["failure"], row["arrival_s"]) == (None, "timeout", 1.0)
    with pytest.raises(WavetankError, match="No request got a whole answer") as caught:
        found.run()
    assert caught.value.given == "1 x timeout"
    with pytest.raises(WavetankError, match="cannot be written"):
        found.write(tmp_path / "nowhere" / "r.parquet")


@pytest.mark.parametrize(
    "wrong", [{"url": "localhost:8000"}, {"url": ""}, {"time_scale": 0.0}, {"time_scale": math.nan}, {"timeout_s": -1}]
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        ReplayOptions(**{"url": "http://x", **wrong})


@pytest.mark.parametrize(
    ("models", "asked", "error", "says"),
    [
        ((200, b'{"data": []}'), "", WavetankError, "lists no model"),
        ((200, b'{"data": [{"id": "llama"}]}'), "lama", UnknownNameError, "no model named 'lama'"),
        ((200, b"<html>"), "", WavetankError, "cannot be read"),
        ((401, b""), "", WavetankError, "HTTP 401"),
    ],
)
def test_a_server_without_the_model_is_reported(
    models: tuple[int, bytes], asked: str, error: type[WavetankError], says: str
) -> None:
    handler: Callable[[web.Request], Awaitable[web.Response]]

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=models[0], body=models[1])

    async def whole() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", handler)
        async with listening(app) as url:
            await replay(trace(1), ReplayOptions(url=url, model=asked))

    with pytest.raises(error, match=says):
        asyncio.run(asyncio.wait_for(whole(), 30))


def test_nobody_at_the_address_is_reported() -> None:
    from wavetank.live.processes import free_port

    with pytest.raises(WavetankError, match="does not answer"):
        asyncio.run(replay(trace(1), ReplayOptions(url=f"http://127.0.0.1:{free_port()}")))


def test_a_server_that_dies_midway_fails_the_rest_as_unreachable() -> None:
    async def whole() -> Replay:
        engine = Engine(EngineOptions(model="m", cluster=Cluster(workers=1, step_time=STEP)))
        async with contextlib.AsyncExitStack() as stack:
            url = await stack.enter_async_context(listening(engine.app()))
            requests = trace(3, arrival_s=[0.0, 0.5, 0.6])
            task = asyncio.create_task(replay(requests, ReplayOptions(url=url)))
            while engine.metrics.registry.get_sample_value("vllm:e2e_request_latency_seconds_count", LABELS) != 1:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            await stack.aclose()
            return await task

    found = asyncio.run(asyncio.wait_for(whole(), 30))
    assert found.outcomes[0].failure == ""
    assert {outcome.failure for outcome in found.outcomes[1:]} <= {"unreachable", "cut off"}
    assert found.outcomes[2].failure == "unreachable"
