"""A small job whose times are whole numbers, so that runs can be added up by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from wavetank.platforms.links import Link
from wavetank.training.failures.failure_times import TimedFailures
from wavetank.training.failures.interface import Job, Plan

# 8 microbatches on 4 replicas: 2 s of computation, and an all-reduce of 2 * 3 / 4 * 1 s with four of them.
STEP_S = 3.5


def job(**other: Any) -> Job:
    given = {
        "replicas": 4, "gpus": 2, "microbatches": 8, "tokens": 10, "microbatch_s": 1.0, "gradient_bytes": 4e9,
        "link": Link(bytes_per_s=4e9, latency_s=0.0), "detect_s": 0.25, "regroup_s": 0.5, "copy_s": 2.0,
        "checkpoint_s": 1.0, "restart_s": 20.0,
    }  # fmt: skip
    return Job(**{**given, **other})


def timed(*rows: tuple[float, int, float], horizon_s: float = 1000.0) -> TimedFailures:
    table = np.array(rows, dtype=float).reshape(-1, 3)
    return TimedFailures(table[:, 0], table[:, 1].astype(np.int64), table[:, 2], horizon_s)


class Bench:
    """A bench whose rehearsals are given by a function."""

    def __init__(self, score: Any = lambda recovery, plan: 0.0, mtbf_s: float = 100.0, **other: Any) -> None:
        self.job, self.mtbf_s, self.score = job(**other), mtbf_s, score
        self.asked: list[Plan] = []

    def rehearse(self, recovery: Any, plan: Plan) -> float:
        self.asked.append(plan)
        return self.score(recovery, plan)
