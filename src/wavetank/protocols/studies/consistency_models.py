"""Study ``consistency-models``: small replicated stores, and the models that their histories keep to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.consistency.configurations import MODELS, model
from wavetank.protocols.consistency.engine import Limits, judge_all
from wavetank.protocols.consistency.replicas import World, mean_staleness_s, record
from wavetank.protocols.consistency.triangle import corner_of, was_tested
from wavetank.protocols.consistency.visibility import Clocks
from wavetank.rng import stream_key
from wavetank.settings import setting
from wavetank.study import Chart, Measurements, Metric, Study

_TABLE = ("eventual", "pram", "causal", "causal-convergence", "sequential", "linearizable")
_DEFAULT = (
    "eventual", "strong-eventual", "read-your-writes", "monotonic-reads", "monotonic-writes", "writes-follow-reads",
    "slow", "pram", "cache", "causal", "causal-plus", "causal-convergence", "bounded-staleness", "sequential",
    "regular", "delta-atomic", "linearizable",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConsistencyModels(Study):
    """Which consistency models does a replicated store keep to, and what does that cost when its network parts?

    Each store runs many small histories under random delays, half of them with a partition that cuts off one replica
    and its clients; at the end, long after the last write, every client reads every key once more.  The engine judges
    each history; a store lands where the models that allow all its histories end.
    """

    name = "consistency-models"
    baseline = "quorum-store"
    systems = (
        "lww-store", "fifo-store", "causal-store", "sequencer-store", "regular-store", "quorum-store", "primary-store",
    )  # fmt: skip
    metrics = (
        *(
            Metric(
                f"allowed_{name.replace('-', '_')}", "", "", "simulated", f"share of histories that {name} allows"
            )
            for name in _TABLE
        ),
        Metric("availability", "", "higher", "simulated",
               "share of operations answered within the clients' patience, in histories with a partition"),
        Metric("staleness_s", "s", "lower", "simulated",
               "mean over reads of how long what was read had been overwritten"),
        Metric("undecided", "", "lower", "simulated", "share of judgements that ended undecided", table=False),
        Metric("all_three", "", "lower", "simulated",
               "histories with a partition longer than delta that are available, in one order, and timely"),
        Metric("allowed", "", "", "simulated", "share of histories that the model allows", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Share of histories that a model allows", y="allowed", by="model",
              says="A store keeps to a model if its bar reaches 1."),
        Chart("pareto", "Availability against staleness", x="staleness_s", y="availability",
              says="Under a partition a store answers everybody or is never stale."),
    )  # fmt: skip
    default_seeds = 3

    histories: int = setting(16, says="of each store and seed; every second one with a partition", low=2, high=1000)
    clients: int = setting(6, says="of a store, dealt to its replicas", low=2, high=20)
    operations: int = setting(8, says="of each client, before the last reads", low=2, high=50)
    keys: int = setting(2, says="of the store", low=1, high=20)
    delay_s: float = setting(0.05, unit="s", says="mean delay of a message", low=1e-6)
    partition_s: float = setting(2.0, unit="s", says="how long a replica is cut off", low=0.0)
    delta_s: float = setting(0.5, unit="s", says="age from which timely models want a write seen", low=0.0)
    models: tuple[str, ...] = setting(_DEFAULT, says="to judge by", choices=tuple(MODELS))
    judging_s: float = setting(20.0, unit="s", says="wall time for one history, over all models", low=0.1)

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
        allowed = dict.fromkeys(self.models, 0)
        undecided = all_three = 0
        availability: list[float] = []
        stale: list[float] = []
        clocks = Clocks(delta_s=self.delta_s, settled_s=5.0)
        limits = Limits(seconds=self.judging_s)
        for number in range(self.histories):
            world = World(
                clients=self.clients, operations=self.operations, keys=self.keys, delay_s=self.delay_s,
                partition_s=self.partition_s if number % 2 else 0.0, think_s=0.1,
            )  # fmt: skip
            run = record(system, world, stream_key(seed, "consistency-models", number))
            judged = judge_all(run.history, self.models, clocks=clocks, limits=limits)
            for name, each in judged.items():
                allowed[name] += each.outcome == "holds"
                undecided += each.outcome == "undecided"
            stale.append(mean_staleness_s(run.history))
            if number % 2:
                availability.append(run.availability)
                if self.partition_s > self.delta_s and was_tested(run, world, self.delta_s):
                    all_three += corner_of(run, self.delta_s, limits).impossible
        return self._figures(allowed, undecided, all_three, availability, stale)

    def _figures(
        self,
        allowed: dict[str, int],
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
