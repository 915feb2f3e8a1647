"""Prompts of a workload on the workers of the serving simulator: what their time to first token is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.reuse.cuts import prefix_units
from wavetank.serving.reuse.energy import default_step_time
from wavetank.serving.reuse.interface import Prompt, SimulatedReuse, Workload
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import ServingRun, simulate
from wavetank.workloads.load import read_trace
from wavetank.workloads.requests import RequestTrace

# Tokens of the blocks that a router goes by, where it does.
ROUTED_TOKENS = 16


def in_turns(workload: Workload) -> Workload:
    """Return the prompts of all conversations side by side: first all first ones, then all second ones.

    Parameters
    ----------
    workload : Workload
        Conversations one after another, as a file has them.
    """
    turns: dict[int, int] = {}
    places: list[tuple[int, int]] = []
    for number, prompt in enumerate(workload.prompts):
        turn = turns[prompt.session] = turns.get(prompt.session, -1) + 1
        places.append((turn, number))
    return workload._replace(prompts=[workload.prompts[number] for _, number in sorted(places)])


def arriving(workload: Workload, arrivals: str, speed: float) -> RequestTrace:
    """Return requests with these prompts that come, and answer, as those of a trace.

    Parameters
    ----------
    workload : Workload
    arrivals : str
        Name of the trace.
    speed : float
        How many times as fast they come.

    Raises
    ------
    BadValueError
        If the trace has fewer requests than there are prompts.
    """
    trace = read_trace(arrivals)
    prompts: Sequence[Prompt] = workload.prompts
    if len(trace) < len(prompts):
        raise BadValueError("There are more prompts than arrivals.", given=f"{len(prompts)} prompts",
                            allowed=f"{len(trace)}, the requests of {arrivals}", where="workload")  # fmt: skip
    ids = max(1, ROUTED_TOKENS // workload.unit)
    blocks = prefix_units(workload, ids)
    return RequestTrace(
        arrival_s=(trace.arrival_s[: len(prompts)] - trace.arrival_s[0]) / speed,
        prompt_tokens=np.array([each.tokens for each in prompts], np.int64),
        output_tokens=trace.output_tokens[: len(prompts)], block_ids=blocks.ids, block_offsets=blocks.offsets,
        block_tokens=ids * workload.unit, name=arrivals,
    )  # fmt: skip


def serve_on_workers(
    rule: SimulatedReuse, workload: Workload, requests: RequestTrace, *, workers: int, tokens: int, shared: bool,
    router: str,
) -> ServingRun:  # fmt: skip
    """Serve prompts on simulated workers that keep them by a rule.

    Parameters
    ----------
    rule : SimulatedReuse
    workload : Workload
    requests : RequestTrace
        Its prompts, in the same order.
    workers : int
    tokens : int
        KV cache of a worker.
    shared : bool
        Whether conversations find what others have.
    router : str
        Name of a system that places requests at arrival.
    """
    from wavetank.ledger import catalog

    policy = rule.policy(workload, shared=shared)
    cluster = Cluster(
        workers=workers, step_time=default_step_time(), kv_capacity_tokens=tokens, max_batched_tokens=8192,
        reuse=policy,
    )  # fmt: skip
    return simulate(requests, cluster, catalog.system(router).build())
