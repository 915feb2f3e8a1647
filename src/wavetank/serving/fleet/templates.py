"""Stage one: the ways to serve a model, each with the rate that it keeps up within the objectives.

A replica's rate depends on its own devices and strategy alone, whatever else runs.  It is found once, before any
demand is known: the simulator serves the same requests at rates between which the share within the objectives falls
below what is asked, and the middle is taken again and again.

What is tried for a model: tensor parallelism over 1 to 8 devices of every offered kind, each with a small and a large
token budget of a step; and prompts on devices of one kind with answers on those of another, or of the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.calibration import calibrated_roofline
from wavetank.platforms.catalog import as_device, as_model
from wavetank.platforms.memory import kv_capacity_tokens
from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.interface import Service, Template
from wavetank.serving.routing.baselines import FewestKVTokens
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.simulate import ServingRun, simulate
from wavetank.workloads.generate import LogNormalLengths, generate_requests
from wavetank.workloads.requests import RequestTrace

PARALLEL = (1, 2, 4, 8)
BUDGETS_TOKENS = (512, 4096)
SLOTS = 256
LEAST_REQUESTS, MOST_REQUESTS = 1000, 200_000
SPANS = 8
"""A simulation lasts this many times as long as a request may take within the objectives, and the first of these times
warms the replica up: a rate that is not kept up must have time to show."""
STEPS = 7
"""Halvings of the ratio between a rate that is kept up and one that is not."""
# The mean over the median of the lengths of Azure's chat requests of 2023: prompts and answers.
_SKEW = 1.13, 1.63
# Far in the tail, so that clipping moves no mean by more than about 1 %.
_LONGEST = 12
# Sizes of prefill and decode pools that are tried: workers of each.
_POOLS = ((1, 1), (2, 1), (1, 2))
_SPLIT_DEVICES = 3


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine: devices of one node that share every layer of the model."""

    device: str
    tensor_parallel: int
    budget_tokens: int

    def cluster(self, service: Service, workers: int = 1) -> Cluster:
        """Return a number of them; raises a BadValueError where the model does not fit."""
        step_time = calibrated_roofline(self.device, service.model, tensor_parallel=self.tensor_parallel)
        return Cluster(
            workers=workers,
            step_time=step_time,
            max_running=SLOTS,
            max_batched_tokens=self.budget_tokens,
            kv_capacity_tokens=kv_capacity_tokens(self.device, service.model, self.tensor_parallel),
            refresh_s=0.0,
        )

    @property
    def words(self) -> str:
        """The strategy in words, without the device."""
        return f"tp{self.tensor_parallel}"


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What a template stands for: engines that take whole requests, or pools for prompts and for answers."""

    engine: Engine
    decode: Engine | None = None
    pools: tuple[int, int] = (1, 0)

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """The groups of devices, each of one node."""
        first = ((self.engine.device, self.engine.tensor_parallel),) * self.pools[0]
        if self.decode is None:
            return first
        return first + ((self.decode.device, self.decode.tensor_parallel),) * self.pools[1]

    @property
    def how(self) -> str:
        """The strategy in words."""
        if self.decode is None:
            return f"{self.engine.words} on {self.engine.device}, steps of {self.engine.budget_tokens} tokens"
        return (
            f"prompts on {self.pools[0]} x {self.engine.words} {self.engine.device}, answers on {self.pools[1]} x "
            f"{self.decode.words} {self.decode.device}"
        )

    def cluster(self, service: Service, replicas: int = 1) -> Cluster | DisaggregatedCluster:
        """Return the cluster of a number of replicas."""
        first = self.engine.cluster(service, self.pools[0] * replicas)
        if self.decode is None:
            return first
        decode = self.decode.cluster(service, self.pools[1] * replicas)
        per_token = as_model(service.model).kv_bytes_per_token
        devices = as_device(self.engine.device), as_device(self.decode.device)
        link = min(device.network_bytes_per_s for device in devices)
        return DisaggregatedCluster(prefill=first, decode=decode, kv_bytes_per_token=per_token, link_bytes_per_s=link)


def requests_of(service: Service, n: int, seed: int, rate_per_s: float = 1.0) -> RequestTrace:
    """Return requests of a service at Poisson times, with the skewed lengths of chats."""
    lengths = LogNormalLengths(
        prompt_mean=service.prompt_tokens,
        prompt_median=max(service.prompt_tokens / _SKEW[0], 1.0),
        output_mean=service.output_tokens,
        output_median=max(service.output_tokens / _SKEW[1], 1.0),
        prompt_max=_longest(service.prompt_tokens),
        output_max=_longest(service.output_tokens),
    )
    return generate_requests(rate_per_s=rate_per_s, n_requests=n, lengths=lengths, seed=seed)


def _longest(mean_tokens: float) -> int:
    return math.ceil(_LONGEST * mean_tokens)


def longest_s(service: Service) -> float:
    """Return how long a request of mean length may take within the objectives, in s."""
    return service.slo_ttft_s + service.output_tokens * service.slo_tpot_s


def needed_requests(service: Service, rate_per_s: float) -> int:
    """Return how many requests at a rate last long enough for the share within the objectives to be steady."""
    return int(np.clip(math.ceil(rate_per_s * SPANS * longest_s(service)), LEAST_REQUESTS, MOST_REQUESTS))


def share_within(run: ServingRun, service: Service) -> float:
    """Return the share of requests within both objectives, without those that came while the replicas filled."""
    good = (run.ttft_s <= service.slo_ttft_s) & ~(run.tpot_s > service.slo_tpot_s)
    span_s = float(run.arrival_s[-1] - run.arrival_s[0])
    warm_s = min(longest_s(service), 0.2 * span_s)
    return float(good[run.arrival_s >= run.arrival_s[0] + warm_s].mean())


def serve(strategy: Strategy, service: Service, requests: RequestTrace, replicas: int = 1) -> ServingRun:
    """Serve requests with replicas of one strategy, each sent to the replica with the fewest KV tokens."""
    return simulate(requests, strategy.cluster(service, replicas), FewestKVTokens())


def sustained_per_s(strategy: Strategy, service: Service, *, seed: int = 0) -> float:
    """Return the rate that one replica keeps up within the objectives; 0 where the model or a request does not fit.

    Parameters
    ----------
    strategy : Strategy
    service : Service
    seed : int
        Of the requests.

    Returns
    -------
    float
        Requests per second; the next rate that was tried, at most 4 % above, is not kept up.
    """
    try:
        cluster = strategy.cluster(service)
    except BadValueError:
        return 0.0
    parts = (cluster.prefill, cluster.decode) if isinstance(cluster, DisaggregatedCluster) else (cluster,)
    longest = _longest(service.prompt_tokens) + _longest(service.output_tokens)
    if min(part.kv_capacity_tokens for part in parts) * (1 - parts[0].kv_watermark) <= longest:
        return 0.0
    most = _bound_per_s(strategy, service)

    def kept_up(rate_per_s: float) -> bool:
        requests = requests_of(service, needed_requests(service, rate_per_s), seed, rate_per_s)
        return share_within(serve(strategy, service, requests), service) >= service.share

    # A replica alone with a request is as fast as it can be.
    low, high = most / 64, most
    if not kept_up(low):
        return 0.0
    for _ in range(STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kept_up(middle) else (low, middle)
    return low


def _bound_per_s(strategy: Strategy, service: Service) -> float:
    """Return a rate that no replica of the strategy keeps up, whatever the objectives are."""
    prompt, output = service.prompt_tokens, service.output_tokens
    rates = []
    for engine, workers, whole in (
        (strategy.engine, strategy.pools[0], strategy.decode is None),
        (strategy.decode, strategy.pools[1], False),
    ):
        if engine is None:
            continue
        step = engine.cluster(service).step_time
        seconds = 0.0
        if engine is strategy.engine:
            budget = engine.budget_tokens
            # Steps full of prompt tokens, without attention.
            seconds += prompt * step.seconds(0, 0, budget, 0) / budget
        if whole or engine is strategy.decode:
            context = int(prompt + output / 2)
            seconds += output * (step.seconds(SLOTS, SLOTS * context) - step.seconds(0, 0)) / SLOTS
        rates.append(workers / seconds)
    return 2 * min(rates)


def usd_per_gpu_hour(offers: Iterable[Offer]) -> dict[str, float]:
    """Return the least price of one device of each kind, in an instance of any size.

    Parameters
    ----------
    offers : iterable of Offer
    """
    found: dict[str, float] = {}
    for offer in offers:
        price = offer.usd_per_hour / offer.gpus
        found[offer.device] = min(price, found.get(offer.device, math.inf))
    return found


def templates_of(service: Service, offers: Sequence[Offer], *, split: bool = True) -> tuple[Template, ...]:
    """Return every template of a service on the offered devices, the best strategy for each set of them.

    Parameters
    ----------
    service : Service
    offers : sequence of Offer
    split : bool
        Whether prompts and answers may have devices of their own.
    """
    return tuple(template for template, _ in strategies_of(service, offers, split))


def strategies_of(service: Service, offers: Sequence[Offer], split: bool) -> tuple[tuple[Template, Strategy], ...]:
    """Return the templates of a service as :func:`templates_of` does, with the strategies that they stand for.

    Parameters
    ----------
    service : Service
    offers : sequence of Offer
    split : bool
    """
    largest: dict[str, int] = {}
    for offer in offers:
        largest[offer.device] = max(offer.gpus, largest.get(offer.device, 0))
    return _strategies(service, tuple(sorted(largest.items())), tuple(sorted(usd_per_gpu_hour(offers).items())), split)


@lru_cache(maxsize=256)
def _strategies(
    service: Service, largest: tuple[tuple[str, int], ...], price: tuple[tuple[str, float], ...], split: bool
) -> tuple[tuple[Template, Strategy], ...]:
    best: dict[tuple[tuple[str, int], ...], tuple[Template, Strategy]] = {}
    alone: dict[str, list[int]] = {}

    def keep(strategy: Strategy) -> bool:
        found = template_of(service, strategy)
        if found is not None and (found.nodes not in best or best[found.nodes][0].per_s < found.per_s):
            best[found.nodes] = found, strategy
        return found is not None

    heads = as_model(service.model).heads
    for (device, most), tp in itertools.product(largest, PARALLEL):
        if tp <= most and heads % tp == 0:
            for budget in BUDGETS_TOKENS:
                if keep(Strategy(engine=Engine(device=device, tensor_parallel=tp, budget_tokens=budget))):
                    alone.setdefault(device, []).append(tp)
    if split:
        for strategy in _splits(alone, dict(price)):
            keep(strategy)
    return tuple(best.values())


def _splits(alone: dict[str, list[int]], price: dict[str, float]) -> Iterable[Strategy]:
    """Give strategies with pools, on the devices whose arithmetic or bandwidth costs least."""
    by_flops = sorted(alone, key=lambda device: price[device] / as_device(device).bf16_flops_per_s)
    by_bytes = sorted(alone, key=lambda device: price[device] / as_device(device).hbm_bytes_per_s)
    for prompts, answers in itertools.product(by_flops[:_SPLIT_DEVICES], by_bytes[:_SPLIT_DEVICES]):
        first = Engine(device=prompts, tensor_parallel=min(alone[prompts]), budget_tokens=BUDGETS_TOKENS[-1])
        then = Engine(device=answers, tensor_parallel=min(alone[answers]), budget_tokens=BUDGETS_TOKENS[-1])
        for pools in _POOLS:
            yield Strategy(engine=first, decode=then, pools=pools)


def pruned(templates: Iterable[Template]) -> tuple[Template, ...]:
    """Return the templates without those that copies of a single other one of the service make superfluous.

    Copies that need no more devices, in nodes of no larger size, and keep up as much can take the place of a template
    in every plan.  Of templates that are equal in all this, one stays.

    Parameters
    ----------
    templates : iterable of Template
    """
    # Few devices first: what makes another superfluous is seen before it.
    ordered = sorted(templates, key=lambda each: (each.gpus, -each.per_s))
    kept: list[Template] = []
    for each in ordered:
        if not any(_copies(other, each) * other.per_s >= each.per_s for other in kept if other.service == each.service):
            kept.append(each)
    return tuple(kept)


def _copies(small: Template, large: Template) -> int:
    """Return how many of one template fit wherever the other does."""
    limits = {(device, group) for device, group in (*small.nodes, *large.nodes)}
    found = math.inf
    for device, size in limits:
        if needed := small.needs(device, size):
            found = min(found, large.needs(device, size) // needed)
    return 0 if found == math.inf else int(found)


@lru_cache(maxsize=4096)
def template_of(service: Service, strategy: Strategy) -> Template | None:
    """Return the template of a strategy; None where it cannot serve at all."""
    per_s = sustained_per_s(strategy, service)
    if per_s <= 0:
        return None
    return Template(service=service, nodes=tuple(sorted(strategy.nodes)), how=strategy.how, per_s=per_s)
