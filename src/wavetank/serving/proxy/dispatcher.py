"""Calls a router on the live view: the very object that was simulated decides where each request goes.

A router that chooses at arrival is called once per request; one with a pool is called at every arrival and every
refresh, as the simulator does for independent replicas (a completion shows only at the next refresh, so a call then
would see nothing new).  Whatever the router does wrong, requests are served: one that names no backend or raises is
replaced for that decision by the backend with the fewest requests, and the mistake is counted.

Two rules for changing backends: the view holds only those that can be routed to, and when they change the router
starts from ``initial_state`` again, because a state may hold numbers of workers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.proxy.view import LiveRequest, LiveView, WorkerAccount
from wavetank.serving.routing.interface import Arrival, ArrivalRouter, PoolRouter, PoolView, waiting_requests

log = logging.getLogger("wavetank.router")

_NAN = float("nan")
_PLACE = attrgetter("place")


class Target(Protocol):
    """What requests are sent to: has an ``account``."""

    @property
    def account(self) -> WorkerAccount:
        """The router's account of it."""
        ...


T = TypeVar("T", bound=Target)


class NoBackendError(Exception):
    """No backend can be routed to."""


class PoolFullError(Exception):
    """As many requests wait as may wait."""


class PoolTimeoutError(Exception):
    """A request waited too long to be placed."""


def check_router(router: Any, name: str) -> None:
    """Refuse what cannot decide on live traffic.

    Raises
    ------
    BadValueError
        If it is no router, or one that needs the truth about the future.
    """
    if isinstance(router, type) or not isinstance(router, ArrivalRouter | PoolRouter):
        raise BadValueError(
            f"The system {name!r} is not a router.",
            allowed="an object with initial_state, parameters, and choose or place",
            hint="wavetank list serving --shape policy",
        )
    if getattr(router, "reads_remaining", False):
        raise BadValueError(
            f"The router {name!r} needs to know when running requests will end; only a simulation does.",
            given=repr(router),
            hint="choose another termination forecast, e.g. --policy balance-route --set termination=geometric",
        )


class Dispatcher(Generic[T]):
    """Sends requests to backends as a router says.

    Parameters
    ----------
    router : ArrivalRouter or PoolRouter
    pool_window : int
        Most waiting requests that a pool router sees.
    pool_limit : int
        Most requests that may wait.
    pool_wait_s : float
        Longest wait.
    decided : callable
        Called with the seconds of every decision.
    failed : callable
        Called with the kind of every decision that had to be replaced: ``raised``, ``out-of-range`` or ``too-long``.
    now_s : callable
        The clock of ``LiveRequest.arrived_s``.
    """

    def __init__(
        self,
        router: ArrivalRouter | PoolRouter,
        *,
        pool_window: int = 512,
        pool_limit: int = 4096,
        pool_wait_s: float = 60.0,
        decided: Callable[[float], None] = lambda seconds: None,
        failed: Callable[[str], None] = lambda kind: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.router = router
        self.pools = isinstance(router, PoolRouter)
        self.reads_prefix = bool(getattr(router, "reads_prefix", False))
        self._reads_active = self.pools and bool(getattr(router, "reads_active", False))
        self._parameters = np.ascontiguousarray(router.parameters(), np.float64)
        self._limit, self._wait_s = pool_limit, pool_wait_s
        self._decided, self._failed = decided, failed
        self._now_s = now_s
        # Whether a pool policy sees requests by their places in line instead of the order in which they came.
        self.in_turns = False
        self._complained: set[str] = set()
        self._pool: dict[LiveRequest, asyncio.Future[T]] = {}
        self._pool_window = pool_window
        self._placed = np.zeros(pool_window, np.int64)
        self.decisions = 0
        self.targets: tuple[T, ...] = ()
        self.set_targets(())

    def configure(self, *, pool_limit: int, pool_wait_s: float) -> None:
        """Set other limits of the pool; parameters as of the constructor."""
        self._limit, self._wait_s = pool_limit, pool_wait_s

    def set_router(self, router: ArrivalRouter | PoolRouter) -> None:
        """Let another router decide from now on; what waits is placed by it, or at once where it places nothing."""
        self.router = router
        self.pools = isinstance(router, PoolRouter)
        self.reads_prefix = bool(getattr(router, "reads_prefix", False))
        self._reads_active = self.pools and bool(getattr(router, "reads_active", False))
        self._parameters = np.ascontiguousarray(router.parameters(), np.float64)
        self._complained.clear()
        if not self.pools and self.targets:
            for request in list(self._pool):
                self._hand_over(request, self._send_to_fewest(request))
        self.set_targets(self.targets)

    def set_targets(self, targets: Sequence[T]) -> None:
        """Route over these backends from now on; the router's state begins anew."""
        self.targets = tuple(targets)
        self._worker_of = {target: worker for worker, target in enumerate(targets)}
        self.view = LiveView([target.account for target in targets], reads_active=self._reads_active)
        self._state = (
            np.ascontiguousarray(self.router.initial_state(len(targets)), np.float64).copy() if targets else np.zeros(0)
        )
        self._window = waiting_requests(np.zeros(self._pool_window), len(targets))
        self._place()

    def refreshed(self, target: T) -> None:
        """Take over the refreshed account of a backend."""
        worker = self._worker_of.get(target)
        if worker is not None:
            self.view.copy_row(worker)

    def round_done(self) -> None:
        """Let a pool router decide after a refresh, and end the waits that took too long."""
        if not self._pool:
            return
        self._place()
        now = self._now_s()
        for request, future in list(self._pool.items()):
            if now - request.arrived_s < self._wait_s:
                break
            del self._pool[request]
            if not future.done():
                future.set_exception(PoolTimeoutError)

    @property
    def waiting(self) -> int:
        """Requests in the pool."""
        return len(self._pool)

    async def assign(self, request: LiveRequest) -> T:
        """Return the backend of a request; the request is on its account then.

        Raises
        ------
        NoBackendError
            If there is none.
        PoolFullError
            If too many wait already.
        PoolTimeoutError
            If the request waited too long.
        """
        if not self.targets:
            raise NoBackendError
        if not self.pools:
            return self._choose(request)
        if request.prompt_tokens > float(self.view.workers.kv_capacity_tokens.max()):
            # It fits nowhere, so a careful router never places it; the server gives the exact answer.
            self._failed("too-long")
            return self._send_to_fewest(request)
        if len(self._pool) >= self._limit:
            raise PoolFullError
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pool[request] = future
        self._place()
        try:
            return await future
        except asyncio.CancelledError:
            waited = self._pool.pop(request, None) is not None
            if not waited and not future.cancelled() and future.exception() is None:
                # Placed in the very moment its client left.
                future.result().account.done(request)
            raise

    def reassign(self, request: LiveRequest, tried: Sequence[T], spare: Sequence[T] = ()) -> T:
        """Return another backend for a request that failed before its first byte: the one with the fewest requests.

        Parameters
        ----------
        request : LiveRequest
        tried : sequence
            Backends it cannot go to.
        spare : sequence
            Backends that are routed over only where no other one is left.

        Raises
        ------
        NoBackendError
            If all were tried.
        """
        left = [target for target in self.targets if target not in tried]
        if left:
            return self._send_to_fewest(request, left)
        left = [target for target in spare if target not in tried]
        if not left:
            raise NoBackendError
        target = min(left, key=lambda each: each.account.in_flight)
        # The view does not show it.
        target.account.send(request, self._now_s())
        return target

    # ------------------------------------------------------------------------------------------------------------------

    def _choose(self, request: LiveRequest) -> T:
        now = self._now_s()
        view = self.view
        view.age(now)
        if self.reads_prefix:
            view.match(request, now)
        arrival = Arrival(now, float(request.prompt_tokens), _NAN)
        self.decisions += 1
        try:
            worker = int(self.router.choose(view.workers, arrival, self._state, self._parameters))  # type: ignore[union-attr]
        except Exception as error:
            self._decided(self._now_s() - now)
            self._complain("raised", error)
            return self._send_to_fewest(request)
        self._decided(self._now_s() - now)
        if not 0 <= worker < len(self.targets):
            self._complain("out-of-range", worker)
            return self._send_to_fewest(request)
        return self._send(request, worker, now)

    def _send(self, request: LiveRequest, worker: int, now: float) -> T:
        target = self.targets[worker]
        target.account.send(request, now)
        self.view.sent(worker)
        return target

    def _send_to_fewest(self, request: LiveRequest, among: Sequence[T] | None = None) -> T:
        target = min(among or self.targets, key=lambda each: each.account.in_flight)
        return self._send(request, self._worker_of[target], self._now_s())

    def _complain(self, kind: str, what: object) -> None:
        self._failed(kind)
        if kind not in self._complained:
            self._complained.add(kind)
            log.warning(
                "the router %r decided badly (%s: %r); the backend with the fewest requests takes over, "
                "further cases are only counted",
                self.router, kind, what,
            )  # fmt: skip

    def _free(self) -> int:
        view = self.view.workers
        free = view.slots - view.running - view.waiting - view.sent_requests
        return int(np.maximum(free, 0).sum())

    def _place(self) -> None:
        """Let a pool router decide once."""
        if not self._pool or not self.targets or not self._free():
            return
        now = self._now_s()
        if self.in_turns:
            requests = nsmallest(self._placed.size, self._pool, key=_PLACE)
        else:
            requests = list(islice(self._pool, self._placed.size))
        n = len(requests)
        window = PoolView._make(column[:n] for column in self._window)
        placed = self._placed[:n]
        placed[:] = -1
        for i, request in enumerate(requests):
            window.prompt_tokens[i] = request.prompt_tokens
            window.waited_s[i] = now - request.arrived_s
            window.waited_steps[i] = request.waited_steps
            request.waited_steps += 1
        self.view.age(now)
        self.decisions += 1
        began = self._now_s()
        try:
            self.router.place(self.view.workers, window, self.view.active, self._state, self._parameters, placed)  # type: ignore[union-attr]
        except Exception as error:
            self._decided(self._now_s() - began)
            self._complain("raised", error)
            for request in requests[: self._free()]:
                self._hand_over(request, self._send_to_fewest(request))
            return
        self._decided(self._now_s() - began)
        for request, worker in zip(requests, placed.tolist(), strict=True):
            if 0 <= worker < len(self.targets):
                self._hand_over(request, self._send(request, worker, now))
            elif worker != -1:
                self._complain("out-of-range", worker)
                self._hand_over(request, self._send_to_fewest(request))

    def _hand_over(self, request: LiveRequest, target: T) -> None:
        future = self._pool.pop(request)
        if future.done():
            target.account.done(request)
        else:
            future.set_result(target)
