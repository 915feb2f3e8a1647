"""The HTTP side of the router: takes requests, lets those in that may come, has them answered by the relay.

Bodies are forwarded byte for byte.  A streamed answer goes on piece by piece as it comes, and a client that reads
slowly slows its backend down.  A client that leaves takes its request at the backend with it at once; one that ends
its side of the connection before it has its answer counts as having left, as with nginx and Envoy: TCP shows a client
that wants to read on and one that is gone by the same sign, and a backend should compute for neither an hour in vain.

Source: the OpenAI API (paths, error objects, status codes).

Differs from the source:

1. ``Accept-Encoding`` is not forwarded, so that the usage in answers can be read; compressed requests are refused.
2. Where the router asks for a key, no backend sees it; without keys of the router's own, the one key that clients and
   backends share is asked of the clients, too, so that the router gives nobody access that the backends would not.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import unquote

import msgspec

from wavetank.errors import missing_extra

try:
    from aiohttp import web
except ImportError:
    raise missing_extra("aiohttp", "serving", needed_for="The router") from None

from wavetank.serving.proxy.access import Access, Client
from wavetank.serving.proxy.asking import (
    DEADLINE_HEADER,
    SESSION_HEADER,
    Names,
    Tiers,
    read_deadline,
    session_code,
)
from wavetank.serving.proxy.backends import Backend
from wavetank.serving.proxy.client_connection import ClientRequest, ClientServer, RefusedConnection, sign
from wavetank.serving.proxy.configuration import RouterSettings
from wavetank.serving.proxy.dispatcher import Dispatcher, NoBackendError, PoolFullError, PoolTimeoutError
from wavetank.serving.proxy.endpoints import (
    ENDPOINTS,
    ONE_MODEL,
    Endpoint,
    path_of,
    read_form,
    read_request,
    with_model,
)
from wavetank.serving.proxy.length_predictor import UNKNOWN
from wavetank.serving.proxy.metrics import CONTENT_TYPE, RouterMetrics
from wavetank.serving.proxy.prompt_size import BodyError, BytesPerToken, Prompt
from wavetank.serving.proxy.refusals import RequestError, error_body
from wavetank.serving.proxy.relay import Relay
from wavetank.serving.proxy.tracing import Tracing
from wavetank.serving.proxy.turns import Turns
from wavetank.serving.proxy.view import Asked, LiveRequest

log = logging.getLogger("wavetank.router")

# Returns what its JSON says.
OwnPage = Callable[[ClientRequest], Awaitable[object]]


class Proxy:
    """Answers requests.

    Parameters
    ----------
    settings : RouterSettings
    dispatcher : Dispatcher
    metrics : RouterMetrics
    ratio : BytesPerToken
    relay : Relay
        Asks backends.
    access : Access
        Says who may do what.
    block_key : bytes
        Of the prefix blocks' hashes.
    with_blocks : bool
        Whether prefix blocks are wanted though the policy reads none.
    aliases : mapping of str to str
        Names under which clients may ask for a model.
    trouble : callable
        Returns why there is no backend, where that is known.
    name : bytes
        By which the router knows what has passed through it.

    Attributes
    ----------
    tracing : Tracing or None
    """

    def __init__(
        self,
        settings: RouterSettings,
        dispatcher: Dispatcher[Backend],
        metrics: RouterMetrics,
        ratio: BytesPerToken,
        relay: Relay,
        access: Access,
        *,
        block_key: bytes = b"",
        with_blocks: bool = False,
        aliases: Mapping[str, str] | None = None,
        trouble: Callable[[], str] = str,
        name: bytes = b"wavetank",
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._ratio = ratio
        self._relay = relay
        self.access = access
        self._block_key = block_key
        self._more_blocks = with_blocks
        self._trouble = trouble
        self._name = name.decode("ascii")
        self.tracing: Tracing | None = None
        self._own: dict[str, tuple[str, Callable[[ClientRequest], None], OwnPage]] = {}
        self._turns = Turns(settings.max_in_flight, settings.pool_limit, settings.pool_wait_s)
        self._turns.push_out = dispatcher.push_out
        relay.began = self._began
        self._models: dict[str, bytes] = {}
        self._models_away: frozenset[str] = frozenset()
        self._parents: dict[str, str] = {}
        self._model_codes, self._adapter_codes, self._tiers = Names(), Names(), Tiers()
        self._models_known = False
        self._only_model = ""
        self.models_page = _models_page({})
        self.draining = False
        self._ending = False
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._silent: dict[object, asyncio.TimerHandle] = {}
        self._shaking_hands: weakref.WeakSet[web.RequestHandler] = weakref.WeakSet()
        self._sweep_s = 0.0
        self.configure(settings, aliases or {})
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

    def configure(self, settings: RouterSettings, aliases: Mapping[str, str]) -> None:
        """Take over changed settings.

        Parameters
        ----------
        settings : RouterSettings
        aliases : mapping of str to str
        """
        self._settings = settings
        self._aliases = dict(aliases)
        self._with_blocks = self._dispatcher.reads_prefix or self._more_blocks
        self._block_tokens = settings.block_tokens
        self._log_errors = settings.log != "none"
        # Without the gate in front of it, the pool itself is where keys take turns.
        self._dispatcher.in_turns = self._dispatcher.pools and not settings.max_in_flight and self.access.asked
        self._turns.configure(settings.max_in_flight, settings.pool_limit, settings.pool_wait_s)

        if hasattr(self, "server"):
            self.server.configure(write_s=settings.write_s, keep_alive_s=settings.client_keep_alive_s)

    def add_page(self, method: str, path: str, check: Callable[[ClientRequest], None], page: OwnPage) -> None:
        """Serve one more page of the router's own.

        Parameters
        ----------
        method, path : str
        check : callable
            Raises RequestError for those who may not have it.
        page : callable
        """
        self._own[path] = (method, check, page)

    # -- connections of clients ----------------------------------------------------------------------------------------

    def connect(self) -> asyncio.Protocol:
        """Return the protocol of a new client's connection."""
        full = len(self.server.connections) + len(self._shaking_hands) >= self._settings.max_connections
        if full and not self._swept():
            return RefusedConnection()
        connection = self.server()
        if self.server.made is not None:
            # It is made when the handshake is done, and gone without a word when that fails.
            self._shaking_hands.add(connection)
        else:
            self._wait_for_request(connection)
        return connection

    def _swept(self) -> bool:
        """Find out which handshakes have failed, at most once per second; returns whether there is room then."""
        now = time.monotonic()
        if not self._shaking_hands or now < self._sweep_s:
            return False
        self._sweep_s = now + 1.0
        # Nobody learns of a handshake that failed; its connection is garbage, with references in a circle.
        gc.collect()
        return len(self.server.connections) + len(self._shaking_hands) < self._settings.max_connections

    def speak_tls(self) -> None:
        """Expect connections with TLS."""
        self.server.made = self._made

    def _made(self, connection: web.RequestHandler) -> None:
        self._shaking_hands.discard(connection)
        self._wait_for_request(connection)

    def _wait_for_request(self, connection: web.RequestHandler) -> None:
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(self._settings.read_s, self._hang_up, connection)

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
        """Give up the answers under way: the router ends."""
        self._ending = True
        self._relay.cut_off()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def handle(self, request: ClientRequest) -> web.StreamResponse:
        """Answer one request."""
        response = await self._handle(request)
        if not response.prepared:
            sign(response, request)
        return response

    async def _handle(self, request: ClientRequest) -> web.StreamResponse:
        path = path_of(request.raw_path)
        try:
            if any(self._name in each for each in request.headers.getall("Via", ())):
                # Its own probe, or what it sent: whatever name or address led here, this is no backend.
                raise RequestError(
                    508, "The router is among its own backends.", kind="server_error", code="loop_detected"
                )
            endpoint = ENDPOINTS.get(path)
            if endpoint is None:
                return await self._own_page(request, path)
            request.endpoint = endpoint
            if request.method != endpoint.method:
                raise _not_allowed(request, path, endpoint.method)
            if endpoint.kind != "own":
                if self.tracing is not None:
                    return await self._traced(request, endpoint)
                return await self._from_backend(request, endpoint, time.monotonic())
            if path == "/health":
                return self._health()
            if path == "/metrics":
                self.access.check(request, "metrics")
                return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})
            client = self.access.client(request)
            page = self._list(client) if path == "/v1/models" else self._model_page(request, client)
            return web.Response(body=page, headers={"Content-Type": "application/json"})
        except RequestError as error:
            return self._refuse(request, error)
        except Exception:
            log.exception("a defect of the router, at %s %s", request.method, request.path_only)
            if request.answer is not None:
                await self._relay.break_off(request, request.answer, "The router failed.")
                return request.answer
            return self._refuse(request, RequestError(500, "The router failed.", kind="server_error"))

    async def _traced(self, request: ClientRequest, endpoint: Endpoint) -> web.StreamResponse:
        trace = request.trace = self.tracing.begin(request) if self.tracing is not None else None
        # What ends without an answer is a client that left.
        status = 499
        try:
            response = await self._from_backend(request, endpoint, time.monotonic())
            status = response.status
            return response
        except RequestError as error:
            status = error.status
            raise
        except Exception:
            status = 500
            raise
        finally:
            if trace is not None:
                if request.client is not None:
                    trace.note(key=request.client.name)
                trace.end(status)

    async def _own_page(self, request: ClientRequest, path: str) -> web.Response:
        own = self._own.get(path)
        if own is None:
            raise RequestError(404, f"Unknown request URL: {request.method} {path}.", code="unknown_url")
        method, check, page = own
        if request.method != method:
            raise _not_allowed(request, path, method)
        check(request)
        return web.json_response(await page(request))

    def _list(self, client: Client | None) -> bytes:
        if client is None or not client.restricted:
            return self.models_page
        return _models_page({name: page for name, page in self._models.items() if client.may_use(name)})

    def _model_page(self, request: ClientRequest, client: Client | None) -> bytes:
        name = unquote(request.raw_path.partition("?")[0].removeprefix(ONE_MODEL))
        page = self._models.get(name)
        if page is None or not (client is None or client.may_use(name)):
            raise _no_model(name)
        return page

    def _refuse(self, request: ClientRequest, error: RequestError) -> web.Response:
        self._metrics.answered("none", error.status)
        if self._log_errors:
            # What a client wrote (the name of a model) must not begin a line of its own.
            says = ascii(str(error))[1:-1]
            log.info("%s %s %d %s %s", request.method, request.path_only, error.status, says, request.says)
        response = web.Response(
            status=error.status,
            body=error_body(error.status, str(error), error.kind, error.code, request.endpoint.says),
            headers={"Content-Type": "application/json"},
        )
        if error.status in (429, 503):
            response.headers["Retry-After"] = str(error.retry_after_s)
        if error.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if error.status == 405:
            response.headers["Allow"] = error.allow
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

    def set_models(self, backends: Sequence[Backend]) -> None:
        """Take over what the backends serve: the union of those that are up, ejected ones included, and its aliases."""
        up = [backend for backend in backends if backend.up]
        merged: dict[str, bytes] = {}
        for backend in up:
            for name, entry in backend.models.items():
                merged.setdefault(name, entry)
        self._only_model = next(iter(merged)) if len(merged) == 1 else ""
        for alias, name in self._aliases.items():
            if name in merged:
                merged[alias] = with_id(merged[name], alias)
        self._models = merged
        self._parents = {name: parent for name, entry in merged.items() if (parent := _parent_of(entry))}
        self._models_away = frozenset(name for backend in backends for name in backend.models)
        self._models_known = bool(up) and all(backend.models for backend in up)
        self.models_page = _models_page(merged)

    async def _from_backend(self, request: ClientRequest, endpoint: Endpoint, arrived_s: float) -> web.StreamResponse:
        self.in_flight += 1
        self.idle.clear()
        client: Client | None = None
        live: LiveRequest | None = None
        try:
            who = self.access.client(request)
            if self.draining:
                raise RequestError(503, "The router is shutting down.", kind="server_error", code="draining")
            if who is not None:
                who.enter(arrived_s)
                request.client = client = who
            body = await self._body(request)
            body, prompt = self._prompt(request, endpoint, body)
            live = self._live(request, prompt, arrived_s)
            if client is not None:
                client.charge(live.prompt_tokens, time.monotonic())
                if self._dispatcher.in_turns:
                    self._turns.step_in(client, live)
            async with asyncio.timeout(self._settings.total_s):
                if self._turns.open:
                    return await self._relay.serve(request, body, prompt, live)
                await self._turns.enter(client or self.access.anybody)
                try:
                    return await self._relay.serve(request, body, prompt, live)
                finally:
                    self._turns.leave()
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
            await self._relay.break_off(request, started, why)
            return started
        except NoBackendError:
            why = self._trouble()
            says = f"No backend is available: {why}" if why else "No backend is available."
            raise RequestError(503, says, kind="server_error", code="no_backend") from None
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
            if client is not None:
                client.leave()
                if live is not None:
                    self._turns.step_out(client, live)
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()

    def _began(self, request: ClientRequest, live: LiveRequest) -> None:
        """Take note that a pool policy has placed a request."""
        if request.client is not None:
            self._turns.began(request.client, live)

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

    def _prompt(self, request: ClientRequest, endpoint: Endpoint, body: bytes) -> tuple[bytes, Prompt]:
        """Return the body as it goes to a backend, and what was read of it."""
        kinds = request.headers.getall("Content-Type", ())
        if len(kinds) > 1:
            raise RequestError(400, "The request has two content types.", code="invalid_body")
        kind = kinds[0] if kinds else ""
        client = request.client
        try:
            prompt = read_request(endpoint, body, kind)
            asked = prompt.model
            if not asked and not endpoint.model_needed:
                asked = prompt.model = self._only_model
            if not asked:
                raise RequestError(400, "You must provide a model parameter.", code="model_required")
            if client is not None and not client.may_use(asked):
                raise RequestError(
                    403, f"The API key may not use the model `{asked[:200]}`.", kind="permission_error",
                    code="model_not_allowed",
                )  # fmt: skip
            model = self._aliases.get(asked, asked)
            if model != asked or (client is not None and client.restricted):
                prompt.model = model
                form = endpoint.kind == "form"
                body = read_form(body, kind).with_model(body, model) if form else with_model(body, model)
        except BodyError as error:
            raise RequestError(400, str(error), code="invalid_body") from None
        if self._models_known and model not in self._models:
            if model in self._models_away:
                # It exists, and comes back with its backend: a client may ask again.
                raise NoBackendError
            raise _no_model(asked)
        return body, prompt

    def _asked(self, request: ClientRequest, prompt: Prompt, arrived_s: float, tokens: int) -> Asked:
        """Return what the policy is shown of a request beside its prompt."""
        given, headers, model = prompt.given, request.headers, prompt.model or ""
        try:
            seconds = read_deadline(headers.getall(DEADLINE_HEADER, ()))
        except ValueError:
            raise RequestError(
                400, f"{DEADLINE_HEADER} must be seconds, above 0 and at most a week.", code="invalid_deadline"
            ) from None
        client = request.client.name if request.client is not None else ""
        parent = self._parents.get(model, "")
        max_tokens = math.nan if given.max_tokens is None else float(given.max_tokens)
        expected = UNKNOWN
        if self._settings.predict_lengths and request.endpoint.generates:
            expected = self._relay.lengths.estimate(tokens, model, max_tokens)
        return Asked(
            *expected,
            max_tokens=max_tokens,
            deadline_s=math.inf if seconds is None else arrived_s + seconds,
            model=self._model_codes.code(parent or model),
            adapter=self._adapter_codes.code(model) if parent else -1,
            session=session_code(headers.get(SESSION_HEADER, "").strip() or given.session, client),
            tier=self._tiers.rank(given.priority),
        )

    def _live(self, request: ClientRequest, prompt: Prompt, arrived_s: float) -> LiveRequest:
        blocks = []
        if self._with_blocks:
            blocks = prompt.blocks(self._block_tokens, self._settings.bytes_per_token, self._block_key)
        prompt.forget_text()
        if prompt.token_ids:
            asked = self._asked(request, prompt, arrived_s, prompt.token_ids)
            return LiveRequest(arrived_s, prompt.token_ids, blocks, self._block_tokens, asked, prompt.model)
        block_bytes = self._block_tokens * self._settings.bytes_per_token
        ratio = self._ratio
        tokens = ratio.tokens(prompt.text_bytes)
        asked = self._asked(request, prompt, arrived_s, tokens)
        return LiveRequest(arrived_s, tokens, blocks, block_bytes / ratio.ratio, asked, prompt.model)

    def _left(self, request: ClientRequest) -> None:
        self._metrics.cancelled()
        if self._log_errors:
            log.info("%s %s client left %s", request.method, request.path_only, request.says)


def _too_long(limit: int) -> RequestError:
    return RequestError(413, f"The request is longer than {limit} bytes.", code="request_too_large")


def _no_model(name: str) -> RequestError:
    return RequestError(404, f"The model `{name[:200]}` does not exist.", code="model_not_found")


def _not_allowed(request: ClientRequest, path: str, allowed: str) -> RequestError:
    return RequestError(
        405, f"Not allowed to {request.method} on {path}; use {allowed}.", code="method_not_supported", allow=allowed
    )


def _models_page(models: Mapping[str, bytes]) -> bytes:
    return b'{"object":"list","data":[' + b",".join(models.values()) + b"]}"


class _Listed(msgspec.Struct):
    parent: str | None = None


def _parent_of(entry: bytes) -> str:
    """Return the model that a listed one adapts; empty for one of its own."""
    try:
        return msgspec.json.decode(entry, type=_Listed).parent or ""
    except msgspec.ValidationError:
        return ""


def with_id(entry: bytes, name: str) -> bytes:
    """Return a model's entry under another name."""
    return msgspec.json.encode({**msgspec.json.decode(entry, type=dict[str, msgspec.Raw]), "id": name})
