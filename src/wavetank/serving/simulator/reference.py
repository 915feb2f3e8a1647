"""The readable simulator: the same rules as :mod:`~wavetank.serving.simulator.core`, in plain Python, step by step.

It exists to be read and to be compared with: the compiled simulator must agree with it to the picosecond.  It is about
a thousand times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.platforms.step_time import PS_PER_S
from wavetank.serving.routing.interface import ActiveView, Arrival, ArrivalRouter, PoolRouter, PoolView, WorkersView
from wavetank.serving.simulator.adapters import AdapterSlots, codes_of
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reference_changes import ReadableChanges
from wavetank.serving.simulator.reuse import PrefixReuse, units_of
from wavetank.serving.simulator.router_copies import states_of
from wavetank.serving.simulator.unit_store import UnitStore
from wavetank.serving.simulator.worker import Request, Worker, step_of
from wavetank.sim.streams import mix

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

RETRY_PS = 1_000_000_000
WARM_UP = 0.1


@dataclass(frozen=True)
class Step:
    """What a step was: when, how long, and for each worker of its domain its own part and its context tokens."""

    start_ps: int
    end_ps: int
    own_ps: list[int]
    context: list[int]
    prefill: bool


@dataclass(eq=False)
class Domain:
    """Workers that step together, with the steps that they took."""

    workers: list[Worker]
    ends_ps: int = -1  # of the step in progress; -1 at a boundary
    retry_ps: int = -1  # when a stuck router is asked again
    steps: list[Step] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        """Whether a worker has a request that runs or waits."""
        return any(worker.queue or worker.running for worker in self.workers)

    def break_off(self, now_ps: int) -> None:
        """End the step in progress, if there is one: it was a step, up to this moment."""
        if self.ends_ps >= 0:
            last = self.steps[-1]
            own_ps = [min(each, now_ps - last.start_ps) for each in last.own_ps]
            self.steps[-1] = replace(last, end_ps=now_ps, own_ps=own_ps)
            self.ends_ps = -1


def _moments(
    domains: list[Domain], coming: list[Request], waiting: bool, observer: Observer, pools: bool, refresh_ps: int
) -> list[int]:
    """Return when something happens next: steps end, workers change, a request arrives, a view is refreshed.

    Nothing is left at the end.
    """
    times = [domain.ends_ps for domain in domains if domain.ends_ps >= 0]
    times += [domain.retry_ps for domain in domains if domain.retry_ps >= 0]
    if coming:
        times.append(coming[0].arrival_ps)
        if not pools and refresh_ps:
            # Nobody looks before the next arrival: only the last refresh until then matters.
            last = coming[0].arrival_ps // refresh_ps * refresh_ps
            if last > observer.refreshed_ps:
                times.append(last)
    if pools and len(domains) > 1:
        if waiting and refresh_ps:
            times.append((observer.refreshed_ps // refresh_ps + 1) * refresh_ps)
        elif waiting and not any(domain.has_work for domain in domains):
            times.append(observer.refreshed_ps + RETRY_PS)
        elif refresh_ps and coming:
            last = coming[0].arrival_ps // refresh_ps * refresh_ps
            if last > observer.refreshed_ps:
                times.append(last)
    if observer.fates is not None:
        changes = observer.fates.next_ps()
        times += changes + observer.fates.waiting_ps(observer.refreshed_ps, refresh_ps)
        if changes and refresh_ps and not (pools and len(domains) == 1):
            # What is seen before a change is not what is seen after it.
            last = min(changes) // refresh_ps * refresh_ps
            if last > observer.refreshed_ps:
                times.append(last)
    return times


def simulate_slowly(
    requests: RequestTrace,
    cluster: Cluster,
    router: ArrivalRouter | PoolRouter,
    *,
    expected_output_tokens: NDArray[np.float64] | None = None,
    output_spread_tokens: NDArray[np.float64] | None = None,
    step: Callable[[Sequence[Worker], Cluster], int] = step_of,
) -> dict[str, NDArray[np.int64]]:
    """Serve a trace step by step.

    Parameters
    ----------
    requests, cluster, router, expected_output_tokens, output_spread_tokens
        As for :func:`wavetank.serving.simulate`.
    step : callable
        Plans the step of workers that step together and returns how long it takes, in ps, as :func:`step_of` does from
        the cluster's step time; one that does the step's work for real returns what it measured.

    Returns
    -------
    dict
        ``first_ps``, ``finish_ps``, ``worker``, ``preemptions``, ``matched``, ``recomputed`` and ``fetched`` (tokens
        from other workers), one int64 per request, in order of arrival; ``steps``, shape (1,): the steps of all workers
        or lockstep groups; ``decisions`` and ``refreshes``, shape (1,): of the router and of its view;
        ``prefill_steps``, ``adapter_loads``, ``lock_ps``, ``work_ps``, ``mixed_ps``, ``imbalance_tokens`` and
        ``counted_steps``, shape (1,): steps that compute a prompt, adapters loaded, and the sums behind the worker time
        of :class:`~wavetank.serving.simulator.simulate.ServingRun`.  A refused request has worker -1 and times -1.
        Where workers change: ``outcome`` and ``sends``, one per request, ``refused_connections`` and ``up_ps``,
        shape (1,).
    """
    requests = requests.with_blocks_apart()
    asked = Asked(requests, cluster, expected_output_tokens, output_spread_tokens)
    todo = requests_of(requests)
    stores = stores_of(requests, cluster, todo)
    limits = cluster.each_worker()
    made: list[Worker] = []

    def new_worker(number: int) -> Worker:
        worker = Worker(limits[number], store=stores(number))
        worker.slots = asked.slots_in(cluster)
        made.append(worker)
        return worker

    asked.give_adapters(cluster, todo)
    size = cluster.group_size
    domains = [Domain([new_worker(i + k) for k in range(size)]) for i in range(0, cluster.workers, size)]
    observer = Observer(requests, cluster, domains, router, asked)
    fates = observer.fates = _changes(todo, cluster, domains, observer, new_worker)
    refresh_ps = round(cluster.refresh_s * PS_PER_S)
    pools = isinstance(router, PoolRouter)
    pool: list[Request] = []
    arrived = 0
    observer.refresh(0)
    while True:
        times = _moments(domains, todo[arrived : arrived + 1], bool(pool), observer, pools, refresh_ps)
        if not times:
            steps = [step for domain in domains for step in domain.steps]
            return {
                **_columns(todo, len(steps)),
                **worker_time(todo, steps, cluster, fates),
                "adapter_loads": np.array([sum(worker.slots.loaded for worker in made if worker.slots)], np.int64),
                "decisions": np.array([observer.decisions], np.int64),
                "refreshes": np.array([observer.refreshes], np.int64),
            }
        now = min(times)
        idle = not any(domain.has_work for domain in domains)
        before = sum(len(worker.running) for worker in observer.workers)
        for domain in domains:
            if domain.ends_ps == now:
                for worker in domain.workers:
                    worker.finish_step(now)
                domain.ends_ps = -1
        completed = sum(len(worker.running) for worker in observer.workers) < before
        ticks = refresh_ps and now % refresh_ps == 0 and now > observer.refreshed_ps
        if ticks and not (pools and len(domains) == 1):
            observer.refresh(now)
        changed = fates is not None and _change_workers(fates, observer, pool, now, pools, bool(ticks))
        if pools and len(domains) > 1 and pool and not (arrived < len(todo) and todo[arrived].arrival_ps == now):
            if refresh_ps and now % refresh_ps == 0:
                observer.place(pool, now)
            elif not refresh_ps and (completed or idle or changed):
                # A slot is free again; or nobody runs, and a router that placed nothing is asked again.
                observer.refresh(now)
                observer.place(pool, now)
        while arrived < len(todo) and todo[arrived].arrival_ps == now:
            _arrive(observer, todo[arrived], pool if pools else None, now, not refresh_ps)
            arrived += 1
        for domain in domains:
            if domain.ends_ps >= 0 or (domain.retry_ps >= 0 and domain.retry_ps > now):
                continue
            domain.retry_ps = -1
            if pools and len(domains) == 1 and (domain.has_work or pool):
                if not refresh_ps or now >= observer.refreshed_ps + refresh_ps:
                    observer.refresh(now)
                observer.place(pool, now)
                if pool and not domain.has_work:
                    domain.retry_ps = now + max(refresh_ps, RETRY_PS)
            if domain.has_work:
                domain.ends_ps = now + step(domain.workers, cluster)
                own_ps, context = zip(*((worker.own_ps, worker.context) for worker in domain.workers), strict=True)
                prefill = any(worker.prefill_tokens for worker in domain.workers)
                domain.steps.append(Step(now, domain.ends_ps, list(own_ps), list(context), prefill))


def _arrive(observer: Observer, request: Request, pool: list[Request] | None, now: int, fresh: bool) -> None:
    """Let the router see a request that arrives; ``fresh``: the view always shows the moment."""
    if pool is not None:
        pool.append(request)
        if len(observer.domains) == 1:
            return
    if fresh:
        observer.refresh(now)
    if pool is None:
        observer.choose(request, now)
    else:
        observer.place(pool, now)


def _changes(
    todo: list[Request],
    cluster: Cluster,
    domains: list[Domain],
    observer: Observer,
    new_worker: Callable[[int], Worker],
) -> ReadableChanges | None:
    """Return what changes among the workers; None where nothing does."""
    if cluster.churn is None:
        return None

    def send(request: Request, worker: int, now_ps: int) -> None:
        observer.send(request, worker, now_ps, observer.copy_of(request))

    def flying(request: Request, worker: int) -> int:
        there = observer.worker(worker)
        copy = observer.copy_of(request)
        return sum(observer.copy_of(each) == copy for each in there.queue + there.running)

    def serves(worker: int, request: Request) -> bool:
        return observer.asked.serves(worker, request)

    return ReadableChanges(
        churn=cluster.churn, cluster=cluster, requests=todo, domains=domains, view=observer.view,
        new_worker=new_worker, send=send, flying=flying, serves=serves,
    )  # fmt: skip


def _change_workers(
    fates: ReadableChanges, observer: Observer, pool: list[Request], now: int, pools: bool, shown: bool
) -> bool:
    """Make the changes of a moment, and send requests that lost their worker again; returns whether there are changes.

    ``shown``: the view was refreshed at this moment.
    """
    changes = fates.next_ps()
    changed = bool(changes) and min(changes) == now
    fresh = not observer.cluster.refresh_s and not (pools and len(fates.domains) == 1)
    if changed:
        fates.change(now, len(pool) + len(fates.waiting))
        if fresh and (fates.orphans or fates.waiting):
            observer.refresh(now)
            shown = True
    fates.send_waiting(now, shown)
    left = fates.send_orphans(now)
    if pools:
        pool[:] = sorted([*pool, *left], key=lambda request: request.number)
    else:
        fates.waiting += left
    return changed


class Asked:
    """What routers are shown of requests beside their prompts."""

    def __init__(
        self,
        requests: RequestTrace,
        cluster: Cluster,
        expected: NDArray[np.float64] | None,
        spread: NDArray[np.float64] | None,
    ) -> None:
        self.requests, self.models = requests, cluster.models
        self.expected, self.spread = expected, spread
        self.adapters, self.n_adapters = codes_of(requests)
        self.arrival_s = [round(float(arrival_s) * PS_PER_S) / PS_PER_S for arrival_s in requests.arrival_s]

    def slots_in(self, cluster: Cluster) -> AdapterSlots | None:
        """Return what a worker has for the adapters that requests ask for, where there are any."""
        served = self.n_adapters
        if cluster.adapters is None or not served:
            return None
        return AdapterSlots(cluster.adapters, cluster.adapters.loads_ps(served), cluster.adapters.firsts_ps(served))

    def give_adapters(self, cluster: Cluster, todo: Sequence[Request]) -> None:
        """Write down which adapter each request asks for, where workers have slots for them."""
        if cluster.adapters is not None and self.n_adapters:
            for request in todo:
                request.adapter = int(self.adapters[request.number])

    def of(self, request: Request) -> dict[str, float]:
        """Return the fields that an arrival and a pool have in common, by name."""
        requests, i = self.requests, request.number
        most = int(requests.max_tokens[i]) if requests.max_tokens is not None else 0
        within_s = float(requests.deadline_s[i]) if requests.deadline_s is not None else np.nan
        return {
            "expected_output_tokens": float(self.expected[i]) if self.expected is not None else np.nan,
            "output_spread_tokens": float(self.spread[i]) if self.spread is not None else np.nan,
            "max_tokens": float(most) if most else np.nan,
            "deadline_s": np.inf if np.isnan(within_s) else self.arrival_s[i] + within_s,
            "model": -1 if not self.model_of(request) or requests.model is None else int(requests.model[i]),
            "adapter": int(self.adapters[i]),
            "session": -1 if requests.session is None else int(requests.session[i]),
            "tier": -1 if requests.tier is None else int(requests.tier[i]),
        }

    def model_of(self, request: Request) -> str:
        """Return the name of a request's model; empty where it names none."""
        model = self.requests.model
        return "" if model is None else self.requests.model_names[model[request.number]]

    def serves(self, worker: int, request: Request) -> bool:
        """Say whether a worker has the request's model."""
        name = self.model_of(request)
        return self.models is None or not name or name in self.models[worker]


class Observer:
    """The router and its view of the workers."""

    def __init__(
        self,
        requests: RequestTrace,
        cluster: Cluster,
        domains: list[Domain],
        router: ArrivalRouter | PoolRouter,
        asked: Asked,
    ) -> None:
        self.domains = domains
        self.fates: ReadableChanges | None = None
        workers = self.workers
        n = len(workers)
        self.asked = asked
        self.reads_prefix = bool(getattr(router, "reads_prefix", False))
        self.reads_adapters = bool(getattr(router, "reads_adapters", False)) and cluster.adapters is not None
        self.reads_events = bool(getattr(router, "reads_events", False)) and workers[0].store is not None
        # What routers know of the workers' adapters and caches, as of the last refresh.
        self.known_adapters: list[set[int]] = [set() for _ in range(cluster.routers * n)]
        self.cluster, self.router = cluster, router
        self.block_tokens = requests.block_tokens
        # A row for each copy of the router: its state, and what it sent since the refresh.
        self.states = states_of(router, cluster)
        self.sent = np.zeros((cluster.routers, 2, n))
        self.parameters = np.asarray(router.parameters(), np.float64)
        self.refreshed_ps = self.decisions = self.refreshes = 0
        self.sent_ps: dict[tuple[int, int], int] = {}
        limits = [worker.cluster for worker in workers]
        unknown = np.full(n, np.nan)
        self.view = WorkersView(
            np.zeros(n), np.array([float(each.kv_capacity_tokens) for each in limits]), np.zeros(n, np.int64),
            np.array([each.max_running for each in limits], np.int64), np.zeros(n, np.int64), np.zeros(n),
            np.zeros(n, np.int64), np.zeros(n), np.zeros(n), np.zeros(n), np.arange(n), np.array(cluster.speeds()),
            np.ones(n, np.int64), np.ones(n, np.int64), np.zeros(n, np.int64), unknown.copy(), unknown.copy(),
        )  # fmt: skip
        self.active = self.active_now()

    @property
    def workers(self) -> list[Worker]:
        """All workers, by number."""
        return [worker for domain in self.domains for worker in domain.workers]

    def worker(self, number: int) -> Worker:
        """Return a worker by its number."""
        return self.workers[number]

    def copy_of(self, request: Request) -> int:
        """Return the copy of the router that a request is dealt to; a pool has but one."""
        return int(mix(np.uint64(request.number + 1))) % self.cluster.routers

    def refresh(self, now_ps: int) -> None:
        """Bring the view to what the workers are now."""
        self.refreshed_ps = now_ps
        self.refreshes += 1
        for w, worker in enumerate(self.workers):
            self.view.kv_tokens[w] = worker.held
            self.view.running[w] = worker.occupied
            self.view.waiting[w] = len(worker.waiting)
            self.view.waiting_tokens[w] = sum(request.prompt for request in worker.waiting)
            self.view.sent_requests[w] = 0
            self.view.sent_tokens[w] = 0
            if self.fates is not None:
                self.view.takes[w] = self.fates.is_up(w)
            if worker.store is not None:
                worker.store.known[worker.store.worker] = worker.store.there
                if self.reads_events:
                    self.view.cached_total_tokens[w] = worker.store.held_tokens + worker.store.kept_tokens
            if worker.slots is not None:
                for copy in range(self.cluster.routers):
                    wanted = (request.adapter for request in worker.wanting)
                    self.known_adapters[copy * len(self.workers) + w] = {*worker.slots.resident, *wanted}
        self.sent[:] = 0
        self.active = self.active_now()

    def send(self, request: Request, w: int, now_ps: int, copy: int = 0) -> None:
        """Send a request to a worker, and note that a copy of the router did."""
        request.worker = w
        self.worker(w).enqueue(request)
        self.view.sent_requests[w] += 1
        self.view.sent_tokens[w] += request.prompt
        self.sent[copy, :, w] += 1, request.prompt
        row = copy * len(self.workers) + w
        self.known_adapters[row].add(request.adapter)
        for block in request.blocks:
            self.sent_ps[row, block] = now_ps

    def choose(self, request: Request, now_ps: int) -> None:
        """Let a router that places requests at arrival decide."""
        self.view.age_s[:] = (now_ps - self.refreshed_ps) / PS_PER_S
        copy = self.copy_of(request)
        self.view.sent_requests[:], self.view.sent_tokens[:] = self.sent[copy]
        memory_ps = round(self.cluster.prefix_memory_s * PS_PER_S)
        for w in range(len(self.workers)):
            row = copy * len(self.workers) + w
            count = 0
            for block in request.blocks:
                if (row, block) not in self.sent_ps or now_ps - self.sent_ps[row, block] > memory_ps:
                    break
                count += 1
            if self.reads_prefix:
                self.view.matched_tokens[w] = min(count * self.block_tokens, request.prompt)
            self.view.serves[w] = self.asked.serves(w, request)
            if self.reads_adapters:
                self.view.adapter_loaded[w] = request.adapter >= 0 and request.adapter in self.known_adapters[row]
            if self.reads_events:
                self.view.cached_tokens[w] = self.cached_tokens(request, w)
        if self.fates is not None and not self.fates.somebody(request):
            self.let_wait(request, now_ps)
            return
        blocks = np.array(request.blocks if self.reads_prefix else [], np.int64)
        arrival = Arrival(now_ps / PS_PER_S, float(request.prompt), **self.asked.of(request), blocks=blocks)  # type: ignore[arg-type]
        self.decisions += 1
        worker = self.router.choose(self.view, arrival, self.states[copy], self.parameters)  # type: ignore[union-attr]
        if self.fates is not None:
            if not self.fates.place(request, int(worker), now_ps):
                self.let_wait(request, now_ps)
            return
        if 0 < self.cluster.max_waiting <= len(self.worker(worker).queue):
            return
        self.send(request, int(worker), now_ps, copy)

    def let_wait(self, request: Request, now_ps: int) -> None:
        """Let a request wait that no worker takes."""
        if self.fates is not None and self.fates.stranded(request, now_ps):
            self.fates.waiting.append(request)

    def cached_tokens(self, request: Request, w: int) -> int:
        """Return what of a prompt was in the cache of a worker at the refresh: the last token never counts."""
        store = self.workers[w].store
        return 0 if store is None else store.known_tokens(request.prompt, self.workers[w].units_of(request))

    def place(self, pool: list[Request], now_ps: int) -> None:
        """Let a router decide about its pool."""
        if self.fates is not None and not self.fates.look_over(pool, now_ps):
            return
        window = pool[: self.cluster.pool_window]
        view = self.view
        if not window or not (view.slots > view.running + view.waiting + view.sent_requests).any():
            return
        view.age_s[:] = (now_ps - self.refreshed_ps) / PS_PER_S
        asked = [self.asked.of(request) for request in window]
        columns: dict[str, NDArray[Any]] = {
            "prompt_tokens": np.array([float(r.prompt) for r in window]),
            "waited_s": np.array([(now_ps - r.arrival_ps) / PS_PER_S for r in window]),
            "waited_steps": np.array([r.seen for r in window], np.int64),
            "serves": np.array([[self.asked.serves(w, r) for w in range(len(self.workers))] for r in window], np.int8),
        }
        for name in asked[0]:
            kind = np.int64 if name in ("model", "adapter", "session", "tier") else np.float64
            columns[name] = np.array([each[name] for each in asked], kind)
        seen = PoolView(**columns)
        placed = np.full(len(window), -1, np.int64)
        for request in window:
            request.seen += 1
        self.decisions += 1
        self.router.place(view, seen, self.active, self.states[0], self.parameters, placed)  # type: ignore[union-attr]
        for request, w in zip(window, placed, strict=True):
            if w < 0:
                continue
            if self.fates is None:
                pool.remove(request)
                self.send(request, int(w), now_ps)
            elif self.fates.place(request, int(w), now_ps) or not self.fates.stranded(request, now_ps):
                pool.remove(request)

    def active_now(self) -> ActiveView:
        """Return the decoding requests, where the router reads them."""
        rows = [
            (w, float(request.prompt), float(request.generated), float(request.output - request.generated))
            for w, worker in enumerate(self.workers)
            for request in reversed(worker.running)
            if request.decodes
        ]
        if not getattr(self.router, "reads_active", False):
            rows = []
        columns = list(zip(*rows, strict=True)) or [()] * 4
        return ActiveView(np.array(columns[0], np.int64), *(np.array(column, np.float64) for column in columns[1:]))


def requests_of(requests: RequestTrace) -> list[Request]:
    """Return the requests of a trace as they come to a worker."""
    found = []
    for i in range(len(requests)):
        blocks: list[int] = []
        if requests.block_ids is not None and requests.block_offsets is not None:
            blocks = requests.block_ids[requests.block_offsets[i] : requests.block_offsets[i + 1]].tolist()
        arrival_ps = round(float(requests.arrival_s[i]) * PS_PER_S)
        found.append(Request(i, arrival_ps, int(requests.prompt_tokens[i]), int(requests.output_tokens[i]), blocks))
    return found


def stores_of(
    requests: RequestTrace, cluster: Cluster, todo: Sequence[Request]
) -> Callable[[int], UnitStore | None]:
    """Return what makes the store of a worker, by its number, and give requests their units.

    Parameters
    ----------
    requests : RequestTrace
    cluster : Cluster
    todo : sequence of Request
    """
    policy = cluster.reuse or (PrefixReuse() if cluster.prefix_caching and requests.block_ids is not None else None)
    if policy is None:
        return lambda number: None
    units, rule = units_of(policy, requests, cluster.workers), policy.rule()
    for request in todo:
        own = slice(units.offsets[request.number], units.offsets[request.number + 1])
        request.units = units.ids[own].tolist()
        request.names = [] if units.names is None else units.names[own].tolist()
    return UnitStore.of_workers(units, rule, cluster.workers)


def worker_time(
    done: list[Request], steps: list[Step], cluster: Cluster, fates: ReadableChanges | None = None
) -> dict[str, NDArray[np.int64]]:
    """Add up worker time in the counted window: from a tenth of the trace to its end, or all where nothing finishes."""
    first, last = done[0].arrival_ps, done[-1].arrival_ps
    start, end = first + round(WARM_UP * (last - first)), last
    if last == first or not any(start <= request.finish_ps <= end for request in done):
        start, end = first, max(max(request.finish_ps, request.arrival_ps) for request in done)
        end = end if fates is None else max(end, fates.ended_ps)
    counted = [step for step in steps if start <= step.start_ps <= end]
    found = {
        "prefill_steps": sum(step.prefill for step in steps),
        "lock_ps": cluster.workers * (end - start),
        "work_ps": sum(
            max(min(step.start_ps + own_ps, end) - max(step.start_ps, start), 0)
            for step in steps
            for own_ps in step.own_ps
        ),
        "mixed_ps": sum(
            cluster.group_size * max(min(step.end_ps, end) - max(step.start_ps, start), 0)
            for step in steps
            if step.prefill
        ),
        "imbalance_tokens": sum(len(step.context) * max(step.context) - sum(step.context) for step in counted),
        "counted_steps": len(counted),
    }
    columns = {name: np.array([value], np.int64) for name, value in found.items()}
    return columns if fates is None else {**columns, **fates.columns(start, end)}


def _columns(done: list[Request], steps: int) -> dict[str, NDArray[np.int64]]:
    names = ("first_ps", "finish_ps", "worker", "preemptions", "matched", "recomputed", "fetched")
    columns = {name: np.array([getattr(request, name) for request in done], np.int64) for name in names}
    return {**columns, "steps": np.array([steps], np.int64)}
