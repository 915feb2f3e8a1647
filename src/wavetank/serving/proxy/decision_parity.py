"""Decision by decision: what a simulation shows a router, shown again by the adapter that a launched router uses.

A trace is simulated and every decision is written down: the view, the request or the pool, and where requests went.
Then the same router decides in the adapter of a launched router (:mod:`wavetank.serving.proxy.dispatcher` over
:mod:`wavetank.serving.proxy.view`), on a clock of its own: requests come at the trace's times, and at every refresh the
backends report what the simulated workers held then.  What the router itself sent since, what it sent of prefixes, how
old its view is, who waits, for how long and in which order, and the router's own state are the adapter's to keep.  Both
must show the same view before every decision and send every request to the same worker.  What clients ask for beside
the prompt (model, adapter, session, tier, deadline, longest answer) and what a predictor says is given to both.

Two fields of workers are known to a simulation alone and count as differences where it shows them: the speed of a
device that is slower than another one, and what a prefix cache holds, for a router that reads the events of one.

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
from wavetank.serving.proxy.view import Asked, LiveRequest, PrefixMemory, WorkerAccount
from wavetank.serving.routing.interface import ActiveView, Arrival, ArrivalRouter, PoolRouter, PoolView, WorkersView
from wavetank.serving.simulator.asked import asked_of
from wavetank.serving.simulator.simulate import simulate

if TYPE_CHECKING:
    from wavetank.serving.simulator.cluster import Cluster
    from wavetank.workloads.requests import RequestTrace

Router = ArrivalRouter | PoolRouter
Adapter = Callable[..., Dispatcher["Backend"]]
# Both hold times in seconds; the simulation counts picoseconds.
_TIMES_AGREE_S = 1e-6
# What only a simulation knows.
_UNKNOWN_LIVE = ("remaining_tokens",)
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
        for name in ("reads_prefix", "reads_adapters", "reads_events"):
            setattr(self, name, bool(getattr(router, name, False)))
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
    models: tuple[str, ...] = ()
    shown: list[LiveRequest] = field(default_factory=list)

    def serves(self, model: str | None) -> bool:
        """Say whether it has a model."""
        return not self.models or model in self.models


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
    requests: RequestTrace,
    cluster: Cluster,
    router: Router,
    adapter: Adapter = Dispatcher,
    *,
    expected_output_tokens: NDArray[np.float64] | None = None,
    output_spread_tokens: NDArray[np.float64] | None = None,
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
    expected_output_tokens, output_spread_tokens : float64 array (requests,), optional
        What a predictor says, in both lives.
    """
    cluster = dataclasses.replace(cluster, pool_window=max(cluster.pool_window, len(requests)))
    # A launched router makes blocks of a prompt and its model's name, and an adapter is such a name.
    requests = requests.with_blocks_apart()
    predicted = {"expected_output_tokens": expected_output_tokens, "output_spread_tokens": output_spread_tokens}
    simulated = Recorder(router)
    run = simulate(requests, cluster, simulated, **predicted)  # type: ignore[arg-type]
    live = Recorder(router)
    coming = _live_requests(requests, cluster, asked_of(requests, expected_output_tokens, output_spread_tokens))
    with asyncio.Runner() as runner:
        placed = runner.run(_replayed(coming, requests, cluster, simulated.decisions, live, adapter))
    # A plain Python router is called through another door of the simulator; both must lead to the same place.
    direct = simulate(requests, cluster, router, **predicted)  # type: ignore[arg-type]
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
            if not _equal(np.asarray(left), np.asarray(right), _TIMES_AGREE_S if name.endswith("_s") else 1e-9):
                return False
    return True


def _equal(left: NDArray[Any], right: NDArray[Any], within: float) -> bool:
    if left.dtype.kind in "iu" and right.dtype.kind in "iu":
        # Sessions are numbers that no float holds.
        return np.array_equal(left, right)
    return left.shape == right.shape and np.allclose(left, right, rtol=0.0, atol=within, equal_nan=True)


async def _replayed(
    coming: Sequence[LiveRequest],
    requests: RequestTrace,
    cluster: Cluster,
    decisions: Sequence[Decision],
    router: Any,
    adapter: Adapter,
) -> NDArray[np.int64]:
    """Let the adapter route the trace on the views of a recording, and return where each request went (-1: nowhere)."""
    clock = [0.0]
    backends = [
        Backend(
            WorkerAccount(
                cluster.max_running,
                float(cluster.kv_capacity_tokens),
                PrefixMemory(cluster.prefix_memory_s, max(requests.n_blocks, 1)),
            ),
            () if cluster.models is None else cluster.models[worker],
        )
        for worker in range(cluster.workers)
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
            tasks.append(asyncio.ensure_future(dispatcher.assign(coming[number])))
            await asyncio.sleep(0)
            last = clock[0] >= until_s - _TIMES_AGREE_S
        return last

    refreshed_s = 0.0
    waits = _Clock(requests)
    for number, decision in enumerate(decisions):
        now_s = waits.of(decision)
        looked_s = now_s - float(decision.view.age_s[0])
        if looked_s > refreshed_s + _TIMES_AGREE_S:
            # What comes at the moment of the look is decided after it.
            await arrive(looked_s - _TIMES_AGREE_S)
            refreshed_s = clock[0] = looked_s
            for worker, backend in enumerate(backends):
                _report(backend, worker, decision, looked_s)
                backend.account.adapters = _adapters(decisions, number, worker, looked_s)
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


def _live_requests(requests: RequestTrace, cluster: Cluster, table: NDArray[Any]) -> list[LiveRequest]:
    """Return the requests as a launched router has them.

    Parameters
    ----------
    requests : RequestTrace
    cluster : Cluster
    table : structured array
        What they ask for: a row each, or one for all.
    """
    blocks: list[list[int]] = [[]] * len(requests)
    if requests.block_ids is not None and requests.block_offsets is not None:
        blocks = [part.tolist() for part in np.split(requests.block_ids, requests.block_offsets[1:-1])]
    names = ("expected", "spread", *Asked._fields[2:])
    rows = [Asked(*row) for row in zip(*(table[name].tolist() for name in names), strict=True)]
    if len(rows) < len(requests):
        rows *= len(requests)
    return [
        LiveRequest(
            float(requests.arrival_s[number]),
            int(requests.prompt_tokens[number]),
            blocks[number],
            float(requests.block_tokens),
            asked,
            requests.model_names[asked.model] if asked.model >= 0 and cluster.models is not None else None,
        )
        for number, asked in enumerate(rows)
    ]


def _adapters(decisions: Sequence[Decision], first: int, worker: int, looked_s: float) -> set[int]:
    """Return the adapters that a worker had at a look, as far as the decisions until the next look show it."""
    seen: dict[int, bool] = {}
    for decision in decisions[first:]:
        arrival = decision.arrival
        if arrival is None or abs(arrival.time_s - float(decision.view.age_s[0]) - looked_s) > _TIMES_AGREE_S:
            break
        # Before the first of an adapter's requests none of them was sent there since the look.
        if arrival.adapter >= 0:
            seen.setdefault(arrival.adapter, bool(decision.view.adapter_loaded[worker]))
    return {adapter for adapter, loaded in seen.items() if loaded}


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
