"""A stand-in model server: the OpenAI interface of a real one, answers at the pace that a step-time model says.

It computes nothing.  Requests enter the very worker that the simulator steps (admission, chunked prefill, KV cache,
preemption, prefix caching), and at the end of each step every request that got a token in it is sent one.  Steps end at
absolute times, so lateness never adds up; it is measured, and a process that falls behind catches up without skipping a
step.  A proxy, a client or a dashboard can be tried without a GPU, and a router's live run can be held against its
simulation.

What it says is fixed, so that a client can prove that nothing was lost, doubled or crossed with another answer: token i
of an answer is the text `` t<i>`` (:func:`token_text`), the answer's id ends in the request's own (header
``X-Request-Id``, else the field ``user``), and ``system_fingerprint`` names the engine.

Source: the OpenAI API reference, and vLLM 0.19 for metric names and for ids taken from ``X-Request-Id``.

Differs from the source:

1. The text means nothing, and no tokenizer is used (:mod:`wavetank.serving.proxy.openai_request`).
2. Answers end after exactly the tokens asked for, or after a length drawn from a distribution with a seed.
3. ``vllm:cache_config_info`` reports blocks of one token: that is how this worker counts its KV cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import re
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from wavetank.errors import WavetankError, missing_extra
from wavetank.platforms.step_time import PS_PER_S
from wavetank.serving.proxy.batching import SteppedWorker
from wavetank.serving.proxy.configuration import EngineOptions
from wavetank.serving.proxy.openai_request import Asked, Refusal, prefix_blocks, read_request
from wavetank.serving.proxy.wakeups import Wakeup
from wavetank.serving.simulator.worker import Request
from wavetank.sim.rng import stream

try:
    import prometheus_client
    from aiohttp import web
except ImportError as error:
    raise missing_extra(str(error.name), "serving", needed_for="wavetank launch engine or replay") from None

# What a request gets that does not say how many tokens it wants.
DEFAULT_OUTPUT_TOKENS = 256
# A client that has not read this much of its answer is cut off.
MOST_UNREAD_BYTES = 4 << 20
BODY_TIMEOUT_S = 30.0
_LATE_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
_LATENCY_BUCKETS_S = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")


def token_text(index: int) -> str:
    """Return the text of an answer's token; the first has index 0.

    Examples
    --------
    >>> token_text(12)
    ' t12'
    """
    return f" t{index}"


class _Answer:
    """One answer on its way out: its frames, and where they go."""

    __slots__ = (
        "about", "arrived_s", "asked", "backlog", "done", "first", "framed", "head", "reason", "request", "tail",
        "tail_of_last", "transport",
    )  # fmt: skip

    def __init__(self, asked: Asked, request: Request, arrived_s: float, about: dict[str, object], reason: str) -> None:
        loop = asyncio.get_running_loop()
        self.asked = asked
        self.request = request
        self.arrived_s = arrived_s
        self.about = about
        self.reason = reason
        self.done: asyncio.Future[None] = loop.create_future()
        self.first: asyncio.Future[None] = loop.create_future()
        self.backlog: list[bytes] = []
        self.transport: asyncio.WriteTransport | None = None
        self.framed = True
        self.head = self.tail = self.tail_of_last = b""
        if asked.stream:
            self._cut_frames()

    def _cut_frames(self) -> None:
        """Encode a chunk once and cut it where the token goes."""
        chat, about = self.asked.chat, self.about
        mark = "\x7f"
        text: dict[str, object] = {"delta": {"content": mark}} if chat else {"text": mark}
        chunk = {**about, "choices": [{"index": 0, **text, "logprobs": None, "finish_reason": None}]}
        encoded = msgspec.json.encode(chunk)
        self.head, tail = encoded.split(mark.encode(), 1)
        self.head = b"data: " + self.head
        self.tail = tail + b"\n\n"
        finish = b'"finish_reason":"%b"' % self.reason.encode()
        self.tail_of_last = self.tail.replace(b'"finish_reason":null', finish)
        if chat:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            self.backlog.append(b"data: " + msgspec.json.encode({**about, "choices": [first]}) + b"\n\n")

    def send(self, data: bytes) -> None:
        """Send a part of the body, or keep it until the headers are out."""
        transport = self.transport
        if transport is None:
            self.backlog.append(data)
        elif not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.framed else data)
            if transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
                transport.abort()

    def token(self) -> None:
        """Send the token that the request just got; the last one with the end of the answer."""
        request = self.request
        index, last = request.generated - 1, request.finish_ps >= 0
        if self.asked.stream:
            if not last:
                self.send(b"%b t%d%b" % (self.head, index, self.tail))
            else:
                self.send(b"%b t%d%b%bdata: [DONE]\n\n" % (self.head, index, self.tail_of_last, self._usage_event()))
        if index == 0 and not self.first.done():
            self.first.set_result(None)
        if last and not self.done.done():
            self.done.set_result(None)

    def _usage_event(self) -> bytes:
        if not self.asked.include_usage:
            return b""
        return b"data: " + msgspec.json.encode({**self.about, "choices": [], "usage": usage(self.request)}) + b"\n\n"

    def whole(self) -> bytes:
        """Return the whole answer as one JSON text."""
        text = "".join(map(token_text, range(self.request.generated)))
        said: dict[str, object] = {"message": {"role": "assistant", "content": text}} if self.asked.chat else {
            "text": text
        }  # fmt: skip
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self.reason}
        return msgspec.json.encode({**self.about, "choices": [choice], "usage": usage(self.request)})


def usage(request: Request) -> dict[str, object]:
    """Return what an answer cost, in OpenAI's form."""
    return {
        "prompt_tokens": request.prompt,
        "completion_tokens": request.generated,
        "total_tokens": request.prompt + request.generated,
        "prompt_tokens_details": {"cached_tokens": request.matched},
    }


class _Metrics:
    """What ``/metrics`` reports, under vLLM's names where vLLM has one."""

    def __init__(self, options: EngineOptions, stepped: SteppedWorker) -> None:
        self.registry = prometheus_client.CollectorRegistry(auto_describe=True)
        labels = {"model_name": options.model, "engine": "0"}
        names, values = tuple(labels), tuple(labels.values())
        worker, capacity = stepped.worker, options.cluster.kv_capacity_tokens

        def gauge(name: str, says: str, read: Callable[[], float]) -> None:
            made = prometheus_client.Gauge(name, says, names, registry=self.registry)
            made.labels(*values).set_function(read)

        def counter(name: str, says: str) -> prometheus_client.Counter:
            return prometheus_client.Counter(name, says, names, registry=self.registry).labels(*values)

        def histogram(name: str, says: str, buckets: tuple[float, ...]) -> prometheus_client.Histogram:
            made = prometheus_client.Histogram(name, says, names, registry=self.registry, buckets=buckets)
            return made.labels(*values)

        gauge("vllm:num_requests_running", "Requests in the batch.", lambda: len(worker.running))
        gauge("vllm:num_requests_waiting", "Requests not admitted.", lambda: stepped.waiting)
        gauge("vllm:kv_cache_usage_perc", "KV cache in use, 1 is full.", lambda: worker.held / capacity)
        gauge("wavetank_engine_waiting_prompt_tokens", "Prompts not admitted.", lambda: stepped.waiting_tokens)
        gauge("wavetank_engine_time_scale", "Seconds a second of the model takes.", lambda: options.time_scale)
        cache = prometheus_client.Gauge(
            "vllm:cache_config_info", "KV cache.", (*names, "block_size", "num_gpu_blocks"), registry=self.registry
        )
        cache.labels(*values, "1", str(capacity)).set(1)
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of requests that got a first token.")
        self.generation_tokens = counter("vllm:generation_tokens", "Tokens generated.")
        self.preemptions = counter("vllm:num_preemptions", "Requests that gave up their KV cache.")
        self.cached_tokens = counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.aborted = counter("wavetank_engine_aborted", "Requests whose client went away.")
        self.steps = counter("wavetank_engine_steps", "Steps ended.")
        self.finished = prometheus_client.Counter(
            "vllm:request_success", "Requests answered.", (*names, "finished_reason"), registry=self.registry
        )
        self.finished_as = {reason: self.finished.labels(*values, reason) for reason in ("length", "stop")}
        self.ttft_s = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _LATENCY_BUCKETS_S)
        self.e2e_s = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", _LATENCY_BUCKETS_S)
        self.late_s = histogram("wavetank_engine_late_seconds", "From a step's end to its tokens.", _LATE_BUCKETS_S)

    def begun(self, request: Request, ttft_s: float) -> None:
        """Count a first token."""
        self.ttft_s.observe(ttft_s)
        self.prompt_tokens.inc(request.prompt)
        self.cached_tokens.inc(request.matched)

    def ended(self, request: Request, e2e_s: float, reason: str) -> None:
        """Count a last token."""
        self.e2e_s.observe(e2e_s)
        self.preemptions.inc(request.preemptions)
        self.finished_as[reason].inc()

    def stepped(self, tokens: int, late_s: float) -> None:
        """Count a step."""
        self.late_s.observe(late_s)
        self.steps.inc()
        self.generation_tokens.inc(tokens)


class Engine:
    """The server: one worker, paced by the clock, behind OpenAI's interface.

    Parameters
    ----------
    options : EngineOptions
    name : str, optional
        What ``system_fingerprint`` says; :func:`serve` makes it the address when left out.
    """

    def __init__(self, options: EngineOptions, name: str | None = None) -> None:
        self.options = options
        self.name = name or ""
        self.draining = False
        self._started_s = time.monotonic()
        self.stepped = SteppedWorker(options.cluster, options.block_tokens if options.cluster.prefix_caching else 0)
        self.metrics = _Metrics(options, self.stepped)
        self._answers: dict[int, _Answer] = {}
        self._wakeup: Wakeup | None = None
        self._numbers = itertools.count()
        self._ps_per_wall_s = PS_PER_S / options.time_scale

    @property
    def unanswered(self) -> int:
        """Requests that are waiting or running."""
        return len(self._answers)

    def app(self) -> web.Application:
        """Return the HTTP application."""
        app = web.Application(client_max_size=self.options.body_bytes, middlewares=[as_openai_errors])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics_page)
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, app: web.Application) -> None:
        if self._wakeup is not None:
            self._wakeup.close()

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=False)

    async def _chat_completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=True)

    async def _models(self, http: web.Request) -> web.Response:
        model = {
            "id": self.options.model,
            "object": "model",
            "created": 0,
            "owned_by": "wavetank",
            "max_model_len": self.options.longest_tokens,
        }
        return _json({"object": "list", "data": [model]})

    async def _health(self, http: web.Request) -> web.Response:
        return _json({"status": "draining" if self.draining else "ok"}, status=503 if self.draining else 200)

    async def _metrics_page(self, http: web.Request) -> web.Response:
        text = prometheus_client.generate_latest(self.metrics.registry)
        return web.Response(body=text, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    async def _answer(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = await asyncio.wait_for(http.read(), BODY_TIMEOUT_S)
        except TimeoutError:
            raise Refusal(408, f"The body did not come within {BODY_TIMEOUT_S:g} s.", "timeout") from None
        asked = read_request(body, chat=chat)
        if self.draining:
            raise Refusal(503, "The engine is shutting down.", "unavailable")
        answer = self._enter(asked, _request_id(http, asked))
        try:
            if asked.stream:
                return await self._stream(http, answer)
            await answer.done
            return web.Response(body=answer.whole(), content_type="application/json")
        finally:
            # The client may have gone while it waited.
            if answer.request.finish_ps < 0:
                self._leave(answer)

    def _enter(self, asked: Asked, request_id: str | None) -> _Answer:
        """Check a request against the engine's limits and give it to the worker."""
        options, number = self.options, next(self._numbers)
        if asked.model not in (None, options.model):
            raise Refusal(404, f"The model {asked.model!r} does not exist.", "model_not_found", "model")
        if self.stepped.waiting >= options.max_waiting:
            raise Refusal(429, f"{options.max_waiting} requests are waiting already.", "queue_full")
        request_id = request_id or f"{self.name}-{number}"
        output, reason = self._length(asked, request_id)
        if asked.prompt_tokens + output > options.longest_tokens:
            raise Refusal(
                400,
                f"This model's context is {options.longest_tokens} tokens; {asked.prompt_tokens} of prompt and "
                f"{output} of answer were asked for.",
                "context_length_exceeded",
                "messages" if asked.chat else "prompt",
            )
        blocks = prefix_blocks(asked.content, options.block_tokens) if self.stepped.worker.block_tokens else []
        kind = "chat.completion" if asked.chat else "text_completion"
        about: dict[str, object] = {
            "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{request_id}",
            "object": f"{kind}.chunk" if asked.chat and asked.stream else kind,
            "created": int(time.time()),
            "model": options.model,
            "system_fingerprint": self.name,
        }
        arrived_s = time.monotonic()
        now_ps = round((arrived_s - self._started_s) * self._ps_per_wall_s)
        request = Request(number, now_ps, asked.prompt_tokens, output, blocks)
        answer = self._answers[number] = _Answer(asked, request, arrived_s, about, reason)
        self.stepped.arrive(request)
        if self.stepped.ends_ps < 0:
            self.stepped.start(now_ps)
            self._arm()
        return answer

    def _leave(self, answer: _Answer) -> None:
        """Forget a request whose client went away, and free its KV cache."""
        del self._answers[answer.request.number]
        self.stepped.abort(answer.request)
        self.metrics.aborted.inc()

    def _length(self, asked: Asked, request_id: str) -> tuple[int, str]:
        """Return how many tokens an answer gets, and what its finish_reason is."""
        most = asked.max_tokens
        if self.options.lengths is None or asked.ignore_eos:
            return (max(asked.min_tokens, DEFAULT_OUTPUT_TOKENS) if most is None else most), "length"
        _, drawn = self.options.lengths.draw(1, stream(self.options.seed, "output", request_id))
        wanted = max(int(drawn[0]), asked.min_tokens, 1)
        return (wanted, "stop") if most is None or wanted < most else (most, "length")

    async def _stream(self, http: web.Request, answer: _Answer) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        answer.framed = http.version >= (1, 1)
        if answer.framed:
            response.enable_chunked_encoding()
        await response.prepare(http)
        await answer.first
        # The headers go out with what is there; from then on steps write to the connection themselves.
        backlog, answer.backlog = b"".join(answer.backlog), []
        await response.write(backlog)
        answer.transport = http.transport
        if answer.transport is None:
            raise ConnectionResetError("The client went away.")
        for late in answer.backlog:
            answer.send(late)
        await answer.done
        await response.write_eof()
        return response

    def _due_s(self) -> float:
        """Return when the step in progress ends, on the monotonic clock."""
        return self._started_s + self.stepped.ends_ps / self._ps_per_wall_s

    def _arm(self) -> None:
        """Wake when the step in progress ends."""
        if self._wakeup is None:
            self._wakeup = Wakeup(self._step_ended)
        self._wakeup.at(self._due_s())

    def _step_ended(self) -> None:
        now_s = time.monotonic()
        late_s = now_s - self._due_s()
        given = self.stepped.finish()
        for request in given:
            answer = self._answers[request.number]
            answer.token()
            if request.generated == 1:
                self.metrics.begun(request, now_s - answer.arrived_s)
            if request.finish_ps >= 0:
                del self._answers[request.number]
                self.metrics.ended(request, now_s - answer.arrived_s, answer.reason)
        self.metrics.stepped(len(given), late_s)
        if self.stepped.ends_ps >= 0:
            # One step per turn of the event loop, however late: requests and closed connections are seen between.
            self._arm()


def _request_id(http: web.Request, asked: Asked) -> str | None:
    given = http.headers.get("X-Request-Id") or asked.user
    if given is None or _REQUEST_ID.fullmatch(given):
        return given
    raise Refusal(400, "A request id is 1 to 200 printable characters without blanks.", "invalid_value", "user")


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


@web.middleware
async def as_openai_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every refusal into OpenAI's form of an error.

    Parameters
    ----------
    request : aiohttp.web.Request
    handler : callable
        What answers it.
    """
    headers = {}
    try:
        return await handler(request)
    except Refusal as error:
        refusal = error
    except web.HTTPRequestEntityTooLarge:
        refusal = Refusal(413, "The body is too large for this engine.", "body_too_large")
    except web.HTTPException as error:
        refusal = Refusal(error.status, f"{error.reason}: {request.method} {request.path}", "not_found")
        if "Allow" in error.headers:
            headers["Allow"] = error.headers["Allow"]
    if refusal.status in (429, 503):
        headers["Retry-After"] = "1"
    return web.Response(body=refusal.body(), status=refusal.status, content_type="application/json", headers=headers)


class Answering(Protocol):
    """What is served: an application, and how far it is with its requests."""

    name: str
    draining: bool

    @property
    def unanswered(self) -> int:
        """Requests that are waiting or running."""

    def app(self) -> web.Application:
        """Return the HTTP application."""


async def serve(engine: Answering, *, host: str, port: int, drain_s: float, say: Callable[[str], None]) -> None:
    """Serve until a signal asks to stop, then let running requests end.

    Parameters
    ----------
    engine : Answering
    host : str
    port : int
        0: any that is free.
    drain_s : float
        How long running requests have to end after the first signal; a second one ends them at once.
    say : callable
        Called with the address once requests are taken.

    Raises
    ------
    WavetankError
        If the address cannot be listened on.
    """
    runner = web.AppRunner(
        engine.app(), access_log=None, handler_cancellation=True, handle_signals=False, shutdown_timeout=1.0
    )
    await runner.setup()
    stop, stop_now = asyncio.Event(), asyncio.Event()

    def asked_to_stop() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_stop)
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
        except OSError as error:
            raise WavetankError(
                f"The engine cannot listen there: {error.strerror or error}.",
                given=f"{host}:{port}",
                hint="--port 0 takes any free port",
            ) from error
        bound = runner.addresses[0]
        # What exists from here on is never garbage as a whole; short pauses are what is wanted.
        gc.collect()
        gc.freeze()
        address = f"{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
        engine.name = engine.name or address
        say(f"http://{address}")
        await stop.wait()
        engine.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_until(lambda: not engine.unanswered, stop_now), drain_s)
    finally:
        await runner.cleanup()


async def _until(reached: Callable[[], bool], stop: asyncio.Event) -> None:
    while not reached() and not stop.is_set():
        await asyncio.sleep(0.02)
