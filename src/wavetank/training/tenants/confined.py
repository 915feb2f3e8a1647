"""An environment in a process of its own: code that blocks, exits or eats memory harms its own tenant alone.

Tools of a :class:`~wavetank.training.tenants.service.TenantService` run in its own loop, which is fast, and enough for
code that one trusts.  Code that may compute for ever without awaiting anything, call ``os._exit`` or fill the memory is
wrapped: ``TenantTask(environment=Confined(environment=mine, memory_mb=512), ...)``.  The environment is sent to a
process, which answers with numbers as text, so that nothing of it is executed here.  A call that is given up, as its
time is over, ends the process: it may be one that never lets go.  All answers of the tenant that were in it break off
and are tried again in a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any

from wavetank.errors import BadValueError
from wavetank.live.processes import START_TIMEOUT_S, python_module
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import Draws
from wavetank.training.tenants.policy import Floats
from wavetank.training.tenants.toys import Environment, Reply

_LONGEST_LINE_BYTES = 1 << 16


class _Process:
    """One process, and the calls that wait for it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.calls: dict[int, asyncio.Future[list[Any]]] = {}
        self.numbers = itertools.count()
        self.ended = False
        self.reads = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        out = self.process.stdout
        try:
            # What is no answer ends it: a line that is too long or no JSON, and the end of the process.
            while out is not None and (line := await out.readline()):
                call, reply, *why = json.loads(line)
                given = self.calls.pop(call)
                if not given.done():
                    if reply is None:
                        given.set_exception(ConnectionError(str(why)))
                    else:
                        given.set_result(reply)
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        finally:
            self.end()
            await self.process.wait()

    def send(self, number: int, *words: Any) -> None:
        to = self.process.stdin
        if to is None or self.ended:
            raise ConnectionError("the process of the environment is gone")
        to.write(json.dumps([number, *words]).encode() + b"\n")

    async def ask(self, number: int, *words: Any) -> list[Any]:
        """Call it; who gives up waiting ends it."""
        given = self.calls[number] = asyncio.get_running_loop().create_future()
        self.send(number, *words)
        try:
            return await given
        except asyncio.CancelledError:
            self.end()
            raise

    def end(self) -> None:
        """Kill it; calls that wait break off."""
        self.ended = True
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        for given in self.calls.values():
            if not given.done():
                given.set_exception(ConnectionError("the process of the environment ended"))
                given.exception()
        self.calls.clear()


class _Session:
    def __init__(self, process: _Process, number: int, observation: Floats) -> None:
        self.observation = observation
        self._process, self._number = process, number

    async def act(self, action: int) -> Reply:
        observation, reward, done = await self._process.ask(
            next(self._process.numbers), "act", self._number, int(action)
        )
        if done:
            self._process.send(next(self._process.numbers), "end", self._number)
        return Reply(observation, float(reward), bool(done))


@dataclass(frozen=True, kw_only=True)
class Confined:
    """Runs an environment in a process of its own, which is started when it is needed; for one tenant alone.

    Parameters
    ----------
    environment : Environment
        Can be pickled, and imported by another process.
    memory_mb : int
        That it may take beyond what its process has, MB; where the system can limit it (Linux).

    Raises
    ------
    BadValueError
        If it is none, or cannot be pickled.
    """

    environment: Environment
    memory_mb: int = setting(512, unit="MB", says="Memory that it may take", low=16, high=1_000_000)
    _now: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not callable(getattr(self.environment, "begin", None)):
            raise BadValueError("This is no environment.", given=self.environment, allowed="begin(prompt, draws)")
        self._sent()

    def _sent(self) -> str:
        try:
            return pickle.dumps((self.environment, self.memory_mb * 1_000_000)).hex()
        except Exception as error:
            raise BadValueError(
                "The environment cannot be sent to a process.", given=repr(error)[:200],
                hint="define its class in a module, without open files or functions inside",
            ) from error  # fmt: skip

    async def begin(self, prompt: int, draws: Draws) -> _Session:
        """Start an answer.

        Parameters
        ----------
        prompt : int
        draws : Draws

        Raises
        ------
        ConnectionError
            If the environment raises or its process ends.
        """
        process = await self.started()
        number = next(process.numbers)
        (observation,) = await process.ask(number, "begin", prompt, draws.key, draws.count)
        return _Session(process, number, observation)

    async def started(self) -> _Process:
        """Return the process once it is there; the service does not count its start as a tool's time.

        Raises
        ------
        ConnectionError
            If it does not start within ``START_TIMEOUT_S``, or cannot import the environment.
        """
        lock = self._now.setdefault("lock", asyncio.Lock())
        async with lock:
            there: _Process | None = self._now.get("process")
            if there is None or there.ended:
                started = await asyncio.create_subprocess_exec(
                    *python_module("wavetank.training.tenants.confined_process"), stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE, limit=_LONGEST_LINE_BYTES,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
                )  # fmt: skip
                there = self._now["process"] = _Process(started)
                try:
                    async with asyncio.timeout(START_TIMEOUT_S):
                        await there.ask(next(there.numbers), "be", self._sent())
                except TimeoutError as error:
                    raise ConnectionError("the process of the environment does not start") from error
            return there

    def close(self) -> asyncio.Task[None] | None:
        """End the process, as the service does when its tenant ends; return what waits until it is gone, if any."""
        there: _Process | None = self._now.get("process")
        self._now.clear()
        if there is None:
            return None
        there.end()
        return there.reads
