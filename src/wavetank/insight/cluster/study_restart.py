"""Study ``restart-policy``: what to do after a breakdown, so that the job runs again without a human."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.cluster.incidents import Outcome, RestartPolicy, Site, gini, simulate, top_share
from wavetank.platforms.checkpoints import daly_interval_s
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study


@dataclass(frozen=True, kw_only=True)
class RestartPolicies(Study):
    """A job that needs 60 of 63 nodes meets a year of troubles, the same for all policies: disturbances that pass
    within an hour, nodes that turn bad until they are taken out, and software that needs a human.  Monitoring names the
    bad node mostly, and an innocent one often.  A chain is all attempts from a breakdown until the job runs again.
    """

    name: ClassVar[str] = "restart-policy"
    baseline: ClassVar[str] = "restart-by-hand"
    primary: ClassVar[str] = "trained_share"
    secondary: ClassVar[tuple[str, ...]] = ("chain_success", "calls_per_month", "innocent_per_month")
    metrics = (
        Metric("trained_share", "", "higher", "simulated", "time in which the job ran / all time",
               words="time trained"),
        Metric("chain_success", "", "higher", "simulated",
               "chains after which the job ran and nobody had to look for the cause / all chains; at innocent, shares "
               "and reaction: with these troubles", words="chains that succeed"),
        Metric("calls_per_month", "", "lower", "simulated", "chains in which a human acted, in 30 days",
               words="calls of a human"),
        Metric("innocent_per_month", "", "lower", "simulated", "nodes taken out that were well, in 30 days",
               words="innocent nodes taken out"),
        Metric("attempts_per_chain", "", "", "simulated", "restarts / chains"),
        Metric("top3_share", "", "", "simulated", "share of the exclusions that the three most excluded nodes had",
               words="exclusions of three nodes"),
        Metric("exclusions_gini", "", "", "simulated", "Gini coefficient of exclusions over all nodes", table=False),
        Metric("interval_off", "", "lower", "simulated",
               "|interval / best - 1|: Daly's interval for the time between breakdowns that the policy has measured, "
               "beside that for the true one", words="error of the interval between checkpoints"),
    )  # fmt: skip
    charts = (
        Chart("bars", "Chains that succeed without a human", y="chain_success", says="Longer wakes nobody."),
        Chart("pareto", "Training against innocent nodes", x="innocent_per_month", y="trained_share",
              says="Up and to the left is better."),
        Chart("sweep", "As monitoring names more innocent nodes", y="trained_share", by="innocent",
              says="Probability that a failure names one."),
        Chart("sweep", "As more breakdowns are of software", y="chain_success", by="software",
              says="Share of causes that no restart cures; the others are even."),
        Chart("sweep", "As humans react later", y="chain_success", by="reaction_s", log="x",
              says="Who comes late finds that disturbances have passed."),
    )  # fmt: skip

    nodes: int = setting(63, unit="nodes", says="Nodes of the cluster", low=3, high=10_000)
    needed: int = setting(60, unit="nodes", says="Nodes that the job needs", low=3, high=10_000)
    days: float = setting(365.0, unit="days", says="Length of the run", low=1, high=10_000)
    mtbf_h: float = setting(36.0, unit="h", says="Mean time between troubles", low=0.1, high=1e5)
    disturbances: float = setting(1.0, says="Share of disturbances among causes, beside the others", low=0, high=1e6)
    bad_nodes: float = setting(1.0, says="Share of bad nodes, likewise", low=0, high=1e6)
    software: float = setting(1.0, says="Share of software, likewise", low=0, high=1e6)
    named: float = setting(0.9, says="Probability that monitoring names the bad node", low=0, high=1)
    innocent: float = setting(0.5, says="Probability that it names an innocent one", low=0, high=1)
    lemon_share: float = setting(0.6, says="Share of the failures of nodes that three of them have", low=0, high=1)
    reaction_s: float = setting(900.0, unit="s", says="Median time until a human reacts", low=1, high=1e6)
    repair_h: float = setting(24.0, unit="h", says="Time for which an excluded node is away", low=0.1, high=1e5)
    checkpoint_s: float = setting(120.0, unit="s", says="Time that a checkpoint takes", low=0.001, high=1e6)
    innocents: tuple[float, ...] = setting((0.0, 0.2, 0.8), says="Further probabilities of it", low=0, high=1)
    softwares: tuple[float, ...] = setting((0.0, 4.0), says="Further shares of software", low=0, high=1e6)
    reactions: tuple[float, ...] = setting((120.0, 3600.0), unit="s", says="Further reactions", low=1, high=1e6)

    def check(self) -> None:
        """Refuse a site that there cannot be."""
        self.site()
        if self.days * 24 < 10 * self.mtbf_h:
            raise BadValueError("A run has ten troubles at least.", given=f"{self.days} days, one in {self.mtbf_h} h",
                                where=f"study {self.name}, days and mtbf_h")  # fmt: skip

    def site(self) -> Site:
        """Return the cluster and its troubles."""
        return Site(
            nodes=self.nodes, needed=self.needed, days=self.days, mtbf_s=self.mtbf_h * 3600,
            shares=(self.disturbances, self.bad_nodes, self.software), lemons=min(3, self.nodes),
            lemon_share=self.lemon_share, named=self.named, innocent=self.innocent, reaction_s=self.reaction_s,
            repair_s=self.repair_h * 3600,
        )  # fmt: skip

    def opening(self) -> tuple[str, ...]:
        """Return what is assumed."""
        return (
            f"{self.needed} of {self.nodes} nodes train for {self.days:g} days; a trouble every {self.mtbf_h:g} h; "
            f"a human reacts after {self.reaction_s / 60:g} min.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Even shares of causes are an assumption: with them a third of the chains can succeed on the same nodes.",
            "The same troubles strike all policies, at the same times, while the job runs.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run a policy through a year of troubles, and again with other troubles.

        Parameters
        ----------
        system : RestartPolicy
        seed : int
        """
        found = Measurements()
        run = simulate(self.site(), system, seed)
        for metric, value in self._figures(run).items():
            found.put(metric, value)
        for name, values in self._sweeps().items():
            for value in sorted({getattr(self, name), *values}):
                other = self.run_at(system, seed, **{name: value})
                for metric in ("trained_share", "chain_success"):
                    found.put(metric, self._figures(other)[metric], **{name: value})
        return found

    def _sweeps(self) -> Mapping[str, tuple[float, ...]]:
        return {"innocent": self.innocents, "software": self.softwares, "reaction_s": self.reactions}

    def run_at(self, system: RestartPolicy, seed: int, **other: float) -> Outcome:
        """Return a run with other settings.

        Parameters
        ----------
        system : RestartPolicy
        seed : int
        **other : float
        """
        return simulate(replace(self, **other).site(), system, seed)  # type: ignore[arg-type]

    def _figures(self, run: Outcome) -> dict[str, float]:
        months = run.total_s / (30 * 86_400)
        figures = {
            "trained_share": run.trained_s / run.total_s,
            "calls_per_month": run.calls / months,
            "innocent_per_month": run.innocent / months,
            "chain_success": run.succeeded / max(1, run.chains),
            "attempts_per_chain": run.attempts / max(1, run.chains),
        }
        if run.excluded.size:
            counts = np.bincount(run.excluded, minlength=self.nodes)
            figures |= {"top3_share": top_share(counts, 3), "exclusions_gini": gini(counts)}
        if run.gaps_s.size:
            measured = daly_interval_s(self.checkpoint_s, float(run.gaps_s.mean()))
            figures["interval_off"] = abs(measured / daly_interval_s(self.checkpoint_s, self.mtbf_h * 3600) - 1)
        return figures
