"""Takes one request to a backend and its answer back: which backend, which next one, piece by piece, to a visible end.

A request is sent again only while no byte of an answer has come.  A refused connection and a 503 cost a backend
nothing: the next one is asked.  A connection that died without a byte may have had its request worked on: the request
is sent once more, so that none is sent out more than twice that way.  Once more on the same backend where an idle
connection ended as soon as it was used, as one does that the backend had just closed; else to another one.  A budget
bounds how many are sent again, refused connections not counted.  A backend that is slow is waited for: a time-out ends
the request, is never repeated, and is no reason to send a backend nothing more.  An answer that breaks off behind its
first byte breaks off at the client, too: an error event where it is an event stream without an announced length, and a
connection that ends before the answer does, by a reset where an orderly end would look like the answer's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence

from aiohttp import web
from multidict import CIMultiDict

from wavetank.serving.proxy.backend_connection import BackendConnection
from wavetank.serving.proxy.backend_exchange import BackendError, BackendExchange
from wavetank.serving.proxy.backends import Backend, Failure
from wavetank.serving.proxy.client_connection import ClientRequest, reset, sign
from wavetank.serving.proxy.configuration import RouterSettings
from wavetank.serving.proxy.dispatcher import Dispatcher
from wavetank.serving.proxy.forwarding import Forwarded, forwarded, headers_of
from wavetank.serving.proxy.length_predictor import LengthPredictor
from wavetank.serving.proxy.metrics import RouterMetrics
from wavetank.serving.proxy.prompt_size import TAIL_BYTES, BytesPerToken, Prompt, Tail, read_last_usage, read_usage
from wavetank.serving.proxy.recording import Recording
from wavetank.serving.proxy.refusals import RequestError, error_event
from wavetank.serving.proxy.retry_budget import RetryBudget
from wavetank.serving.proxy.view import LiveRequest

log = logging.getLogger("wavetank.router")

# What a server answers that has not taken the request on, or a router that it came from: another one may.
_NOT_TAKEN = frozenset((503, 508))
# Answers that may say something about the backend, or about the request.
_BACKEND_IS_ILL = frozenset((500, 502, 503))
# Failures that say something about the backend: a slow one may be as it should be, and a long answer is the request's.
_FAILS = {
    "connect": Failure.REFUSED, "tls": Failure.REFUSED, "died": Failure.BROKEN, "protocol": Failure.BROKEN,
    "body": Failure.ANSWERED,
}  # fmt: skip
# No byte of the request was read: another backend may be asked at no cost.
_REFUSED = frozenset(("connect", "tls"))
# A used connection that ends within this time, without a byte, was most likely closed by the backend while it was idle.
STALE_WITHIN_S = 1.0
# What a server says that ends an idle connection; the request that met it on its way was not read.
_WAITED_TOO_LONG = 408
# How often a request may be sent out, connections that died without a byte counted: work may be done twice, not more.
_MOST_SENT = 2
# An answer that is no event stream is held back until it is complete, up to this size: till then it can be retried.
_HELD_BACK_BYTES = 1_048_576


class _UnavailableError(Exception):
    """A backend's own answer that shows it cannot serve now."""

    def __init__(self, response: web.Response) -> None:
        super().__init__()
        self.response = response


class Relay:
    """Has requests answered by backends.

    Parameters
    ----------
    settings : RouterSettings
    dispatcher : Dispatcher
    metrics : RouterMetrics
    ratio : BytesPerToken
    recording : Recording or None
    changed : callable
        Called when a backend is ejected.
    ejected : callable
        Returns the backends that are asked only where no other one is left.
    room : callable
        Says whether one more backend may be ejected for what a request can provoke.
    set_aside : callable
        Returns the backend that gets a request of a model whatever the policy says; None for most requests.
    name : bytes
        By which the router knows what has passed through it.

    Attributes
    ----------
    began : callable
        Called with a request when a pool policy has placed it.
    lengths : LengthPredictor
        Of answers, from those that have ended.
    """

    def __init__(
        self,
        settings: RouterSettings,
        dispatcher: Dispatcher[Backend],
        metrics: RouterMetrics,
        ratio: BytesPerToken,
        *,
        recording: Recording | None = None,
        changed: Callable[[], None] = lambda: None,
        ejected: Callable[[], Sequence[Backend]] = tuple,
        room: Callable[[], bool] = lambda: True,
        set_aside: Callable[[str | None], Backend | None] = lambda model: None,
        name: bytes = b"wavetank",
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._ratio = ratio
        self._recording = recording
        self._changed = changed
        self._ejected = ejected
        self._room = room
        self._set_aside = set_aside
        self._name = name
        self.lengths = LengthPredictor()
        self.began: Callable[[ClientRequest, LiveRequest], None] = lambda request, live: None
        # Connections with an answer under way whose end is the connection's own, or an announced length.
        self._unframed: set[asyncio.Transport | None] = set()
        self.configure(settings)

    def configure(self, settings: RouterSettings) -> None:
        """Take over changed settings."""
        self._settings = settings
        self._log_requests = settings.log == "requests"
        self._log_errors = settings.log != "none"
        self._budget = RetryBudget(settings.retry_share, settings.retry_floor, settings.retry_window_s)

    def cut_off(self) -> None:
        """Give up the answers under way.  Those whose orderly end could look complete are reset."""
        for transport in tuple(self._unframed):
            reset(transport)

    async def serve(self, request: ClientRequest, body: bytes, prompt: Prompt, live: LiveRequest) -> web.StreamResponse:
        """Answer a request.

        Raises
        ------
        RequestError
            If no backend answers.
        NoBackendError, PoolFullError, PoolTimeoutError
            If the dispatcher names none.
        """
        head = forwarded(request, len(body), name=self._name, keyless=request.client is None)
        asked_s = time.monotonic()
        backend = self._set_aside(prompt.model)
        if backend is None:
            backend = await self._dispatcher.assign(live)
        else:
            backend.account.send(live, asked_s)
        waited_s = 0.0
        if self._dispatcher.pools:
            self.began(request, live)
            waited_s = time.monotonic() - asked_s
            self._metrics.pool_waited(waited_s)
        if not backend.serves(prompt.model):
            backend = self._elsewhere(live, backend, prompt.model)
        self._budget.request(time.monotonic())
        if request.trace is not None:
            request.trace.note(model=prompt.model or "", waited_s=waited_s)
            request.trace.asks(backend.name)
        tried: list[Backend] = []
        refused = 0
        failure: BackendError | _UnavailableError
        while True:
            tried.append(backend)
            try:
                return await self._exchange(request, head, body, prompt, live, backend, waited_s)
            except (BackendError, _UnavailableError) as error:
                failure = error
            finally:
                backend.account.done(live)
            reason = failure.reason if isinstance(failure, BackendError) else f"status-{failure.response.status}"
            self._failed(backend, reason)
            refused += reason in _REFUSED
            out, spare = [*tried, *self._without(prompt.model)], self._spare(prompt.model)
            left = any(target not in out for target in (*self._dispatcher.targets, *spare))
            if not left or not self._may_try_again(request, failure, reason, len(tried) - refused):
                return self._given_up(request, backend, failure)
            backend = self._dispatcher.reassign(live, out, spare)
            self._metrics.retried(tried[-1].name, reason)
            if request.trace is not None:
                request.trace.asks(backend.name, reason)

    def _may_try_again(
        self, request: ClientRequest, failure: BackendError | _UnavailableError, reason: str, asked: int
    ) -> bool:
        """Say whether another backend may be asked, after ``asked`` of them that did not refuse the connection."""
        # A connection that was refused cost no backend anything.
        if reason in _REFUSED:
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
        head: Forwarded,
        body: bytes,
        prompt: Prompt,
        live: LiveRequest,
        backend: Backend,
        waited_s: float,
    ) -> web.StreamResponse:
        """Ask one backend; raises BackendError or _UnavailableError as long as nothing has gone to the client."""
        message = head.to(backend) + body
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
            if request.trace is not None:
                request.trace.first_byte()
            times_s = (sent_s - waited_s, first_s)
            headers = headers_of(exchange)
            streams = headers.get("Content-Type", "").startswith("text/event-stream")
            if streams and status not in _NOT_TAKEN:
                return await self._stream(request, prompt, live, backend, connection, headers, piece, times_s)
            pieces, size = [piece], len(piece)
            while piece and size <= _HELD_BACK_BYTES:
                piece = await connection.read()
                pieces.append(piece)
                size += len(piece)
            whole = b"".join(pieces)
            if piece:
                if status in _NOT_TAKEN:
                    raise BackendError("too_long", f"The backend answered {status} at unusual length.")
                return await self._stream(request, prompt, live, backend, connection, headers, whole, times_s)
        finally:
            pool.give_back(connection)
        done_s = time.monotonic()
        response = web.Response(status=status, body=whole, headers=headers)
        if status in _NOT_TAKEN:
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
            self._note(request, prompt, live, usage, 0)
        if self._log_requests:
            log.info("%s %s %d %s %s", request.method, request.path_only, status, name, request.says)
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
        # Where nothing else marks the end, all of the last event is wanted, however long it is.
        tail = Tail(_HELD_BACK_BYTES if exchange.ends_with_connection else TAIL_BYTES)
        events = 0
        after_newline = whole = False
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
                    account.generated(live, seen)
                size += len(piece)
                tail.add(piece)
                request.event_ended = piece.endswith((b"\n\n", b"\r\n\r\n"))
                await response.write(piece)
                piece = await connection.read()
            if events_only and exchange.ends_with_connection and not request.endpoint.ended(tail.joined()):
                raise BackendError("died", "The backend closed the connection in the middle of its answer.")
            whole = True
        except BackendError as error:
            broken = error
            self._metrics.broke_off(backend.name)
            self._failed(backend, error.reason)
            if self._log_errors:
                log.info(
                    "%s %s broke off at %s: %s %s",
                    request.method, request.path_only, backend.name, error, request.says,
                )  # fmt: skip
            await self.break_off(request, response, str(error))
        finally:
            self._unframed.discard(transport)
            # As far as it can be seen: a first event names the role, a last one says that it is done.
            usage = read_last_usage(tail.joined()) if size else None
            if status == 200 and (usage is not None or events):
                seen = max(events - (2 if prompt.chat else 1), 1)
                self._note(request, prompt, live, usage, seen, whole=whole)
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
            log.info("%s %s %d %s %s", request.method, request.path_only, status, backend.name, request.says)
        return response

    async def break_off(self, request: ClientRequest, response: web.StreamResponse, why: str) -> None:
        """End an answer so that nobody takes it for a complete one.

        Parameters
        ----------
        request : ClientRequest
        response : StreamResponse
            What was begun.
        why : str
        """
        transport = request.transport
        if response.prepared and not response.chunked:
            # An event could fill the announced length up, and without one an orderly end is the answer's own.
            reset(transport)
            return
        if response.headers.get("Content-Type", "").startswith("text/event-stream") and response.prepared:
            event = error_event(request.endpoint.says, 502, why, "server_error", "backend_failed")
            with contextlib.suppress(ConnectionError):
                # The event that was cut ends here, or the error would be a line of it.
                await response.write(event if request.event_ended else b"\n\n" + event)
        if transport is not None:
            # What was written goes out; the end of the coding never comes.
            transport.close()

    def _note(
        self,
        request: ClientRequest,
        prompt: Prompt,
        live: LiveRequest,
        usage: tuple[int, int] | None,
        seen_tokens: int,
        *,
        whole: bool = True,
    ) -> None:
        """Learn from an answer, charge it to the key that asked, and record it."""
        endpoint = request.endpoint
        if usage is not None and prompt.text_bytes and endpoint.kind == "completion":
            self._ratio.learn(prompt.text_bytes, usage[0])
        prompt_tokens, output_tokens = usage or (0, seen_tokens)
        prompt_tokens = prompt_tokens or live.prompt_tokens
        if request.client is not None:
            request.client.used(live.prompt_tokens, prompt_tokens + output_tokens)
        if whole and self._settings.predict_lengths and output_tokens > 0 and endpoint.generates:
            # By the length that is known before the answer, as it is asked for.
            self.lengths.learn(live.prompt_tokens, output_tokens, live.model_name or "")
        if self._recording is not None and output_tokens > 0 and endpoint.generates:
            self._recording.add(
                arrived_s=live.arrived_s,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                reported=usage is not None,
                model=prompt.model or "",
                blocks=live.blocks,
            )


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
