"""The HTTP side of the router: takes OpenAI requests, asks the dispatcher where they go, passes the answers through.

Bodies are forwarded byte for byte.  A streamed answer goes on piece by piece as it comes, and a client that reads
slowly slows its backend down.  A client that leaves takes its request at the backend with it at once; one that ends
its side of the connection before it has its answer counts as having left, as with nginx and Envoy: TCP shows a client
that wants to read on and one that is gone by the same sign, and a backend should compute for neither an hour in vain.

A request is sent again only while no byte of an answer has come.  A refused connection and a 503 cost a backend
nothing: the next one is asked.  A connection that died without a byte may have had its request worked on: the request
is sent once more, so that none is sent out more than twice that way.  Once more on the same backend where an idle
connection ended as soon as it was used, as one does that the backend had just closed; else to another one.  A budget
bounds how many are sent again, refused connections not counted.  A backend that is slow is waited for: a time-out ends
the request, is never repeated, and is no reason to send a backend nothing more.  An answer that breaks off behind its
first byte breaks off at the client, too: an error event where it is an event stream without an announced length, and a
connection that ends before the answer does, by a reset where an orderly end would look like the answer's.

Source: the OpenAI API (chat/completions, completions, models, error objects); RFC 9110, section 7.6, on what a proxy
does not forward.

Differs from the source:

1. ``Accept-Encoding`` is not forwarded, so that the usage in answers can be read; compressed requests are refused.
2. Where a key is configured it is asked of the clients, too, so that the router gives nobody access that the backends
   would not.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from urllib.parse import unquote

from wavetank.errors import missing_extra

try:
    from aiohttp import web
    from multidict import CIMultiDict
except ImportError:
    raise missing_extra("aiohttp", "serving", needed_for="The router") from None

from wavetank.serving.proxy.backend_connection import BackendConnection
from wavetank.serving.proxy.backend_exchange import BackendError, BackendExchange
from wavetank.serving.proxy.backends import Backend, Failure
from wavetank.serving.proxy.client_connection import ClientRequest, ClientServer, RefusedConnection, reset, sign
from wavetank.serving.proxy.configuration import RouterSettings
from wavetank.serving.proxy.dispatcher import Dispatcher, NoBackendError, PoolFullError, PoolTimeoutError
from wavetank.serving.proxy.forwarding import forwarded, headers_of
from wavetank.serving.proxy.metrics import CONTENT_TYPE, RouterMetrics
from wavetank.serving.proxy.prompt_size import (
    BodyError,
    BytesPerToken,
    Prompt,
    read_prompt,
    read_stream_usage,
    read_usage,
)
from wavetank.serving.proxy.recording import Recording
from wavetank.serving.proxy.refusals import RequestError, error_body
from wavetank.serving.proxy.retry_budget import RetryBudget
from wavetank.serving.proxy.view import LiveRequest

log = logging.getLogger("wavetank.router")

COMPLETIONS = ("/v1/chat/completions", "/v1/completions")
_ALLOWED = {"/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/models": "GET", "/health": "GET",
            "/metrics": "GET", "/v1/models/": "GET"}  # fmt: skip
_ONE_MODEL = "/v1/models/"

# What a server answers that has not taken the request on: another one may.
_NOT_TAKEN = 503
# Answers that may say something about the backend, or about the request.
_BACKEND_IS_ILL = frozenset((500, 502, 503))
# Failures that say something about the backend: a slow one may be as it should be, and a long answer is the request's.
_FAILS = {
    "connect": Failure.REFUSED, "died": Failure.BROKEN, "protocol": Failure.BROKEN, "body": Failure.ANSWERED,
}  # fmt: skip
# A used connection that ends within this time, without a byte, was most likely closed by the backend while it was idle.
STALE_WITHIN_S = 1.0
# What a server says that ends an idle connection; the request that met it on its way was not read.
_WAITED_TOO_LONG = 408
# How often a request may be sent out, connections that died without a byte counted: work may be done twice, not more.
_MOST_SENT = 2
# An answer that is no event stream is held back until it is complete, up to this size: till then it can be retried.
_HELD_BACK_BYTES = 1_048_576
# Pieces at the end of a stream that are searched for its usage.
_TAIL_PIECES = 4


class _UnavailableError(Exception):
    """A backend's own answer that shows it cannot serve now."""

    def __init__(self, response: web.Response) -> None:
        super().__init__()
        self.response = response


class Proxy:
    """Answers requests.

    Parameters
    ----------
    settings : RouterSettings
    dispatcher : Dispatcher
    metrics : RouterMetrics
    ratio : BytesPerToken
    recording : Recording or None
    api_key : str
        Asked of clients where it is not empty.
    block_key : bytes
        Of the prefix blocks' hashes.
    changed : callable
        Called when a backend is ejected.
    ejected : callable
        Returns the backends that are out only for failed requests: asked where no other one is left.
    room : callable
        Says whether one more backend may be ejected for what a request can provoke.
    """

    def __init__(
        self,
        settings: RouterSettings,
        dispatcher: Dispatcher[Backend],
        metrics: RouterMetrics,
        ratio: BytesPerToken,
        *,
        recording: Recording | None = None,
        api_key: str = "",
        block_key: bytes = b"",
        changed: Callable[[], None] = lambda: None,
        ejected: Callable[[], Sequence[Backend]] = tuple,
        room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = settings
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._ratio = ratio
        self._recording = recording
        self._authorization = f"Bearer {api_key}".encode() if api_key else b""
        self._block_key = block_key
        self._with_blocks = dispatcher.reads_prefix or recording is not None
        self._block_tokens = settings.block_tokens
        self._log_requests = settings.log == "requests"
        self._log_errors = settings.log != "none"
        self._budget = RetryBudget(settings.retry_share, settings.retry_floor, settings.retry_window_s)
        self._models: dict[str, bytes] = {}
        self._models_away: frozenset[str] = frozenset()
        self._models_known = False
        self.models_page = b'{"object":"list","data":[]}'
        self._changed = changed
        self._ejected = ejected
        self._room = room
        self.draining = False
        self._ending = False
        # Connections with an answer under way whose end is the connection's own, or an announced length.
        self._unframed: set[asyncio.Transport | None] = set()
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._silent: dict[object, asyncio.TimerHandle] = {}
        self.server = ClientServer(
            self.handle,
            write_s=settings.write_s,
            lost=self._spoke,
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            logger=logging.getLogger("wavetank.router.http"),
            keepalive_timeout=settings.client_keep_alive_s,
            lingering_time=1.0,
            auto_decompress=False,
        )

    # -- connections of clients ----------------------------------------------------------------------------------------

    def connect(self) -> asyncio.Protocol:
        """Return the protocol of a new client's connection."""
        if len(self.server.connections) >= self._settings.max_connections:
            return RefusedConnection()
        connection = self.server()
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(self._settings.read_s, self._hang_up, connection)
        return connection

    def _hang_up(self, connection: web.RequestHandler) -> None:
        """End a connection that never came to its first request."""
        self._silent.pop(connection, None)
        connection.force_close()

    def _spoke(self, connection: object) -> None:
        """Wait no longer for a connection's first request: it has come, or the connection is gone."""
        timer = self._silent.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _request(self, message, payload, protocol, writer, task):  # type: ignore[no-untyped-def]
        self._spoke(protocol)
        return ClientRequest(
            message, payload, protocol, writer, task, asyncio.get_running_loop(),
            client_max_size=self._settings.max_body_bytes,
        )  # fmt: skip

    def cut_off(self) -> None:
        """Give up the answers under way: the router ends.  Those whose orderly end could look complete are reset."""
        self._ending = True
        for transport in tuple(self._unframed):
            reset(transport)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def handle(self, request: ClientRequest) -> web.StreamResponse:
        """Answer one request."""
        response = await self._handle(request)
        if not response.prepared:
            sign(response, request)
        return response

    async def _handle(self, request: ClientRequest) -> web.StreamResponse:
        path = _path_of(request)
        try:
            allowed = _ALLOWED.get(path)
            if allowed is None:
                raise RequestError(404, f"Unknown request URL: {request.method} {path}.", code="unknown_url")
            if request.method != allowed:
                raise RequestError(
                    405, f"Not allowed to {request.method} on {path}; use {allowed}.", code="method_not_supported"
                )
            if path in COMPLETIONS:
                return await self._completion(request, time.monotonic())
            if path == "/health":
                return self._health()
            if path == "/metrics":
                return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})
            self._check_key(request)
            page = self.models_page if path == "/v1/models" else self._model_page(request)
            return web.Response(body=page, headers={"Content-Type": "application/json"})
        except RequestError as error:
            return self._refuse(request, error)
        except Exception:
            log.exception("a defect of the router, at %s %.200r", request.method, request.raw_path)
            if request.answer is not None:
                await self._break_off(request, request.answer, "The router failed.")
                return request.answer
            return self._refuse(request, RequestError(500, "The router failed.", kind="server_error"))

    def _model_page(self, request: ClientRequest) -> bytes:
        name = unquote(request.raw_path.partition("?")[0].removeprefix(_ONE_MODEL))
        page = self._models.get(name)
        if page is None:
            raise _no_model(name)
        return page

    def _refuse(self, request: ClientRequest, error: RequestError) -> web.Response:
        self._metrics.answered("none", error.status)
        if self._log_errors:
            log.info("%s %.200r %d %s", request.method, request.raw_path, error.status, error)
        response = web.Response(
            status=error.status,
            body=error_body(error.status, str(error), error.kind, error.code),
            headers={"Content-Type": "application/json"},
        )
        if error.status in (429, 503):
            response.headers["Retry-After"] = "1"
        if error.status == 405:
            response.headers["Allow"] = _ALLOWED[_path_of(request)]
        if error.status in (408, 413) or self.draining:
            response.force_close()
        return response

    def _health(self) -> web.Response:
        if self.draining:
            state, status = "draining", 503
        elif not self._dispatcher.targets:
            state, status = "no backend", 503
        else:
            state, status = "ready", 200
        return web.Response(
            status=status,
            body=json.dumps({"status": state, "backends": len(self._dispatcher.targets)}).encode(),
            headers={"Content-Type": "application/json"},
        )

    def _check_key(self, request: ClientRequest) -> None:
        if not self._authorization:
            return
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._authorization):
            raise RequestError(401, "Incorrect API key provided.", code="invalid_api_key")

    def set_models(self, backends: Sequence[Backend]) -> None:
        """Take over what the backends serve: the union of those that are up, ejected ones included."""
        up = [backend for backend in backends if backend.up]
        merged: dict[str, bytes] = {}
        for backend in up:
            for name, entry in backend.models.items():
                merged.setdefault(name, entry)
        self._models = merged
        self._models_away = frozenset(name for backend in backends for name in backend.models)
        self._models_known = bool(up) and all(backend.models for backend in up)
        self.models_page = b'{"object":"list","data":[' + b",".join(merged.values()) + b"]}"

    async def _completion(self, request: ClientRequest, arrived_s: float) -> web.StreamResponse:
        self.in_flight += 1
        self.idle.clear()
        try:
            self._check_key(request)
            if self.draining:
                raise RequestError(503, "The router is shutting down.", kind="server_error", code="draining")
            body = await self._body(request)
            prompt = self._prompt(body)
            live = self._live(prompt, arrived_s)
            async with asyncio.timeout(self._settings.total_s):
                return await self._serve(request, body, prompt, live)
        except asyncio.CancelledError:
            if not self._ending:
                self._left(request)
            raise
        except ConnectionError:
            self._left(request)
            # Nobody reads it any more.
            return request.answer or web.Response(status=499)
        except TimeoutError:
            why = f"No complete answer within {self._settings.total_s:g} s."
            started = request.answer
            if started is None:
                raise RequestError(504, why, kind="server_error", code="timeout") from None
            self._metrics.answered("none", 504)
            await self._break_off(request, started, why)
            return started
        except NoBackendError:
            raise RequestError(503, "No backend is available.", kind="server_error", code="no_backend") from None
        except PoolFullError:
            raise RequestError(
                429, "Too many requests are waiting.", kind="rate_limit_error", code="pool_full"
            ) from None
        except PoolTimeoutError:
            raise RequestError(
                503, f"No backend had room within {self._settings.pool_wait_s:g} s.", kind="server_error",
                code="pool_timeout",
            ) from None  # fmt: skip
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()

    async def _body(self, request: ClientRequest) -> bytes:
        settings = self._settings
        length = request.content_length
        if length is not None and length > settings.max_body_bytes:
            raise _too_long(settings.max_body_bytes)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise RequestError(415, "Compressed requests are not accepted.", code="unsupported_content_encoding")
        expect = request.headers.get("Expect")
        if expect is not None:
            if expect.lower() != "100-continue":
                raise RequestError(417, f"The expectation {expect[:100]!r} cannot be met.")
            # A client of HTTP/1.0 would take the interim answer for the answer.
            if request.transport is not None and request.version >= (1, 1):
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            if request.content.is_eof():
                return await request.read()
            async with asyncio.timeout(settings.read_s):
                return await request.read()
        except TimeoutError:
            raise RequestError(408, f"The request did not come within {settings.read_s:g} s.") from None
        except web.HTTPRequestEntityTooLarge:
            raise _too_long(settings.max_body_bytes) from None
        except web.RequestPayloadError as error:
            raise RequestError(400, f"The request's body is damaged: {error}") from None

    def _prompt(self, body: bytes) -> Prompt:
        try:
            prompt = read_prompt(body)
        except BodyError as error:
            raise RequestError(400, str(error), code="invalid_body") from None
        if not prompt.model:
            raise RequestError(400, "You must provide a model parameter.", code="model_required")
        if self._models_known and prompt.model not in self._models:
            if prompt.model in self._models_away:
                # It exists, and comes back with its backend: a client may ask again.
                raise NoBackendError
            raise _no_model(prompt.model)
        return prompt

    def _live(self, prompt: Prompt, arrived_s: float) -> LiveRequest:
        blocks = []
        if self._with_blocks:
            blocks = prompt.blocks(self._block_tokens, self._settings.bytes_per_token, self._block_key)
        prompt.forget_text()
        if prompt.token_ids:
            return LiveRequest(arrived_s, prompt.token_ids, blocks, self._block_tokens)
        block_bytes = self._block_tokens * self._settings.bytes_per_token
        ratio = self._ratio
        return LiveRequest(arrived_s, ratio.tokens(prompt.text_bytes), blocks, block_bytes / ratio.ratio)

    # -- serving -------------------------------------------------------------------------------------------------------

    async def _serve(
        self, request: ClientRequest, body: bytes, prompt: Prompt, live: LiveRequest
    ) -> web.StreamResponse:
        asked_s = time.monotonic()
        backend = await self._dispatcher.assign(live)
        waited_s = 0.0
        if self._dispatcher.pools:
            waited_s = time.monotonic() - asked_s
            self._metrics.pool_waited(waited_s)
        if not backend.serves(prompt.model):
            backend = self._elsewhere(live, backend, prompt.model)
        message = forwarded(request, len(body))
        self._budget.request(time.monotonic())
        tried: list[Backend] = []
        refused = 0
        failure: BackendError | _UnavailableError
        while True:
            tried.append(backend)
            try:
                return await self._exchange(request, message, body, prompt, live, backend, waited_s)
            except (BackendError, _UnavailableError) as error:
                failure = error
            finally:
                backend.account.done(live)
            reason = failure.reason if isinstance(failure, BackendError) else f"status-{failure.response.status}"
            self._failed(backend, reason)
            refused += reason == "connect"
            out, spare = [*tried, *self._without(prompt.model)], self._spare(prompt.model)
            left = any(target not in out for target in (*self._dispatcher.targets, *spare))
            if not left or not self._may_try_again(request, failure, reason, len(tried) - refused):
                return self._given_up(request, backend, failure)
            backend = self._dispatcher.reassign(live, out, spare)
            self._metrics.retried(tried[-1].name, reason)

    def _may_try_again(
        self, request: ClientRequest, failure: BackendError | _UnavailableError, reason: str, asked: int
    ) -> bool:
        """Say whether another backend may be asked, after ``asked`` of them that did not refuse the connection."""
        # A connection that was refused cost no backend anything.
        if reason == "connect":
            return True
        if isinstance(failure, BackendError) and (not failure.untouched or request.deaths >= _MOST_SENT):
            return False
        if asked >= self._settings.tries:
            return False
        if self._budget.retry(time.monotonic()):
            return True
        self._metrics.retry_denied()
        return False

    def _without(self, model: str | None) -> list[Backend]:
        """Return the backends that are known not to serve a model."""
        return [backend for backend in self._dispatcher.targets if not backend.serves(model)]

    def _spare(self, model: str | None) -> list[Backend]:
        """Return the backends that may serve a model and are out only for failed requests."""
        return [backend for backend in self._ejected() if backend.serves(model)]

    def _elsewhere(self, live: LiveRequest, backend: Backend, model: str | None) -> Backend:
        """Send a request to a backend that serves its model: the policy was shown all of them."""
        backend.account.done(live)
        self._metrics.fell_back("model")
        return self._dispatcher.reassign(live, self._without(model), self._spare(model))

    def _failed(self, backend: Backend, reason: str) -> None:
        """Take in a failure, where it may say something about the backend."""
        failure = Failure.ANSWERED if reason.startswith("status-") else _FAILS.get(reason)
        if failure is not None and backend.failed(time.monotonic(), failure, room=self._room()):
            log.warning("backend %s is out for a time: %s", backend.name, reason)
            self._changed()

    def _given_up(
        self, request: ClientRequest, backend: Backend, failure: BackendError | _UnavailableError
    ) -> web.StreamResponse:
        if isinstance(failure, _UnavailableError):
            self._metrics.answered(backend.name, failure.response.status)
            return failure.response
        status = 504 if failure.reason in ("first_byte", "idle") else 502
        raise RequestError(status, f"The backend gave no answer: {failure}", kind="server_error", code=failure.reason)

    async def _exchange(
        self,
        request: ClientRequest,
        lines: tuple[bytes, bytes],
        body: bytes,
        prompt: Prompt,
        live: LiveRequest,
        backend: Backend,
        waited_s: float,
    ) -> web.StreamResponse:
        """Ask one backend; raises BackendError or _UnavailableError as long as nothing has gone to the client."""
        message = b"%bHost: %b\r\n%b%b" % (lines[0], backend.host_header, lines[1], body)
        pool = backend.connections
        connection = pool.idle() or await pool.fresh()
        sent_s = time.monotonic()
        try:
            exchange = self._send(connection, message, prompt)
            try:
                status = await _answered(request, connection, sent_s)
            except BackendError as error:
                if not self._was_stale(request, connection, error, time.monotonic() - sent_s):
                    raise
                # Nothing is wrong with the backend.
                connection.close()
                connection = await pool.fresh()
                exchange = self._send(connection, message, prompt)
                status = await _answered(request, connection, sent_s)
            piece = await connection.read()
            first_s = time.monotonic()
            times_s = (sent_s - waited_s, first_s)
            headers = headers_of(exchange)
            streams = headers.get("Content-Type", "").startswith("text/event-stream")
            if streams and status != _NOT_TAKEN:
                return await self._stream(request, prompt, live, backend, connection, headers, piece, times_s)
            pieces, size = [piece], len(piece)
            while piece and size <= _HELD_BACK_BYTES:
                piece = await connection.read()
                pieces.append(piece)
                size += len(piece)
            whole = b"".join(pieces)
            if piece:
                if status == _NOT_TAKEN:
                    raise BackendError("too_long", f"The backend answered {status} at unusual length.")
                return await self._stream(request, prompt, live, backend, connection, headers, whole, times_s)
        finally:
            pool.give_back(connection)
        done_s = time.monotonic()
        response = web.Response(status=status, body=whole, headers=headers)
        if status == _NOT_TAKEN:
            raise _UnavailableError(response)
        usage = read_usage(whole) if status == 200 else None
        if usage is None and not _is_json(whole):
            if exchange.ends_with_connection:
                raise BackendError("died", "The backend closed the connection in the middle of its answer.")
            says_json = headers.get("Content-Type", "").startswith("application/json")
            if status == 200 and says_json and "Content-Encoding" not in headers:
                # Cut by a length that was too short, or never whole: better an error than passed on.
                raise BackendError("body", "The backend's answer is not the JSON it says it is.")
        self._judged(backend, status)
        name = backend.name
        self._metrics.answered(name, status)
        self._metrics.served(name, first_s - live.arrived_s, done_s - live.arrived_s, len(body), size)
        if status == 200:
            self._note(prompt, live, usage, 0)
        if self._log_requests:
            log.info("%s %s %d %s", request.method, request.raw_path, status, name)
        self._metrics.added(sent_s - waited_s - live.arrived_s + time.monotonic() - done_s)
        return response

    def _was_stale(
        self, request: ClientRequest, connection: BackendConnection, error: BackendError, after_s: float
    ) -> bool:
        """Say whether a connection was most likely closed while it was idle, and its request may be sent again."""
        return (
            error.untouched
            and connection.exchanges > 1
            and after_s <= STALE_WITHIN_S
            and request.deaths < _MOST_SENT
            and self._budget.retry(time.monotonic())
        )

    def _send(self, connection: BackendConnection, message: bytes, prompt: Prompt) -> BackendExchange:
        settings = self._settings
        return connection.send(
            message,
            # The servers send nothing of a plain answer before all of it is there: only total_s bounds that.
            first_byte_s=settings.first_byte_s if prompt.stream else None,
            idle_s=settings.idle_s,
            max_bytes=settings.max_response_bytes,
        )

    def _judged(self, backend: Backend, status: int) -> None:
        """Take in what an answer's status says about its backend."""
        if status in _BACKEND_IS_ILL:
            self._failed(backend, f"status-{status}")
        else:
            backend.succeeded()

    async def _stream(
        self,
        request: ClientRequest,
        prompt: Prompt,
        live: LiveRequest,
        backend: Backend,
        connection: BackendConnection,
        headers: CIMultiDict[str],
        piece: bytes,
        times_s: tuple[float, float],
    ) -> web.StreamResponse:
        """Pass an answer on as it comes; from here on it cannot be tried again."""
        sent_s, first_s = times_s
        exchange = connection.exchange
        status = exchange.status
        response = web.StreamResponse(status=status, headers=headers)
        sign(response, request)
        length = next((value for name, value in exchange.headers if name == b"content-length"), None)
        if length is not None:
            response.content_length = int(length)
        elif request.version >= (1, 1):
            response.enable_chunked_encoding()
        else:
            response.force_close()
        events_only = headers.get("Content-Type", "").startswith("text/event-stream")
        account = backend.account
        tail: deque[bytes] = deque(maxlen=_TAIL_PIECES)
        events = 0
        after_newline = False
        size = 0
        broken: BackendError | None = None
        request.answer = response
        transport = request.transport
        if not response.chunked:
            self._unframed.add(transport)
        try:
            await response.prepare(request)
            while piece:
                if events_only:
                    seen = piece.count(b"\n\n") or piece.count(b"\r\n\r\n")
                    if after_newline and piece[0] == 10:
                        seen += 1
                    after_newline = piece[-1] == 10 and not piece.endswith(b"\n\n")
                    events += seen
                    tail.append(piece)
                    account.generated(live, seen)
                size += len(piece)
                request.event_ended = piece.endswith((b"\n\n", b"\r\n\r\n"))
                await response.write(piece)
                piece = await connection.read()
            if events_only and exchange.ends_with_connection and b"[DONE]" not in b"".join(tail):
                raise BackendError("died", "The backend closed the connection in the middle of its answer.")
        except BackendError as error:
            broken = error
            self._metrics.broke_off(backend.name)
            self._failed(backend, error.reason)
            if self._log_errors:
                log.info("%s %s broke off at %s: %s", request.method, request.raw_path, backend.name, error)
            await self._break_off(request, response, str(error))
        finally:
            self._unframed.discard(transport)
            # As far as it can be seen: a first event names the role, a last one says that it is done.
            usage = read_stream_usage(b"".join(tail)) if tail else None
            if status == 200 and (usage is not None or events):
                self._note(prompt, live, usage, max(events - (2 if prompt.chat else 1), 1))
        done_s = time.monotonic()
        if broken is None:
            self._judged(backend, status)
            await response.write_eof()
        self._metrics.answered(backend.name, status)
        self._metrics.served(
            backend.name, first_s - live.arrived_s, done_s - live.arrived_s, request.content_length or 0, size
        )
        self._metrics.added(sent_s - live.arrived_s + time.monotonic() - done_s)
        if self._log_requests:
            log.info("%s %s %d %s", request.method, request.raw_path, status, backend.name)
        return response

    async def _break_off(self, request: ClientRequest, response: web.StreamResponse, why: str) -> None:
        """End an answer so that nobody takes it for a complete one."""
        transport = request.transport
        if response.prepared and not response.chunked:
            # An event could fill the announced length up, and without one an orderly end is the answer's own.
            reset(transport)
            return
        if response.headers.get("Content-Type", "").startswith("text/event-stream") and response.prepared:
            event = b"data: " + error_body(502, why, "server_error", "backend_failed") + b"\n\n"
            with contextlib.suppress(ConnectionError):
                # The event that was cut ends here, or the error would be a line of it.
                await response.write(event if request.event_ended else b"\n\n" + event)
        if transport is not None:
            # What was written goes out; the end of the coding never comes.
            transport.close()

    def _left(self, request: ClientRequest) -> None:
        self._metrics.cancelled()
        if self._log_errors:
            log.info("%s %s client left", request.method, request.raw_path)

    def _note(self, prompt: Prompt, live: LiveRequest, usage: tuple[int, int] | None, seen_tokens: int) -> None:
        """Learn from an answer, and record it."""
        if usage is not None and prompt.text_bytes:
            self._ratio.learn(prompt.text_bytes, usage[0])
        if self._recording is None:
            return
        prompt_tokens, output_tokens = usage or (live.prompt_tokens, seen_tokens)
        if output_tokens > 0:
            self._recording.add(
                arrived_s=live.arrived_s,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                reported=usage is not None,
                model=prompt.model or "",
                blocks=live.blocks,
            )


def _too_long(limit: int) -> RequestError:
    return RequestError(413, f"The request is longer than {limit} bytes.", code="request_too_large")


def _no_model(name: str) -> RequestError:
    return RequestError(404, f"The model `{name[:200]}` does not exist.", code="model_not_found")


def _path_of(request: ClientRequest) -> str:
    """Return the path as :data:`_ALLOWED` has it."""
    path = request.raw_path.partition("?")[0]
    return _ONE_MODEL if path.startswith(_ONE_MODEL) and path != _ONE_MODEL else path if path != _ONE_MODEL else ""


async def _answered(request: ClientRequest, connection: BackendConnection, sent_s: float) -> int:
    """Wait for the status of an answer; a connection that dies without a byte, or had ended before, is counted."""
    try:
        status = await connection.answer()
        early = connection.exchanges > 1 and time.monotonic() - sent_s <= STALE_WITHIN_S
        if status == _WAITED_TOO_LONG and connection.exchange.ends_connection and early:
            raise BackendError("died", "The backend had waited too long for a request.", untouched=True)
        return status
    except BackendError as error:
        request.deaths += error.untouched
        raise


def _is_json(text: bytes) -> bool:
    try:
        # Bytes that are no UTF-8 within a text are the client's to see.
        json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    return True
