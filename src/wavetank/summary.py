"""Summaries of records: medians with bootstrap intervals over seeds, ratios of paired seeds, and who leads.

The report and the terminal table print these and compute nothing of their own.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wavetank.records import Record, canonical_at

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wavetank.study import Metric

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Row:
    """One line of a summary.

    Attributes
    ----------
    system, metric, unit, kind : str
    median, low, high : float
        Median over seeds and the ends of its 95 % bootstrap interval (equal to it where there is one seed).
    least, most : float
        Smallest and largest value.
    seeds : int
        How many seeds gave a figure.
    at : dict
        Coordinates inside the trial.
    """

    system: str
    metric: str
    median: float
    low: float
    high: float
    unit: str
    kind: str
    seeds: int
    least: float
    most: float
    at: dict[str, Any]


def summarise(records: Iterable[Record]) -> list[Row]:
    """Return one row for every system, metric and coordinate, in order of first appearance."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.system, record.metric, canonical_at(record.at)].append(record)
    rows = []
    for (system, metric, at), group in groups.items():
        values = [record.value for record in group if not math.isnan(record.value)]
        median, low, high = interval(values)
        rows.append(
            Row(
                system,
                metric,
                median,
                low,
                high,
                group[0].unit,
                group[0].kind,
                len(values),
                min(values, default=math.nan),
                max(values, default=math.nan),
                json.loads(at),
            )
        )
    return rows


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the 95 % percentile-bootstrap interval of the median.

    The resampling stream is fixed, so equal values give equal intervals.

    Examples
    --------
    >>> interval([2.0])
    (2.0, 2.0, 2.0)
    """
    import numpy as np

    if not values:
        return math.nan, math.nan, math.nan
    sample = np.sort(np.asarray(values, dtype=np.float64))
    # The middle value for odd counts, the mean of the two middle ones for even: np.median's definition.
    low, high = ((len(sample) - 1) // 2, len(sample) // 2)
    median = float((sample[low] + sample[high]) / 2)
    if len(sample) == 1:
        return median, median, median
    picks = np.sort(sample[_resamples(len(sample))], axis=1)
    medians = (picks[:, low] + picks[:, high]) / 2
    tail = 100 * (1 - CONFIDENCE) / 2
    # An observed value, not an interpolated one, so that infinities stay what they are.
    ends = np.percentile(medians, [tail, 100 - tail], method="nearest")
    return median, float(ends[0]), float(ends[1])


_CACHE: dict[int, Any] = {}


def _resamples(size: int) -> NDArray[np.int64]:
    from wavetank.rng import stream

    if size not in _CACHE:
        _CACHE[size] = stream(0, "bootstrap", size).integers(0, size, (RESAMPLES, size))
    return _CACHE[size]  # type: ignore[no-any-return]


def paired_ratio(
    records: Iterable[Record], metric: str, system: str, versus: str, at: Mapping[str, Any]
) -> tuple[float, float, float, int]:
    """Return median, low and high of the ratio system / versus over the seeds that both have, and their number."""
    wanted = canonical_at(at)
    values: dict[str, dict[int, float]] = {system: {}, versus: {}}
    for record in records:
        if record.metric == metric and record.system in values and canonical_at(record.at) == wanted:
            values[record.system][record.seed] = record.value
    common = sorted(set(values[system]) & set(values[versus]))
    ratios = [_ratio(values[system][seed], values[versus][seed]) for seed in common]
    ratios = [ratio for ratio in ratios if not math.isnan(ratio)]
    return (*interval(ratios), len(ratios))


def _ratio(value: float, base: float) -> float:
    if base == 0:
        return 1.0 if value == 0 else math.copysign(math.inf, value)
    return value / base


def leaders(rows: Sequence[Row], metric: Metric, at: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the systems that nobody beats on a metric: one when its interval lies clear of all others, else several.

    One seed has no interval, so it names no leader: the result is then empty.
    """
    wanted = canonical_at(at)
    rivals = [row for row in rows if row.metric == metric.name and canonical_at(row.at) == wanted and row.seeds]
    if not metric.better or len(rivals) < 2 or min(row.seeds for row in rivals) < 2:
        return ()
    if metric.better == "lower":
        best = min(rivals, key=lambda row: row.median)
        return tuple(row.system for row in rivals if row is best or row.low <= best.high)
    best = max(rivals, key=lambda row: row.median)
    return tuple(row.system for row in rivals if row is best or row.high >= best.low)
