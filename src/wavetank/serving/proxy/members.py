"""Which backends there are: they are made, looked at, changed while they serve, and let go after their last answer.

A backend is known by its place (host, port, TLS, path).  Where a new list names the same place again, the backend stays
the same object, with its connections, what is known of its load, and the requests it has; all that may have changed is
set.  One that is not named any more gets nothing new at once, finishes what it has, and is closed then; named again
before that, it comes back as it was.  New ones are probed before the others go, so that a list that changes wholly
leaves no moment without backends.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from wavetank.files import read_bytes
from wavetank.serving.proxy.backend_connection import ConnectionPool
from wavetank.serving.proxy.backend_exchange import BackendError
from wavetank.serving.proxy.backends import Backend, Place, identity_of, split_url
from wavetank.serving.proxy.configuration import BackendSettings, RouterConfiguration, RouterSettings
from wavetank.serving.proxy.tasks import kept_up
from wavetank.serving.proxy.tls import MOST_PEM_BYTES, backend_context
from wavetank.serving.proxy.view import PrefixMemory, WorkerAccount

log = logging.getLogger("wavetank.router")

# A metrics page, a model list, a probe's answer: what is longer is none.
MOST_PAGE_BYTES = 8_388_608
# How often it is looked whether a backend that goes has finished.
_GONE_EVERY_S = 0.05


class _Models(msgspec.Struct):
    data: list[msgspec.Raw] = []


class _Model(msgspec.Struct):
    id: str


class Wanted(NamedTuple):
    """A backend as a configuration wants it; whatever of it can be wrong has been read and found right.

    Attributes
    ----------
    settings : BackendSettings
    place : Place
    key : str
    tls : SSLContext or None
    tls_digest : bytes
        Of all that TLS to it depends on.
    """

    settings: BackendSettings
    place: Place
    key: str
    tls: ssl.SSLContext | None
    tls_digest: bytes


def wanted(configuration: RouterConfiguration, backends: Sequence[BackendSettings]) -> list[Wanted]:
    """Read keys and certificates of backends.

    Parameters
    ----------
    configuration : RouterConfiguration
    backends : sequence of BackendSettings

    Raises
    ------
    WavetankError
        If a key or a certificate is missing or wrong.
    """
    found = []
    # One for all that need the same files: there may be a thousand of them.
    contexts: dict[tuple[str, str, str], tuple[ssl.SSLContext, bytes]] = {}
    for each in backends:
        place, tls, digest = split_url(each.url), None, b""
        if place.tls:
            files = (each.ca_file or configuration.settings.backend_ca_file, each.cert_file, each.key_file)
            if files not in contexts:
                contexts[files] = backend_context(*files), b"".join(map(_digest_of, files))
            tls, held = contexts[files]
            digest = hashlib.sha256(repr((files, each.server_name)).encode() + held).digest()
        found.append(Wanted(each, place, configuration.api_key(each), tls, digest))
    return found


def _digest_of(name: str) -> bytes:
    return hashlib.sha256(read_bytes(Path(name).expanduser(), largest_bytes=MOST_PEM_BYTES)).digest() if name else b""


class Members:
    """The backends of a router.

    Parameters
    ----------
    settings : RouterSettings
    changed : callable
        Called when a backend comes, goes, or its models change.
    left : callable
        Called when one has gone for good.
    name : bytes
        By which the router knows its own probes.

    Attributes
    ----------
    backends : tuple of Backend
    leaving : dict of Backend to task
        Those that finish what they have.
    """

    def __init__(
        self,
        settings: RouterSettings,
        changed: Callable[[], None],
        *,
        left: Callable[[Backend], None] = lambda backend: None,
        name: bytes = b"wavetank",
    ) -> None:
        self.settings = settings
        self._left = left
        self._via = b"Via: 1.1 %b\r\n" % name
        self._changed = changed
        self.backends: tuple[Backend, ...] = ()
        self.leaving: dict[Backend, asyncio.Task[None]] = {}
        self._probes: dict[Backend, asyncio.Task[None]] = {}
        self._pools: set[ConnectionPool] = set()

    async def arrange(self, listed: Sequence[Wanted], settings: RouterSettings) -> None:
        """Have these backends from now on.

        Parameters
        ----------
        listed : sequence of Wanted
            In the order in which the policy sees them.
        settings : RouterSettings
        """
        known = {each.place: each for each in (*self.leaving, *self.backends)}
        fresh = {each.place: self._made(each, settings) for each in listed if each.place not in known}
        try:
            await asyncio.gather(*(self._probe(backend) for backend in fresh.values()))
        except BaseException:
            for backend in fresh.values():
                backend.connections.close()
            raise
        self.settings = settings
        # From here on nothing waits, and nothing fails.
        kept = []
        for each in listed:
            backend = fresh.get(each.place) or known[each.place]
            if each.place not in fresh:
                # It may have finished while the new ones were probed.
                if backend not in self.backends and backend not in self.leaving:
                    backend = self._made(each, settings)
                elif (task := self.leaving.pop(backend, None)) is not None:
                    task.cancel()
            self._adjust(backend, each)
            kept.append(backend)
        before, self.backends = self.backends, tuple(kept)
        loop = asyncio.get_running_loop()
        for backend in before:
            if backend not in kept:
                self._probes.pop(backend).cancel()
                self.leaving[backend] = loop.create_task(self._let_go(backend), name=f"leaving {backend.name}")
        for backend in kept:
            if backend not in self._probes:
                probe = partial(self._probe_often, backend)
                self._probes[backend] = loop.create_task(kept_up(f"probe {backend.name}", probe))
        self._changed()

    async def stop(self) -> None:
        """End the probes; connections are closed by :meth:`close`."""
        tasks = (*self._probes.values(), *self.leaving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Close all connections."""
        for backend in (*self.backends, *self.leaving):
            backend.connections.close()
        for pool in self._pools:
            pool.close()

    async def _let_go(self, backend: Backend) -> None:
        """Wait until a backend has answered everything, then close its connections."""
        while backend.account.in_flight:
            await asyncio.sleep(_GONE_EVERY_S)
        del self.leaving[backend]
        backend.connections.close()
        self._left(backend)
        log.info("backend %s has left", backend.name)

    def _made(self, given: Wanted, settings: RouterSettings) -> Backend:
        account = WorkerAccount(
            given.settings.max_running or settings.max_running,
            float(given.settings.kv_capacity_tokens or settings.kv_capacity_tokens),
            PrefixMemory(settings.prefix_memory_s, settings.prefix_memory_blocks),
            time.monotonic(),
            identity_of(given.settings.url),
        )
        backend = Backend(given.settings.url, account, _pool(given, settings), seed=settings.seed)
        backend.tls_digest = given.tls_digest
        self._adjust(backend, given, settings)
        return backend

    def _adjust(self, backend: Backend, given: Wanted, settings: RouterSettings | None = None) -> None:
        """Set all that may change while a backend serves."""
        settings = settings or self.settings
        if backend.tls_digest != given.tls_digest:
            # Requests under way end on the connections that they have.
            backend.connections.retire()
            self._pools = {each for each in self._pools if each.open} | {backend.connections}
            backend.connections, backend.tls_digest = _pool(given, settings), given.tls_digest
        backend.connections.configure(settings.connect_s, settings.keep_alive_s)
        backend.configure(
            rise=settings.rise,
            fall=settings.fall,
            eject_after=settings.eject_after,
            eject_after_answers=settings.eject_after_answers,
            eject_s=settings.eject_s,
            eject_most_s=settings.eject_most_s,
        )
        account = backend.account
        account.slots = given.settings.max_running or settings.max_running
        capacity = given.settings.kv_capacity_tokens or settings.kv_capacity_tokens
        if backend.kv_capacity_tokens != capacity:
            # What the backend itself reported stays until somebody says otherwise.
            backend.kv_capacity_tokens = capacity
            account.kv_capacity_tokens = float(capacity)
        backend.credentials = f"Authorization: Bearer {given.key}\r\n".encode() if given.key else b""
        backend.share, backend.draining = given.settings.share, given.settings.drain

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
                self._changed()

    async def _probe(self, backend: Backend) -> None:
        found = await self.get(backend, self.settings.health_path, self.settings.probe_s, self._via)
        if found is not None and found[0] == 508:
            _say_trouble(backend, "it is this router itself")
        was_known = bool(backend.models)
        if backend.probed(found is not None and found[0] < 500):
            log.info("backend %s is %s", backend.name, "up" if backend.up else "down")
            if backend.up:
                await self._list_models(backend)
                backend.account.refresh(time.monotonic())
            self._changed()
        elif backend.up and not was_known:
            await self._list_models(backend)
            self._changed()

    async def _list_models(self, backend: Backend) -> None:
        found = await self.get(backend, "/v1/models", self.settings.probe_s)
        if found is None or found[0] != 200:
            return
        try:
            entries = msgspec.json.decode(found[1], type=_Models).data
            backend.models = {msgspec.json.decode(entry, type=_Model).id: bytes(entry) for entry in entries}
        except (msgspec.DecodeError, RecursionError):
            log.info("backend %s lists no models that can be read", backend.name)

    async def get(self, backend: Backend, path: str, limit_s: float, more: bytes = b"") -> tuple[int, bytes] | None:
        """Return status and body of a backend's page, asked for with more lines; None where it gives none in time."""
        request = b"GET %b%b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\n%b%b\r\n" % (
            backend.prefix, path.encode(), backend.host_header, backend.credentials, more,
        )  # fmt: skip
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
                        if status != 508:
                            backend.trouble = ""
                        return status, b"".join(pieces)
                    except BackendError as error:
                        if connection.exchanges == 1:
                            _note_trouble(backend, error)
                            return None
                    finally:
                        pool.give_back(connection)
        except BackendError as error:
            _note_trouble(backend, error)
        except TimeoutError:
            _note_trouble(backend, BackendError("connect", f"No answer within {limit_s:g} s."))
        return None


def _pool(given: Wanted, settings: RouterSettings) -> ConnectionPool:
    return ConnectionPool(
        given.place.host,
        given.place.port,
        tls=given.tls or False,
        connect_s=settings.connect_s,
        keep_alive_s=settings.keep_alive_s,
        server_name=given.settings.server_name,
    )


def _note_trouble(backend: Backend, error: BackendError) -> None:
    """Log once why there is no TLS to a backend."""
    if backend.place.tls and error.reason in ("tls", "connect", "died"):
        _say_trouble(backend, str(error))


def _say_trouble(backend: Backend, trouble: str) -> None:
    """Log once what is wrong with a backend."""
    if backend.trouble != trouble:
        backend.trouble = trouble
        log.warning("backend %s: %s", backend.name, trouble)
