"""One worker, step by step: what enters the batch, what is computed, what leaves; the rules in plain Python.

They are vLLM's: decodes first, then prompts in chunks up to a token budget; admission in order of arrival while the KV
cache has room; the youngest request is preempted when it has none, and computed again later.  The readable simulator
drives workers through simulated time, the stand-in model server one through real time.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023;
A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024 (chunks).

Differs from the sources:

1. The KV cache is counted in tokens; only what is kept for reuse knows blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from wavetank.platforms.step_time import PS_PER_S, step_ps
from wavetank.serving.simulator.adapters import AdapterSlots, overhead_ps, share_with_a_slot
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reuse import MOST_FETCH_PS
from wavetank.serving.simulator.unit_store import UnitStore


@dataclass(eq=False)
class Request:
    """A request on its way through a worker.

    Attributes
    ----------
    number : int
        Its place in the order of arrival; tokens of one step come out in this order.
    arrival_ps, first_ps, finish_ps : int
        When it arrived and when its first and last token came, in ps; -1 before that.
    prompt, output, generated : int
        Tokens of its prompt, tokens it is to generate, tokens it has.
    blocks : list of int
        Identities of the prompt's prefix blocks; equal ids mean equal content up to and including that block.
    units, names : list of int
        What its prompt consists of for the workers' caches, and the names of these parts.
    worker : int
        Where it was sent; -1 before that.
    preemptions : int
        How often it gave up its KV cache.
    matched, recomputed, fetched : int
        Prompt tokens that the worker's cache had at the last admission and that were reused as they are; that were
        found and computed again; that came from other workers.
    prefilled : int
        Tokens of the current admission that are in the cache or being computed.
    decodes : bool
        Whether its prompt is done.
    seen : int
        Decisions of a pool router that passed it over.
    adapter : int
        The LoRA adapter it asks for; -1 for none.
    known : bool
        Whether it waited when the next step was decided, where that happens a step ahead.
    """

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
    prefilled: int = 0
    decodes: bool = False
    seen: int = 0
    adapter: int = -1
    known: bool = False
    units: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    recomputed: int = 0
    fetched: int = 0

    @property
    def resident(self) -> int:
        """KV tokens it holds: prompt and all generated tokens but the newest, whose keys the next step computes."""
        return self.prompt + self.generated - (1 if self.decodes else 0)


@dataclass(eq=False)
class Worker:
    """A replica: its queue, its batch and its KV cache.

    Attributes
    ----------
    cluster : Cluster
        Whose limits and step time it has; of a cluster of unequal workers, its part of equal ones.
    block_tokens : int
        Tokens of a prefix block; 0 without prefix caching, or with a store of something else.
    store : UnitStore, optional
        What it keeps of prompts for reuse; that of prefix blocks where it has ``block_tokens``.
    queue : list of Request
        Waiting, the next one first.
    running : list of Request
        The batch, in order of admission.
    ending : list of Request
        Those of the batch whose prompt ends with the step in progress.
    private : int
        KV tokens held outside the units of its store.
    fetch_ps : int
        What the step in progress waits for, from other workers.
    own_ps : int
        What its part of the step in progress takes alone; 0 without anything to do.
    prefill_tokens : int
        Prompt tokens that it computes in the step in progress.
    slots : AdapterSlots, optional
        Its LoRA adapters, where requests ask for some.
    came : int
        Requests that came since the step before.
    room : int
        Slots that were free when the next step was decided, where that happens a step ahead.
    """

    cluster: Cluster
    block_tokens: int = 0
    store: UnitStore | None = None
    queue: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    ending: list[Request] = field(default_factory=list)
    private: int = 0
    fetch_ps: int = 0
    own_ps: int = 0
    prefill_tokens: int = 0
    slots: AdapterSlots | None = None
    came: int = 0
    room: int = 0

    def __post_init__(self) -> None:
        if self.block_tokens:
            self.store = UnitStore.of_blocks(self.block_tokens)

    def units_of(self, request: Request) -> list[int]:
        """Return what the prompt of a request consists of for the store: full prefix blocks, or its units."""
        return request.blocks[: request.prompt // self.block_tokens] if self.block_tokens else request.units

    def enqueue(self, request: Request) -> None:
        """Put a request that has come at the end of the queue."""
        self.queue.append(request)
        self.came += 1

    @property
    def held(self) -> int:
        """KV tokens held by admitted requests."""
        return self.private + (self.store.held_tokens if self.store else 0)

    @property
    def occupied(self) -> int:
        """Places in the batch that are taken."""
        return len(self.running)

    @property
    def waiting(self) -> list[Request]:
        """Requests that were sent here and have no place in the batch."""
        return self.queue

    @property
    def wanting(self) -> list[Request]:
        """Requests that were sent here and do not use their adapter yet."""
        return self.waiting

    @property
    def decoding(self) -> list[Request]:
        """Requests of the batch that are past their prompt."""
        return [request for request in self.running if request.decodes]

    @property
    def context(self) -> int:
        """Tokens that the decoding requests read in a step."""
        return sum(request.resident for request in self.decoding)

    def evict(self) -> None:
        """Drop what is kept for reuse until everything fits."""
        if self.store:
            self.store.evict(self.cluster.kv_capacity_tokens - self.held)

    def take(self, request: Request, total: int) -> None:
        """Give a request KV cache for ``total`` tokens."""
        self.private += total - (self.store.hold(self.units_of(request), request.names) if self.store else 0)
        self.evict()

    def give_back(self, request: Request, total: int) -> None:
        """Take a request's KV cache of ``total`` tokens back; what it has of the store's stays for reuse."""
        self.private -= total - (self.store.release(self.units_of(request)) if self.store else 0)

    def matched(self, request: Request) -> int:
        """Find what need not be computed of the prompt, and return its tokens; the last one always is computed."""
        if not self.store:
            return 0
        found, fetched = self.store.match(request.prompt, self.units_of(request), request.names)
        request.recomputed, request.fetched = found.recomputed, fetched
        if fetched:
            took_ps = self.store.rule.fetch_latency_ps + fetched * self.store.rule.fetch_token_ps
            self.fetch_ps = min(self.fetch_ps + took_ps, MOST_FETCH_PS)
        return found.reused

    def grows_by(self, request: Request, total: int) -> int:
        """Return by how much ``held`` would grow."""
        return total - (self.store.shared_tokens(self.units_of(request)) if self.store else 0)

    def plan(self, decided: bool = False) -> tuple[int, int]:
        """Fill the next step; return its prefill tokens and pairs.

        Parameters
        ----------
        decided : bool
            Whether the step before it ran when this one was decided: then only who waited at that time comes in, into
            slots that were free.
        """
        cluster = self.cluster
        if self.slots:
            self.slots.loading_ps = 0
        self.join(decided)
        while self.held + len(self.decoding) > cluster.kv_capacity_tokens:
            self.preempt(self.running[-1])
        tokens = pairs = self.fetch_ps = 0
        budget = cluster.max_batched_tokens - len(self.decoding)
        # At most one: the prompt that the last step's budget cut.
        for request in [r for r in self.running if not r.decodes]:
            done = request.prefilled
            chunk = min(request.prompt + request.generated - done, budget)
            tokens, pairs, budget = tokens + chunk, pairs + chunk * done + chunk * (chunk + 1) // 2, budget - chunk
            self.computed(request, chunk)
        limit_beside_others = math.floor(cluster.kv_capacity_tokens * (1 - cluster.kv_watermark))
        while budget > 0 and self.queue and self.occupied < cluster.max_running:
            # Without adapters the first one; with them, those whose adapter has no slot are passed over.
            may_run = [r for r in self.queue if not self.slots or self.slots.may_run(r.adapter)]
            if decided:
                may_run = [r for r in may_run if r.known and self.room > 0]
            if not may_run:
                break
            request = may_run[0]
            total = request.prompt + request.generated
            limit = limit_beside_others if self.occupied else cluster.kv_capacity_tokens
            if self.held + len(self.decoding) + self.grows_by(request, total) > limit:
                break
            self.queue.remove(request)
            self.room -= 1
            request.matched = self.matched(request)
            self.take(request, total)
            self.running.append(request)
            if self.slots:
                self.slots.take(request.adapter)
            request.prefilled = done = request.matched
            chunk = min(total - done, budget)
            tokens, pairs, budget = tokens + chunk, pairs + chunk * done + chunk * (chunk + 1) // 2, budget - chunk
            self.computed(request, chunk)
        self.room = cluster.max_running - self.occupied
        for request in self.queue:
            request.known = True
        return tokens, pairs

    def join(self, decided: bool) -> None:
        """Let requests into the batch whose prompt was computed elsewhere; here there are none."""

    def computed(self, request: Request, chunk: int) -> None:
        """Count a chunk of a prompt as part of the step in progress."""
        request.prefilled += chunk
        if request.prefilled == request.prompt + request.generated:
            self.ending.append(request)

    def leave(self, request: Request) -> None:
        """Take a request out of the batch, with its KV cache and its adapter."""
        self.running.remove(request)
        self.give_back(request, request.resident)
        if self.slots:
            self.slots.give_back(request.adapter)

    def preempt(self, request: Request) -> None:
        """Put a request back to the head of the queue, without its KV cache."""
        self.leave(request)
        request.decodes = False
        request.preemptions += 1
        request.known = True
        self.queue.insert(0, request)

    def finish_step(self, now_ps: int) -> None:
        """Give every decoding request, and every one whose prompt ended, its next token."""
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

    def complete(self, request: Request, now_ps: int) -> None:
        """Let a request that has all its tokens go."""
        request.finish_ps = now_ps
        self.leave(request)

    def abort(self, request: Request) -> bool:
        """Let a request go that is not done, at any time, and return whether it was here."""
        if request in self.queue:
            self.queue.remove(request)
            return True
        if request not in self.running:
            return False
        if request in self.ending:
            self.ending.remove(request)
        self.leave(request)
        return True


def step_of(workers: Sequence[Worker], cluster: Cluster) -> int:
    """Start a step of workers that step together, and return how long it takes.

    Parameters
    ----------
    workers : sequence of Worker
        One, or a lockstep group.
    cluster : Cluster
        Whose barrier counts.

    Returns
    -------
    int
        Picoseconds, of the slowest worker.
    """
    slowest = 0
    decided = cluster.scheduled_ahead and any(worker.running for worker in workers)
    for worker in workers:
        tokens, pairs = worker.plan(decided)
        decoding = len(worker.decoding)
        worker.own_ps, worker.prefill_tokens = 0, tokens
        if decoding or tokens:
            worker.own_ps = _own_ps(worker, worker.cluster, decoding, tokens, pairs)
        if worker.store and worker.fetch_ps:
            overlapped = worker.store.rule.overlapped
            worker.own_ps = max(worker.own_ps, worker.fetch_ps) if overlapped else worker.own_ps + worker.fetch_ps
        slowest = max(slowest, worker.own_ps)
    return slowest + round(cluster.sync_s * PS_PER_S)


def _own_ps(worker: Worker, cluster: Cluster, decoding: int, tokens: int, pairs: int) -> int:
    """Return what the worker's part of a step takes: computing, loading adapters, scheduling."""
    if worker.slots:
        distinct, served = len(worker.slots.users), len(worker.slots.loads_ps)
        own_ps = worker.slots.adapters.step_ps(cluster.step_time, distinct, decoding, worker.context, tokens, pairs)
        own_ps += worker.slots.loading_ps
    else:
        served = 0
        own_ps = step_ps(cluster.step_time, decoding, worker.context, tokens, pairs)
    share = share_with_a_slot(cluster.adapters, served)
    came, worker.came = worker.came, 0
    return own_ps + overhead_ps(cluster.scheduler_overhead, share, worker.occupied, len(worker.queue), came)
