"""Exchanges among real processes that share memory: each rank runs its program, and looks at the words it waits for."""

from __future__ import annotations

import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.rank_process import Rank
from wavetank.live.ranks import Fault, Ranks
from wavetank.machine.atomic_words import first_below, publish
from wavetank.serving.exchange.interface import Exchange, Floats, Integers, LateRankError, Program, Task, Wait
from wavetank.serving.exchange.port import Port, memory_bytes
from wavetank.serving.exchange.reference import Routed, batch_of, dense
from wavetank.serving.exchange.table import ExpertTable, contiguous
from wavetank.serving.exchange.workload import routed_tokens, slopes
from wavetank.study.study import turned

_LINE = 8
_PAGE = 4096
_LOOKS = 200
_REST_AFTER_S = 0.01
_REST_S = 0.0002


@dataclasses.dataclass
class Taken:
    """What a part of a step took one rank.

    Parameters
    ----------
    cpu_s : float
        Processor time of its own work; looking at words of others is none.
    wall_s : float
        From when all had come until this rank was done, waiting included.
    """

    cpu_s: float = 0.0
    wall_s: float = 0.0


def awaited(port: Port, wait: Wait, limit_s: float, look: Callable[[], None] | None = None) -> None:
    """Return once all members have come to a stage.

    Parameters
    ----------
    port : Port
    wait : Wait
    limit_s : float
    look : callable, optional
        Called while the rank waits; what it raises ends the wait.

    Raises
    ------
    LateRankError
        If one has not within the time; it names the first.
    WavetankError
        If one says that it does not go on.
    """
    begin_s = time.monotonic()
    while (missing := first_below(port.words, wait.places, wait.step, _LOOKS)) >= 0:
        failed = [member for member in port.failures() if member != port.number]
        if failed:
            raise WavetankError("Another rank does not go on.", given=f"rank {failed[0]}",
                                where=f"{wait.stage}, step {wait.step}")  # fmt: skip
        if look is not None:
            look()
        waited_s = time.monotonic() - begin_s
        if waited_s > limit_s:
            late = wait.members[missing]
            raise LateRankError(
                "A rank is late.", rank=late, stage=wait.stage, given=f"rank {late} after {waited_s:.3g} s",
                allowed=f"{limit_s:g} s", where=f"{wait.stage}, step {wait.step}",
                hint="end its process, then go on without it in a new epoch of the table; or raise the limit",
            )  # fmt: skip
        # Ranks that share a core must let the one that they wait for run.
        if waited_s > _REST_AFTER_S:
            time.sleep(_REST_S)
        else:
            os.sched_yield()


def driven(
    rank: Rank | None, port: Port, program: Program[Any], limit_s: float, taken: Taken | None = None,
    look: Callable[[], None] | None = None,
) -> Any:  # fmt: skip
    """Run a program of one rank to its end and return what it returns.

    Parameters
    ----------
    rank : Rank, optional
        Its points are the program's: planned faults strike there.
    port : Port
    program : generator
    limit_s : float
        How long to wait for others at one stage.
    taken : Taken, optional
        What it took is added here.
    look : callable, optional
        As for :func:`awaited`.

    Raises
    ------
    LateRankError, WavetankError
        As :func:`awaited` does.
    """
    begin_s, cpu_s = time.perf_counter(), 0.0
    from_s = time.thread_time()
    try:
        while True:
            found = next(program)
            if not isinstance(found, Wait):
                if rank is not None:
                    rank.point(found.name, step=found.step)
            elif first_below(port.words, found.places, found.step, 1) >= 0:
                cpu_s += time.thread_time() - from_s
                awaited(port, found, limit_s, look)
                from_s = time.thread_time()
    except StopIteration as end:
        if taken is not None:
            taken.cpu_s += cpu_s + time.thread_time() - from_s
            taken.wall_s += time.perf_counter() - begin_s
        return end.value


class Meeting:
    """A place where all ranks wait for each other.

    Parameters
    ----------
    words : int64 array (ranks * 8,)
        Shared memory, all zero at first.
    number, ranks : int
    """

    def __init__(self, words: Integers, number: int, ranks: int) -> None:
        self._words, self._number, self._met = words, number, 0
        self._places = np.arange(ranks, dtype=np.int64) * _LINE

    def meet(self, limit_s: float) -> None:
        """Return once all ranks have come here as often as this one.

        Raises
        ------
        LateRankError
            If one has not within the time.
        """
        self._met += 1
        publish(self._words, self._number * _LINE, self._met)
        begin_s = time.monotonic()
        while (missing := first_below(self._words, self._places, self._met, _LOOKS)) >= 0:
            if time.monotonic() - begin_s > limit_s:
                raise LateRankError("A rank does not come to the meeting.", rank=missing, stage="meeting",
                                    given=f"rank {missing}", allowed=f"{limit_s:g} s")  # fmt: skip
            os.sched_yield()


def turns_here(
    rank: Rank, contenders: list[list[Any]], task: dict[str, Any], experts: int, load: str, seed: int, rounds: int,
    steps: int, limit_s: float,
) -> dict[str, Any]:  # fmt: skip
    """Run all contenders in turns on this rank; return what each part of each round took, and what was counted.

    Parameters
    ----------
    rank : Rank
    contenders : list of [module, name, settings]
    task : dict
    experts : int
    load : str
    seed : int
    rounds, steps : int
        Rounds after one that is not timed; steps of each.
    limit_s : float
        How long to wait for another rank at one stage.
    """
    shape = Task(**task)
    table = contiguous(experts, shape.ranks)
    exchanges = [getattr(importlib.import_module(module), name)(**settings) for module, name, settings in contenders]
    memory = _shared(rank)
    meeting = Meeting(memory[: shape.ranks * _LINE * 8].view(np.int64), rank.number, shape.ranks)
    ports, begin = [], _PAGE
    for exchange in exchanges:
        ports.append(Port(memory[begin:], exchange, shape, rank.number))
        begin += memory_bytes(exchange, shape)
    mine = [routed_tokens(load, shape, experts, seed, step=step)[rank.number] for step in range(steps)]
    wanted = [dense(each, slopes, shape) for each in mine]
    held = table.expert_of[rank.number * shape.slots : (rank.number + 1) * shape.slots]
    here = {slot: _slope_of(int(expert)) for slot, expert in enumerate(held)}
    found: dict[str, Any] = {"dispatch": [], "combine": [], "wrong": [0] * len(exchanges), "rows": 0}
    output = np.empty((shape.tokens, shape.hidden), shape.dtype)
    try:
        for number in range(rounds + 1):
            taken = {part: [Taken() for _ in exchanges] for part in ("dispatch", "combine")}
            for place in map(int, turned([str(each) for each in range(len(exchanges))], number)):
                exchange, port = exchanges[place], ports[place]
                for step in range(steps):
                    batch = port.begin(batch_of(mine[step], table, rank.number))
                    meeting.meet(limit_s)
                    part = taken["dispatch"][place]
                    arrived = driven(rank, port, exchange.dispatch(port, batch), limit_s, part)
                    driven(rank, port, port.run_experts(arrived, here), limit_s)
                    output.fill(np.nan)
                    meeting.meet(limit_s)
                    part = taken["combine"][place]
                    driven(rank, port, exchange.combine(port, batch, arrived, output), limit_s, part)
                    found["wrong"][place] += int(np.any(output != wanted[step], axis=1).sum())
            if number:
                for name, each in taken.items():
                    found[name].append([[one.cpu_s / steps, one.wall_s / steps] for one in each])
    except WavetankError:
        for port in ports:
            port.fail()
        raise
    found["rows"] = sum(int(each.experts.size) for each in mine) * (rounds + 1)
    found["traffic"] = [
        {name: dataclasses.asdict(counted) for name, counted in port.traffic.items()} for port in ports
    ]  # fmt: skip
    return found


def _shared(rank: Rank) -> NDArray[np.uint8]:
    if rank.shared is None:
        raise BadValueError("Ranks of an exchange share memory.", given="none", hint="give Ranks shared_bytes")
    return rank.shared


def _slope_of(expert: int) -> Any:
    return lambda rows: slopes(expert, rows)


def in_turns(
    exchanges: Sequence[Exchange], task: Task, *, experts: int, load: str = "uniform", seed: int = 0, rounds: int = 3,
    steps: int = 2, limit_s: float = 30.0, timeout_s: float = 600.0, faults: Sequence[Fault] = (),
    cores: Sequence[frozenset[int]] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Run exchanges in turns among real processes; return what each rank found.

    Parameters
    ----------
    exchanges : sequence of Exchange
        Frozen dataclasses of modules.
    task : Task
    experts : int
        Contiguous on ranks.
    load : str
        As for :func:`~wavetank.serving.exchange.workload.routed_tokens`.
    seed : int
    rounds, steps : int
        Rounds after one that is not timed; steps of each.
    limit_s : float
        How long to wait for another rank at one stage.
    timeout_s : float
        For the whole.
    faults : sequence of Fault
        What is to happen at the stages ``counted``, ``placed``, ``computed``, ``done`` and at ``experts``, each with
        its ``step``.
    cores : sequence of frozenset of int
        Where each rank may run.

    Raises
    ------
    WavetankError
        If a rank fails, dies or does not end in time.
    """
    if not exchanges:
        raise BadValueError("There is no exchange to run.", given=0, allowed="1 or more")
    arguments = {
        "contenders": [[type(each).__module__, type(each).__qualname__, _settings(each)] for each in exchanges],
        "task": dataclasses.asdict(task), "experts": experts, "load": load, "seed": seed, "rounds": rounds,
        "steps": steps, "limit_s": limit_s,
    }  # fmt: skip
    size = _PAGE + sum(memory_bytes(each, task) for each in exchanges)
    with Ranks(turns_here, task.ranks, arguments=arguments, timeout_s=limit_s, shared_bytes=size, faults=faults,
               cores=cores) as ranks:  # fmt: skip
        return ranks.values(timeout_s)


def _settings(exchange: Any) -> Mapping[str, Any]:
    return dataclasses.asdict(exchange)


def steps_here(
    rank: Rank, contender: list[Any], task: dict[str, Any], steps: list[list[Any]], expert_of: list[int],
    limit_s: float, ahead: int,
) -> list[Floats]:  # fmt: skip
    """Run some steps of one exchange on this rank and return its sums.

    Parameters
    ----------
    rank : Rank
    contender : list
        Module, name, settings.
    task : dict
    steps : list of [values, experts, gates]
        This rank's are at its number, of all ranks.
    expert_of : list of int
        Of each slot.
    limit_s : float
    ahead : int
        As for :func:`~wavetank.serving.exchange.together.rank_program`.
    """
    from wavetank.serving.exchange.together import rank_program

    module, name, settings = contender
    shape = Task(**task)
    exchange = getattr(importlib.import_module(module), name)(**settings)
    mine = [Routed(*each) for each in steps[rank.number]]
    table = ExpertTable(max(expert_of) + 1, shape.ranks, shape.slots, shape.ranks * shape.slots)
    table.change(expert_of=expert_of)
    port = Port(_shared(rank), exchange, shape, rank.number)
    try:
        return driven(rank, port, rank_program(exchange, port, mine, table, slopes, ahead=ahead), limit_s)
    except WavetankError:
        port.fail()
        raise
