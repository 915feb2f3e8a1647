"""Study ``expert-exchange``: what it takes to bring tokens to experts of other ranks and outputs back."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.serving.exchange.interface import DTYPES, WIRES, Task
from wavetank.serving.exchange.live import in_turns
from wavetank.serving.exchange.port import reserved_bytes
from wavetank.serving.exchange.published import TABLE, Machine, deviation
from wavetank.serving.exchange.relay_free import RelayFree
from wavetank.serving.exchange.rivals import RelayBuffers
from wavetank.serving.exchange.workload import LOADS
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial

_PARTS = ("dispatch", "combine")


@dataclass(frozen=True, kw_only=True)
class ExpertExchange(Study):
    """Processes of this machine share memory, and take all exchanges in turns, round after round. Each round has some
    steps with tokens of their own; every token's sum is held against the one computed without any exchange, to the last
    digit. Experts are a stand-in and are not timed. All exchanges are made of the same compiled copies.
    """

    name: ClassVar[str] = "expert-exchange"
    baseline: ClassVar[str] = "relay-buffers"
    primary: ClassVar[str] = "dispatch_s"
    secondary: ClassVar[tuple[str, ...]] = ("combine_s", "dispatch_bytes_per_token", "reserved_bytes")
    must_be_zero: ClassVar[tuple[str, ...]] = ("wrong_rows",)
    in_process: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("dispatch_s", "s", "lower", "measured", "processor time from the tokens of a step to rows before their "
               "experts, of the rank that takes most, without waiting: median over rounds", words="dispatch"),
        Metric("combine_s", "s", "lower", "measured", "processor time from outputs to the sums of a rank's tokens, of "
               "the rank that takes most, without waiting: median over rounds", words="combine"),
        Metric("dispatch_wall_s", "s", "lower", "measured", "from when all ranks begin until the last has its rows, "
               "where each rank has a core: median over rounds", words="dispatch with waiting"),
        Metric("combine_wall_s", "s", "lower", "measured", "from when all ranks begin until the last has its sums, "
               "where each rank has a core: median over rounds", words="combine with waiting"),
        Metric("dispatch_bytes_per_token", "bytes", "lower", "counted", "bytes of vectors that copies of the dispatch "
               "read and write, of all ranks / tokens", words="bytes of a dispatch"),
        Metric("dispatch_writes", "", "lower", "counted", "times that a routed token's vector is written on its way",
               words="writes of a routed token"),
        Metric("combine_reads", "", "lower", "counted", "times that an output is read on its way",
               words="reads of an output"),
        Metric("far_share", "", "lower", "counted", "bytes that go between ranks / bytes of routed tokens and outputs",
               table=False),
        Metric("reserved_bytes", "bytes", "lower", "counted", "memory of a rank for vectors and outputs on their way, "
               "with room for any routing and for two steps", words="reserved memory"),
        Metric("wrong_rows", "rows", "lower", "counted", "tokens whose sum differs from the one without an exchange",
               words="wrong rows"),
        Metric("modelled_dispatch_s", "s", "lower", "modelled", "dispatch on the paper's machine, by the wire and the "
               "numbers of a vector", table=False),
        Metric("modelled_combine_s", "s", "lower", "modelled", "combine on the paper's machine", table=False),
        Metric("modelled_off_table", "", "lower", "modelled", "largest deviation of the model from the paper's cells, "
               "as a share of each", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Dispatch", y="dispatch_s", says="Processor time of the slowest rank; shorter is faster."),
        Chart("bars", "Combine", y="combine_s", says="Processor time of the slowest rank; shorter is faster."),
        Chart("bars", "Bytes that a dispatch reads and writes for each token", y="dispatch_bytes_per_token",
              says="Counted; shorter is fewer copies."),
    )  # fmt: skip

    ranks: int = setting(2, unit="ranks", says="Processes", low=2, high=8)
    experts: int = setting(16, says="Experts, contiguous on ranks", low=1, high=1024)
    choices: int = setting(4, says="Experts of a token", low=1, high=64)
    tokens: int = setting(64, unit="tokens", says="Tokens of a rank and step", low=1, high=16384)
    hidden: int = setting(4096, says="Numbers of a token's vector", low=8, high=65536)
    wire: str = setting("plain", says="How vectors travel to experts: as they are, or as int8 with a scale each",
                        choices=WIRES)  # fmt: skip
    dtype: str = setting("float32", says="Numbers of vectors and outputs", choices=DTYPES)
    load: str = setting("uniform", says="Which experts tokens choose: all alike, by Zipf's law, every second one, or "
                        "the same for all tokens", choices=LOADS)  # fmt: skip
    rounds: int = setting(9, says="Rounds after one that is not timed", low=1, high=1000)
    steps: int = setting(4, says="Steps of a round", low=2, high=1000)

    def task(self) -> Task:
        """Return what the ranks know beforehand."""
        return Task(ranks=self.ranks, slots=-(-self.experts // self.ranks), hidden=self.hidden, tokens=self.tokens,
                    choices=self.choices, dtype=self.dtype, wire=self.wire)  # fmt: skip

    def check(self) -> None:
        """Refuse more choices than experts, and vectors that are no whole number of words."""
        if self.choices > self.experts:
            raise BadValueError("A token's experts are different ones.", given=self.choices,
                                allowed=f"at most {self.experts}", where="choices")  # fmt: skip
        self.task()

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        found = [
            "Memory of other ranks is the same memory here, neither farther nor slower, and ranks share its bandwidth.",
            "One-sided windows of MPI are left out: mpi4py is not among the libraries.",
        ]
        if not self._own_cores():
            found.append("Ranks share cores: times with waiting are left out.")
        return tuple(found)

    def _own_cores(self) -> bool:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.ranks <= cores

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial for each seed: all systems take turns in the same processes."""
        return [Trial(systems=tuple(systems), seed=seed) for seed in seeds]

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Run all systems in turns."""
        names = list(built)
        every = in_turns([built[name] for name in names], self.task(), experts=self.experts, load=self.load,
                         seed=trial.seed, rounds=self.rounds, steps=self.steps)  # fmt: skip
        return [
            record
            for place, name in enumerate(names)
            for record in self.stamp(name, trial.seed, self.figures(built[name], place, every))
        ]

    def figures(self, system: Any, place: int, every: Sequence[Mapping[str, Any]]) -> Measurements:
        """Return the figures of one system.

        Parameters
        ----------
        system : Exchange
        place : int
            Among those that took turns.
        every : sequence of mapping
            What each rank found.
        """
        found, task = Measurements(), self.task()
        for part in _PARTS:
            for kind, name in enumerate((f"{part}_s", f"{part}_wall_s")):
                slowest = [max(rank[part][turn][place][kind] for rank in every) for turn in range(self.rounds)]
                if kind == 0 or self._own_cores():
                    found.put(name, statistics.median(slowest))
        rows = sum(rank["rows"] for rank in every)
        counted = [rank["traffic"][place] for rank in every]
        read, written, far = (
            {part: sum(each[part][f"{name}_bytes"] for each in counted) for part in _PARTS}
            for name in ("read", "written", "far")
        )
        found.put("dispatch_bytes_per_token", (read["dispatch"] + written["dispatch"]) * self.choices / rows)
        found.put("dispatch_writes", written["dispatch"] / rows / task.row_bytes)
        found.put("combine_reads", read["combine"] / rows / task.output_bytes)
        found.put("far_share", sum(far.values()) / rows / (task.row_bytes + task.output_bytes))
        found.put("reserved_bytes", reserved_bytes(system, task))
        found.put("wrong_rows", sum(rank["wrong"][place] for rank in every))
        if isinstance(system, RelayFree | RelayBuffers):
            relay, machine = isinstance(system, RelayBuffers), Machine()
            for part, wire, hidden in TABLE:
                took_s = machine.operator_s(part, wire, hidden, relay=relay)
                found.put(f"modelled_{part}_s", took_s, wire=wire, hidden=hidden)
            cells = [deviation(*cell, relay=relay) for cell in TABLE]
            found.put("modelled_off_table", max(cells))
        return found
