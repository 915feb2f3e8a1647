"""Study ``grey-failures``: which agent repairs failing services without breaking others."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.insight.repair.aurora import Aurora, FittedAurora, escalated
from wavetank.insight.repair.interface import (
    Cuts,
    Decisions,
    Episodes,
    FittedAgent,
    Flags,
    Learning,
    RepairAgent,
    cuts_of,
)  # fmt: skip
from wavetank.insight.repair.rivals import RepairOracle
from wavetank.insight.repair.scoring import harmful, risk, rolled_back, scored, trigger_of
from wavetank.insight.repair.simulated_service import episodes, graph
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

_COVERAGES = (0.05, 0.1, 0.2, 0.34, 0.5, 0.66, 0.8, 1.0)
_HEALTHY = 2000
_JUDGED_AFTER = (1, 3, 5)


class Drawn(NamedTuple):
    """What one seed draws at one mixing.

    Attributes
    ----------
    learning : Learning
    cases : Episodes
        That judge.
    unknown : Episodes
        More cases, all with faults that no graph has.
    looked_at : float
        Share of judging episodes that are cases.
    false_looks : float
        Share of healthy episodes, other than those that set the trigger, that are looked at.
    which : Flags
        Of the judging episodes, those that are cases.
    """

    learning: Learning
    cases: Episodes
    unknown: Episodes
    looked_at: float
    false_looks: float
    which: Flags


@functools.lru_cache(maxsize=12)
def drawn(seed: int, mixing: float, wrong: int, train: int, judged: int, severity: tuple[float, float]) -> Drawn:
    """Return what one seed draws: agents learn from episodes that are not among those that judge them.

    Parameters
    ----------
    seed : int
    mixing : float
    wrong : int
        Wrong edges of the graph.
    train, judged : int
        Episodes.
    severity : tuple of float
    """

    def draw(purpose: str, count: int, healthy: float = 0.1, double: float = 0.1, unknown: float = 0.0) -> Episodes:
        return episodes(seed, purpose, count, mixing=mixing, severity=severity, healthy=healthy, double=double,
                        unknown=unknown)  # fmt: skip

    healthy = draw("healthy", _HEALTHY, healthy=1.0, double=0.0)
    cuts: Cuts = cuts_of(healthy)
    trigger = trigger_of(healthy, cuts)
    history = draw("history", train)
    validation, tests = draw("validation", train), draw("judged", judged, unknown=0.1)
    unknown = draw("unknown", judged, healthy=0.0, double=0.0, unknown=1.0)
    others = draw("other healthy", _HEALTHY, healthy=1.0, double=0.0)
    looked, strange = trigger.cases(tests), trigger.cases(unknown)
    if not looked.any() or not strange.any():
        raise BadValueError("No episode is a case: nobody looks at a service whose faults are so faint.",
                            given=f"severity {severity[0]:g} to {severity[1]:g}, {judged} episodes",
                            hint="more episodes, or faults that are severer")  # fmt: skip
    learning = Learning(
        healthy, history, history.chosen(trigger.cases(history)), validation.chosen(trigger.cases(validation)),
        graph(wrong, seed), seed,
    )  # fmt: skip
    return Drawn(learning, tests.chosen(looked), unknown.chosen(strange), float(looked.mean()),
                 float(trigger.cases(others).mean()), looked)  # fmt: skip


def afterwards(of: Drawn, seed: int, mixing: float, severity: tuple[float, float], decisions: Decisions) -> Episodes:
    """Return the judging cases after the actions that were taken: a right one removes its fault, others nothing.

    Parameters
    ----------
    of : Drawn
        Of the same seed, mixing and severity.
    seed : int
    mixing : float
    severity : tuple of float
    decisions : Decisions
    """
    repaired = np.full(of.which.size, -1, np.int64)
    repaired[of.which] = np.where(decisions.acts & ~harmful(of.cases, decisions.action), decisions.action, -1)
    return episodes(seed, "judged", of.which.size, mixing=mixing, severity=severity, repaired=repaired).chosen(of.which)


def decided(agent: FittedAgent, cases: Episodes) -> Decisions:
    """Return what an agent decides on cases; the oracle is shown what is planted.

    Parameters
    ----------
    agent : FittedAgent
    cases : Episodes
    """
    knowing = getattr(agent, "decide_knowing", None)
    found: Decisions = knowing(cases) if knowing else agent.decide(*cases.shown())
    return found


@functools.lru_cache(maxsize=24)
def _own_coverage(
    seed: int, mixing: float, wrong: int, train: int, judged: int, severity: tuple[float, float]
) -> float:
    """Return the share of cases in which AURORA as it is acts: where all agents are compared."""
    of = drawn(seed, mixing, wrong, train, judged, severity)
    return float(decided(Aurora().fitted(of.learning), of.cases).acts.mean())


@dataclass(frozen=True, kw_only=True)
class GreyFailures(Study):
    """Episodes of a simulated service whose faults look alike to a degree: one window in which the objective is broken
    is shown, and an agent repairs or hands on.  One fault in ten is in no graph, one case in ten has two.  Agents learn
    from other episodes; graphs may have wrong edges.  All agents are compared where they act equally often: an agent
    that hardly ever acts harms nobody.
    """

    name: ClassVar[str] = "grey-failures"
    baseline: ClassVar[str] = "threshold-rules"
    primary: ClassVar[str] = "risk_equal"
    secondary: ClassVar[tuple[str, ...]] = ("risk_area", "accuracy_all", "unknown_acted")
    metrics = (
        Metric("risk_equal", "", "lower", "simulated",
               "actions that repair no fault that is there / actions, if every agent acted on as many of its surest "
               "cases as AURORA does; of AURORA, its own actions", words="risk at AURORA's coverage"),
        Metric("destructive_rate", "", "lower", "simulated",
               "actions that repair no fault that is there / cases, by the agent's own gates",
               words="destructive actions"),
        Metric("accuracy_acted", "", "higher", "simulated", "actions that repair a fault that is there / actions",
               words="accuracy where it acts"),
        Metric("accuracy_all", "", "higher", "simulated", "actions that repair a fault that is there / cases",
               words="accuracy over all cases"),
        Metric("coverage", "", "", "simulated", "actions / cases"),
        Metric("escalated_share", "", "", "simulated", "cases that are handed on / cases", words="escalations"),
        Metric("risk_area", "", "lower", "simulated", "area below risk against coverage", words="area of risk"),
        Metric("risk", "", "lower", "simulated", "the same share if it acted on this share of cases, its surest",
               table=False),
        Metric("unknown_acted", "", "lower", "simulated", "cases of unknown faults in which it acts / cases of these",
               words="actions on unknown faults"),
        Metric("unknown_stopped", "", "higher", "simulated",
               "of unknown faults on which the causal gate alone would act, those that AURORA hands on; it acts "
               "where both gates open", words="unknown faults stopped"),
        Metric("unknown_stopped_by_energy", "", "higher", "simulated",
               "of unknown faults whose probability alone would suffice, those that the free energy gate stops",
               words="unknown faults stopped by free energy", table=False),
        Metric("right_stopped", "", "lower", "simulated",
               "of right actions that the causal gate alone would take, those that AURORA hands on",
               words="right actions stopped", table=False),
        Metric("fog_right", "", "higher", "simulated",
               "cases repaired rightly by the agent, or by the tier above from five windows / cases", table=False,
               words="repaired with the tier above"),
        Metric("fog_destructive", "", "lower", "simulated", "destructive actions of both / cases", table=False,
               words="destructive actions with the tier above"),
        Metric("destructive_kept", "", "lower", "simulated",
               "destructive actions that are not taken back five windows later / cases; at after: that many windows. "
               "Taken back is what does not halve the share of windows without the objective; a restart cannot be",
               table=False, words="destructive actions that stay"),
        Metric("right_undone", "", "lower", "simulated", "right actions that are taken back / right actions, likewise",
               table=False, words="right actions taken back"),
        Metric("looked_at", "", "", "simulated", "episodes that are cases / episodes", table=False),
        Metric("false_looks", "", "", "simulated", "healthy episodes that are looked at / healthy episodes",
               table=False),
        Metric("decision_p50_s", "s", "lower", "measured", "one case from readings to decision, median of 200",
               words="decision"),
        Metric("decision_p99_s", "s", "lower", "measured", "the same, 99th percentile of 200", words="slow decision",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Risk where all act equally often", y="risk_equal", says="Shorter is better."),
        Chart("sweep", "Risk against coverage", y="risk", by="coverage", says="Lower is better; few actions are safe."),
        Chart("sweep", "As faults look more alike", y="risk_equal", by="mixing",
              says="At 1 nobody can say which fault it is, and the right answer is to abstain."),
        Chart("sweep", "How often agents act", y="coverage", by="mixing",
              says="At 1 only agents without gates should act."),
        Chart("sweep", "Wrong edges in the graph", y="risk_area", by="wrong_edges",
              says="Agents without a graph are flat."),
        Chart("bars", "Destructive actions that are not taken back", y="destructive_kept", says="Shorter is better."),
        Chart("pareto", "Harm against what is repaired", x="destructive_rate", y="accuracy_all",
              says="Up and to the left is better."),
    )  # fmt: skip

    mixing: float = setting(0.25, says="How alike faults look: 0 each its own pattern, 1 all the same", low=0.0,
                            high=1.0)  # fmt: skip
    wrong_edges: int = setting(0, says="Wrong edges in the causal graph", low=0, high=8)
    train: int = setting(4000, unit="episodes", says="To learn from, and as many to validate with", low=200,
                         high=1_000_000)  # fmt: skip
    judged: int = setting(3000, unit="episodes", says="That judge", low=100, high=1_000_000)
    severity: tuple[float, ...] = setting((0.5, 4.0), says="Least and largest severity of a fault", low=0.0, high=100.0)
    mixings: tuple[float, ...] = setting((0.0, 0.5, 0.75, 1.0), says="Further mixings", low=0.0, high=1.0)
    wrong: tuple[int, ...] = setting((1, 3), says="Further numbers of wrong edges", low=0, high=8)
    timed: int = setting(200, says="Decisions that are timed", low=10, high=100_000)

    def check(self) -> None:
        """Refuse severities that are no least and largest."""
        if len(self.severity) != 2 or self.severity[0] > self.severity[1]:
            raise BadValueError("Severity is a least and a largest number.", given=self.severity)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Destructive is any action that repairs no fault that is there, also one without side effects.",
            "A wrong action harms nothing but its place among the right ones; one that can be is taken back later.",
            "The tier above is AURORA's alone here: rivals hand on as well, to nobody.",
            f"At mixing {self.mixing:g} unless a figure says otherwise; unknown faults are mixed, too.",
        )

    def measure(self, system: RepairAgent, seed: int) -> Measurements:
        """Let an agent learn and decide, at every mixing and with every graph."""
        found = Measurements()
        of = self._drawn(seed)
        fitted = system.fitted(of.learning)
        self._judge(found, system, fitted, seed, {})
        found.put("looked_at", of.looked_at)
        found.put("false_looks", of.false_looks)
        if not isinstance(system, RepairOracle):
            spent = self._times(fitted, of.cases)
            found.put("decision_p50_s", float(np.median(spent)))
            found.put("decision_p99_s", float(np.quantile(spent, 0.99)))
        for mixing in self.mixings:
            self._judge(found, system, None, seed, {"mixing": mixing})
        for wrong in self.wrong:
            self._judge(found, system, None if hasattr(system, "gates") else fitted, seed, {"wrong_edges": wrong})
        return found

    def _drawn(self, seed: int, at: Mapping[str, float] | None = None) -> Drawn:
        return drawn(seed, *self._place(at or {}))

    def _place(self, at: Mapping[str, float]) -> tuple[float, int, int, int, tuple[float, float]]:
        mixing, wrong = float(at.get("mixing", self.mixing)), int(at.get("wrong_edges", self.wrong_edges))
        return mixing, wrong, self.train, self.judged, (self.severity[0], self.severity[1])

    def _judge(
        self, found: Measurements, system: RepairAgent, fitted: FittedAgent | None, seed: int, at: Mapping[str, float]
    ) -> None:
        of = self._drawn(seed, at)
        agent = fitted or system.fitted(of.learning)
        decisions = decided(agent, of.cases)
        score = scored(of.cases, decisions)
        own = _own_coverage(seed, *self._place(at))
        here = [dict[str, float](at)]
        if not at:
            # The sweeps go through the settings of the plain figures.
            here += [{"mixing": self.mixing}, {"wrong_edges": self.wrong_edges}]
        for place in here:
            if system == Aurora():
                if score.acted:
                    found.put("risk_equal", score.destructive / score.acted, **place)
            elif own > 0:
                found.put("risk_equal", risk(of.cases, decisions, own), **place)
            found.put("destructive_rate", score.destructive / score.cases, **place)
            if score.acted:
                found.put("accuracy_acted", score.right / score.acted, **place)
            found.put("accuracy_all", score.right / score.cases, **place)
            found.put("coverage", score.acted / score.cases, **place)
            found.put("risk_area", score.area, **place)
        if not at:
            found.put("escalated_share", 1 - score.acted / score.cases)
            for coverage in _COVERAGES:
                found.put("risk", risk(of.cases, decisions, coverage), coverage=coverage)
            self._later(found, of, seed, decisions)
        unknown = decided(agent, of.unknown)
        found.put("unknown_acted", float(unknown.acts.mean()), **at)
        if isinstance(agent, FittedAurora) and isinstance(system, Aurora) and system.gates == "both":
            self._gates(found, system, agent, of, at)

    def _later(self, found: Measurements, of: Drawn, seed: int, decisions: Decisions) -> None:
        """Say which actions stay when their effect was waited for."""
        after = afterwards(of, seed, self.mixing, (self.severity[0], self.severity[1]), decisions)
        wrong = harmful(of.cases, decisions.action)
        for windows in _JUDGED_AFTER:
            undone = rolled_back(of.cases, after, decisions.action, windows)
            right = decisions.acts & ~wrong
            for place in ({"after": windows}, *([{}] if windows == _JUDGED_AFTER[-1] else [])):
                found.put("destructive_kept", float((decisions.acts & wrong & ~undone).mean()), **place)
                if right.any():
                    found.put("right_undone", float((right & undone).sum() / right.sum()), **place)

    def _gates(
        self, found: Measurements, system: Aurora, agent: FittedAurora, of: Drawn, at: Mapping[str, float]
    ) -> None:
        """Say what the second gate stops: of unknown faults, and of what was right."""
        both, causal = decided(agent, of.unknown).acts, _with(agent, "causal", of.unknown).acts
        if causal.any():
            found.put("unknown_stopped", float((causal & ~both).sum() / causal.sum()), **at)
        likely, usual = _with(agent, "posterior", of.unknown).acts, _with(agent, "free-energy", of.unknown).acts
        if likely.any():
            found.put("unknown_stopped_by_energy", float((likely & ~usual).sum() / likely.sum()), **at)
        decisions = decided(agent, of.cases)
        right = _with(agent, "causal", of.cases).acts & ~harmful(of.cases, decisions.action)
        if right.any():
            found.put("right_stopped", float((right & ~decisions.acts).sum() / right.sum()), **at)
        later = escalated(agent, of.cases, decisions)
        first, second = scored(of.cases, decisions), scored(of.cases, later)
        found.put("fog_right", (first.right + second.right) / first.cases, **at)
        found.put("fog_destructive", (first.destructive + second.destructive) / first.cases, **at)

    def _times(self, fitted: Any, cases: Episodes) -> list[float]:
        readings, slo_ok = cases.shown()
        spent = []
        for turn in range(-3, self.timed):
            row = slice(turn % len(slo_ok), turn % len(slo_ok) + 1)
            begin = time.perf_counter()
            fitted.decide(readings[row], slo_ok[row])
            spent.append(time.perf_counter() - begin)
        return spent[3:]


def _with(fitted: FittedAurora, gates: str, cases: Episodes) -> Decisions:
    """Return what the same agent would decide with other gates."""
    other = FittedAurora(replace(fitted.agent, gates=gates), fitted.cuts, fitted.network, fitted.limit)
    return decided(other, cases)
