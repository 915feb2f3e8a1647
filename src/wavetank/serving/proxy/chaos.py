"""Backends that are killed and started again at random while a proxy in front of them is under load.

Each backend is a process of its own.  It runs for a while, is ended by SIGKILL in the middle of whatever it does, and
comes back on the same port; how long it runs and stays away is drawn from a seed.  What the clients saw is counted by
the load generator, which knows every token.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from wavetank.live.loops import fastest_loop
from wavetank.live.processes import ChildProcess, hold_port, pinned, python_module, split_cores
from wavetank.serving.proxy.load import Load, LoadResult, offer_async
from wavetank.sim.rng import stream

_SHORTEST_S, _LOOK_S = 0.05, 0.02


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """How backends fail.

    Parameters
    ----------
    backends : int
        How many there are.
    up_s, down_s : float
        Mean time that a backend runs, from when it takes requests, and stays away, until it is started again;
        exponentially distributed, at least 0.05 s.
    seed : int
        Of what is drawn.
    """

    backends: int = 4
    up_s: float = 1.0
    down_s: float = 0.3
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ChaosResult:
    """What became of the load, and of the proxy.

    Attributes
    ----------
    load : LoadResult
    kills : int
        Backends killed while the load lasted.
    open_files_before, open_files_after : int
        Of the proxy: before the load, and once all is quiet again.
    resident_bytes_before, resident_bytes_after : float
        Of the proxy, at the same times.
    """

    load: LoadResult
    kills: int
    open_files_before: int
    open_files_after: int
    resident_bytes_before: float
    resident_bytes_after: float


def endure(
    start: Callable[[Sequence[int], frozenset[int]], AbstractContextManager[tuple[int, ChildProcess]]],
    chaos: Chaos,
    load: Load,
    *,
    quiet_s: float = 2.0,
    patience_s: float = 0.0,
) -> ChaosResult:
    """Put a proxy before failing backends, offer a load, and count.

    Parameters
    ----------
    start : callable
        Given the backends' ports and the cores for the proxy: starts it, yields its port and process, ends it.
    chaos : Chaos
    load : Load
    quiet_s : float
        Time after the load, before the proxy's files are counted again.
    patience_s : float
        Longest further time while it has more of them than before and one per backend: a busy machine is late.

    Raises
    ------
    WavetankError
        If the proxy cannot be started or does not take connections any more.
    """
    own, others = split_cores()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pinned(others))
        ports = [stack.enter_context(hold_port()) for _ in range(chaos.backends)]
        backends = stack.enter_context(_Backends(ports, others))
        port, proxy = stack.enter_context(start(ports, own))
        before, resident_before = proxy.open_files(), proxy.resident_bytes()
        with asyncio.Runner(loop_factory=fastest_loop) as runner:
            result = runner.run(_under_chaos(port, backends, chaos, load))
            runner.run(asyncio.sleep(quiet_s))
            runner.run(_settled(proxy, before + chaos.backends, patience_s))
        return ChaosResult(
            load=result,
            kills=backends.kills,
            open_files_before=before,
            open_files_after=proxy.open_files(),
            resident_bytes_before=resident_before,
            resident_bytes_after=proxy.resident_bytes(),
        )


async def _settled(proxy: ChildProcess, files: int, patience_s: float) -> None:
    """Wait until a proxy has no more open files than that, or the time is over."""
    until = time.monotonic() + patience_s
    while proxy.open_files() > files and (left_s := until - time.monotonic()) > 0:
        await asyncio.sleep(min(0.1, left_s))


class _Backends:
    """The backends' processes; those that are away are None."""

    def __init__(self, ports: Sequence[int], cores: frozenset[int]) -> None:
        self.ports, self.cores = ports, cores
        self.kills = 0
        self._alive: list[ChildProcess | None] = [None] * len(ports)

    def __enter__(self) -> _Backends:
        try:
            for place in range(len(self.ports)):
                self.revive(place)
            for process in self._alive:
                if process is not None:
                    process.first_line()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._alive:
            if process is not None:
                process.stop()

    def revive(self, place: int) -> None:
        words = python_module("wavetank.serving.proxy.null_backend", "--port", str(self.ports[place]))
        self._alive[place] = ChildProcess(words, name=f"null backend {place}", cores=self.cores)

    async def ready(self, place: int) -> None:
        """Return once a backend that was revived takes requests, or has ended."""
        process = self._alive[place]
        while process is not None and process.running and "\n" not in process.output():
            await asyncio.sleep(_LOOK_S)

    def kill(self, place: int) -> None:
        process, self._alive[place] = self._alive[place], None
        if process is not None:
            process.kill()
            process.stop()
            self.kills += 1


async def _under_chaos(port: int, backends: _Backends, chaos: Chaos, load: Load) -> LoadResult:
    cycles = [asyncio.create_task(_live_and_die(place, backends, chaos)) for place in range(chaos.backends)]
    try:
        return await offer_async(port, load)
    finally:
        for cycle in cycles:
            cycle.cancel()


async def _live_and_die(place: int, backends: _Backends, chaos: Chaos) -> None:
    rng = stream(chaos.seed, "chaos", place)
    while True:
        # Starting an interpreter takes longer than a short lifetime lasts: it begins when requests are taken.
        await backends.ready(place)
        await asyncio.sleep(max(rng.exponential(chaos.up_s), _SHORTEST_S))
        backends.kill(place)
        await asyncio.sleep(max(rng.exponential(chaos.down_s), _SHORTEST_S))
        backends.revive(place)
