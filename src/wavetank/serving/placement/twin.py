"""The twin: one GPU with its adapters in the serving simulator, and whether it keeps up.

The same requests and the same step costs as those that were judged against recorded runs (study ``adapter-fidelity``).
A GPU starves where it gives less than nine tenths of the tokens asked for, the rule of the source; or, more strictly,
where one of its adapters gets less than that of its requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.adapters.lora_fidelity import Configuration, cluster, workload
from wavetank.serving.placement.interface import (
    Adapter,
    Gpu,
    PlacementProblem,
    TwinRun,
    kv_tokens,
    model_named,
    width_of,
)
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator.simulate import ServingRun, simulate
from wavetank.workloads.requests import RequestTrace

HOUR_S = 3600.0
# Time of a search for the largest load, and of its first part, which fills the batch.  With a third of both, what is
# found is lower by up to 40 %: answers that have just begun are missing in the window.
SEARCH_S, WARM_S = 1200.0, 300.0
LEAST_PER_S, MOST_PER_S = 0.05, 100.0
# Requests from which an adapter's own share counts.
FEWEST = 20


def configuration_of(model: str, adapters: Sequence[Adapter], slots: int) -> Configuration:
    """Return the GPU in the form of a recorded run.

    Parameters
    ----------
    model : str
    adapters : sequence of Adapter
    slots : int

    Raises
    ------
    BadValueError
        If the engine cannot start with these slots.
    """
    rank = max(each.rank for each in adapters)
    width, left = width_of(rank), kv_tokens(model, slots, rank)
    if width is None or not left:
        raise BadValueError(
            "No KV cache is left beside these slots.", given=f"{slots} slots of rank {rank}",
            where="slots",
        )  # fmt: skip
    return Configuration(
        row=0,
        model=model_named(model)[0],
        subset="",
        slots=slots,
        served_adapters=len(adapters),
        max_rank=width,
        rates_per_s=tuple(each.rate_per_s for each in adapters),
        ranks=tuple(each.rank for each in adapters),
        kv_capacity_tokens=left,
        outcome="ok",
    )


@lru_cache(maxsize=4096)
def serve(model: str, adapters: tuple[Adapter, ...], slots: int, seed: int) -> TwinRun:
    """Serve an hour of requests, beginning with an empty GPU whose adapters are still on disk.

    Parameters
    ----------
    model : str
    adapters : tuple of Adapter
    slots : int
    seed : int
        Of the requests.
    """
    configuration = configuration_of(model, adapters, slots)
    requests = workload(configuration, seed, duration_s=HOUR_S)
    run = simulate(requests, cluster(configuration, model_named(model)[1]), RoundRobin())
    done = run.finish_s <= HOUR_S
    outputs = run.output_tokens[done]
    gaps = int((outputs - 1).sum())
    return TwinRun(
        asked_tokens=float(run.output_tokens.sum()),
        given_tokens=float(outputs.sum()),
        itl_mean_s=float((run.finish_s - run.first_token_s)[done].sum()) / gaps if gaps else float("nan"),
        ttft_p99_s=float(np.quantile(run.ttft_s[done], 0.99)) if done.any() else float("nan"),
        worst_share=_worst_share(requests, run, 0.0, HOUR_S),
    )


def _worst_share(requests: RequestTrace, run: ServingRun, from_s: float, to_s: float) -> float:
    """Return the least share of one adapter's requests that were finished, of those that came early enough."""
    owner = np.zeros(run.arrival_s.size, np.int64) if requests.adapter is None else requests.adapter
    early = (run.arrival_s >= from_s) & (run.arrival_s <= from_s + 0.9 * (to_s - from_s))
    came = np.bincount(owner[early])
    finished = np.bincount(owner[early & (run.finish_s <= to_s)], minlength=came.size)
    enough = came >= FEWEST
    return float((finished[enough] / came[enough]).min()) if enough.any() else 1.0


def judge(problem: PlacementProblem, gpu: Gpu, seed: int) -> TwinRun:
    """Serve an hour on a GPU of a plan.

    Parameters
    ----------
    problem : PlacementProblem
    gpu : Gpu
    seed : int
        Of the requests.
    """
    return serve(problem.model, tuple(problem.by_name[name] for name in gpu.adapters), gpu.slots, seed)


def capacity_per_s(
    problem: PlacementProblem, adapters: Sequence[Adapter], slots: int, seed: int = 0, *, search_s: float = SEARCH_S
) -> float:
    """Return the largest rate, in the mix of the adapters' rates, that a GPU serves before it starves.

    Parameters
    ----------
    problem : PlacementProblem
    adapters : sequence of Adapter
        Their rates count in proportion to each other.
    slots : int
    seed : int
    search_s : float
        Simulated time of each rate that is tried, in s; what fills the batch first is left out.

    Returns
    -------
    float
        Requests per second, from 0.05 to 100.  Adapters have been read from disk before.
    """
    given = configuration_of(problem.model, adapters, slots)
    total = sum(each.rate_per_s for each in adapters)
    most = dataclasses.replace(given, rates_per_s=tuple(MOST_PER_S * each.rate_per_s / total for each in adapters))
    trace = workload(most, seed, duration_s=search_s)
    costs = dataclasses.replace(model_named(problem.model)[1], first_load_s_per_rank=0.0)
    on = cluster(given, costs)

    def keeps_up(rate_per_s: float) -> bool:
        arrival_s = trace.arrival_s * (MOST_PER_S / rate_per_s)
        n = max(int(np.searchsorted(arrival_s, search_s)), 1)
        some = dataclasses.replace(
            trace, arrival_s=arrival_s[:n], prompt_tokens=trace.prompt_tokens[:n],
            output_tokens=trace.output_tokens[:n], adapter=trace.adapter[:n],  # type: ignore[index]
        )  # fmt: skip
        run = simulate(some, on, RoundRobin())
        asked = run.output_tokens[run.arrival_s >= WARM_S].sum()
        given_ = run.output_tokens[(run.finish_s >= WARM_S) & (run.finish_s <= search_s)].sum()
        fair = _worst_share(some, run, WARM_S, search_s) >= problem.share
        return bool(given_ >= problem.share * asked and fair)

    low, high = LEAST_PER_S, MOST_PER_S
    for _ in range(10):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps_up(middle) else (low, middle)
    return float((low * high) ** 0.5)
