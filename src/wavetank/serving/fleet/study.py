"""Studies ``gpu-mix`` and ``gpu-scarcity``: which GPUs, and how many, serve several models."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from wavetank.platforms.prices import Offer, read_offers, shipped_offers
from wavetank.serving.fidelity.shipped_fit import shipped_fit
from wavetank.serving.fleet.demand import GENERATED, availability, day, read_demand
from wavetank.serving.fleet.interface import FleetPlan, FleetProblem, Service, Template
from wavetank.serving.fleet.templates import (
    needed_requests,
    requests_of,
    serve,
    share_within,
    strategies_of,
    templates_of,
    usd_per_gpu_hour,
)
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.units import show

# Below what is asked by this much, a share is not a miss: its own spread over seeds.
_TOLERANCE = 0.005


@dataclass(frozen=True, kw_only=True)
class GpuMix(Study):
    """A day in periods: the demand for every model drifts, and so does what can be rented.  At each period a planner
    sees both and what runs, and rents anew.  The bill counts instances and the time in which new replicas load their
    weights.  At the busiest period every fleet serves its share of the demand in the simulator, on other requests than
    those that the templates were found with.
    """

    name: ClassVar[str] = "gpu-mix"
    baseline: ClassVar[str] = "one-kind"
    primary: ClassVar[str] = "usd_per_hour"
    secondary: ClassVar[tuple[str, ...]] = ("starts", "within_share")
    must_be_zero: ClassVar[tuple[str, ...]] = ("unserved_share", "missed_share")
    metrics = (
        Metric("usd_per_hour", "USD/h", "lower", "modelled",
               "mean over the day of the prices of the instances, and of the devices of replicas that start, for the "
               "time they load", words="cost"),
        Metric("goodput_per_s", "requests/s", "higher", "simulated",
               "at the busiest period: requests served, times the share of them within the objectives",
               words="goodput"),
        Metric("unserved_share", "", "lower", "modelled",
               "demand of the day beyond what the replicas keep up, as a share of all"),
        Metric("missed_share", "", "lower", "simulated",
               "at the busiest period: what the share of requests within the objectives lacks of what is asked; 0 "
               "below half a per cent; the worst model"),
        Metric("within_share", "", "higher", "simulated",
               "share of the requests served at the busiest period within the objectives",
               words="share within the objectives"),
        Metric("starts", "replicas", "lower", "modelled", "replicas that start after the first period, per period",
               words="starts of replicas"),
        Metric("plan_s", "s", "lower", "measured", "time of one decision, on this machine; median"),
        Metric("gpus", "GPUs", "lower", "modelled", "devices rented, mean over the day", table=False),
        Metric("usd_per_hour_then", "USD/h", "lower", "modelled", "price of the instances of one period", table=False),
    )  # fmt: skip
    charts = (
        Chart("bars", "Cost of the fleet", y="usd_per_hour", says="Shorter is cheaper; the bound is no plan."),
        Chart("timeline", "Cost over the day", y="usd_per_hour_then", by="hour",
              says="Plans that follow the demand fall at night."),
        Chart("sweep", "Cost as the demand grows", y="usd_per_hour", by="factor", log="xy",
              says="The lines meet where every model fills whole instances; a planner that does not serve everything "
              "has no point."),
        Chart("bars", "Goodput at the busiest period", y="goodput_per_s", says="Longer is better."),
    )  # fmt: skip

    demand: str = setting(
        "generated", says="Demand: generated (six models), or a CSV file with columns model and requests_per_s"
    )
    scale: float = setting(1.0, says="Factor on all demands", low=1e-3, high=1e4)
    prices: str = setting(
        "shipped", says="Price list: shipped, or a CSV file with columns instance, device, gpus and usd_per_hour"
    )
    available: int = setting(
        16, unit="instances", says="Most instances of an offer without a bound of its own", low=0, high=1_000_000
    )
    periods: int = setting(8, says="Decisions per day", low=1, high=10_000)
    factors: tuple[float, ...] = setting(
        (0.1, 0.5, 4.0), says="Further sizes of the busiest period's demand, for the cost alone", low=1e-3, high=1e4
    )
    start_hours: float = setting(
        0.05, unit="h", says="Time in which a replica that starts loads its weights, and is paid for", low=0, high=24
    )
    headroom: float = setting(0.9, says="Share of what a replica keeps up that plans count on", low=0.05, high=1.0)
    split: bool = setting(True, says="Whether prompts and answers may have devices of their own")

    def check(self) -> None:
        """Read both files once, so that mistakes show before any trial."""
        self._asked()
        self._offers()

    def data(self) -> Mapping[str, str]:
        """Return the checksums of the files."""
        return {
            name: hashlib.sha256(Path(name).read_bytes()).hexdigest()
            for name, none in ((self.demand, "generated"), (self.prices, "shipped"))
            if name != none
        }

    def opening(self) -> tuple[str, ...]:
        """Return what is asked and what is assumed."""
        asked = self._asked()
        rates = ", ".join(f"{service.model} {show(rate, 'requests/s')}" for service, rate in asked.items())
        return (
            f"Asked in a busy hour: {rates}; {len(self._offers())} kinds of instances, up to {self.available} of each. "
            "What a replica keeps up is simulated with calibrated roofline step times.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            shipped_fit().said_of_roofline("H100-SXM", calibrated=True),
            "Kinds of devices of which no engine was measured are compared by their data sheets and pooled shares of "
            "them.",
            f"Plans count on {self.headroom:.0%} of what a single replica keeps up at Poisson arrivals.",
            "Prices are on-demand list prices; what a cloud has to rent is made up from the seed.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Let a planner follow the day."""
        asked = self._asked()
        hours = [24.0 * i / self.periods for i in range(self.periods)]
        demands = day(asked, hours, seed)
        offers = availability(self._offers(), self.available, self.periods, seed)
        found = Measurements()
        if hasattr(system, "least_usd_per_hour"):
            for hour, demand, there in zip(hours, demands, offers, strict=True):
                least = system.least_usd_per_hour(self.problem(demand, there, {}))
                found.put("usd_per_hour_then", least, hour=hour)
            found.put("usd_per_hour", float(np.mean([value for _, value, _ in found.rows])))
            return found
        running: Mapping[Template, int] = {}
        costs, starts, seconds, gpus, unserved = [], [], [], [], []
        plans: list[tuple[FleetProblem, FleetPlan]] = []
        for hour, demand, there in zip(hours, demands, offers, strict=True):
            problem = self.problem(demand, there, running)
            began = time.perf_counter()
            plan = system.plan(problem)
            seconds.append(time.perf_counter() - began)
            plan.check(problem)
            price = usd_per_gpu_hour(there)
            new = {each: max(count - running.get(each, 0), 0) for each, count in plan.replicas.items()}
            loading = sum(
                count * sum(price[device] * group for device, group in each.nodes) for each, count in new.items()
            )
            then = plan.usd_per_hour(there)
            costs.append(then + loading * self.start_hours * self.periods / 24.0)
            if plans:
                starts.append(sum(new.values()))
            size = {offer.name: offer.gpus for offer in there}
            gpus.append(sum(size[name] * count for name, count in plan.instances.items()))
            served = plan.served_per_s(problem)
            unserved.append((sum(demand.values()) - sum(served.values()), sum(demand.values())))
            found.put("usd_per_hour_then", then, hour=hour)
            plans.append((problem, plan))
            running = plan.replicas
        lacking = sum(part for part, _ in unserved) / sum(all_of for _, all_of in unserved)
        found.put("usd_per_hour", float(np.mean(costs)))
        found.put("unserved_share", lacking if lacking > 1e-9 else 0.0)
        found.put("starts", float(np.mean(starts)) if starts else 0.0)
        found.put("plan_s", float(np.median(seconds)))
        found.put("gpus", float(np.mean(gpus)))
        busiest = int(np.argmax([sum(demand.values()) for demand in demands]))
        self._served(found, *plans[busiest], seed)
        for factor in self.factors:
            # From nothing, with as many more instances as the demand is larger.
            there = tuple(
                replace(offer, available=None if offer.available is None else round(offer.available * max(factor, 1)))
                for offer in offers[busiest]
            )
            asked_then = {service: rate * factor for service, rate in demands[busiest].items()}
            problem = self.problem(asked_then, there, {})
            plan = system.plan(problem)
            if all(plan.capacity_per_s(service) >= rate * (1 - 1e-9) for service, rate in asked_then.items()):
                found.put("usd_per_hour", plan.usd_per_hour(there), factor=factor)
        return found

    def problem(
        self, demand: Mapping[Service, float], offers: tuple[Offer, ...], running: Mapping[Template, int]
    ) -> FleetProblem:
        """Return what a planner sees at one period.

        Parameters
        ----------
        demand : mapping of Service to float
        offers : tuple of Offer
        running : mapping of Template to int
        """
        return FleetProblem(
            demand_per_s=demand,
            offers=offers,
            templates=self.templates(tuple(demand)),
            running=running,
            start_hours=self.start_hours * self.periods / 24.0,
        )

    def templates(self, services: tuple[Service, ...]) -> tuple[Template, ...]:
        """Return the ways to serve, with what plans count on."""
        return templates(
            services, tuple(replace(offer, available=None) for offer in self._offers()), self.split, self.headroom
        )

    def _served(self, found: Measurements, problem: FleetProblem, plan: FleetPlan, seed: int) -> None:
        """Serve the demand of one period with the fleet of a plan, in the simulator."""
        good = total = worst = 0.0
        strategies = {
            template.how: strategy
            for service in problem.demand_per_s
            for template, strategy in strategies_of(service, self._offers(), self.split)
        }
        for service, rate in plan.served_per_s(problem).items():
            capacity = plan.capacity_per_s(service)
            within = 0.0
            for template, count in plan.replicas.items():
                if template.service != service or rate <= 0:
                    continue
                part = rate * count * template.per_s / capacity
                n = needed_requests(service, part)
                requests = requests_of(service, n, 1_000_000 + seed, part)
                within += part * share_within(serve(strategies[template.how], service, requests, count), service)
            good, total = good + within, total + rate
            if rate > 0:
                worst = max(worst, service.share - within / rate)
        found.put("goodput_per_s", good)
        found.put("within_share", good / total if total else 0.0)
        found.put("missed_share", worst if worst > _TOLERANCE else 0.0)

    def _asked(self) -> dict[Service, float]:
        given = dict(GENERATED) if self.demand == "generated" else read_demand(self.demand)
        return {service: rate * self.scale for service, rate in given.items()}

    def _offers(self) -> tuple[Offer, ...]:
        return shipped_offers() if self.prices == "shipped" else read_offers(self.prices)


@dataclass(frozen=True, kw_only=True)
class GpuScarcity(GpuMix):
    """The day of gpu-mix with few instances of each kind, so that not everything can be served: the planners are judged
    by what they serve within the objectives at the busiest period.
    """

    name: ClassVar[str] = "gpu-scarcity"
    primary: ClassVar[str] = "goodput_per_s"
    secondary: ClassVar[tuple[str, ...]] = ("unserved_share", "usd_per_hour")
    must_be_zero: ClassVar[tuple[str, ...]] = ("missed_share",)

    factors: tuple[float, ...] = setting(
        (), says="Further sizes of the busiest period's demand, for the cost alone", low=1e-3, high=1e4
    )
    scale: float = setting(4.0, says="Factor on all demands", low=1e-3, high=1e4)
    available: int = setting(
        2, unit="instances", says="Most instances of an offer without a bound of its own", low=0, high=1_000_000
    )


@lru_cache(maxsize=8)
def templates(
    services: tuple[Service, ...], offers: tuple[Offer, ...], split: bool, headroom: float
) -> tuple[Template, ...]:
    """Return the ways to serve several models, with a share of what each keeps up.

    Parameters
    ----------
    services : tuple of Service
    offers : tuple of Offer
    split : bool
        Whether prompts and answers may have devices of their own.
    headroom : float
        The share.
    """
    return tuple(
        replace(template, per_s=template.per_s * headroom)
        for service in services
        for template in templates_of(service, offers, split=split)
    )
