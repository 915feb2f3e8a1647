"""The readable simulator of prefill and decode workers, step by step, in plain Python.

The rules are those of :mod:`wavetank.serving.simulator.split_core`, which must agree with it to the picosecond.
Workers, routers and their views are those of :mod:`wavetank.serving.simulator.reference`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.platforms.step_time import PS_PER_S
from wavetank.serving.routing.interface import ArrivalRouter, PoolRouter
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.reference import (
    RETRY_PS,
    Asked,
    Domain,
    Observer,
    Step,
    requests_of,
    worker_time,
)
from wavetank.serving.simulator.worker import Request, Worker, step_of

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace


@dataclass(eq=False)
class PrefillWorker(Worker):
    """A worker that computes prompts, and keeps their KV caches until these have been handed over.

    Attributes
    ----------
    kept : list of Request
        Those whose prompt is done and whose KV cache is here.
    ended : list of Request
        Those of them whose prompt ended with the last step.
    """

    kept: list[Request] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)

    def finish_step(self, now_ps: int) -> None:
        """Give every request whose prompt ended its first token."""
        for request in reversed(self.ending):
            request.generated, request.first_ps, request.decodes = 1, now_ps, True
            if request.output == 1:
                self.complete(request, now_ps)
                continue
            self.running.remove(request)
            if self.slots:
                self.slots.give_back(request.adapter)
            self.kept.append(request)
            self.ended.append(request)
        self.ending.clear()
        self.evict()

    def handed_over(self, request: Request) -> None:
        """Let a KV cache go that has arrived elsewhere."""
        self.kept.remove(request)
        self.give_back(request, request.prompt)


@dataclass(eq=False)
class DecodeWorker(Worker):
    """A worker that generates from KV caches that prefill workers computed.

    Attributes
    ----------
    line : list of Request
        Those that were sent here and wait for room.
    coming : list of Request
        Those whose KV cache is on its way: place and tokens are theirs.
    landed : list of Request
        Those whose KV cache has arrived and who wait for the next step.
    looks : bool
        Whether somebody came into the line, or a step ended, at this moment.
    """

    line: list[Request] = field(default_factory=list)
    coming: list[Request] = field(default_factory=list)
    landed: list[Request] = field(default_factory=list)
    looks: bool = False

    def enqueue(self, request: Request) -> None:
        """Put a request at the end of the line."""
        self.line.append(request)
        self.looks = True

    def finish_step(self, now_ps: int) -> None:
        """Give every request its next token."""
        super().finish_step(now_ps)
        self.looks = True

    @property
    def reserved(self) -> list[Request]:
        """Requests with place and tokens that do not run yet."""
        return self.coming + self.landed

    @property
    def held(self) -> int:
        """KV tokens of the batch, and those reserved."""
        return self.private + sum(request.prompt for request in self.reserved)

    @property
    def occupied(self) -> int:
        """Places in the batch that are taken or reserved."""
        return len(self.running) + len(self.reserved)

    @property
    def waiting(self) -> list[Request]:
        """Preempted requests, and those that wait for room."""
        return self.queue + self.line

    @property
    def wanting(self) -> list[Request]:
        """Requests that do not use their adapter yet."""
        return self.waiting + self.reserved

    def has_room(self, request: Request) -> bool:
        """Say whether a transfer may start."""
        cluster = self.cluster
        if self.occupied >= cluster.max_running or self.queue:
            return False
        capacity = cluster.kv_capacity_tokens
        limit = math.floor(capacity * (1 - cluster.kv_watermark)) if self.occupied else capacity
        return self.held + self.occupied + request.prompt + 1 <= limit

    def join(self, decided: bool) -> None:
        """Let those whose KV cache has arrived into the batch, unless it was decided before that, or lacks a slot."""
        for request in list(self.landed):
            if (decided and not request.known) or (self.slots and not self.slots.may_run(request.adapter)):
                continue
            self.landed.remove(request)
            self.running.append(request)
            self.private += request.prompt
            request.decodes = True
            if self.slots:
                self.slots.take(request.adapter)


@dataclass(eq=False)
class _Transfer:
    lands_ps: int
    request: Request  # of the decode worker
    sender: PrefillWorker


class _Split:
    """Both pools and what is between them."""

    def __init__(
        self,
        requests: RequestTrace,
        cluster: DisaggregatedCluster,
        router: ArrivalRouter,
        decode_router: ArrivalRouter | PoolRouter,
        expected: NDArray[np.float64] | None,
        spread: NDArray[np.float64] | None,
    ) -> None:
        self.cluster = cluster
        self.wire_ps = [
            round(int(prompt) * cluster.kv_bytes_per_token / cluster.link_bytes_per_s * PS_PER_S)
            for prompt in requests.prompt_tokens
        ]
        caching = cluster.prefill.prefix_caching and requests.block_ids is not None
        size = requests.block_tokens if caching else 0
        self.prefill = [PrefillWorker(part, size) for part in cluster.prefill.each_worker()]
        self.decode = [DecodeWorker(part, 0) for part in cluster.decode.each_worker()]
        # Of every request what it is in either pool.
        self.first, self.later = requests_of(requests), requests_of(requests)
        for request in self.later:
            request.blocks, request.generated = [], 1
        pools: tuple[tuple[Cluster, Any, Any, list[Request]], ...] = (
            (cluster.prefill, self.prefill, router, self.first),
            (cluster.decode, self.decode, decode_router, self.later),
        )
        self.observers: list[Observer] = []
        self.domains: list[list[Domain]] = []
        for pool, workers, its_router, todo in pools:
            asked = Asked(requests, pool, expected, spread)
            asked.give_adapters(pool, todo)
            for worker in workers:
                worker.slots = asked.slots_in(pool)
            size = pool.group_size
            domains = [Domain(workers[i : i + size]) for i in range(0, len(workers), size)]
            self.domains.append(domains)
            self.observers.append(Observer(requests, pool, domains, its_router, asked))
        self.pooled = isinstance(decode_router, PoolRouter)
        self.pool: list[Request] = []
        self.flying: list[_Transfer] = []
        self.link_free_ps = [0] * len(self.prefill)
        self.began_ps = [-1] * len(self.first)
        self.landed_ps = [-1] * len(self.first)

    @property
    def ticks_ps(self) -> tuple[int, int]:
        """Times between two refreshes of the views; 0: always fresh."""
        return tuple(round(each.cluster.refresh_s * PS_PER_S) for each in self.observers)  # type: ignore[return-value]

    def refresh(self, until_ps: int) -> None:
        """Bring both views to their last refresh up to a moment."""
        for observer, tick_ps in zip(self.observers, self.ticks_ps, strict=True):
            if tick_ps and until_ps // tick_ps * tick_ps > observer.refreshed_ps:
                observer.refresh(until_ps // tick_ps * tick_ps)

    def look(self, which: int, now_ps: int) -> None:
        """Refresh a view that is always fresh."""
        if not self.ticks_ps[which]:
            self.observers[which].refresh(now_ps)

    def land(self, now_ps: int) -> set[int]:
        """Let KV caches that arrive leave their prefill workers; return the decode domains that they reach."""
        reached = set()
        for each in sorted(self.flying, key=lambda each: (each.lands_ps, each.request.number)):
            if each.lands_ps == now_ps:
                self.flying.remove(each)
                each.sender.handed_over(self.first[each.request.number])
                worker = self.decode[each.request.worker]
                worker.coming.remove(each.request)
                worker.landed.append(each.request)
                worker.came += 1
                reached.add(each.request.worker // self.cluster.decode.group_size)
        return reached

    def finish(self, now_ps: int) -> tuple[set[int], bool]:
        """End steps; return the decode domains whose step ended, and whether a request completed there."""
        ended = set()
        completed = False
        for which, domains in enumerate(self.domains):
            for number, domain in enumerate(domains):
                if domain.ends_ps != now_ps:
                    continue
                domain.ends_ps = -1
                for worker in domain.workers:
                    before = len(worker.running)
                    worker.finish_step(now_ps)
                    completed = completed or (which == 1 and len(worker.running) < before)
                if which == 1:
                    ended.add(number)
        return ended, completed

    def prompts_that_ended(self) -> list[Request]:
        """Return, in order of arrival, the requests whose prompt has just ended, as decode workers see them."""
        found = [request for worker in self.prefill for request in worker.ended]
        for worker in self.prefill:
            worker.ended.clear()
        for request in found:
            self.later[request.number].arrival_ps = self.later[request.number].first_ps = request.first_ps
        return [self.later[number] for number in sorted(request.number for request in found)]

    def begin_transfers(self, now_ps: int) -> None:
        """Start the transfers for which decode workers have room."""
        for worker in self.decode:
            while worker.looks and worker.line and worker.has_room(worker.line[0]):
                request = worker.line.pop(0)
                worker.coming.append(request)
                sender = self.first[request.number].worker
                begins_ps = max(self.link_free_ps[sender], now_ps)
                self.link_free_ps[sender] = begins_ps + self.wire_ps[request.number]
                lands_ps = self.link_free_ps[sender] + round(self.cluster.transfer_latency_s * PS_PER_S)
                self.began_ps[request.number], self.landed_ps[request.number] = now_ps, lands_ps
                self.flying.append(_Transfer(lands_ps, request, self.prefill[sender]))
            worker.looks = False

    def begin_steps(self, now_ps: int) -> None:
        """Begin the step of every domain that is at a boundary and can do something."""
        for domains, cluster in zip(self.domains, (self.cluster.prefill, self.cluster.decode), strict=True):
            for domain in domains:
                if domain.ends_ps < 0:
                    self._begin(domain, cluster, now_ps)

    def _begin(self, domain: Domain, cluster: Cluster, now_ps: int) -> None:
        while domain.has_work or any(w.landed for w in domain.workers if isinstance(w, DecodeWorker)):
            lasts_ps = step_of(domain.workers, cluster)
            landed = [r for worker in domain.workers if isinstance(worker, DecodeWorker) for r in worker.landed]
            for request in landed:
                request.known = True
            if any(worker.own_ps for worker in domain.workers):
                domain.ends_ps = now_ps + lasts_ps
                own_ps, context = zip(*((worker.own_ps, worker.context) for worker in domain.workers), strict=True)
                prefill = any(worker.prefill_tokens for worker in domain.workers)
                domain.steps.append(Step(now_ps, domain.ends_ps, list(own_ps), list(context), prefill))
                return
            if not landed:
                # What waits has no room beside KV caches that are handed over.
                return

    def moments(self, arrived: int) -> Iterator[int]:
        """Yield when something happens by itself: steps end, caches arrive, a request arrives."""
        yield from (domain.ends_ps for domains in self.domains for domain in domains if domain.ends_ps >= 0)
        yield from (each.lands_ps for each in self.flying)
        yield from (request.arrival_ps for request in self.first[arrived : arrived + 1])


def simulate_split_slowly(
    requests: RequestTrace,
    cluster: DisaggregatedCluster,
    router: ArrivalRouter,
    decode_router: ArrivalRouter | PoolRouter,
    *,
    expected_output_tokens: NDArray[np.float64] | None = None,
    output_spread_tokens: NDArray[np.float64] | None = None,
    watch: Callable[[Sequence[PrefillWorker], Sequence[DecodeWorker]], None] | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Serve a trace step by step on prefill and decode workers.

    Parameters
    ----------
    requests, cluster, router, decode_router, expected_output_tokens, output_spread_tokens
        As for :func:`wavetank.serving.simulate`.
    watch : callable, optional
        Called with the prefill and the decode workers after everything that happens at one moment.

    Returns
    -------
    dict
        As :func:`wavetank.serving.simulator.reference.simulate_slowly`, with worker time of the decode workers, and
        ``began_ps`` and ``landed_ps``: when the room of each request was reserved and when its KV cache arrived, -1
        for requests of one token.
    """
    requests = requests.with_blocks_apart()
    both = _Split(requests, cluster, router, decode_router, expected_output_tokens, output_spread_tokens)
    prefill, decode = both.observers
    arrived, now = 0, 0
    single = len(both.domains[1]) == 1
    tick_ps = both.ticks_ps[1]
    prefill.refresh(0)
    decode.refresh(0)
    while True:
        times = list(both.moments(arrived))
        retries = bool(both.pool) and not times
        if both.pool and not single and tick_ps:
            times.append((decode.refreshed_ps // tick_ps + 1) * tick_ps)
        elif retries:
            times.append(now + max(tick_ps, RETRY_PS))
        if not times:
            return _results(both)
        now = min(times)
        both.refresh(now - 1)
        stirred = both.land(now)
        ended_domains, completed = both.finish(now)
        stirred |= ended_domains
        both.refresh(now)
        while arrived < len(both.first) and both.first[arrived].arrival_ps == now:
            both.look(0, now)
            prefill.choose(both.first[arrived], now)
            arrived += 1
        ended = both.prompts_that_ended()
        for request in ended:
            if both.pooled:
                both.pool.append(request)
            else:
                both.look(1, now)
                decode.choose(request, now)
        if single:
            at_boundary = both.domains[1][0].ends_ps < 0
            asks = at_boundary and bool(stirred or ended or retries)
        else:
            asks = bool(ended or (now % tick_ps == 0 if tick_ps else completed or retries))
        if both.pool and asks:
            both.look(1, now)
            decode.place(both.pool, now)
        both.begin_transfers(now)
        both.land(now)
        both.begin_steps(now)
        if watch is not None:
            watch(both.prefill, both.decode)


def _results(both: _Split) -> dict[str, NDArray[np.int64]]:
    prefill_workers = both.cluster.prefill.workers
    columns: dict[str, list[int]] = {
        name: [] for name in ("first_ps", "finish_ps", "worker", "preemptions", "matched", "began_ps", "landed_ps")
    }
    for first, later in zip(both.first, both.later, strict=True):
        one = first.output == 1
        columns["first_ps"].append(first.first_ps)
        columns["finish_ps"].append(first.finish_ps if one else later.finish_ps)
        columns["worker"].append(first.worker if one else prefill_workers + later.worker)
        columns["preemptions"].append(later.preemptions)
        columns["matched"].append(first.matched)
        columns["began_ps"].append(both.began_ps[first.number])
        columns["landed_ps"].append(both.landed_ps[first.number])
    done = [first if first.output == 1 else later for first, later in zip(both.first, both.later, strict=True)]
    for request, first in zip(done, both.first, strict=True):
        request.arrival_ps = first.arrival_ps
    steps = [[step for domain in domains for step in domain.steps] for domains in both.domains]
    time = worker_time(done, steps[1], both.cluster.decode)
    time["prefill_steps"] += sum(step.prefill for step in steps[0])
    totals = {
        "steps": len(steps[0]) + len(steps[1]),
        "decisions": sum(observer.decisions for observer in both.observers),
        "adapter_loads": sum(w.slots.loaded for w in (*both.prefill, *both.decode) if w.slots),
    }
    return {
        **{name: np.array(values, np.int64) for name, values in columns.items()},
        **{name: np.array([value], np.int64) for name, value in totals.items()},
        **time,
    }
