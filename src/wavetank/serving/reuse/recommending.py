"""The recommender's part of study ``kv-reuse``: forty workers, their pools or caches, and one stream of arrivals."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from wavetank.serving.reuse.cluster import CacheFleet, Fleet, Floats, PoolFleet, Timeline, node, simulate
from wavetank.serving.reuse.interface import Prompt, Reuse
from wavetank.serving.reuse.moving_rivals import CacheBlend
from wavetank.serving.reuse.part_rivals import ChainedParts
from wavetank.serving.reuse.rcllm import Again, PartPools, Pools
from wavetank.serving.reuse.recommender import Shop, arrivals, generated_shop, movie_shop
from wavetank.serving.reuse.rivals import BlockPrefix, NoReuse, RadixCache
from wavetank.serving.routing.block_affinity import BlockAffinity
from wavetank.study.study import Measurements

SCHEDULERS = ("best", "affinity", "locality", "load", "turns")
CATALOGUES = ("generated", "movielens-small")
_PREFIXES = (RadixCache, BlockPrefix, ChainedParts, NoReuse)


@dataclass(frozen=True, kw_only=True)
class Field:
    """What a stream of requests is served with.

    Parameters
    ----------
    catalogue : str
        ``generated`` or ``movielens-small``.
    items, users, learned, asked, candidates : int
        As for :func:`~wavetank.serving.reuse.recommender.generated_shop`.
    workers : int
    node_tokens : int
        Room of a worker; 0: no limit.
    link_bytes_per_s : float
        Into and out of a worker.
    load : float
        Arrivals, as a share of what the workers could serve without any cache.
    own : bool
        Whether the load is a share of what they can serve with the system itself instead.
    scheduler : str
        A word of :data:`SCHEDULERS`; ``best``: the one with the least mean, in hindsight.
    """

    catalogue: str
    items: int
    users: int
    learned: int
    asked: int
    candidates: int
    workers: int
    node_tokens: int
    link_bytes_per_s: float
    load: float
    own: bool = False
    scheduler: str = "best"

    def shop(self, seed: int) -> Shop:
        """Return catalogue and requests.

        Parameters
        ----------
        seed : int
        """
        if self.catalogue == "generated":
            return generated_shop(
                seed, items=self.items, users=self.users, learned=self.learned, asked=self.asked,
                candidates=self.candidates,
            )  # fmt: skip
        return movie_shop(seed, learned=self.learned, asked=self.asked, candidates=self.candidates)


@lru_cache(maxsize=4)
def _prompts(shop: Shop) -> tuple[Prompt, ...]:
    return tuple(shop.prompt(each) for each in (*shop.learned, *shop.asked))


@lru_cache(maxsize=4)
def _prefixes(shop: Shop) -> int:
    """Return tokens of the longest prefixes ever seen, of the requests that are judged."""
    prefix = RadixCache().cache(budget_tokens=None, unit=shop.unit)
    return sum([prefix.serve(each).reused for each in _prompts(shop)][len(shop.learned) :])


@lru_cache(maxsize=8)
def _pools(rule: PartPools, shop: Shop, workers: int, node_tokens: int, seed: int) -> Pools:
    return rule.pools(shop, workers=workers, node_tokens=node_tokens, seed=seed)


def fleet(system: Reuse, shop: Shop, field: Field, seed: int) -> tuple[Fleet, float]:
    """Return workers for a system, and the share of kept tokens that a router expects to be computed again.

    Parameters
    ----------
    system : Reuse
    shop : Shop
    field : Field
    seed : int
    """
    rule, again = system, None
    if isinstance(system, CacheBlend):
        # Given the same parts and pools as the others: what is computed again alone is its own.
        rule, again = PartPools(), Again(system.share, 0)
    if isinstance(rule, PartPools):
        again = rule.again() if again is None else again
        filled = PartPools(
            replicas=rule.replicas, entry_room=rule.entry_room, slack=rule.slack, placement=rule.placement
        )
        pools = _pools(filled, shop, field.workers, field.node_tokens, seed)
        lengths = np.array([len(each) for each in shop.items], np.int64) * shop.unit
        share, about = again.count(lengths) / max(int(lengths.sum()), 1), node()
        # Rows that take longer to bring than to compute are computed: all rules with pools do so alike.
        fetches = about.row_bytes / field.link_bytes_per_s < (1.0 - share) * about.token_s
        return PoolFleet(shop, pools, again, field.workers, fetches=fetches), share
    prefixes = isinstance(system, _PREFIXES)
    return CacheFleet(system, _prompts(shop), workers=field.workers, node_tokens=field.node_tokens, unit=shop.unit,
                      prefixes=prefixes), 0.0  # fmt: skip


def _run(system: Reuse, field: Field, seed: int, rate_per_s: float) -> Timeline:
    """Return the requests that are judged, served behind those that may be learned from."""
    shop = field.shop(seed)
    prompts, times = _prompts(shop), arrivals(seed, len(shop.learned) + len(shop.asked), rate_per_s)
    about = node()
    runs = []
    for name in SCHEDULERS[1:] if field.scheduler == "best" else (field.scheduler,):
        workers, again = fleet(system, shop, field, seed)
        router = None if name == "turns" else BlockAffinity(
            token_s=about.token_s, pair_s=about.pair_s, fetch_s=about.row_bytes / field.link_bytes_per_s, again=again,
            locality=0.0 if name == "load" else 1.0, queue=0.0 if name == "locality" else 1.0,
        )  # fmt: skip
        found = simulate(workers, router, [each.tokens for each in prompts], times, workers=field.workers,
                         link_bytes_per_s=field.link_bytes_per_s)  # fmt: skip
        runs.append(_judged(found, len(shop.learned), times))
    return min(runs, key=lambda each: float(each.ttft_s.mean()))


def _judged(found: Timeline, learned: int, times: Floats) -> Timeline:
    span = found.span_s - float(times[learned] - times[0]) if learned < len(times) else 0.0
    return Timeline(found.ttft_s[learned:], found.queue_s[learned:], found.busy_s[learned:], found.workers[learned:],
                    found.jobs[learned:], span)  # fmt: skip


def rate(field: Field, seed: int, system: Reuse) -> float:
    """Return arrivals a second.

    Parameters
    ----------
    field : Field
    seed : int
    system : Reuse
        Whose own capacity counts where the field says so: what its prompts take when nothing waits.
    """
    if field.own:
        alone = _run(system, replace(field, own=False), seed, 1e-3 * field.workers)
        return field.load * field.workers / float(alone.busy_s.mean())
    about, prompts = node(), _prompts(field.shop(seed))
    return field.load * field.workers / float(np.mean([about.seconds(each.tokens, each.tokens) for each in prompts]))


def figures(system: Reuse, field: Field, seed: int) -> dict[str, float]:
    """Return the figures of a system.

    Parameters
    ----------
    system : Reuse
    field : Field
    seed : int
    """
    shop = field.shop(seed)
    found = _run(system, field, seed, rate(field, seed, system))
    prompts = _prompts(shop)[len(shop.learned) :]
    tokens, count, prefixes = sum(each.tokens for each in prompts), len(prompts), _prefixes(shop)
    reused, recomputed, computed, moved = (
        sum(column) for column in zip(*(each.served for each in found.jobs), strict=True)
    )  # fmt: skip
    return {
        "ttft_mean_s": float(found.ttft_s.mean()), "ttft_p99_s": float(np.quantile(found.ttft_s, 0.99)),
        "queue_mean_s": float(found.queue_s.mean()), "utilisation": found.busy_s.sum() / field.workers / found.span_s,
        "reused_share": reused / tokens,
        "recovered_share": (reused - prefixes) / (tokens - prefixes) if tokens > prefixes else 0.0,
        "computed_tokens": (computed + recomputed) / count, "recomputed_tokens": recomputed / count,
        "moved_tokens": moved / count,
        "transferred_tokens": sum(int(each.fetched.sum()) for each in found.jobs) / count,
    }  # fmt: skip


def ranked(system: Reuse, seed: int, *, steps: int, prompts: int) -> dict[str, float]:
    """Return what is left of a trained decoder's rankings; nothing for systems that are not executed.

    What uses prefixes alone computes what a full prefill computes.

    Parameters
    ----------
    system : Reuse
    seed : int
    steps : int
        Of training.
    prompts : int
        0: no decoder.
    """
    if not prompts or importlib.util.find_spec("torch") is None:
        return {}
    from wavetank.serving.reuse import ranking

    if isinstance(system, _PREFIXES):
        return ranking.figures(ranking.ranker(steps), None, prompts=prompts, seed=seed)
    if isinstance(system, CacheBlend):
        return ranking.figures(ranking.ranker(steps), Again(system.share, 0), prompts=prompts, seed=seed)
    if isinstance(system, PartPools):
        return ranking.figures(ranking.ranker(steps), ranking.scaled(system.again()), prompts=prompts, seed=seed)
    return {}


def measured(system: Reuse, field: Field, seed: int, sweeps: dict[str, Sequence[float]]) -> Measurements:
    """Return the figures at the field, and along each sweep.

    Parameters
    ----------
    system : Reuse
    field : Field
    seed : int
    sweeps : dict of str to sequence of float
        Values of ``candidates``, ``load``, ``own_load``, ``link_bytes_per_s`` and ``node_tokens``.
    """
    found = Measurements(figures(system, field, seed))
    for name, values in sweeps.items():
        for value in values:
            change: dict[str, Any] = {name: int(value) if name in ("candidates", "node_tokens") else value}
            there = replace(field, **({"load": value, "own": True} if name == "own_load" else change))
            for metric, figure in figures(system, there, seed).items():
                found.put(metric, figure, **{name: float(value)})
    return found
