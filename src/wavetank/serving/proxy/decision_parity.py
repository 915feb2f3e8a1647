"""Decision by decision: what a simulation shows a router, shown again by the adapter that a launched router uses.

A trace is simulated and every decision is written down: the view, the request or the pool, and where requests went.
Then the same router decides in the adapter of a launched router (:mod:`wavetank.serving.proxy.dispatcher` over
:mod:`wavetank.serving.proxy.view`), on a clock of its own: requests come at the trace's times, and at every refresh the
backends report what the simulated workers held then.  What the router itself sent since, what it sent of prefixes, how
old its view is, who waits, for how long and in which order, and the router's own state are the adapter's to keep.  Both
must show the same view before every decision and send every request to the same worker.

Nothing here depends on the time that processes, connections and event loops take: one difference is a defect.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.proxy.dispatcher import Dispatcher
from wavetank.serving.proxy.view import LiveRequest, PrefixMemory, WorkerAccount
from wavetank.serving.routing.interface import ActiveView, Arrival, ArrivalRouter, PoolRouter, PoolView, WorkersView
from wavetank.serving.simulator.simulate import simulate

if TYPE_CHECKING:
    from wavetank.serving.simulator.cluster import Cluster
    from wavetank.workloads.requests import RequestTrace

Router = ArrivalRouter | PoolRouter
Adapter = Callable[..., Dispatcher["Backend"]]
# Both hold times in seconds; the simulation counts picoseconds.
_TIMES_AGREE_S = 1e-6
# What only a simulation knows.
_UNKNOWN_LIVE = ("remaining_tokens", "expected_output_tokens")
# Of a larger state a checksum is kept.
_MOST_CELLS = 10_000


@dataclass(frozen=True)
class Decision:
    """What a router was shown.

    Attributes
    ----------
    view : WorkersView
    arrival : Arrival or None
        Of a router that chooses at arrival.
    pool : PoolView or None
    active : ActiveView or None
        Of a router with a pool.
    state : float64, shape (k,)
        Its own, before the decision; of one of many cells, such as a memory of prefixes, a checksum, one cell per byte.
    placed : list of int
        What became of the pool.
    """

    view: WorkersView
    arrival: Arrival | None
    pool: PoolView | None
    active: ActiveView | None
    state: NDArray[np.float64]
    placed: list[int] = field(default_factory=list)


class Recorder:
    """A router that decides as another one does and writes down what it is shown."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.decisions: list[Decision] = []
        self.reads_prefix = bool(getattr(router, "reads_prefix", False))
        if isinstance(router, PoolRouter):
            self.reads_active = bool(getattr(router, "reads_active", False))
            self.place = self._place
        else:
            self.choose = self._choose

    def initial_state(self, workers: int) -> NDArray[np.float64]:
        """Return the router's."""
        return self.router.initial_state(workers)

    def parameters(self) -> NDArray[np.float64]:
        """Return the router's."""
        return self.router.parameters()

    def _choose(self, view: Any, arrival: Any, state: Any, parameters: Any) -> int:
        self.decisions.append(Decision(_copied(view), arrival, None, None, _kept(state)))
        return int(self.router.choose(view, arrival, state, np.ascontiguousarray(parameters)))  # type: ignore[union-attr]

    def _place(self, view: Any, pool: Any, active: Any, state: Any, parameters: Any, placed: Any) -> int:
        decision = Decision(_copied(view), None, _copied(pool), _copied(active), _kept(state))
        self.decisions.append(decision)
        count = int(
            self.router.place(view, pool, active, state, np.ascontiguousarray(parameters), placed)  # type: ignore[union-attr]
        )
        decision.placed.extend(placed.tolist())
        return count


def _kept(state: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a copy of a state, or its checksum where copies before every decision would fill the memory."""
    if state.size <= _MOST_CELLS:
        return state.copy()
    digest = hashlib.blake2b(np.ascontiguousarray(state).tobytes()).digest()
    return np.frombuffer(digest, np.uint8).astype(np.float64)


def _copied(part: Any) -> Any:
    return type(part)(*(column.copy() for column in part))


@dataclass(eq=False)
class Backend:
    """A worker of which only the account exists."""

    account: WorkerAccount
    shown: list[LiveRequest] = field(default_factory=list)


@dataclass(frozen=True)
class DecisionParity:
    """How the simulated and the live decisions of a router agree.

    Attributes
    ----------
    decisions : int
        Of the simulation.
    sent_elsewhere : int
        Requests that went to another worker, or nowhere.
    views_differ : int
        Decisions before which a field of the view, the pool, the decoding requests or the state differed, and those
        that only one of the two took.
    contended : int
        Decisions while requests waited, in the pool or at workers: where routers can differ.
    requests : int
    """

    decisions: int
    sent_elsewhere: int
    views_differ: int
    contended: int
    requests: int


def decision_parity(
    requests: RequestTrace, cluster: Cluster, router: Router, adapter: Adapter = Dispatcher
) -> DecisionParity:
    """Let a router decide on a trace, simulated and live, and compare.

    Parameters
    ----------
    requests : RequestTrace
    cluster : Cluster
        Of independent replicas, whose views age (``refresh_s`` above 0).
    router : ArrivalRouter or PoolRouter
        One that can be launched.
    adapter : callable
        Makes what calls the router when it is launched.
    """
    cluster = dataclasses.replace(cluster, pool_window=max(cluster.pool_window, len(requests)))
    simulated = Recorder(router)
    run = simulate(requests, cluster, simulated)  # type: ignore[arg-type]
    live = Recorder(router)
    with asyncio.Runner() as runner:
        placed = runner.run(_replayed(requests, cluster, simulated.decisions, live, adapter))
    # A plain Python router is called through another door of the simulator; both must lead to the same place.
    direct = simulate(requests, cluster, router)
    elsewhere = (placed != run.worker) | (direct.worker != run.worker)
    shown = [not _same(one, other) for one, other in zip(simulated.decisions, live.decisions, strict=False)]
    return DecisionParity(
        decisions=len(simulated.decisions),
        sent_elsewhere=int(elsewhere.sum()),
        views_differ=sum(shown) + abs(len(simulated.decisions) - len(live.decisions)),
        contended=sum(_contended(decision) for decision in simulated.decisions),
        requests=len(requests),
    )


def _contended(decision: Decision) -> bool:
    waits = decision.pool is not None and decision.pool.prompt_tokens.size > 1
    return waits or bool(decision.view.waiting.any())


def _same(one: Decision, other: Decision) -> bool:
    """Say whether both showed the same."""
    if not np.array_equal(one.state, other.state, equal_nan=True):
        return False
    for ours, theirs in ((one.view, other.view), (one.arrival, other.arrival), (one.pool, other.pool),
                         (one.active, other.active)):  # fmt: skip
        if ours is None or theirs is None:
            if ours is not theirs:
                return False
            continue
        for name, left, right in zip(ours._fields, ours, theirs, strict=True):
            if name in _UNKNOWN_LIVE:
                continue
            left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
            if name == "blocks" and left.shape == right.shape:
                # Each of the two numbers blocks in its own way; what they match is in matched_tokens.
                continue
            if left.shape != right.shape or not np.allclose(
                left, right, rtol=0.0, atol=_TIMES_AGREE_S if name.endswith("_s") else 1e-9, equal_nan=True
            ):
                return False
    return True


async def _replayed(
    requests: RequestTrace, cluster: Cluster, decisions: Sequence[Decision], router: Any, adapter: Adapter
) -> NDArray[np.int64]:
    """Let the adapter route the trace on the views of a recording, and return where each request went (-1: nowhere)."""
    clock = [0.0]
    backends = [
        Backend(
            WorkerAccount(
                cluster.max_running,
                float(cluster.kv_capacity_tokens),
                PrefixMemory(cluster.prefix_memory_s, max(requests.n_blocks, 1)),
            )
        )
        for _ in range(cluster.workers)
    ]
    dispatcher = adapter(
        router, pool_window=cluster.pool_window, pool_limit=len(requests) + 1, pool_wait_s=1e12,
        now_s=lambda: clock[0],
    )  # fmt: skip
    dispatcher.set_targets(backends)
    arrival_s = requests.arrival_s
    tasks: list[asyncio.Task[Backend]] = []

    async def arrive(until_s: float) -> bool:
        """Let the requests arrive that come before a time; says whether one came at that very time."""
        last = False
        while len(tasks) < len(requests) and arrival_s[len(tasks)] <= until_s:
            number = len(tasks)
            clock[0] = float(arrival_s[number])
            tasks.append(asyncio.ensure_future(dispatcher.assign(_request(requests, number))))
            await asyncio.sleep(0)
            last = clock[0] >= until_s - _TIMES_AGREE_S
        return last

    refreshed_s = 0.0
    waits = _Clock(requests)
    for decision in decisions:
        now_s = waits.of(decision)
        looked_s = now_s - float(decision.view.age_s[0])
        if looked_s > refreshed_s + _TIMES_AGREE_S:
            # What comes at the moment of the look is decided after it.
            await arrive(looked_s - _TIMES_AGREE_S)
            refreshed_s = clock[0] = looked_s
            for worker, backend in enumerate(backends):
                _report(backend, worker, decision, looked_s)
                dispatcher.refreshed(backend)
        if not await arrive(now_s + _TIMES_AGREE_S / 10) and decision.pool is not None:
            clock[0] = now_s
            dispatcher.round_done()
        await asyncio.sleep(0)
    await arrive(float("inf"))
    placed = np.full(len(requests), -1)
    for number, task in enumerate(tasks):
        if task.done() and task.exception() is None:
            placed[number] = backends.index(task.result())
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return placed


class _Clock:
    """Finds the time of recorded decisions: an arrival says it, a pool how long its first request has waited."""

    def __init__(self, requests: RequestTrace) -> None:
        self._arrival_s = requests.arrival_s
        self._waiting: list[int] = []
        self._arrived = 0

    def of(self, decision: Decision) -> float:
        """Return the time of the next decision, in s."""
        if decision.arrival is not None or decision.pool is None:
            return float(decision.arrival.time_s) if decision.arrival is not None else 0.0
        # The window has room for all: who is new in it came next.
        new = decision.pool.prompt_tokens.size - len(self._waiting)
        self._waiting += range(self._arrived, self._arrived + new)
        self._arrived += new
        now_s = float(self._arrival_s[self._waiting[0]] + decision.pool.waited_s[0])
        self._waiting = [number for number, worker in zip(self._waiting, decision.placed, strict=True) if worker < 0]
        return now_s


def _request(requests: RequestTrace, number: int) -> LiveRequest:
    blocks: list[int] = []
    if requests.block_ids is not None and requests.block_offsets is not None:
        blocks = requests.block_ids[requests.block_offsets[number] : requests.block_offsets[number + 1]].tolist()
    return LiveRequest(
        float(requests.arrival_s[number]), int(requests.prompt_tokens[number]), blocks, float(requests.block_tokens)
    )


def _report(backend: Backend, worker: int, decision: Decision, now_s: float) -> None:
    """Let a backend's account be refreshed with what the simulated worker held."""
    account, view = backend.account, decision.view
    for shown in backend.shown:
        account.done(shown)
    backend.shown = []
    if decision.active is not None:
        mine = np.flatnonzero(decision.active.worker == worker)
        # An account lists the one that began last first.
        for row in mine[::-1]:
            decoding = LiveRequest(now_s, int(decision.active.prompt_tokens[row]), [])
            account.send(decoding, now_s)
            account.generated(decoding, int(decision.active.generated_tokens[row]))
            backend.shown.append(decoding)
    account.refresh(now_s)
    account.kv_tokens = float(view.kv_tokens[worker])
    account.running, account.waiting = int(view.running[worker]), int(view.waiting[worker])
    account.waiting_tokens = float(view.waiting_tokens[worker])
