"""Random prompts of units, rules and clusters: tiny caches, repeated units, moved runs, what others have."""

from __future__ import annotations

from typing import Any

import numpy as np

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reuse import GivenUnits, ReuseRule, Units
from wavetank.workloads import RequestTrace

STEP = FittedStepTime(overhead_s=1e-3, per_request_s=1e-4, per_context_token_s=1e-6, per_prefill_token_s=1e-4,
                      per_prefill_pair_s=1e-7)  # fmt: skip


def random_case(seed: int, *, fetch: bool) -> tuple[RequestTrace, Cluster]:
    """Return a trace and a cluster that keeps its prompts by a random policy.

    Prompts are drawn from few contents, so that they share prefixes, repeat units and contain each other.
    """
    draws = np.random.default_rng(seed)
    contents = int(draws.integers(2, 7))
    lengths = draws.integers(1, draws.integers(2, 30), contents)
    named, frees = bool(draws.integers(2)), bool(draws.integers(2))
    chain: dict[tuple[int, ...], int] = {}
    tokens: list[int] = []
    free: list[bool] = []
    if frees:
        tokens += lengths.tolist()
        free += [True] * contents
    ids: list[int] = []
    names: list[int] = []
    offsets, prompts, blocks, block_offsets = [0], [], [], [0]
    n = int(draws.integers(3, 25))
    pieces = [draws.integers(0, contents, 6) for _ in range(3)]
    for _ in range(n):
        sequence = pieces[int(draws.integers(3))][: int(draws.integers(0, 7))].tolist()
        sequence += draws.integers(0, contents, draws.integers(0, 3)).tolist()
        prompt = 0
        for place, content in enumerate(sequence):
            prompt += int(lengths[content])
            if frees and content % 3 == 0:
                ids.append(content)
                names.append(-1)
                continue
            key = tuple(sequence[: place + 1])
            if key not in chain:
                chain[key] = len(tokens)
                tokens.append(int(lengths[content]))
                free.append(False)
            ids.append(chain[key])
            names.append(content if draws.random() < 0.8 else -1)
        offsets.append(len(ids))
        prompts.append(max(prompt + int(draws.choice([0, 0, 1, 17])), 1))
        blocks += ids[offsets[-2] :][: prompts[-1] // 8]
        block_offsets.append(len(blocks))
    workers = int(draws.choice([1, 2, 4]))
    resident = draws.random((workers, len(tokens))) < 0.2 if draws.random() < 0.3 else None
    rule = ReuseRule(
        again_tokens=int(draws.choice([0, 1, 5, 1000])), again_share=float(draws.choice([0.0, 0.15, 0.5, 1.0])),
        store_tokens=int(draws.choice([0, 0, 3, 40])), fetch=fetch and bool(draws.integers(2)),
        overlapped=bool(draws.integers(2)), bytes_per_token=1000.0, link_bytes_per_s=1e7,
        fetch_latency_s=float(draws.choice([0.0, 1e-3])),
    )  # fmt: skip
    units = Units(
        np.array(ids, np.int64), np.array(offsets), np.array(tokens, np.int64),
        np.array(free) if frees else None, np.array(names, np.int64) if named else None, resident,
    )  # fmt: skip
    outputs = draws.integers(1, 20, n)
    longest = int((np.array(prompts) + outputs).max())
    slots = int(draws.integers(1, 6))
    cluster = Cluster(
        workers=workers, group_size=int(draws.choice([1, 1, workers])), step_time=STEP, max_running=slots,
        max_batched_tokens=int(draws.integers(slots, 90)),
        kv_capacity_tokens=max(longest + int(draws.choice([0, 30, 10_000])), 2),
        kv_watermark=float(draws.choice([0.0, 0.2])), refresh_s=float(draws.choice([0.0, 0.013, 0.1])),
        sync_s=float(draws.choice([0.0, 1e-3])), scheduled_ahead=bool(draws.integers(2)),
        reuse=GivenUnits(given=units, how=rule),
    )  # fmt: skip
    more: dict[str, Any] = {"block_ids": blocks, "block_offsets": block_offsets, "block_tokens": 8} if blocks else {}
    trace = RequestTrace(
        arrival_s=np.cumsum(draws.choice([0.0, 0.0007, 0.011, 0.1], n)), prompt_tokens=prompts, output_tokens=outputs,
        **more,
    )  # fmt: skip
    return trace, cluster
