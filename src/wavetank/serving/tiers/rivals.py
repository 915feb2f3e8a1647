"""Other ways to divide the GPUs: plans that stay, one cluster a tier, groups that change hands, and hindsight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.serving.tiers.interface import (
    ANY_TIER,
    BOTH,
    DECODE,
    PREFILL,
    Floats,
    Group,
    Plan,
    Problem,
    Rules,
    Unit,
    WindowView,
    plan_of,
)
from wavetank.serving.tiers.nitsum import Nitsum
from wavetank.serving.tiers.planning import best_by_gpus, capacities, exact, served_per_s
from wavetank.settings import setting

_MOST_TRIED = 12
_OWN = Rules()


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


@dataclass(frozen=True, kw_only=True)
class TiersApart:
    """One cluster a tier, each of one degree, and no request leaves its cluster; the division is tuned."""

    def candidates(self, problem: Problem, arrived_per_s: Floats) -> list[FixedPlan]:
        """Return the divisions that are worth serving.

        Parameters
        ----------
        problem : Problem
        arrived_per_s : ndarray of float64, shape (windows, tiers)
        """
        found: dict[Plan, float] = {}
        for split in _splits(problem.gpus, len(problem.tiers)):
            least = min(unit.tp for unit in problem.sliced)
            if min(split) < least:
                continue
            chosen: list[Unit] = []
            for tier, own in enumerate(split):
                alone = [unit for unit in _of(problem.sliced, tier) if not unit.prefill and unit.tp <= own]
                best = max(alone, key=lambda unit, own=own: own // unit.tp * unit.per_s)  # type: ignore[misc]
                chosen += [best] * (own // best.tp)
            found[plan_of(chosen)] = float(np.minimum(capacities(chosen, len(split)), arrived_per_s).sum())
        best_first = sorted(found, key=lambda plan: (-found[plan], plan))
        rules = Rules(checked=False, spills=False, full_copy=False)
        return [FixedPlan(plan=plan, rules=rules) for plan in best_first][:_MOST_TRIED]


@dataclass(frozen=True, kw_only=True)
class RolesApart:
    """Groups for prompts and groups for answers, for all tiers, earliest deadline first; degree and division tuned."""

    def candidates(self, problem: Problem, arrived_per_s: Floats) -> list[FixedPlan]:
        """Return every division for every degree.

        Parameters
        ----------
        problem : Problem
        arrived_per_s : ndarray of float64, shape (windows, tiers)
            Not looked at.
        """
        rules = Rules(checked=False, spills=False, by_deadline=True, full_copy=False)
        found = []
        for degree in sorted({unit.tp for unit in problem.sliced}):
            groups = problem.gpus // degree
            for first in range(1, groups):
                roles = (PREFILL,) * first + (DECODE,) * (groups - first)
                found.append(FixedPlan(plan=tuple(Group(ANY_TIER, degree, role) for role in roles), rules=rules))
        return found


@dataclass(frozen=True, kw_only=True)
class QueueThreshold:
    """Gives a group of the tier that waits least to the one that waits most, when its queue is long; degrees stay."""

    longest: float = setting(
        4.0, unit="requests", says="Waiting requests per GPU that call for help", low=0.0, high=1e6
    )
    rest: int = setting(3, unit="windows", says="Windows after a change without another", low=0, high=1000)

    @property
    def rules(self) -> Rules:
        """Nitsum's request scheduler, and slices alone: no degree changes."""
        return Rules(full_copy=False)

    def begin(self, problem: Problem) -> tuple[Plan, Any]:
        """Return the best plan for what arrives on average."""
        plan = plan_of(exact(problem.sliced, problem.expected_per_s, problem.gpus))
        return plan, {"rested": self.rest, "tiers": len(problem.tiers)}

    def decide(self, view: WindowView, state: Any) -> Plan:
        """Return the plan with one group moved, or what runs."""
        state["rested"] += 1
        gpus = [sum(group.tp for group in view.plan if group.tier == tier) for tier in range(state["tiers"])]
        queue = [int(waits) / max(own, 1) for waits, own in zip(view.waiting, gpus, strict=True)]
        needy = max(range(len(queue)), key=queue.__getitem__)
        givers = [group for group in view.plan if group.role == BOTH and group.tier != needy]
        if state["rested"] <= self.rest or queue[needy] <= self.longest or not givers:
            return view.plan
        given = min(givers, key=lambda group: (queue[group.tier], group.tp))
        if queue[given.tier] > queue[needy] / 2:
            return view.plan
        state["rested"] = 0
        left = list(view.plan)
        left.remove(given)
        return tuple(sorted([*left, given._replace(tier=needy)]))


@dataclass(frozen=True, kw_only=True)
class Following:
    """Runs given plans, one a window.

    Parameters
    ----------
    plans : tuple of Plan
        The last one stays.
    """

    plans: tuple[Plan, ...]
    rules: Rules = _OWN

    def begin(self, problem: Problem) -> tuple[Plan, Any]:
        """Return the first plan."""
        return self.plans[0], None

    def decide(self, view: WindowView, state: Any) -> Plan:
        """Return the plan of the window."""
        return self.plans[min(view.window, len(self.plans) - 1)]


@dataclass(frozen=True, kw_only=True)
class Clairvoyant:
    """Knows all arrivals, and switches for nothing: the best in hindsight of plans that stay, of plans that follow what
    arrives over the next seconds, and of Nitsum's own.
    """

    seconds: tuple[int, ...] = setting((3, 10, 30), unit="s", says="How far ahead plans look", low=1, high=10_000)

    def hindsight(self, problem: Problem, arrived_per_s: Floats) -> list[Any]:
        """Return the policies among which the best in hindsight is taken.

        Parameters
        ----------
        problem : Problem
        arrived_per_s : ndarray of float64, shape (windows, tiers)
            Of the very requests that are served.
        """
        found: list[Any] = [*BestStatic().candidates(problem, arrived_per_s), Nitsum(), Nitsum(planner="exact")]
        windows = len(arrived_per_s)
        for seconds in self.seconds:
            ahead = max(1, round(seconds / problem.window_s))
            for room in (1.1, 1.4):
                plans: list[Plan] = []
                last: tuple[Unit, ...] = ()
                for window in range(windows):
                    asked = (room * arrived_per_s[window : window + ahead].mean(axis=0)).tolist()
                    units = exact(problem.units, asked, problem.gpus)
                    # A plan that serves as much stays.
                    if not last or served_per_s(units, asked) > 1.02 * served_per_s(last, asked):
                        last = tuple(units)
                    plans.append(plan_of(last))
                found.append(Following(plans=tuple(plans)))
        return found


def _of(units: Sequence[Unit], tier: int) -> list[Unit]:
    return [unit for unit in units if unit.tier == tier]


def _splits(gpus: int, tiers: int) -> list[tuple[int, ...]]:
    """Return all ways to divide GPUs among tiers."""
    if tiers == 1:
        return [(gpus,)]
    return [(own, *rest) for own in range(gpus + 1) for rest in _splits(gpus - own, tiers - 1)]
