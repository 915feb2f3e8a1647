"""The router as a process: starts, keeps its eyes on the backends, serves, drains, ends.

Beside the requests run the probes and model lists of every backend, the refreshes of the view (every ``refresh_s``;
from a backend's own metrics where they are known, else from the router's accounting), and the recording's writes.

On SIGTERM or SIGINT the router answers 503 to health checks and new requests, finishes those in flight (up to
``drain_s``) and ends; a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator

import msgspec

from wavetank.errors import BadValueError, WavetankError, missing_extra
from wavetank.serving.proxy.backend_connection import ConnectionPool
from wavetank.serving.proxy.backend_exchange import BackendError
from wavetank.serving.proxy.backends import Backend, room_to_eject, split_url
from wavetank.serving.proxy.configuration import BackendSettings, RouterConfiguration
from wavetank.serving.proxy.dispatcher import Dispatcher
from wavetank.serving.proxy.engine_metrics import read_load
from wavetank.serving.proxy.metrics import BackendRow, RouterMetrics
from wavetank.serving.proxy.prompt_size import BytesPerToken
from wavetank.serving.proxy.proxy import Proxy
from wavetank.serving.proxy.recording import Recording
from wavetank.serving.proxy.view import PrefixMemory, WorkerAccount

log = logging.getLogger("wavetank.router")

# A metrics page, a model list, a probe's answer: what is longer is none.
MOST_PAGE_BYTES = 8_388_608
# A backend without readable metrics is asked for them again after this time.
METRICS_AGAIN_S = 5.0
# How long a backend's last metrics are believed while new ones do not come; then own accounting takes over.
METRICS_BELIEVED_S = 2.0
BACKLOG = 1024
_AT_ONCE_S, _SHUTDOWN_S = 0.01, 2.0


class _Models(msgspec.Struct):
    data: list[msgspec.Raw] = []


class _Model(msgspec.Struct):
    id: str


class Router:
    """A router in front of backends.

    Parameters
    ----------
    configuration : RouterConfiguration

    Attributes
    ----------
    port : int
        Where it listens.
    backends : tuple of Backend
        After :meth:`start`.

    Raises
    ------
    WavetankError
        If the policy cannot be built, the port is taken, or the recording cannot be written: before anything starts.
    """

    def __init__(self, configuration: RouterConfiguration) -> None:
        self._configuration = configuration
        self.settings = settings = configuration.settings
        self._policy = configuration.router()
        self._api_key = configuration.api_key()
        self.metrics = RouterMetrics(configuration.policy)
        self._sockets = listening_sockets(settings.host, settings.port)
        self.port: int = self._sockets[0].getsockname()[1]
        self._recording: Recording | None = None
        try:
            if settings.record:
                self._recording = Recording(
                    settings.record,
                    block_tokens=settings.block_tokens,
                    written=self.metrics.recorded,
                    lost=self.metrics.recording_lost,
                )
        except BaseException:
            for each in self._sockets:
                each.close()
            raise
        self.backends: tuple[Backend, ...] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._servers: list[asyncio.Server] = []
        self._next_update: asyncio.TimerHandle | None = None
        self._looks: dict[Backend, asyncio.Task[None]] = {}
        self._read_s: dict[Backend, float] = {}
        self._ask_again_s: dict[Backend, float] = {}

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        host = self.settings.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Look at every backend once, then listen."""
        settings = self.settings
        self.ratio = BytesPerToken(settings.bytes_per_token)
        self.dispatcher: Dispatcher[Backend] = Dispatcher(
            self._policy,
            pool_window=settings.pool_window,
            pool_limit=settings.pool_limit,
            pool_wait_s=settings.pool_wait_s,
            decided=self.metrics.decided,
            failed=self.metrics.fell_back,
        )
        self.proxy = Proxy(
            settings,
            self.dispatcher,
            self.metrics,
            self.ratio,
            recording=self._recording,
            api_key=self._api_key,
            block_key=self._recording.key if self._recording else secrets.token_bytes(16),
            changed=self._update,
            ejected=self._ejected,
            room=self._room,
        )
        self.backends = tuple(self._backend(each) for each in self._configuration.backends)
        self.metrics.watch(self._backend_rows, self._router_row)
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(self._probe(backend) for backend in self.backends))
        await self._refresh()
        self._tasks = [
            loop.create_task(self._probe_often(backend), name=f"probe {backend.name}") for backend in self.backends
        ]
        self._tasks.append(loop.create_task(self._refresh_often(), name="refresh"))
        if self._recording is not None:
            self._tasks.append(loop.create_task(self._recording.write_every(), name="recording"))
        for each in self._sockets:
            self._servers.append(await loop.create_server(self.proxy.connect, sock=each, backlog=BACKLOG))

    def _backend(self, given: BackendSettings) -> Backend:
        settings = self.settings
        host, port, tls = split_url(given.url)
        account = WorkerAccount(
            given.max_running or settings.max_running,
            float(given.kv_capacity_tokens or settings.kv_capacity_tokens),
            PrefixMemory(settings.prefix_memory_s, settings.prefix_memory_blocks),
            time.monotonic(),
        )
        return Backend(
            given.url,
            account,
            ConnectionPool(host, port, tls=tls, connect_s=settings.connect_s, keep_alive_s=settings.keep_alive_s),
            rise=settings.rise,
            fall=settings.fall,
            eject_after=settings.eject_after,
            eject_after_answers=settings.eject_after_answers,
            eject_s=settings.eject_s,
            eject_most_s=settings.eject_most_s,
            seed=settings.seed,
        )

    async def drain(self) -> None:
        """Take nothing new and wait until what is in flight is done."""
        self.proxy.draining = True
        await self.proxy.idle.wait()

    async def stop(self) -> None:
        """End everything, whatever is in flight; the recording is complete then."""
        for server in self._servers:
            server.close()
        if self._next_update is not None:
            self._next_update.cancel()
        for task in (*self._tasks, *self._looks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._looks.values(), return_exceptions=True)
        self.proxy.cut_off()
        # Idle connections would be waited for.
        self.proxy.server.pre_shutdown()
        # What is still in flight has had its time; to the server zero would mean to wait for ever.
        await self.proxy.server.shutdown(_AT_ONCE_S if self.proxy.in_flight else _SHUTDOWN_S)
        for backend in self.backends:
            backend.connections.close()
        # Connections report their end in the loop's next round.
        await asyncio.sleep(0)
        if self._recording is not None:
            await self._recording.close()

    # -- health --------------------------------------------------------------------------------------------------------

    async def _probe_often(self, backend: Backend) -> None:
        models_s = time.monotonic()
        while True:
            await asyncio.sleep(self.settings.probe_every_s)
            await self._probe(backend)
            backend.connections.close_stale()
            if backend.up and time.monotonic() - models_s >= self.settings.models_every_s:
                models_s = time.monotonic()
                await self._list_models(backend)
                self._update()

    async def _probe(self, backend: Backend) -> None:
        found = await self._get(backend, self.settings.health_path, self.settings.probe_s)
        was_known = bool(backend.models)
        if backend.probed(found is not None and found[0] < 500):
            log.info("backend %s is %s", backend.name, "up" if backend.up else "down")
            if backend.up:
                await self._list_models(backend)
                backend.account.refresh(time.monotonic())
            self._update()
        elif backend.up and not was_known:
            await self._list_models(backend)
            self._update()

    async def _list_models(self, backend: Backend) -> None:
        found = await self._get(backend, "/v1/models", self.settings.probe_s)
        if found is None or found[0] != 200:
            return
        try:
            entries = msgspec.json.decode(found[1], type=_Models).data
            backend.models = {msgspec.json.decode(entry, type=_Model).id: bytes(entry) for entry in entries}
        except (msgspec.DecodeError, RecursionError):
            log.info("backend %s lists no models that can be read", backend.name)

    def _update(self) -> None:
        """Bring the dispatcher to the backends that can be routed to."""
        now = time.monotonic()
        # Where all are out for failures, trying them is better than answering for them.
        targets = tuple(each for each in self.backends if each.routable(now)) or tuple(
            each for each in self.backends if each.up
        )
        ends_s = min((each.ejected_until_s for each in self.backends if each.ejected_until_s > now), default=None)
        if self._next_update is not None:
            self._next_update.cancel()
            self._next_update = None
        if ends_s is not None:
            # The one timer: it goes to the next end, and is set anew there.
            self._next_update = asyncio.get_running_loop().call_later(ends_s - now + 0.001, self._update)
        if targets != self.dispatcher.targets:
            self.dispatcher.set_targets(targets)
        self.proxy.set_models(self.backends)

    def _room(self) -> bool:
        """Say whether one more backend may be ejected for what a request can provoke."""
        return room_to_eject(self.backends, self.settings.eject_share, time.monotonic())

    def _ejected(self) -> list[Backend]:
        """Return the backends that are up, but out for failed requests."""
        return [each for each in self.backends if each.up and each not in self.dispatcher.targets]

    async def _get(self, backend: Backend, path: str, limit_s: float) -> tuple[int, bytes] | None:
        """Return status and body of a page of a backend; None where it gives none in time."""
        key = f"Authorization: Bearer {self._api_key}\r\n" if self._api_key else ""
        request = f"GET {path} HTTP/1.1\r\nHost: {backend.name}\r\nAccept: */*\r\n{key}\r\n".encode()
        pool = backend.connections
        try:
            async with asyncio.timeout(limit_s):
                # Always a connection of its own or a fresh one: a look must not fail for an idle one's end.
                for connection in (pool.idle(), None):
                    connection = connection or await pool.fresh()
                    try:
                        connection.send(
                            request, first_byte_s=limit_s, idle_s=limit_s, max_bytes=MOST_PAGE_BYTES, method=b"GET"
                        )
                        status = await connection.answer()
                        pieces = []
                        while piece := await connection.read():
                            pieces.append(piece)
                        return status, b"".join(pieces)
                    except BackendError:
                        if connection.exchanges == 1:
                            return None
                    finally:
                        pool.give_back(connection)
        except (BackendError, TimeoutError):
            return None
        return None

    # -- the view ------------------------------------------------------------------------------------------------------

    async def _refresh_often(self) -> None:
        period_s = self.settings.refresh_s
        due_s = time.monotonic() + period_s
        while True:
            now = time.monotonic()
            if due_s <= now:
                # Late (a slow decision, a busy machine): the rhythm starts anew instead of catching up.
                due_s = now + period_s
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(due_s - now)
                due_s += period_s
            await self._refresh()

    async def _refresh(self) -> None:
        """Refresh the view of every backend once, then let a pool router decide."""
        now = time.monotonic()
        for backend in self.dispatcher.targets:
            if backend in self._looks:
                continue
            if self.settings.metrics == "auto" and now >= self._ask_again_s.get(backend, 0.0):
                task = asyncio.get_running_loop().create_task(self._look(backend), name=f"look {backend.name}")
                self._looks[backend] = task
            else:
                backend.account.refresh(now)
                self.dispatcher.refreshed(backend)
        if self._looks:
            await asyncio.wait(self._looks.values(), timeout=self.settings.refresh_s)
        self.dispatcher.round_done()

    async def _look(self, backend: Backend) -> None:
        """Refresh from a backend's metrics, or from own accounting where it has none."""
        try:
            backend.account.begin_look()
            found = await self._get(backend, "/metrics", self.settings.probe_s)
            load = read_load(found[1]) if found is not None and found[0] == 200 else None
            now = time.monotonic()
            if load is not None:
                self._read_s[backend] = now
                backend.account.refresh_from(load, now)
            elif now - self._read_s.get(backend, -METRICS_BELIEVED_S) >= METRICS_BELIEVED_S:
                self._ask_again_s[backend] = now + METRICS_AGAIN_S
                backend.account.refresh(now)
            self.dispatcher.refreshed(backend)
        finally:
            del self._looks[backend]

    def _backend_rows(self) -> Iterator[BackendRow]:
        now = time.monotonic()
        routed = set(self.dispatcher.targets)
        for backend in self.backends:
            account = backend.account
            yield (
                backend.name,
                (
                    float(backend in routed),
                    account.in_flight,
                    backend.connections.open,
                    now - account.refreshed_s,
                    account.kv_tokens,
                    account.kv_capacity_tokens,
                    account.running,
                    account.waiting,
                ),
            )

    def _router_row(self) -> dict[str, float]:
        return {
            "in_flight_requests": self.proxy.in_flight,
            "pool_waiting_requests": self.dispatcher.waiting,
            "bytes_per_token": self.ratio.ratio,
            "connections": len(self.proxy.server.connections),
            "draining": float(self.proxy.draining),
        }


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind a port on every address of a host; port 0 takes any free one.

    Raises
    ------
    WavetankError
        If the host does not exist or the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BadValueError(
            f"There is no such address to listen on: {error.strerror or error}.", given=host, where="host"
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, protocol)
            sockets.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind((address[0], port, *address[2:]))
            each.setblocking(False)
            port = port or each.getsockname()[1]
    except OSError as error:
        for each in sockets:
            each.close()
        taken = error.errno == errno.EADDRINUSE
        raise BadValueError(
            "The port is in use." if taken else f"It is not possible to listen there: {error.strerror or error}.",
            given=f"{host}:{port}",
            where="host, port",
            hint="choose another --port; 0 takes any free one",
        ) from None
    return sockets


async def serve(router: Router, ready: Callable[[str], None]) -> bool:
    """Serve until a signal; returns whether everything in flight was finished.

    Parameters
    ----------
    router : Router
    ready : callable
        Called with the address once requests are taken.
    """
    loop = asyncio.get_running_loop()
    first, second = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    await router.start()
    # The compiler and its libraries are hundreds of thousands of objects that never go away: a collection that looks
    # at them all would hold every request up.
    gc.collect()
    gc.freeze()
    try:
        ready(router.address)
        await first.wait()
        log.info("draining: %d requests in flight", router.proxy.in_flight)
        drained = loop.create_task(router.drain())
        forced = loop.create_task(second.wait())
        drain_s = router.settings.drain_s
        await asyncio.wait((drained, forced), timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        clean = drained.done()
        for task in (drained, forced):
            task.cancel()
        await asyncio.gather(drained, forced, return_exceptions=True)
    finally:
        await router.stop()
        gc.unfreeze()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return clean


def run(configuration: RouterConfiguration, ready: Callable[[str], None]) -> bool:
    """Run a router in this process until a signal; returns whether it drained.

    Raises
    ------
    WavetankError
        If it cannot start.
    """
    try:
        import uvloop
    except ImportError:
        raise missing_extra("uvloop", "serving", needed_for="The router") from None
    router = Router(configuration)
    try:
        return uvloop.run(serve(router, ready))
    except OSError as error:
        raise WavetankError(f"The router cannot go on: {error.strerror or error}.") from error
