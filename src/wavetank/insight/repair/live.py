"""Real faults in a real service on this machine, its telemetry, and repairs that are really executed.

A service process and its neighbours share a core; requests pass a proxy in this process, whose link has a rate, a queue
and a delay.  Faults: neighbours that spin, a service that leaks, a link that became narrow.  Repairs: neighbours move
to another core with the lowest priority, the service is drained and started anew, clients ask half as often for small
answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.insight.repair.interface import ACTIONS, FAULTS, READINGS, Floats
from wavetank.insight.repair.live_service import ANSWER
from wavetank.insight.repair.simulated_service import SERVICE, kept
from wavetank.live.processes import ChildProcess, free_port, python_code, python_module, split_cores

NONE = len(ACTIONS)
"""The place of doing nothing among what is tried."""
BUSY = 1.0
"""Seconds each second that threads of a healthy service may wait for their core, all together."""
_SPIN = "while True: pass"
_PATIENCE_S = 0.5
_PATIENT_S = 20.0
_RETRIES = 2
_QUEUE = 6
# The least spread that a reading is given, in its unit: a quiet machine has none.
_LEAST = np.array([0.02, 0.02, 2e6, 50.0, 0.02, 0.002, 0.004, 0.05, 0.02])


class Seen(NamedTuple):
    """One window.

    Attributes
    ----------
    readings : ndarray of float64, shape (9,)
        In standard deviations of the healthy service.
    slo_ok : bool
    """

    readings: Floats
    slo_ok: bool


class Outcome(NamedTuple):
    """A fault that struck, and what followed.

    Attributes
    ----------
    fault : int
        Place in ``FAULTS``.
    action : int
        Place in ``ACTIONS``, or ``NONE``.
    before, after : Seen
        Windows before and after the action.
    repair_s : float
        How long the action itself took.
    """

    fault: int
    action: int
    before: Seen
    after: Seen
    repair_s: float


@dataclass(frozen=True, kw_only=True)
class Rig:
    """How the service is loaded and watched.

    Parameters
    ----------
    rate_per_s : float
        Requests of clients.
    window_s, settle_s : float
        Of telemetry; between a change and the next window.
    healthy : int
        Windows before any fault, from which a healthy service is known.
    neighbours : int
        Spinning processes.
    """

    rate_per_s: float = 60.0
    window_s: float = 0.25
    settle_s: float = 0.2
    healthy: int = 8
    neighbours: int = 8

    def __post_init__(self) -> None:
        given = (self.rate_per_s, self.window_s, self.settle_s, self.healthy, self.neighbours)
        if not all(0 < each < 1e6 for each in given):
            raise BadValueError("A service is loaded and watched for some time.", given=given, allowed="above 0")


class Running:
    """A service at work with its clients and its link.

    Parameters
    ----------
    rig : Rig
    """

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._cores, self._others = split_cores()
        self._service: ChildProcess | None = None
        self._neighbours: list[ChildProcess] = []
        self._port, self.rate, self.page = 0, rig.rate_per_s, "/work"
        # Bytes per second of the link; 0 is as fast as it gets.
        self.link = 0.0
        self._link, self._waiting = asyncio.Lock(), 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._carried: set[asyncio.Task[Any] | None] = set()
        self.proxy = 0
        self.sent, self.lost, self.pings = 0, 0, list[float]()
        self.done: list[tuple[float, bool]] = []

    def start(self) -> None:
        """Start the service process; the one before is ended."""
        if self._service:
            self._service.stop(0.2)
        self._port = free_port()
        words = python_module("wavetank.insight.repair.live_service", str(self._port))
        self._service = ChildProcess(words, name="the service", cores=self._cores)

    async def ready(self) -> None:
        """Wait until the service answers.

        Raises
        ------
        WavetankError
            If it does not.
        """
        until = time.monotonic() + 30.0
        while time.monotonic() < until:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._fetch(self._port, "/")
                return
            await asyncio.sleep(0.01)
        raise WavetankError("The service did not start.", given=self._service and self._service.output()[-200:])

    async def clear(self) -> None:
        """Forget all requests that are on their way."""
        waiting = [each for each in [*self._tasks, *self._carried] if each and each is not asyncio.current_task()]
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def stop(self) -> None:
        """End all processes."""
        for each in [*self._neighbours, *([self._service] if self._service else [])]:
            each.stop(0.0)
        self._neighbours, self._service = [], None

    async def _fetch(self, port: int, page: str, patience_s: float = _PATIENCE_S) -> None:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {page} HTTP/1.1\r\n\r\n".encode())
                await writer.drain()
                await reader.readuntil(b"\r\n\r\n")
                await reader.read(-1)
            finally:
                writer.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on to the service and its answer back, over the link.

        Parameters
        ----------
        reader : asyncio.StreamReader
        writer : asyncio.StreamWriter
        """
        task = asyncio.current_task()
        self._carried.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            onward, to = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                to.write(head)
                answer = await onward.read(-1)
            finally:
                to.close()
            if self.link:
                if self._waiting >= _QUEUE:
                    self.lost += 1
                    return
                self._waiting += 1
                try:
                    async with self._link:
                        await asyncio.sleep(len(answer) / self.link if self.link else 0.0)
                finally:
                    self._waiting -= 1
            writer.write(answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            # Who asked has left, or all ends; a handler that ends as cancelled would be reported as an error.
            return
        finally:
            self._carried.discard(task)
            writer.close()

    async def _request(self) -> None:
        begin = time.perf_counter()
        for _ in range(1 + _RETRIES):
            try:
                await self._fetch(self.proxy, self.page)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                continue
            self.done.append((time.perf_counter() - begin, True))
            return
        self.done.append((time.perf_counter() - begin, False))

    async def _ping(self) -> None:
        begin = time.perf_counter()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            await self._fetch(self.proxy, "/")
        self.pings.append(time.perf_counter() - begin)

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load(self) -> None:
        """Send requests at the rate, for ever; none waits for another."""
        due, count = time.perf_counter(), 0
        while True:
            due = max(due + 1.0 / self.rate, time.perf_counter() - 0.1)
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            self.sent += 1
            self._spawn(self._request())
            count += 1
            if count % 4 == 0:
                self._spawn(self._ping())

    def _counters(self) -> tuple[float, float, float, float]:
        """Return seconds of waiting for a core and of running, resident bytes, and page faults of the service."""
        if self._service is None:
            raise WavetankError("The service is not running.")
        waited = ran = 0.0
        place = Path("/proc") / str(self._service.pid)
        for each in (place / "task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                running, waiting, _ = each.read_text().split()
                ran, waited = ran + int(running) / 1e9, waited + int(waiting) / 1e9
        faults = int((place / "stat").read_text().rsplit(")", 1)[1].split()[7])
        return waited, ran, self._service.resident_bytes(), float(faults)

    async def window(self) -> Floats:
        """Return one window of raw readings, in the order of ``READINGS``."""
        self.sent, self.lost, self.pings, self.done = 0, 0, [], []
        begin, first = time.perf_counter(), self._counters()
        await asyncio.sleep(self.rig.window_s)
        took, last = time.perf_counter() - begin, self._counters()
        waited, ran, grown, faults = (after - before for before, after in zip(first, last, strict=True))
        times = [spent for spent, _ in self.done] or [_PATIENCE_S]
        right = sum(ok for _, ok in self.done)
        return np.array([
            waited / took, ran / max(ran + waited, 1e-9), grown / took, faults / took,
            self.lost / max(self.sent, 1), float(np.median(self.pings or [_PATIENCE_S])),
            float(np.quantile(times, 0.9)), right / max(self.sent, 1), 1 - right / max(len(self.done), 1),
        ])  # fmt: skip

    async def strike(self, fault: int) -> None:
        """Let a fault begin.

        Parameters
        ----------
        fault : int
            Place in ``FAULTS``.
        """
        if FAULTS[fault] == "cpu-contention":
            self._neighbours = [
                ChildProcess(python_code(_SPIN), name="a neighbour", cores=self._cores)
                for _ in range(self.rig.neighbours)
            ]
        elif FAULTS[fault] == "leak":
            await self._fetch(self._port, "/leak", patience_s=_PATIENT_S)
        else:
            self.link = 0.6 * self.rig.rate_per_s * len(ANSWER)

    async def act(self, action: int) -> None:
        """Execute a repair, whether it helps or not.

        Parameters
        ----------
        action : int
            Place in ``ACTIONS``, or ``NONE``.
        """
        if action == NONE:
            return
        if ACTIONS[action] == "limit-neighbour":
            for each in self._neighbours:
                _limited(each.pid, self._others)
        elif ACTIONS[action] == "restart-worker":
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._fetch(self._port, "/drain", patience_s=0.1)
            self.start()
            await self.ready()
        else:
            self.rate, self.page = 0.5 * self.rig.rate_per_s, "/small"

    async def heal(self) -> None:
        """End all faults and undo all repairs."""
        for each in self._neighbours:
            each.stop(0.0)
        self._neighbours, self.rate, self.link, self.page = [], self.rig.rate_per_s, 0.0, "/work"
        # What had piled up would be another fault: every episode begins with a new service.
        await self.clear()
        self.start()
        await self.ready()
        await asyncio.sleep(self.rig.settle_s)


def _limited(pid: int, cores: frozenset[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if cores:
            os.sched_setaffinity(pid, cores)
        os.setpriority(os.PRIO_PROCESS, pid, 19)


@contextlib.asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Running]:
    """Keep a service, its link and its clients running within the block; nothing is left behind, on Ctrl-C neither.

    Parameters
    ----------
    rig : Rig
    """
    if not Path("/proc/self/schedstat").exists():
        raise WavetankError("Waiting for a core is read from /proc, which this system does not have.")
    work = Running(rig)
    server = clients = None
    try:
        work.start()
        await work.ready()
        server = await asyncio.start_server(work.carry, "127.0.0.1", 0)
        work.proxy = server.sockets[0].getsockname()[1]
        clients = asyncio.ensure_future(work.load())
        await asyncio.sleep(rig.settle_s)
        yield work
    finally:
        work.stop()
        if clients:
            clients.cancel()
            await asyncio.gather(clients, return_exceptions=True)
        if server:
            server.close()
        await work.clear()


def outcomes(rig: Rig, faults: Sequence[int], actions: Sequence[int]) -> list[Outcome]:
    """Strike with every fault and try every action on it, one after the other.

    Parameters
    ----------
    rig : Rig
    faults, actions : sequence of int
    """
    return asyncio.run(_outcomes(rig, faults, actions))


async def _outcomes(rig: Rig, faults: Sequence[int], actions: Sequence[int]) -> list[Outcome]:
    found = []
    async with running(rig) as work:
        healthy = np.array([await work.window() for _ in range(rig.healthy)])
        mean, spread = healthy.mean(axis=0), np.maximum(healthy.std(axis=0), _LEAST)
        if mean[READINGS.index("run_queue")] > BUSY or mean[READINGS.index("errors")] > 0:
            raise WavetankError(
                "This machine is too busy to know a healthy service by: without any fault it waits for its core or "
                "loses requests.", given=f"{mean[0]:.2f} s of waiting each second, {mean[-1]:.0%} lost",
                allowed=f"{BUSY:g} s and none", hint="end what else runs",
            )  # fmt: skip

        def seen(raw: Floats) -> Seen:
            readings = (raw - mean) / spread
            return Seen(readings, bool(kept(SERVICE, readings[len(READINGS) - 3 :])))

        for fault in faults:
            for action in actions:
                await work.strike(fault)
                await asyncio.sleep(rig.settle_s)
                before = seen(await work.window())
                begin = time.perf_counter()
                await work.act(action)
                took = time.perf_counter() - begin
                await asyncio.sleep(rig.settle_s)
                found.append(Outcome(fault, action, before, seen(await work.window()), took))
                await work.heal()
    return found
