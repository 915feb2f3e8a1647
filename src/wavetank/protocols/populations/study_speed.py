"""Study ``population-speed``: how fast simulators of population protocols are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.errors import WavetankError
from wavetank.settings import setting
from wavetank.study.study import Chart, Metric
from wavetank.study.timing import Case, Seconds, TimingStudy

PROTOCOLS = ("approximate-majority", "exact-majority", "rock-paper-scissors")
_SHARES: Mapping[str, Mapping[str, float]] = {
    "approximate-majority": {"a": 0.51, "b": 0.49},
    "exact-majority": {"a": 0.51, "b": 0.49},
    "rock-paper-scissors": {"a": 0.34, "b": 0.33, "c": 0.33},
}


@dataclass(frozen=True, kw_only=True)
class PopulationSpeed(TimingStudy):
    """Every system simulates the same number of interactions from the same counts of letters, from building its
    agents to counting them at the end.  Figures of a round are of the same moment, one system after the other.
    """

    name = "population-speed"
    baseline = "population-sequential"
    cases_by = "protocol"
    metrics = (
        Metric("interactions_per_s", "interactions/s", "higher", "measured", "interactions simulated / wall time"),
        Metric(
            "slowest_interactions_per_s", "interactions/s", "higher", "measured",
            "least interactions_per_s over the protocols, same round",
            table=False,
        ),
    )  # fmt: skip
    charts = (
        Chart(
            "bars", "Interactions per second", y="interactions_per_s", by="protocol", log="x", says="Longer is faster."
        ),
    )

    agents: int = setting(1_000_000, unit="agents", says="Agents in the population", low=100, high=1 << 31)
    interactions: int = setting(
        3_000_000,
        unit="interactions",
        says="Interactions per call; a protocol that settles earlier is refused",
        low=1,
        high=10**12,
    )
    protocols: tuple[str, ...] = setting(PROTOCOLS, says="Protocols that are simulated", choices=PROTOCOLS)

    def case_names(self, seed: int) -> Sequence[str]:
        """Return the protocols."""
        return self.protocols

    def case(self, name: str, seed: int) -> Case:
        """Return a protocol, how many agents start with each letter, and the seed."""
        from wavetank.protocols.populations import textbook

        protocol = {
            "approximate-majority": textbook.approximate_majority,
            "exact-majority": textbook.majority,
            "rock-paper-scissors": textbook.rock_paper_scissors,
        }[name]()
        counts = {letter: int(share * self.agents) for letter, share in _SHARES[name].items()}
        counts["a"] += self.agents - sum(counts.values())
        return Case(name, (protocol, protocol.counts(counts), seed))

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the simulator's call."""
        protocol, counts, seed = case.data
        return lambda: system.run(protocol, counts, interactions=self.interactions, seed=seed)

    def verify(self, case: Case, system: str, result: object) -> None:
        """Check that the simulator did all the work and lost no agent."""
        found: Any = result
        if int(found.counts.sum()) != self.agents:
            raise WavetankError(f"{system} lost agents.", given=int(found.counts.sum()), allowed=str(self.agents))
        if found.interactions != self.interactions:
            raise WavetankError(
                f"{system} stopped early: nothing could change any more.",
                given=f"{found.interactions} of {self.interactions} interactions",
                where=case.name,
                hint="--set interactions=N with fewer of them, or more agents",
            )

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> dict[str, float]:
        """Return the rate."""
        return {"interactions_per_s": self.interactions / times[name]}

    def round_figures(self, name: str, times: Mapping[str, Seconds]) -> dict[str, float]:
        """Return the least rate."""
        return {"slowest_interactions_per_s": self.interactions / max(times[name].values())}
