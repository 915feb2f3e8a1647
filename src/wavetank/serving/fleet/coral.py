"""Coral: GPUs and serving strategies of many models are chosen together, in two stages that lose nothing.

What a replica keeps up depends on its own devices and on how it uses them, on nothing else.  So the best strategy for
every model and every set of devices can be found beforehand, and the decision that must follow demand within minutes
is left with counts: how many of each instance, how many of each template.  That is a small integer program with the
same optimum as one over all strategies at once.  It wins where models share what is rented: the halves of an instance
that two models need, and the kinds of device that each of them uses best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import GaveUpError
from wavetank.machine.native_output import native_output_dropped
from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.interface import FleetPlan, FleetProblem, Service, Template, room, sizes
from wavetank.serving.fleet.templates import pruned, usd_per_gpu_hour
from wavetank.settings import setting

# What a plan that serves nothing more may cost more than the cheapest one, as a share: the solver's own tolerance.
_TOLERANCE = 1e-6
_INFEASIBLE = 2  # scipy's status


@dataclass(frozen=True, kw_only=True)
class Program:
    """The integer program over instances and replicas: least cost that serves the demand, or the most that can be had.

    Parameters
    ----------
    offers : tuple of Offer
    templates : tuple of Template
    gap : float
        Relative gap to the bound at which the solver stops.
    seconds : float
        Limit of each solution.
    """

    offers: tuple[Offer, ...]
    templates: tuple[Template, ...]
    gap: float = 1e-4
    seconds: float = 60.0

    def solve(
        self, problem: FleetProblem, *, fixed: Mapping[str, int] | None = None, relaxed: bool = False
    ) -> tuple[FleetPlan, float]:
        """Return a plan and its cost per hour, starts included.

        Parameters
        ----------
        problem : FleetProblem
            Its demand, what runs, and its weights; offers and templates are this program's.
        fixed : mapping of str to int, optional
            Instances that are given, by the name of the offer; the others are none.
        relaxed : bool
            Whether parts of instances and of replicas count: the cost is then a lower bound, the plan rounds down.

        Raises
        ------
        GaveUpError
            If the solver found no plan in time.
        """
        served = {service: rate for service, rate in problem.demand_per_s.items() if rate > 0}
        if not served:
            return FleetPlan(instances=dict(fixed or {}), replicas={}), 0.0
        rows = _Rows(problem, self.offers, self.templates, served, fixed)
        found = rows.minimise(rows.usd, served, 0.0, self, relaxed)
        if found is None:
            # Not everything can be served: the most that can, and then the cheapest way to serve as much.
            most = rows.minimise(rows.unserved(problem), {}, 0.0, self, relaxed)
            if most is None:
                raise GaveUpError("The solver found no plan in time.", given=f"{self.seconds:g} s")
            reached = {service: min(rows.served(most, service), rate) for service, rate in served.items()}
            found = rows.minimise(rows.usd, reached, _TOLERANCE, self, relaxed)
            found = most if found is None else found
        return rows.plan(found, fixed), float(rows.usd @ found)


class _Rows:
    """The program's matrix over instances of each offer, replicas and starts of each template, and unserved rates."""

    def __init__(
        self,
        problem: FleetProblem,
        offers: tuple[Offer, ...],
        templates: tuple[Template, ...],
        served: Mapping[Service, float],
        fixed: Mapping[str, int] | None,
    ) -> None:
        self.offers, self.services = offers, tuple(served)
        self.templates = tuple(each for each in templates if each.service in served)
        n, m, k = len(offers), len(self.templates), len(self.services)
        self.size = n + 2 * m + k
        price = usd_per_gpu_hour(offers)
        self.usd = np.zeros(self.size)
        self.upper = np.full(self.size, np.inf)
        self.lower = np.zeros(self.size)
        for i, offer in enumerate(offers):
            self.usd[i] = offer.usd_per_hour
            if offer.available is not None:
                self.upper[i] = offer.available
            if fixed is not None:
                self.lower[i] = self.upper[i] = fixed.get(offer.name, 0)
        rows: list[tuple[NDArray[np.float64], float]] = []
        for device, size in sizes(problem):
            row = np.zeros(self.size)
            row[:n] = [-room(offer, device, size) for offer in offers]
            row[n : n + m] = [each.needs(device, size) for each in self.templates]
            rows.append((row, 0.0))
        for j, each in enumerate(self.templates):
            # No more than serve everything: what is without bounds the solver fails on now and then.
            self.upper[n + j] = self.upper[n + m + j] = math.ceil(served[each.service] / each.per_s)
            # Starts are what runs beyond the plan before.
            row = np.zeros(self.size)
            row[n + j], row[n + m + j] = 1.0, -1.0
            rows.append((row, float(problem.running.get(each, 0))))
            paid = sum(price.get(device, 0.0) * group for device, group in each.nodes)
            self.usd[n + m + j] = paid * problem.start_hours
        self.rates = np.zeros((k, self.size))
        for i, service in enumerate(self.services):
            self.rates[i, n : n + m] = [each.per_s if each.service == service else 0.0 for each in self.templates]
            self.rates[i, n + 2 * m + i] = 1.0
            self.upper[n + 2 * m + i] = served[service]
        self.demand = np.array(list(served.values()))
        self.limits = np.array([row for row, _ in rows]), np.array([most for _, most in rows])
        self.whole = np.zeros(self.size)
        self.whole[: n + m] = 1
        self._n, self._m = n, m

    def unserved(self, problem: FleetProblem) -> NDArray[np.float64]:
        """Return the objective that counts what is not served, weighted."""
        objective = np.zeros(self.size)
        for i, service in enumerate(self.services):
            objective[self._n + 2 * self._m + i] = problem.weights.get(service, 1.0)
        return objective

    def served(self, values: NDArray[np.float64], service: Service) -> float:
        """Return what a solution serves of a service."""
        i = self.services.index(service)
        return float(self.demand[i] - values[self._n + 2 * self._m + i])

    def minimise(
        self,
        objective: NDArray[np.float64],
        at_least: Mapping[Service, float],
        slack: float,
        program: Program,
        relaxed: bool,
    ) -> NDArray[np.float64] | None:
        """Return the best values with at least so much of the services served, or None where there are none."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        upper = self.upper.copy()
        for i, service in enumerate(self.services):
            if service in at_least:
                least = at_least[service] * (1 - slack)
                upper[self._n + 2 * self._m + i] = max(self.demand[i] - least, 0.0)
        # The solver now and then fails on a program that it solves without presolving.
        for presolve in (True, False):
            # The solver prints a line of its own now and then.
            with native_output_dropped():
                result = milp(
                    objective,
                    integrality=None if relaxed else self.whole,
                    bounds=Bounds(self.lower, upper),
                    constraints=(
                        LinearConstraint(self.limits[0], -np.inf, self.limits[1]),
                        LinearConstraint(self.rates, self.demand, np.inf),
                    ),
                    options={"time_limit": program.seconds, "mip_rel_gap": program.gap, "presolve": presolve},
                )
            if result.x is not None:
                return np.asarray(result.x, np.float64)
            if result.status == _INFEASIBLE:
                break
        return None

    def plan(self, values: NDArray[np.float64], fixed: Mapping[str, int] | None) -> FleetPlan:
        """Return the plan that values stand for."""
        counts = np.floor(values[: self._n + self._m] + 1e-6).astype(int).tolist()
        instances = {offer.name: count for offer, count in zip(self.offers, counts, strict=False) if count}
        replicas = {each: count for each, count in zip(self.templates, counts[self._n :], strict=True) if count}
        return FleetPlan(instances=dict(fixed) if fixed is not None else instances, replicas=replicas)


@dataclass(frozen=True, kw_only=True)
class Coral:
    """Plans all models at once, over the templates that pruning leaves."""

    gap: float = setting(0.005, says="Relative gap to the bound at which the solver stops", low=0.0, high=1.0)
    seconds: float = setting(60.0, unit="s", says="Limit of the solver", low=0.1, high=1e5)

    def plan(self, problem: FleetProblem) -> FleetPlan:
        """Return the plan of least cost, or the one that serves most where not all can be."""
        templates = self.kept(problem.templates)
        return Program(offers=problem.offers, templates=templates, gap=self.gap, seconds=self.seconds).solve(problem)[0]

    def kept(self, templates: tuple[Template, ...]) -> tuple[Template, ...]:
        """Return the templates that the program chooses from."""
        return pruned(templates)


@dataclass(frozen=True, kw_only=True)
class Unpruned(Coral):
    """The same program over every template: shows what pruning saves and that it loses nothing."""

    def kept(self, templates: tuple[Template, ...]) -> tuple[Template, ...]:
        """Return all templates."""
        return templates
