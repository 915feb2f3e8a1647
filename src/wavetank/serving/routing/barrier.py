"""A real lockstep group: worker processes that read their KV caches and meet at a barrier after every decode step.

Workers (:mod:`wavetank.serving.routing.barrier_worker`) do decode attention over real arrays, so that a step lasts as
long as the most loaded of them.  The bookkeeping is that of the readable simulator, with one difference: a step is not
looked up in a model but done, and the clock moves on by what it took.  So routers, views, their age and the rules of
admission are the very same in both, and what differs between a run and its simulation is the step time alone.

Source: the decode barrier of data-parallel serving as Bu et al. describe it, arXiv 2605.06113, May 2026.

Differs from the source:

1. Workers are processes on the cores of one machine, each bound to a core of its own; they share its memory.
2. The barrier is central: a byte through a pipe releases a worker and another says that it is done.  Waiting workers
   sleep, because a spinning one would take the core from the worker that it waits for.
3. Prompts are computed elsewhere.  A worker loads their keys and values before the step that first reads them; that
   copy, like the coordinator's own work, is timed but is not part of a step.
4. The clock stands still between steps, and jumps to the next arrival when there is nothing to do.
5. Every slot has room for the longest request, so that nothing is ever preempted.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import select
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.processes import ChildProcess, own_cores, python_module
from wavetank.machine.threads import usable_cores
from wavetank.platforms.step_time import PS_PER_S, FittedStepTime
from wavetank.serving.routing.barrier_worker import (
    COPIED_BYTES,
    COPY,
    LOAD,
    STEP,
    GroupShape,
    plan_bytes,
    shared_plan,
)
from wavetank.serving.routing.interface import ArrivalRouter, PoolRouter
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import WARM_UP, ServingRun, simulate
from wavetank.serving.simulator.worker import Request, Worker

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

TIMEOUT_S = 30.0
# How long a worker may take to end by itself before it is killed.
_GRACE_S = 2.0
_COPIES = 5


class LockstepGroup:
    """The worker processes and the barrier; a context manager that leaves no process behind.

    Parameters
    ----------
    shape : GroupShape
    timeout_s : float
        How long a step may take before the group is given up.

    Attributes
    ----------
    processes : list of ChildProcess
        The workers.
    plan : SharedPlan
        What they share with the coordinator.
    steps : list of tuple
        What was measured of every step.

    Raises
    ------
    BadValueError
        If there are more workers than cores.
    WavetankError
        If a worker dies or does not come to the barrier in time; on a system without POSIX pipes.
    """

    def __init__(self, shape: GroupShape, *, timeout_s: float = TIMEOUT_S) -> None:
        check_cores(shape.workers)
        self.shape = shape
        self.processes: list[ChildProcess] = []
        # Of every step: released, reached; started, ended, decoding requests and context tokens of each worker.
        self.steps: list[tuple[float, float, list[float], list[float], list[int], list[int]]] = []
        self._timeout_s = timeout_s
        self._seats: list[dict[int, int]] = [{} for _ in range(shape.workers)]
        self._free = [list(range(shape.slots)) for _ in range(shape.workers)]
        self._poll = select.poll()
        self._number_of: dict[int, int] = {}

    def __enter__(self) -> LockstepGroup:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        # A file without a name: it is gone with the last process that has it mapped, however that ends.
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(plan_bytes(self.shape))
            self.plan = shared_plan(mmap.mmap(file.fileno(), plan_bytes(self.shape)), self.shape)
            cores = own_cores() or [frozenset[int]()] * self.shape.workers
            for number in range(self.shape.workers):
                process = self._worker(number, file.fileno(), cores[number])
                self.processes.append(process)
                self._number_of[process.stdout.fileno()] = number
                self._poll.register(process.stdout, select.POLLIN)
        self._gather("start")

    def _worker(self, number: int, plan_fd: int, cores: frozenset[int]) -> ChildProcess:
        spec = {"shape": dataclasses.asdict(self.shape), "worker": number, "plan_fd": plan_fd}
        one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return ChildProcess(
            python_module("wavetank.serving.routing.barrier_worker", json.dumps(spec)),
            name=f"worker {number}",
            cores=cores,
            environment=one_thread,
            pass_fds=(plan_fd,),
            pipes=True,
        )

    def close(self) -> None:
        """End the workers and wait until they are gone."""
        for process in self.processes:
            process.stdin.close()
        deadline = time.monotonic() + _GRACE_S
        for process in self.processes:
            process.stop(max(deadline - time.monotonic(), 0.0))

    def step(self, workers: Sequence[Worker], cluster: Cluster, prefilled_pool: bool) -> int:
        """Plan a step by the simulator's rules, do it, and return how long it took, in ps.

        From the release of the workers to the arrival of the last one at the barrier.  The signature is that of
        :func:`wavetank.serving.simulator.worker.step_of`.
        """
        plan = self.plan
        decoding, context = [], []
        loads = False
        for number, worker in enumerate(workers):
            worker.plan(prefilled_pool)
            loads |= self._seat(number, worker.running)
            decoding.append(len(worker.running))
            context.append(worker.context)
        if loads:
            self._command(LOAD)
            plan.load_tokens[:] = 0
        released_s = time.perf_counter()
        self._command(STEP)
        reached_s = time.perf_counter()
        started, ended = plan.started_s.tolist(), plan.ended_s.tolist()
        for worker, start_s, end_s in zip(workers, started, ended, strict=True):
            worker.own_ps = round((end_s - start_s) * PS_PER_S)
        self.steps.append((released_s, reached_s, started, ended, decoding, context))
        return max(1, round((reached_s - released_s) * PS_PER_S))

    def _seat(self, number: int, running: Sequence[Request]) -> bool:
        """Give newly admitted requests a slot, take it from those that left; return whether prompts must be loaded."""
        plan, seats, free = self.plan, self._seats[number], self._free[number]
        here = {request.number for request in running}
        for gone in [each for each in seats if each not in here]:
            slot = seats.pop(gone)
            plan.context_tokens[number, slot] = 0
            free.append(slot)
        loads = False
        for request in running:
            slot = seats.get(request.number, -1)
            if slot < 0:
                slot = seats[request.number] = free.pop()
                plan.load_tokens[number, slot] = request.resident
                loads = True
            plan.context_tokens[number, slot] = request.resident
        return loads

    def full_step_s(self, context_tokens: int, steps: int) -> float:
        """Return the median time of a step with every slot full, in s; leaves the slots empty."""
        plan = self.plan
        plan.load_tokens[:] = plan.context_tokens[:] = context_tokens
        self._command(LOAD)
        plan.load_tokens[:] = 0
        times = [self._timed(STEP) for _ in range(steps)]
        plan.context_tokens[:] = 0
        return float(np.median(times))

    def copy_bytes_per_s(self) -> float:
        """Return the bytes that all workers together move per second (read plus written) while all of them copy."""
        took = []
        for _ in range(_COPIES):
            self._command(COPY)
            took.append(float((self.plan.ended_s - self.plan.started_s).max()))
        return 2.0 * COPIED_BYTES * self.shape.workers / min(took)

    def _timed(self, command: bytes) -> float:
        start = time.perf_counter()
        self._command(command)
        return time.perf_counter() - start

    def _command(self, command: bytes) -> None:
        """Release all workers and wait until the last one is done."""
        for number, process in enumerate(self.processes):
            try:
                os.write(process.stdin.fileno(), command)
            except BrokenPipeError:
                self._lost(number)
        self._gather("step")

    def _gather(self, what: str) -> None:
        waiting = set(self._number_of)
        deadline = time.monotonic() + self._timeout_s
        while waiting:
            ready = self._poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)
            if not ready:
                missing = ", ".join(str(number) for number in sorted(self._number_of[fd] for fd in waiting))
                raise WavetankError(
                    f"A worker did not reach the barrier of a {what} in {self._timeout_s:g} s.",
                    given=f"worker {missing}",
                    hint="the machine may be overloaded: ask for fewer workers, or run it when the machine is quiet",
                )
            for fd, _ in ready:
                if not os.read(fd, 1):
                    self._lost(self._number_of[fd])
                waiting.discard(fd)

    def _lost(self, number: int) -> NoReturn:
        process = self.processes[number]
        code = process.wait(_GRACE_S)
        if code is None:
            process.kill()
            code = -signal.SIGKILL
        said = process.output().strip()
        why = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        raise WavetankError(
            f"Worker {number} of the lockstep group is gone: {why}.",
            given=said.splitlines()[-1] if said else None,
            hint="it may have run out of memory; the run can be repeated",
        )


def check_cores(workers: int) -> None:
    """Refuse a group whose workers would have to share cores, or a system on which it cannot run."""
    if not hasattr(select, "poll"):
        raise WavetankError("A real lockstep group needs POSIX pipes, which this system does not have.")
    if workers > usable_cores():
        raise BadValueError(
            "Every worker of a real lockstep group needs a core of its own.",
            given=f"{workers} workers",
            allowed=f"up to {usable_cores()} on this machine",
            where="workers",
            hint="wavetank compare llm-routing simulates larger groups",
        )


@dataclass(frozen=True, kw_only=True)
class BarrierRun:
    """What a real lockstep group did.

    Attributes
    ----------
    requests : RequestTrace
        What was decoded.
    finish_s : float64 array (requests,)
        When the last token was out, on the clock of the steps, which starts with the trace's zero.
    worker : int64 array (requests,)
        Where it was decoded.
    released_s, reached_s : float64 array (steps,)
        When the coordinator released the workers and when it knew the last one at the barrier, on the system's clock.
    started_s, ended_s : float64 array (steps, workers)
        When each worker began and ended its work.
    decode_requests, context_tokens : int64 array (steps, workers)
        What each worker decoded and the KV tokens it read.
    begins_s : float64 array (steps,)
        When each step began on the clock of the steps.
    copy_bytes_per_s : float
        What the workers move when all of them copy, measured just before.
    token_bytes : int
        Of a token's key and value.
    """

    requests: RequestTrace
    finish_s: NDArray[np.float64]
    worker: NDArray[np.int64]
    released_s: NDArray[np.float64]
    reached_s: NDArray[np.float64]
    started_s: NDArray[np.float64]
    ended_s: NDArray[np.float64]
    decode_requests: NDArray[np.int64]
    context_tokens: NDArray[np.int64]
    begins_s: NDArray[np.float64]
    copy_bytes_per_s: float
    token_bytes: int

    @property
    def makespan_s(self) -> float:
        """First arrival to last token."""
        return float(self.finish_s.max() - self.requests.arrival_s[0])

    @cached_property
    def window_s(self) -> tuple[float, float]:
        """The time that figures are counted over: end of the warm-up to last arrival, as the simulator counts.

        The whole run where no step begins in that time.
        """
        first, last = float(self.requests.arrival_s[0]), float(self.requests.arrival_s[-1])
        start = first + WARM_UP * (last - first)
        if ((self.begins_s >= start) & (self.begins_s < last)).any():
            return start, last
        return first, float(self.finish_s.max())

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Whether each step began in :attr:`window_s`, shape (steps,)."""
        start, end = self.window_s
        return (self.begins_s >= start) & (self.begins_s < end)

    @cached_property
    def work_s(self) -> NDArray[np.float64]:
        """Time each worker worked in each step, shape (steps, workers)."""
        return self.ended_s - self.started_s

    @cached_property
    def step_s(self) -> NDArray[np.float64]:
        """Length of each step, shape (steps,): release to last arrival."""
        return self.reached_s - self.released_s

    def metrics(self) -> dict[str, float]:
        """Return the figures that the study compares.

        Returns
        -------
        dict
            Over the counted steps: ``throughput_tokens_per_s`` (tokens decoded / length of the window),
            ``imbalance_tokens`` (workers * largest - sum of the KV tokens read, mean), ``step_s`` (mean),
            ``waiting_share`` (share of the workers' step time between their own end and the last one's),
            ``barrier_s`` (mean time of a step in which not even its slowest worker works: release, wake-up and signal)
            and ``share_of_copy`` (KV bytes read per second of work, all workers together, against a plain copy).
            ``between_steps_s`` is the mean time from the end of a step to the release of the next one: bookkeeping,
            decisions, loading of prompts.
        """
        chosen = self.counted
        start_s, end_s = self.window_s
        step_s, work_s, context = self.step_s[chosen], self.work_s[chosen], self.context_tokens[chosen]
        waited_s = self.ended_s[chosen].max(axis=1, keepdims=True) - self.ended_s[chosen]
        read_per_s = context.sum(axis=0) * self.token_bytes / work_s.sum(axis=0)
        return {
            "throughput_tokens_per_s": float(self.decode_requests[chosen].sum() / (end_s - start_s)),
            "imbalance_tokens": float((context.shape[1] * context.max(axis=1) - context.sum(axis=1)).mean()),
            "step_s": float(step_s.mean()),
            "waiting_share": float(waited_s.sum() / (step_s.sum() * context.shape[1])),
            "barrier_s": float((step_s - work_s.max(axis=1)).mean()),
            "share_of_copy": float(read_per_s.sum() / self.copy_bytes_per_s),
            "between_steps_s": float((self.released_s[1:] - self.reached_s[:-1]).mean()),
        }

    def fitted(self) -> tuple[FittedStepTime, float]:
        """Return the step time of one worker, fitted to all steps of all workers, and its R^2."""
        busy = self.decode_requests > 0
        batches = np.zeros((int(busy.sum()), 4))
        batches[:, 0], batches[:, 1] = self.decode_requests[busy], self.context_tokens[busy]
        fit = FittedStepTime.fit(batches, self.work_s[busy])
        return fit.step_time, fit.r_squared


def group_cluster(shape: GroupShape, *, refresh_s: float, step_time: Any = None, sync_s: float = 0.0) -> Cluster:
    """Return the cluster that a group is, with a step time for its simulation.

    Parameters
    ----------
    shape : GroupShape
    refresh_s : float
        Age of the router's view, s.
    step_time : StepTime, optional
        A real group needs none.
    sync_s : float
        Of the barrier, s.
    """
    given = {} if step_time is None else {"step_time": step_time}
    return Cluster(
        workers=shape.workers,
        group_size=shape.workers,
        max_running=shape.slots,
        max_batched_tokens=max(2048, shape.slots),
        kv_capacity_tokens=shape.slots * shape.longest_tokens,
        kv_watermark=0.0,
        refresh_s=refresh_s,
        sync_s=sync_s,
        **given,
    )


def decode_for_real(
    requests: RequestTrace, router: ArrivalRouter | PoolRouter, group: LockstepGroup, *, refresh_s: float
) -> BarrierRun:
    """Decode a trace on a real lockstep group; prompts are computed elsewhere.

    Parameters
    ----------
    requests : RequestTrace
        Each of two output tokens or more: the first comes with the prompt.
    router : ArrivalRouter or PoolRouter
    group : LockstepGroup
        Started, its slots empty.
    refresh_s : float
        Age of the router's view, s of the steps' clock.

    Raises
    ------
    BadValueError
        If a request has a single output token or no room in a slot.
    WavetankError
        If a worker is lost.
    """
    total = requests.prompt_tokens + requests.output_tokens
    if requests.output_tokens.min() < 2 or total.max() > group.shape.longest_tokens:
        raise BadValueError(
            "A request cannot be decoded by this group.",
            given=f"{requests.output_tokens.min()} output tokens at least, {total.max()} tokens in all at most",
            allowed=f"2 output tokens or more, {group.shape.longest_tokens} tokens in all",
        )
    copies = group.copy_bytes_per_s()
    group.steps.clear()
    arrival_ps = np.round(requests.arrival_s * PS_PER_S).astype(np.int64)
    cluster = group_cluster(group.shape, refresh_s=refresh_s)
    found = simulate_slowly(requests, cluster, router, first_ps=arrival_ps, step=group.step)
    released, reached, started, ended, decoding, context = map(np.array, zip(*group.steps, strict=True))
    return BarrierRun(
        requests=requests,
        finish_s=found["finish_ps"] / PS_PER_S,
        worker=found["worker"],
        released_s=released,
        reached_s=reached,
        started_s=started,
        ended_s=ended,
        decode_requests=decoding,
        context_tokens=context,
        begins_s=found["ends_ps"] / PS_PER_S - (reached - released),
        copy_bytes_per_s=copies,
        token_bytes=group.shape.token_bytes,
    )


def simulated(
    requests: RequestTrace, router: ArrivalRouter | PoolRouter, real: BarrierRun, shape: GroupShape, *, refresh_s: float
) -> ServingRun:
    """Simulate what a real group did, with the step time fitted to its own steps and its barrier's mean cost.

    Parameters
    ----------
    requests, router, shape, refresh_s
        As they were given to :func:`decode_for_real`.
    real : BarrierRun
        What came out.
    """
    from wavetank.serving.routing.baselines import RoundRobin

    step_time, _ = real.fitted()
    at_once = Cluster(
        workers=1,
        # One picosecond: prompts are computed elsewhere and arrive with their first token.
        step_time=FittedStepTime(overhead_s=0.0),
        max_running=len(requests),
        max_batched_tokens=int(requests.prompt_tokens.sum()) + len(requests),
        kv_capacity_tokens=int((requests.prompt_tokens + requests.output_tokens).sum()) + 1,
        kv_watermark=0.0,
    )
    decode = group_cluster(shape, refresh_s=refresh_s, step_time=step_time, sync_s=real.metrics()["barrier_s"])
    split = DisaggregatedCluster(prefill=at_once, decode=decode, transfer_s_per_token=0.0, transfer_latency_s=0.0)
    return simulate(requests, split, RoundRobin(), decode_router=router)
