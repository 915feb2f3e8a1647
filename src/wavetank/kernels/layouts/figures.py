"""What the studies of layouts have in common: scrambled tensors, the time of a plan, figures of a kind."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.conversion import Counts
from wavetank.kernels.sorting.key_codec import UNSIGNED
from wavetank.study.study import Measurements, Metric

_PLANS_TIMED = 5


def metrics_of(one: str, many: str, done: str) -> tuple[Metric, ...]:
    """Return the metrics of a study of layouts.

    Parameters
    ----------
    one, many : str
        What is planned and executed: "pair" and "pairs".
    done : str
        What was done to those that are right: "converted".
    """
    return (
        Metric("wavefronts", "", "lower", "counted", f"geometric mean over {many} of max(wavefronts, 1), all warps"),
        Metric("instructions", "", "lower", "counted",
               f"geometric mean over {many} of max(selects + shuffles + stores + loads, 1), all warps"),
        Metric("correct_share", "", "higher", "counted", f"{many} {done} without a wrong element / {many} requested"),
        Metric("plan_s", "s", "lower", "measured", f"median over {many} of the least of {_PLANS_TIMED} planning times",
        words="planning time"),
        Metric("slowest_plan_s", "s", "lower", "measured",
               f"largest over {many} of the least of {_PLANS_TIMED} planning times", table=False),
        Metric("memory_bytes", "bytes", "lower", "counted", f"mean shared memory of a {one}", table=False),
        Metric("gain_mean", "", "higher", "counted",
               f"geometric mean over {many} of wavefronts with padded rows / wavefronts, where there are any",
               table=False),
        Metric("gain_max", "", "higher", "counted",
               f"largest over {many} of wavefronts with padded rows / wavefronts, where there are any", table=False),
    )  # fmt: skip


def scrambled(layout: Layout, element_bytes: int) -> NDArray[Any]:
    """Return a tensor of a layout's shape whose elements differ by their places as far as their type allows."""
    numbers = np.arange(1 << layout.out_bits, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    tensor = (numbers >> np.uint64(64 - 8 * element_bytes)).astype(UNSIGNED[element_bytes])
    return tensor.reshape(tuple(layout.out_sizes.values()))


def planning_s(plan: Callable[[], object]) -> float:
    """Return the least seconds of several times planning."""
    took = math.inf
    for _ in range(_PLANS_TIMED):
        start = time.perf_counter()
        plan()
        took = min(took, time.perf_counter() - start)
    return took


class Judged(NamedTuple):
    """One plan, executed: whether it was right, what it cost, how long it took to make, and what padded rows cost.

    ``counts`` is None, and the time NaN, of a plan that was refused.
    """

    right: bool
    counts: Counts | None
    plan_s: float
    padded_wavefronts: int


def judged_by_kind(kinds: Iterable[str], judged: Callable[[str], Sequence[Judged]]) -> Measurements:
    """Return the figures of every kind, and of all kinds together under ``"all"``.

    Parameters
    ----------
    kinds : iterable of str
    judged : callable
        Kind to its plans, executed.
    """
    found, everything = Measurements(), list[Judged]()
    for kind in kinds:
        rows = judged(kind)
        put_figures(found, kind, rows)
        everything += rows
    put_figures(found, "all", everything)
    return found


def put_figures(found: Measurements, kind: str, rows: Sequence[Judged]) -> None:
    """Record the figures of a kind; means over all of it only where nothing was refused."""
    done = [row.counts for row in rows if row.counts is not None]
    found.put("correct_share", sum(row.right for row in rows) / len(rows), kind=kind)
    if done:
        times = [row.plan_s for row in rows if row.counts is not None]
        found.put("plan_s", statistics.median(times), kind=kind)
        found.put("slowest_plan_s", max(times), kind=kind)
    if len(done) == len(rows):
        found.put("wavefronts", statistics.geometric_mean(max(each.wavefronts, 1) for each in done), kind=kind)
        found.put("instructions", statistics.geometric_mean(max(each.instructions, 1) for each in done), kind=kind)
        found.put("memory_bytes", statistics.fmean(each.memory_bytes for each in done), kind=kind)
        gains = [
            row.padded_wavefronts / each.wavefronts for row, each in zip(rows, done, strict=True) if each.wavefronts
        ]
        if gains:
            found.put("gain_mean", statistics.geometric_mean(gains), kind=kind)
            found.put("gain_max", max(gains), kind=kind)
