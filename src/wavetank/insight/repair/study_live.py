"""Study ``grey-failures-live``: agents that learned in simulation meet real faults and really repair."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.insight.repair.interface import ACTIONS, FAULTS, RepairAgent
from wavetank.insight.repair.live import NONE, Outcome, Rig, outcomes
from wavetank.insight.repair.study import drawn
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

_TRAIN, _JUDGED, _MIXING, _SEVERITY = 4000, 1000, 0.25, (0.5, 4.0)


@functools.lru_cache(maxsize=16)
def tried(rig: Rig, seed: int) -> tuple[Outcome, ...]:
    """Return what every action did to every fault on this machine: once a seed, for all agents.

    Parameters
    ----------
    rig : Rig
    seed : int
        In which order faults strike.
    """
    order = np.random.default_rng(seed).permutation(len(FAULTS)).tolist()
    return tuple(outcomes(rig, order, (NONE, *range(len(ACTIONS)))))


@dataclass(frozen=True, kw_only=True)
class GreyFailuresLive(Study):
    """A real service with a pool of workers, three real faults, and repairs that are executed.  Agents learn from the
    simulated service alone and see telemetry of the real one, in standard deviations of its own healthy windows.  Every
    repair is executed on every fault; each agent gets the outcome of what it decides.
    """

    name: ClassVar[str] = "grey-failures-live"
    baseline: ClassVar[str] = "threshold-rules"
    primary: ClassVar[str] = "repaired"
    secondary: ClassVar[tuple[str, ...]] = ("destructive_rate",)
    in_process: ClassVar[bool] = True
    metrics = (
        Metric("repaired", "", "higher", "measured", "cases that keep the objective in the window after the decision / "
               "cases whose decision was executed on a strike that broke it; every such strike is a case",
               words="cases repaired"),
        Metric("destructive_rate", "", "lower", "measured", "actions other than that of the fault / cases",
               words="destructive actions"),
        Metric("accuracy_acted", "", "higher", "measured", "actions that are those of the fault / actions",
               words="accuracy where it acts"),
        Metric("coverage", "", "", "measured", "actions / cases"),
        Metric("decision_s", "s", "lower", "measured", "from readings to decision, median", words="decision"),
        Metric("repair_s", "s", "lower", "measured", "execution of the actions taken, mean", words="execution"),
        Metric("broken", "", "", "measured", "strikes that broke the objective before any action / strikes",
               table=False),
        Metric("healed_by_right", "", "", "measured",
               "the same with the fault's own action in place of the decision",
               table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Real faults after the agent's decision", y="repaired", says="Longer is better."),
        Chart("pareto", "Repairs against harm", x="destructive_rate", y="repaired",
              says="Up and to the left is better."),
    )

    rate_per_s: float = setting(60.0, unit="1/s", says="Requests of clients", low=5.0, high=1000.0)
    window_s: float = setting(0.25, unit="s", says="A window of telemetry", low=0.05, high=60.0)
    settle_s: float = setting(0.2, unit="s", says="Between a change and the next window", low=0.0, high=60.0)
    healthy: int = setting(8, unit="windows", says="From which a healthy service is known", low=2, high=1000)
    neighbours: int = setting(8, unit="processes", says="That spin on the service's core", low=1, high=64)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Agents learned in simulation: their tables and trees never saw this service.",
            "On a busy machine the study refuses to run: a healthy service would look like contention.",
        )

    def measure(self, system: RepairAgent, seed: int) -> Measurements:
        """Let an agent decide on real telemetry, and give it the outcomes of what it decides."""
        rig = Rig(rate_per_s=self.rate_per_s, window_s=self.window_s, settle_s=self.settle_s, healthy=self.healthy,
                  neighbours=self.neighbours)  # fmt: skip
        found = tried(rig, seed)
        agent = system.fitted(drawn(seed, _MIXING, 0, _TRAIN, _JUDGED, _SEVERITY).learning)
        after = {(each.fault, each.action): each for each in found}
        # Nobody looks at a service that keeps its objective.
        cases = [each for each in found if not each.before.slo_ok]
        figures = Measurements({"broken": len(cases) / len(found)})
        if not cases:
            return figures
        right, executed, spent = 0, list[float](), list[float]()
        repaired, healed = list[bool](), list[bool]()
        for case in cases:
            begin = time.perf_counter()
            decision = agent.decide(case.before.readings[None], np.array([case.before.slo_ok]))
            spent.append(time.perf_counter() - begin)
            action = int(decision.action[0]) if decision.acts[0] else NONE
            right += action == case.fault
            executed += [after[case.fault, action].repair_s] if action != NONE else []
            # Where a strike broke nothing, what was done after it repaired nothing.
            for found_by, of in ((repaired, after[case.fault, action]), (healed, after[case.fault, case.fault])):
                found_by += [] if of.before.slo_ok else [of.after.slo_ok]
        for metric, which in (("repaired", repaired), ("healed_by_right", healed)):
            if which:
                figures.put(metric, sum(which) / len(which))
        figures.put("destructive_rate", (len(executed) - right) / len(cases))
        figures.put("coverage", len(executed) / len(cases))
        figures.put("decision_s", float(np.median(spent)))
        if executed:
            figures.put("accuracy_acted", right / len(executed))
            figures.put("repair_s", float(np.mean(executed)))
        return figures
