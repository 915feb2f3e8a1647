"""Small clusters, loads and trajectories for tests."""

import numpy as np

from wavetank.platforms.calibration import calibrated_roofline
from wavetank.training.rollouts.interface import Rates
from wavetank.training.rollouts.simulate import Batches, Load, Spot
from wavetank.workloads.trajectories import LogNormal, Uniform, generate

PS = 10**12
TABLE = calibrated_roofline("H100-SXM", "Llama-3.1-8B").table
KV = 131_072


def rates(**change):
    return Rates(**{
        "serving_table": TABLE, "rollout_table": TABLE, "serving_kv_bytes": KV, "rollout_kv_bytes": KV,
        "shared_pool_bytes": 20_000 * KV, "own_pool_bytes": 30_000 * KV, "weight_elements": 8_000_000_000,
        "changed_share": 0.05, "link_bytes_per_s": 2.5e9, "inner_bytes_per_s": 5e10, "coding_s": 1.0,
        "train_flops_per_s": 3e15, "ttft_s": 0.5, "tpot_s": 0.15, "own_cap": 8, "guest_cap": 4, **change,
    })  # fmt: skip


def batches(seed=0, steps=2, n=12, tokens=20, delay_s=0.3, turns=4, prompt=300):
    work = generate(
        n * steps, seed=seed, turns=Uniform(low=1, high=turns), turn_tokens=LogNormal(median=tokens, sigma=0.5),
        delay_s=LogNormal(median=delay_s, sigma=0.5), prompt_tokens=LogNormal(median=prompt, sigma=0.5),
    )  # fmt: skip
    return Batches(work, np.arange(1, steps + 1) * n)


def load(seed=0, instances=2, per_s=2.0, last_s=60.0, prompt=500, output=60):
    draws = np.random.default_rng(seed)
    arrivals, prompts, outputs, first = [], [], [], [0]
    for _ in range(instances):
        count = draws.poisson(per_s * last_s)
        arrivals.append(np.sort(draws.uniform(0, last_s, count)))
        prompts.append(draws.integers(1, 2 * prompt, count))
        outputs.append(draws.integers(1, 2 * output, count))
        first.append(first[-1] + count)
    return Load(np.array(first), np.rint(np.concatenate(arrivals) * PS).astype(np.int64), np.concatenate(prompts),
                np.concatenate(outputs))  # fmt: skip


def nobody(instances=2):
    return Load(np.zeros(instances + 1, dtype=np.int64), *[np.zeros(0, dtype=np.int64)] * 3)


def spot(*rows):
    far = 2**62
    most = max(len(row) for row in rows) + 1
    up, down = (np.full((len(rows), most), far, dtype=np.int64) for _ in range(2))
    for place, row in enumerate(rows):
        for k, (begin_s, end_s) in enumerate(row):
            up[place, k], down[place, k] = round(begin_s * PS), round(end_s * PS)
    return Spot(up, down)
