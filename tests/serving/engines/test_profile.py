"""Probes find the step times that an engine was given, and say it when it does not do what it was taken to do."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

pytest.importorskip("aiohttp", reason="probes need aiohttp")
from aiohttp import web

from wavetank.errors import WavetankError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.engines.profile import Plan, Probes, Profile, measure, probed
from wavetank.serving.proxy.answer_stream import AnswerStream, Usage
from wavetank.serving.proxy.batching import SteppedWorker
from wavetank.serving.proxy.openai_request import prefix_blocks
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.worker import Request

TRUTH = FittedStepTime(
    overhead_s=2e-3, per_request_s=4e-4, per_context_token_s=4e-6, per_prefill_token_s=5e-5, per_prefill_pair_s=1e-7
)
REQUEST_S = 3e-3
PLAN = Plan(
    sequences=(1, 2, 8), contexts=(16, 200), chunks=(8, 100, 300), before_tokens=64, cached=True, batch_tokens=512,
    beside=2, repeats=1,
)  # fmt: skip


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without sockets in use, whose clock jumps to the next thing that is due: it never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        select = self._selector.select

        def at_once(timeout: float | None = None) -> Any:
            found = select(0)
            if not found and timeout:
                self.now_s += timeout
            return found

        self._selector.select = at_once

    def time(self) -> float:
        return self.now_s


class Engine:
    """The simulator's worker, in the loop's time."""

    def __init__(self, cluster: Cluster) -> None:
        self.stepped = SteppedWorker(cluster, 16 if cluster.prefix_caching else 0)
        self.answers: dict[int, tuple[Request, AnswerStream, asyncio.Future[None]]] = {}

    def arrive(self, request: Request, answer: AnswerStream) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        self.answers[request.number] = (request, answer, done)
        self.stepped.arrive(request)
        if self.stepped.ends_ps < 0:
            self.stepped.start(request.arrival_ps)
            self.arm()
        return done

    def arm(self) -> None:
        loop = asyncio.get_running_loop()
        if self.stepped.ends_ps >= 0:
            loop.call_at(self.stepped.ends_ps / 1e12, self.ended)

    def ended(self) -> None:
        now_s = self.stepped.ends_ps / 1e12
        for request in self.stepped.finish():
            _, answer, done = self.answers[request.number]
            answer.times_s.append(now_s)
            answer.tokens += 1
            if request.finish_ps >= 0 and not done.done():
                usage = {"prompt_tokens": request.prompt, "prompt_tokens_details": {"cached_tokens": request.matched}}
                answer.usage = msgspec.convert(usage, Usage)
                done.set_result(None)
        self.arm()


class Simulated(Probes):
    """Probes of simulated engines that are taken in turn; a request's own cost comes before it reaches one."""

    def __init__(self, engines: int, cluster: Cluster) -> None:
        super().__init__(None, "", engines, False, 0)
        self.all = [Engine(cluster) for _ in range(engines)]
        self.numbers = itertools.count()
        self.turns = itertools.cycle(self.all)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _send(self, prompt: Any, tokens: int, answer: AnswerStream) -> float:
        sent_s, engine = self.now_s(), next(self.turns)
        await asyncio.sleep(REQUEST_S)
        blocks = prefix_blocks(list(prompt), 16) if engine.stepped.worker.block_tokens else []
        request = Request(next(self.numbers), round(self.now_s() * 1e12), len(prompt), tokens, blocks)
        done = engine.arrive(request, answer)
        try:
            await done
        except asyncio.CancelledError:
            if request.finish_ps < 0:
                engine.stepped.abort(request)
            raise
        return sent_s


def measured(plan: Plan = PLAN, *, caching: bool = True, engines: int = 2, slots: int = 8) -> Profile:
    cluster = Cluster(
        workers=1, step_time=TRUTH, max_running=slots, max_batched_tokens=512, kv_watermark=0.0, prefix_caching=caching
    )

    async def whole() -> Profile:
        return await probed(Simulated(engines, cluster), plan, "simulated")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(whole())


@pytest.fixture(scope="module")
def found() -> Profile:
    return measured()


def test_steps_that_decode_are_those_of_the_engine(found: Profile) -> None:
    assert {n for n, _ in found.decode_s} == {1, 2, 8}
    for (n, context), seconds in found.decode_s.items():
        assert seconds == pytest.approx(TRUTH.seconds(n, n * context), rel=0.02)


def test_steps_that_compute_a_prompt_are_those_of_the_engine(found: Profile) -> None:
    assert len(found.prefill_s) == 6
    for (chunk, before), seconds in found.prefill_s.items():
        pairs = chunk * before + chunk * (chunk + 1) // 2
        assert seconds == pytest.approx(TRUTH.seconds(0, 0, chunk, pairs), rel=0.05)


def test_the_table_predicts_steps_that_were_not_measured(found: Profile) -> None:
    for n, context, chunk in ((4, 100, 50), (8, 150, 200), (2, 30, 90)):
        pairs = chunk * (chunk + 1) // 2
        for C, P, S in ((n * context, 0, 0), (n * context, chunk, pairs)):
            assert found.step_time.seconds(n, C, P, S) == pytest.approx(TRUTH.seconds(n, C, P, S), rel=0.1)


def test_what_a_request_takes_beside_its_steps_is_no_step(found: Profile) -> None:
    assert found.request_s == pytest.approx(REQUEST_S, rel=0.2)
    assert found.took_s > 1.0
    assert found.probes > 100


def test_an_engine_that_keeps_no_prefixes_is_not_taken_to() -> None:
    with pytest.raises(WavetankError, match="did not keep the beginning"):
        measured(caching=False)


def test_without_a_report_of_the_cache_longer_prompts_say_what_context_costs() -> None:
    found = measured(dataclasses.replace(PLAN, cached=False), caching=False)
    for chunk in (8, 100, 300):
        pairs = chunk * 64 + chunk * (chunk + 1) // 2
        assert found.prefill_s[chunk, 64] == pytest.approx(TRUTH.seconds(0, 0, chunk, pairs), rel=0.1)


def test_an_engine_that_runs_fewer_at_once_than_it_was_taken_to_is_reported() -> None:
    with pytest.raises(WavetankError, match="did not generate at the same time"):
        measured(slots=4)


@contextlib.asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def answering(answer: Callable[[web.Request, Any], Awaitable[web.StreamResponse]]) -> str:
    """Return what the error says when a server answers probes like this."""

    async def complete(request: web.Request) -> web.StreamResponse:
        return await answer(request, await request.json())

    async def whole() -> str:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        async with listening(app) as url:
            with pytest.raises(WavetankError) as caught:
                await measure(url, PLAN, engines=2, text=False, name="x")
            return str(caught.value)

    return asyncio.run(asyncio.wait_for(whole(), 30))


def events(*texts: str, reason: str) -> str:
    body = "".join(f'data: {{"choices": [{{"index": 0, "text": "{text}"}}]}}\n\n' for text in texts)
    return body + f'data: {{"choices": [{{"index": 0, "text": "", "finish_reason": "{reason}"}}]}}\n\n'


def test_what_goes_wrong_with_a_probe_is_said() -> None:
    async def refuses(request: web.Request, body: Any) -> web.StreamResponse:
        return web.Response(status=400, text="unknown field stream_options")

    async def ends(request: web.Request, body: Any) -> web.StreamResponse:
        return web.Response(text=events(" a", " b", reason="stop"), content_type="text/event-stream")

    async def breaks(request: web.Request, body: Any) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def says_an_error(request: web.Request, body: Any) -> web.StreamResponse:
        return web.Response(text='data: {"error": "the worker is dead"}\n\n', content_type="text/event-stream")

    assert "HTTP 400 unknown field stream_options" in answering(refuses)
    assert "2 tokens, stop" in answering(ends)
    assert "A probe of an engine failed" in answering(breaks)
    assert "the worker is dead" in answering(says_an_error)
