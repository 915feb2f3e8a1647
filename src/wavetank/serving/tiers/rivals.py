"""Plans that stay: the best of all with the same scheduler, and one degree for everybody with deadlines in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.serving.tiers.interface import ANY_TIER, Floats, Group, Plan, Problem, Rules, Unit, WindowView, plan_of
from wavetank.serving.tiers.planning import best_by_gpus, capacities

_MOST_TRIED = 12


@dataclass(frozen=True, kw_only=True)
class FixedPlan:
    """Runs one plan throughout.

    Parameters
    ----------
    plan : tuple of Group
    rules : Rules
    """

    plan: Plan
    rules: Rules

    def begin(self, problem: Problem) -> tuple[Plan, Any]:
        """Return the plan."""
        return self.plan, None

    def decide(self, view: WindowView, state: Any) -> Plan:
        """Return what runs."""
        return view.plan


@dataclass(frozen=True, kw_only=True)
class BestStatic:
    """The best plan that stays, with Nitsum's request scheduler and no more than its slices of the weights.

    Divisions of the GPUs among tiers are ranked by what their best units keep up of what arrived before, window by
    window; the first of them are served, on the requests before those that count.
    """

    def candidates(self, problem: Problem, arrived_per_s: Floats) -> list[FixedPlan]:
        """Return the plans that are worth serving.

        Parameters
        ----------
        problem : Problem
        arrived_per_s : ndarray of float64, shape (windows, tiers)
        """
        alone = tuple(unit for unit in problem.sliced if not unit.prefill)
        found: dict[Plan, float] = {}
        for split in _splits(problem.gpus, len(problem.tiers)):
            for units in (problem.sliced, alone):
                chosen = [
                    unit for tier, own in enumerate(split) for unit in best_by_gpus(_of(units, tier), own)[own][1]
                ]  # fmt: skip
                served = np.minimum(capacities(chosen, len(split)), arrived_per_s).sum()
                found[plan_of(chosen)] = float(served)
        best = sorted(found, key=lambda plan: (-found[plan], plan))
        return [FixedPlan(plan=plan, rules=Rules(full_copy=False)) for plan in best if plan][:_MOST_TRIED]


@dataclass(frozen=True, kw_only=True)
class UniformDeadlines:
    """One degree for all groups, every group for all tiers, earliest deadline first; the degree is tuned."""

    def candidates(self, problem: Problem, arrived_per_s: Floats) -> list[FixedPlan]:
        """Return one plan a degree.

        Parameters
        ----------
        problem : Problem
        arrived_per_s : ndarray of float64, shape (windows, tiers)
            Not looked at.
        """
        rules = Rules(checked=False, spills=False, by_deadline=True, full_copy=False)
        return [
            FixedPlan(plan=(Group(ANY_TIER, degree),) * (problem.gpus // degree), rules=rules)
            for degree in sorted({unit.tp for unit in problem.sliced})
        ]


def _of(units: Sequence[Unit], tier: int) -> list[Unit]:
    return [unit for unit in units if unit.tier == tier]


def _splits(gpus: int, tiers: int) -> list[tuple[int, ...]]:
    """Return all ways to divide GPUs among tiers."""
    if tiers == 1:
        return [(gpus,)]
    return [(own, *rest) for own in range(gpus + 1) for rest in _splits(gpus - own, tiers - 1)]
