"""OpenAI's interface in front of an instance of ranks: streams go on when a rank that answers them is killed.

A thread owns the instance, since its processes end with the thread that started them; requests and tokens pass between
it and the server.  A prompt's bytes are its tokens, and each token of an answer is a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from wavetank.errors import WavetankError
from wavetank.serving.proxy.engine import as_openai_errors
from wavetank.serving.proxy.openai_request import Asked, Refusal, read_request
from wavetank.serving.rank_failures.instance import Answer, Instance
from wavetank.serving.rank_failures.small_model import VOCABULARY, Shape, word

try:
    from aiohttp import web
except ImportError as error:
    from wavetank.errors import missing_extra

    raise missing_extra(str(error.name), "serving", needed_for="wavetank launch experts") from None

MODEL = "small-experts"
DEFAULT_TOKENS = 64
LONGEST_TOKENS = 65536
_BODY_BYTES = 4 << 20
_BODY_TIMEOUT_S = 30.0
_TURN_S = 0.01
_START_S = 120.0


class InstanceThread:
    """An instance in a thread of its own.

    Parameters
    ----------
    shape : Shape
    settings : mapping
        Of :class:`~wavetank.serving.rank_failures.instance.Instance`.
    say : callable
        Called with a line when a mask was applied, and about the processes.
    """

    def __init__(self, shape: Shape, settings: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._shape, self._settings, self._say = shape, dict(settings), say
        self._asked: queue.Queue[Callable[[Instance], None]] = queue.Queue()
        self._stop, self._begun = threading.Event(), threading.Event()
        self.failure: WavetankError | None = None
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        # Requests that are not over: who is to hear of each, and its answer once the instance has it.
        self._listeners: dict[int, Callable[[Answer], None]] = {}
        self._answers: dict[int, Answer] = {}
        self._tickets: dict[int, int] = {}
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="instance")

    def start(self) -> None:
        """Start the ranks and return when all take part.

        Raises
        ------
        WavetankError
            If they do not come up.
        """
        self._thread.start()
        try:
            self._begun.wait(_START_S)
        except BaseException:
            # A signal, say: a thread that goes on would keep this process, and its ranks, for ever.
            self.close()
            raise
        if self.failure is not None or not self._begun.is_set():
            self.close()
            raise self.failure or WavetankError("The ranks did not begin in time.", given=f"{_START_S:g} s")

    def close(self) -> None:
        """End all processes."""
        self._stop.set()
        self._thread.join()

    def ask(self, prompt: list[int], count: int, heard: Callable[[Answer], None]) -> int:
        """Submit a request and return its ticket; what comes of it is said in the instance's thread.

        Parameters
        ----------
        prompt : list of int
        count : int
        heard : callable
            Called with the answer after each token, and when there is an error.
        """
        ticket = next(self._numbers)

        def submit(instance: Instance) -> None:
            if ticket not in self._listeners:
                return
            try:
                answer = instance.submit(prompt, count)
            except WavetankError as error:
                del self._listeners[ticket]
                heard(Answer(-1, prompt, count, error=error))
            else:
                self._answers[ticket], self._tickets[answer.number] = answer, ticket

        with self._lock:
            ended = self._ended
            if not ended:
                self._listeners[ticket] = heard
                self._asked.put(submit)
        if ended:
            heard(Answer(-1, prompt, count, error=self._reason()))
        return ticket

    def forget(self, ticket: int) -> None:
        """Stop answering a request, if it is not over; nothing is said of it any more.

        Parameters
        ----------
        ticket : int
            Of :meth:`ask`.
        """
        self._asked.put(lambda instance: self._forget(instance, ticket))

    def _forget(self, instance: Instance, ticket: int) -> None:
        self._listeners.pop(ticket, None)
        answer = self._answers.pop(ticket, None)
        if answer is not None:
            del self._tickets[answer.number]
            instance.forget(answer)

    def _reason(self) -> WavetankError:
        return self.failure or WavetankError("The instance was stopped.")

    def _heard(self, answer: Answer) -> None:
        ticket = self._tickets.get(answer.number, -1)
        listener = self._listeners.get(ticket)
        if listener is not None:
            listener(answer)
        if answer.done:
            self.forget(ticket)

    def _run(self) -> None:
        try:
            with Instance(self._shape, **self._settings) as instance:
                instance.heard = self._heard
                seen = (0, 0)
                while not self._stop.is_set():
                    instance.pump(_TURN_S, lambda: not self._asked.empty() or self._stop.is_set())
                    while not self._asked.empty():
                        self._asked.get_nowait()(instance)
                    seen = self._report(instance, seen)
        except Exception as error:
            # Whatever it is: clients wait for this thread.
            broken = WavetankError("The instance broke.", given=repr(error)[:500])
            self.failure = error if isinstance(error, WavetankError) else broken
            self._say(f"The instance cannot serve any more: {self.failure}")
        finally:
            with self._lock:
                # Nothing is taken from here on, and what was not taken yet is refused, too.
                self._ended = True
            for listener in list(self._listeners.values()):
                listener(Answer(-1, [], 1, error=self._reason()))
            self._begun.set()

    def _report(self, instance: Instance, seen: tuple[int, int]) -> tuple[int, int]:
        """Say once who takes part in each epoch that all of its members applied."""
        if not instance.changes:
            return seen
        latest = max((each.start, each.epoch) for each in instance.changes)
        said = [each for each in instance.changes if (each.start, each.epoch) == latest]
        if latest == seen or {each.rank for each in said} != set(said[0].members):
            return seen
        pids = ", ".join(f"{rank} (pid {instance.ranks.pid(rank)})" for rank in said[0].members)
        again = f" of start {latest[0] + 1}" if latest[0] else ""
        self._say(f"epoch {latest[1]}{again}: ranks {pids}")
        instance.changes = said
        self._begun.set()
        return latest


class ExpertServer:
    """The server in front of an instance.

    Parameters
    ----------
    instance : InstanceThread
    """

    def __init__(self, instance: InstanceThread) -> None:
        self.instance = instance
        self.name = ""
        self.draining = False
        self._numbers = itertools.count()
        self._open = 0

    @property
    def unanswered(self) -> int:
        """Requests under way."""
        return self._open

    def app(self) -> web.Application:
        """Return the HTTP application."""
        app = web.Application(client_max_size=_BODY_BYTES, middlewares=[as_openai_errors])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        return app

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=False)

    async def _chat_completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=True)

    async def _models(self, http: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "wavetank", "max_model_len": LONGEST_TOKENS}
        return _json({"object": "list", "data": [model]})

    async def _health(self, http: web.Request) -> web.Response:
        well = self.instance.failure is None and not self.draining
        return _json({"status": "ok" if well else "failed"}, status=200 if well else 503)

    async def _answer(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = await asyncio.wait_for(http.read(), _BODY_TIMEOUT_S)
        except TimeoutError:
            raise Refusal(408, f"The body did not come within {_BODY_TIMEOUT_S:g} s.", "timeout") from None
        except ConnectionResetError:
            raise Refusal(400, "The client went away.", "gone") from None
        asked = read_request(body, chat=chat)
        prompt, count = _checked(asked)
        if self.draining or self.instance.failure is not None:
            raise Refusal(503, str(self.instance.failure or "The server is shutting down."), "unavailable")
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Answer]]()

        def heard(answer: Answer) -> None:
            with contextlib.suppress(RuntimeError):
                # The loop is closed: there is no client any more.
                loop.call_soon_threadsafe(parts.put_nowait, (len(answer.said), answer))

        self._open += 1
        last: Answer | None = None
        ticket = self.instance.ask(prompt, count, heard)
        try:
            kind = "chat.completion" if chat else "text_completion"
            about = {
                "id": f"{'chatcmpl' if chat else 'cmpl'}-{next(self._numbers)}", "created": int(time.time()),
                "object": f"{kind}.chunk" if chat and asked.stream else kind, "model": MODEL,
                "system_fingerprint": self.name,
            }  # fmt: skip
            response: web.StreamResponse | None = None
            said = 0
            while said < count:
                reached, last = await parts.get()
                if last.error is not None and reached <= said:
                    refusal = Refusal(503, str(last.error), "unavailable")
                    if response is None:
                        raise refusal
                    # The stream has begun: another answer would stand in the middle of it.
                    await response.write(b"data: " + refusal.body() + b"\n\n")
                    await response.write_eof()
                    return response
                text = "".join(map(word, last.said[said:reached]))
                if asked.stream and text:
                    if response is None:
                        response = web.StreamResponse(
                            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
                        )
                        await response.prepare(http)
                    await response.write(_event(about, text, chat, last=reached >= count))
                said = max(said, reached)
            usage = {"prompt_tokens": len(prompt), "completion_tokens": said, "total_tokens": len(prompt) + said}
            if response is not None:
                if asked.include_usage:
                    ending = {**about, "choices": [], "usage": usage}
                    await response.write(b"data: " + msgspec.json.encode(ending) + b"\n\n")
                await response.write(b"data: [DONE]\n\n")
                await response.write_eof()
                return response
            text = "".join(map(word, last.said if last is not None else []))
            what: dict[str, object] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, **what, "logprobs": None, "finish_reason": "length"}
            return _json({**about, "choices": [choice], "usage": usage})
        finally:
            self._open -= 1
            if last is None or not last.done:
                self.instance.forget(ticket)


def _checked(asked: Asked) -> tuple[list[int], int]:
    """Return the tokens of a request's prompt, and how many are to be said."""
    if asked.model not in (None, MODEL):
        raise Refusal(404, f"The model {asked.model!r} does not exist.", "model_not_found", "model")
    prompt = list(asked.content)
    if max(prompt) >= VOCABULARY:
        raise Refusal(400, f"Token ids are below {VOCABULARY}.", "invalid_value", "prompt")
    count = asked.max_tokens or max(asked.min_tokens, DEFAULT_TOKENS)
    if len(prompt) + count > LONGEST_TOKENS:
        raise Refusal(400, f"This model's context is {LONGEST_TOKENS} tokens.", "context_length_exceeded", "prompt")
    return prompt, count


def _event(about: Mapping[str, object], text: str, chat: bool, *, last: bool) -> bytes:
    what: dict[str, object] = {"delta": {"content": text}} if chat else {"text": text}
    choice = {"index": 0, **what, "logprobs": None, "finish_reason": "length" if last else None}
    return b"data: " + msgspec.json.encode({**about, "choices": [choice]}) + b"\n\n"


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
