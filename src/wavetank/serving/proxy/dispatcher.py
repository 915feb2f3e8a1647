"""Calls a router on the live view: the very object that was simulated decides where each request goes.

A router that chooses at arrival is called once per request; one with a pool is called at every arrival and every
refresh, as the simulator does for independent replicas (a completion shows only at the next refresh, so a call then
would see nothing new).  Whatever the router does wrong, requests are served: where it raises, or names no backend, or
one that takes nothing new or lacks the model, the fit backend with the fewest requests takes its place for that
decision, and the mistake is counted.

The view holds all backends that the policy has, also those that are out for a while, which have ``takes`` 0, as workers
that have failed do in a simulation.  Only where a backend joins or leaves for good the router starts from
``initial_state`` again, because a state may hold numbers of workers.
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
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.proxy.view import LiveRequest, LiveView, WorkerAccount
from wavetank.serving.routing.interface import (
    NO_BLOCKS,
    Arrival,
    ArrivalRouter,
    PoolRouter,
    PoolView,
    waiting_requests,
)

log = logging.getLogger("wavetank.router")

# Models of which it is remembered who serves them.
_MOST_MODELS = 1024
_FIRST_ASKED = PoolView._fields.index("expected_output_tokens")
_PLACE = attrgetter("place")


class Target(Protocol):
    """What requests are sent to."""

    @property
    def account(self) -> WorkerAccount:
        """The router's account of it."""
        ...

    def serves(self, model: str | None) -> bool:
        """Say whether it has a model, as far as is known."""
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
        Called with the kind of every decision that had to be replaced: ``raised``, ``out-of-range``, ``unfit`` or
        ``too-long``.
    now_s : callable
        The clock of ``LiveRequest.arrived_s``.

    Attributes
    ----------
    targets : tuple
        Those that take new requests.
    workers : tuple
        The rows of the view.
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
        self._read_router(router)
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
        self.workers: tuple[T, ...] = ()
        self._serving: dict[str | None, NDArray[np.int64]] = {}
        self._begin(())

    def configure(self, *, pool_limit: int, pool_wait_s: float) -> None:
        """Set other limits of the pool; parameters as of the constructor."""
        self._limit, self._wait_s = pool_limit, pool_wait_s

    def _read_router(self, router: ArrivalRouter | PoolRouter) -> None:
        self.router = router
        self.pools = isinstance(router, PoolRouter)
        self.reads_prefix = bool(getattr(router, "reads_prefix", False))
        self._reads_adapters = not self.pools and bool(getattr(router, "reads_adapters", False))
        self._reads_active = self.pools and bool(getattr(router, "reads_active", False))
        self._parameters = np.ascontiguousarray(router.parameters(), np.float64)

    def set_router(self, router: ArrivalRouter | PoolRouter) -> None:
        """Let another router decide from now on; what waits is placed by it, or at once where it places nothing."""
        self._read_router(router)
        self._complained.clear()
        if not self.pools and self.targets:
            for request in list(self._pool):
                self._hand_over(request, self._send_to_fewest(request))
        self._begin(self.workers)
        self._place()

    def set_targets(self, targets: Sequence[T], workers: Sequence[T] | None = None) -> None:
        """Route to these backends from now on; the router's state begins anew where the rows of the view change.

        Parameters
        ----------
        targets : sequence
            Those that take new requests.
        workers : sequence, optional
            All that the view shows, in the order of its rows; by default ``targets``.
        """
        self.targets = tuple(targets)
        workers = self.targets if workers is None else tuple(workers)
        if workers == self.workers:
            self._note_takes()
        else:
            self._begin(workers)
        self._place()

    def _begin(self, workers: tuple[T, ...]) -> None:
        """Show these backends, to a router that knows nothing of them yet."""
        self.workers = workers
        self._worker_of = {target: worker for worker, target in enumerate(workers)}
        self.view = LiveView([target.account for target in workers], reads_active=self._reads_active)
        n = len(workers)
        self._state = np.ascontiguousarray(self.router.initial_state(n), np.float64).copy() if n else np.zeros(0)
        self._window = waiting_requests(np.zeros(self._pool_window), n)
        self._note_takes()

    def _note_takes(self) -> None:
        self._serving.clear()
        takes = self.view.workers.takes
        takes[:] = 0
        for target in self.targets:
            takes[self._worker_of[target]] = 1

    def models_changed(self) -> None:
        """Take note that backends list other models than before."""
        self._serving.clear()

    def _serves(self, model: str | None) -> NDArray[np.int64]:
        """Return which rows have a model."""
        row = self._serving.get(model)
        if row is None:
            if len(self._serving) >= _MOST_MODELS:
                self._serving.clear()
            row = np.array([model is None or target.serves(model) for target in self.workers], np.int64)
            self._serving[model] = row
        return row

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
        fit = self._serves(request.model_name) * self.view.workers.takes
        if not fit.any():
            # No router may place it: who called finds out where the model is.
            return self._send_to_fewest(request)
        if request.prompt_tokens > float((self.view.workers.kv_capacity_tokens * fit).max()):
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

    def push_out(self, request: LiveRequest) -> None:
        """End the wait of a request in the pool: another one has its place."""
        future = self._pool.pop(request, None)
        if future is not None and not future.done():
            future.set_exception(PoolFullError())

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
        serves = self._serves(request.model_name)
        view.workers.serves[:] = serves
        if self._reads_adapters:
            view.note_adapter(request.asked.adapter)
        blocks = request.block_ids() if self.reads_prefix else NO_BLOCKS
        arrival = Arrival(now, float(request.prompt_tokens), *request.asked, blocks)
        self.decisions += 1
        try:
            worker = int(self.router.choose(view.workers, arrival, self._state, self._parameters))  # type: ignore[union-attr]
        except Exception as error:
            self._decided(self._now_s() - now)
            self._complain("raised", error)
            return self._send_to_fewest(request)
        self._decided(self._now_s() - now)
        return self._checked(request, worker, serves, now)

    def _checked(self, request: LiveRequest, worker: int, serves: NDArray[np.int64], now: float) -> T:
        """Send a request where the router says, or where it should have."""
        if not 0 <= worker < len(self.workers):
            self._complain("out-of-range", worker)
            return self._send_to_fewest(request)
        takes = self.view.workers.takes
        if takes[worker] and serves[worker]:
            return self._send(request, worker, now)
        if (takes * serves).any():
            self._complain("unfit", worker)
        # Where no backend is fit the router could not do better.
        return self._send_to_fewest(request)

    def _send(self, request: LiveRequest, worker: int, now: float) -> T:
        target = self.workers[worker]
        target.account.send(request, now)
        self.view.sent(worker)
        return target

    def _send_to_fewest(self, request: LiveRequest, among: Sequence[T] = ()) -> T:
        """Send a request to the backend with the fewest: of those given, or of the fit ones, or of all."""
        if not among:
            serves = self._serves(request.model_name)
            among = [target for target in self.targets if serves[self._worker_of[target]]] or self.targets
        target = min(among, key=lambda each: each.account.in_flight)
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
        free = (view.slots - view.running - view.waiting - view.sent_requests) * view.takes
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
        requests, names = self._with_backends(requests)
        n = len(requests)
        if not n:
            return
        window = PoolView._make(column[:n] for column in self._window)
        placed = self._placed[:n]
        placed[:] = -1
        for i, request in enumerate(requests):
            window.prompt_tokens[i] = request.prompt_tokens
            window.waited_s[i] = now - request.arrived_s
            window.waited_steps[i] = request.waited_steps
            request.waited_steps += 1
        for column, values in zip(
            window[_FIRST_ASKED:-1], zip(*(each.asked for each in requests), strict=True), strict=True
        ):
            column[:] = values
        # Most often all ask for one model.
        window.serves[:] = (
            self._serves(requests[0].model_name)
            if len(names) == 1
            else [self._serves(each.model_name) for each in requests]
        )
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
            if worker != -1:
                self._hand_over(request, self._checked(request, worker, self._serves(request.model_name), now))

    def _with_backends(self, requests: list[LiveRequest]) -> tuple[list[LiveRequest], set[str | None]]:
        """Return the requests that some backend is fit for, and their models; the others are handed over."""
        takes = self.view.workers.takes
        names = {each.model_name for each in requests}
        lost = {name for name in names if not (self._serves(name) * takes).any()}
        if lost:
            for request in requests:
                if request.model_name in lost:
                    self._hand_over(request, self._send_to_fewest(request))
            requests = [each for each in requests if each.model_name not in lost]
        return requests, names - lost

    def _hand_over(self, request: LiveRequest, target: T) -> None:
        future = self._pool.pop(request)
        if future.done():
            target.account.done(request)
        else:
            future.set_result(target)
