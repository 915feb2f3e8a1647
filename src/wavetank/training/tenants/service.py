"""A service that trains one adapter for each tenant on one frozen base, all in one process and at the same time.

Three stages work by themselves: a generating loop that takes the waiting turns of all tenants into one batch, tools
that every answer waits for on its own, and a training loop that takes whichever tenant is ready.  Rules
(:class:`~wavetank.training.tenants.interface.Rules`) say who may do what when; the simulation follows the same ones.

What goes wrong stays where it is.  A tool that raises, is cancelled, gives no number or does not answer in time ends
its attempt at an answer, which is tried again and then left out; updates that would not be finite are left out; a
tenant of which too many updates are left out fails, and its ``result`` raises.  Nobody else's numbers change.  Code of
a tenant that may block or eat memory belongs into :class:`~wavetank.training.tenants.confined.Confined`.

>>> import asyncio
>>> from wavetank.training.tenants import Bandit, TenantService, TenantTask
>>> async def main():
...     async with TenantService() as service:
...         tenant = service.submit(TenantTask(name="mine", environment=Bandit(), updates=3))
...         return await tenant.result()
>>> asyncio.run(main()).adapter.version
3
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import inspect
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.processes import START_TIMEOUT_S
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import Draws, stream_key
from wavetank.training.tenants.checkpoints import check_name, load_adapter, save_adapter
from wavetank.training.tenants.confined import Confined
from wavetank.training.tenants.interface import Rules, check_rules
from wavetank.training.tenants.policy import (
    INPUTS,
    Adapter,
    Base,
    Floats,
    Samples,
    advantages,
    chosen,
    log_probabilities,
    new_adapter,
    updated,
)
from wavetank.training.tenants.progress import Progress
from wavetank.training.tenants.toys import Environment, Reply

_GRACE_S = 1.0
_YOUNG = Rules(s_max=1)


class TenantFailedError(WavetankError):
    """A tenant that ended without a result; the others go on."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """How much of the service one tenant may take."""

    tools: int = setting(64, unit="workers", says="Tools that run at the same time", low=1, high=100_000)
    rows: int = setting(64, unit="turns", says="Turns of one batch", low=1, high=100_000)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class TenantTask:
    """What a tenant wants trained.

    Parameters
    ----------
    name : str
        Also of its checkpoint: lower-case words with hyphens.
    environment : Environment
        Starts an answer; :mod:`~wavetank.training.tenants.toys` has some.
    quota : Quota
    """

    name: str
    environment: Environment
    updates: int = setting(20, unit="updates", says="Updates of the adapter", low=1, high=1_000_000)
    groups: int = setting(4, says="Groups of answers in an update", low=1, high=10_000)
    group: int = setting(8, says="Answers of a group", low=2, high=10_000)
    seed: int = setting(0, says="Draws the adapter, what the policy does and what environments draw")
    rank: int = setting(4, says="Rank of the adapter", low=1, high=64)
    rate: float = setting(0.05, says="Learning rate", low=0.0, high=1e6)
    clip: float = setting(0.2, says="How far a ratio of probabilities counts", low=0.0, high=10.0)
    weight: int = setting(1, says="Share of the service, relative to others", low=1, high=1000)
    tool_timeout_s: float = setting(60.0, unit="s", says="Longest wait for a tool", low=1e-3, high=86_400.0)
    retries: int = setting(1, says="Further attempts at an answer that broke off", low=0, high=100)
    most_turns: int = setting(64, unit="turns", says="Turns after which an answer breaks off", low=1, high=100_000)
    most_bad_updates: int = setting(3, unit="updates", says="Bad updates in a row that a tenant survives", low=0,
                                    high=1_000_000)  # fmt: skip
    quota: Quota = field(default_factory=Quota)

    def __post_init__(self) -> None:
        check_ranges(self)
        check_name(self.name)
        if not callable(getattr(self.environment, "begin", None)):
            raise BadValueError("This is no environment.", given=self.environment, allowed="begin(prompt, draws)",
                                where=f"task {self.name}")  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class TenantResult:
    """What a tenant got.

    Attributes
    ----------
    adapter : Adapter
    stale : tuple of int
        Answers trained on, by how many updates old they were.
    again : int
        Attempts that broke off and were made again.
    dropped : int
        Answers that were left out.
    bad_updates : int
        Updates that were left out, as they had nothing to learn from or would not have been finite.
    most_tools, most_rows : int
        Tools at the same time and turns of one batch, at most.
    spent_s : float
        From its first answer to its last update, s.
    """

    adapter: Adapter
    stale: tuple[int, ...]
    again: int
    dropped: int
    bad_updates: int
    most_tools: int
    most_rows: int
    spent_s: float


class Step(NamedTuple):
    """One turn of an answer: what the policy saw and did, and the logarithm of the probability with which it did."""

    observation: Floats
    action: int
    log_probability: float


class _Answer(NamedTuple):
    steps: list[Step]
    reward: float


class _BrokeOffError(Exception):
    """An attempt at an answer that came to nothing."""


class _Turn(NamedTuple):
    """A turn that waits for the policy; sorted by its place."""

    place: tuple[int, int, int]
    observation: Floats
    draw: float
    given: asyncio.Future[tuple[int, float]]


class Tenant:
    """A task in the service: wait for ``result()``, or ``cancel()`` it.

    Parameters
    ----------
    task : TenantTask
    adapter : Adapter
        That it begins with.
    s_max : int
    service : TenantService

    Attributes
    ----------
    adapter : Adapter
        The newest one.
    """

    def __init__(self, task: TenantTask, adapter: Adapter, s_max: int, service: TenantService) -> None:
        self.task, self.adapter, self._service = task, adapter, service
        self._progress = Progress(task.updates, task.groups, s_max, adapter.version)
        self._answers: dict[int, list[_Answer | None]] = {}
        self._missing: dict[int, int] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._runnable: list[_Turn] = []
        self._tools = asyncio.Semaphore(task.quota.tools)
        self._served = self._again = self._dropped = self._bad = self._bad_in_a_row = 0
        self._tools_now = self._most_tools = self._most_rows = 0
        self._stale = [0] * (s_max + 1)
        self._ready_s: float | None = None
        self._began_s = 0.0
        self._done: asyncio.Future[TenantResult] = asyncio.get_running_loop().create_future()
        # A tenant that nobody waits for may fail quietly.
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.task.name

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self._done.done()

    async def result(self) -> TenantResult:
        """Wait for the end of the training.  Who stops waiting does not stop the training.

        Raises
        ------
        TenantFailedError
            If it failed or was cancelled.
        """
        return await asyncio.shield(self._done)

    def cancel(self) -> None:
        """End it now: nothing of it runs on, and no update of it is half done."""
        self._service._fail(self, TenantFailedError("The tenant was cancelled.", given=self.name))


class TenantService:
    """Trains the adapters of all tenants that are submitted; used as ``async with TenantService(...) as service``.

    Parameters
    ----------
    base : Base, optional
        The frozen weights that all share.
    rules : Rules
        Who may generate and train when; tenants have no parts of their own here.
    rows : int
        Turns of one batch, at most.
    checkpoints : Path, optional
        Folder in which the adapter of each tenant is kept after every update; one that is found there goes on.
    audit : bool
        Whether every update checks that base and other adapters stay as they are, to the last bit.

    Attributes
    ----------
    foreign_changes : int
        Changes that audits found; 0 if tenants are isolated.
    batches, batch_rows : int
        Batches computed, and their turns in all.

    Raises
    ------
    BadValueError
        For rules that cannot be served.
    """

    def __init__(
        self, base: Base | None = None, *, rules: Rules = _YOUNG, rows: int = 256,
        checkpoints: Path | None = None, audit: bool = False,
    ) -> None:  # fmt: skip
        check_rules(rules)
        if rules.divided:
            raise BadValueError("This service has one engine, which tenants share.", given=str(rules),
                                allowed="divided=False")  # fmt: skip
        if rows < 1:
            raise BadValueError("A batch has one turn or more.", given=rows)
        if checkpoints is not None and not checkpoints.is_dir():
            raise BadValueError("This is no folder.", given=str(checkpoints), hint="make it first")
        self.base, self.rules, self.rows = base or Base(), rules, rows
        self.checkpoints, self.audit = checkpoints, audit
        self.foreign_changes = self.batches = self.batch_rows = 0
        self._active: list[Tenant] = []
        self._queue: deque[Tenant] = deque()
        self._strays: set[asyncio.Future[Any]] = set()
        self._train_phase = False
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> TenantService:
        self._turns, self._ready = asyncio.Event(), asyncio.Event()
        self._loops = [asyncio.ensure_future(self._generate()), asyncio.ensure_future(self._train())]
        for each in self._loops:
            each.add_done_callback(self._loop_ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all that runs; tenants that are not done fail."""
        tenants = [*self._active, *self._queue]
        self._queue.clear()
        jobs = [job for tenant in tenants for job in tenant._jobs]
        for tenant in tenants:
            self._fail(tenant, TenantFailedError("The service was closed.", given=tenant.name))
        for each in (*self._loops, *self._strays):
            each.cancel()
        ending = {*jobs, *self._loops, *self._strays}
        self._loops = []
        if ending:
            # A tool that does not let itself be cancelled is left to itself.
            await asyncio.wait(ending, timeout=_GRACE_S)

    def submit(self, task: TenantTask) -> Tenant:
        """Begin with a task, or let it wait for its turn.

        Parameters
        ----------
        task : TenantTask

        Raises
        ------
        BadValueError
            If a tenant of this name is there, the service is not open, or its checkpoint is of another task.
        BadFileError
            If its checkpoint is damaged.
        """
        if not self._loops or any(each.done() for each in self._loops):
            raise BadValueError("The service is not open.", given=task.name, allowed="async with TenantService() ...")
        if any(task.name == tenant.name for tenant in (*self._active, *self._queue)):
            raise BadValueError("There is a tenant of this name.", given=task.name)
        found = load_adapter(self.checkpoints, task.name) if self.checkpoints else None
        adapter = found or new_adapter(task.seed, task.rank)
        if adapter.rank != task.rank or adapter.version > task.updates:
            raise BadValueError(
                "The checkpoint is of another task.", given=f"rank {adapter.rank}, {adapter.version} updates",
                allowed=f"rank {task.rank}, at most {task.updates} updates", where=f"task {task.name}",
                hint="give the task another name, or delete the checkpoint",
            )  # fmt: skip
        tenant = Tenant(task, adapter, self.rules.s_max, self)
        self._queue.append(tenant)
        self._begin_more()
        return tenant

    def _loop_ended(self, loop: asyncio.Task[None]) -> None:
        """Let nobody wait for a stage that a defect has ended."""
        if loop.cancelled() or loop.exception() is None:
            return
        tenants = [*self._active, *self._queue]
        self._queue.clear()
        for tenant in tenants:
            why = TenantFailedError("A stage of the service failed.", given=repr(loop.exception()), where=tenant.name)
            self._fail(tenant, why)

    def _begin_more(self) -> None:
        while self._queue and (self.rules.at_once == 0 or len(self._active) < self.rules.at_once):
            tenant = self._queue.popleft()
            tenant._began_s = time.perf_counter()
            self._active.append(tenant)
            if tenant._progress.done:
                self._end(tenant)
            elif not self.rules.barrier or not self._train_phase:
                self._ask(tenant)

    def _ask(self, tenant: Tenant) -> None:
        for group in tenant._progress.ask():
            tenant._answers[group] = [None] * tenant.task.group
            tenant._missing[group] = tenant.task.group
            for sample in range(tenant.task.group):
                job = asyncio.ensure_future(self._answer(tenant, group, sample))
                tenant._jobs.add(job)
                job.add_done_callback(lambda done, of=tenant: self._ended(of, done))  # type: ignore[misc]

    def _ended(self, tenant: Tenant, job: asyncio.Task[None]) -> None:
        tenant._jobs.discard(job)
        if not job.cancelled() and job.exception() is not None:
            self._fail(tenant, TenantFailedError("The tenant failed.", given=repr(job.exception()), where=tenant.name))

    # One answer.

    async def _answer(self, tenant: Tenant, group: int, sample: int) -> None:
        answer = None
        for attempt in range(tenant.task.retries + 1):
            try:
                answer = await self._attempt(tenant, group, sample, attempt)
                break
            except _BrokeOffError:
                tenant._again += attempt < tenant.task.retries
        tenant._dropped += answer is None
        tenant._answers[group][sample] = answer
        tenant._missing[group] -= 1
        if not tenant._missing[group]:
            tenant._progress.whole.add(group)
            self._look(tenant)

    async def _attempt(self, tenant: Tenant, group: int, sample: int, attempt: int) -> _Answer:
        task = tenant.task
        acting, drawing = answer_draws(task.seed, group, sample, attempt)
        if isinstance(task.environment, Confined):
            await self._within(task.environment.started, 2 * START_TIMEOUT_S)
        with _kept_there():
            session: Any = task.environment.begin(group, drawing)
            awaits = inspect.isawaitable(session)
        if awaits:
            begun = session
            session = await self._within(lambda: begun, task.tool_timeout_s)
        with _kept_there():
            seen = _observation(session.observation)
        steps: list[Step] = []
        reward = 0.0
        for turn in range(task.most_turns):
            given: asyncio.Future[tuple[int, float]] = asyncio.get_running_loop().create_future()
            heapq.heappush(tenant._runnable, _Turn((group, sample, turn), seen, acting.random(), given))
            self._turns.set()
            action, log_probability = await given
            steps.append(Step(seen, action, log_probability))
            async with tenant._tools:
                tenant._tools_now += 1
                tenant._most_tools = max(tenant._most_tools, tenant._tools_now)
                try:
                    reply = await self._tool(session, action, task.tool_timeout_s)
                finally:
                    tenant._tools_now -= 1
            reward += reply.reward
            if reply.done:
                return _Answer(steps, reward)
            seen = reply.observation
        raise _BrokeOffError

    async def _tool(self, session: Any, action: int, timeout_s: float) -> Reply:
        reply = await self._within(lambda: session.act(action), timeout_s)
        with _kept_there():
            observation, reward, done = reply
            found = Reply(_observation(observation), float(reward), bool(done))
        if not math.isfinite(found.reward):
            raise _BrokeOffError
        return found

    async def _within(self, ask: Callable[[], Awaitable[Any]], timeout_s: float) -> Any:
        """Call a tool in a task of its own, so that what it does with cancellation stays there."""
        call = asyncio.ensure_future(_called(ask))
        try:
            await asyncio.wait({call}, timeout=timeout_s)
        finally:
            if not call.done():
                call.cancel()
                self._strays.add(call)
                call.add_done_callback(self._stray_ended)
        if not call.done() or call.cancelled() or call.exception() is not None:
            raise _BrokeOffError
        return call.result()

    def _stray_ended(self, call: asyncio.Future[Any]) -> None:
        self._strays.discard(call)
        if not call.cancelled():
            call.exception()

    # The generating stage.

    async def _generate(self) -> None:
        while True:
            batch = self._batch()
            if not batch:
                self._turns.clear()
                await self._turns.wait()
                continue
            self._compute(batch)
            await asyncio.sleep(0)

    def _batch(self) -> list[tuple[Tenant, _Turn]]:
        """Take waiting turns: of the tenant that was served least for its weight, the oldest answer first."""
        taken: list[tuple[Tenant, _Turn]] = []
        rows: dict[Tenant, int] = {}
        while len(taken) < self.rows:
            may = [
                tenant
                for tenant in self._active
                if tenant._runnable
                and rows.get(tenant, 0) < tenant.task.quota.rows
                and (not taken or tenant.task.rank == taken[0][0].task.rank)
                and (tenant in rows or not self.rules.adapters or len(rows) < self.rules.adapters)
            ]
            if not may:
                break
            tenant = min(may, key=lambda one: one._served / one.task.weight)
            turn = heapq.heappop(tenant._runnable)
            rows[tenant] = rows.get(tenant, 0) + 1
            tenant._served += 1
            tenant._most_rows = max(tenant._most_rows, rows[tenant])
            taken.append((tenant, turn))
        return taken

    def _compute(self, batch: list[tuple[Tenant, _Turn]]) -> None:
        adapters = {tenant: place for place, tenant in enumerate(dict.fromkeys(tenant for tenant, _ in batch))}
        logs = log_probabilities(
            self.base, np.stack([turn.observation for _, turn in batch]), [tenant.adapter for tenant in adapters],
            [adapters[tenant] for tenant, _ in batch],
        )  # fmt: skip
        self.batches += 1
        self.batch_rows += len(batch)
        for (_, turn), row in zip(batch, logs, strict=True):
            if not turn.given.done():
                action = chosen(row, turn.draw)
                turn.given.set_result((action, float(row[action])))

    # The training stage.

    def _look(self, tenant: Tenant) -> None:
        if tenant._ready_s is None and not tenant.done and tenant._progress.ready:
            tenant._ready_s = time.perf_counter()
        self._ready.set()

    async def _train(self) -> None:
        while True:
            tenant = self._most_urgent()
            if tenant is None:
                self._ready.clear()
                await self._ready.wait()
                continue
            self._update(tenant)
            await asyncio.sleep(0)

    def _most_urgent(self) -> Tenant | None:
        ready = [tenant for tenant in self._active if tenant._ready_s is not None]
        if self.rules.barrier:
            if not ready and self._train_phase:
                self._train_phase = False
                for tenant in self._active:
                    self._ask(tenant)
            self._train_phase |= bool(ready) and len(ready) == len(self._active)
            if not self._train_phase:
                return None
        now_s = time.perf_counter()
        return max(ready, key=lambda one: (now_s - (one._ready_s or 0.0)) * one.task.weight, default=None)

    def _update(self, tenant: Tenant) -> None:
        tenant._ready_s = None
        before = self._digests(tenant) if self.audit else ()
        task = tenant.task
        answers: list[tuple[_Answer, float]] = []
        for group, old in tenant._progress.take():
            kept = [answer for answer in tenant._answers.pop(group) if answer is not None]
            del tenant._missing[group]
            tenant._stale[old] += len(kept)
            answers += zip(kept, map(float, advantages([each.reward for each in kept])), strict=True)
        samples = samples_of([(answer.steps, advantage) for answer, advantage in answers])
        adapter = (
            None if samples is None else updated(self.base, tenant.adapter, samples, rate=task.rate, clip=task.clip)
        )
        tenant._bad_in_a_row = tenant._bad_in_a_row + 1 if adapter is None else 0
        tenant._bad += adapter is None
        old_one = tenant.adapter
        tenant.adapter = adapter or Adapter(
            version=old_one.version + 1, weights=old_one.weights, mean=old_one.mean, square=old_one.square
        )
        tenant._progress.version += 1
        if self.audit:
            self.foreign_changes += before != self._digests(tenant)
        if tenant._bad_in_a_row > task.most_bad_updates:
            self._fail(tenant, TenantFailedError(
                "Too many updates in a row had no answers to learn from, or would not have been finite.",
                given=tenant._bad_in_a_row, allowed=f"at most {task.most_bad_updates}", where=f"task {task.name}",
                hint="look at its environment's errors and rewards, or lower its learning rate",
            ))  # fmt: skip
            return
        try:
            if self.checkpoints:
                save_adapter(self.checkpoints, task.name, tenant.adapter)
        except WavetankError as error:
            failed = TenantFailedError("The tenant's adapter could not be kept.", given=str(error), where=task.name)
            self._fail(tenant, failed)
            return
        if tenant._progress.done:
            self._end(tenant)
        elif not self.rules.barrier:
            self._ask(tenant)
            self._look(tenant)

    def _digests(self, but: Tenant) -> tuple[bytes, ...]:
        """Return checksums of all that an update of one tenant must leave alone."""
        others = [each.adapter.bytes() for each in (*self._active, *self._queue) if each is not but]
        return tuple(hashlib.sha256(each).digest() for each in (self.base.bytes(), *others))

    # Ends.

    def _end(self, tenant: Tenant) -> None:
        result = TenantResult(
            adapter=tenant.adapter, stale=tuple(tenant._stale), again=tenant._again, dropped=tenant._dropped,
            bad_updates=tenant._bad, most_tools=tenant._most_tools, most_rows=tenant._most_rows,
            spent_s=time.perf_counter() - tenant._began_s,
        )  # fmt: skip
        tenant._done.set_result(result)
        self._leave(tenant)

    def _fail(self, tenant: Tenant, error: TenantFailedError) -> None:
        if tenant.done:
            return
        tenant._done.set_exception(error)
        self._leave(tenant)

    def _leave(self, tenant: Tenant) -> None:
        """Take all of a tenant out of the service."""
        for job in tuple(tenant._jobs):
            job.cancel()
        tenant._runnable.clear()
        tenant._answers.clear()
        tenant._ready_s = None
        if isinstance(tenant.task.environment, Confined) and (ends := tenant.task.environment.close()):
            self._strays.add(ends)
            ends.add_done_callback(self._stray_ended)
        if tenant in self._active:
            self._active.remove(tenant)
        if tenant in self._queue:
            self._queue.remove(tenant)
        self._begin_more()
        self._ready.set()


def answer_draws(seed: int, group: int, sample: int, attempt: int = 0) -> tuple[Draws, Draws]:
    """Return the chance of an answer: of the policy's choices, and of its environment.

    Parameters
    ----------
    seed : int
        Of the task.
    group, sample, attempt : int
    """
    return (
        Draws(stream_key(seed, "actions", group, sample, attempt)),
        Draws(stream_key(seed, "environment", group, sample, attempt)),
    )


def samples_of(answers: list[tuple[list[Step], float]]) -> Samples | None:
    """Return what an update learns from: the steps of all answers, each with its answer's advantage; None if none.

    Parameters
    ----------
    answers : list of (list of Step, float)
    """
    steps = [step for each, _ in answers for step in each]
    if not steps:
        return None
    return Samples(
        np.stack([step.observation for step in steps]),
        np.array([step.action for step in steps]),
        np.array([step.log_probability for step in steps]),
        np.array([advantage for each, advantage in answers for _ in each]),
    )


@contextlib.contextmanager
def _kept_there() -> Iterator[None]:
    """Break an attempt off for whatever a tenant's code raises, but for Ctrl-C.

    Only around code that awaits nothing: a cancellation that comes out of it is the tenant's own.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _BrokeOffError from error


async def _called(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Call a tool; one that asks the interpreter to exit only breaks its attempt off."""
    try:
        return await ask()
    except SystemExit as error:
        raise _BrokeOffError from error


def _observation(given: Any) -> Floats:
    """Return what a policy can see, as a copy of its own.

    Raises
    ------
    ValueError
        If it is no row of finite numbers.
    """
    found = np.array(given, dtype=np.float64)
    if found.shape != (INPUTS,) or not np.isfinite(found).all():
        raise ValueError("an observation is a row of finite numbers")
    return found
