"""Small tasks, experts, and an independent answer for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.serving.exchange.interface import Arrived, Batch, Floats, Program, Task
from wavetank.serving.exchange.port import Port
from wavetank.serving.exchange.reference import Routed
from wavetank.serving.exchange.relay_free import RelayFree
from wavetank.serving.exchange.rivals import AllToAll, LowLatencyLayout, RelayBuffers
from wavetank.serving.exchange.table import contiguous
from wavetank.serving.exchange.workload import routed_tokens

PACKED, FIXED = RelayFree(schedule="packed"), RelayFree(schedule="fixed")
EXCHANGES = (PACKED, FIXED, RelayBuffers(), AllToAll(), LowLatencyLayout())


def small(ranks: int = 3, experts: int = 8, **given: Any) -> Task:
    """Return a task whose slots hold so many experts."""
    sizes = {"hidden": 8, "tokens": 5, "choices": 3, **given}
    return Task(ranks=ranks, slots=contiguous(experts, ranks).slots, **sizes)


def rank_steps(load: str, task: Task, experts: int, steps: int, seed: int = 0) -> list[list[Routed]]:
    """Return tokens by rank and step; how many there are differs, and some ranks have none."""
    rng = np.random.default_rng(seed)
    every = [routed_tokens(load, task, experts, seed, step=step) for step in range(steps)]
    return [
        [Routed(*(part[:count] for part in every[step][rank])) for step in range(steps)
         for count in (int(rng.integers(0, task.tokens + 1)),)]
        for rank in range(task.ranks)
    ]  # fmt: skip


def layers(hidden: int, inner: int, experts: int) -> Any:
    """Return real experts, two layers each, whose rows are computed number by number in one order."""
    rng = np.random.default_rng(3)
    first, second = rng.standard_normal((experts, hidden, inner)), rng.standard_normal((experts, inner, hidden))

    def expert(number: int, rows: Floats) -> Floats:
        within = np.zeros((rows.shape[0], inner))
        for place in range(hidden):
            within += rows[:, place : place + 1] * first[number, place]
        within = np.maximum(within, 0.0)
        found = np.zeros_like(rows, np.float64)
        for place in range(inner):
            found += within[:, place : place + 1] * second[number, place]
        return found.astype(rows.dtype)

    return expert


def token_by_token(routed: Routed, expert: Any) -> Floats:
    """Return the sums of vectors that travel as they are, one token and choice after the other."""
    found = np.zeros_like(routed.values)
    for token in range(routed.values.shape[0]):
        for choice in range(routed.experts.shape[1]):
            made = expert(int(routed.experts[token, choice]), routed.values[token : token + 1])[0]
            found[token] = found[token] + routed.gates[token, choice] * made
    return found


@dataclass(frozen=True, kw_only=True)
class Spoilt(RelayFree):
    """An exchange that changes the first sum of each step, or leaves all sums as they were."""

    writes: bool = True

    def combine(self, port: Port, batch: Batch, arrived: Arrived, output: Floats) -> Program[None]:
        own = output if self.writes else np.empty_like(output)
        yield from super().combine(port, batch, arrived, own)
        if self.writes:
            own[0, 0] += 1
