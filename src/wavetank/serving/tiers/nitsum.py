"""Nitsum: the tensor-parallel degree is changed while requests run, because a switch costs less than a second.

A high degree reads the weights faster, which a tight objective per token needs; a low one spends nothing on
collectives, which prompts and loose objectives want.  Which mix serves most moves with the requests.  Every GPU keeps a
full copy of the weights, so that a switch moves keys and values alone.  Each second a greedy planner looks at what
arrived, and a new plan is taken where it gains more than its pause costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.serving.tiers.fleet import placed
from wavetank.serving.tiers.interface import Plan, Problem, Rules, Unit, WindowView, plan_of
from wavetank.serving.tiers.planning import exact, greedy, served_per_s
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class Nitsum:
    """Plans every window for what arrives, and switches where that pays."""

    planner: str = setting("greedy", says="How plans are found", choices=("greedy", "exact"))
    checked: bool = setting(True, says="Whether its own request scheduler is used, or arrivals in order")
    memory_s: float = setting(4.0, unit="s", says="Time constant of the estimate of arrivals", low=0.0, high=1e5)
    headroom: float = setting(0.4, says="Share by which plans expect more than arrives", low=0.0, high=10.0)
    horizon_s: float = setting(
        5.0, unit="s", says="Time over which a new plan's gain is held against its pause", low=0.0, high=1e6
    )
    least_gain: float = setting(0.1, says="Share of what is served that a new plan must gain", low=0.0, high=10.0)
    patience: int = setting(1, unit="windows", says="Windows in a row in which a switch must pay", low=1, high=1000)

    @property
    def rules(self) -> Rules:
        """A full copy everywhere; promises where the scheduler is its own."""
        return Rules(checked=self.checked, spills=self.checked)

    def begin(self, problem: Problem) -> tuple[Plan, Any]:
        """Return the plan for what arrives on average."""
        rates = np.array(problem.expected_per_s)
        units = self.planned(problem, rates)
        return plan_of(units), {"problem": problem, "rates": rates, "units": units, "paid": 0}

    def planned(self, problem: Problem, rates: Any) -> list[Unit]:
        """Return units for arrivals, in requests/s of each tier."""
        asked = [float(rate) * (1 + self.headroom) for rate in rates]
        return (greedy if self.planner == "greedy" else exact)(problem.units, asked, problem.gpus)

    def decide(self, view: WindowView, state: Any) -> Plan:
        """Return the plan that serves more by more than the switch costs, else the one that runs."""
        problem: Problem = state["problem"]
        newest = problem.window_s / (problem.window_s + self.memory_s)
        state["rates"] = (1 - newest) * state["rates"] + newest * view.arrived / problem.window_s
        units = self.planned(problem, state["rates"])
        if not self.pays(problem, state["units"], units, state["rates"]):
            state["paid"] = 0
            return view.plan
        state["paid"] += 1
        if state["paid"] < self.patience:
            return view.plan
        state["paid"], state["units"] = 0, units
        return plan_of(units)

    def pays(self, problem: Problem, now: list[Unit], then: list[Unit], rates: Any) -> bool:
        """Return whether a plan's gain over the horizon is above what its pause loses.

        Parameters
        ----------
        problem : Problem
        now, then : list of Unit
        rates : array_like of float, shape (tiers,)
            Arrivals, requests/s.
        """
        asked = [float(rate) * (1 + self.headroom) for rate in rates]
        has, gets = served_per_s(now, asked), served_per_s(then, asked)
        before = placed(plan_of(now), (), problem.gpus)
        stay = {(group.tp, first) for group, first in before}
        paused = sum(
            group.tp for group, first in placed(plan_of(then), before, problem.gpus) if (group.tp, first) not in stay
        )
        lost = problem.switch_s * has * paused / problem.gpus
        return gets > has * (1 + self.least_gain) and (gets - has) * self.horizon_s > lost
