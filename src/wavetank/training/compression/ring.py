"""Two ways to sum over ranks, for any scheme: around a ring, and by direct exchange.  And ranks that take turns here.

**Ring.**  The numbers are cut into as many parts as there are ranks.  In size - 1 rounds each rank sends a part to the
next one and adds what it gets to its own; then each has the sum of one part, which travels size - 1 rounds further, as
it is.  **Direct.**  Each rank sends every other its part, sums what it gets, and sends the sum to all: as many rounds
and bytes, and nothing is decoded and coded again on its way.  Where something is lost by coding, every rank decodes the
sums that it sends itself, so that all ranks end with the same numbers.

Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.training.compression.interface import Collective, Floats, Message, Rounds, Scheme, Task, Work


def ring(scheme: Scheme, values: Floats, place: int, task: Task, work: Work) -> Rounds:
    """Run one rank's part of a ring.

    Parameters
    ----------
    scheme : Scheme
    values : float32 array (n,)
    place : int
    task : Task
    work : Work
    """
    check_values(values, place, task)
    held = yield from scheme.begin(values, place, task, work)
    parts, size = task.parts, task.size
    if size == 1:
        return scheme.end(held, task, work)
    for turn in range(size - 1):
        sends, gets = parts[(place - turn) % size], parts[(place - turn - 1) % size]
        data = scheme.encode(held[sends], sends, task, work, last=False)
        arrived = yield Message(1, data, sends.stop - sends.start)
        held[gets] += scheme.decode(arrived, gets, task, work, when="before")
        work.did("add", gets.stop - gets.start)
    own = parts[(place + 1) % size]
    data = scheme.encode(held[own], own, task, work, last=True)
    if not scheme.lossless:
        # What the others get is what this rank keeps.
        held[own] = scheme.decode(data, own, task, work, when="after")
    for turn in range(size - 1):
        sends, gets = parts[(place + 1 - turn) % size], parts[(place - turn) % size]
        data = yield Message(1, data, sends.stop - sends.start)
        held[gets] = scheme.decode(data, gets, task, work, when="after")
    return scheme.end(held, task, work)


def direct(scheme: Scheme, values: Floats, place: int, task: Task, work: Work) -> Rounds:
    """Run one rank's part of a direct exchange.

    Parameters
    ----------
    scheme, values, place, task, work
        As for :func:`ring`.
    """
    check_values(values, place, task)
    held = yield from scheme.begin(values, place, task, work)
    parts, size = task.parts, task.size
    if size == 1:
        return scheme.end(held, task, work)
    own = parts[place]
    for distance in range(1, size):
        sends = parts[(place + distance) % size]
        data = scheme.encode(held[sends], sends, task, work, last=False)
        arrived = yield Message(distance, data, sends.stop - sends.start)
        # The last one is waited for: the sum is sent next.
        when = "after" if distance + 1 < size else "before"
        held[own] += scheme.decode(arrived, own, task, work, when=when)
        work.did("add", own.stop - own.start, when)
    data = scheme.encode(held[own], own, task, work, last=True)
    if not scheme.lossless:
        held[own] = scheme.decode(data, own, task, work, when="after")
    for distance in range(1, size):
        gets = parts[(place - distance) % size]
        arrived = yield Message(distance, data, own.stop - own.start)
        held[gets] = scheme.decode(arrived, gets, task, work, when="after")
    return scheme.end(held, task, work)


def check_values(values: Floats, place: int, task: Task) -> None:
    """Refuse numbers that are not those of the task.

    Raises
    ------
    BadValueError
        For another dtype or count, or a rank that is none.
    """
    if values.dtype != np.float32 or values.ndim != 1 or values.size != task.count:
        raise BadValueError("A rank sums the numbers of its task.", given=f"{values.dtype} {values.shape}",
                            allowed=f"float32 ({task.count},)")  # fmt: skip
    if not 0 <= place < task.size:
        raise BadValueError("There is no such rank.", given=place, allowed=f"0 to {task.size - 1}")


class Round(NamedTuple):
    """What happened between two messages of every rank, and the messages.

    Parameters
    ----------
    work : tuple of Work
        By rank, before this message.
    numbers : int64 array (ranks,)
        That the messages stand for.
    n_bytes : int64 array (ranks,)
        Of the messages.
    distance : int
    """

    work: tuple[Work, ...]
    numbers: NDArray[np.int64]
    n_bytes: NDArray[np.int64]
    distance: int


@dataclass(frozen=True)
class Played:
    """An all-reduce among ranks that took turns in one process.

    Parameters
    ----------
    sums : list of float32 array (n,)
        What each rank has at the end.
    rounds : list of Round
    rest : tuple of Work
        What each rank did after its last message had arrived.
    """

    sums: list[Floats]
    rounds: list[Round]
    rest: tuple[Work, ...]

    @property
    def sent_bytes(self) -> int:
        """Bytes that all ranks sent."""
        return sum(int(each.n_bytes.sum()) for each in self.rounds)


def play(collective: Collective, members: Sequence[Floats], task: Task) -> Played:
    """Sum over ranks that take turns in this process; every message is made and read as between processes.

    Parameters
    ----------
    collective : Collective
    members : sequence of float32 array (n,)
        Each rank's numbers; they are not changed.
    task : Task

    Raises
    ------
    BadValueError
        If there are more or fewer than the task's ranks, or a rank ends before the others.
    """
    if len(members) != task.size:
        raise BadValueError("Each rank has its numbers.", given=len(members), allowed=str(task.size))
    works = [Work() for _ in members]
    running = [
        collective.rounds(values, place, task, work)
        for place, (values, work) in enumerate(zip(members, works, strict=True))
    ]
    sums: list[Floats] = []
    found: list[Round] = []
    arrived: list[bytes] | None = None
    while not sums:
        messages = []
        for place, each in enumerate(running):
            try:
                messages.append(next(each) if arrived is None else each.send(arrived[place]))
            except StopIteration as end:
                sums.append(end.value)
        if messages:
            if sums or len({each.distance for each in messages}) != 1:
                raise BadValueError("Ranks do not do the same rounds.", given=f"{len(sums)} of {task.size} have ended")
            found.append(Round(
                tuple(work.taken() for work in works), np.array([each.numbers for each in messages]),
                np.array([len(each.data) for each in messages]), messages[0].distance,
            ))  # fmt: skip
            arrived = [messages[(place - messages[0].distance) % task.size].data for place in range(task.size)]
    return Played(sums, found, tuple(works))
