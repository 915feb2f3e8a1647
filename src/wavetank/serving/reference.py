"""The readable simulator: the same rules as :mod:`wavetank.serving.core`, in plain Python, one step at a time.

It exists to be read and to be compared with: the compiled simulator must agree with it to the picosecond.  It is about
a thousand times slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wavetank.platforms.step_time import step_ps
from wavetank.serving.cluster import Cluster
from wavetank.serving.interfaces import ActiveView, Arrival, ArrivalRouter, PoolRouter, PoolView, WorkersView

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

PS_PER_S = 1_000_000_000_000
POOL_TICK_PS = 1_000_000_000


@dataclass(eq=False)
class _Request:
    number: int
    arrival_ps: int
    prompt: int
    output: int
    blocks: list[int]
    generated: int = 0
    first_ps: int = -1
    finish_ps: int = -1
    worker: int = -1
    preemptions: int = 0
    matched: int = 0
    prefilled: int = 0  # tokens of the current admission that are in the cache or being computed
    decodes: bool = False
    seen: int = 0

    @property
    def resident(self) -> int:
        """KV tokens it holds: prompt and all generated tokens but the newest, whose keys the next step computes."""
        return self.prompt + self.generated - (1 if self.decodes else 0)


@dataclass(eq=False)
class _Worker:
    cluster: Cluster
    block_tokens: int
    queue: list[_Request] = field(default_factory=list)
    running: list[_Request] = field(default_factory=list)  # in order of admission
    ending: list[_Request] = field(default_factory=list)
    held_blocks: dict[int, int] = field(default_factory=dict)
    free_blocks: dict[int, None] = field(default_factory=dict)  # least recently used first
    private: int = 0

    def blocks_of(self, request: _Request) -> list[int]:
        return request.blocks[: request.prompt // self.block_tokens] if self.block_tokens else []

    @property
    def held(self) -> int:
        return self.private + self.block_tokens * len(self.held_blocks)

    @property
    def decoding(self) -> list[_Request]:
        return [request for request in self.running if request.decodes]

    @property
    def context(self) -> int:
        return sum(request.resident for request in self.decoding)

    def evict(self) -> None:
        while (
            self.free_blocks and self.held + self.block_tokens * len(self.free_blocks) > self.cluster.kv_capacity_tokens
        ):
            del self.free_blocks[next(iter(self.free_blocks))]

    def take(self, request: _Request, total: int) -> None:
        blocks = self.blocks_of(request)
        for block in blocks:
            self.free_blocks.pop(block, None)
            self.held_blocks[block] = self.held_blocks.get(block, 0) + 1
        self.private += total - self.block_tokens * len(blocks)
        self.evict()

    def give_back(self, request: _Request, total: int) -> None:
        blocks = self.blocks_of(request)
        self.private -= total - self.block_tokens * len(blocks)
        for block in reversed(blocks):
            self.held_blocks[block] -= 1
            if not self.held_blocks[block]:
                del self.held_blocks[block]
                self.free_blocks[block] = None

    def matched(self, request: _Request) -> int:
        if not self.block_tokens:
            return 0
        count = 0
        for block in self.blocks_of(request)[: (request.prompt - 1) // self.block_tokens]:
            if block not in self.held_blocks and block not in self.free_blocks:
                break
            count += 1
        return count * self.block_tokens

    def grows_by(self, request: _Request, total: int) -> int:
        return total - self.block_tokens * sum(block in self.held_blocks for block in self.blocks_of(request))

    def plan(self, prefilled_pool: bool) -> tuple[int, int]:
        """Fill the next step; return its prefill tokens and pairs."""
        cluster = self.cluster
        while self.held + len(self.decoding) > cluster.kv_capacity_tokens:
            self.preempt(self.running[-1])
        tokens = pairs = 0
        budget = cluster.max_batched_tokens - len(self.decoding)
        # At most one: the prompt that the last step's budget cut.
        for request in [r for r in self.running if not r.decodes]:
            done = request.prefilled
            chunk = min(request.prompt + request.generated - done, budget)
            tokens, pairs, budget = tokens + chunk, pairs + chunk * done + chunk * (chunk + 1) // 2, budget - chunk
            self.computed(request, chunk)
        limit_beside_others = math.floor(cluster.kv_capacity_tokens * (1 - cluster.kv_watermark))
        while budget > 0 and self.queue and len(self.running) < cluster.max_running:
            request = self.queue[0]
            ready = prefilled_pool and request.preemptions == 0
            total = request.prompt + request.generated - (1 if ready else 0)
            limit = limit_beside_others if self.running else cluster.kv_capacity_tokens
            grown = self.grows_by(request, total) + (1 if ready else 0)
            if self.held + len(self.decoding) + grown > limit:
                break
            self.queue.pop(0)
            request.matched = self.matched(request)
            self.take(request, total)
            self.running.append(request)
            if ready:
                request.decodes = True
                budget -= 1
                continue
            request.prefilled = done = request.matched
            chunk = min(total - done, budget)
            tokens, pairs, budget = tokens + chunk, pairs + chunk * done + chunk * (chunk + 1) // 2, budget - chunk
            self.computed(request, chunk)
        return tokens, pairs

    def computed(self, request: _Request, chunk: int) -> None:
        request.prefilled += chunk
        if request.prefilled == request.prompt + request.generated:
            self.ending.append(request)

    def preempt(self, request: _Request) -> None:
        self.running.remove(request)
        self.give_back(request, request.resident)
        request.decodes = False
        request.preemptions += 1
        self.queue.insert(0, request)

    def finish_step(self, now_ps: int) -> None:
        for request in sorted(self.decoding, key=lambda request: request.number):
            request.generated += 1
            self.private += 1
            if request.generated == request.output:
                self.complete(request, now_ps)
        # Prompts that ended together complete in the order in which the compiled core chains them: last one first.
        for request in reversed(self.ending):
            request.generated += 1
            request.decodes = True
            if request.first_ps < 0:
                request.first_ps = now_ps
            if request.generated == request.output:
                self.complete(request, now_ps)
        self.ending.clear()
        self.evict()

    def complete(self, request: _Request, now_ps: int) -> None:
        request.finish_ps = now_ps
        self.running.remove(request)
        self.give_back(request, request.resident)


@dataclass(eq=False)
class _Domain:
    workers: list[_Worker]
    ends_ps: int = -1  # of the step in progress; -1 at a boundary
    retry_ps: int = -1  # when a stuck router is asked again
    steps: int = 0

    @property
    def has_work(self) -> bool:
        return any(worker.queue or worker.running for worker in self.workers)


def simulate_slowly(
    requests: RequestTrace,
    cluster: Cluster,
    router: ArrivalRouter | PoolRouter,
    *,
    expected_output_tokens: NDArray[np.float64] | None = None,
    first_ps: NDArray[np.int64] | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Serve a trace step by step.

    Parameters
    ----------
    requests, cluster, router, expected_output_tokens
        As for :func:`wavetank.serving.simulate`.
    first_ps : int64 array (requests,), optional
        Given for a decode pool: when each request's first token came.

    Returns
    -------
    dict
        ``first_ps``, ``finish_ps``, ``worker``, ``preemptions`` and ``matched``, one int64 a request, in order of
        arrival; ``steps``, shape (1,): the steps of all workers or lockstep groups.
    """
    expected = np.full(len(requests), np.nan) if expected_output_tokens is None else expected_output_tokens
    todo = _requests(requests, first_ps)
    caching = cluster.prefix_caching and requests.block_ids is not None and first_ps is None
    workers = [_Worker(cluster, requests.block_tokens if caching else 0) for _ in range(cluster.workers)]
    size = cluster.group_size
    domains = [_Domain(workers[i : i + size]) for i in range(0, len(workers), size)]
    eye = _Eye(requests, cluster, workers, router)
    refresh_ps = round(cluster.refresh_s * PS_PER_S)
    tick_ps = refresh_ps or POOL_TICK_PS
    pools = isinstance(router, PoolRouter)
    pool: list[_Request] = []
    arrived = 0
    eye.refresh(0)
    while True:
        times = [domain.ends_ps for domain in domains if domain.ends_ps >= 0]
        times += [domain.retry_ps for domain in domains if domain.retry_ps >= 0]
        if arrived < len(todo):
            times.append(todo[arrived].arrival_ps)
            if not pools and refresh_ps:
                # Nobody looks before the next arrival: only the last refresh until then matters.
                last = todo[arrived].arrival_ps // refresh_ps * refresh_ps
                if last > eye.refreshed_ps:
                    times.append(last)
        if pools and len(domains) > 1:
            if pool:
                times.append((eye.refreshed_ps // tick_ps + 1) * tick_ps)
            elif refresh_ps and arrived < len(todo):
                last = todo[arrived].arrival_ps // refresh_ps * refresh_ps
                if last > eye.refreshed_ps:
                    times.append(last)
        if not times:
            return _columns(todo, sum(domain.steps for domain in domains))
        now = min(times)
        for domain in domains:
            if domain.ends_ps == now:
                for worker in domain.workers:
                    worker.finish_step(now)
                domain.ends_ps = -1
        ticks = refresh_ps and now % refresh_ps == 0 and now > eye.refreshed_ps
        if ticks and not (pools and len(domains) == 1):
            eye.refresh(now)
        if pools and len(domains) > 1 and pool and now % tick_ps == 0:
            if not refresh_ps:
                eye.refresh(now)
            if not (arrived < len(todo) and todo[arrived].arrival_ps == now):
                eye.place(pool, now, expected)
        while arrived < len(todo) and todo[arrived].arrival_ps == now:
            request = todo[arrived]
            arrived += 1
            if pools:
                pool.append(request)
                if len(domains) > 1:
                    if not refresh_ps:
                        eye.refresh(now)
                    eye.place(pool, now, expected)
                continue
            if not refresh_ps:
                eye.refresh(now)
            eye.choose(request, now, expected)
        for domain in domains:
            if domain.ends_ps >= 0 or (domain.retry_ps >= 0 and domain.retry_ps > now):
                continue
            domain.retry_ps = -1
            if pools and len(domains) == 1 and (domain.has_work or pool):
                if not refresh_ps or now >= eye.refreshed_ps + refresh_ps:
                    eye.refresh(now)
                eye.place(pool, now, expected)
                if pool and not domain.has_work:
                    domain.retry_ps = now + max(refresh_ps, POOL_TICK_PS)
            if domain.has_work:
                domain.steps += 1
                domain.ends_ps = now + _step(domain, cluster, first_ps is not None)


def _step(domain: _Domain, cluster: Cluster, prefilled_pool: bool) -> int:
    """Start a step and return how long it takes."""
    slowest = 0
    for worker in domain.workers:
        tokens, pairs = worker.plan(prefilled_pool)
        decoding = len(worker.decoding)
        if decoding or tokens:
            slowest = max(slowest, step_ps(cluster.step_time, decoding, worker.context, tokens, pairs))
    return slowest + round(cluster.sync_s * PS_PER_S)


class _Eye:
    """What the router sees, and the router."""

    def __init__(
        self, requests: RequestTrace, cluster: Cluster, workers: list[_Worker], router: ArrivalRouter | PoolRouter
    ) -> None:
        n = len(workers)
        self.cluster, self.workers, self.router = cluster, workers, router
        self.block_tokens = requests.block_tokens
        self.state = np.array(router.initial_state(n), dtype=np.float64)
        self.parameters = np.asarray(router.parameters(), np.float64)
        self.refreshed_ps = 0
        self.sent_ps: dict[tuple[int, int], int] = {}
        self.view = WorkersView(
            np.zeros(n), np.full(n, float(cluster.kv_capacity_tokens)), np.zeros(n, np.int64),
            np.full(n, cluster.max_running, np.int64), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64),
            np.zeros(n), np.zeros(n), np.zeros(n),
        )  # fmt: skip
        self.active = self.active_now()

    def refresh(self, now_ps: int) -> None:
        self.refreshed_ps = now_ps
        for w, worker in enumerate(self.workers):
            self.view.kv_tokens[w] = worker.held
            self.view.running[w] = len(worker.running)
            self.view.waiting[w] = len(worker.queue)
            self.view.waiting_tokens[w] = sum(request.prompt for request in worker.queue)
            self.view.sent_requests[w] = 0
            self.view.sent_tokens[w] = 0
        self.active = self.active_now()

    def send(self, request: _Request, w: int, now_ps: int) -> None:
        request.worker = w
        self.workers[w].queue.append(request)
        self.view.sent_requests[w] += 1
        self.view.sent_tokens[w] += request.prompt
        for block in request.blocks:
            self.sent_ps[w, block] = now_ps

    def choose(self, request: _Request, now_ps: int, expected: NDArray[np.float64]) -> None:
        self.view.age_s[:] = (now_ps - self.refreshed_ps) / PS_PER_S
        memory_ps = round(self.cluster.prefix_memory_s * PS_PER_S)
        for w in range(len(self.workers)):
            count = 0
            for block in request.blocks:
                if (w, block) not in self.sent_ps or now_ps - self.sent_ps[w, block] > memory_ps:
                    break
                count += 1
            self.view.matched_tokens[w] = min(count * self.block_tokens, request.prompt)
        arrival = Arrival(now_ps / PS_PER_S, float(request.prompt), float(expected[request.number]))
        worker = self.router.choose(self.view, arrival, self.state, self.parameters)  # type: ignore[union-attr]
        self.send(request, int(worker), now_ps)

    def place(self, pool: list[_Request], now_ps: int, expected: NDArray[np.float64]) -> None:
        window = pool[: self.cluster.pool_window]
        view = self.view
        if not window or not (view.slots > view.running + view.waiting + view.sent_requests).any():
            return
        view.age_s[:] = (now_ps - self.refreshed_ps) / PS_PER_S
        seen = PoolView(
            np.array([float(r.prompt) for r in window]),
            np.array([(now_ps - r.arrival_ps) / PS_PER_S for r in window]),
            np.array([r.seen for r in window], np.int64),
            np.array([float(expected[r.number]) for r in window]),
        )
        placed = np.full(len(window), -1, np.int64)
        for request in window:
            request.seen += 1
        self.router.place(view, seen, self.active, self.state, self.parameters, placed)  # type: ignore[union-attr]
        for request, w in zip(window, placed, strict=True):
            if w >= 0:
                pool.remove(request)
                self.send(request, int(w), now_ps)

    def active_now(self) -> ActiveView:
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


def _requests(requests: RequestTrace, first_ps: NDArray[np.int64] | None) -> list[_Request]:
    found = []
    for i in range(len(requests)):
        blocks: list[int] = []
        if requests.block_ids is not None and requests.block_offsets is not None:
            blocks = requests.block_ids[requests.block_offsets[i] : requests.block_offsets[i + 1]].tolist()
        request = _Request(
            i,
            round(float(requests.arrival_s[i]) * PS_PER_S),
            int(requests.prompt_tokens[i]),
            int(requests.output_tokens[i]),
            blocks,
        )
        if first_ps is not None:
            request.generated, request.first_ps = 1, int(first_ps[i])
        found.append(request)
    return found


def _columns(done: list[_Request], steps: int) -> dict[str, NDArray[np.int64]]:
    names = ("first_ps", "finish_ps", "worker", "preemptions", "matched")
    columns = {name: np.array([getattr(request, name) for request in done], np.int64) for name in names}
    return {**columns, "steps": np.array([steps], np.int64)}
