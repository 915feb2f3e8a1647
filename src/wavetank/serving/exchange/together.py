"""All ranks of an exchange in one process, which go on in any order: what a delay or an early read would break, shows.

Each rank's program stops at every stage and, where a copy is cut into parts, between its parts.  Who goes on next is
asked each time, so that an adversary, or chance, can try the orders that a machine would show once in a million steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wavetank.errors import WavetankError
from wavetank.machine.atomic_words import first_below
from wavetank.serving.exchange.interface import Exchange, Experts, Floats, Point, Program, Task, Wait
from wavetank.serving.exchange.port import Port, memory_bytes
from wavetank.serving.exchange.reference import Routed, batch_of
from wavetank.serving.exchange.table import ExpertTable

# The ranks that can go on, and where each stands, to the one that does.
Order = Callable[[Sequence[int], Sequence[Point | None]], int]


def rank_program(
    exchange: Exchange, port: Port, steps: Sequence[Routed], table: ExpertTable, experts: Experts, *,
    ahead: int = 0,
) -> Program[list[Floats]]:  # fmt: skip
    """Return what a rank does in some steps; it returns the sums of each.

    Parameters
    ----------
    exchange : Exchange
    port : Port
    steps : sequence of Routed
        Its own tokens.
    table : ExpertTable
    experts : callable
    ahead : int
        How many steps' tokens leave before a step's outputs are read: 0 or 1.  With more, windows that are still
        needed would be written to again, and the rank waits for itself.
    """
    held = table.expert_of[port.number * port.task.slots : (port.number + 1) * port.task.slots]
    here = {slot: (lambda rows, expert=int(expert): experts(expert, rows)) for slot, expert in enumerate(held)}
    sums: list[Floats] = []
    open_steps: list[tuple[int, Any, Any]] = []
    for routed in steps:
        batch = port.begin(batch_of(routed, table, port.number))
        arrived = yield from exchange.dispatch(port, batch)
        open_steps.append((port.step, batch, arrived))
        if len(open_steps) > ahead:
            sums.append((yield from _finish(exchange, port, here, *open_steps.pop(0))))
    while open_steps:
        sums.append((yield from _finish(exchange, port, here, *open_steps.pop(0))))
    return sums


def _finish(exchange: Exchange, port: Port, experts: Any, step: int, batch: Any, arrived: Any) -> Program[Floats]:
    now, port.step = port.step, step
    yield from port.run_experts(arrived, experts)
    output = np.empty((batch.values.shape[0], port.task.hidden), port.task.dtype)
    yield from exchange.combine(port, batch, arrived, output)
    port.step = now
    return output


class Together:
    """Ranks that share this process.

    Parameters
    ----------
    exchange : Exchange
    task : Task
    table : ExpertTable
    experts : callable
        Number of an expert and its rows to their outputs.
    grain : int
        Rows of a copy after which another rank may go on; 0: none.
    """

    def __init__(
        self, exchange: Exchange, task: Task, table: ExpertTable, experts: Experts, *, grain: int = 0
    ) -> None:
        self.exchange, self.task, self.table, self.experts = exchange, task, table, experts
        self.memory = np.zeros(memory_bytes(exchange, task), np.uint8)
        self.ports = [
            Port(self.memory, exchange, task, rank, members=table.members, grain=grain) for rank in range(task.ranks)
        ]

    def run(
        self, steps: Sequence[Sequence[Routed]], *, order: Order | None = None, ahead: int = 0
    ) -> list[list[Floats]]:  # fmt: skip
        """Run some steps and return each rank's sums of each.

        Parameters
        ----------
        steps : sequence of sequence of Routed
            By rank.
        order : callable, optional
            Who goes on next; the first that can, by default.
        ahead : int
            As for :func:`rank_program`.

        Raises
        ------
        WavetankError
            If no rank can go on.
        """
        members = self.table.members
        programs = {
            rank: rank_program(self.exchange, self.ports[rank], steps[rank], self.table, self.experts, ahead=ahead)
            for rank in members
        }  # fmt: skip
        waits: dict[int, Wait | None] = dict.fromkeys(members)
        points: dict[int, Point | None] = dict.fromkeys(members)
        results: dict[int, list[Floats]] = {}
        while programs:
            ready = [rank for rank in programs if self._ready(rank, waits[rank])]
            if not ready:
                lines = [f"rank {rank}: {wait.stage} {wait.step}" for rank in programs if (wait := waits[rank])]
                raise WavetankError("No rank can go on.", given="; ".join(lines))
            rank = ready[0] if order is None else order(ready, [points[each] for each in ready])
            try:
                found = next(programs[rank])
            except StopIteration as end:
                results[rank] = end.value
                del programs[rank]
                continue
            waits[rank] = found if isinstance(found, Wait) else None
            points[rank] = found if isinstance(found, Point) else points[rank]
        return [results.get(rank, []) for rank in range(self.task.ranks)]

    def _ready(self, rank: int, wait: Wait | None) -> bool:
        return wait is None or first_below(self.ports[rank].words, wait.places, wait.step, 1) < 0
