"""Study ``consistency-models``: small replicated stores, and the models that their histories keep to."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.check.consistency.configurations import MODELS, model
from wavetank.check.consistency.engine import judge_all
from wavetank.check.consistency.visibility import Clocks
from wavetank.check.report import Budget
from wavetank.errors import BadValueError
from wavetank.protocols.histories.replicas import World, mean_staleness_s, record
from wavetank.protocols.histories.triangle import corner_of, was_tested
from wavetank.settings import setting
from wavetank.sim.history import History, Operation
from wavetank.sim.rng import stream_key
from wavetank.study.study import Chart, Measurements, Metric, Study

_TABLE = ("eventual", "pram", "causal", "causal-convergence", "sequential", "linearizable")
_DEFAULT = (
    "eventual", "strong-eventual", "read-your-writes", "monotonic-reads", "monotonic-writes", "writes-follow-reads",
    "slow", "pram", "cache", "causal", "causal-plus", "causal-convergence", "bounded-staleness", "sequential",
    "regular", "delta-atomic", "linearizable",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConsistencyModels(Study):
    """Each store runs many small histories under random delays, half of them with a partition that cuts off one replica
    and its clients; at the end, long after the last write, every client reads every key once more.  The engine judges
    each history; a store lands where the models that allow all its histories end.
    """

    name = "consistency-models"
    baseline = "quorum-store"
    primary = "availability"
    secondary = ("staleness_s",)
    metrics = (
        *(
            Metric(
                f"allowed_{name.replace('-', '_')}", "", "", "simulated",
                f"share of histories that {name} allows; none where one is undecided",
            )
            for name in _TABLE
        ),
        Metric("availability", "", "higher", "simulated",
               "share of operations answered within the clients' patience, in histories with a partition"),
        Metric("staleness_s", "s", "lower", "simulated",
               "mean over reads of the time since the value read was overwritten"),
        Metric("undecided", "", "lower", "measured", "share of judgements that did not end in time", table=False),
        Metric("all_three", "", "lower", "simulated",
               "histories with a partition longer than delta that are available, in one order, and timely"),
        Metric("allowed", "", "", "simulated", "share of histories that the model allows", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Share of histories that a model allows", y="allowed", by="model",
              says="A store satisfies a model if its bar reaches 1."),
        Chart("pareto", "Availability against staleness", x="staleness_s", y="availability",
              says="Under a partition, a store either answers all clients or is never stale."),
    )  # fmt: skip
    default_seeds = 6

    histories: int = setting(
        16, says="Histories per store and seed; every second history has a partition", low=2, high=1000
    )
    clients: int = setting(6, says="Clients per store, distributed over its replicas", low=2, high=20)
    operations: int = setting(8, says="Operations per client, before the last reads", low=2, high=50)
    keys: int = setting(2, says="Keys per store", low=1, high=20)
    delay_s: float = setting(0.05, unit="s", says="Mean delay of a message", low=1e-6)
    partition_s: float = setting(2.0, unit="s", says="Duration for which a replica is cut off", low=0.0)
    delta_s: float = setting(0.5, unit="s", says="Age from which timely models require a write to be visible", low=0.0)
    models: tuple[str, ...] = setting(_DEFAULT, says="Models to judge by", choices=tuple(MODELS))
    judging_s: float = setting(60.0, unit="s", says="Wall time for one history, over all models", low=0.1)

    def check(self) -> None:
        """Refuse settings that leave out a model of the table."""
        for name in self.models:
            model(name)
        missing = [name for name in _TABLE if name not in self.models]
        if missing:
            raise BadValueError(
                "The summary needs these models too.", given=", ".join(missing), allowed=_TABLE, where="models"
            )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "A model that allows every history of a store is not proven for it; one that forbids a history is refuted.",
            "Eventual models hold the last reads, 10 s after the partition, against the writes; "
            f"delta is {self.delta_s:g} s.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run and judge one store's histories."""
        allowed = dict.fromkeys(self.models, 0.0)
        undecided = all_three = 0
        availability: list[float] = []
        stale: list[float] = []
        clocks = Clocks(delta_s=self.delta_s, settled_s=5.0)
        budget = Budget(seconds=self.judging_s, memory_bytes=2**30)
        _compile(self.models)
        for number in range(self.histories):
            world = World(
                clients=self.clients, operations=self.operations, keys=self.keys, delay_s=self.delay_s,
                partition_s=self.partition_s if number % 2 else 0.0, think_s=0.1,
            )  # fmt: skip
            run = record(system, world, stream_key(seed, "consistency-models", number))
            judged = judge_all(run.history, self.models, clocks=clocks, budget=budget)
            for name, each in judged.items():
                # A history that was not judged in time says nothing, so neither does a share that would leave it out.
                allowed[name] += math.nan if each.outcome == "undecided" else each.outcome == "holds"
                undecided += each.outcome == "undecided"
            stale.append(mean_staleness_s(run.history))
            if number % 2:
                availability.append(run.availability)
                if self.partition_s > self.delta_s and was_tested(run, world, self.delta_s):
                    all_three += corner_of(run, self.delta_s, budget).impossible
        return self._figures(allowed, undecided, all_three, availability, stale)

    def _figures(
        self,
        allowed: dict[str, float],
        undecided: int,
        all_three: int,
        availability: Sequence[float],
        stale: Sequence[float],
    ) -> Measurements:
        found = Measurements()
        for name in _TABLE:
            found.put(f"allowed_{name.replace('-', '_')}", allowed[name] / self.histories)
        for name, count in allowed.items():
            found.put("allowed", count / self.histories, model=name)
        found.put("availability", sum(availability) / len(availability))
        found.put("staleness_s", sum(stale) / len(stale))
        found.put("undecided", undecided / (self.histories * len(self.models)))
        found.put("all_three", all_three)
        return found


@functools.cache
def _compile(models: tuple[str, ...]) -> None:
    """Judge a history of one write and one read, so that no other history waits for the compiler."""
    operations = (
        Operation(process="a", invoked=0.0, returned=1.0, action="write", key="x", value=1),
        Operation(process="b", invoked=2.0, returned=3.0, action="read", key="x", result=1),
    )
    judge_all(History(operations=operations), models, clocks=Clocks(), budget=Budget(seconds=600.0))
