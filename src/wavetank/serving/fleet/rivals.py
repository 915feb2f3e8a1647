"""Other ways to choose a fleet: one kind of device, model by model, devices first, and a queueing formula.

Coral's authors name none of their baselines that could be read; these are the usual practices.  All but the last take
what a replica keeps up from the same templates as Coral does, so that they differ by their choices alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from wavetank.platforms.calibration import calibrated_roofline
from wavetank.platforms.catalog import as_device, as_model
from wavetank.platforms.memory import kv_capacity_tokens
from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.coral import Program
from wavetank.serving.fleet.interface import FleetPlan, FleetProblem, Service, Template
from wavetank.serving.fleet.templates import SLOTS
from wavetank.settings import setting

_MOST_ROUNDS = 60


def whole(templates: Iterable[Template]) -> tuple[Template, ...]:
    """Return the templates of replicas in one node, which compute prompts and answers alike.

    Parameters
    ----------
    templates : iterable of Template
    """
    return tuple(each for each in templates if len(each.nodes) == 1)


def _better(plans: Iterable[FleetPlan], problem: FleetProblem) -> FleetPlan:
    """Return the plan that serves most, of those the cheapest."""

    def key(plan: FleetPlan) -> tuple[float, float]:
        served = plan.served_per_s(problem)
        value = sum(problem.weights.get(service, 1.0) * rate for service, rate in served.items())
        return (-round(value, 6), plan.usd_per_hour(problem.offers))

    return min(plans, key=key)


@dataclass(frozen=True, kw_only=True)
class OneKind:
    """The cheapest fleet of one kind of device: what is simplest to run."""

    gap: float = setting(0.005, says="Relative gap to the bound at which the solver stops", low=0.0, high=1.0)

    def plan(self, problem: FleetProblem) -> FleetPlan:
        """Return the best plan of a single kind of device."""
        plans = []
        for device in sorted({offer.device for offer in problem.offers}):
            program = Program(
                offers=tuple(offer for offer in problem.offers if offer.device == device),
                templates=tuple(each for each in whole(problem.templates) if each.nodes[0][0] == device),
                gap=self.gap,
            )
            plans.append(program.solve(problem)[0])
        return _better(plans, problem)


@dataclass(frozen=True, kw_only=True)
class ModelByModel:
    """Each model by itself, in order of its demand: always the instance that serves it for the least money."""

    def plan(self, problem: FleetProblem) -> FleetPlan:
        """Return the plan that this greedy rule ends with."""
        left = {offer.name: math.inf if offer.available is None else offer.available for offer in problem.offers}
        instances: Counter[str] = Counter()
        replicas: Counter[Template] = Counter()
        for service, demand in sorted(problem.demand_per_s.items(), key=lambda item: (-item[1], item[0].model)):
            missing = demand
            while missing > 0:
                found = self._cheapest(problem, service, missing, left)
                if found is None:
                    break
                offer, template, count = found
                left[offer.name] -= 1
                instances[offer.name] += 1
                replicas[template] += count
                missing -= count * template.per_s
        return FleetPlan(instances=dict(instances), replicas=dict(replicas))

    @staticmethod
    def _cheapest(
        problem: FleetProblem, service: Service, missing: float, left: Mapping[str, float]
    ) -> tuple[Offer, Template, int] | None:
        """Return the next instance, its template and how many replicas it takes."""
        best = None
        least = math.inf
        for offer in problem.offers:
            for template in whole(problem.of(service)) if left[offer.name] > 0 else ():
                device, group = template.nodes[0]
                count = offer.gpus // group if device == offer.device else 0
                if count:
                    # More than is missing is worth nothing.
                    price = offer.usd_per_hour / min(count * template.per_s, missing)
                    if price < least:
                        best, least = (offer, template, count), price
        return best


@dataclass(frozen=True, kw_only=True)
class DevicesFirst:
    """Devices are bought by their arithmetic per dollar, for the operations that are asked; then strategies are found.

    For every model it buys the instances of least price per operation among those that it fits into.  Where the fleet
    turns out too small for a model, more is bought for it by the same rule, so that what it lacks is the choice alone.
    """

    utilisation: float = setting(0.4, says="Share of the peak arithmetic that is counted on", low=0.01, high=1.0)
    step: float = setting(1.15, says="Factor by which a model's part grows that is too small", low=1.001, high=10.0)
    gap: float = setting(0.005, says="Relative gap to the bound at which the solver stops", low=0.0, high=1.0)

    def plan(self, problem: FleetProblem) -> FleetPlan:
        """Return the first plan that serves everything, or the best of those tried."""
        wanted = {
            service: 2.0
            * as_model(service.model).active_parameters
            * (service.prompt_tokens + service.output_tokens)
            * rate
            / self.utilisation
            for service, rate in problem.demand_per_s.items()
        }
        program = Program(offers=problem.offers, templates=problem.templates, gap=self.gap)
        plans: list[FleetPlan] = []
        bought: dict[str, int] = {}
        for _ in range(_MOST_ROUNDS):
            more = self._bought(problem, wanted)
            if more != bought:
                bought = more
                plans.append(program.solve(problem, fixed=bought)[0])
            served = plans[-1].served_per_s(problem) if plans else dict.fromkeys(wanted, 0.0)
            short = [each for each, rate in problem.demand_per_s.items() if served[each] < rate * (1 - 1e-9)]
            if not short:
                break
            for service in short:
                wanted[service] *= self.step
        return _better(plans, problem) if plans else FleetPlan(instances={}, replicas={})

    @staticmethod
    def _bought(problem: FleetProblem, wanted: Mapping[Service, float]) -> dict[str, int]:
        """Return instances for the wanted operations per second of each model, the cheapest per operation first."""
        found: Counter[str] = Counter()
        flops = {offer.name: offer.gpus * as_device(offer.device).bf16_flops_per_s for offer in problem.offers}
        for service, missing in wanted.items():
            groups = [each.nodes[0] for each in whole(problem.of(service))]
            fit = [
                offer
                for offer in problem.offers
                if any(device == offer.device and group <= offer.gpus for device, group in groups)
            ]
            while missing > 0:
                left = [each for each in fit if each.available is None or found[each.name] < each.available]
                if not left:
                    break
                # Operations beyond what is missing are worth nothing.
                offer = min(left, key=lambda each: each.usd_per_hour / min(flops[each.name], missing))
                found[offer.name] += 1
                missing -= flops[offer.name]
        return dict(found)


@dataclass(frozen=True, kw_only=True)
class OneModelPerInstance:
    """An integer program over instances that serve one model each, in the smallest groups that the model fits into."""

    gap: float = setting(0.005, says="Relative gap to the bound at which the solver stops", low=0.0, high=1.0)

    def plan(self, problem: FleetProblem) -> FleetPlan:
        """Return the plan of least cost under these rules."""
        smallest: dict[tuple[Service, str], Template] = {}
        for each in sorted(whole(problem.templates), key=lambda each: each.gpus):
            smallest.setdefault((each.service, each.nodes[0][0]), each)
        # An instance for one model is a template of its own size: what it holds of the smallest groups.
        offers, made, origin = [], [], {}
        for offer in problem.offers:
            for (service, device), template in smallest.items():
                count = offer.gpus // template.gpus
                if device == offer.device and count:
                    kept = Template(
                        service=service, nodes=((device, offer.gpus),), how=f"{offer.name}: {count} x {template.how}",
                        per_s=count * template.per_s,
                    )  # fmt: skip
                    made.append(kept)
                    origin[kept] = (template, count)
            offers.append(offer)
        program = Program(offers=tuple(offers), templates=tuple(made), gap=self.gap)
        running = {kept: problem.running.get(template, 0) // count for kept, (template, count) in origin.items()}
        found = program.solve(
            FleetProblem(
                demand_per_s=problem.demand_per_s, offers=problem.offers, templates=tuple(made), running=running,
                start_hours=problem.start_hours, weights=problem.weights,
            )
        )[0]  # fmt: skip
        replicas: Counter[Template] = Counter()
        for kept, number in found.replicas.items():
            template, count = origin[kept]
            replicas[template] += number * count
        return FleetPlan(instances=found.instances, replicas=dict(replicas))


@dataclass(frozen=True, kw_only=True)
class QueueingFormula:
    """Each model by itself, its fleet sized by a formula: slots are the servers of an M/G/c queue.

    Source: the approximation of A. O. Allen and J. Cullen for waiting times in M/G/c.
    """

    spread: float = setting(1.3, says="Coefficient of variation of the service times", low=0.0, high=100.0)

    def plan(self, problem: FleetProblem) -> FleetPlan:
        """Return the cheapest plan that the formula finds good enough; availability is respected."""
        left = {offer.name: math.inf if offer.available is None else offer.available for offer in problem.offers}
        instances: Counter[str] = Counter()
        replicas: Counter[Template] = Counter()
        for service, demand in problem.demand_per_s.items():
            best: tuple[float, Offer, Template, int, int] | None = None
            for offer in problem.offers if demand > 0 else ():
                for template in whole(problem.of(service)):
                    device, group = template.nodes[0]
                    held = offer.gpus // group if device == offer.device else 0
                    if not held:
                        continue
                    needed = self.replicas_needed(service, device, group, demand)
                    count = 0 if needed is None else math.ceil(needed / held)
                    if needed is None or count > left[offer.name]:
                        continue
                    cost = count * offer.usd_per_hour
                    if best is None or cost < best[0]:
                        best = (cost, offer, template, needed, count)
            if best is not None:
                _, offer, template, needed, count = best
                left[offer.name] -= count
                instances[offer.name] += count
                replicas[template] += needed
        return FleetPlan(instances=dict(instances), replicas=dict(replicas))

    def replicas_needed(self, service: Service, device: str, tensor_parallel: int, rate_per_s: float) -> int | None:
        """Return how many replicas the formula asks for; None where it finds that no number is enough."""
        step = calibrated_roofline(device, service.model, tensor_parallel=tensor_parallel)
        context = service.prompt_tokens + service.output_tokens / 2
        held = int(kv_capacity_tokens(device, service.model, tensor_parallel) / context)
        slots = 0
        for batch in np.unique(np.geomspace(1, max(min(held, SLOTS), 1), 40).astype(int)).tolist():
            prompts = round(batch * service.prompt_tokens / service.output_tokens)
            seconds = step.seconds(batch, round(batch * context), prompts, round(prompts * service.prompt_tokens / 2))
            if seconds <= service.slo_tpot_s:
                slots, step_s = batch, seconds
        prompt = round(service.prompt_tokens)
        spare_s = service.slo_ttft_s - step.seconds(0, 0, prompt, prompt * prompt // 2)
        if not slots or spare_s <= 0:
            return None
        service_s = service.output_tokens * step_s
        busy = rate_per_s * service_s
        replicas = max(math.ceil(busy / slots), 1)
        while True:
            servers = replicas * slots
            spare = servers - busy
            if spare > 0:
                rate = 2 * spare / service_s / (1 + self.spread**2)
                if erlang_c(servers, busy) * math.exp(-rate * spare_s) <= 1 - service.share:
                    return replicas
            replicas += 1


def erlang_c(servers: int, busy: float) -> float:
    """Return the probability that a request waits in M/M/c.

    Parameters
    ----------
    servers : int
    busy : float
        Servers that are busy on average, below ``servers``.
    """
    inverse_b = 1.0
    for k in range(1, servers + 1):
        # 1 / B(k) = 1 + k / a * 1 / B(k - 1); where B is zero in floating point nobody waits.
        inverse_b = 1.0 + k / busy * inverse_b
        if inverse_b > 1e300:
            return 0.0
    blocking = 1.0 / inverse_b
    return blocking / (1 - busy / servers * (1 - blocking))


@dataclass(frozen=True, kw_only=True)
class FractionalBound:
    """What no plan can cost less than: the program with parts of instances and of replicas."""

    def least_usd_per_hour(self, problem: FleetProblem) -> float:
        """Return the bound, of instances and starts."""
        return Program(offers=problem.offers, templates=problem.templates).solve(problem, relaxed=True)[1]

    def plan(self, problem: FleetProblem) -> FleetPlan:
        """Return the bound's plan, rounded down."""
        return Program(offers=problem.offers, templates=problem.templates).solve(problem, relaxed=True)[0]
