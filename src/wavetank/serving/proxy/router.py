"""The router as a process: starts, keeps its view of the backends, serves, takes changes over, drains, ends.

Beside the requests run the probes and model lists of every backend, the refreshes of the view (every ``refresh_s``;
from a backend's own metrics where they are known, else from the router's accounting), and the recording's writes.

On SIGHUP the configuration is read again: whatever can be wrong with it is found before anything changes, and what
changes does so between two requests.  On SIGTERM or SIGINT the router answers 503 to health checks and new requests,
finishes those in flight (up to ``drain_s``) and ends; a second signal ends it at once.
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
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from wavetank.errors import BadValueError, WavetankError, missing_extra
from wavetank.serving.proxy.access import Access
from wavetank.serving.proxy.backends import Backend, room_to_eject
from wavetank.serving.proxy.client_connection import ClientRequest
from wavetank.serving.proxy.configuration import RouterConfiguration, check_change
from wavetank.serving.proxy.discovery import FIRST_S, Source, places, source_of
from wavetank.serving.proxy.dispatcher import Dispatcher
from wavetank.serving.proxy.engine_metrics import read_load
from wavetank.serving.proxy.forwarding import new_name
from wavetank.serving.proxy.members import Members, Wanted, wanted
from wavetank.serving.proxy.metrics import BackendRow, RouterMetrics
from wavetank.serving.proxy.peers import PATH as PEER_PATH
from wavetank.serving.proxy.peers import Peers
from wavetank.serving.proxy.prompt_size import BytesPerToken
from wavetank.serving.proxy.proxy import Proxy
from wavetank.serving.proxy.recording import Recording
from wavetank.serving.proxy.refusals import RequestError
from wavetank.serving.proxy.relay import Relay
from wavetank.serving.proxy.shares import Shares
from wavetank.serving.proxy.tasks import kept_up
from wavetank.serving.proxy.tls import ServerCertificate
from wavetank.serving.proxy.tracing import Tracing

log = logging.getLogger("wavetank.router")

# A backend without readable metrics is asked for them again after this time.
METRICS_AGAIN_S = 5.0
# How long a backend's last metrics are believed while new ones do not come; then own accounting takes over.
METRICS_BELIEVED_S = 2.0
BACKLOG = 1024
_TOGETHER_S = 0.05
# How often it is looked whether the files of the certificate were replaced.
CERTIFICATE_EVERY_S = 10.0
_AT_ONCE_S, _SHUTDOWN_S = 0.01, 2.0


class Router:
    """A router in front of backends.

    Parameters
    ----------
    configuration : RouterConfiguration
    again : callable, optional
        Reads the configuration anew, for :meth:`reload`; raises WavetankError where it is wrong.

    Attributes
    ----------
    port : int
        Where it listens.
    members : Members
        The backends.

    Raises
    ------
    WavetankError
        If the policy cannot be built, the port is taken, or the recording cannot be written: before anything starts.
    """

    def __init__(
        self, configuration: RouterConfiguration, again: Callable[[], RouterConfiguration] | None = None
    ) -> None:
        self._configuration = configuration
        self._again = again
        self.settings = settings = configuration.settings
        self._policy = configuration.router()
        self._wanted = wanted(configuration, configuration.backends)
        self._sources = self._sources_of(configuration, [])
        self.access = configuration.access()
        self.metrics = RouterMetrics(configuration.policy)
        self.tracing: Tracing | None = None
        if settings.trace_to:
            self.tracing = Tracing(settings.trace_to, settings.trace_share, configuration.policy)
        self._certificate = ServerCertificate(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
        self._name = new_name()
        self.members = Members(settings, self._update, left=self._gone, name=self._name)
        self.peers = Peers(
            wanted(configuration, configuration.peers()),
            configuration.peer_key(),
            self.members.get,
            lambda: self.members.backends,
            ask_s=settings.probe_s,
            heard_s=settings.peer_heard_s,
            connect_s=settings.connect_s,
        )
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
        self.shares = Shares()
        self._reloading = asyncio.Lock()
        self._asking: dict[Source, asyncio.Task[None]] = {}
        self._rearrange = asyncio.Event()
        self._reloads: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._servers: list[asyncio.Server] = []
        self._next_update: asyncio.TimerHandle | None = None
        self._looks: dict[Backend, asyncio.Task[None]] = {}
        # Backends come and go for as long as the router runs.
        self._read_s: WeakKeyDictionary[Backend, float] = WeakKeyDictionary()
        self._ask_again_s: WeakKeyDictionary[Backend, float] = WeakKeyDictionary()

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends, after :meth:`start`."""
        return self.members.backends

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        host = self.settings.host
        scheme = "https" if self._certificate else "http"
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"

    async def start(self) -> None:
        """Look at every backend once, then listen."""
        settings = self.settings
        self.ratio = BytesPerToken(settings.bytes_per_token)
        self.dispatcher: Dispatcher[Backend] = Dispatcher(
            self._policy,
            pool_window=settings.pool_window,
            pool_limit=settings.pool_limit,
            pool_wait_s=settings.pool_wait_s,
            decided=lambda seconds: self.metrics.decided(seconds),
            failed=self.metrics.fell_back,
        )
        self.relay = Relay(
            settings,
            self.dispatcher,
            self.metrics,
            self.ratio,
            recording=self._recording,
            changed=self._update,
            ejected=self._ejected,
            room=self._room,
            set_aside=self.shares.next,
            name=self._name,
        )
        self.proxy = Proxy(
            settings,
            self.dispatcher,
            self.metrics,
            self.ratio,
            self.relay,
            self.access,
            block_key=self._recording.key if self._recording else secrets.token_bytes(16),
            with_blocks=self._recording is not None,
            aliases=self._configuration.aliases,
            trouble=self._trouble,
            name=self._name,
        )
        self.metrics.watch(self._backend_rows, self._router_row)
        loop = asyncio.get_running_loop()
        self.proxy.tracing = self.tracing
        for method, path, page in (
            ("POST", "/admin/reload", self._reload_page), ("GET", "/admin/backends", self._backends_page),
        ):  # fmt: skip
            self.proxy.add_page(method, path, lambda request: self.access.check(request, "admin"), page)
        self.proxy.add_page("GET", PEER_PATH, self.peers.check, self.peers.page)
        await self._ask_sources(self._sources)
        if self._sources:
            self._wanted = await asyncio.to_thread(self._listed, self._configuration, self._sources)
        await self.members.arrange(self._wanted, settings)
        self._rearrange.clear()
        await self._refresh()
        self._tasks = [
            loop.create_task(kept_up("refresh", self._refresh_often)),
            loop.create_task(kept_up("rearrange", self._rearrange_often)),
        ]
        every_s = lambda: self.settings.refresh_s  # noqa: E731
        for peer in self.peers.routers:
            ask = partial(self.peers.ask_often, peer, every_s)
            self._tasks.append(loop.create_task(kept_up(f"peer {peer.name}", ask)))
        if self._recording is not None:
            self._tasks.append(loop.create_task(kept_up("recording", self._recording.write_every)))
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            self.proxy.speak_tls()
            tls = {
                "ssl": self._certificate.context, "ssl_handshake_timeout": settings.read_s,
                "ssl_shutdown_timeout": _SHUTDOWN_S,
            }  # fmt: skip
            self._tasks.append(loop.create_task(kept_up("certificate", self._look_at_certificate)))
        for each in self._sockets:
            self._servers.append(await loop.create_server(self.proxy.connect, sock=each, backlog=BACKLOG, **tls))

    async def _look_at_certificate(self) -> None:
        while self._certificate is not None:
            await asyncio.sleep(CERTIFICATE_EVERY_S)
            self._certificate.look()

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
        tasks = (*self._tasks, *self._looks.values(), *self._reloads, *self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self.members.stop(), return_exceptions=True)
        self.proxy.cut_off()
        # Idle connections would be waited for.
        self.proxy.server.pre_shutdown()
        # What is still in flight has had its time; to the server zero would mean to wait for ever.
        await self.proxy.server.shutdown(_AT_ONCE_S if self.proxy.in_flight else _SHUTDOWN_S)
        self.members.close()
        self.peers.close()
        if self.tracing is not None:
            await self.tracing.close()
        # Connections report their end in the loop's next round.
        await asyncio.sleep(0)
        if self._recording is not None:
            await self._recording.close()

    # -- changes -------------------------------------------------------------------------------------------------------

    async def reload(self) -> None:
        """Read the configuration anew and take it over, requests under way included; one at a time.

        Raises
        ------
        WavetankError
            If it is wrong or needs a restart; everything stays as it was then.
        """
        if self._again is None:
            raise WavetankError("This router was started without a file that could be read again.")
        async with self._reloading:
            old = self._configuration
            new, access, policy = await asyncio.to_thread(self._prepare, old, self._again)
            sources = self._sources_of(new, self._sources)
            await self._ask_sources([each for each in sources if each not in self._sources])
            try:
                listed = await asyncio.to_thread(self._listed, new, sources)
                await self.members.arrange(listed, new.settings)
            except BaseException:
                self._stop_asking([each for each in sources if each not in self._sources])
                raise
            self._stop_asking([each for each in self._sources if each not in sources])
            self._sources = sources
            # From here on nothing waits, and nothing fails.
            self._configuration, self.settings = new, new.settings
            self._wanted = listed
            access(self.access)
            if self._certificate is not None:
                self._certificate.look()
            settings = new.settings
            self.dispatcher.configure(pool_limit=settings.pool_limit, pool_wait_s=settings.pool_wait_s)
            if policy is not None:
                self.metrics.set_policy(new.policy)
                if self.tracing is not None:
                    self.tracing.policy = new.policy
                self.dispatcher.set_router(policy)
            self.relay.configure(settings)
            self.proxy.configure(settings, new.aliases)
            self._update()
        log.warning("configuration taken over: policy %s, %d backends", new.policy, len(self.backends))

    @staticmethod
    def _prepare(
        old: RouterConfiguration, again: Callable[[], RouterConfiguration]
    ) -> tuple[RouterConfiguration, Callable[[Access], None], Any]:
        """Do all of a reload that can fail; returns what to take over, the policy only where it is another one."""
        new = again()
        check_change(old, new)
        same = (old.policy, dict(old.parameters), old.settings.learn_from) == (
            new.policy, dict(new.parameters), new.settings.learn_from,
        )  # fmt: skip
        wanted(new, new.backends)
        return new, new.read_access(), None if same else new.router()

    # -- discovery -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _sources_of(configuration: RouterConfiguration, known: list[Source]) -> list[Source]:
        """Return the sources of a configuration; those that there are already stay as they are."""
        settings = configuration.settings
        have = {each.settings: each for each in known}
        return [
            have.get(each) or source_of(each, settings.discover_every_s, settings.discover_hold_s)
            for each in configuration.discover
        ]

    async def _ask_sources(self, sources: list[Source]) -> None:
        """Begin to ask sources, and wait for their first answers, though not for long."""
        loop = asyncio.get_running_loop()
        for source in sources:
            task = loop.create_task(source.run(self._rearrange.set), name=f"discovery {source.settings.name}")
            self._asking[source] = task
        if sources:
            waits = [loop.create_task(source.looked.wait()) for source in sources]
            _, late = await asyncio.wait(waits, timeout=FIRST_S)
            for wait in late:
                wait.cancel()

    def _stop_asking(self, sources: list[Source]) -> None:
        for source in sources:
            self._asking.pop(source).cancel()

    @staticmethod
    def _listed(configuration: RouterConfiguration, sources: list[Source]) -> list[Wanted]:
        return wanted(configuration, places(sources, configuration.backends))

    async def _rearrange_often(self) -> None:
        """Bring the backends to what the sources have found."""
        while True:
            await self._rearrange.wait()
            async with self._reloading:
                self._rearrange.clear()
                try:
                    listed = await asyncio.to_thread(self._listed, self._configuration, self._sources)
                    await self.members.arrange(listed, self.settings)
                except WavetankError as error:
                    log.error("the backends stay as they were: %s", " ".join(str(error).split()))
                    continue
                names = ", ".join(each.name for each in self.backends[:10])
                log.warning("%d backends: %s%s", len(self.backends), names, " ..." if len(self.backends) > 10 else "")
            # Many changes at once are one.
            await asyncio.sleep(_TOGETHER_S)

    def reload_soon(self) -> None:
        """Reload, and log what is wrong."""
        task = asyncio.get_running_loop().create_task(self._reload_and_log(), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_and_log(self) -> None:
        try:
            await self.reload()
        except WavetankError as error:
            log.error("the configuration stays as it was: %s", " ".join(str(error).split()))
        except Exception:
            log.exception("a defect of the router, at a reload; the configuration stays as it was")

    async def _reload_page(self, request: ClientRequest) -> object:
        try:
            await self.reload()
        except WavetankError as error:
            log.error("the configuration stays as it was: %s", " ".join(str(error).split()))
            says = " ".join(f"The configuration stays as it was: {error}".split())
            raise RequestError(422, says, code="bad_configuration") from None
        return {"status": "reloaded", "backends": len(self.backends)}

    async def _backends_page(self, request: ClientRequest) -> object:
        now, targets = time.monotonic(), {*self.dispatcher.targets, *self.shares.backends}
        rows = [
            {
                "name": each.name, "up": each.up, "routed": each in targets, "draining": each.draining,
                "leaving": each in self.members.leaving, "ejected": now < each.ejected_until_s,
                "in_flight": each.account.in_flight, "share": each.share, "models": sorted(each.models),
                "trouble": each.trouble,
            }
            for each in (*self.backends, *self.members.leaving)
        ]  # fmt: skip
        return {"backends": rows}

    def _update(self) -> None:
        """Bring the dispatcher to the backends that can be routed to."""
        now = time.monotonic()
        # Where all are out for failures, trying them is better than answering for them.
        usable = [each for each in self.backends if each.routable(now)] or [
            each for each in self.backends if each.up and not each.draining
        ]
        self.shares.set([each for each in usable if each.share is not None])
        # Backends with a share of their own are the policy's where there are no others.
        targets = tuple(each for each in usable if each.share is None)
        workers = tuple(each for each in self.backends if each.share is None) if targets else self.backends
        targets = targets or tuple(usable)
        ends_s = min((each.ejected_until_s for each in self.backends if each.ejected_until_s > now), default=None)
        if self._next_update is not None:
            self._next_update.cancel()
            self._next_update = None
        if ends_s is not None:
            # The one timer: it goes to the next end, and is set anew there.
            self._next_update = asyncio.get_running_loop().call_later(ends_s - now + 0.001, self._update)
        self.dispatcher.models_changed()
        if (targets, workers) != (self.dispatcher.targets, self.dispatcher.workers):
            self.dispatcher.set_targets(targets, workers)
        self.proxy.set_models(self.backends)

    def _gone(self, backend: Backend) -> None:
        """Let go of the figures of a backend that has left: addresses of pods are many in the long run."""
        if all(backend.name != each.name for each in (*self.backends, *self.members.leaving)):
            self.metrics.forget(backend.name)

    def _room(self) -> bool:
        """Say whether one more backend may be ejected for what a request can provoke."""
        return room_to_eject(self.backends, self.settings.eject_share, time.monotonic())

    def _ejected(self) -> list[Backend]:
        """Return the backends that are up, but out for failed requests, or not the policy's."""
        targets = self.dispatcher.targets
        return [each for each in self.backends if each.up and not each.draining and each not in targets]

    def _trouble(self) -> str:
        """Return why there is no backend, as far as certificates or discovery are the reason."""
        found = [f"{each.name}: {each.trouble}" for each in self.backends if each.trouble]
        found += [f"discovery of {each.settings.name}: {each.trouble}" for each in self._sources if each.trouble]
        return "; ".join(found)

    # -- the view ------------------------------------------------------------------------------------------------------

    async def _refresh_often(self) -> None:
        due_s = time.monotonic() + self.settings.refresh_s
        while True:
            now, period_s = time.monotonic(), self.settings.refresh_s
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
        for backend in self.backends:
            if backend in self._looks or not backend.up:
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
            found = await self.members.get(backend, "/metrics", self.settings.probe_s)
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
        routed = {*self.dispatcher.targets, *self.shares.backends}
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
    loop.add_signal_handler(signal.SIGHUP, router.reload_soon)
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
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
    return clean


def run(
    configuration: RouterConfiguration,
    ready: Callable[[str], None],
    again: Callable[[], RouterConfiguration] | None = None,
) -> bool:
    """Run a router in this process until a signal; returns whether it drained.

    Parameters
    ----------
    configuration : RouterConfiguration
    ready : callable
        Called with the address once requests are taken.
    again : callable, optional
        Reads the configuration anew, on SIGHUP.

    Raises
    ------
    WavetankError
        If it cannot start.
    """
    try:
        import uvloop
    except ImportError:
        raise missing_extra("uvloop", "serving", needed_for="The router") from None
    router = Router(configuration, again)
    try:
        return uvloop.run(serve(router, ready))
    except OSError as error:
        raise WavetankError(f"The router cannot go on: {error.strerror or error}.") from error
